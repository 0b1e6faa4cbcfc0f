"""The in-process engine: batched decoding in which no prompt token is computed twice for one policy version."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from lmgym.engines.engine import Completion, Request
from lmgym.engines.key_value_store import KeyValueStore, StoreReader
from lmgym.engines.row import Row, choose
from lmgym.learning.attention import TrunkRecorder
from lmgym.learning.language_model import LanguageModel

PREFILL_TOKENS = 4096
"""How many padded prompt tokens one forward pass takes."""

SHORTEST_TRUNK = 16
"""A shorter common beginning is not worth a pass of its own."""


class TorchEngine:
    """Keeps the keys of a shared trunk, of each prompt and of each live sequence until the weights change.

    Prompts of one call that are equal are prefilled once; a prompt that goes on from an earlier completion reuses what
    that sequence left behind, so a step-wise policy only ever computes what is new.
    """

    def __init__(self, model: LanguageModel, max_rows: int = 128) -> None:
        self.model = model
        self.max_rows = max_rows
        config = model.network.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._store = KeyValueStore(
            config.num_hidden_layers, config.num_key_value_heads, size, max_rows, model.dtype, model.device
        )
        self._trunk_ids: tuple[int, ...] = ()
        self._trunk: tuple[list[Tensor], list[Tensor]] | None = None
        self._worker = model
        self._version = -1
        self._has_trunk = False

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continues every request; rows leave as they finish and waiting ones take their place."""
        self._follow_policy()
        self._follow_trunk([request.prompt for request in requests])
        rows = [Row.start(request, self._version) for request in requests]
        waiting = deque(self._known_first(rows))
        active: list[Row] = []
        while waiting or active:
            if waiting and len(active) <= self.max_rows // 2:
                admitted = [waiting.popleft() for _ in range(min(len(waiting), self.max_rows - len(active)))]
                logits = self._prefill(admitted, first_slot=len(active))
                choose(admitted, logits, self.model.stop_ids)
                active += admitted
            else:
                choose(active, self._decode(active), self.model.stop_ids)
            self._retire(active)
        return [row.completion for row in rows]

    def _follow_policy(self) -> None:
        """Takes over new weights; whatever was computed with the old ones is forgotten."""
        if self._version == self.model.version:
            return
        if self._worker is not self.model:
            self._worker.refresh(self.model)
        elif self.model.dtype != torch.float32:
            self._worker = self.model.compute_copy()
        self._store.clear()
        self._has_trunk = False
        self._version = self.model.version

    def _follow_trunk(self, prompts: list[tuple[int, ...]]) -> None:
        """Keeps the trunk while every prompt begins with it, else computes the longest beginning they share."""
        if not prompts:
            return
        first, last, shortest = min(prompts), max(prompts), min(map(len, prompts))
        shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), shortest)
        shared = min(shared, shortest - 1)
        old = self._trunk_ids
        still_fits = len(old) <= shared and first[: len(old)] == old
        if self._has_trunk and still_fits and (old or shared < SHORTEST_TRUNK):
            return
        self._store.clear()
        self._trunk_ids = first[:shared] if shared >= SHORTEST_TRUNK else ()
        self._trunk, self._has_trunk = None, True
        if self._trunk_ids:
            recorder = TrunkRecorder()
            tokens = torch.tensor([self._trunk_ids], device=self.model.device)
            self._worker.hidden_states(tokens, torch.arange(tokens.shape[1], device=self.model.device)[None], recorder)
            self._trunk = (recorder.keys, recorder.values)

    def _known_first(self, rows: list[Row]) -> list[Row]:
        """Rows whose beginning a slot still holds go first, before a newcomer takes that slot."""
        held = {tuple(ids) for ids in self._store.ids if ids}
        lengths = sorted({len(ids) for ids in held}, reverse=True)
        skip = len(self._trunk_ids)

        def is_new(row: Row) -> bool:
            own = row.request.prompt[skip:]
            return not any(own[:length] in held for length in lengths if length < len(own))

        return sorted(rows, key=is_new)

    def _prefill(self, rows: list[Row], first_slot: int) -> Tensor:
        """Puts each row into a slot from `first_slot` on, computes what its slot lacks, and gives its next logits."""
        skip = len(self._trunk_ids)
        owns = [row.request.prompt[skip:] for row in rows]
        first_of: dict[tuple[int, ...], int] = {}
        leaders: list[int] = []
        for index, own in enumerate(owns):
            slot = first_slot + index
            known = self._find_slot(own, slot)
            if known is not None:
                self._store.swap(slot, known)
                leaders.append(index)
            else:
                self._store.ids[slot] = []
                if first_of.setdefault(own, index) == index:
                    leaders.append(index)
        logits = self._extend_slots([first_slot + index for index in leaders], [owns[index] for index in leaders])
        place = {index: order for order, index in enumerate(leaders)}
        for index, own in enumerate(owns):
            if index not in place:
                place[index] = place[first_of[own]]
                self._store.copy(first_slot + first_of[own], first_slot + index)
        return logits[[place[index] for index in range(len(rows))]]

    def _find_slot(self, own: tuple[int, ...], first: int) -> int | None:
        """The slot, not before `first`, that holds the longest beginning of these ids and not all of them."""
        best, longest = None, 0
        for slot in range(first, self.max_rows):
            ids = self._store.ids[slot]
            if longest < len(ids) < len(own) and own[: len(ids)] == tuple(ids):
                best, longest = slot, len(ids)
        return best

    def _extend_slots(self, slots: list[int], owns: list[tuple[int, ...]]) -> Tensor:
        """Feeds each slot the ids it lacks, in passes of similar length, and gives the logits after the last."""
        missing = [own[len(self._store.ids[slot]) :] for slot, own in zip(slots, owns, strict=True)]
        self._store.make_room(max(map(len, owns)))
        results: list[Tensor | None] = [None] * len(slots)
        order = sorted(range(len(slots)), key=lambda index: len(missing[index]))
        while order:
            longest = len(missing[order[-1]])
            batch = [order.pop() for _ in range(min(len(order), max(1, PREFILL_TOKENS // longest)))]
            tokens = torch.zeros(len(batch), longest, dtype=torch.long)
            for line, index in enumerate(batch):
                tokens[line, : len(missing[index])] = torch.tensor(missing[index])
            lengths = [len(missing[index]) for index in batch]
            logits = self._forward(tokens, [slots[index] for index in batch], lengths)
            for line, index in enumerate(batch):
                results[index] = logits[line]
                self._store.ids[slots[index]] += missing[index]
        return torch.stack([result for result in results if result is not None])

    def _forward(self, tokens: Tensor, slots: list[int] | None, lengths: list[int] | None) -> Tensor:
        """Runs new tokens [rows, length] through the network and gives the logits after each row's last one."""
        device = self.model.device
        rows, width = tokens.shape
        starts = torch.tensor([len(self._store.ids[slot]) for slot in slots or range(rows)], device=device)
        # Right padding may write behind a row's end: there is room for it, and it is overwritten before it is read.
        self._store.make_room(int(starts.max()) + width)
        slot_index = torch.tensor(slots, device=device) if slots is not None else None
        reader = StoreReader(self._store, slot_index, starts, width, self._trunk)
        hidden = self._worker.hidden_states(tokens.to(device), len(self._trunk_ids) + reader.places, reader)
        last = torch.tensor(lengths or [width] * rows, device=device) - 1
        hidden = hidden[torch.arange(rows, device=device), last]
        with self._worker.autocast():
            return self._worker.head(hidden)

    def _decode(self, active: list[Row]) -> Tensor:
        """One more token for every active row: they sit in the first slots, in order."""
        last = [row.completion.token_ids[-1] for row in active]
        logits = self._forward(torch.tensor(last)[:, None], None, None)
        for slot, token in enumerate(last):
            self._store.ids[slot].append(token)
        return logits

    def _retire(self, active: list[Row]) -> None:
        """Moves finished rows behind the active ones; their slots keep what they hold for the next turn."""
        index = 0
        while index < len(active):
            if active[index].done:
                self._store.swap(index, len(active) - 1)
                active[index] = active[-1]
                active.pop()
            else:
                index += 1
