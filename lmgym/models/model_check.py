"""The check that every model passes when it is loaded: our log-probabilities against the network's own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from lmgym.console import messages, quiet_transformers
from lmgym.errors import UserError
from lmgym.models.attention import supports_prefix_sharing
from lmgym.models.distribution import FULL_SOFTMAX
from lmgym.models.language_model import LanguageModel
from lmgym.models.token_scorer import TokenScorer

LENGTH = 24
"""Length of the random test sequences."""

TOLERANCE = 1e-3
"""Largest difference of log-probabilities, in nats, that float32 rounding may explain."""

LOWEST_LOGPROB = -50.0
"""Log-probabilities are clamped here: such tokens are never sampled, and rounding errors grow with the logit."""


def check_model(model: LanguageModel) -> bool:
    """Refuses a model that we would score wrongly; returns whether prefix sharing is exact for it.

    Refused are models whose log-probabilities here are not the network's own, or that attend to later tokens. The check
    takes a few float32 passes over short sequences and does not touch the global random state. Prefix sharing is turned
    on only while it is tested.
    """
    with torch.no_grad(), _private_random_state(model.device), _full_float32(), quiet_transformers():
        # The same network, computed in the dtype of its master weights.
        probe = dataclasses.replace(model, dtype=torch.float32)
        with _network_errors(model.name):
            rows = _random_rows(model)
            theirs = _log_softmax(model.network(input_ids=rows[:1]).logits)
            ours = _log_softmax(probe.logits(probe.plain_hidden_states(rows)))  # [rows, length, vocabulary]
            difference = ours[:1] - theirs
        _require_small(model, difference, "its logits are more than its output layer makes of its last hidden states")
        equal = int((rows[0] == rows[1]).sum())
        _require_small(model, ours[0, :equal] - ours[1, :equal], "its logits depend on tokens that come later")
        _require_small(model, _scorer_difference(probe, rows, ours), "the learner does not have the sampler's logits")
        return supports_prefix_sharing(model.network.config) and _prefix_sharing_is_exact(probe, rows, ours)


def _prefix_sharing_is_exact(probe: LanguageModel, rows: Tensor, plain: Tensor) -> bool:
    """Whether log-probabilities with prefix sharing equal the plain ones; sharing is off again afterwards."""
    probe.set_prefix_sharing(True)
    try:
        difference = _largest(_scorer_difference(probe, rows, plain))
    finally:
        probe.set_prefix_sharing(False)
    if not difference <= TOLERANCE:  # nan is too large
        messages.print(
            f"{probe.name}: sharing prefixes would change its log-probs by {difference:.2g} nats, so every sequence "
            "is computed in full, which is slower.",
            style="yellow",
            markup=False,
        )
    return difference <= TOLERANCE


def _scorer_difference(probe: LanguageModel, rows: Tensor, plain: Tensor) -> Tensor:
    """Log-probabilities of TokenScorer after a shared prefix, minus `plain` [rows, length, vocabulary]."""
    prefix = rows.shape[1] // 4
    mask = torch.zeros_like(rows, dtype=torch.bool)
    mask[:, prefix + 1 :] = True
    lengths = torch.full((len(rows),), rows.shape[1], device=rows.device)
    scores = TokenScorer(probe, rows[0, :prefix], FULL_SOFTMAX).score(rows, mask, lengths)
    expected = plain[:, :-1].gather(2, rows[:, 1:, None])[..., 0]
    return scores.logprobs[mask].clamp(min=LOWEST_LOGPROB) - expected[mask[:, 1:]]


def _random_rows(model: LanguageModel) -> Tensor:
    """Two random sequences [2, length] without special ids, equal but for their last third."""
    embedded = int(model.network.get_input_embeddings().get_parameter("weight").shape[0])
    known = min(model.vocabulary_size, embedded, len(model.tokenizer))
    special = set(model.tokenizer.all_special_ids)
    ordinary = torch.tensor([identifier for identifier in range(known) if identifier not in special] or [0])
    length = min(LENGTH, model.context_length)
    indices = torch.randint(0, len(ordinary), (1, length), generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    indices[1, length - length // 3 :] += 1
    return ordinary[indices % len(ordinary)].to(model.device)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1).clamp(min=LOWEST_LOGPROB)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _require_small(model: LanguageModel, difference: Tensor, fault: str) -> None:
    largest = _largest(difference)
    if not largest <= TOLERANCE:  # nan is too large
        raise UserError(
            f"{model.name} ({model.network.config.model_type}) cannot be trained here: {fault} (its log-probabilities "
            f"differ by {largest:.2g} nats on a random sequence); choose a model of the Llama or Qwen family."
        )


@contextlib.contextmanager
def _network_errors(name: str) -> Iterator[None]:
    """Turns what a network raises that needs more than token ids into a one-sentence UserError."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # custom network code may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} cannot be trained here: its network does not compute hidden states and logits from token ids "
            f"alone ({reason}); choose a model of the Llama or Qwen family."
        ) from error


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """Turns TF32 off: its rounding to 10 bits would be mistaken for a wrong model."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _private_random_state(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
