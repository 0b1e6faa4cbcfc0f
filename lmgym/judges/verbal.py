"""Judges that answer in words: numbers from 1 to 10, yes or no, or the letter of the best sample."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.buffer import group_key
from lmgym.errors import UserError
from lmgym.judges.judge import Judge
from lmgym.judges.questions import Ask, before_and_step, filled, load_judge_prompt
from lmgym.types import Episode, Message

NUMBERS = tuple(map(str, range(1, 11)))


def expected_score(probabilities: Tensor) -> Tensor:
    """The expected number [chats] of probabilities of 1 to 10 [chats, 10], from 0 for a certain 1 to 1 for a 10."""
    return (probabilities * torch.linspace(0, 1, len(NUMBERS))).sum(-1)


class VerbalJudge(Judge):
    """A judge that asks a language model; its prompts are shipped, or files of the user."""

    default_prompt: ClassVar[str]
    """Names of shipped prompts, separated by commas."""

    def __init__(
        self, ask: Ask, weight: float = 1.0, prompt: str = "", model_name: str | None = None, url: str = ""
    ) -> None:
        """`prompt` names shipped prompts or files, separated by commas."""
        super().__init__(weight, prompt, model_name, url)
        self.ask = ask
        self.templates = [load_judge_prompt(each) for each in (prompt or self.default_prompt).split(",")]


class StepwiseVerbalReward(VerbalJudge):
    """Scores every step with the expected value over the numbers 1 to 10."""

    name = default_prompt = "step"

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One question per step, all in one batch."""
        chats = [
            filled(self.templates[0], problem=episode.problem.prompt, before=before, step=step)
            for episode in episodes
            for before, step in before_and_step(episode)
        ]
        return _by_step(expected_score(self.ask(chats, NUMBERS)), episodes)


class MultiDimensionVerbalReward(VerbalJudge):
    """Averages the probability of yes over several questions on every step, by default value, soundness, progress.

    A bonus for the final answer is the environment's own reward, to which the judge's is added.
    """

    name = "dimensions"
    default_prompt = "value,soundness,progress"

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """As many questions per step as there are dimensions."""
        chats = [
            filled(template, problem=episode.problem.prompt, before=before, step=step)
            for episode in episodes
            for before, step in before_and_step(episode)
            for template in self.templates
        ]
        yes = self.ask(chats, ("yes", "no"))[:, 0].view(-1, len(self.templates)).mean(-1)
        return _by_step(yes, episodes)


class EpisodeVerbalReward(VerbalJudge):
    """Scores the whole solution with the expected value over the numbers 1 to 10; the reward is of the last step."""

    name = default_prompt = "episode"
    scores_steps = False

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One question per episode."""
        chats = [
            filled(self.templates[0], problem=episode.problem.prompt, solution=episode.text.strip())
            for episode in episodes
        ]
        return [
            [0.0] * (len(episode.steps) - 1) + [float(score)]
            for episode, score in zip(episodes, expected_score(self.ask(chats, NUMBERS)), strict=True)
        ]


class GroupVerbalReward(VerbalJudge):
    """Asks which sample of a group is the best; the score is its probability, over two orders of the samples."""

    name = default_prompt = "group"
    scores_steps = False

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Two questions per group, the second one with its samples in reverse, because judges prefer early letters."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index, episode in enumerate(episodes):
            groups.setdefault(group_key(episode), []).append(index)
        found = [0.0] * len(episodes)
        for members in groups.values():
            if len(members) > len(ascii_uppercase):
                raise UserError(f"a judge can compare at most {len(ascii_uppercase)} samples of a group.")
            orders = (members, members[::-1])
            chats = [self._question([episodes[index] for index in order]) for order in orders]
            for order, probabilities in zip(orders, self.ask(chats, ascii_uppercase[: len(members)]), strict=True):
                for index, probability in zip(order, probabilities.tolist(), strict=True):
                    found[index] += probability / len(orders)
        return [[0.0] * (len(episode.steps) - 1) + [score] for episode, score in zip(episodes, found, strict=True)]

    def _question(self, episodes: Sequence[Episode]) -> list[Message]:
        solutions = "\n\n".join(
            f"{letter}:\n{episode.text.strip()}" for letter, episode in zip(ascii_uppercase, episodes, strict=False)
        )
        return filled(
            self.templates[0], problem=episodes[0].problem.prompt, count=str(len(episodes)), solutions=solutions
        )


def _by_step(scores: Tensor, episodes: Sequence[Episode]) -> list[list[float]]:
    """Splits the scores of all steps by their episodes."""
    return [part.tolist() for part in scores.split([len(episode.steps) for episode in episodes])]


JUDGES: dict[str, type[VerbalJudge]] = {
    kind.name: kind
    for kind in (StepwiseVerbalReward, MultiDimensionVerbalReward, EpisodeVerbalReward, GroupVerbalReward)
}
"""By the names of `--judge`."""
