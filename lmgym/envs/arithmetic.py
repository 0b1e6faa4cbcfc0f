"""Arithmetic: procedural questions such as `What is 47 + 85?`."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lmgym.envs.math_env import MathEnv
from lmgym.envs.procedural import ProceduralProblems
from lmgym.errors import UserError
from lmgym.rewards.final_answer import NumberAnswer
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

OPERATORS = "+-*/"


class ArithmeticEnv(MathEnv):
    """One operation on two numbers of up to `digits` digits, whose result is a non-negative integer."""

    def __init__(
        self,
        split: str = "train",
        seed: int = 0,
        digits: int = 2,
        operators: str = "+-",
        stepwise: bool = True,
        max_steps: int = 4,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        problems = ArithmeticProblems(split, seed, digits, operators)
        super().__init__(problems, NumberAnswer(), stepwise, max_steps, reward, step_reward)


class ArithmeticProblems(ProceduralProblems):
    """The questions, each generated on access."""

    def __init__(self, split: str = "train", seed: int = 0, digits: int = 2, operators: str = "+-") -> None:
        super().__init__("arithmetic", split, seed)
        if not 1 <= digits <= 12:
            raise UserError(f"digits is {digits}: it must be an integer from 1 to 12.")
        if not operators or set(operators) - set(OPERATORS):
            raise UserError(f'operators is "{operators}": it must hold one or more of {OPERATORS}.')
        self.digits = digits
        self.operators = operators

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Samples an operator, and yields problems with it."""
        operator = random_source.choice(self.operators)
        while True:
            left, right = self._operands(random_source, operator)
            answer = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]
            calculation = f"{left}{operator}{right} = <<{left}{operator}{right}={answer}>>{answer}"
            solution = f"{calculation}\nThe answer is: {answer}"
            yield Problem(problem_id, f"What is {left} {operator} {right}?", str(answer), solution)

    def split_key(self, problem: Problem) -> str:
        """The prompt, with the operands of a sum or a product in order: 5 + 3 is in the split of 3 + 5."""
        left, operator, right = problem.prompt.removeprefix("What is ").removesuffix("?").split(" ")
        if operator in "+*":
            left, right = sorted((left, right), key=int)
        return f"What is {left} {operator} {right}?"

    def _operands(self, random_source: random.Random, operator: str) -> tuple[int, int]:
        if operator == "/":
            right = random_source.randint(1, 10 ** ((self.digits + 1) // 2) - 1)
            return right * random_source.randint(1, max(1, (10**self.digits - 1) // right)), right
        left, right = (random_source.randint(1, 10**self.digits - 1) for _ in range(2))
        return (max(left, right), min(left, right)) if operator == "-" else (left, right)
