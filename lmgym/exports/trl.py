"""Environments of lmgym in TRL: a dataset of prompts with a reward function, or with an environment that has turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gymnasium.error import ResetNeeded

from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.exports.episodes import exportable, first_messages, name_of, play, problem_count

if TYPE_CHECKING:
    from datasets import Dataset

RewardFunction = Callable[..., list[float | None]]
"""The type of a reward function in TRL; those of lmgym give no None."""

HINT = "\n\nSend each answer or move with the function act."
"""What is added to the first message of an episode whose actions are calls of a function."""

ENDED = "The episode has ended."


def prompt_dataset(env: Env, problems: int | None = None, system_prompt: str | None = None) -> Dataset:
    """The first `problems`, or all, as `train_dataset` or `eval_dataset` of a trainer.

    Columns are `prompt` (messages), `index` (of the problem), `id` and `answer`. By default the system prompt is that
    of lmgym's chat policy; an empty one is left out.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise UserError("The dataset needs the package datasets: run pip install 'lmgym[trl]'.") from error
    played = exportable(env)
    rows = [
        {
            "prompt": first_messages(played, index, system_prompt),
            "index": index,
            "id": env.problems[index].id,
            "answer": env.problems[index].answer,
        }
        for index in range(problem_count(env, problems))
    ]
    return Dataset.from_list(rows)


def reward_function(env: Env) -> RewardFunction:
    """The environment's reward of a completion, for `reward_funcs` of a trainer and the dataset above."""
    played = exportable(env)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        index: Sequence[int] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        indices = _required(index)
        return [play(played, i, _text(completion))[0] for i, completion in zip(indices, completions, strict=True)]

    reward.__name__ = name_of(env)  # the name of the metric in TRL's log
    return reward


def environment_factory(env: Env) -> Callable[[], TRLEnvironment]:
    """Makes an environment of TRL for each rollout, for `environment_factory` of a trainer and the dataset above."""
    template = exportable(env)
    return lambda: TRLEnvironment(template.clone())


class TRLEnvironment:
    """An environment of TRL: the model acts by calling the function `act`. TRL takes every public method for a tool."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._reward = 0.0

    def reset(self, index: int | None = None, **columns: Any) -> str:
        """Starts the episode of a row of the dataset; the result is added to its prompt."""
        index = _required(index)
        self._env.reset(seed=index, options={"index": index})
        self._reward = 0.0
        return HINT

    def act(self, text: str) -> str:
        """Sends your answer or your next move, and returns the reply to it.

        Args:
            text: Your answer or your move, in the form that was asked for.

        Returns:
            The reply.
        """
        try:
            state, reward, terminated, truncated, _ = self._env.step(str(text))
        except ResetNeeded:
            return ENDED
        self._reward += reward
        is_over = terminated or truncated
        return f"{state.reply} {ENDED}".strip() if is_over else state.reply

    def get_reward(self) -> float:
        """The sum of the rewards of the episode so far."""
        return self._reward


def _required(index: Any) -> Any:
    if index is None:
        raise UserError('The dataset has no column "index": make it with lmgym.exports.trl.prompt_dataset.')
    return index


def _text(completion: Any) -> str:
    """What the model wrote: a text, or the contents of its messages."""
    if isinstance(completion, str):
        return completion
    return "".join(message.get("content") or "" for message in completion if message["role"] == "assistant")
