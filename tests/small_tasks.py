"""Small tasks for tiny models, and a run that remembers."""

from __future__ import annotations

from dataclasses import replace

from conftest import tiny_model

from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.envs.env import Env, Response
from lmgym.models.language_model import LanguageModel
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.runs.run import Run
from lmgym.types import Finish, Problem, State

TRAIN = [Problem(str(index), f"Q{index}", "a") for index in range(8)]
TEST = [Problem(str(index), f"T{index}", "a") for index in range(4)]


class Vowel(Env):
    """One turn; a vowel earns 1."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        return Response(reward=float(any(vowel in text for vowel in "aeiou")), terminated=True)


class Nothing(Env):
    """One turn that earns nothing."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        return Response(terminated=True)


class TwoTurns(Env):
    """Two turns with a reply in between; each earns 0.5 for a vowel of its own."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        reward = 0.5 * any(vowel in text for vowel in "aeiou")
        return Response(reward, reply="more" if state.turn == 1 else "", terminated=state.turn == 2)


class Uneven(TwoTurns):
    """The same, but about half of the episodes are over after their first turn."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        response = super().respond(state, text, finish)
        return replace(response, terminated=response.terminated or bool(self.np_random.random() < 0.5))


class Remembering(Run):
    """A run that keeps its metrics in memory too."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.history: list[dict[str, float]] = []
        self.warnings: list[str] = []

    def log(self, iteration, metrics) -> None:
        self.history.append(dict(metrics))
        super().log(iteration, metrics)

    def warn(self, text) -> None:
        self.warnings.append(text)
        super().warn(text)


def chat(
    model: LanguageModel | None = None, kind: type[ChatPolicy] = ChatPolicy, temperature: float = 1.0
) -> ChatPolicy:
    return kind(model or tiny_model(size=32), (), "", max_tokens=4, temperature=temperature)


def rewards(algorithm: RLAlgorithm) -> list[float]:
    assert isinstance(algorithm.run, Remembering)
    return [metrics["reward"] for metrics in algorithm.run.history]
