"""The settings of the commands; each field is a flag, and the string under it is its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmgym.envs import Env, make, takes_option
from lmgym.envs.options import literal
from lmgym.errors import UserError, described
from lmgym.types import Problem

if TYPE_CHECKING:  # listing what there is needs no torch
    from lmgym.engines.engine import Engine
    from lmgym.engines.local_engine import LocalEngine
    from lmgym.judges.judge import Judge
    from lmgym.judges.questions import Ask
    from lmgym.models.language_model import LanguageModel


@dataclass
class TaskSettings:
    """The task."""

    env: str = "word-problems"
    """A name from `lmgym envs`, the path of a JSON or JSONL file of problems, or your own as my_module:MyEnv: a class
    or a name that the module registers; a sum is a mixture: "gsm8k + 0.5*guess-number(largest=8)"."""
    env_options: dict[str, str] = field(default_factory=dict)
    """Options of the environment as names and values: --env_options max_operations 3 difficulty 2"""
    reward: str = ""
    """Your own reward function as my_module:my_function(problem, text) -> float, or a weighted sum:
    "correct + 0.1*form + 0.5*overlong(200,50) - my_module:my_function"; 0.2->0@50*form falls to 0 in iteration 50."""

    def on(self, env: str) -> TaskSettings:
        """The same task on another environment, with those of the options that it has."""
        kept = {name: value for name, value in self.env_options.items() if takes_option(env, name)}
        return replace(self, env=env, env_options=kept)

    def make(self, split: str) -> Env:
        """The environment on one of its splits."""
        options = {name: literal(value) for name, value in self.env_options.items()}
        if self.reward:
            from lmgym.rewards.custom import load_reward

            options["reward"] = load_reward(self.reward)
        try:
            return make(self.env, split=split, **options)
        except UserError:
            raise
        except Exception as error:  # of any kind: environments are code of others
            given = f" with --env_options {options}" if options else ""
            raise UserError(f"{self.env} cannot be made{given}: {described(error)}.") from error


@dataclass
class PolicySettings:
    """The model and how it is prompted."""

    model: str = "smollm2-135m"
    """A name from `lmgym models`, a hub id, a Hugging Face folder, a GGUF file, or a run of lmgym."""
    policy: Literal["stepwise", "chat"] = "stepwise"
    """stepwise: one line of the solution is one action; chat: the whole answer is."""
    shots: int = 8
    """Worked examples in the prompt, from the training split."""
    system_prompt: str | None = None
    """A text file, the name of a prompt that ships with lmgym, or text:… with the prompt itself; by default one that
    states the answer format of the environment."""
    max_tokens: int = 32
    """Maximum tokens per action: per line with stepwise, per answer with chat; lines of GSM8K need about 80."""
    max_episode_tokens: int = 0
    """Maximum tokens of all actions of an episode together, which is truncated there; 0: no limit but --max_tokens."""
    temperature: float = 1.0
    """Sampling temperature in training; the learner scores tokens at the same temperature."""
    top_k: int = 0
    """Top-k sampling; 0: off. The learner scores tokens under the same truncation."""
    top_p: float = 1.0
    """Top-p (nucleus) sampling; 1: off."""
    calculator: bool = True
    """Calculator tool: after <<48/2= the result is forced into the text; forced tokens are not trained on."""
    device: str = "auto"
    """auto: CUDA, else MPS, else CPU; or a torch device such as cuda:1."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; weights stay in float32. auto: bfloat16 where it is faster."""
    rollout_dtype: Literal["same", "int8"] = "same"
    """int8: episodes are sampled with weights and inputs rounded to 8 bits, on CPUs with VNNI instructions; learning
    stays in --dtype. --tis_cap 2 corrects the difference, which `logprob_diff` shows."""
    engine: Literal["torch", "vllm", "sglang"] = "torch"
    """torch: in this process; vllm, sglang: on the inference servers that --servers names."""
    servers: str = ""
    """Addresses of inference servers, separated by commas: http://host:8000,http://host:8001"""
    weights_folder: str = ""
    """A folder that the servers can read, where new weights are written; by default in LMGYM_CACHE."""
    shard: bool = False
    """Under torchrun: divide weights, gradients and moments among the processes (FSDP2)."""
    lora_rank: int = 0
    """Train a LoRA adapter of this rank, with alpha = 2 · rank (needs: pip install 'lmgym[lora]'); 0: all weights."""

    def make(
        self, env: Env, examples: Sequence[Problem], model: str | None = None, seed: int = 0, samples: bool = True
    ) -> Any:
        """Loads the model, or `model` instead, and makes a policy for `env`, which `samples` or only scores.

        `seed` initialises a LoRA adapter.
        """
        from lmgym.models.loading import load_model
        from lmgym.models.lora import LoraSettings
        from lmgym.policies.policy_for import policy_for
        from lmgym.policies.system_prompts import load_system_prompt

        if self.shots < 0 or self.lora_rank < 0:
            raise UserError(f"--shots is {self.shots} and --lora_rank {self.lora_rank}: both must be at least 0.")
        # A loaded adapter is trained itself; a second one on top of it would not be saved with it.
        rank = self.lora_rank if model is None else 0
        lora = LoraSettings(rank, 2 * rank, seed=seed) if rank else None
        loaded = load_model(model or self.model, device=self.device, dtype=self.dtype, lora=lora)
        return policy_for(
            env,
            loaded,
            policy=self.policy,
            examples=examples,
            system_prompt=None if self.system_prompt is None else load_system_prompt(self.system_prompt),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            calculator=self.calculator,
            max_episode_tokens=self.max_episode_tokens,
            engine=self._engine(loaded, samples),
        )

    def _engine(self, model: LanguageModel, samples: bool) -> Engine | None:
        """The engine of a model that `samples`; with --shard, the model is sharded here."""
        engine = self._connect(model) if samples else None
        if self.shard:
            from lmgym.distributed.sharding import shard
            from lmgym.engines.replica_engine import ReplicaEngine

            if samples and engine is None:
                engine = ReplicaEngine(model, self._local_engine(model.frozen_copy()))
            shard(model)
        elif samples and engine is None:
            engine = self._local_engine(model)
        return engine

    def _local_engine(self, model: LanguageModel) -> LocalEngine:
        """The engine in this process."""
        from lmgym.engines.torch.engine import int8_engine
        from lmgym.policies.llm_policy import engine_for

        return int8_engine(model) if self.rollout_dtype == "int8" else engine_for(model)

    def _connect(self, model: LanguageModel) -> Engine | None:
        """The engine of the servers, or None for the one in this process."""
        if self.engine == "torch":
            if self.servers:
                raise UserError("--servers would not be used: say what they run with --engine vllm or --engine sglang.")
            return None
        if self.rollout_dtype != "same":
            raise UserError("--rollout_dtype int8 is for --engine torch: a server has a precision of its own.")
        from lmgym.assets.catalogue import cache_dir
        from lmgym.engines.server.connect import connect

        folder = Path(self.weights_folder) if self.weights_folder else cache_dir() / "weights"
        return connect(self.engine, [url for url in self.servers.split(",") if url], model, folder)


@dataclass
class JudgeSettings:
    """A language model that rewards episodes besides the environment."""

    judge: Literal[
        "none", "step", "dimensions", "episode", "answer", "group", "reward-model", "process-reward-model"
    ] = "none"
    """step: a score for each step; dimensions: yes-or-no questions on each step; episode: a score for each solution;
    answer: is its answer the reference answer; group: which sample of a group is the best; reward-model and
    process-reward-model: a trained classifier of episodes or of steps, which --judge_model names."""
    judge_model: str = ""
    """The model that judges, named as for --model; by default a copy of --model as it is before training."""
    judge_url: str = ""
    """An OpenAI-compatible endpoint that judges, such as http://host:8000/v1; --judge_model names its model."""
    judge_weight: float = 1.0
    """Weight of the judge's score, which is from 0 to 1; that of a reward model is its own."""
    judge_prompt: str = ""
    """A text file with the judge's question, instead of the shipped one (lmgym/judges/prompts)."""

    def make(self, policy: PolicySettings) -> Judge | None:
        """The judge with its model, or None."""
        if self.judge == "none":
            if self.judge_model or self.judge_prompt or self.judge_url:
                raise UserError(
                    "--judge_model, --judge_url and --judge_prompt are of a judge: name its kind with --judge."
                )
            return None
        if self.judge in ("reward-model", "process-reward-model"):
            return self._trained(policy)
        from lmgym.judges.verbal import JUDGES

        ask = self._ask(policy)
        model = getattr(ask, "model", self.judge_model)  # an endpoint names its own
        return JUDGES[self.judge](ask, self.judge_weight, self.judge_prompt, model, self.judge_url)

    def _ask(self, policy: PolicySettings) -> Ask:
        """How its questions are answered: by an endpoint, or by a model of this process."""
        if self.judge_url:
            from lmgym.assets.catalogue import cache_dir
            from lmgym.judges.endpoint import AnswerCache, Endpoint

            return Endpoint(self.judge_url, self.judge_model, AnswerCache(cache_dir() / "judges.sqlite"))
        from lmgym.judges.questions import asking
        from lmgym.models.loading import load_model

        return asking(load_model(self.judge_model or policy.model, device=policy.device, dtype=policy.dtype))

    def _trained(self, policy: PolicySettings) -> Judge:
        from lmgym.judges.reward_model import load_reward_model
        from lmgym.models.loading import find_device

        if self.judge_prompt or self.judge_url:
            raise UserError(f"--judge {self.judge} is a trained classifier: it takes no --judge_prompt or --judge_url.")
        return load_reward_model(self.judge, self.judge_model, self.judge_weight, str(find_device(policy.device)))
