"""The config.json of a run that was set up in Python: the same settings that `lmgym train` would write."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lmgym.engines.server.engine import ServerEngine
from lmgym.envs import DatasetFile, find, names, registrations
from lmgym.envs.comparison import is_as_made
from lmgym.envs.env import Env, MadeFrom
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.options import spelled
from lmgym.judges.judge import Judge
from lmgym.judges.reward_model import ProcessRewardModel, RewardModel
from lmgym.judges.verbal import JUDGES
from lmgym.models.language_model import LanguageModel
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.system_prompts import TEXT, default_system_prompt
from lmgym.rewards.custom import spelled_reward
from lmgym.runs.training import Training

KINDS_OF_JUDGES: dict[str, type[Judge]] = {
    **JUDGES,
    **{kind.name: kind for kind in (RewardModel, ProcessRewardModel)},
}
KINDS: dict[type, str] = {FewShotLLMStepwiseMathPolicy: "stepwise", ChatPolicy: "chat"}


def run_settings(algorithm: Training) -> dict[str, Any]:
    """Every setting of a run by its flag's name; None for what has no name, such as an environment made by hand."""
    return {
        "algorithm": algorithm.name,
        **algorithm.config.settings(),
        **_task(algorithm),
        **_policy(algorithm),
        **_model(algorithm.policy.model),
        **_place(algorithm.policy),
        **_reference(algorithm),
        **_judge(algorithm.judge),
    }


def _task(algorithm: Training) -> dict[str, Any]:
    task = _settings_of(algorithm.envs.env, split="train")
    if algorithm.evaluator.env is None:
        return task | {"eval_env": "", "eval_problems": 0}
    other = _settings_of(algorithm.evaluator.env.unwrapped, split="test")  # type: ignore[arg-type]
    if other == task:
        return task | {"eval_env": ""}
    return task | {"eval_env": other["env"] if other | {"env": ""} == task | {"env": ""} else None}


def _settings_of(env: Env, split: str) -> dict[str, Any]:
    """The flags that make this environment in a command that uses `split`; --env is None if there are none."""
    unnamed: dict[str, Any] = {"env": None, "env_options": {}, "reward": ""}
    made_from = env.made_from or _made_by_gymnasium(env)
    if made_from is None:
        return unnamed
    name, made_split, options = made_from.name, made_from.split, dict(made_from.options)
    reward = options.pop("reward", None)
    place = spelled_reward(reward) if reward is not None else ""
    texts = {option: spelled(value) for option, value in options.items()}
    module = find(name).factory.__module__ if name in names() else "lmgym"
    has_splits = name in names() and made_split != split
    is_lost = made_split != split and not has_splits and not isinstance(env, DatasetFile)
    if place is None or None in texts.values() or module == "__main__" or is_lost or not is_as_made(env, made_from):
        return unnamed
    env_name = f"{name}:{made_split}" if has_splits else name
    registered_by = "" if module.split(".")[0] == "lmgym" else f"{module}:"
    return {"env": registered_by + env_name, "env_options": texts, "reward": place}


def _made_by_gymnasium(env: Env) -> MadeFrom | None:
    name = next((entry.name for entry in registrations() if env.spec and entry.gym_id == env.spec.id), None)
    if name is None or env.spec is None:
        return None
    options = dict(env.spec.kwargs)
    return MadeFrom(name, options.pop("split", "train"), options)


def _policy(algorithm: Training) -> dict[str, Any]:
    policy, env = algorithm.policy, algorithm.envs.env
    shots = len(policy.examples)
    are_drawn = shots <= len(env.problems) and tuple(few_shot_examples(env, shots)) == policy.examples
    default = default_system_prompt(env, stepwise=isinstance(policy, FewShotLLMStepwiseMathPolicy))
    return {
        "policy": KINDS.get(type(policy)),
        "shots": shots if are_drawn else None,
        "system_prompt": None if policy.system_prompt == default else TEXT + policy.system_prompt,
        "max_tokens": policy.max_tokens,
        "max_episode_tokens": policy.max_episode_tokens,
        **asdict(policy.distribution),
        "calculator": policy.calculator,
    }


def _place(policy: LLMPolicy) -> dict[str, Any]:
    """Where and how it samples, and whether the weights are divided."""
    engine, servers = policy.engine, {"engine": "torch", "servers": "", "weights_folder": ""}
    if isinstance(engine, ServerEngine) and engine.servers:
        urls = ",".join(server.url for server in engine.servers)
        servers = {"engine": engine.servers[0].kind, "servers": urls, "weights_folder": str(engine.folder)}
    rollout_dtype = "int8" if engine.dtype_name == "int8" else "same"
    return {**servers, "shard": policy.model.is_sharded, "rollout_dtype": rollout_dtype}


def _model(model: LanguageModel) -> dict[str, Any]:
    settings = {"model": model.name, "device": str(model.device), "dtype": model.dtype_name}
    network: Any = model.network
    return settings | {"lora_rank": network.peft_config["default"].r if model.has_lora else 0}


def _reference(algorithm: Training) -> dict[str, Any]:
    """The model of the teacher, or of a reference other than the policy's own model."""
    frozen = getattr(algorithm.reference, "frozen", None) or getattr(algorithm.actor, "model", None)
    teacher = algorithm.config.settings().get("teacher")
    if teacher is not None:
        return {"teacher": frozen.name if frozen else teacher}
    return {"ref_model": frozen.name if frozen and frozen.name != algorithm.policy.model.name else ""}


def _judge(judge: Judge | None) -> dict[str, Any]:
    if judge is None:
        return {"judge": "none", "judge_model": "", "judge_url": "", "judge_weight": 1.0, "judge_prompt": ""}
    kind = judge.name if KINDS_OF_JUDGES.get(judge.name) is type(judge) else None
    named = {"judge": kind, "judge_model": judge.model_name, "judge_url": judge.url}
    return {**named, "judge_weight": judge.weight, "judge_prompt": judge.prompt}
