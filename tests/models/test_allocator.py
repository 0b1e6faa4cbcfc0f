"""Torch may use huge pages; freed memory stays with the process until it is released to the system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = "import os, sys, lmgym; print('torch' in sys.modules, os.environ['THP_MEM_ALLOC_ENABLE'])"


@pytest.mark.parametrize(("given", "left"), [({}, "1"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "0")])
def test_huge_pages_are_allowed_before_torch_is_loaded_unless_the_user_chose(given, left):
    own = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=own | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", left]


SCRIPT = """
import torch
from lmgym.models.allocator import keep_freed_memory, release_freed_memory

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

keep_freed_memory()
held = [torch.ones(1 << 20) for _ in range(100)]  # 4 MB each
between = [tensor.clone() for tensor in held[:10]]
full = resident()
del held
kept = resident()
release_freed_memory()
print(full, kept, resident(), sum(float(tensor.sum()) for tensor in between) == 10 * (1 << 20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_freed_memory_is_kept_until_it_is_released():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    *kilobytes, unchanged = done.stdout.split()
    full, kept, released = map(int, kilobytes)
    assert kept > full - 50_000
    assert released < full - 300_000
    assert unchanged == "True"


LARGE = """
import torch
from lmgym.models.allocator import LARGE_BLOCK, keep_freed_memory

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

keep_freed_memory()
before = [torch.ones(LARGE_BLOCK // 2) for _ in range(5)]  # each twice the size of a large block
after = torch.ones(10)
full = resident()
del before
print(full, resident(), LARGE_BLOCK)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_large_blocks_are_returned_at_once():
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    full, released, block = map(int, done.stdout.split())
    assert released < full - 9 * block // 1024
