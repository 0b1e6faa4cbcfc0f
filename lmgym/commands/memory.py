"""What a run will need at its peak, said before it begins; what cannot fit is refused before its weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmgym.commands.settings import PolicySettings
from lmgym.envs.env import Env
from lmgym.types import Problem

if TYPE_CHECKING:
    from lmgym.commands.memory_estimate import MemoryEstimate

LETTERS_PER_TOKEN = 3
"""Of English text and sums, for most tokenizers; the real one is not loaded yet."""

ROWS = 256
"""How many sequences an engine decodes at once."""

LONGEST = 4096
"""More tokens than this are not expected of an episode, whatever its budgets allow."""


def expected_memory(
    env: Env, examples: Sequence[Problem], policy: PolicySettings, algorithm: object, model: str, reference: str
) -> MemoryEstimate:
    """The estimate for these settings, which are refused in one sentence if they cannot fit."""
    from lmgym.commands.memory_estimate import Workload, memory_report
    from lmgym.models.loading import find_device, find_dtype

    def setting(name: str, default: int = 0) -> int:
        return getattr(algorithm, name, default)

    device = find_device(policy.device)
    episodes = max(setting("problems_per_iteration") * setting("group_size"), setting("eval_problems"))
    shown = sum(len(example.prompt) + len(example.solution) for example in examples)
    written = policy.max_tokens * (getattr(env, "max_steps", 1) if policy.policy == "stepwise" else 1)
    work = Workload(
        dtype=find_dtype(policy.dtype, device),
        micro_batch_tokens=setting("micro_batch_tokens"),
        recompute_activations=bool(setting("recompute_activations")),
        lora_rank=policy.lora_rank if policy.lora else 0,
        critic=getattr(algorithm, "critic", "") == "model",
        rows=min(ROWS, episodes),
        shared_tokens=shown // LETTERS_PER_TOKEN,
        row_tokens=min(len(env.problems[0].prompt) // LETTERS_PER_TOKEN + written, LONGEST),
    )
    return memory_report(model, device, work, reference)
