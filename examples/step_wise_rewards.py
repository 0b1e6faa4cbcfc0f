"""Step rewards: 0.1 for each right calculation, 1 for the final answer.

python examples/step_wise_rewards.py --iterations 5
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.policies.policy_for import policy_for
from lmgym.rewards.steps import calculations_are_right, weighted


@dataclass
class Arguments:
    """REINFORCE with step rewards: every token gets the return of its own step."""

    model: str = "smollm2-135m"
    """The model to train."""
    iterations: int = 5
    """Iterations of collecting episodes and updating the policy."""
    problems_per_iteration: int = 8
    """Problems per iteration."""
    discount: float = 0.95
    """Discount factor γ per line."""


def main(arguments: Arguments) -> Reinforce:
    # Without the calculator the model computes by itself, and each right calculation is rewarded.
    env = lmgym.make("word-problems", step_reward=weighted((0.1, calculations_are_right)), max_steps=4)
    policy = policy_for(env, arguments.model, shots=3, calculator=False)
    config = ReinforceConfig(
        iterations=arguments.iterations,
        problems_per_iteration=arguments.problems_per_iteration,
        discount=arguments.discount,
        eval_problems=0,
    )
    algorithm = Reinforce(policy, env, config)
    algorithm.train()
    return algorithm


if __name__ == "__main__":
    main(tyro.cli(Arguments, use_underscores=True))
