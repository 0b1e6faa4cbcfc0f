"""What all judges share: they add rewards to the steps of episodes, and keep each value under the judge's name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from lmgym.buffer import group_key
from lmgym.errors import UserError, described
from lmgym.types import Episode


class Judge(ABC):
    """Scores the steps of episodes; the reward of a step grows by the weight times its score."""

    name: ClassVar[str]
    scores_steps: ClassVar[bool] = True
    """Whether every step has a score, or only the last one, for the whole episode."""

    def __init__(self, weight: float = 1.0, prompt: str = "", model_name: str | None = None, url: str = "") -> None:
        """`prompt`, `model_name` and `url` are what --judge_prompt, --judge_model and --judge_url say."""
        self.weight = weight
        self.prompt = prompt
        self.model_name = model_name
        self.url = url

    def check(self, group_size: int) -> None:  # noqa: B027 - most judges take any group
        """Raises a UserError if episodes in groups of this size cannot be judged, before any is sampled."""

    @abstractmethod
    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """A score for each step of each episode; all samples of a group are given together."""

    def judged(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with the judge's rewards; `info["rewards"]` of the last step has the score of the episode.

        If the judge raises, groups are judged one by one: one that cannot be judged, or whose scores are not finite
        numbers, fails, and its episodes have the `error`.
        """
        try:
            return self._judged(episodes)
        except UserError:
            raise
        except Exception:  # of any kind: judges are code of others
            groups: dict[tuple[int, int], list[Episode]] = {}
            for episode in episodes:
                groups.setdefault(group_key(episode), []).append(episode)
            return [each for members in groups.values() for each in self._judged_or_failed(members)]

    def _judged(self, episodes: Sequence[Episode]) -> list[Episode]:
        return [
            self._with_scores(episode, scores) for episode, scores in zip(episodes, self.scores(episodes), strict=True)
        ]

    def _judged_or_failed(self, episodes: Sequence[Episode]) -> list[Episode]:
        try:
            return self._judged(episodes)
        except Exception as error:
            return [self._failed(episode, described(error)) for episode in episodes]

    def _with_scores(self, episode: Episode, scores: Sequence[float]) -> Episode:
        if not all(map(math.isfinite, scores)):
            return self._failed(episode, "it gave no score")
        steps = [
            replace(step, reward=step.reward + self.weight * score)
            for step, score in zip(episode.steps, scores, strict=True)
        ]
        score = sum(scores) / len(scores) if self.scores_steps else scores[-1]
        return _with_info(replace(episode, steps=tuple(steps)), self.name, score)

    def _failed(self, episode: Episode, reason: str) -> Episode:
        return _with_info(episode, self.name, 0.0, error=f"the judge {self.name} failed: {reason}")


def _with_info(episode: Episode, name: str, score: float, **more: str) -> Episode:
    """The episode with one more part in `info["rewards"]` of its last step."""
    last = episode.steps[-1]
    info = {**last.info, "rewards": {**last.info.get("rewards", {}), name: score}, **more}
    return replace(episode, steps=(*episode.steps[:-1], replace(last, info=info)))


def at_last_steps(scores: Iterable[float], episodes: Sequence[Episode]) -> list[list[float]]:
    """One score per episode as the score of its last step."""
    return [[0.0] * (len(episode.steps) - 1) + [float(score)] for episode, score in zip(episodes, scores, strict=True)]
