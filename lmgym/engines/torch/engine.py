"""The in-process engine: continuous batching over a KV cache that shares prefixes and lasts across turns."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.engines.local_engine import LocalEngine
from lmgym.engines.memory import free_bytes
from lmgym.engines.row import sample_next_tokens
from lmgym.engines.torch.kv_cache import KVCache
from lmgym.engines.torch.kv_cache_attention import KVCacheAttention
from lmgym.engines.torch.scheduler import Scheduler, shared_length
from lmgym.models.attention import PrefixRecorder
from lmgym.models.language_model import LanguageModel

PREFILL_TOKENS = 4096
"""How many padded prompt tokens one prefill pass takes."""

MIN_SHARED_PREFIX = 16
"""A shorter common prefix is not worth a pass of its own."""

MIN_PREFILL_TOKENS = 8
"""Fewer tokens than this before a row's last one get no prefill: each decode pass computes one of them."""

MEMORY_SHARE = 0.25
"""The share of the free memory that the KV cache may take; learning needs memory too."""


class TorchEngine(LocalEngine):
    """Keeps keys and values of a shared prefix, of prompts and of running sequences until the weights change.

    Requests whose tokens are the same are computed as one until they differ. A request that continues a finished
    sequence reuses its slot of the KV cache, and one that begins as another sequence does copies that prefix, so that a
    step-wise policy, or a group, only ever computes what is new.
    """

    def __init__(self, model: LanguageModel, max_running: int = 256, max_bytes: int | None = None) -> None:
        """At most `max_running` sequences at once, fewer where the KV cache would need more than `max_bytes`."""
        super().__init__(model)
        config = model.network.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._cache = KVCache(
            config.num_hidden_layers, config.num_key_value_heads, head_size, model.dtype, model.device
        )
        share = int(MEMORY_SHARE * free_bytes(model.device)) if max_bytes is None else max_bytes
        self._scheduler = Scheduler(self._cache, max_running, share)
        self._prefix_cache: tuple[list[Tensor], list[Tensor]] | None = None
        """Keys and values [1, kv_heads, length, size] of the shared prefix, by layer."""
        self._worker = model
        self._version: int | None = None

    def release_cache(self) -> None:
        """Frees all keys and values, which other weights make worthless anyway."""
        self._set_shared_prefix([])
        self._cache.shrink(0, 0)

    def _advance(self) -> None:
        """Schedules, computes the next token of every running slot, and samples where that was the last one."""
        self._update_weights()
        self._choose_shared_prefix()
        self._waiting = self._scheduler.schedule(self._waiting)
        self._prefill()
        self._decode()

    def _update_weights(self) -> None:
        """Takes over new weights; what the old ones computed for unfinished rows is computed again."""
        if self._version == self.model.version:
            return
        if self._worker is not self.model:
            self._worker.refresh(self.model)
        elif self.model.dtype != torch.float32:
            self._worker = self.model.inference_copy()
        self._set_shared_prefix([])
        self._version = self.model.version

    def _choose_shared_prefix(self) -> None:
        """Keeps the shared prefix while rows run behind it, else takes the longest one of all waiting rows."""
        scheduler = self._scheduler
        if scheduler.rows:
            return
        fits = all(scheduler.has_shared_prefix(row) for row in self._waiting)
        if fits and (scheduler.shared_prefix or any(scheduler.cached_slot(row) is not None for row in self._waiting)):
            return
        prompts = [row.tokens for row in self._waiting]
        shared = min(shared_length(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
        self._set_shared_prefix(prompts[0][:shared] if shared >= MIN_SHARED_PREFIX else [])

    def _set_shared_prefix(self, ids: list[int]) -> None:
        """Computes another shared prefix; what was computed behind the old one is cleared."""
        self._waiting = self._scheduler.reset(ids) + self._waiting
        self._prefix_cache = None
        if ids:
            recorder = PrefixRecorder()
            tokens = torch.tensor([ids], device=self.model.device)
            self._worker.hidden_states(tokens, torch.arange(len(ids), device=self.model.device)[None], recorder)
            self._prefix_cache = (recorder.keys, recorder.values)

    def _prefill(self) -> None:
        """Computes what slots lack, but for the last token, in passes of similar length; a few tokens are left."""
        scheduler = self._scheduler
        lacking = {slot: scheduler.uncomputed(slot)[:-1] for slot in range(len(scheduler.running))}
        lacking = {slot: ids for slot, ids in lacking.items() if len(ids) >= MIN_PREFILL_TOKENS}
        order = sorted(lacking, key=lambda slot: len(lacking[slot]))
        while order:
            longest = len(lacking[order[-1]])
            slots = [order.pop() for _ in range(min(len(order), max(1, PREFILL_TOKENS // longest)))]
            tokens = torch.zeros(len(slots), longest, dtype=torch.long)
            for line, slot in enumerate(slots):
                tokens[line, : len(lacking[slot])] = torch.tensor(lacking[slot])
            self._forward(tokens, slots, [len(lacking[slot]) for slot in slots])
            for slot in slots:
                self._cache.ids[slot] += lacking[slot]

    def _decode(self) -> None:
        """Computes one more token of every running slot, and samples the next one where it was the last."""
        running = self._scheduler.running
        uncomputed = [self._scheduler.uncomputed(slot) for slot in range(len(running))]
        hidden = self._forward(torch.tensor([ids[:1] for ids in uncomputed]), None, [1] * len(uncomputed))[:, 0]
        sampling = [slot for slot, ids in enumerate(uncomputed) if len(ids) == 1]
        if sampling:
            logits = self._worker.logits(hidden if len(sampling) == len(uncomputed) else hidden[sampling])
            place = {slot: order for order, slot in enumerate(sampling)}
            pairs = [(row, place[slot]) for slot in sampling for row in running[slot]]
            sample_next_tokens([row for row, _ in pairs], logits[[order for _, order in pairs]], self.model)
        for slot, ids in enumerate(uncomputed):  # last, so that a pass that is interrupted is simply repeated
            self._cache.ids[slot].append(ids[0])

    def _forward(self, tokens: Tensor, slots: list[int] | None, lengths: list[int]) -> Tensor:
        """Runs new tokens [rows, length], right-padded, of some slots or of the first ones through the network."""
        device = self.model.device
        rows, width = tokens.shape
        starts = torch.tensor([len(self._cache.ids[slot]) for slot in slots or range(rows)], device=device)
        slot_index = torch.tensor(slots, device=device) if slots is not None else None
        ends = starts + torch.tensor(lengths, device=device)
        self._scheduler.reserve(rows, int(torch.minimum(starts + width, ends + 1).max()))
        attention = KVCacheAttention(self._cache, slot_index, starts, ends, width, self._prefix_cache)
        positions = len(self._scheduler.shared_prefix) + attention.places
        return self._worker.hidden_states(tokens.to(device), positions, attention)
