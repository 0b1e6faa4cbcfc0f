"""Whether an episode solved its problem."""

from __future__ import annotations

from lmgym.types import Episode


def is_correct(episode: Episode) -> bool:
    """Whether the environment graded it as correct; without a grade, whether its reward is at least 1."""
    return bool(episode.info.get("correct", episode.reward >= 1))


def is_correct_leniently(episode: Episode) -> bool:
    """Whether its answer is right in any form, where the environment grades that too."""
    return bool(episode.info.get("lenient", is_correct(episode)))


def is_parsed(episode: Episode) -> bool:
    """Whether it states an answer in the form that was asked for."""
    return bool(episode.info.get("parsed", True))
