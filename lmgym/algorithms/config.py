"""The settings of the loop that every algorithm has; each field is a flag, and the string under it is its help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from lmgym.algorithms.parts import GroupFilter, KLPenalty, TruncatedImportanceSampling
from lmgym.errors import UserError
from lmgym.learning.learner import LearnerSettings
from lmgym.models.distribution import Distribution

PartType = TypeVar("PartType")

AT_LEAST_ONE = {"iterations", "group_size", "updates_per_iteration", "micro_batch_tokens"}


@dataclass
class RLConfig:
    """The settings of the loop and of the optimiser; a subclass adds its own fields and lists its parts."""

    compares_groups: ClassVar[bool] = False
    """Whether an advantage compares an episode with the others of its group, so that a group needs at least two."""

    is_off_policy: ClassVar[bool] = False
    """Whether the loss is right for stale episodes without importance weights: it has ratios π / π_old of its own, or
    is not a policy gradient."""

    iterations: int = 7
    """Iterations of collecting episodes and updating the policy."""
    problems_per_iteration: int = 16
    """Problems sampled per iteration; 0 samples none and learns from --replay_episodes alone."""
    group_size: int = 8
    """Episodes sampled per problem; they form a group."""
    updates_per_iteration: int = 1
    """Optimiser steps per iteration, each over the whole batch."""
    learning_rate: float = 6e-5
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Learning-rate schedule; linear and cosine decay to 0 at the last optimiser step."""
    warmup_steps: int = 0
    """Optimiser steps of linear warm-up."""
    max_gradient_norm: float = 1.0
    """Gradients are clipped to this norm."""
    micro_batch_tokens: int = 1024
    """Tokens per forward and backward pass; it bounds memory and does not change the gradient."""
    recompute_activations: bool = False
    """Gradient checkpointing: recompute activations in the backward pass; less memory, slower."""
    curriculum: bool = False
    """Half of an iteration's problems, if there are as many, had a success rate of 20 to 80 % when last sampled; the
    others are new ones."""
    replay_episodes: int = 0
    """Episodes of earlier iterations, in whole groups, added to each update."""
    max_staleness: int = 0
    """Sample on servers while learning, with weights at most this many iterations old; 0: sample, then learn."""
    evaluate_every: int = 0
    """Evaluate every this many iterations; 0: only before and after training."""
    eval_problems: int = 200
    """Held-out problems per evaluation; 0: no evaluation."""
    save_every: int = 10
    """Write a checkpoint every this many iterations; 0: only by time and on Ctrl-C."""
    save_minutes: float = 10.0
    """Write a checkpoint when the last one is this many minutes old; 0: only by iterations and on Ctrl-C."""
    seed: int = 0
    """Seed of all randomness of the run."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The config with these flags, wherever they belong: to itself or to one of its parts."""
        config, given = cls(), dict(settings)
        changed: dict[str, Any] = {}
        for field in fields(config):
            value = getattr(config, field.name)
            if is_dataclass(value):
                part: Any = value
                own = {each.name: given.pop(each.name) for each in fields(part) if each.name in given}
                changed[field.name] = replace(part, **own)
            elif field.name in given:
                changed[field.name] = given.pop(field.name)
        if given:
            raise TypeError(f"{cls.__name__} has no setting {sorted(given)[0]!r}.")
        return replace(config, **changed)

    def settings(self) -> dict[str, Any]:
        """Every flag and its value, those of the parts included."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        flat = {name: value for name, value in own.items() if not is_dataclass(value)}
        return flat | {field.name: getattr(part, field.name) for part in self.parts() for field in fields(part)}

    def parts(self) -> Iterator[Any]:
        """The parts that this algorithm lists."""
        values = (getattr(self, field.name) for field in fields(self))
        return (value for value in values if is_dataclass(value))

    def part(self, kind: type[PartType]) -> PartType | None:
        """The part of this kind, where the algorithm lists one."""
        return next((part for part in self.parts() if isinstance(part, kind)), None)

    def learner_settings(self, distribution: Distribution, whole_groups: bool) -> LearnerSettings:
        """The settings of the optimiser step, for a policy that samples from `distribution`."""
        return LearnerSettings(
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.optimiser_steps,
            max_gradient_norm=self.max_gradient_norm,
            micro_batch_tokens=self.micro_batch_tokens,
            distribution=distribution,
            whole_groups=whole_groups,
        )

    @property
    def optimiser_steps(self) -> int:
        """How many optimiser steps the learning-rate schedule spans."""
        return self.iterations * self.updates_per_iteration

    @property
    def uses_value_head(self) -> bool:
        """Whether the policy's network also predicts values."""
        return False

    @property
    def resample_rounds(self) -> int:
        """How many times an iteration may sample problems."""
        group_filter = self.part(GroupFilter)
        return group_filter.max_resample_rounds if group_filter is not None and group_filter.filter_groups else 1

    @property
    def is_group_relative(self) -> bool:
        """Whether the advantage of an episode is relative to the others of its group, always or by --baseline group."""
        return self.compares_groups or self.settings().get("baseline") == "group"

    def corrects_stale_episodes(self) -> bool:
        """Whether the loss accounts for episodes that an older policy sampled."""
        importance = self.part(TruncatedImportanceSampling)
        return self.is_off_policy or (importance is not None and bool(importance.tis_cap))

    def check(self) -> None:
        """Refuses settings that cannot work, in one sentence."""
        for name, value in self.settings().items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            least = 1 if name in AT_LEAST_ONE else 0
            if not value >= least:  # also true of nan
                raise UserError(f"--{name} is {value}: it must be at least {least}.")
        self._check_choices()
        if not (self.problems_per_iteration or self.replay_episodes):
            raise UserError(
                "--problems_per_iteration 0 samples nothing: say how many episodes to learn from with "
                "--replay_episodes."
            )
        if self.max_gradient_norm == 0 or self.learning_rate == 0:
            raise UserError("--learning_rate and --max_gradient_norm must be above 0, or nothing is learnt.")
        if self.is_group_relative and self.group_size == 1:
            other = "" if self.compares_groups else ", or another --baseline"
            raise UserError(f"an episode alone in its group has no advantage: give --group_size 2 or more{other}.")
        is_stale = self.replay_episodes or self.updates_per_iteration > 1 or self.max_staleness
        if is_stale and not self.corrects_stale_episodes():
            raise UserError(
                "without importance weights only one update on fresh episodes is unbiased: give --tis_cap 2, or use "
                "reinforce-stable, for --from_episodes, --replay_episodes, --updates_per_iteration or --max_staleness."
            )
        if self.max_staleness and (self.curriculum or self.resample_rounds > 1):
            raise UserError("--max_staleness goes with neither --curriculum nor --max_resample_rounds.")
        for part in self.parts():
            if hasattr(part, "check"):
                part.check()
        self._check_filter()

    def _check_choices(self) -> None:
        """Refuses a value that is none of the choices of its setting; the command line has refused it already."""
        for owner in (self, *self.parts()):
            for name, hint in get_type_hints(type(owner)).items():
                value, choices = getattr(owner, name), get_args(hint)
                if get_origin(hint) is Literal and value not in choices:
                    raise UserError(f"--{name} is {value!r}: it must be one of {', '.join(map(str, choices))}.")

    def _check_filter(self) -> None:
        group_filter, kl, settings = self.part(GroupFilter), self.part(KLPenalty), self.settings()
        if group_filter is None:
            return
        entropy_coeff = settings.get("entropy_coeff", 0.0)
        if group_filter.learn_per_group and ((kl is not None and kl.in_loss) or entropy_coeff):
            raise UserError(
                "--learn_per_group weights advantages, not the KL and the entropy in the loss: give --kl_coeff 0 (or "
                "--kl_place reward) and --entropy_coeff 0."
            )
        default = type(self)().part(GroupFilter)
        if not group_filter.filter_groups:
            if default is not None and group_filter.max_resample_rounds > max(1, default.max_resample_rounds):
                raise UserError("--max_resample_rounds needs --filter_groups.")
            return
        is_never_zero = settings.get("advantage_norm") == "batch" or settings.get("baseline") in ("batch", "running")
        if is_never_zero or (kl is not None and kl.in_reward):
            raise UserError(
                "--filter_groups drops groups whose advantages are all zero: with --advantage_norm batch, --baseline "
                "batch or running, or --kl_place reward no group has that."
            )
        if kl is not None and kl.kl_coeff:
            raise UserError(
                "--filter_groups would drop the KL of the groups that it drops and bias it: give --kl_coeff 0, or "
                "--no_filter_groups."
            )
        if self.curriculum and self.resample_rounds > 1:
            raise UserError("--max_resample_rounds looks for informative problems itself: leave --curriculum out.")
