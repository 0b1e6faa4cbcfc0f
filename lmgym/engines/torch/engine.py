"""The in-process engine: continuous batching over a KV cache that shares prefixes and lasts across turns."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lmgym.engines.local_engine import LocalEngine
from lmgym.engines.memory import free_bytes
from lmgym.engines.row import sample_next_tokens
from lmgym.engines.torch.fused_decoder import FusedDecoder, supports_fusion
from lmgym.engines.torch.int8_product import has_int8_products
from lmgym.engines.torch.kv_cache import KVCache
from lmgym.engines.torch.kv_cache_attention import DecodeAttention, NewTokens, PrefillAttention
from lmgym.engines.torch.scheduler import Scheduler, shared_length
from lmgym.errors import UserError
from lmgym.models.allocator import release_freed_memory
from lmgym.models.attention import PrefixRecorder
from lmgym.models.language_model import LanguageModel

PREFILL_TOKENS = 2048
"""The most prompt tokens that one prefill pass takes, which bounds its memory."""

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

    def __init__(
        self,
        model: LanguageModel,
        max_running: int = 256,
        max_bytes: int | None = None,
        rounds_to_int8: bool = False,
    ) -> None:
        """At most `max_running` sequences at once, fewer where the KV cache would need more than `max_bytes`."""
        super().__init__(model)
        config = model.network.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = torch.float32 if rounds_to_int8 else model.dtype
        self._cache = KVCache(config.num_hidden_layers, config.num_key_value_heads, head_size, dtype, model.device)
        share = int(MEMORY_SHARE * free_bytes(model.device)) if max_bytes is None else max_bytes
        self._scheduler = Scheduler(self._cache, max_running, share)
        self._prefix_cache: tuple[list[Tensor], list[Tensor]] | None = None
        """Keys and values [1, kv_heads, length, size] of the shared prefix, by layer."""
        self._decoder: FusedDecoder | LanguageModel = model
        if supports_fusion(model):
            self._decoder = FusedDecoder(model, rounds_to_int8)
        self._version: int | None = None

    @property
    def dtype_name(self) -> str:
        """int8 if it rounds, else that of the model."""
        rounds = isinstance(self._decoder, FusedDecoder) and self._decoder.rounds_to_int8
        return "int8" if rounds else super().dtype_name

    def release_cache(self) -> None:
        """Frees keys and values, which other weights make worthless anyway, and the engine's copy of the weights."""
        self._set_shared_prefix([])
        self._cache.shrink(0, 0)
        if isinstance(self._decoder, FusedDecoder):
            self._decoder.release()
        else:
            self._decoder = self.model
        self._version = None
        release_freed_memory()

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
        release_freed_memory()
        if isinstance(self._decoder, FusedDecoder):
            self._decoder.pack()
        elif self._decoder is not self.model:
            self._decoder.refresh(self.model)
        elif self.model.dtype != torch.float32:
            self._decoder = self.model.inference_copy()
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
            self._decoder.hidden_states(tokens, torch.arange(len(ids), device=self.model.device)[None], recorder)
            self._prefix_cache = (recorder.keys, recorder.values)

    def _prefill(self) -> None:
        """Computes what slots lack, but for the last token, in passes of bounded length; a few tokens are left."""
        scheduler, cache = self._scheduler, self._cache
        lacking = [(slot, scheduler.uncomputed(slot)[:-1]) for slot in range(len(scheduler.running))]
        for pieces in _passes([(slot, ids) for slot, ids in lacking if len(ids) >= MIN_PREFILL_TOKENS]):
            scheduler.reserve(len(scheduler.running), max(cache.own_length(slot) + len(ids) for slot, ids in pieces))
            positions = [self._position(slot) + place for slot, ids in pieces for place in range(len(ids))]
            new = [NewTokens(slot, len(ids)) for slot, ids in pieces]
            self._decoder.hidden_states(
                self._tensor([token for _, ids in pieces for token in ids])[None],
                self._tensor(positions)[None],
                PrefillAttention(cache, new, self._prefix_cache),
            )
            for slot, ids in pieces:
                cache.ids[slot] += ids

    def _decode(self) -> None:
        """Computes one more token of every running slot, and samples the next one where it was the last."""
        running, cache = self._scheduler.running, self._cache
        uncomputed = [self._scheduler.uncomputed(slot) for slot in range(len(running))]
        self._scheduler.reserve(len(running), 1 + max(cache.own_length(slot) for slot in range(len(running))))
        hidden = self._decoder.hidden_states(
            self._tensor([ids[0] for ids in uncomputed])[:, None],
            self._tensor([self._position(slot) for slot in range(len(running))])[:, None],
            DecodeAttention(cache, len(running), self._prefix_cache),
        )[:, 0]
        sampling = [slot for slot, ids in enumerate(uncomputed) if len(ids) == 1]
        if sampling:
            logits = self._decoder.logits(hidden if len(sampling) == len(uncomputed) else hidden[sampling])
            rows = [running[slot] for slot in sampling]
            if any(len(alike) > 1 for alike in rows):
                logits = logits[[order for order, alike in enumerate(rows) for _ in alike]]
            sample_next_tokens([row for alike in rows for row in alike], logits, self.model)
        for slot, ids in enumerate(uncomputed):  # last, so that a pass that is interrupted is simply repeated
            cache.ids[slot].append(ids[0])

    def _position(self, slot: int) -> int:
        """The position of the next token that a slot computes."""
        return len(self._scheduler.shared_prefix) + len(self._cache.ids[slot])

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.model.device)


def int8_engine(model: LanguageModel) -> TorchEngine:
    """The engine with products in 8-bit integers, or a sentence that says why there is none."""
    if not (model.shares_prefixes and supports_fusion(model)):
        raise UserError(
            f"--rollout_dtype int8 is for Llama-like models on a CPU, with LoRA adapters or none: {model.name} on "
            f"{model.device} is another; leave it out."
        )
    if not has_int8_products():
        raise UserError("--rollout_dtype int8 needs a CPU with VNNI instructions, which this one lacks: leave it out.")
    return TorchEngine(model, rounds_to_int8=True)


def _passes(lacking: list[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Cuts the tokens that slots lack into passes of at most PREFILL_TOKENS; a long prompt takes several passes."""
    pieces: list[tuple[int, list[int]]] = []
    left = PREFILL_TOKENS
    for slot, ids in lacking:
        while ids:
            piece, ids = ids[:left], ids[left:]
            pieces.append((slot, piece))
            left -= len(piece)
            if not left:
                yield pieces
                pieces, left = [], PREFILL_TOKENS
    if pieces:
        yield pieces
