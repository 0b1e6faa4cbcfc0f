"""REINFORCE in one file, without RLAlgorithm: collect episodes, compute advantages, update the weights.

python examples/the_loop_by_hand.py --iterations 5
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import tyro

import lmgym
from lmgym.buffer import Buffer
from lmgym.envs.vector_env import VectorEnv
from lmgym.learning.batch import Batch
from lmgym.models.loading import load_model
from lmgym.models.token_scorer import TokenScorer, common_prefix
from lmgym.policies.policy_for import policy_for


@dataclass
class Arguments:
    """REINFORCE by hand on arithmetic."""

    model: str = "smollm2-135m"
    """The model to train."""
    iterations: int = 5
    """Iterations of collecting episodes and updating the policy."""
    problems: int = 8
    """Problems per iteration."""
    group_size: int = 8
    """Episodes per problem."""
    learning_rate: float = 1e-5
    """Learning rate of AdamW."""


def main(arguments: Arguments) -> list[float]:
    env = lmgym.make("arithmetic")
    model = load_model(arguments.model)
    policy = policy_for(env, model, shots=2, max_tokens=32)
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=arguments.learning_rate, weight_decay=0.0)
    rewards = []
    for iteration in range(arguments.iterations):
        # Collect: a group of episodes per problem, all at once.
        envs, buffer = VectorEnv(env), Buffer()
        problems = range(iteration * arguments.problems, (iteration + 1) * arguments.problems)
        states = envs.reset(problems, arguments.group_size, seed=iteration)
        while states:
            actions = policy.next_actions(states)  # whichever are ready; the others continue in the engine
            steps = envs.step(actions)
            buffer.add(steps)
            states = envs.states

        # Advantages: the reward minus the mean of the group.
        batch = Batch.from_episodes(list(buffer.episodes))
        reward = batch.rewards.sum(dim=1)
        mean = torch.stack([reward[batch.group == group].mean() for group in batch.group])
        advantages = (reward - mean)[:, None] * batch.mask

        # Update: the policy gradient, in micro-batches that share their prefix.
        scorer = TokenScorer(model, common_prefix(batch.tokens, batch.mask, batch.lengths), policy.distribution)
        credited = batch.with_(advantages=advantages).to(model.device)
        for part in credited.micro_batches(4096, shared=scorer.prefix_length):
            logprobs = scorer.score(part.tokens, part.mask, part.lengths).logprobs
            loss = -(part.advantages * logprobs).sum() / part.total_tokens
            loss.backward()
        scorer.backward_prefix()
        torch.nn.utils.clip_grad_norm_(model.trainable().values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.version += 1  # the engine's KV cache is of the old weights

        rewards.append(float(reward.mean()))
        print(f"iteration {iteration + 1}: mean training reward {rewards[-1]:.3f}")
    return rewards


if __name__ == "__main__":
    main(tyro.cli(Arguments, use_underscores=True))
