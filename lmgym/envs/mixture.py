"""A weighted mixture of environments in one task: `lmgym.make("word-problems + 0.5*guess-number(largest=8)")`.

    index of the mixture ── pattern of 100 places, by weight ──► member, index of the member

A member's own problems come in the order of a permutation, or as they are if it is endless, so none is repeated before
all have been used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmgym.envs.env import Env, Response
from lmgym.envs.options import literal
from lmgym.envs.procedural import LENGTH, EndlessProblems
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State

PLACES = 100
"""Weights are rounded to this share."""

_MEMBER = re.compile(
    r"\s*(?:(?P<weight>\d+(?:\.\d*)?|\.\d+)\s*\*\s*)?(?P<name>[^\s*+()]+)(?:\((?P<options>[^()]*)\))?\s*"
)


@dataclass(frozen=True)
class Member:
    """One environment of a mixture, before it is made."""

    name: str
    weight: float
    options: dict[str, Any]


def is_mixture(name: str) -> bool:
    """Whether the name of an environment is a sum."""
    return " + " in name


def parse_mixture(expression: str) -> list[Member]:
    """The members of a sum such as `gsm8k + 0.5*guess-number(largest=8)`."""
    members: list[Member] = []
    for part in expression.split(" + "):
        match = _MEMBER.fullmatch(part)
        if match is None:
            raise UserError(
                f"--env {expression!r} cannot be read at {part.strip()!r}: write a sum of names such as "
                '"gsm8k + 0.5*guess-number(largest=8)".'
            )
        members.append(Member(match["name"], float(match["weight"] or 1), _options(match["options"] or "")))
    if len({member.name for member in members}) < len(members):
        raise UserError(f"--env {expression!r} names an environment twice.")
    if min(member.weight for member in members) <= 0:
        raise UserError(f"--env {expression!r} has a weight of 0: leave that environment out.")
    return members


class Mixture(Env):
    """Each episode is one of a member; `info["env"]` of its last step names it, so that every member has its own curve.

    If members state their answers differently, each opening ends with how to do it.
    """

    def __init__(self, members: Mapping[str, Env], weights: Sequence[float], seed: int = 0) -> None:
        self.mixed = MixtureProblems([env.problems for env in members.values()], weights, seed)
        super().__init__(self.mixed)
        self.members = dict(members)
        self.concurrency = max(env.concurrency for env in members.values())
        self.max_step_seconds = max(env.max_step_seconds for env in members.values())
        self.member = next(iter(members))
        """The name of the environment that is being played."""
        if any(env.players > 1 for env in members.values()):
            raise UserError("self-play cannot be part of a mixture: give it an opponent, number-race(opponent=random).")

    shared_attributes = (*Env.shared_attributes, "mixed")

    def __getattr__(self, name: str) -> Any:
        """What all members have alike, such as `answer_form` or `instruction`, and the largest `max_steps`."""
        if name.startswith("_") or name in ("members", "mixed"):
            raise AttributeError(name)
        if name == "max_steps":
            found = [env.max_steps for env in self.members.values() if hasattr(env, name)]  # type: ignore[attr-defined]
            return max(found, default=1)
        found = [getattr(env, name) for env in self.members.values()]
        if any(each != found[0] for each in found):
            raise AttributeError(f"the environments of this mixture differ in {name}")
        return found[0]

    def set_iteration(self, iteration: int) -> None:
        """Tells the members too."""
        super().set_iteration(iteration)
        for env in self.members.values():
            env.set_iteration(iteration)

    @property
    def episode_info(self) -> dict[str, Any]:
        """The name of the member."""
        return {"env": self.member}

    def _reset_inner(self, index: int, seed: int | None) -> None:
        """Starts an episode of the member to which the problem belongs."""
        number, inner = self.mixed.place(index)
        self.member = list(self.members)[number]
        self.members[self.member].reset(seed=seed, options={"index": inner})

    def opening(self, problem: Problem) -> str:
        """That of the member, which has just been reset."""
        env = self.members[self.member]
        opening, instruction = env.state.messages[-1]["content"], getattr(env, "instruction", "")
        is_said = not instruction or hasattr(self, "instruction")  # once, in the system prompt
        return opening if is_said else f"{opening}\n{instruction}"

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The response of the member."""
        env = self.members[self.member]
        env._state = self.state
        response = env.respond(state, text, finish)
        return replace(response, info={**response.info, **self.episode_info})


class MixtureProblems(EndlessProblems):
    """The problems of several tasks, as many of each in a hundred as its weight says."""

    def __init__(self, tasks: Sequence[Sequence[Problem]], weights: Sequence[float], seed: int) -> None:
        self.tasks = list(tasks)
        self.seed = seed
        self.pattern = _pattern([weight / sum(weights) for weight in weights])
        missing = [number for number in range(len(tasks)) if number not in self.pattern]
        if missing:
            raise UserError(f"a weight of {weights[missing[0]]:g} is less than 1 % of the mixture.")

    def place(self, index: int) -> tuple[int, int]:
        """The task of a problem, by number, and its index there."""
        block, position = divmod(index, PLACES)
        task = self.pattern[position]
        rank = block * self.pattern.count(task) + self.pattern[:position].count(task)
        size = len(self.tasks[task])
        if size == LENGTH:
            return task, rank % LENGTH
        return task, int(self._order(task, rank // size)[rank % size])

    def at(self, index: int) -> Problem:
        """The problem of one of the tasks."""
        task, inner = self.place(index)
        return self.tasks[task][inner]

    @property
    def finite(self) -> list[Sequence[Problem]]:
        """The tasks that are not endless."""
        return [task for task in self.tasks if len(task) < LENGTH]

    @functools.cached_property
    def _orders(self) -> dict[tuple[int, int], Any]:
        return {}

    def _order(self, task: int, epoch: int) -> Any:
        """The order in which an epoch takes the problems of a finite task."""
        if (task, epoch) not in self._orders:
            self._orders[task, epoch] = np.random.default_rng([self.seed, task, epoch]).permutation(
                len(self.tasks[task])
            )
        return self._orders[task, epoch]


def _pattern(shares: Sequence[float]) -> list[int]:
    """The tasks of a hundred places, spread evenly: each place goes to the task that is most behind its share."""
    pattern: list[int] = []
    for place in range(1, PLACES + 1):
        behind = [share * place - pattern.count(task) for task, share in enumerate(shares)]
        pattern.append(behind.index(max(behind)))
    return pattern


def _options(text: str) -> dict[str, Any]:
    """The options within brackets, `largest=8, max_turns=4`."""
    pairs = [part.split("=", 1) for part in re.split(r",\s*(?=\w+\s*=)", text) if part.strip()]
    if any(len(pair) != 2 or not pair[1].strip() for pair in pairs):
        raise UserError(f"({text}) are not options: write (name=value, name=value).")
    options = {name.strip(): literal(value.strip()) for name, value in pairs}
    if "tools" in options:
        raise UserError("the policy of a mixture has the same tools everywhere: make tools an option of the mixture.")
    return options
