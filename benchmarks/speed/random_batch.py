"""A batch of random completions, to measure learning alone."""

from __future__ import annotations

import numpy as np
import torch

from lmgym.learning.batch import Batch


def random_completions(prompts: list[list[int]], new_tokens: int, group_size: int) -> Batch:
    """One episode per prompt, all of the same length; consecutive episodes form groups."""
    completions = np.random.default_rng(1).integers(1000, 40_000, (len(prompts), new_tokens))
    tokens = torch.cat([torch.tensor(prompts), torch.from_numpy(completions)], dim=1)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, len(prompts[0]) :] = True
    episodes = len(tokens)
    return Batch.from_tensors(
        tokens=tokens,
        lengths=torch.full((episodes,), tokens.shape[1]),
        mask=mask,
        logprobs=torch.zeros(tokens.shape),
        step_index=torch.where(mask, 0, -1),
        rewards=torch.zeros(episodes, 1),
        step_count=torch.ones(episodes, dtype=torch.long),
        truncated=torch.zeros(episodes, dtype=torch.bool),
        group=torch.arange(episodes) // group_size,
        policy_version=torch.zeros(episodes, dtype=torch.long),
        seed=torch.arange(episodes),
    )
