"""SVAMP: one-step word problems with unneeded numbers (Patel et al., 2021, https://arxiv.org/abs/2103.07191)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lmgym.envs.dataset_file import read_rows
from lmgym.envs.math_env import MathEnv
from lmgym.rewards.final_answer import NumberAnswer
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem


class SVAMP(MathEnv):
    """All 1,000 problems, as a test of what was learnt elsewhere: they have no worked solutions to learn from."""

    def __init__(
        self,
        split: str = "test",
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        super().__init__(_load(split), NumberAnswer(), stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=1)
def _load(split: str) -> list[Problem]:
    from lmgym.assets.catalogue import dataset_file

    return [_problem(row) for _, row in read_rows(dataset_file("svamp", split))]


def _problem(row: dict[str, Any]) -> Problem:
    """A row has the story, the question and the answer as a whole float; many stories lack their full stop."""
    story, answer = row["Body"].strip(), f"{row['Answer']:.0f}"
    story += "" if story.endswith((".", "?", "!")) else "."
    return Problem(f"svamp/{row['ID']}", f"{story} {row['Question'].strip()}", answer, NumberAnswer().show(answer))
