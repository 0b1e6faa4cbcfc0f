"""The scheduler: which rows run, and which slot of the KV cache each of them has.

It holds no tensors. It decides over ids, and tells the cache to copy, swap, reserve or free slots.

        slot   running     ids in the cache                to compute
        0      [A, B]      a a a b b                       c             A and B have the same tokens so far
        1      [C]         a a a d                         e f
        ------------------------------------------------------------     len(running) == 2
        2                  a a a b g                                     left by a finished row: a request that
        3                                                                continues it reuses the slot

All ids are those behind the shared prefix, which is stored once for all rows. Invariants after `schedule`:
- Rows run in the first `len(running)` slots; at most `limit` of them, and always one.
- The rows of a slot have the same tokens.
- A running slot holds a proper prefix of its rows' tokens: there is at least one token to compute.
- Every row that is not done is either in exactly one slot or waits.

Rows of a group have the same tokens until they sample different ones. Then the prompt that they have in common becomes
a shared prompt of the cache (`_share_prompts`), and their slots hold only what follows.

The KV entries of a finished row stay in its slot until `_take_slot` gives the slot to another row, `reserve` needs the
memory, or `reset` clears the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lmgym.engines.row import Row
from lmgym.engines.torch.kv_cache import rounded_capacity

MIN_COPIED_TOKENS = 8
"""A common prefix of fewer tokens is computed again instead of copied."""

MIN_SHARED_TOKENS = 32
"""A prompt of fewer tokens is copied into the slot of every row of its group, not shared."""

SLOT_STEP = 16
"""Slots are added so many at a time, so that growing rarely copies the cache."""


class SlotCache(Protocol):
    """What the scheduler needs of a KV cache; `KVCache` says what each method does."""

    ids: list[list[int]]
    bytes_per_token: int

    @property
    def capacity(self) -> int: ...
    @property
    def shared_tokens(self) -> int: ...
    def own_length(self, slot: int) -> int: ...
    def shared_length(self, slot: int) -> int: ...
    def reserve(self, slots: int, tokens: int) -> None: ...
    def shrink(self, slots: int, tokens: int) -> None: ...
    def swap(self, one: int, other: int) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def tokens_after_sharing(self, slots: Sequence[int]) -> int: ...
    def share(self, slots: Sequence[int]) -> None: ...
    def trim(self) -> None: ...
    def empty(self, slot: int) -> None: ...
    def clear(self) -> None: ...


class Scheduler:
    """Continuous batching: after every pass finished rows free their slots and waiting rows are admitted."""

    def __init__(self, cache: SlotCache, max_running: int, max_bytes: int) -> None:
        self.cache = cache
        self.max_running = max_running
        self.max_bytes = max_bytes
        self.running: list[list[Row]] = []
        """By slot, the rows that have the same tokens and are computed as one."""
        self.shared_prefix: list[int] = []
        self._searched: set[int] = set()
        """Waiting requests that no cached slot was found for: a long queue is not searched again after every pass."""

    @property
    def rows(self) -> list[Row]:
        """The running rows that are not done."""
        return [row for rows in self.running for row in rows if not row.done]

    def uncomputed(self, slot: int) -> list[int]:
        """The tokens of a slot's rows whose keys and values the cache does not hold yet."""
        return self.running[slot][0].tokens[len(self.shared_prefix) + len(self.cache.ids[slot]) :]

    def has_shared_prefix(self, row: Row) -> bool:
        """Whether a row begins with the shared prefix and has at least one token behind it."""
        length = len(self.shared_prefix)
        return len(row.tokens) > length and row.tokens[:length] == self.shared_prefix

    def cached_slot(self, row: Row) -> int | None:
        """The free slot that holds the longest proper prefix of a row, if there is one."""
        own = self._own(row)
        best, longest = None, 0
        for slot, ids in enumerate(self.cache.ids):
            free = slot >= len(self.running) or self.running[slot][0].done
            if free and longest < len(ids) < len(own) and own[: len(ids)] == ids:
                best, longest = slot, len(ids)
        return best

    def limit(self, rows: Sequence[Row]) -> int:
        """How many slots may run if each needs the capacity of the longest of these rows."""
        capacity = rounded_capacity(self._longest(rows))
        affordable = self.max_bytes // self.cache.bytes_per_token - self.cache.shared_tokens
        return max(1, min(self.max_running, affordable // capacity))

    def reset(self, shared_prefix: list[int]) -> list[Row]:
        """Clears the cache for other weights or another shared prefix; gives the rows that must be computed again."""
        preempted = self.rows
        self.running, self.shared_prefix = [], shared_prefix
        self.cache.clear()
        return preempted

    def schedule(self, waiting: Sequence[Row]) -> list[Row]:
        """Gives slots to rows as far as there is memory, and gives back those that wait, preempted ones first.

        A row that continues a finished one is placed before that one's slot is freed, so that it goes on in place.
        """
        waiting = self._place_continuations([*self._fork(), *waiting])
        self._free_finished()
        waiting = self._preempt() + waiting
        self._searched = {row.request_id for row in waiting}
        return self._admit(waiting)

    def reserve(self, slots: int, tokens: int) -> None:
        """Lets the cache grow, by some slots at a time; where memory is short, what finished rows left is freed."""
        slots, tokens = max(slots, len(self.running)), max(tokens, self._longest(self.rows))
        # Tokens in all slots together.
        affordable = self.max_bytes // self.cache.bytes_per_token - self.cache.shared_tokens
        if max(slots, len(self.cache.ids)) * max(self.cache.capacity, rounded_capacity(tokens)) > affordable:
            self.cache.shrink(slots, tokens)
        spare = -(-slots // SLOT_STEP) * SLOT_STEP
        capacity = max(self.cache.capacity, rounded_capacity(tokens))
        self.cache.reserve(max(slots, min(spare, affordable // capacity)), tokens)

    def _fork(self) -> list[Row]:
        """Copies the slot of rows that now have different tokens; gives the rows that there is no slot for."""
        forks: list[tuple[int, list[Row]]] = []
        for slot in range(len(self.running)):
            if len(self.running[slot]) == 1:
                continue
            alike: dict[tuple[int, ...], list[Row]] = {}
            for row in self.running[slot]:
                if not row.done:
                    alike.setdefault(tuple(row.tokens), []).append(row)
            if alike:
                self.running[slot], *others = alike.values()
                forks += [(slot, rows) for rows in others]
        self._share_prompts({slot for slot, _ in forks})
        placed = forks[: max(0, self.limit(self.rows) - len(self.running))]
        if placed:
            self.reserve(len(self.running) + len(placed), 1)
        for slot, rows in placed:
            self.cache.copy(slot, len(self.running), len(self.cache.ids[slot]))
            self.running.append(rows)
        return [row for _, rows in forks[len(placed) :] for row in rows]

    def _share_prompts(self, slots: Collection[int]) -> None:
        """Makes what slots hold shared prompts, if it is long enough and there is memory, before they are copied."""
        cache = self.cache
        long = [slot for slot in sorted(slots) if cache.own_length(slot) == len(cache.ids[slot]) >= MIN_SHARED_TOKENS]
        if long and cache.tokens_after_sharing(long) <= self.max_bytes // cache.bytes_per_token:
            cache.share(long)
            cache.trim()

    def _place_continuations(self, waiting: Sequence[Row]) -> list[Row]:
        """Places the rows whose prefix is in the cache, and gives the others."""
        others = []
        for row in waiting:
            is_new = row.request_id not in self._searched and self.has_shared_prefix(row)
            if not (is_new and (self._share_slot(row) or self._reuse_slot(row))):
                others.append(row)
        return others

    def _share_slot(self, row: Row) -> bool:
        """Adds a row to the slot whose rows have the same tokens, if there is one."""
        for rows in self.running:
            if not rows[0].done and rows[0].tokens == row.tokens:
                rows.append(row)
                return True
        return False

    def _reuse_slot(self, row: Row) -> bool:
        """Gives a row the free slot that holds its prefix, if there is one; without a copy if it has just run."""
        slot = self.cached_slot(row)
        if slot is None:
            return False
        if slot < len(self.running):
            self.running[slot] = [row]
        else:
            self.cache.swap(slot, len(self.running))
            self.running.append([row])
        return True

    def _free_finished(self) -> None:
        """Moves slots whose rows are all done behind the running ones, where they can be reused or overwritten."""
        for slot in reversed(range(len(self.running))):
            if self.running[slot][0].done:
                self.cache.swap(slot, len(self.running) - 1)
                self.running[slot] = self.running[-1]
                self.running.pop()

    def _preempt(self) -> list[Row]:
        """Takes the slots of rows away until the others fit into memory."""
        limit = self.limit(self.rows)
        preempted = [row for rows in self.running[limit:] for row in rows]
        del self.running[limit:]
        return preempted

    def _admit(self, waiting: Sequence[Row]) -> list[Row]:
        """Gives slots to waiting rows as far as there is memory, and gives the others; the same tokens share a slot."""
        candidates = [row for row in waiting if self.has_shared_prefix(row)]
        limit = self.limit([*self.rows, *candidates[: self.max_running]])
        if self.running and limit - len(self.running) < min(len(candidates), limit // 8):
            return list(waiting)  # a prefill pass should serve several rows
        admitted: set[int] = set()
        for row in candidates:
            if not self._share_slot(row):
                limit = min(limit, self.limit([row]))  # of many rows that share slots, a later one may be longer
                if len(self.running) >= limit:
                    break
                self._take_slot(row)
            admitted.add(row.request_id)
        return [row for row in waiting if row.request_id not in admitted]

    def _take_slot(self, row: Row) -> None:
        """Gives a row the next slot; the longest prefix that it has in common with any slot is copied from there."""
        slot, own = len(self.running), self._own(row)
        self.reserve(slot + 1, len(own))
        shared = [shared_length(own[:-1], ids) for ids in self.cache.ids]
        source = max(range(len(shared)), key=shared.__getitem__)
        if shared[source] < MIN_COPIED_TOKENS:
            self.cache.empty(slot)
        else:
            self.cache.copy(source, slot, shared[source])
        self.running.append([row])

    def _longest(self, rows: Sequence[Row]) -> int:
        """The most tokens that a slot needs for one of these rows."""
        shared = {
            row.request_id: self.cache.shared_length(slot) for slot, rows in enumerate(self.running) for row in rows
        }
        return max((len(self._own(row)) - shared.get(row.request_id, 0) for row in rows), default=1)

    def _own(self, row: Row) -> list[int]:
        """A row's tokens behind the shared prefix."""
        return row.tokens[len(self.shared_prefix) :]


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences have in common from their beginning."""
    shortest = min(len(one), len(other))
    return next((place for place in range(shortest) if one[place] != other[place]), shortest)
