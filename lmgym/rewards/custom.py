"""User-defined rewards, imported by name: `module:function`, alone or in a weighted sum."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmgym.errors import UserError
from lmgym.lookup import import_named, import_path
from lmgym.rewards.reward import Reward
from lmgym.types import Problem


@dataclass(frozen=True)
class TRLReward:
    """A reward function of TRL: it gets lists of prompts and completions and the columns of the dataset as lists."""

    function: Callable[..., Any]

    def __call__(self, problem: Problem, text: str) -> float:
        columns: dict[str, Any] = {"answer": problem.answer, "solution": problem.solution, **problem.info}
        lists = {name: [value] for name, value in columns.items() if name not in ("prompts", "completions")}
        rewards = self.function(prompts=[problem.prompt], completions=[text], **lists)
        if inspect.isawaitable(rewards):
            rewards = asyncio.run(_awaited(rewards))
        if len(rewards) != 1:
            raise UserError(f"{self.function.__name__} returned {len(rewards)} rewards for one completion.")
        # TRL leaves out a reward that is None.
        return 0.0 if rewards[0] is None else rewards[0]


@dataclass(frozen=True)
class AsyncReward:
    """A reward that is a coroutine."""

    function: Callable[..., Any]

    def __call__(self, problem: Problem, text: str) -> float:
        return asyncio.run(_awaited(self.function(problem, text)))


def load_reward(place: str) -> Reward:
    """A function of (problem, text) or of TRL, or a weighted sum; one that cannot be called is an error at once."""
    from lmgym.rewards.weighted import parse_weighted

    is_one_name = place.count(":") == 1 and all(part.replace(".", "").isidentifier() for part in place.split(":"))
    return _imported(place) if is_one_name else parse_weighted(place, _imported)


def spelled_reward(reward: Any) -> str | None:
    """What `load_reward` makes this reward of again, or None."""
    from lmgym.rewards.weighted import WeightedReward

    if isinstance(reward, WeightedReward):
        return reward.expression
    return import_path(reward.function if isinstance(reward, TRLReward | AsyncReward) else reward)


def _imported(place: str) -> Reward:
    found = import_named(place)
    if not callable(found) or isinstance(found, type):
        raise UserError(f"{place} is not a reward: it is {_kind(found)}, and must be a function of (problem, text).")
    signature = inspect.signature(found)
    if {"prompts", "completions"} <= set(signature.parameters):
        return TRLReward(found)
    try:
        signature.bind("problem", "text")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{place} is not a reward: it must be callable as reward(problem, text), but {error}."
        ) from error
    return AsyncReward(found) if inspect.iscoroutinefunction(found) else found


async def _awaited(value: Any) -> Any:
    return await value


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
