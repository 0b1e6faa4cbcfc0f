"""MATH-500: 500 test problems of MATH (Lightman et al., 2023, https://arxiv.org/abs/2305.20050)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lmgym.envs.dataset_file import read_problems
from lmgym.envs.math import boxed_problem, choose
from lmgym.envs.math_env import MathEnv
from lmgym.rewards.final_answer import BoxedAnswer
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem


class MATH500(MathEnv):
    """The 500 test problems of MATH that most papers evaluate on, or some subjects and levels."""

    def __init__(
        self,
        split: str = "test",
        subjects: Sequence[str] = (),
        levels: Sequence[int] = (),
        path: str | Path | None = None,
        stepwise: bool = True,
        max_steps: int = 256,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        problems = choose(_load(split, None if path is None else str(path)), subjects, levels)
        super().__init__(problems, BoxedAnswer(), stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=2)
def _load(split: str, path: str | None) -> tuple[Problem, ...]:
    from lmgym.assets.catalogue import dataset_file

    file = path or dataset_file("math-500", split)
    return read_problems(file, lambda row, index: boxed_problem(row, f"math-500/{row.get('unique_id', index)}"))
