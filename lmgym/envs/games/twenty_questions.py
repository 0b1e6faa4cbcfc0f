"""Twenty questions over a small world: things, and what is true of each."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from lmgym.envs.games.game import Game, Turn
from lmgym.envs.procedural import ProceduralProblems
from lmgym.errors import UserError
from lmgym.types import Problem

TRAITS = (
    "alive",
    "an animal",
    "a plant",
    "able to fly",
    "able to swim",
    "big",
    "food",
    "made of metal",
    "a vehicle",
    "a tool",
)
"""What can be asked."""

WORLD = {
    "dog": ("alive", "an animal", "able to swim"),
    "eagle": ("alive", "an animal", "able to fly"),
    "duck": ("alive", "an animal", "able to fly", "able to swim", "food"),
    "salmon": ("alive", "an animal", "able to swim", "food"),
    "whale": ("alive", "an animal", "able to swim", "big"),
    "elephant": ("alive", "an animal", "able to swim", "big"),
    "cow": ("alive", "an animal", "big", "food"),
    "ant": ("alive", "an animal"),
    "bee": ("alive", "an animal", "able to fly"),
    "oak": ("alive", "a plant", "big"),
    "rose": ("alive", "a plant"),
    "carrot": ("alive", "a plant", "food"),
    "bread": ("food",),
    "cheese": ("food",),
    "stone": (),
    "mountain": ("big",),
    "hammer": ("made of metal", "a tool"),
    "saw": ("made of metal", "a tool"),
    "broom": ("a tool",),
    "coin": ("made of metal",),
    "car": ("made of metal", "a vehicle", "big"),
    "bicycle": ("made of metal", "a vehicle"),
    "plane": ("made of metal", "a vehicle", "big", "able to fly"),
    "boat": ("a vehicle", "big", "able to swim"),
    "book": (),
    "ball": (),
}

_WORD = re.compile(r"[a-z]+")


class TwentyQuestions(Game):
    """Find out which of `things` things is meant, by yes-or-no questions; naming the thing ends the game."""

    instruction = 'Ask "Is it …?" with one of the properties or the name of a thing.'

    def __init__(
        self, split: str = "train", seed: int = 0, things: int = 8, max_turns: int = 8, speed_bonus: float = 0.0
    ) -> None:
        super().__init__(Things(split, seed, things), max_turns, speed_bonus)

    def play(self, problem: Problem, moves: Sequence[str], move: str) -> Turn:
        """Answers a question about one property; a thing's name is a guess, right or wrong."""
        words = " ".join(_WORD.findall(move.lower()))
        named = [thing for thing in problem.info["things"] if re.search(rf"\b{thing}\b", words)]
        asked = [trait for trait in TRAITS if re.search(rf"\b{_core(trait)}\b", words)]
        if len(named) == 1 and not asked:
            if named[0] == problem.answer:
                return Turn("Yes.", won=True)
            return Turn("No.")
        if len(asked) != 1 or named:
            return Turn("Ask about one property, or name one thing.", valid=False)
        return Turn("yes" if asked[0] in WORLD[problem.answer] else "no")


class Things(ProceduralProblems):
    """A choice of things, one of which is meant."""

    def __init__(self, split: str, seed: int, things: int) -> None:
        super().__init__("twenty-questions", split, seed)
        if not 2 <= things <= len(WORLD):
            raise UserError(f"things is {things}: it must be an integer from 2 to {len(WORLD)}.")
        self.things = things

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Any choice, in any order."""
        while True:
            shown = random_source.sample(list(WORLD), self.things)
            prompt = (
                f"I think of one of these: {', '.join(shown)}. Find out which. "
                f"You may ask whether it is {', '.join(TRAITS[:-1])} or {TRAITS[-1]}."
            )
            secret = random_source.choice(shown)
            yield Problem(problem_id, prompt, secret, f"Is it the {secret}?", info={"things": shown})

    def split_key(self, problem: Problem) -> str:
        """The things in order of the alphabet, and the one that is meant."""
        return f"{sorted(problem.info['things'])} {problem.answer}"


def _core(trait: str) -> str:
    """The words by which a property is recognised: `fly` of `able to fly`."""
    return trait.removeprefix("able to ").removeprefix("made of ").removeprefix("an ").removeprefix("a ")
