"""Memory allocation: freed blocks are kept by the process, which avoids page faults in every pass."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Tells glibc not to return freed memory to the system: every pass would page-fault gigabytes in again."""
    if platform.system() != "Linux":
        return
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)  # never trim
    except (OSError, AttributeError):
        return  # another C library: only slower
