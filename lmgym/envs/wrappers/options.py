"""The options that every environment takes, and the wrappers that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lmgym.envs.env import Env
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.wrappers.few_shot_prompt import FewShotPrompt
from lmgym.envs.wrappers.recording import Recording
from lmgym.envs.wrappers.reward_shaping import RewardShaping
from lmgym.envs.wrappers.tool_env import ToolEnv, load_tools
from lmgym.envs.wrappers.turn_limit import TurnLimit
from lmgym.lookup import import_named

WRAPPER_OPTIONS = ("tools", "max_calls", "turn_limit", "few_shot", "shaping", "record")


def wrapped(env: Env, options: Mapping[str, Any], training: Callable[[], Env]) -> Env:
    """The environment within the wrappers that the options name; `training` makes its training split."""
    if options.get("tools"):
        env = ToolEnv(env, load_tools(options["tools"]), int(options.get("max_calls", 4)))
    if options.get("turn_limit"):
        env = TurnLimit(env, int(options["turn_limit"]))
    if options.get("few_shot"):
        env = FewShotPrompt(env, few_shot_examples(training(), int(options["few_shot"])))
    if options.get("shaping"):
        shaping = options["shaping"]
        env = RewardShaping(env, import_named(shaping) if isinstance(shaping, str) else shaping)
    if options.get("record"):
        env = Recording(env, options["record"])
    return env
