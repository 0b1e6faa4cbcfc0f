"""Whether bfloat16 matrix products are faster than float32 on this CPU, measured in a subprocess that may crash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from lmgym.assets.catalogue import cache_dir
from lmgym.assets.storage import write_text

PROBE = """
import time, torch
def seconds(dtype):
    a, b = torch.randn(256, 576, dtype=dtype), torch.randn(1536, 576, dtype=dtype)
    best = 1e9
    for _ in range(30):
        start = time.perf_counter()
        torch.nn.functional.linear(a, b)
        best = min(best, time.perf_counter() - start)
    return best
full = seconds(torch.float32)
print("faster" if seconds(torch.bfloat16) < 0.8 * full else "slower")
"""

SAFE_INSTRUCTIONS = "AVX512_CORE_BF16"
"""The oneDNN instruction set for CPUs that report AMX inside a virtual machine that does not allow it."""


def bfloat16_is_faster() -> bool:
    """Whether bfloat16 is faster; measured once per machine and stored in the cache folder."""
    return _probe() == "faster"


def make_bfloat16_safe() -> None:
    """Restricts oneDNN to instructions that do not crash here; must be called before the first matrix product."""
    if _probe() == "crashes":
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", SAFE_INSTRUCTIONS)


def _probe() -> str:
    """faster, slower or crashes; from the cache folder if this CPU was measured before."""
    path = cache_dir() / "precision.json"
    key = f"{_cpu_name()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    if key not in known:
        # In a subprocess: an instruction that is reported but not allowed kills the process.
        child = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
        known[key] = child.stdout.strip() or "crashes"
        with contextlib.suppress(OSError):  # a read-only cache folder: measured again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(known, indent=2) + "\n")
    return known[key]


def _cpu_name() -> str:
    """A hash of the CPU model and its feature flags, which a virtual machine may restrict."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    described = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return hashlib.sha256("\n".join(described[:2]).encode()).hexdigest()[:16]
