"""What config.json says of a run that was put together in Python: the same settings that `lmgym train` would write."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lmgym.algorithms.registry import ALGORITHMS
from lmgym.envs import DatasetFile, find, names, registrations
from lmgym.envs.comparison import is_as_made
from lmgym.envs.env import Env, MadeFrom
from lmgym.envs.options import spelled
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.examples import few_shot_examples
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.system_prompts import TEXT, default_system_prompt

if TYPE_CHECKING:
    from lmgym.algorithms.rl_algorithm import RLAlgorithm
    from lmgym.models.language_model import LanguageModel

KINDS: dict[type, str] = {FewShotLLMStepwiseMathPolicy: "stepwise", ChatPolicy: "chat"}


def describe_run(algorithm: RLAlgorithm) -> dict[str, Any]:
    """Every setting of a run by its flag's name; null stands for what has no name, such as an env made by hand."""
    return {
        "algorithm": algorithm_name(type(algorithm)),
        **asdict(algorithm.config),
        **_task(algorithm),
        **_policy(algorithm),
        **_model(algorithm.policy.model),
        **_reference(algorithm),
    }


def algorithm_name(kind: type) -> str | None:
    """The name by which `lmgym train` finds an algorithm."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, entry in ALGORITHMS.items() if entry.place == place), place_of(kind))


def place_of(thing: Callable[..., Any]) -> str | None:
    """`module:name` of what can be imported again under it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(importlib.import_module(str(module)), name, None) is thing else None


def _task(algorithm: RLAlgorithm) -> dict[str, Any]:
    task = _settings_of(algorithm.envs.env, split="train")
    if algorithm.eval_env is None:
        return task | {"eval_env": "", "eval_problems": 0}
    other = _settings_of(algorithm.eval_env.unwrapped, split="test")  # type: ignore[arg-type]
    if other == task:
        return task | {"eval_env": ""}
    return task | {"eval_env": other["env"] if other | {"env": ""} == task | {"env": ""} else None}


def _settings_of(env: Env, split: str) -> dict[str, Any]:
    """The flags that make this environment where `split` is asked for; --env is null where there are none."""
    unnamed: dict[str, Any] = {"env": None, "env_options": {}, "reward": "", "imports": []}
    made_from = env.made_from or _made_by_gymnasium(env)
    if made_from is None:
        return unnamed
    name, made_split, options = made_from.name, made_from.split, dict(made_from.options)
    reward = options.pop("reward", None)
    place = place_of(reward) if reward is not None else ""
    texts = {option: spelled(value) for option, value in options.items()}
    module = find(name).factory.__module__ if name in names() else "lmgym"
    has_splits = name in names() and made_split != split
    is_lost = made_split != split and not has_splits and not isinstance(env, DatasetFile)
    if place is None or None in texts.values() or module == "__main__" or is_lost or not is_as_made(env, made_from):
        return unnamed
    imports = [] if module.split(".")[0] == "lmgym" else [module]
    env_name = f"{name}:{made_split}" if has_splits else name
    return {"env": env_name, "env_options": texts, "reward": place, "imports": imports}


def _made_by_gymnasium(env: Env) -> MadeFrom | None:
    name = next((entry.name for entry in registrations() if env.spec and entry.gym_id == env.spec.id), None)
    if name is None or env.spec is None:
        return None
    options = dict(env.spec.kwargs)
    return MadeFrom(name, options.pop("split", "train"), options)


def _policy(algorithm: RLAlgorithm) -> dict[str, Any]:
    policy, env = algorithm.policy, algorithm.envs.env
    shots = len(policy.examples)
    are_drawn = shots <= len(env.problems) and tuple(few_shot_examples(env, shots)) == policy.examples
    usual = default_system_prompt(env, stepwise=isinstance(policy, FewShotLLMStepwiseMathPolicy))
    return {
        "policy": KINDS.get(type(policy)),
        "shots": shots if are_drawn else None,
        "system_prompt": None if policy.system_prompt == usual else TEXT + policy.system_prompt,
        "max_tokens": policy.max_tokens,
        **asdict(policy.distribution),
        "calculator": policy.calculator,
    }


def _model(model: LanguageModel) -> dict[str, Any]:
    settings = {"model": model.name, "device": str(model.device), "dtype": model.dtype_name}
    if not model.has_lora:
        return settings | {"lora": False}
    adapter: Any = model.network.peft_config["default"]
    return settings | {"lora": True, "lora_rank": adapter.r, "lora_alpha": adapter.lora_alpha}


def _reference(algorithm: RLAlgorithm) -> dict[str, Any]:
    """The model of a teacher, or of a reference that is another than the policy's own."""
    frozen = getattr(getattr(algorithm, "reference", None), "frozen", None) or getattr(algorithm.actor, "model", None)
    if hasattr(algorithm.config, "teacher"):
        return {"teacher": frozen.name if frozen else algorithm.config.teacher}
    return {"ref_model": frozen.name if frozen and frozen.name != algorithm.policy.model.name else ""}
