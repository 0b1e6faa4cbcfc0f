"""Memory allocation: huge pages, and freed blocks that the process keeps, so that passes cause few page faults."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

LARGE_BLOCK = 32 << 20
"""Bytes from which a block is a mapping of its own. In the heap, blocks of tens of megabytes leave gaps that nothing
else fits into, and a pass over 30,000 tokens would need several times its memory. It is glibc's maximum."""


def allow_huge_pages() -> None:
    """Lets torch ask for huge pages for tensors of 2 MB and more; it must be called before torch is imported.

    An optimiser step of half a billion parameters then has 0.2 instead of 2.6 million page faults.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


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
