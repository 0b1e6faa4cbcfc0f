"""The interface of an algorithm to its run: a protocol, so that runs import no algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from lmgym.buffer import Buffer
from lmgym.envs.vector_env import VectorEnv
from lmgym.evaluation.contamination import TrainedProblems
from lmgym.evaluation.evaluator import Evaluator
from lmgym.judges.judge import Judge
from lmgym.learning.learner import Learner
from lmgym.learning.reference import Reference
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.policy import Policy


class AuxiliaryState(Protocol):
    """Weights besides the policy's that a checkpoint stores, such as those of a reference or a critic."""

    def save(self, path: Path) -> None:
        """Writes what cannot be restored from elsewhere."""
        ...

    def load(self, path: Path) -> None:
        """Loads what `save` wrote."""
        ...


class TrainingConfig(Protocol):
    """The settings that a run uses."""

    iterations: int
    problems_per_iteration: int
    group_size: int
    learning_rate: float
    save_every: int
    save_minutes: float
    seed: int

    def settings(self) -> dict[str, Any]:
        """Every flag and its value."""
        ...


class Training(Protocol):
    """The attributes of an algorithm that a run uses."""

    iteration: int
    state: dict[str, float]
    auxiliary_state: dict[str, AuxiliaryState]
    policy: LLMPolicy
    actor: Policy
    envs: VectorEnv
    learner: Learner
    buffer: Buffer
    evaluator: Evaluator
    reference: Reference | None
    judge: Judge | None
    trained_problems: TrainedProblems

    @property
    def name(self) -> str | None:
        """The name by which `lmgym train` finds the algorithm."""
        ...

    @property
    def config(self) -> TrainingConfig:
        """Its settings."""
        ...

    def continue_schedule(self, factor: float) -> None:
        """Continues the learning-rate schedule from a factor."""
        ...
