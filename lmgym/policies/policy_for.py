"""The default policy of an environment, as the command line builds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lmgym.engines.engine import Engine
from lmgym.envs.env import Env
from lmgym.envs.examples import few_shot_examples
from lmgym.models.language_model import LanguageModel
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.system_prompts import default_system_prompt
from lmgym.types import Problem


def policy_for(
    env: Env,
    model: LanguageModel | str,
    *,
    shots: int = 8,
    policy: Literal["stepwise", "chat"] = "stepwise",
    examples: Sequence[Problem] | None = None,
    system_prompt: str | None = None,
    max_tokens: int = 32,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    calculator: bool = True,
    engine: Engine | None = None,
    max_episode_tokens: int = 0,
) -> FewShotLLMStepwiseMathPolicy | ChatPolicy:
    """Builds a policy whose prompt has worked examples and states the answer format of `env`.

    The examples are `shots` problems of `env`, which must then be the training split, unless they are given. By default
    the engine is the in-process one.
    """
    kind = FewShotLLMStepwiseMathPolicy if policy == "stepwise" else ChatPolicy
    shown = few_shot_examples(env, shots) if examples is None else examples
    prompt = default_system_prompt(env, policy == "stepwise") if system_prompt is None else system_prompt
    made = kind(model, shown, prompt, max_tokens, temperature, calculator, top_k, top_p, engine, max_episode_tokens)
    made.tools = getattr(env, "tool_schemas", ())
    return made
