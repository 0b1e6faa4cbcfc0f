"""GSM8K: grade-school word problems with worked solutions (Cobbe et al., 2021, https://arxiv.org/abs/2110.14168)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lmgym.envs.dataset_file import Dataset, load_dataset_file
from lmgym.envs.held_out import hold_out_validation as held_out
from lmgym.envs.math_env import MathEnv
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward


class GSM8K(MathEnv):
    """The 7,473 training or 1,319 test problems; a solution ends in `The answer is: N`.

    `validation` is 500 of the training problems, which `train` leaves out if `hold_out_validation` is set. With
    `max_calculations` the problems to train on are those whose worked solution has at most so many calculations, so
    that a weak model solves some of them; the problems to evaluate on stay all.
    """

    def __init__(
        self,
        split: str = "train",
        path: str | Path | None = None,
        hold_out_validation: bool = False,
        max_calculations: int = 0,
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        dataset = _load(split, None if path is None else str(path), hold_out_validation)
        problems = dataset.problems
        if split == "train" and max_calculations:
            problems = [each for each in problems if each.solution.count("<<") <= max_calculations]
        super().__init__(problems, dataset.answer_form, stepwise, max_steps, reward, step_reward)


@lru_cache(maxsize=4)
def _load(split: str, path: str | None, hold_out_validation: bool = False) -> Dataset:
    from lmgym.assets.catalogue import dataset_file

    if split == "validation" or (split == "train" and hold_out_validation):
        dataset = _load("train", path)
        training, validation = held_out(dataset.problems)
        return replace(dataset, problems=validation if split == "validation" else training)
    return load_dataset_file(path or dataset_file("gsm8k", split), f"gsm8k/{split}")
