"""The estimated peak memory of a run; a run that cannot fit is an error before its weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.algorithms.config import RLConfig
from lmgym.commands.memory_estimate import MemoryEstimate, Workload, memory_report
from lmgym.commands.settings import PolicySettings
from lmgym.distributed.processes import processes
from lmgym.envs.env import Env
from lmgym.models.loading import find_device, find_dtype
from lmgym.types import Problem

CHARACTERS_PER_TOKEN = 3
"""For English text and arithmetic with most tokenizers; the real tokenizer is not loaded yet."""

ROWS = 256
"""Maximum sequences that an engine decodes at once."""

LONGEST = 4096
"""Maximum tokens that are assumed for an episode, whatever its budgets allow."""


def expected_memory(
    env: Env, examples: Sequence[Problem], policy: PolicySettings, algorithm: RLConfig, model: str, reference: str
) -> MemoryEstimate:
    """The estimate for these settings; a UserError if they cannot fit."""
    device = find_device(policy.device)
    episodes = max(algorithm.problems_per_iteration * algorithm.group_size, algorithm.eval_problems)
    shown = sum(len(example.prompt) + len(example.solution) for example in examples)
    sampled = policy.max_tokens * (getattr(env, "max_steps", 1) if policy.policy == "stepwise" else 1)
    sampled = min(sampled, policy.max_episode_tokens or sampled)
    work = Workload(
        dtype=find_dtype(policy.dtype, device),
        micro_batch_tokens=algorithm.micro_batch_tokens,
        recompute_activations=algorithm.recompute_activations,
        on_cpu=device.type == "cpu",
        lora_rank=policy.lora_rank,
        critic=algorithm.settings().get("critic") == "model",
        rows=min(ROWS, episodes),
        shared_tokens=shown // CHARACTERS_PER_TOKEN,
        row_tokens=min(len(env.problems[0].prompt) // CHARACTERS_PER_TOKEN + sampled, LONGEST),
        shards=processes().count if policy.shard else 1,
        on_servers=policy.engine != "torch",
        rounds_to_int8=policy.rollout_dtype == "int8",
    )
    return memory_report(model, device, work, reference)
