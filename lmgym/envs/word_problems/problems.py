"""Procedural word problems in the style of GSM8K, with one to eight operations and worked solutions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from lmgym.envs.math_env import MathEnv
from lmgym.envs.procedural import ProceduralProblems
from lmgym.envs.word_problems import short_stories, stories
from lmgym.envs.word_problems.stories import StoryKind
from lmgym.envs.word_problems.story import SIZES, Story, UnfitError
from lmgym.errors import UserError
from lmgym.rewards.final_answer import NumberAnswer
from lmgym.rewards.reward import Reward
from lmgym.rewards.steps import StepReward
from lmgym.types import Problem

MOST_OPERATIONS = 8
MOST_TRIES = 100_000

_OPERATION = re.compile(r"<<([^<>]+)>>")

STORY_KINDS = (
    StoryKind(stories.collection, 1, 8),
    StoryKind(stories.packs, 1, 8),
    StoryKind(stories.bus, 1, 8),
    StoryKind(stories.comparison, 1, 8),
    StoryKind(stories.sales, 1, 6),
    StoryKind(stories.shopping, 1, 8),
    StoryKind(stories.journey, 1, 8),
    StoryKind(stories.wages, 1, 8),
    StoryKind(stories.sharing, 1, 8),
    StoryKind(short_stories.reading, 1, 3),
    StoryKind(short_stories.ages, 1, 4),
    StoryKind(short_stories.practice, 1, 3),
    StoryKind(short_stories.hens, 1, 4),
    StoryKind(short_stories.teams, 1, 3),
    StoryKind(short_stories.tank, 1, 3),
    StoryKind(short_stories.saving, 1, 4),
    StoryKind(short_stories.garden, 1, 4),
)


class WordProblemsEnv(MathEnv):
    """Procedural word problems of `min_operations` to `max_operations` operations and a difficulty from 1 to 5."""

    def __init__(
        self,
        split: str = "train",
        seed: int = 0,
        min_operations: int = 1,
        max_operations: int = 1,
        difficulty: int = 2,
        stepwise: bool = True,
        max_steps: int | None = None,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        problems = WordProblems(split, seed, min_operations, max_operations, difficulty)
        # By default one line more than a worked solution has.
        steps = max_operations + 2 if max_steps is None else max_steps
        super().__init__(problems, NumberAnswer(), stepwise, steps, reward, step_reward)


class WordProblems(ProceduralProblems):
    """The problems, each generated on access."""

    def __init__(
        self,
        split: str = "train",
        seed: int = 0,
        min_operations: int = 1,
        max_operations: int = 1,
        difficulty: int = 2,
    ) -> None:
        super().__init__("word-problems", split, seed)
        if not 1 <= min_operations <= max_operations <= MOST_OPERATIONS:
            raise UserError(
                f"min_operations is {min_operations} and max_operations {max_operations}: both must be from 1 to "
                f"{MOST_OPERATIONS}, the smaller first."
            )
        if difficulty not in SIZES:
            raise UserError(f"difficulty is {difficulty!r}: it must be an integer from 1 to {max(SIZES)}.")
        self.min_operations = min_operations
        self.max_operations = max_operations
        self.difficulty = difficulty

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Samples a number of operations and a kind of story, and yields problems of that kind."""
        operations = random_source.randint(self.min_operations, self.max_operations)
        kind = random_source.choice([kind for kind in STORY_KINDS if kind.fewest <= operations <= kind.most])
        info = {"operations": operations, "difficulty": self.difficulty, "story": kind.tell.__name__}
        while True:
            story = self._tell(kind, operations, random_source)
            solution = "\n".join((*story.lines, f"The answer is: {story.answer}"))
            yield Problem(problem_id, story.text(), str(story.answer), solution, info)

    def split_key(self, problem: Problem) -> str:
        """The kind of story and the operations of the worked solution, without names, objects and other wording."""
        return " ".join((problem.info["story"], *_OPERATION.findall(problem.solution)))

    def _tell(self, kind: StoryKind, operations: int, random_source: random.Random) -> Story:
        """Samples numbers until they give a valid problem."""
        for _ in range(MOST_TRIES):
            story = Story(random_source, self.difficulty)
            try:
                kind.tell(story, operations)
            except UnfitError:
                continue
            return story
        raise UserError(f"No {kind.tell.__name__} story of {operations} operations was found: choose fewer operations.")
