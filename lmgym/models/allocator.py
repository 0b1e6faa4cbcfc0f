"""Memory that stays: large blocks are kept for the next pass instead of being handed back and faulted in again."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_memory() -> None:
    """Tells glibc not to return freed blocks to the system; every pass would fault gigabytes in again."""
    if platform.system() != "Linux":
        return
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)  # never trim
    except (OSError, AttributeError):
        return  # another C library: nothing is lost but speed
