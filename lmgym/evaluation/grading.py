"""Whether an episode solved its problem, and what is said of episodes that failed for another reason."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.types import Episode


def is_correct(episode: Episode) -> bool:
    """Whether the environment graded it as correct; without a grade, whether its reward is at least 1.

    One that failed is wrong, whatever it was rewarded before.
    """
    return episode.error is None and bool(episode.info.get("correct", episode.reward >= 1))


def is_correct_leniently(episode: Episode) -> bool:
    """Whether its answer is right in any form, where the environment grades that too."""
    return bool(episode.info.get("lenient", is_correct(episode)))


def is_parsed(episode: Episode) -> bool:
    """Whether it states an answer in the form that was asked for."""
    return bool(episode.info.get("parsed", True))


def accuracy_by_env(episodes: Sequence[Episode]) -> dict[str, float]:
    """For episodes of a mixture of environments, the share of correct ones in each."""
    graded: dict[str, list[bool]] = {}
    for episode in episodes:
        if "env" in episode.info:
            graded.setdefault(episode.info["env"], []).append(is_correct(episode))
    return {name: sum(own) / len(own) for name, own in graded.items()}


def failures(failed: Sequence[Episode], count: int) -> str:
    """One sentence on the episodes, of so many, in which an environment, a reward, a tool or a judge failed."""
    first, error = failed[0].problem.id, str(failed[0].error).rstrip(".")
    return f"{len(failed)} of {count} episodes failed, the first one ({first}) with: {error}."
