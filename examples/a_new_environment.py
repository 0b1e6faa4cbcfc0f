"""A new environment in one page: guess a number from "higher" and "lower", several turns per episode.

python examples/a_new_environment.py --iterations 3
lmgym train --env examples.a_new_environment:GuessTheNumber --policy chat --shots 0 --max_tokens 8
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.policies.policy_for import policy_for
from lmgym.types import Finish, Problem, State


class GuessTheNumber(lmgym.Env):
    """The policy guesses a number from 1 to 20; a wrong guess gets a hint, the right one the reward 1."""

    instruction = "Guess with a number and nothing else."

    def __init__(self, split: str = "train", turns: int = 4) -> None:
        numbers: Sequence[int] = range(1, 21, 2) if split == "train" else range(2, 21, 2)
        question = "I think of a whole number from 1 to 20. Guess it: say only a number."
        super().__init__([Problem(f"guess/{number}", question, str(number)) for number in numbers])
        self.turns = turns

    def respond(self, state: State, text: str, finish: Finish) -> lmgym.Response:
        found = re.search(r"\d{1,3}", text)
        guess, number = int(found[0]) if found else None, int(state.problem.answer)
        if guess == number:
            return lmgym.Response(reward=1.0, terminated=True, info={"correct": True})
        if state.turn == self.turns:
            return lmgym.Response(truncated=True, info={"correct": False})
        if guess is None:
            return lmgym.Response(reply="Say a number.")
        return lmgym.Response(reply="Higher." if number > guess else "Lower.")


lmgym.register("guess-the-number", GuessTheNumber, "lmgym/GuessTheNumber-v0")


@dataclass
class Arguments:
    """REINFORCE on an environment of your own."""

    model: str = "smollm2-135m"
    """The model to train."""
    iterations: int = 3
    """Iterations of collecting episodes and updating the policy."""


def main(arguments: Arguments) -> None:
    env = lmgym.make("guess-the-number")
    policy = policy_for(env, arguments.model, policy="chat", shots=0, max_tokens=8, calculator=False)
    config = ReinforceConfig(iterations=arguments.iterations, problems_per_iteration=4, eval_problems=0)
    Reinforce(policy, env, config).train()


if __name__ == "__main__":
    main(tyro.cli(Arguments, use_underscores=True))
