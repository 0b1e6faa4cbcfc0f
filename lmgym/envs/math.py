r"""MATH: competition problems with answers in `\boxed{}` (Hendrycks et al., 2021, https://arxiv.org/abs/2103.03874)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmgym.envs.dataset_file import problem_from_row, read_problems
from lmgym.envs.held_out import hold_out_validation as held_out
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.rewards.final_answer import BoxedAnswer
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem


class MATH(MathEnv):
    """The 7,500 training or 5,000 test problems, or some subjects and levels.

    `validation` is 500 of the training problems, which `train` leaves out if `hold_out_validation` is set.
    """

    def __init__(
        self,
        split: str = "train",
        subjects: Sequence[str] = (),
        levels: Sequence[int] = (),
        path: str | Path | None = None,
        hold_out_validation: bool = False,
        stepwise: bool = True,
        max_steps: int = 256,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        problems: Sequence[Problem] = _load(split, None if path is None else str(path), hold_out_validation)
        problems = choose(problems, subjects, levels)
        super().__init__(problems, BoxedAnswer(), stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=4)
def _load(split: str, path: str | None, hold_out_validation: bool = False) -> tuple[Problem, ...]:
    from lmgym.assets.catalogue import dataset_file

    if split == "validation" or (split == "train" and hold_out_validation):
        training, validation = held_out(_load("train", path))
        return tuple(validation if split == "validation" else training)
    file = path or dataset_file("math", split)
    return read_problems(file, lambda row, index: boxed_problem(row, f"math/{split}/{index}"))


def boxed_problem(row: dict[str, Any], default_id: str) -> Problem:
    """A row of MATH as a problem, with its subject and its level."""
    problem, form = problem_from_row(_repaired(row), default_id)
    if not isinstance(form, BoxedAnswer):
        raise UserError(r"the solution has no \boxed{} answer.")
    return replace(problem, info=_subject_and_level(row))


def _repaired(row: dict[str, Any]) -> dict[str, Any]:
    """Fills the empty box of the two training rows that have one; the answer of both is 0."""
    if isinstance(row.get("solution"), str):
        return {**row, "solution": row["solution"].replace("\\boxed{}", "\\boxed{0}")}
    return row


def _subject_and_level(row: dict[str, Any]) -> dict[str, Any]:
    level = str(row.get("level", "")).removeprefix("Level ")
    return {"subject": row.get("type", row.get("subject")), "level": int(level) if level.isdigit() else None}


def choose(
    problems: Sequence[Problem], subjects: str | Sequence[str], levels: int | Sequence[int]
) -> Sequence[Problem]:
    """The problems of these subjects and levels; of all if none are given."""
    problems = _with_subjects(problems, (subjects,) if isinstance(subjects, str) else tuple(subjects))
    return _with_levels(problems, (levels,) if isinstance(levels, int) else tuple(levels))


def _with_subjects(problems: Sequence[Problem], subjects: tuple[str, ...]) -> Sequence[Problem]:
    if not subjects:
        return problems
    known = {_plain(problem.info["subject"]): problem.info["subject"] for problem in problems}
    for subject in subjects:
        if _plain(subject) not in known:
            raise UserError(f'MATH has no subject "{subject}": it has {", ".join(sorted(known.values()))}.')
    chosen = {_plain(subject) for subject in subjects}
    return [problem for problem in problems if _plain(problem.info["subject"]) in chosen]


def _with_levels(problems: Sequence[Problem], levels: tuple[int, ...]) -> Sequence[Problem]:
    for level in levels:
        if level not in range(1, 6):
            raise UserError(f"MATH has no level {level!r}: its levels are the numbers 1 to 5.")
    return [problem for problem in problems if problem.info["level"] in levels] if levels else problems


def _plain(subject: Any) -> str:
    """Normalises a subject, so that `Counting & Probability` equals `counting_and_probability`."""
    words = str(subject).lower().replace("&", " ").replace("_", " ").replace("-", " ").split()
    return " ".join(word for word in words if word != "and")
