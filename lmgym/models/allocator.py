"""Memory allocation: freed blocks are kept by the process, which avoids page faults in every pass."""

from __future__ import annotations

import contextlib
import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Tells glibc not to return freed memory to the system: every pass would page-fault gigabytes in again."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: only slower
        library = _glibc()
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)  # never trim


def release_freed_memory() -> None:
    """Returns freed memory to the system, between sampling and learning: what one leaves rarely fits the other."""
    with contextlib.suppress(OSError, AttributeError):
        _glibc().malloc_trim(0)


def _glibc() -> ctypes.CDLL:
    if platform.system() != "Linux":
        raise OSError
    return ctypes.CDLL("libc.so.6")
