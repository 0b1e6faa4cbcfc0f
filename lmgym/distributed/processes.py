"""The processes of a run, started by torchrun: each samples its share, computes its share, and knows all of it.

    rank 0   groups 0, 2, 4 …  ──┐                        ┌── micro-batches of rank 0 ──┐
                                 ├─ gather: all episodes ─┤                             ├─ sum of gradients, all scores
    rank 1   groups 1, 3, 5 …  ──┘  on every process      └── micro-batches of rank 1 ──┘

Every process has every episode, so advantages, selection, loss denominators and metrics are those of one process, and
no algorithm knows that there are several. Only the passes through the network are divided.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # environments use this file, and do not need torch
    from torch import Tensor

T = TypeVar("T")

BUCKET = 1 << 25
"""Numbers that are summed in one message; gradients smaller than this are sent together."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of all; one process alone exchanges nothing."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints, writes files and tracks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Every `count`-th item, beginning with number `rank`."""
        return list(items[self.rank :: self.count])

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, those of rank 0 first."""
        if self.count == 1:
            return list(items)
        from torch import distributed

        lists: list[Any] = [None] * self.count
        distributed.all_gather_object(lists, list(items))
        return [item for each in lists for item in each]

    def join(self, own: Mapping[int, T]) -> list[T]:
        """The values of all processes in the order of their keys, which are 0, 1, 2 … once each."""
        joined = dict(self.gather(list(own.items())))
        return [joined[key] for key in sorted(joined)]

    def decide(self, function: Callable[[], T]) -> T:
        """What the function returns on rank 0, which alone calls it."""
        if self.count == 1:
            return function()
        from torch import distributed

        values: list[Any] = [function() if self.is_first else None]
        distributed.broadcast_object_list(values, src=0)
        decided: T = values[0]
        return decided

    def deal(self, costs: Sequence[int]) -> list[list[int]]:
        """The indices of each process' part of the work: each goes, the most expensive first, to who has least."""
        heap = [(0, rank) for rank in range(self.count)]
        dealt: list[list[int]] = [[] for _ in range(self.count)]
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            cost, rank = heapq.heappop(heap)
            heapq.heappush(heap, (cost + costs[index], rank))
            dealt[rank].append(index)
        return [sorted(each) for each in dealt]

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over all processes."""
        if self.count == 1:
            return
        import torch

        for bucket in _buckets(list(tensors)):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            torch.distributed.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))


def processes() -> Processes:
    """The processes of this run: one, unless torch.distributed was started."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Processes()
    return Processes(distributed.get_rank(), distributed.get_world_size())


def _buckets(tensors: list[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    size = BUCKET
    for tensor in tensors:
        if size + tensor.numel() > BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel()
    return buckets
