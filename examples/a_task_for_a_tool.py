"""A task that needs a tool: products of numbers that a small model cannot compute in its head.

python examples/a_task_for_a_tool.py --iterations 2
lmgym train rloo --env examples.a_task_for_a_tool:Products --env_options tools python --policy chat --shots 4 \
    --max_tokens 60

The worked examples of the prompt are calls of the tool; what to do with its output, the model has to find out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import tyro

import lmgym
from lmgym.algorithms.rloo import RLOO, RLOOConfig
from lmgym.envs.math_env import MathEnv
from lmgym.envs.procedural import SPLITS, ProceduralProblems
from lmgym.policies.policy_for import policy_for
from lmgym.types import Problem


class Products(MathEnv):
    """The product of two numbers of `digits` digits; a solution is a call of the Python tool."""

    def __init__(self, split: str = "train", seed: int = 0, digits: int = 3) -> None:
        super().__init__(ProductProblems("products", split, seed, digits), stepwise=False)


class ProductProblems(ProceduralProblems):
    """Questions without end; those of a split are in no other one."""

    def __init__(self, name: str, split: str, seed: int, digits: int) -> None:
        super().__init__(name, split, seed)
        self.digits = digits

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Any two factors."""
        smallest, largest = 10 ** (self.digits - 1), 10**self.digits - 1
        while True:
            one, other = random_source.randint(smallest, largest), random_source.randint(smallest, largest)
            call = {"name": "python", "arguments": {"code": f"print({one} * {other})"}}
            solution = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
            yield Problem(problem_id, f"What is {one} * {other}?", str(one * other), solution)

    def split_key(self, problem: Problem) -> str:
        """The product, which is the same whichever factor comes first."""
        return problem.answer


lmgym.register("products", Products, splits=SPLITS)


@dataclass
class Arguments:
    """RLOO with the Python tool."""

    model: str = "smollm2-135m"
    """The model to train."""
    iterations: int = 2
    """Iterations of collecting episodes and updating the policy."""
    problems: int = 8
    """Problems per iteration."""


def main(arguments: Arguments) -> None:
    env = lmgym.make("products", tools="python")
    policy = policy_for(env, arguments.model, policy="chat", shots=4, max_tokens=60)
    config = RLOOConfig(iterations=arguments.iterations, problems_per_iteration=arguments.problems, eval_problems=0)
    RLOO(policy, env, config).train()


if __name__ == "__main__":
    main(tyro.cli(Arguments, use_underscores=True))
