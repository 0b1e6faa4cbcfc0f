"""The optimiser step: micro-batches in, one exact gradient, one update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmgym.distributed.processes import processes
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.schedules import Schedule, learning_rate_factor
from lmgym.models.allocator import release_freed_memory
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel, copy_tensor, full_tensor
from lmgym.models.low_memory_layers import low_memory_layers
from lmgym.models.token_scorer import Scores, TokenScorer, common_prefix

Loss = Callable[[Scores, Batch], Tensor]
"""Maps the scores of a micro-batch (log-probabilities, entropies, values) to its share of the loss."""


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the optimiser step."""

    learning_rate: float
    schedule: Schedule
    warmup_steps: int
    total_steps: int
    max_gradient_norm: float
    micro_batch_tokens: int
    distribution: Distribution
    whole_groups: bool = False
    """Whether the loss compares episodes of a group with each other, so that no micro-batch may split a group."""


@dataclass(frozen=True)
class Update:
    """What one optimiser step computed: log-probs and entropies before it, loss, gradient norm, learning rate."""

    logprobs: Tensor
    entropies: Tensor
    loss: float
    gradient_norm: float
    learning_rate: float


class Learner:
    """Owns the optimiser of a model and of its value head, if it has one; the only writer of the model's version."""

    def __init__(
        self,
        model: LanguageModel,
        settings: LearnerSettings,
        value_head: nn.Module | None = None,
        reads_vocabulary: bool = True,
    ) -> None:
        self.model = model
        self.settings = settings
        self.value_head = value_head
        self.reads_vocabulary = reads_vocabulary
        self.steps_done = 0
        self.schedule: Callable[[int, int], float] = lambda step, total: learning_rate_factor(
            step, total, settings.schedule, settings.warmup_steps
        )
        """Maps an optimiser step and the total number of steps to a factor of the learning rate; replaceable."""
        # Runs have dozens of steps, not thousands: the second moment averages over about a hundred.
        self.optimizer = torch.optim.AdamW(
            self.parameters().values(),
            lr=settings.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            fused=True,
        )
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Zeroes gradients and moments; allocating them before any forward pass keeps the heap unfragmented."""
        for weight in self.parameters().values():
            weight.grad = torch.zeros_like(weight)
            self.optimizer.state[weight] = {
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }

    def parameters(self) -> dict[str, nn.Parameter]:
        """All trainable parameters, by name."""
        head = dict(self.value_head.named_parameters()) if self.value_head else {}
        return self.model.trainable() | {f"value_head.{name}": weight for name, weight in head.items()}

    def step(self, batch: Batch, loss: Loss) -> Update | None:
        """Accumulates the gradient of `loss` over micro-batches and takes one optimiser step.

        Without episodes it only counts the step and returns None.
        """
        if not len(batch):
            self.steps_done += 1
            return None
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=False)
        computed: dict[int, tuple[float, Tensor, Tensor]] = {}
        release_freed_memory()
        with low_memory_layers(self.model):
            scorer = self._scorer(self.model, batch)
            for index, part in self._own_parts(batch, scorer):
                scores = scorer.score(part.tokens, part.mask, part.lengths)
                part_loss = loss(scores, part) if index is not None else 0.0 * scores.logprobs.sum()
                part_loss.backward()
                if index is not None:
                    computed[index] = part_loss.item(), scores.logprobs.detach().cpu(), scores.entropies.detach().cpu()
                release_freed_memory()  # or each pass would add the gaps between its tensors to those of the others
            scorer.backward_prefix()
        losses, logprobs, entropies = zip(*processes().join(computed), strict=True)
        weights = self.parameters().values()
        if not self.model.is_sharded:  # a sharded network has summed them already
            processes().sum_(weight.grad for weight in weights if weight.grad is not None)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(weights, self.settings.max_gradient_norm))
        if norm.isfinite():
            self.optimizer.step()
        self.steps_done += 1
        self.model.version += 1
        return Update(torch.cat(logprobs), torch.cat(entropies), sum(losses), float(norm), rate)

    def learning_rate(self) -> float:
        """The learning rate of the next optimiser step."""
        return self.settings.learning_rate * self.schedule(self.steps_done, self.settings.total_steps)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Update:
        """The log-probabilities and entropies that an optimiser step would compute, without taking it."""
        with low_memory_layers(self.model):
            scores = self._scores(self._scorer(self.model, batch), batch)
        logprobs = torch.cat([each.logprobs for each in scores])
        entropies = torch.cat([each.entropies for each in scores])
        return Update(logprobs, entropies, 0.0, 0.0, self.learning_rate())

    @torch.no_grad()
    def logprobs(self, model: LanguageModel, batch: Batch) -> Tensor:
        """Log-probabilities [episodes, length] of the batch under this model or another one."""
        with low_memory_layers(model):
            scores = self._scores(self._scorer(model, batch), batch)
        return torch.cat([each.logprobs for each in scores])

    @torch.no_grad()
    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The critic's current value before each action token, and after the last token of each episode."""
        prefix = common_prefix(batch.tokens, batch.mask, batch.lengths)
        scorer = TokenScorer(self.model, prefix, self.settings.distribution, self.value_head, computes_logprobs=False)
        scores = self._scores(scorer, batch)
        return torch.cat([each.values for each in scores]), torch.cat([each.last_values for each in scores])

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the trainable parameters, and resets the optimiser and the learning-rate schedule."""
        for name, weight in self.parameters().items():
            copy_tensor(weights[name], weight)
        self.reset_optimizer()
        self.steps_done = 0
        self.model.version += 1

    def restore(self, folder: Path) -> None:
        """Loads the model's weights and the optimiser's moments that a checkpoint holds."""
        self.model.load_weights(folder / "model")
        self.restore_optimizer(load_file(folder / "optimizer.safetensors"))

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimiser's moments under the names of their parameters."""
        return {
            f"{part}:{name}": value.contiguous()
            for name, parameter in self.parameters().items()
            for part, value in self.optimizer.state[parameter].items()
        }

    @torch.no_grad()
    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Restores the moments of each parameter."""
        parameters = self.parameters()
        for key, value in tensors.items():
            part, _, name = key.partition(":")
            if name not in parameters:
                raise UserError(f"the checkpoint has an optimiser state for {name}, which this model does not train.")
            copy_tensor(value, self.optimizer.state[parameters[name]][part])

    def _scorer(self, model: LanguageModel, batch: Batch) -> TokenScorer:
        prefix = common_prefix(batch.tokens, batch.mask, batch.lengths)
        own = model is self.model
        return TokenScorer(
            model,
            prefix,
            self.settings.distribution,
            self.value_head if own else None,
            self.reads_vocabulary or not own,
        )

    def _scores(self, scorer: TokenScorer, batch: Batch) -> list[Scores]:
        """The scores of all micro-batches, on the CPU and in their order, each computed by one of the processes."""
        own = {}
        for index, part in self._own_parts(batch, scorer):
            scores = scorer.score(part.tokens, part.mask, part.lengths).cpu()
            if index is not None:
                own[index] = scores
        return processes().join(own)

    def _own_parts(self, batch: Batch, scorer: TokenScorer) -> Iterator[tuple[int | None, Batch]]:
        """The micro-batches that this process computes, and their indices.

        The processes of a sharded model compute each pass together, so those with fewer micro-batches than others
        compute one episode more often, without an index: its results are not used.
        """
        parts = list(
            batch.micro_batches(self.settings.micro_batch_tokens, scorer.prefix_length, self.settings.whole_groups)
        )
        dealt = processes().deal([int(part.lengths.sum()) for part in parts])
        own = dealt[processes().rank]
        for index in own:
            yield index, parts[index].to(self.model.device)
        if scorer.model.is_sharded:
            shortest = batch.select(batch.lengths.argmin()[None])
            for _ in range(max(map(len, dealt)) - len(own)):
                yield None, shortest.to(self.model.device)
