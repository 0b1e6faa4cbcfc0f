"""`lmgym rescore RUN --reward …`: what another reward would have said of saved episodes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table

from lmgym.assets.storage import writing_to
from lmgym.buffer import Buffer, group_key
from lmgym.commands.settings import TaskSettings
from lmgym.console import results
from lmgym.errors import UserError
from lmgym.evaluation.grading import failures
from lmgym.rewards.custom import load_reward
from lmgym.rewards.weighted import WeightedReward
from lmgym.types import Episode

SHARES = (0, 5, 25, 50, 75, 95, 100)
"""Percentiles of the rewards that are printed."""


@dataclass
class RescoreSettings:
    """The settings of `lmgym rescore`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """A run directory, or a file of episodes."""
    reward: str = ""
    """Your own reward function as module:function, or a weighted sum: "correct + 0.1*form"."""
    env: str = "gsm8k"
    """The environment whose form of answers `correct` and `form` use, for a file that is not in a run directory."""
    out: str = ""
    """Also write the episodes with their new rewards to this file, for --load_episodes."""


def rescore(settings: RescoreSettings) -> Buffer:
    """Prints how the distribution and the ranking within groups changed."""
    if not settings.run or not settings.reward:
        raise UserError("give the folder of a run and a reward: lmgym rescore RUN --reward my_module:my_function")
    path = Path(settings.run)
    path = path / "episodes.jsonl" if path.is_dir() else path
    reward: Any = load_reward(settings.reward)
    if isinstance(reward, WeightedReward):
        reward = reward.with_form(_answer_form(path, settings))
    buffer = Buffer.load(path)
    if not buffer.episodes:
        raise UserError(f"{path} has no episodes.")
    before = list(buffer.episodes)
    buffer.rescore(reward)
    failed = [episode for episode in buffer.episodes if episode.error is not None]
    if failed:
        results.print(failures(failed, len(before)), markup=False, soft_wrap=True)
    if len(failed) == len(before):
        raise UserError("no episode could be scored.")
    kept = [(old, new) for old, new in zip(before, buffer.episodes, strict=True) if new.error is None]
    _show([old for old, _ in kept], [new for _, new in kept])
    if settings.out:
        target = Path(settings.out)
        with writing_to(target.parent, "--out"):
            buffer.save(target)
    return buffer


def order_changes(before: list[Episode], after: list[Episode]) -> tuple[int, int, int]:
    """Pairs of samples of one group: those whose order is reversed, those that only one reward tells apart, and all."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, episode in enumerate(before):
        groups.setdefault(group_key(episode), []).append(index)
    pairs = [pair for members in groups.values() for pair in combinations(members, 2)]
    signs = [
        [np.sign(episodes[one].reward - episodes[other].reward) for one, other in pairs] for episodes in (before, after)
    ]
    products = [old * new for old, new in zip(*signs, strict=True)]
    reversed_pairs = sum(product < 0 for product in products)
    told_apart = sum(old != new for old, new in zip(*signs, strict=True)) - reversed_pairs
    return int(reversed_pairs), int(told_apart), len(pairs)


def _show(before: list[Episode], after: list[Episode]) -> None:
    table = Table("reward", "mean", *(f"{share} %" for share in SHARES), title=f"{len(before):,} episodes")
    for name, episodes in (("before", before), ("after", after)):
        rewards = [episode.reward for episode in episodes]
        table.add_row(name, f"{np.mean(rewards):.3f}", *(f"{value:.3g}" for value in np.percentile(rewards, SHARES)))
    results.print(table)
    changed = sum(old.reward != new.reward for old, new in zip(before, after, strict=True))
    reversed_pairs, told_apart, pairs = order_changes(before, after)
    results.print(
        f"{changed:,} rewards changed; of {pairs:,} pairs within groups, {reversed_pairs:,} are reversed and "
        f"{told_apart:,} are told apart by only one of the two",
        markup=False,
        soft_wrap=True,
    )


def _answer_form(path: Path, settings: RescoreSettings) -> Any:
    """How the environment of the run, or the given one, states its answers."""
    config = path.parent / "config.json"
    saved = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    task = TaskSettings(env=saved.get("env") or settings.env, env_options=saved.get("env_options") or {})
    form = getattr(task.make("train"), "answer_form", None)
    if form is None:
        raise UserError(f"{task.env} has no form of answers: give a reward of your own.")
    return form
