"""What all judges share: they add rewards to the steps of episodes, and keep each value under the judge's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from lmgym.errors import UserError
from lmgym.judges.answer_probabilities import answer_probabilities
from lmgym.models.language_model import LanguageModel
from lmgym.types import Episode, Message

Ask = Callable[[Sequence[Sequence[Message]], Sequence[str]], Tensor]
"""Probabilities [chats, answers] of the given answers."""

EMPTY = "(nothing yet)"


class Judge(ABC):
    """Scores the steps of episodes from 0 to 1; the reward of a step grows by the weight times its score."""

    name: ClassVar[str]
    default_prompt: ClassVar[str]
    """Shipped prompts, separated by commas."""
    scores_steps: ClassVar[bool] = True
    """Whether every step has a score, or only the last one, for the whole episode."""

    def __init__(self, ask: Ask, weight: float = 1.0, prompt: str = "", model_name: str | None = None) -> None:
        """`prompt` names shipped prompts or files, separated by commas; `model_name` is what --judge_model says."""
        self.ask = ask
        self.weight = weight
        self.prompt = prompt
        self.model_name = model_name
        self.templates = [load_judge_prompt(each) for each in (prompt or self.default_prompt).split(",")]

    @abstractmethod
    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """A score for each step of each episode."""

    def judged(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with the judge's rewards; `info["rewards"]` of the last step has the score of the episode."""
        return [
            self._with_scores(episode, scores) for episode, scores in zip(episodes, self.scores(episodes), strict=True)
        ]

    def _with_scores(self, episode: Episode, scores: Sequence[float]) -> Episode:
        steps = [
            replace(step, reward=step.reward + self.weight * score)
            for step, score in zip(episode.steps, scores, strict=True)
        ]
        score = sum(scores) / len(scores) if self.scores_steps else scores[-1]
        parts = {**steps[-1].info.get("rewards", {}), self.name: score}
        steps[-1] = replace(steps[-1], info={**steps[-1].info, "rewards": parts})
        return replace(episode, steps=tuple(steps))


def asking(model: LanguageModel) -> Ask:
    """Asks a model of this process."""
    return lambda chats, answers: answer_probabilities(model, chats, answers)


def load_judge_prompt(name_or_path: str) -> str:
    """The text of a shipped prompt (`step`), or of a user's own file."""
    path = Path(name_or_path)
    if path.is_file():
        return path.read_text(encoding="utf-8")
    shipped = files("lmgym.judges") / "prompts" / f"{name_or_path}.txt"
    if not shipped.is_file():
        raise UserError(f"there is no prompt {name_or_path!r} for a judge: give the path of a text file.")
    return shipped.read_text(encoding="utf-8")


def filled(template: str, **values: str) -> list[Message]:
    """One question to the judge; braces within the values stay as they are."""
    for name, value in values.items():
        if f"{{{name}}}" not in template:
            continue
        template = template.replace(f"{{{name}}}", value.replace("{", "\x02").replace("}", "\x03"))
    return [{"role": "user", "content": template.replace("\x02", "{").replace("\x03", "}").strip()}]


def before_and_step(episode: Episode) -> list[tuple[str, str]]:
    """For each step, all that the policy wrote before it, and its own text."""
    pairs: list[tuple[str, str]] = []
    written = ""
    for step in episode.steps:
        pairs.append((written.strip() or EMPTY, step.action.text.strip()))
        written += step.action.text
    return pairs
