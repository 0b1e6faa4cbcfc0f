"""Memory allocation: the process keeps freed blocks, except large ones, which avoids page faults in every pass."""

from __future__ import annotations

import contextlib
import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

LARGE_BLOCK = 32 << 20
"""Bytes from which a block is a mapping of its own. In the heap, blocks of tens of megabytes leave gaps that nothing
else fits into, and a pass over 30,000 tokens would need several times its memory. It is glibc's maximum."""


def keep_freed_memory() -> None:
    """Tells glibc to keep freed blocks, except large ones: every pass would page-fault gigabytes in again."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: only slower
        library = _glibc()
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, -1)  # never trim


def release_freed_memory() -> None:
    """Returns freed memory to the system, between passes of different kinds: what one leaves rarely fits the other."""
    with contextlib.suppress(OSError, AttributeError):
        _glibc().malloc_trim(0)


def _glibc() -> ctypes.CDLL:
    if platform.system() != "Linux":
        raise OSError
    return ctypes.CDLL("libc.so.6")
