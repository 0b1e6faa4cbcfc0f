"""The check that every model passes when it is made: our log-probabilities against the network's own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from lmgym.console import messages, quiet_transformers
from lmgym.errors import UserError
from lmgym.models.attention import can_share
from lmgym.models.distribution import WHOLE
from lmgym.models.language_model import LanguageModel
from lmgym.models.token_scorer import TokenScorer

LENGTH = 24
"""How many random tokens the sequence has."""

TOLERANCE = 1e-3
"""The largest difference of log-probabilities, in nats, that is taken for rounding in float32."""

UNLIKELY = -50.0
"""Log-probabilities below this are all alike: nobody draws such a token, and rounding grows with the logit."""


def check_model(model: LanguageModel) -> None:
    """Refuses a model whose log-probabilities here are not the network's own, or that sees tokens to come.

    Prefixes are shared from now on where that changes nothing either. The check takes a few passes over a short
    sequence in float32 and leaves the global random state alone.
    """
    with torch.no_grad(), _private_random_state(model.device), _whole_float32(), quiet_transformers():
        with _running(model.name):
            rows = _random_rows(model)
            theirs = _log_softmax(model.network(input_ids=rows[:1]).logits)
            probe = _in_float32(model)
            ours = _log_softmax(probe.logits(probe.plain_hidden_states(rows)))
            difference = ours[:1] - theirs
        _require_small(model, difference, "its logits are more than its output layer makes of its last states")
        alike = int((rows[0] == rows[1]).sum())
        _require_small(model, ours[0, :alike] - ours[1, :alike], "its logits depend on tokens that come later")
        if can_share(model.network.config):
            model.share_prefixes(True)
            model.share_prefixes(_sharing_is_exact(model, rows, ours))
        if not model.can_share:
            _require_small(model, _learner_gap(model, rows, ours), "the learner does not have the sampler's logits")


def _sharing_is_exact(model: LanguageModel, rows: Tensor, plain: Tensor) -> bool:
    """Whether rows that share what they begin with score as they do alone."""
    gap = _largest(_learner_gap(model, rows, plain))
    if gap > TOLERANCE:
        messages.print(
            f"{model.name}: sharing prefixes would change its log-probabilities by {gap:.2g} nats, so every row is "
            "computed whole, which is slower.",
            style="yellow",
            markup=False,
        )
    return gap <= TOLERANCE


def _learner_gap(model: LanguageModel, rows: Tensor, plain: Tensor) -> Tensor:
    """How the learner's log-probabilities differ from `plain` [rows, length, vocabulary] behind a shared beginning."""
    shared = rows.shape[1] // 4
    mask = torch.zeros_like(rows, dtype=torch.bool)
    mask[:, shared + 1 :] = True
    lengths = torch.full((len(rows),), rows.shape[1], device=rows.device)
    scores = TokenScorer(_in_float32(model), rows[0, :shared], WHOLE).score(rows, mask, lengths)
    expected = plain[:, :-1].gather(2, rows[:, 1:, None])[..., 0]
    return scores.logprobs[mask].clamp(min=UNLIKELY) - expected[mask[:, 1:]]


def _random_rows(model: LanguageModel) -> Tensor:
    """Two sequences [2, length] of ordinary ids that differ in their last third."""
    embedded = int(model.network.get_input_embeddings().get_parameter("weight").shape[0])
    known = min(model.vocabulary_size, embedded, len(model.tokenizer))
    special = set(model.tokenizer.all_special_ids)
    ordinary = torch.tensor([identifier for identifier in range(known) if identifier not in special] or [0])
    length = min(LENGTH, model.context_length)
    places = torch.randint(0, len(ordinary), (1, length), generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    places[1, length - length // 3 :] += 1
    return ordinary[places % len(ordinary)].to(model.device)


def _in_float32(model: LanguageModel) -> LanguageModel:
    """The same network, computed in the type that its weights are kept in."""
    return dataclasses.replace(model, dtype=torch.float32)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1).clamp(min=UNLIKELY)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _require_small(model: LanguageModel, difference: Tensor, fault: str) -> None:
    gap = _largest(difference)
    if not gap <= TOLERANCE:  # nan is not small either
        raise UserError(
            f"{model.name} ({model.network.config.model_type}) cannot be trained here: {fault} (its log-probabilities "
            f"differ by {gap:.2g} nats on a random sequence); choose a model of the Llama or Qwen kind."
        )


@contextlib.contextmanager
def _running(name: str) -> Iterator[None]:
    """One sentence for whatever a network raises that does not give states and logits of token ids alone."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a foreign network may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} cannot be trained here: its network gives no hidden states and logits of token ids alone "
            f"({reason}); choose a model of the Llama or Qwen kind."
        ) from error


@contextlib.contextmanager
def _whole_float32() -> Iterator[None]:
    """Float32 products in float32: a GPU may be told to round them to 10 bits, which is no fault of the model."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _private_random_state(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
