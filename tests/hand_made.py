"""Hand-made episodes, ragged batches and the plain Hugging Face forward that every fast path is held against."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmgym.models.language_model import LanguageModel
from lmgym.types import Action, Episode, Problem, State, Step


@dataclass(frozen=True)
class Turn:
    """What was read before an action, what the action wrote, and which of it was chosen."""

    read: Sequence[int]
    written: Sequence[int]
    mask: Sequence[int]
    reward: float = 0.0


def make_episode(*turns: Turn, group: int = 0, iteration: int = 0, version: int = 0) -> Episode:
    """An episode whose chosen tokens have the log-prob -1, -2, … in order."""
    state = State(Problem(f"p{group}", "?", "1"), ({"role": "user", "content": "?"},), group=group)
    steps: list[Step] = []
    so_far: tuple[int, ...] = ()
    count = 0
    for turn in turns:
        prompt = (*so_far, *turn.read)
        logprobs = []
        for chosen in turn.mask:
            count += chosen
            logprobs.append(-float(count) if chosen else 0.0)
        action = Action(
            "", prompt, tuple(turn.written), tuple(logprobs), tuple(turn.mask), "stop", policy_version=version
        )
        steps.append(Step(state, action, turn.reward, turn is turns[-1], False, {}, state))
        so_far = prompt + tuple(turn.written)
    return Episode(tuple(steps), iteration)


def ragged_rows(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded tokens and mask, and the lengths, of (ids, mask) pairs."""
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for line, (ids, chosen) in enumerate(rows):
        tokens[line, : len(ids)] = torch.tensor(ids)
        mask[line, : len(ids)] = torch.tensor(chosen, dtype=torch.bool)
    return tokens, mask, torch.tensor([len(ids) for ids, _ in rows])


def plain_network(model: LanguageModel) -> Any:
    """A copy of the network with the attention of Transformers."""
    network: Any = copy.deepcopy(model.network)
    base = network.get_base_model() if hasattr(network, "get_base_model") else network
    if model.shares_prefixes:
        base.set_attn_implementation("sdpa")
    return network


def plain_scores(network: Any, tokens: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [rows, length] by a whole forward and a whole log-softmax; 0 where nothing was chosen."""
    distribution = (network(input_ids=tokens).logits[:, :-1] / temperature).log_softmax(dim=-1)
    logprobs = distribution.gather(2, tokens[:, 1:, None])[..., 0] * mask[:, 1:]
    entropies = -(distribution.exp() * distribution).sum(dim=-1) * mask[:, 1:]
    first = torch.zeros(len(tokens), 1)
    return torch.cat([first, logprobs], dim=1), torch.cat([first, entropies], dim=1)


def gradients(network: Any) -> dict[str, Tensor]:
    """The gradients by parameter name, each tied weight once."""
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


def shake_adapter(network: Any, size: float = 0.1, seed: int = 0) -> None:
    """Moves a fresh LoRA adapter away from zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                weight.copy_(size * torch.randn(weight.shape, generator=generator))
