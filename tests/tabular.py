"""A policy so small that every group of episodes can be counted out: the truth that algorithms are held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lmgym.algorithms.registry import find_algorithm
from lmgym.learning.batch import Batch

VOCABULARY, LENGTH = 3, 2
LIMIT = 64
"""How long an episode might have been."""
SEQUENCES = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
PREFIXES = [(), *itertools.product(range(VOCABULARY), repeat=1)]
STATES = [[PREFIXES.index(sequence[:place]) for place in range(LENGTH)] for sequence in SEQUENCES]


def table(seed: int) -> Tensor:
    """Logits of every next token after every prefix."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(PREFIXES), VOCABULARY, dtype=torch.float64, generator=generator)


def logprobs_of(logits: Tensor, sequences: Sequence[int]) -> Tensor:
    """Log-probabilities [sequences, LENGTH] of the tokens of some sequences, named by their numbers."""
    states = torch.tensor([STATES[number] for number in sequences])
    tokens = torch.tensor([SEQUENCES[number] for number in sequences])
    return logits.log_softmax(-1)[states, tokens]


def probabilities(logits: Tensor) -> Tensor:
    """The probability of every sequence."""
    return logprobs_of(logits, range(len(SEQUENCES))).sum(dim=1).exp()


def entropies_of(logits: Tensor, sequences: Sequence[int]) -> Tensor:
    """The entropy before each token of some sequences."""
    logs = logits.log_softmax(-1)
    states = torch.tensor([STATES[number] for number in sequences])
    return -(logs.exp() * logs).sum(-1)[states]


def after_prompt(values: Tensor) -> Tensor:
    """Values of the sequences' own tokens, with a column of 0 for the prompt before them."""
    return torch.cat([values.new_zeros(len(values), 1), values], dim=1)


def batch_of(
    sequences: Sequence[int],
    rewards: Tensor,
    behaviour: Tensor,
    reference: Tensor | None = None,
    group: Sequence[int] | None = None,
    two_steps: bool = False,
) -> Batch:
    """Sequences as episodes, by default of one group; `rewards` [sequences, steps] holds every sequence's own."""
    count = len(sequences)
    mask = torch.ones(count, 1 + LENGTH, dtype=torch.bool)
    mask[:, 0] = False
    steps = [-1, 0, 1 if two_steps else 0]
    batch = Batch.from_tensors(
        tokens=torch.tensor([(0, *SEQUENCES[number]) for number in sequences]),
        lengths=torch.full((count,), 1 + LENGTH),
        mask=mask,
        logprobs=after_prompt(logprobs_of(behaviour, sequences)),
        step_index=torch.tensor(steps).expand(count, -1),
        rewards=rewards[list(sequences)],
        step_count=torch.full((count,), rewards.shape[1]),
        group=torch.tensor(group if group is not None else [0] * count),
        policy_version=torch.zeros(count, dtype=torch.long),
        truncated=torch.zeros(count, dtype=torch.bool),
        seed=torch.arange(count),
    ).with_(length_limit=LIMIT)
    if reference is None:
        return batch
    return batch.with_(reference_logprobs=after_prompt(logprobs_of(reference, sequences)))


def critic_of(values: Callable[[Batch], Tensor], after: float = 0.7) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """What a critic says; what it expects after the end matters to truncated episodes alone."""
    return lambda batch: (values(batch), torch.full((len(batch),), after, dtype=torch.float64))


def bare(name: str, **settings: Any) -> Any:
    """The real credit and loss of an algorithm, without the models that they do not need."""
    kind = find_algorithm(name)
    algorithm: Any = object.__new__(kind)
    algorithm.config = kind.Config(**settings)
    algorithm.config.check()
    algorithm.memory = {}
    algorithm.iteration = 0
    asked = SimpleNamespace(logprobs=lambda _, batch: batch.reference_logprobs)
    algorithm.reference = asked if getattr(algorithm.config, "kl_coeff", 0) else None
    algorithm.critic = SimpleNamespace(
        learns_alone=True, values=critic_of(lambda batch: torch.zeros_like(batch.logprobs))
    )
    algorithm.learner = None
    return algorithm


def loss_of(algorithm: Any, batch: Batch, logits: Tensor, sequences: Sequence[int]) -> Tensor:
    """What the loop would minimise for one batch: prepared, credited, and only of what is worth computing."""
    batch = algorithm.prepare(batch)
    batch = batch.with_(advantages=algorithm.advantages(batch))
    learnable = algorithm.learnable(batch)
    if not len(learnable):
        return logits.sum() * 0
    numbers = [SEQUENCES.index(tuple(row[1:])) for row in learnable.tokens.tolist()]
    learnable = learnable.with_(entropies=after_prompt(entropies_of(logits, numbers)))
    return algorithm.loss(after_prompt(logprobs_of(logits, numbers)), learnable)


def expected_update(
    algorithm: Any,
    rewards: Tensor,
    group_size: int,
    logits: Tensor | None = None,
    behaviour: Tensor | None = None,
    reference: Tensor | None = None,
    change: Callable[[Batch], Batch] = lambda batch: batch,
    two_steps: bool = False,
) -> Tensor:
    """Minus the gradient of the loss, averaged over every group that the behaviour could have sampled."""
    logits = (table(0) if logits is None else logits).clone().requires_grad_()
    behaviour = logits.detach() if behaviour is None else behaviour
    chances = probabilities(behaviour)
    total = torch.zeros_like(logits)
    for group in itertools.product(range(len(SEQUENCES)), repeat=group_size):
        batch = change(batch_of(group, rewards, behaviour, reference, two_steps=two_steps))
        chance = torch.stack([chances[number] for number in group]).prod()
        total -= chance * torch.autograd.grad(loss_of(algorithm, batch, logits, group), logits)[0]
    return total


def gradient(function: Callable[[Tensor], Tensor], logits: Tensor | None = None) -> Tensor:
    """The exact gradient of a function of the logits."""
    logits = (table(0) if logits is None else logits).clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def close(left: Tensor, right: Tensor) -> bool:
    """Equal but for rounding, and not both nothing."""
    assert float(right.abs().max()) > 1e-4
    return torch.allclose(left, right, atol=1e-9, rtol=1e-7)
