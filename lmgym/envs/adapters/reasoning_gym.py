"""The tasks of reasoning-gym: `lmgym.make("reasoning-gym/countdown")`, each with its own generator and scorer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from lmgym.envs.env import Env, Response
from lmgym.envs.procedural import LENGTH, ProceduralProblems
from lmgym.errors import UserError
from lmgym.lookup import nearest
from lmgym.rewards.tagged_answer import TaggedAnswer
from lmgym.types import Finish, Problem, State

SOLVED = 0.999
"""A score from here on is a correct answer; some scorers add numbers to 1."""


class ReasoningGym(Env):
    """One task of reasoning-gym; the answer within the last <answer> tags gets the score of the task, from 0 to 1.

    Further options are those of the task's own configuration.
    """

    def __init__(self, task: str, split: str = "train", seed: int = 0, max_steps: int = 32, **config: Any) -> None:
        self.answer_form = TaggedAnswer()
        self.max_steps = max_steps
        self.tasks = ReasoningGymProblems(task, split, seed, config)
        super().__init__(self.tasks)

    shared_attributes = (*Env.shared_attributes, "answer_form", "tasks")

    @property
    def instruction(self) -> str:
        """One sentence that says how to state the answer, for a system prompt."""
        return self.answer_form.instruction

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Waits until an answer is complete or the turn ends, and then scores it."""
        solution = state.messages[-1]["content"]
        answer = self.answer_form.strict(solution)
        is_cut_off = finish == "length" or state.turn >= self.max_steps
        if answer is None and finish != "eos" and not is_cut_off:
            return Response()
        score = self.tasks.score(answer, state.problem) if answer is not None else 0.0
        truncated = answer is None and finish != "eos"
        correct = score >= SOLVED
        info = {"correct": correct, "lenient": correct, "parsed": answer is not None, "answer": answer, "final": True}
        return Response(reward=score, terminated=not truncated, truncated=truncated, info=info)


class ReasoningGymProblems(ProceduralProblems):
    """The items of a task's dataset, which is as long as ours; a split has questions of its own."""

    def __init__(self, task: str, split: str, seed: int, config: dict[str, Any]) -> None:
        super().__init__(f"reasoning-gym/{task}", split, seed)
        self.dataset = _dataset(task, seed, config)

    def draws(self, random_source: random.Random, problem_id: str) -> Iterator[Problem]:
        """Items anywhere in the dataset."""
        while True:
            index = random_source.randrange(LENGTH)
            item = self.dataset[index]
            answer = "" if item["answer"] is None else str(item["answer"])
            solution = f"<answer>{answer}</answer>"
            yield Problem(problem_id, item["question"], answer, solution, info={"index": index})

    def score(self, answer: str, problem: Problem) -> float:
        """The score that the task itself gives an answer; one that it cannot read has none."""
        item = self.dataset[problem.info["index"]]
        try:
            return float(self.dataset.score_answer(answer, item))
        except Exception:  # whatever a scorer raises for the text of a model
            return 0.0


def task_names() -> list[str]:
    """The names of all tasks."""
    return sorted(_package().factory.DATASETS)


def _dataset(task: str, seed: int, config: dict[str, Any]) -> Any:
    gym = _package()
    if task not in gym.factory.DATASETS:
        meant = nearest(task, gym.factory.DATASETS)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(f"reasoning-gym has no task {task!r}{guess}; it has {len(gym.factory.DATASETS)} others.")
    try:
        return gym.create_dataset(task, seed=seed, size=LENGTH, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"reasoning-gym/{task} cannot be made with these options: {error}") from None


def _package() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserError("reasoning-gym is not installed: run pip install 'lmgym[reasoning-gym]'.") from error
    return reasoning_gym
