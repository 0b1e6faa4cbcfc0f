"""What came of an iteration's episodes, and why there may be nothing to learn from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmgym.evaluation.evaluation import is_correct
from lmgym.types import Episode

MOST = 0.5
"""From this share on, a fault of the episodes is taken for the cause."""


def outcome_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The means that every iteration reports."""
    return {
        "reward": float(np.mean([episode.reward for episode in episodes])),
        "accuracy": float(np.mean([is_correct(episode) for episode in episodes])),
        "length": float(np.mean([episode.length for episode in episodes])),
        "cut_off": float(np.mean([episode.cut_off for episode in episodes])),
    }


def without_signal(episodes: Sequence[Episode]) -> str:
    """A sentence for the person who watches: what the rewards are, and the likely cause."""
    rewards = [episode.reward for episode in episodes]
    alike = min(rewards) == max(rewards)
    what = f"all {len(rewards)} rewards are {rewards[0]:g}" if alike else "within each group the rewards are equal"
    solved = alike and sum(map(is_correct, episodes)) / len(episodes) >= MOST
    return f"nothing to learn from in this iteration: {what}. {_likely_cause(episodes, solved)}"


def _likely_cause(episodes: Sequence[Episode], solved: bool) -> str:
    if solved:
        return "The problems are solved: give harder ones."
    cut_off = sum(episode.cut_off for episode in episodes) / len(episodes)
    if cut_off >= MOST:
        return f"{cut_off:.0%} were cut off: raise --max_tokens."
    unparsed = sum(not episode.info.get("parsed", True) for episode in episodes) / len(episodes)
    if unparsed >= MOST:
        return f"In {unparsed:.0%} no answer was found: show the model how to state it, by --shots or --system_prompt."
    return "Give problems that are solved now and then (easier ones, --shots), or a larger --group_size."
