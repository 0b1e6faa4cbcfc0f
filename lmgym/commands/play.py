"""`lmgym play`: a human at the keyboard, in the same environments as the models."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.prompt import Prompt

from lmgym.commands.settings import TaskSettings
from lmgym.console import results
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.policies.human_policy import HumanPolicy
from lmgym.types import State


@dataclass
class PlaySettings:
    """The settings of `lmgym play`."""

    task: TaskSettings = field(default_factory=TaskSettings)
    split: str = "train"
    """The split to play."""
    index: int = 0
    """Index of the problem."""


def play(settings: PlaySettings) -> None:
    """Plays one problem line by line and prints the reward of each line."""
    envs = VectorEnv(settings.task.make(settings.split))
    states = envs.reset([settings.index])
    results.print(states[0].messages[0]["content"], style="bold", markup=False)
    results.print(getattr(envs.env, "instruction", ""), style="dim", markup=False)
    policy = HumanPolicy(_ask)
    while states:
        steps = envs.step(policy.get_actions(states))
        step = steps[0]
        if step.next_state.reply:
            results.print(step.next_state.reply, style="cyan", markup=False)
        if step.reward:
            results.print(f"reward {step.reward:g}", style="green")
        states = [step.next_state for step in steps if not step.done]
    results.print(f"The episode is over; the answer was {step.state.problem.answer}.", markup=False)
    if step.state.problem.solution:
        results.print(step.state.problem.solution, style="dim", markup=False)


def _ask(state: State) -> str:
    try:
        return Prompt.ask(f"line {state.turn + 1}", console=results, default="", show_default=False)
    except EOFError:
        raise UserError("the input ended before the episode did.") from None
