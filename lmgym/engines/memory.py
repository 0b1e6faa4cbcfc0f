"""The free memory of a device, without an extra dependency."""

from __future__ import annotations

from pathlib import Path

import torch

UNKNOWN = 8 << 30
"""Bytes assumed to be free where the system does not report it."""


def free_bytes(device: torch.device) -> int:
    """The free memory in bytes, or a guess where the system does not report it."""
    known = known_free_bytes(device)
    return UNKNOWN if known is None else known


def known_free_bytes(device: torch.device) -> int | None:
    """The free bytes of the CUDA device, or the smaller of the system's and the container's; None if unknown."""
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
    except (OSError, ValueError):  # no container, or one whose limit is "max"
        return None
    return max(limit - used + _reclaimable(), 0)


def _reclaimable() -> int:
    """Bytes that a container counts as used but can reclaim: inactive pages of the file cache."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
