"""The base class of environments: a gymnasium.Env whose observations are conversations and whose actions are text."""

from __future__ import annotations

import copy
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium
from gymnasium.error import ResetNeeded

from lmgym.envs.random_sources import is_random_source, reseed
from lmgym.errors import UserError
from lmgym.rewards.reward import checked_reward
from lmgym.types import Action, Finish, Problem, State

EnvType = TypeVar("EnvType", bound="Env")

LARGE_COPY = 1_000_000
"""An attribute of more bytes than this should be shared between episodes."""


class TextSpace(gymnasium.Space[str]):
    """The space of all texts."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A line that states a random answer."""
        left, right = self.np_random.integers(100, size=2)
        return f"The answer is: {left + right}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)


class StateSpace(gymnasium.Space[State]):
    """The space of all states; samples are initial states of the given problems."""

    def __init__(self, problems: Sequence[Problem] = ()) -> None:
        super().__init__()
        self.problems = problems

    def contains(self, x: Any) -> bool:
        return isinstance(x, State)

    def sample(self, mask: Any = None, probability: Any = None) -> State:
        """The initial state of a random problem."""
        if not len(self.problems):
            return State(Problem("none", "", ""), ())
        return first_state(self.problems[int(self.np_random.integers(len(self.problems)))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSpace)


@dataclass(frozen=True)
class MadeFrom:
    """The name, the split and the options from which an environment can be made again."""

    name: str
    split: str
    options: dict[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> MadeFrom:
        """Returns itself: it is immutable, and the environments of all episodes share it."""
        return self


@dataclass(frozen=True)
class Response:
    """The response of an environment to an action."""

    reward: float = 0.0
    reply: str = ""
    """The reply to the policy; empty if the environment only waits for more of the same message."""
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    role: Literal["user", "tool"] = "user"
    """Who replies: the environment as the user, or a tool that the policy has called."""


class Env(gymnasium.Env[State, str]):
    """A task that is a sequence of problems; a subclass implements `respond`, its response to an action."""

    concurrency: int = 1
    """How many episodes may be stepped at once, in threads; more than 1 if `respond` waits for a tool or a network."""

    players: int = 1
    """How many episodes of a group play each other: `VectorEnv` steps them together, and `others` has their actions."""

    others: tuple[Action, ...] = ()
    """While `respond` runs, the actions of the other players; of one whose episode has ended there is none."""

    max_step_seconds: float = 60.0
    """An episode whose step takes longer fails, and costs neither the other episodes nor the run."""

    shared_attributes: ClassVar[tuple[str, ...]] = ("problems", "observation_space", "action_space", "spec", "metadata")
    """Attributes that all episodes share and none changes; every other attribute is copied for each episode."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not len(problems):
            raise UserError("The dataset is empty: an environment needs at least one problem.")
        self.problems = problems
        self.observation_space = StateSpace(problems)
        self.action_space = TextSpace()
        self._state: State | None = None

    iteration: int = 0
    """The iteration of the run that samples the episodes, for rewards that change over it."""

    made_from: MadeFrom | None = None
    """The arguments of `lmgym.make`, for the config.json of a run."""

    _copied_sources: tuple[Any, ...] = ()
    _is_size_checked: bool = False

    @property
    def state(self) -> State:
        """The current state; while `respond` runs, still the state before the action."""
        if self._state is None:
            raise ResetNeeded("The episode has ended or not started: call reset() before step().")
        return self._state

    @property
    def episode_info(self) -> dict[str, Any]:
        """What the `info` of the last step says of every episode, also of one that failed."""
        return {}

    @abstractmethod
    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The response to the action `text`, which is already in `state.messages` and which ended by `finish`."""

    def opening(self, problem: Problem) -> str:
        """The first message of an episode; override it to set up a game."""
        return problem.prompt

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Starts an episode, on a random problem or the one chosen by `options={"index": i}`.

        `seed` seeds `np_random` and every random source that is an attribute or, in a clone, was copied with one.
        """
        super().reset(seed=seed)
        if seed is not None:
            reseed([*self._own_sources(), *self._copied_sources], seed)
        index = self._index(options or {})
        self._reset_inner(index, seed)
        problem = self.problems[index]
        self._state = first_state(problem, self.opening(problem))
        return self._state, {}

    def _reset_inner(self, index: int, seed: int | None) -> None:
        """Resets the environment that this one passes actions on to, if there is one."""

    def step(self, action: str | Action) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Appends the action to the conversation and returns the state, reward, terminated, truncated and info.

        An `Action` has its own finish; for a plain text it is "stop".
        """
        before = self.state
        if isinstance(action, str):
            action = Action(action)
        if not isinstance(action, Action):
            raise UserError(f"An action is a text or an lmgym.Action, but step() was given {type(action).__name__}.")
        response = self.respond(before.after(action.text), action.text, action.finish)
        if not isinstance(response, Response):
            raise UserError(f"{type(self).__name__}.respond returned {response!r:.60}: return an lmgym.Response.")
        reward = checked_reward(response.reward, self.respond, before.problem)
        state = before.after(action.text, response.reply, response.role)
        self._state = None if response.terminated or response.truncated else state
        # The policy continues these ids; the environment itself never sees them.
        state = replace(state, tokens=action.prompt_ids + action.token_ids)
        return state, reward, response.terminated, response.truncated, response.info

    def set_iteration(self, iteration: int) -> None:
        """Episodes that start from now on are of this iteration of a run."""
        self.iteration = iteration

    def clone(self: EnvType) -> EnvType:
        """A copy of the environment on the same problems, for a parallel episode."""
        clone = copy.copy(self)
        clone._state = None
        clone._np_random = None
        clone._np_random_seed = None
        attributes = vars(clone)
        # A bound method of this environment must be rebound to the clone, wherever it is stored.
        shared = {
            name: value
            for name, value in attributes.items()
            if name in self.shared_attributes and getattr(value, "__self__", None) is not self
        }
        memo: dict[int, Any] = {id(self): clone, **{id(value): value for value in shared.values()}}
        given = len(memo)
        for name, value in attributes.items():
            before = len(memo)
            try:
                attributes[name] = copy.deepcopy(value, memo)
            except Exception as error:
                raise UserError(
                    f"{type(self).__name__} cannot run several episodes at once: its attribute {name!r} cannot be "
                    f"copied ({error}); make it in opening(), or list it in shared_attributes if no episode changes it."
                ) from error
            if not self._is_size_checked:
                self._warn_if_large(name, _copies(memo, before))
        self._is_size_checked = clone._is_size_checked = True
        clone._copied_sources = tuple(copied for copied in _copies(memo, given) if is_random_source(copied))
        return clone

    def __deepcopy__(self: EnvType, memo: dict[int, Any]) -> EnvType:
        """An environment within another one is cloned with it."""
        return self.clone()

    def _own_sources(self) -> list[Any]:
        """The random sources among the attributes that episodes do not share."""
        excluded = {"_np_random", *self.shared_attributes}
        return [value for name, value in vars(self).items() if name not in excluded and is_random_source(value)]

    def _warn_if_large(self, name: str, copies: Iterable[Any]) -> None:
        """Warns of a large attribute that is copied for every episode."""
        size = sum(map(sys.getsizeof, copies))
        if size > LARGE_COPY:
            gymnasium.logger.warn(
                f"{type(self).__name__} copies its attribute {name!r}, {size / 1e6:.0f} MB, for every episode; "
                "list it in shared_attributes if no episode changes it."
            )

    def _index(self, options: dict[str, Any]) -> int:
        unknown = sorted(set(options) - {"index"})
        if unknown:
            raise UserError(f'reset() takes the option "index", but was given "{unknown[0]}".')
        if "index" not in options:
            return int(self.np_random.integers(len(self.problems)))
        index, count = options["index"], len(self.problems)
        if isinstance(index, bool) or not hasattr(index, "__index__") or not 0 <= index < count:
            raise UserError(f"There is no problem {index!r}: the index must be an integer from 0 to {count - 1}.")
        return int(index)


def _copies(memo: dict[int, Any], first: int) -> list[Any]:
    """The copies in deepcopy's memo from entry `first` on; its list of objects to keep alive is not a copy."""
    return [value for key, value in list(memo.items())[first:] if key != id(memo)]


def first_state(problem: Problem, opening: str | None = None) -> State:
    """The initial state: a conversation that holds only the problem."""
    return State(problem, ({"role": "user", "content": problem.prompt if opening is None else opening},))
