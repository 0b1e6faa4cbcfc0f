"""Countdown: reach a target from a few numbers with the four operations."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from lmgym.calculator import evaluate
from lmgym.envs.games.game import Game, Turn
from lmgym.envs.procedural import ProceduralProblems
from lmgym.errors import UserError
from lmgym.types import Problem

_EXPRESSION = re.compile(r"[\d+\-*/() ]{1,100}")
_NUMBER = re.compile(r"\d{1,9}")


class Countdown(Game):
    """Combine `count` numbers, each at most once, with + - * / to the target; a wrong try is told its value."""

    instruction = "Write only an expression, such as (3+5)*2."

    def __init__(
        self,
        split: str = "train",
        seed: int = 0,
        count: int = 3,
        largest: int = 20,
        max_turns: int = 3,
        speed_bonus: float = 0.0,
    ) -> None:
        super().__init__(Targets(split, seed, count, largest), max_turns, speed_bonus)

    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """Evaluates the expression exactly."""
        expression = move.split("=")[0].strip()
        value = evaluate(expression) if _EXPRESSION.fullmatch(expression) else None
        if value is None:
            return Turn("That is not an expression of the numbers with + - * / and brackets.", valid=False)
        used = Counter(map(int, _NUMBER.findall(expression)))
        if used - Counter(problem.info["numbers"]):
            return Turn("Use each of the numbers at most once, and no others.", valid=False)
        if value == int(problem.answer):
            return Turn("Yes.", won=True)
        shown = str(value) if value.denominator == 1 else f"{float(value):.2f}"
        return Turn(f"That is {shown}, not {problem.answer}.")


class Targets(ProceduralProblems):
    """Numbers and a target that can be reached from them."""

    def __init__(self, split: str, seed: int, count: int, largest: int) -> None:
        super().__init__("countdown", split, seed)
        if not 2 <= count <= 6:
            raise UserError(f"count is {count}: it must be an integer from 2 to 6.")
        if not 2 <= largest <= 1000:
            raise UserError(f"largest is {largest}: it must be an integer from 2 to 1,000.")
        self.size = count
        self.largest = largest

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Combines random numbers with random operations; the result is the target."""
        while True:
            numbers = [random_source.randint(1, self.largest) for _ in range(self.size)]
            expression, value = _combined(random_source, numbers)
            if value is None or value.denominator != 1 or not 1 <= value <= 10 * self.largest:
                continue
            shown = random_source.sample(numbers, len(numbers))
            prompt = f"Make {value} from {', '.join(map(str, shown))} with + - * /."
            yield Problem(problem_id, prompt, str(value), expression, info={"numbers": shown})

    def split_key(self, problem: Problem) -> str:
        """The numbers in order, and the target."""
        return f"{sorted(problem.info['numbers'])} {problem.answer}"


def _combined(random_source: random.Random, numbers: Sequence[int]) -> tuple[str, Fraction | None]:
    """An expression of all numbers, and its value, or None for a division by zero."""
    parts = [(str(number), Fraction(number)) for number in numbers]
    while len(parts) > 1:
        (left, first), (right, second) = (parts.pop(random_source.randrange(len(parts))) for _ in range(2))
        operator = random_source.choice("+-*/")
        if operator == "/" and not second:
            return "", None
        value = {"+": first + second, "-": first - second, "*": first * second}.get(operator)
        parts.append((f"({left}{operator}{right})", first / second if value is None else value))
    expression, value = parts[0]
    return expression.removeprefix("(").removesuffix(")") if expression.startswith("(") else expression, value
