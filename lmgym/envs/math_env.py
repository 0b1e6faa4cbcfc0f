"""Maths tasks: the policy solves a problem, line by line or in one action, and the final answer is rewarded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import ClassVar

from lmgym.envs.env import Env, Response
from lmgym.errors import UserError
from lmgym.rewards.final_answer import AnswerForm, FinalAnswer, FreeAnswer, NumberAnswer, grade
from lmgym.rewards.reward import Reward, checked_reward
from lmgym.rewards.steps import StepReward
from lmgym.rewards.weighted import WeightedReward
from lmgym.types import Finish, Problem, State

REPEATS = 3
"""How often in a row a solution may write the same lines before it is cut off: a model that repeats itself goes on."""

LONGEST_CYCLE = 4
"""Number of lines up to which a repetition is looked for."""


class MathEnv(Env):
    """A maths task; one action is one line of the solution (`stepwise`) or all of it."""

    shared_attributes: ClassVar[tuple[str, ...]] = (*Env.shared_attributes, "answer_form", "reward", "step_reward")

    def __init__(
        self,
        problems: Sequence[Problem],
        answer_form: AnswerForm | None = None,
        stepwise: bool = True,
        max_steps: int = 32,
        reward: Reward | None = None,
        step_reward: StepReward | None = None,
    ) -> None:
        super().__init__(problems)
        if max_steps < 1:
            raise UserError(f"max_steps is {max_steps}: an episode needs at least one step.")
        self.answer_form: AnswerForm = answer_form or NumberAnswer()
        if reward is None and isinstance(self.answer_form, FreeAnswer):
            raise UserError("These problems have no answers to grade: pass a reward, a function of (problem, text).")
        self.stepwise = stepwise
        self.max_steps = max_steps
        if isinstance(reward, WeightedReward):
            reward = reward.with_form(self.answer_form)
        self.reward: Reward = reward or FinalAnswer(self.answer_form)
        self.step_reward = step_reward

    @property
    def instruction(self) -> str:
        """One sentence that says how to state the answer, for a system prompt."""
        return self.answer_form.instruction

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Waits for the next line until the answer, the end of the turn or a limit, and then grades the solution.

        An action that reaches its token budget truncates the episode, unless it already states the final answer, and so
        do the same lines for the third time in a row.
        """
        solution = state.messages[-1]["content"]
        reward = 0.0
        if self.step_reward:
            reward = checked_reward(self.step_reward(self.state, text, state), self.step_reward, state.problem)
        ended = finish == "eos" or (finish == "stop" and not self.stepwise)
        terminated = ended or self.answer_form.strict(solution) is not None
        is_stuck = finish == "length" or state.turn >= self.max_steps or repeats_itself(solution)
        truncated = not terminated and is_stuck
        if not terminated and not truncated:
            return Response(reward=reward)
        is_graded = not isinstance(self.answer_form, FreeAnswer)
        info = asdict(grade(self.answer_form, state.problem.answer, solution)) if is_graded else {}
        info |= {"final": True}  # the reward is that of the outcome, so a critic must not bootstrap on top of it
        if isinstance(self.reward, WeightedReward):
            info["rewards"] = self.reward.parts(state.problem, solution)
            reward += self.reward.total(info["rewards"], self.iteration)
        else:
            reward += checked_reward(self.reward(state.problem, solution), self.reward, state.problem)
        return Response(reward=reward, terminated=terminated, truncated=truncated, info=info)


def repeats_itself(solution: str) -> bool:
    """Whether a solution ends in the same line, or the same few lines, `REPEATS` times in a row; no worked one does."""
    lines = [line.strip() for line in solution.split("\n") if line.strip()]
    sizes = range(1, min(LONGEST_CYCLE, len(lines) // REPEATS) + 1)
    return any(lines[-size * REPEATS :] == lines[-size:] * REPEATS for size in sizes)
