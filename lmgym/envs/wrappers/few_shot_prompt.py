"""Worked examples in the first message, for any policy."""

from __future__ import annotations

from collections.abc import Sequence

from lmgym.envs.env import Env
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.types import Problem


class FewShotPrompt(EnvWrapper):
    """Puts problems with their solutions before the opening; `--shots` puts them into the conversation instead."""

    shared_attributes = (*EnvWrapper.shared_attributes, "examples")

    def __init__(self, env: Env, examples: Sequence[Problem]) -> None:
        super().__init__(env)
        self.examples = tuple(examples)

    def opening(self, problem: Problem) -> str:
        """The examples, and then the environment's own opening."""
        shown = [f"Problem: {each.prompt}\nSolution: {each.solution or each.answer}" for each in self.examples]
        return "\n\n".join([*shown, f"Problem: {super().opening(problem)}\nSolution:"])
