"""Time of a small torch kernel beside a busy process, with OpenMP's default waiting and with lmgym's.

python -m benchmarks.busy_process

Thirty layers of 64 × 576 × 1536 products with small operations between them, ten times over, on two threads.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.speed.comparison import busy_process
from benchmarks.speed.sections import SPINNING
from lmgym.models.openmp import SPIN_LIMITS

KERNEL = """
import time, torch
torch.set_num_threads(2)
layers = [(torch.randn(1536, 576), torch.randn(576, 1536)) for _ in range(30)]
def once():
    x = torch.ones(64, 576)
    for up, down in layers:
        x = x + 0.01 * (torch.nn.functional.silu(x @ up.t()) @ down.t())
        x = x / x.norm(dim=1, keepdim=True)
once()
start = time.perf_counter()
for _ in range(10):
    once()
print(time.perf_counter() - start)
"""


def seconds(variables: dict[str, str]) -> float:
    """The time of the kernel in a process of its own."""
    command = [sys.executable, "-c", KERNEL]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(repeats: int = 2) -> None:
    """Prints the times of both settings in alternating runs, on an idle machine and beside a busy process."""
    ways = {"OpenMP's default": SPINNING, "as lmgym sets it": SPIN_LIMITS}
    lines = [[f"{seconds(way):.2f}" for way in ways.values()] for _ in range(repeats)]
    with busy_process():
        busy = [[f"{seconds(way):.2f}" for way in ways.values()] for _ in range(repeats)]
    for place, name in enumerate(ways):
        idle_times, busy_times = ([line[place] for line in found] for found in (lines, busy))
        sys.stdout.write(f"{name}: idle {', '.join(idle_times)} s, beside a busy process {', '.join(busy_times)} s\n")


if __name__ == "__main__":
    main()
