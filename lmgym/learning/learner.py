"""The optimiser step: micro-batches in, one exact gradient, one update of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmgym.distribution import Distribution
from lmgym.learning.batch import Batch
from lmgym.learning.language_model import LanguageModel
from lmgym.learning.logprobs import TokenScorer, common_trunk
from lmgym.learning.schedules import Schedule, learning_rate_factor

Loss = Callable[[Tensor, Batch], Tensor]
"""From the learner's log-probabilities of a micro-batch, and the micro-batch, to its share of the loss."""


@dataclass(frozen=True)
class LearnerSettings:
    """How the weights follow the gradient."""

    learning_rate: float
    schedule: Schedule
    warmup_steps: int
    total_steps: int
    max_gradient_norm: float
    weight_decay: float
    micro_batch_tokens: int
    gradient_accumulation_steps: int
    distribution: Distribution


@dataclass(frozen=True)
class Update:
    """What one optimiser step did: the learner's log-probabilities before it, and how large it was."""

    logprobs: Tensor
    entropies: Tensor
    loss: float
    gradient_norm: float
    learning_rate: float


class Learner:
    """Owns the optimiser of a model."""

    def __init__(self, model: LanguageModel, settings: LearnerSettings) -> None:
        self.model = model
        self.settings = settings
        self.steps_done = 0
        # A second moment that forgets in about a hundred steps suits runs that only have some dozens.
        self.optimizer = torch.optim.AdamW(
            model.trainable().values(),
            lr=settings.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._lay_down()

    def _lay_down(self) -> None:
        """Gives gradients and moments their memory before any pass does, so that passes leave no holes between them."""
        for weight in self.model.trainable().values():
            weight.grad = torch.zeros_like(weight)
            self.optimizer.state[weight] = {
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }

    def step(self, batch: Batch, loss: Loss) -> Update | None:
        """Accumulates the gradient of `loss` over micro-batches and moves the weights once; no episodes, no move."""
        settings = self.settings
        if not len(batch):
            self.steps_done += 1
            return None
        rate = settings.learning_rate * learning_rate_factor(
            self.steps_done, settings.total_steps, settings.schedule, settings.warmup_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=False)
        scorer = self._scorer(self.model, batch)
        logprobs, entropies, total_loss = [], [], 0.0
        for part in self._parts(batch, scorer):
            part_logprobs, part_entropies = scorer.score(part.tokens, part.mask, part.lengths)
            part_loss = loss(part_logprobs, part)
            part_loss.backward()
            total_loss += part_loss.item()
            logprobs.append(part_logprobs.detach().cpu())
            entropies.append(part_entropies.cpu())
        scorer.backward_trunk()
        norm = torch.nn.utils.clip_grad_norm_(self.model.trainable().values(), settings.max_gradient_norm)
        if norm.isfinite():
            self.optimizer.step()
        self.steps_done += 1
        self.model.version += 1
        return Update(torch.cat(logprobs), torch.cat(entropies), total_loss, float(norm), rate)

    @torch.no_grad()
    def logprobs(self, model: LanguageModel, batch: Batch) -> Tensor:
        """The log-probabilities another model, or this one, gives the batch now."""
        scorer = self._scorer(model, batch)
        parts = self._parts(batch, scorer)
        return torch.cat([scorer.score(part.tokens, part.mask, part.lengths)[0].cpu() for part in parts])

    def _scorer(self, model: LanguageModel, batch: Batch) -> TokenScorer:
        trunk = common_trunk(batch.tokens, batch.mask, batch.lengths)
        return TokenScorer(model, trunk, self.settings.distribution)

    def _parts(self, batch: Batch, scorer: TokenScorer) -> list[Batch]:
        parts = batch.micro_batches(
            self.settings.micro_batch_tokens, self.settings.gradient_accumulation_steps, scorer.trunk_length
        )
        return [part.to(self.model.device) for part in parts]
