"""The greedy baseline: what one greedy episode of each problem of the iteration returns."""

from __future__ import annotations

import torch
from torch import Tensor

from lmgym.advantages import discounted_returns
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.evaluation.evaluation import play


def greedy_returns(algorithm: RLAlgorithm, discount: float = 1.0) -> Tensor:
    """[groups] discounted returns of greedy episodes of the groups that are learnt from; NaN for one that failed.

    Their tokens count as generated.
    """
    problems, seed = algorithm.next_problems(), algorithm.next_seed()
    groups = sorted({episode.group for episode in algorithm.buffer.of_iteration(algorithm.iteration)})
    indices = [problems[group] for group in groups]  # a group whose episodes all failed is not there
    episodes = play(algorithm.policy, algorithm.envs.env, indices, temperature=0.0, seed=seed)
    algorithm.policy.release_cache()
    algorithm.state["tokens"] = algorithm.state.get("tokens", 0.0) + sum(episode.length for episode in episodes)
    rewards = [torch.tensor(episode.rewards) for episode in episodes]
    returns = discounted_returns(torch.nn.utils.rnn.pad_sequence(rewards, batch_first=True), discount)[:, 0]
    return returns.masked_fill(torch.tensor([episode.error is not None for episode in episodes]), torch.nan)


def check_greedy_baseline(config: RLConfig) -> None:
    """Refuses episodes of problems that have no greedy episode in this iteration."""
    if config.replay_episodes or config.curriculum or config.resample_rounds > 1 or config.max_staleness:
        raise UserError(
            "a greedy baseline goes with neither --replay_episodes nor --curriculum nor --max_resample_rounds nor "
            "--max_staleness."
        )
