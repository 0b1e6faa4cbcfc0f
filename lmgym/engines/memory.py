"""How much memory there is to use, without a dependency for it."""

from __future__ import annotations

from pathlib import Path

import torch

UNKNOWN = 8 << 30
"""What is assumed to be free where the system does not say."""


def free_bytes(device: torch.device) -> int:
    """The memory that could be had now, or a guess where the system does not say."""
    known = known_free_bytes(device)
    return UNKNOWN if known is None else known


def known_free_bytes(device: torch.device) -> int | None:
    """The memory that could be had now: the device's own, or what the system and its container still give."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [limit for limit in (_available(), _left_in_container()) if limit is not None]
    return min(limits, default=None)


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _left_in_container() -> int | None:
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no container, or one whose limit reads "max"
        return None
    return max(limit - used + _reclaimable(), 0)


def _reclaimable() -> int:
    """What a container counts as used and gives back when asked: pages of files that were read some time ago."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
