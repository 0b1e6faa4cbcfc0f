"""Judges that answer in words: numbers from 1 to 10, yes or no, or the letter of the best sample."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import ClassVar

import torch
from torch import Tensor

from lmgym.buffer import group_key
from lmgym.errors import UserError
from lmgym.judges.endpoint import Endpoint
from lmgym.judges.judge import Judge, at_last_steps
from lmgym.judges.questions import Ask, before_and_step, filled, load_judge_prompt, shipped_prompt
from lmgym.types import Episode, Message

NUMBERS = tuple(map(str, range(1, 11)))
YES_OR_NO = ("yes", "no")


def expected_score(probabilities: Tensor) -> Tensor:
    """The expected number [chats] of probabilities of 1 to 10 [chats, 10], from 0 for a certain 1 to 1 for a 10."""
    return (probabilities * torch.linspace(0, 1, len(NUMBERS))).sum(-1)


class VerbalJudge(Judge):
    """A judge that asks a language model; its prompts are shipped, or files of the user."""

    default_prompt: ClassVar[str]
    """Names of shipped prompts, separated by commas."""
    values: ClassVar[tuple[str, ...]] = ("problem", "answer", "before", "step")
    """What a prompt may contain in braces; the last one is what is judged."""
    answers: ClassVar[tuple[str, ...]]
    """What the model may answer."""

    def __init__(
        self, ask: Ask, weight: float = 1.0, prompt: str = "", model_name: str | None = None, url: str = ""
    ) -> None:
        """`prompt` names shipped prompts or files, separated by commas."""
        super().__init__(weight, prompt, model_name, url)
        self.ask = ask
        given = prompt.split(",") if prompt else []
        self.templates = [load_judge_prompt(each, self.values) for each in given]
        self.templates = self.templates or [shipped_prompt(each) for each in self.default_prompt.split(",")]

    def check(self, group_size: int) -> None:
        """Refuses an endpoint that cannot tell the answers apart."""
        if isinstance(self.ask, Endpoint):
            self.ask.check(self.answers)


class StepwiseVerbalReward(VerbalJudge):
    """Scores every step with the expected value over the numbers 1 to 10."""

    name = default_prompt = "step"
    answers = NUMBERS

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One question per step, all in one batch."""
        chats = [
            filled(self.templates[0], **_of(episode), before=before, step=step)
            for episode in episodes
            for before, step in before_and_step(episode)
        ]
        return _by_step(expected_score(self.ask(chats, self.answers)), episodes)


class MultiDimensionVerbalReward(VerbalJudge):
    """Averages the probability of yes over several questions on every step, by default value, soundness, progress.

    A bonus for the final answer is the environment's own reward, to which the judge's is added.
    """

    name = "dimensions"
    default_prompt = "value,soundness,progress"
    answers = YES_OR_NO

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """As many questions per step as there are dimensions."""
        chats = [
            filled(template, **_of(episode), before=before, step=step)
            for episode in episodes
            for before, step in before_and_step(episode)
            for template in self.templates
        ]
        yes = self.ask(chats, self.answers)[:, 0].view(-1, len(self.templates)).mean(-1)
        return _by_step(yes, episodes)


class EpisodeVerbalReward(VerbalJudge):
    """Scores the whole solution with the expected value over the numbers 1 to 10; the reward is of the last step."""

    name = default_prompt = "episode"
    values = ("problem", "answer", "solution")
    answers = NUMBERS
    scores_steps = False

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One question per episode."""
        return at_last_steps(expected_score(self.ask(self._questions(episodes), self.answers)), episodes)

    def _questions(self, episodes: Sequence[Episode]) -> list[list[Message]]:
        return [filled(self.templates[0], **_of(episode), solution=episode.text.strip()) for episode in episodes]


class AnswerVerbalReward(EpisodeVerbalReward):
    """Compares a solution with the reference answer: the score is the probability of yes, for the last step."""

    name = default_prompt = "answer"
    answers = YES_OR_NO

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One question per episode."""
        return at_last_steps(self.ask(self._questions(episodes), self.answers)[:, 0], episodes)


class GroupVerbalReward(VerbalJudge):
    """Asks which sample of a group is the best; the score is its probability, over two orders of the samples."""

    name = default_prompt = "group"
    values = ("problem", "answer", "count", "solutions")
    answers = tuple(ascii_uppercase)
    scores_steps = False

    def check(self, group_size: int) -> None:
        """Refuses groups with more samples than letters."""
        if group_size > len(self.answers):
            raise UserError(f"a judge can compare at most {len(self.answers)} samples of a group, not {group_size}.")
        super().check(group_size)

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Two questions per group, the second one with its samples in reverse, because judges prefer early letters."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index, episode in enumerate(episodes):
            groups.setdefault(group_key(episode), []).append(index)
        found = [0.0] * len(episodes)
        for members in groups.values():
            self.check(len(members))
            orders = (members, members[::-1])
            chats = [self._question([episodes[index] for index in order]) for order in orders]
            for order, probabilities in zip(orders, self.ask(chats, self.answers[: len(members)]), strict=True):
                for index, probability in zip(order, probabilities.tolist(), strict=True):
                    found[index] += probability / len(orders)
        return at_last_steps(found, episodes)

    def _question(self, episodes: Sequence[Episode]) -> list[Message]:
        solutions = "\n\n".join(
            f"{letter}:\n{episode.text.strip()}" for letter, episode in zip(ascii_uppercase, episodes, strict=False)
        )
        return filled(self.templates[0], **_of(episodes[0]), count=str(len(episodes)), solutions=solutions)


def _of(episode: Episode) -> dict[str, str]:
    """What a prompt may say of the problem."""
    return {"problem": episode.problem.prompt, "answer": episode.problem.answer}


def _by_step(scores: Tensor, episodes: Sequence[Episode]) -> list[list[float]]:
    """Splits the scores of all steps by their episodes."""
    return [part.tolist() for part in scores.split([len(episode.steps) for episode in episodes])]


JUDGES: dict[str, type[VerbalJudge]] = {
    kind.name: kind
    for kind in (
        StepwiseVerbalReward,
        MultiDimensionVerbalReward,
        EpisodeVerbalReward,
        AnswerVerbalReward,
        GroupVerbalReward,
    )
}
"""By the names of `--judge`."""
