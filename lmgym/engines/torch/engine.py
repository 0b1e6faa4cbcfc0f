"""The in-process engine: continuous batching in which no token is computed twice for one policy version."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.engines.local_engine import LocalEngine
from lmgym.engines.memory import free_bytes
from lmgym.engines.row import choose
from lmgym.engines.torch.kv_cache import KeyValueStore, StoreReader
from lmgym.engines.torch.scheduler import Seats, shared_length
from lmgym.models.attention import PrefixRecorder
from lmgym.models.language_model import LanguageModel

PREFILL_TOKENS = 4096
"""How many padded prompt tokens one forward pass takes."""

SHORTEST_TRUNK = 16
"""A shorter common beginning is not worth a pass of its own."""

CATCH_UP = 8
"""A row that lacks no more tokens than this reads them one per pass, beside the others, with no pass of its own."""

MEMORY_SHARE = 0.25
"""The share of the free memory that keys and values may take; the learner needs the rest."""


class TorchEngine(LocalEngine):
    """Keeps the keys of a shared trunk, of each prompt and of each live sequence until the weights change.

    Requests whose tokens are the same are computed as one until they come to differ. A request that goes on from an
    earlier completion takes back what that sequence left behind, and one that begins as another does copies that
    beginning, so that a step-wise policy, or a group, only ever computes what is new.
    """

    def __init__(self, model: LanguageModel, max_rows: int = 256, max_bytes: int | None = None) -> None:
        """At most `max_rows` sequences at once, fewer where keys and values would need more than `max_bytes`."""
        super().__init__(model)
        config = model.network.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._store = KeyValueStore(
            config.num_hidden_layers, config.num_key_value_heads, size, model.dtype, model.device
        )
        share = int(MEMORY_SHARE * free_bytes(model.device)) if max_bytes is None else max_bytes
        self._seats = Seats(self._store, max_rows, share)
        self._trunk: tuple[list[Tensor], list[Tensor]] | None = None
        self._newcomers: set[int] = set()
        """Who was found to go on from nothing that is held: a long queue is not searched again for every token."""
        self._worker = model
        self._version: int | None = None

    def rest(self) -> None:
        """Gives back the keys and values, which other weights make worthless anyway."""
        self._set_trunk([])
        self._store.shrink(0, 0)

    def _advance(self) -> None:
        """Lets rows in, feeds every seat its next token, and lets those that have read everything choose one."""
        self._follow_policy()
        self._follow_trunk()
        self._return()
        self._admit()
        self._prefill()
        self._decode()

    def _follow_policy(self) -> None:
        """Takes over new weights; rows that were on their way read again what the old ones had read."""
        if self._version == self.model.version:
            return
        if self._worker is not self.model:
            self._worker.refresh(self.model)
        elif self.model.dtype != torch.float32:
            self._worker = self.model.inference_copy()
        self._set_trunk([])
        self._version = self.model.version

    def _follow_trunk(self) -> None:
        """Keeps the trunk while rows need it, else takes the longest beginning that all waiting rows share."""
        if self._seats.rows:
            return
        belong = all(self._seats.belongs(row) for row in self._waiting)
        if belong and (self._seats.trunk or any(self._seats.held_by(row) is not None for row in self._waiting)):
            return
        prompts = [row.tokens for row in self._waiting]
        shared = min(shared_length(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
        self._set_trunk(prompts[0][:shared] if shared >= SHORTEST_TRUNK else [])

    def _set_trunk(self, ids: list[int]) -> None:
        """Computes another trunk; what was read behind the old one is worth nothing behind it."""
        self._waiting = self._seats.clear(ids) + self._waiting
        self._trunk = None
        if ids:
            recorder = PrefixRecorder()
            tokens = torch.tensor([ids], device=self.model.device)
            self._worker.hidden_states(tokens, torch.arange(len(ids), device=self.model.device)[None], recorder)
            self._trunk = (recorder.keys, recorder.values)

    def _return(self) -> None:
        """Seats rows that differ now, and those whose past a slot still holds; who is done or too long makes way."""
        seats = self._seats
        self._waiting = seats.part_ways() + self._waiting
        arrived = [row for row in self._waiting if row.ticket not in self._newcomers and seats.belongs(row)]
        returned = [row for row in arrived if seats.join(row) or seats.resume(row)]
        seats.dismiss_finished()
        self._waiting = seats.expel_overgrown() + [row for row in self._waiting if row not in returned]
        self._newcomers = {row.ticket for row in self._waiting}

    def _admit(self) -> None:
        """Seats newcomers as far as there is memory; those with the same tokens sit together."""
        seats = self._seats
        newcomers = [row for row in self._waiting if seats.belongs(row)]
        limit = seats.limit([*seats.rows, *newcomers[: seats.max_seats]])
        if seats.taken and limit - len(seats.taken) < min(len(newcomers), limit // 8):
            return  # a prefill should serve several
        for row in newcomers:
            if not seats.join(row):
                if len(seats.taken) >= limit:
                    break
                seats.take(row)
            self._waiting.remove(row)

    def _prefill(self) -> None:
        """Reads what rows lack, but for the last token, in passes of similar length; a little is left to `_decode`."""
        lacking = {slot: self._seats.unread(slot)[:-1] for slot in range(len(self._seats.taken))}
        lacking = {slot: ids for slot, ids in lacking.items() if len(ids) >= CATCH_UP}
        order = sorted(lacking, key=lambda slot: len(lacking[slot]))
        while order:
            longest = len(lacking[order[-1]])
            slots = [order.pop() for _ in range(min(len(order), max(1, PREFILL_TOKENS // longest)))]
            tokens = torch.zeros(len(slots), longest, dtype=torch.long)
            for line, slot in enumerate(slots):
                tokens[line, : len(lacking[slot])] = torch.tensor(lacking[slot])
            self._forward(tokens, slots, [len(lacking[slot]) for slot in slots])
            for slot in slots:
                self._store.ids[slot] += lacking[slot]

    def _decode(self) -> None:
        """One more token for every seat."""
        seats = self._seats
        unread = [seats.unread(slot) for slot in range(len(seats.taken))]
        hidden = self._forward(torch.tensor([ids[:1] for ids in unread]), None, [1] * len(unread))[:, 0]
        choosing = [slot for slot, ids in enumerate(unread) if len(ids) == 1]
        if choosing:
            logits = self._worker.logits(hidden if len(choosing) == len(unread) else hidden[choosing])
            place = {slot: order for order, slot in enumerate(choosing)}
            pairs = [(row, place[slot]) for slot in choosing for row in seats.taken[slot]]
            choose([row for row, _ in pairs], logits[[order for _, order in pairs]], self.model)
        for slot, ids in enumerate(unread):  # last, so that a pass that is broken off is simply done again
            self._store.ids[slot].append(ids[0])

    def _forward(self, tokens: Tensor, slots: list[int] | None, lengths: list[int]) -> Tensor:
        """Runs new tokens [rows, length], right-padded, of some slots or of the first ones through the network."""
        device = self.model.device
        rows, width = tokens.shape
        starts = torch.tensor([len(self._store.ids[slot]) for slot in slots or range(rows)], device=device)
        slot_index = torch.tensor(slots, device=device) if slots is not None else None
        ends = starts + torch.tensor(lengths, device=device)
        self._seats.make_room(rows, int(torch.minimum(starts + width, ends + 1).max()))
        reader = StoreReader(self._store, slot_index, starts, ends, width, self._trunk)
        return self._worker.hidden_states(tokens.to(device), len(self._seats.trunk) + reader.places, reader)
