"""Who writes where: rows take slots of a key-value store, share them, leave them, and find what was left behind."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.engines.row import Row
from lmgym.engines.torch.kv_cache import KeyValueStore, rounded_room

WORTH_COPYING = 8
"""A common beginning of fewer tokens is read again instead of copied."""

SLOT_STEP = 16
"""Slots are added so many at a time, so that growing rarely moves anything."""


class Seats:
    """The first slots of the store are seats, each with the rows whose tokens are still the same.

    A slot holds all tokens of its rows behind the trunk but those that are still to be read; the slots behind the seats
    keep what finished rows have read.
    """

    def __init__(self, store: KeyValueStore, max_seats: int, max_bytes: int) -> None:
        self.store = store
        self.max_seats = max_seats
        self.max_bytes = max_bytes
        self.taken: list[list[Row]] = []
        self.trunk: list[int] = []

    @property
    def rows(self) -> list[Row]:
        """Everyone who sits and is not done."""
        return [row for rows in self.taken for row in rows if not row.done]

    def unread(self, slot: int) -> list[int]:
        """What the rows of a seat have still to read."""
        return self.taken[slot][0].tokens[len(self.trunk) + len(self.store.ids[slot]) :]

    def belongs(self, row: Row) -> bool:
        """Whether a row begins with the trunk and has something behind it."""
        length = len(self.trunk)
        return len(row.tokens) > length and row.tokens[:length] == self.trunk

    def clear(self, trunk: list[int]) -> list[Row]:
        """Forgets all keys for the sake of another trunk or other weights; gives the rows that must begin again."""
        expelled = self.rows
        self.taken, self.trunk = [], trunk
        self.store.clear()
        return expelled

    def join(self, row: Row) -> bool:
        """Seats a row beside those that have the same tokens, if there are any."""
        for rows in self.taken:
            if not rows[0].done and rows[0].tokens == row.tokens:
                rows.append(row)
                return True
        return False

    def resume(self, row: Row) -> bool:
        """Gives a row the free slot that still holds its past, if there is one."""
        slot = self.held_by(row)
        if slot is None:
            return False
        if slot < len(self.taken):
            self.taken[slot] = [row]
        else:
            self.store.swap(slot, len(self.taken))
            self.taken.append([row])
        return True

    def held_by(self, row: Row) -> int | None:
        """The free slot that holds the longest beginning of a row, and not all of it."""
        own = self._own(row)
        best, longest = None, 0
        for slot, ids in enumerate(self.store.ids):
            free = slot >= len(self.taken) or self.taken[slot][0].done
            if free and longest < len(ids) < len(own) and own[: len(ids)] == ids:
                best, longest = slot, len(ids)
        return best

    def take(self, row: Row) -> None:
        """Seats a newcomer; what it begins with as some slot does is copied from there."""
        slot, own = len(self.taken), self._own(row)
        self.make_room(slot + 1, len(own))
        shared = [shared_length(own[:-1], ids) for ids in self.store.ids]
        source = max(range(len(shared)), key=shared.__getitem__)
        if shared[source] < WORTH_COPYING:
            self.store.ids[slot] = []
        else:
            self.store.copy(source, slot, shared[source])
        self.taken.append([row])

    def part_ways(self) -> list[Row]:
        """Gives rows that have come to differ seats of their own, and back those for whom there is none."""
        unseated: list[Row] = []
        for slot in range(len(self.taken)):
            alike: dict[tuple[int, ...], list[Row]] = {}
            for row in self.taken[slot]:
                if not row.done:
                    alike.setdefault(tuple(row.tokens), []).append(row)
            if not alike:
                continue
            self.taken[slot], *others = alike.values()
            for rows in others:
                if len(self.taken) < self.limit(self.rows):
                    self.make_room(len(self.taken) + 1, 1)
                    self.store.copy(slot, len(self.taken), len(self.store.ids[slot]))
                    self.taken.append(rows)
                else:
                    unseated += rows
        return unseated

    def dismiss_finished(self) -> None:
        """Moves seats where everyone is done behind the others."""
        for slot in reversed(range(len(self.taken))):
            if self.taken[slot][0].done:
                self.store.swap(slot, len(self.taken) - 1)
                self.taken[slot] = self.taken[-1]
                self.taken.pop()

    def expel_overgrown(self) -> list[Row]:
        """Takes rows out until the others fit into memory."""
        limit = self.limit(self.rows)
        expelled = [row for rows in self.taken[limit:] for row in rows]
        del self.taken[limit:]
        return expelled

    def make_room(self, slots: int, tokens: int) -> None:
        """Lets the store grow, by some slots at a time; where memory is short, what nobody needs now is given up."""
        slots, tokens = max(slots, len(self.taken)), max(tokens, self._longest(self.rows))
        fitting = self.max_bytes // self.store.bytes_per_token
        if max(slots, len(self.store.ids)) * max(self.store.room, rounded_room(tokens)) > fitting:
            self.store.shrink(slots, tokens)
        spare = -(-slots // SLOT_STEP) * SLOT_STEP
        self.store.make_room(max(slots, min(spare, fitting // max(self.store.room, rounded_room(tokens)))), tokens)

    def limit(self, rows: Sequence[Row]) -> int:
        """How many seats there may be if each needs as much room as the longest of these rows."""
        room = rounded_room(self._longest(rows))
        return max(1, min(self.max_seats, self.max_bytes // (self.store.bytes_per_token * room)))

    def _longest(self, rows: Sequence[Row]) -> int:
        return max((len(self._own(row)) for row in rows), default=1)

    def _own(self, row: Row) -> list[int]:
        """A row's tokens behind the trunk."""
        return row.tokens[len(self.trunk) :]


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    shortest = min(len(one), len(other))
    return next((place for place in range(shortest) if one[place] != other[place]), shortest)
