"""Environments of verifiers 0.4 and later (`verifiers.v1`): `lmgym.make("verifiers/my-taskset")`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import islice
from typing import Any

from lmgym.envs.adapters.verifiers_exchange import Answer, Exchange
from lmgym.envs.env import Env, Response
from lmgym.envs.procedural import SPLITS, split_of
from lmgym.errors import UserError
from lmgym.types import Finish, Problem, State

SOLVED = 0.999
"""A reward from here on is a correct answer; rewards may be sums of rounded numbers."""


class VerifiersEnv(Env):
    """A taskset of verifiers and its environment, with the policy as its agent; the reward is that of the trace.

    Further options are those of the taskset's own configuration.
    """

    concurrency = 16
    shared_attributes = (*Env.shared_attributes, "env", "tasks")

    def __init__(
        self,
        taskset: str,
        split: str = "train",
        max_turns: int = 32,
        max_tasks: int = 10_000,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}: an episode needs at least one turn.")
        self.taskset = taskset
        self.max_turns = max_turns
        self.timeout = timeout
        has_splits = "split" in _config_type(taskset).model_fields
        self.env = _load(taskset, {**options, "split": split} if has_splits else options)
        self.role = _only_role(taskset, self.env)
        self.tasks = _tasks(taskset, self.env, "" if has_splits else split, max_tasks)
        _check(taskset, self.env, self.tasks[0])
        self.exchange: Exchange | None = None
        super().__init__([_problem(taskset, index, task) for index, task in enumerate(self.tasks)])

    def opening(self, problem: Problem) -> str:
        """Starts an episode of verifiers, and returns what it says first."""
        self.close()
        self.exchange = Exchange(self.env, self.tasks[problem.info["index"]], self.role, self.timeout)
        try:
            question = self.exchange.question()
            if question is None:
                self.exchange.trace()  # raises what went wrong
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"verifiers/{self.taskset} cannot start an episode: {_sentence(error)}") from error
        if question is None:
            raise UserError(f"verifiers/{self.taskset} ended an episode before the policy said anything.")
        return question

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Passes the message on; when the episode has ended, the reward is the weighted sum of the task's rewards."""
        assert self.exchange is not None
        is_cut_off = finish == "length"
        text = text.encode(errors="replace").decode()  # a trace cannot hold half of a surrogate pair
        self.exchange.answer(Answer(text, is_cut_off or state.turn >= self.max_turns, is_cut_off))
        question = self.exchange.question()  # what a task raises, or that it takes too long, fails the episode
        if question is not None:
            return Response(reply=question or "Continue.")
        return self._scored(self.exchange.trace(), is_cut_off or self.exchange.is_truncated)

    def close(self) -> None:
        """Ends an episode that still runs."""
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None

    def _scored(self, trace: Any, truncated: bool) -> Response:
        rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        info = {"correct": trace.reward >= SOLVED, "rewards": rewards, "metrics": dict(trace.metrics), "final": True}
        return Response(trace.reward, terminated=not truncated, truncated=truncated, info=info)


def _problem(taskset: str, index: int, task: Any) -> Problem:
    """The problem of a task; its reference answer is shown if the task has one."""
    data = task.data
    texts = [text for text in (data.system_prompt, data.prompt_text) if text]
    answer = getattr(data, "answer", None)
    return Problem(
        f"verifiers/{taskset}/{data.id or data.name or data.idx}",
        "\n\n".join(texts),
        "" if answer is None else str(answer),
        info={"index": index},
    )


def _config_type(taskset: str) -> Any:
    vf = _package()
    try:
        return vf.taskset_config_type(taskset)
    except Exception as error:  # whatever an import of a user's package raises
        raise UserError(f"verifiers/{taskset} cannot be imported: {_sentence(error)}") from error


def _load(taskset: str, options: dict[str, Any]) -> Any:
    """The environment of verifiers, with a harness that starts no program."""
    vf = _package()
    try:
        roles = [name for name, value in vf.env_config_type(taskset).model_fields.items() if _is_role(value.default)]
        harness = {"harness": {"id": "null"}}
        data = {"taskset": {**options, "id": taskset}, **dict.fromkeys(roles, harness)}
        return vf.load_environment(vf.resolve_env_config(data))
    except Exception as error:
        raise UserError(f"verifiers/{taskset} cannot be made with these options: {_sentence(error)}") from error


def _only_role(taskset: str, env: Any) -> str:
    roles = [name for name, value in env.config if _is_role(value)]
    if len(roles) != 1:
        raise UserError(f"verifiers/{taskset} has the agents {', '.join(roles)}: only one can be the policy.")
    if _package().default_harness_id(taskset) == taskset:
        raise UserError(f"verifiers/{taskset} has a harness of its own, a program that only verifiers can run.")
    return roles[0]


def _is_role(value: Any) -> bool:
    return isinstance(value, _package().AgentConfig)


def _tasks(taskset: str, env: Any, split: str, most: int) -> Sequence[Any]:
    """The tasks of a split, by a hash of their content; all of them if the taskset itself has splits."""
    if split and split not in SPLITS:
        raise UserError(f'There is no split "{split}": the splits are {", ".join(SPLITS)}.')
    try:
        tasks = list(islice(env.taskset, most))
    except Exception as error:
        raise UserError(f"The tasks of verifiers/{taskset} cannot be loaded: {_sentence(error)}") from error
    chosen = [task for task in tasks if not split or split_of(_content(task)) == split]
    if not chosen:
        raise UserError(f"verifiers/{taskset} has {len(tasks)} tasks, and none of them is in the split {split!r}.")
    return chosen


def _content(task: Any) -> str:
    """What a task asks, without its number: two tasks that ask the same are in the same split."""
    return str(task.data.model_dump_json(exclude={"idx", "id", "name"}))


def _check(taskset: str, env: Any, task: Any) -> None:
    """Refuses a task that needs a part of verifiers that only its own rollouts have."""
    needs = [
        (type(task).NEEDS_CONTAINER or task.data.image, "a container"),
        (type(env).start is not _package().Env.start, "resources that its environment starts"),
        (type(env.taskset).toolsets(env.taskset.config) or type(task).toolsets(task.config), "tool servers"),
        (task.hooks("stop") or _decorated(task, "intercept"), "stop conditions or interceptors of model calls"),
        (any(map(_needs_runtime, _hooks(task))), "a runtime for its set-up or its rewards"),
    ]
    for is_needed, what in needs:
        if is_needed:
            raise UserError(f"verifiers/{taskset} needs {what}, which only a rollout of verifiers itself has.")


def _hooks(task: Any) -> list[Any]:
    """The functions of a task that are called for an episode; the defaults of verifiers do nothing."""
    base = _package().Task
    names = [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(base, name)]
    own = [getattr(task, name) for name in names]
    return [*own, *task.hooks("metric"), *task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]


def _decorated(task: Any, kind: str) -> list[Any]:
    from verifiers.v1.utils.decorators import discover_decorated

    return list(discover_decorated(task, kind))


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _sentence(error: Exception) -> str:
    """The kind of an error and what it says, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _package() -> Any:
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise UserError("verifiers 0.4 is not installed: run pip install 'lmgym[verifiers]'.") from error
    return vf
