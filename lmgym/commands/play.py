"""`lmgym play ENV`: a person at the keyboard, or a model, in the same environments that models are trained in."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.prompt import Prompt

from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import results
from lmgym.envs.env import Env
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.policies.human_policy import HumanPolicy
from lmgym.policies.policy import Policy
from lmgym.types import State, Step


@dataclass
class PlaySettings:
    """The settings of `lmgym play`; without --model you play yourself."""

    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=lambda: PolicySettings(model=""))
    split: str = "train"
    """The split to play."""
    index: int = 0
    """Index of the problem."""
    seed: int = 0
    """Seed of the model's samples."""


def play(settings: PlaySettings) -> None:
    """Plays one problem and prints what is said, the reward of each action, and the parts of the reward."""
    env = settings.task.make(settings.split)
    policy = _model(settings, env) if settings.policy.model else HumanPolicy(_ask)
    envs = VectorEnv(env)
    players = 2 if getattr(env, "opponent", "") == "self" else 1
    states = envs.reset([settings.index], players, settings.seed)
    results.print(states[0].messages[0]["content"], style="bold", markup=False)
    results.print(getattr(env, "instruction", ""), style="dim", markup=False)
    last: list[Step] = []
    while states := envs.states:
        for step in envs.step(policy.get_actions(states)):
            _show(step, players, is_shown=bool(settings.policy.model))
            last += [step] if step.done else []
    _show_end(last)


def _show(step: Step, players: int, is_shown: bool) -> None:
    side = f"player {step.state.episode + 1}: " if players > 1 else ""
    if is_shown:
        results.print(f"{side}{step.action.text.rstrip()}", style="yellow", markup=False)
    if step.next_state.reply:
        results.print(f"{side}{step.next_state.reply}", style="cyan", markup=False)
    if step.reward:
        results.print(f"{side}reward {step.reward:g}", style="green", markup=False)
    if "error" in step.info:
        raise UserError(f"the environment failed: {step.info['error']}")


def _show_end(last: list[Step]) -> None:
    for step in last:
        parts = ", ".join(f"{name} {value:g}" for name, value in step.info.get("rewards", {}).items())
        if parts:
            results.print(f"parts of the reward: {parts}", style="green", markup=False)
    problem = last[0].state.problem
    ended = "was cut off" if last[0].truncated else "is over"
    answer = f"; the answer was {problem.answer}" if problem.answer else ""
    results.print(f"The episode {ended}{answer}.", markup=False)
    if problem.solution:
        results.print(problem.solution, style="dim", markup=False)


def _model(settings: PlaySettings, env: Env) -> Policy:
    shots = settings.policy.shots
    examples = few_shot_examples(settings.task.make("train"), shots) if shots else []
    policy: Policy = settings.policy.make(env, examples)
    return policy


def _ask(state: State) -> str:
    try:
        return Prompt.ask(f"line {state.turn + 1}", console=results, default="", show_default=False)
    except EOFError:
        raise UserError("the input ended before the episode did.") from None
