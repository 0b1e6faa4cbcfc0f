"""What the commands can be told; each field is a flag, and the line under it is its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from lmgym.envs import Env, make
from lmgym.envs.options import literal
from lmgym.errors import UserError
from lmgym.lookup import import_module
from lmgym.types import Problem


@dataclass
class TaskSettings:
    """What is to be solved."""

    env: str = "word-problems"
    """A name from `lmgym envs`, the path of a JSON or JSONL file with problems, or your own as my_module:MyEnv."""
    env_options: dict[str, str] = field(default_factory=dict)
    """Options of the environment as names and values: --env_options max_operations 3 difficulty 2"""
    reward: str = ""
    """Your own reward as my_module:my_function, which takes the problem and the whole answer and gives a number."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import"), tyro.conf.UseAppendAction] = ()
    """A module of yours to import first, because it registers environments; may be given several times."""

    def make(self, split: str) -> Env:
        """The environment on one of its splits."""
        for module in self.imports:
            import_module(module, f"--import {module}")
        options = {name: literal(value) for name, value in self.env_options.items()}
        if self.reward:
            from lmgym.rewards.custom import load_reward

            options["reward"] = load_reward(self.reward)
        try:
            return make(self.env, split=split, **options)
        except TypeError as error:
            raise UserError(f"{self.env} cannot be made with --env_options {options}: {error}.") from error


@dataclass
class PolicySettings:
    """Who solves it, and how it is prompted."""

    model: str = "smollm2-135m"
    """A name from `lmgym models`, a hub id, a Hugging Face folder, a GGUF file, or a run of lmgym."""
    policy: Literal["stepwise", "chat"] = "stepwise"
    """stepwise: one line of the solution is one action; chat: the whole answer is."""
    shots: int = 8
    """Worked examples in the prompt, from the training split."""
    system_prompt: str | None = None
    """A text file, the name of a prompt that ships with lmgym, or text:… with the prompt itself; by default the one
    that suits the policy and says how the environment wants its answer."""
    max_tokens: int = 32
    """Tokens per action: of a line, or of the whole answer; lines of GSM8K need about 80."""
    temperature: float = 1.0
    """Sampling temperature in training; it is part of the policy that learns."""
    top_k: int = 0
    """Draw only from so many of the likeliest tokens; 0 is all of them. Part of the policy that learns, as is top_p."""
    top_p: float = 1.0
    """Draw only from the fewest likeliest tokens that hold this much probability."""
    calculator: bool = True
    """Inside <<…= the value is computed and forced into the text; forced tokens are not trained on."""
    device: str = "auto"
    """auto finds CUDA, then MPS, then the CPU; or name one, such as cuda:1."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What to compute in; weights are always kept in float32."""
    lora: bool = False
    """Train a LoRA adapter instead of all weights (needs: pip install 'lmgym[lora]')."""
    lora_rank: int = 16
    """Rank of the adapter."""
    lora_alpha: int = 32
    """Scale of the adapter: its output is multiplied by alpha / rank."""

    def make(self, env: Env, examples: Sequence[Problem], model: str | None = None, seed: int = 0) -> Any:
        """Loads the model, or another in its place, and makes a policy for `env`; an adapter begins from `seed`."""
        from lmgym.models.loading import load_model
        from lmgym.models.lora import LoraSettings
        from lmgym.policies.policy_for import policy_for
        from lmgym.policies.system_prompts import load_system_prompt

        if self.shots < 0 or self.lora_rank < 1:
            raise UserError(f"--shots is {self.shots} and --lora_rank {self.lora_rank}: at least 0 and 1 are needed.")
        # An adapter that is loaded already learns; a second one on top of it would not be saved with it.
        lora = LoraSettings(self.lora_rank, self.lora_alpha, seed=seed) if self.lora and model is None else None
        return policy_for(
            env,
            load_model(model or self.model, device=self.device, dtype=self.dtype, lora=lora),
            policy=self.policy,
            examples=examples,
            system_prompt=None if self.system_prompt is None else load_system_prompt(self.system_prompt),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            calculator=self.calculator,
        )
