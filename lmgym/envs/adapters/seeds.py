"""Problems that are seeds, for environments of other packages that are started with one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lmgym.envs.procedural import ProceduralProblems
from lmgym.types import Problem


class Seeds(ProceduralProblems):
    """One seed of an environment per problem; prompts name it, so that a seed is not taken for a copy of another."""

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Any seed."""
        while True:
            seed = random_source.randrange(2**31)
            yield Problem(problem_id, f"{self.name} with the seed {seed}", "", info={"seed": seed})

    def split_key(self, problem: Problem) -> str:
        """The seed."""
        return str(problem.info["seed"])
