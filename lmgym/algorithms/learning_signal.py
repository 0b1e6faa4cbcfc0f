"""Why an iteration has nothing to teach, in a sentence for the person who watches."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.types import Episode

MOST = 0.5
"""From this share on, a fault of the episodes is taken for the cause."""


def without_signal(episodes: Sequence[Episode]) -> str:
    """What the rewards are, and the likely cause."""
    rewards = [episode.reward for episode in episodes]
    alike = min(rewards) == max(rewards)
    what = f"all {len(rewards)} rewards are {rewards[0]:g}" if alike else "within each group the rewards are equal"
    return (
        f"nothing to learn from in this iteration: {what}. {_likely_cause(episodes, solved=alike and rewards[0] > 0)}"
    )


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
