"""What the exports share: the first messages of a problem, and an episode that is one action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmgym.envs.env import Env
from lmgym.envs.mixture import Mixture
from lmgym.envs.wrappers.tool_env import ToolEnv
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.errors import UserError
from lmgym.policies.system_prompts import default_system_prompt
from lmgym.types import Action, Message

MOST_PROBLEMS = 1_000_000
"""An environment with more problems generates them, and cannot be exported as a whole."""


def exportable(env: Env) -> Env:
    """A copy of the environment to play in, if one completion of a model is one of its actions."""
    parts = list(_parts(env))
    if any(isinstance(part, ToolEnv) for part in parts):
        raise UserError(
            "An environment with tools cannot be exported: make it without them, and use the library's own."
        )
    if any(part.players > 1 for part in parts):
        raise UserError(f"{name_of(env)} is played by several episodes at once: make it with an opponent.")
    if any(getattr(part, "stepwise", False) for part in parts):
        raise UserError(
            f"{name_of(env)} takes one line as an action, but a completion is a whole answer: make it with "
            "stepwise=False."
        )
    return env.clone()


def _parts(env: Env) -> Iterator[Env]:
    """The environment and those that it wraps or mixes."""
    yield env
    inner = env.members.values() if isinstance(env, Mixture) else [env.env] if isinstance(env, EnvWrapper) else []
    for each in inner:
        yield from _parts(each)


def name_of(env: Env) -> str:
    """The name that the environment was made with, or that of its class."""
    return env.made_from.name if env.made_from else type(env).__name__


def problem_count(env: Env, problems: int | None) -> int:
    """How many problems to export: the first `problems`, or all."""
    size = len(env.problems)
    if problems is None and size > MOST_PROBLEMS:
        raise UserError(f"{name_of(env)} generates its problems: say how many to export, such as problems=1000.")
    if problems is not None and not 1 <= problems <= size:
        raise UserError(f"problems is {problems}: {name_of(env)} has 1 to {size:,} of them.")
    return size if problems is None else problems


def first_messages(env: Env, index: int, system_prompt: str | None) -> list[Message]:
    """The conversation before the first action; by default the system prompt is that of lmgym's chat policy."""
    state, _ = env.reset(seed=index, options={"index": index})
    prompt = default_system_prompt(env, stepwise=False) if system_prompt is None else system_prompt
    system: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
    return [*system, *state.messages]


def play(env: Env, index: int, text: str) -> tuple[float, dict[str, Any]]:
    """The reward and the info of an episode whose only action is `text`."""
    env.reset(seed=index, options={"index": index})
    _, reward, terminated, truncated, info = env.step(Action(text, finish="eos"))
    if not terminated and not truncated:
        raise UserError(
            f"An episode of {name_of(env)} has several turns, but a completion is one: in TRL, use environment_factory."
        )
    return reward, info
