"""The options that every environment takes, and the wrappers that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lmgym.envs.env import Env
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.wrappers.few_shot_prompt import FewShotPrompt
from lmgym.envs.wrappers.recording import Recording
from lmgym.envs.wrappers.reward_shaping import RewardShaping, Shaping
from lmgym.envs.wrappers.tool_env import ToolEnv, load_tools
from lmgym.envs.wrappers.turn_limit import TurnLimit
from lmgym.errors import UserError
from lmgym.lookup import import_named

WRAPPER_OPTIONS = ("tools", "max_calls", "turn_limit", "few_shot", "shaping", "record")


def wrapped(env: Env, options: Mapping[str, Any], training: Callable[[], Env]) -> Env:
    """The environment within the wrappers that the options name; `training` makes its training split."""
    given = {name: value for name, value in options.items() if value is not None}
    if "max_calls" in given and "tools" not in given:
        raise UserError("max_calls is of tools: name them with the option tools.")
    if "tools" in given:
        env = ToolEnv(env, load_tools(given["tools"]), _whole(given, "max_calls", 4))
    if "turn_limit" in given:
        env = TurnLimit(env, _whole(given, "turn_limit"))
    if "few_shot" in given:
        env = FewShotPrompt(env, few_shot_examples(training(), _whole(given, "few_shot")))
    if "shaping" in given:
        env = RewardShaping(env, _function(given["shaping"]))
    if "record" in given:
        env = Recording(env, str(given["record"]))
    return env


def _whole(options: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{name} is {value!r}: give a whole number.")
    return value


def _function(shaping: Any) -> Shaping:
    found = import_named(shaping) if isinstance(shaping, str) else shaping
    if not callable(found):
        raise UserError(f"shaping is {shaping!r}: give a function of (state, text, response) as module:function.")
    function: Shaping = found
    return function
