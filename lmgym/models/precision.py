"""Which type the CPU multiplies fastest, found by trying it where a crash does no harm."""

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
"""What oneDNN is limited to where the CPU announces matrix tiles (AMX) that its virtual machine does not allow."""


def bfloat16_is_faster() -> bool:
    """Whether bfloat16 is worth it here; asked once per machine, remembered in the cache folder."""
    return _probe() == "faster"


def make_bfloat16_safe() -> None:
    """Keeps oneDNN from instructions that end the process here; it must be called before the first product."""
    if _probe() == "crashes":
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", SAFE_INSTRUCTIONS)


def _probe() -> str:
    path = cache_dir() / "precision.json"
    key = f"{_cpu_name()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    if key not in known:
        # In a process of its own: an instruction that is announced but not allowed kills whoever uses it.
        child = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
        known[key] = child.stdout.strip() or "crashes"
        with contextlib.suppress(OSError):  # asked again next time, where it cannot be remembered
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(known, indent=2) + "\n")
    return known[key]


def _cpu_name() -> str:
    """What tells one kind of CPU, and what a virtual machine allows of it, from another."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    described = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return hashlib.sha256("\n".join(described[:2]).encode()).hexdigest()[:16]
