"""An environment whose policy may call tools before it answers: `lmgym.make("gsm8k", tools="python")`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from lmgym.envs.env import Env, Response
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.errors import UserError
from lmgym.lookup import import_named, nearest
from lmgym.tools.calls import ToolCall, tool_calls
from lmgym.tools.function_tool import FunctionTool, Tool, ToolError
from lmgym.types import Finish, Problem, State

CONCURRENCY = 4
"""Tools wait for processes and networks, so several episodes are stepped at once."""


class ToolEnv(EnvWrapper):
    """Answers the tool calls of an action, at most `max_calls` in an episode; other actions go to the environment.

    A tool's output is a message of its own, so it is never learnt. A call that cannot be made gets an answer that says
    why. `info` of the last step counts `tool_calls` and `tool_errors`.
    """

    shared_attributes: ClassVar[tuple[str, ...]] = (*EnvWrapper.shared_attributes, "functions")

    def __init__(self, env: Env, tools: Sequence[Tool], max_calls: int = 4) -> None:
        super().__init__(env)
        if max_calls < 1:
            raise UserError(f"max_calls is {max_calls}: give at least 1, or no tools.")
        self.concurrency = max(env.concurrency, CONCURRENCY)
        self.functions = {tool.schema["function"]["name"]: tool for tool in tools}
        self.max_calls = max_calls
        self.calls = 0
        self.errors = 0

    @property
    def tool_schemas(self) -> tuple[dict[str, Any], ...]:
        """The tools as a chat template describes them to the model."""
        return tuple(tool.schema for tool in self.functions.values())

    def opening(self, problem: Problem) -> str:
        """That of the environment; nothing has been called yet."""
        self.calls = self.errors = 0
        return super().opening(problem)

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """Runs the calls of an action that has any, and lets the environment respond to others."""
        calls = tool_calls(text) if finish != "length" else []
        if not calls:
            response = super().respond(state, text, finish)
            counted = {"tool_calls": self.calls, "tool_errors": self.errors}
            return replace(response, info={**response.info, **counted})
        if self.calls + len(calls) > self.max_calls:
            info = {"correct": False, "tool_calls": self.calls, "tool_errors": self.errors, "final": True}
            return Response(truncated=True, info=info)
        return Response(reply="\n".join(self._output(call) for call in calls), role="tool")

    def _output(self, call: ToolCall) -> str:
        """What a tool says, or what is wrong with the call."""
        self.calls += 1
        try:
            return self._run(call)
        except ToolError as error:
            self.errors += 1
            return f"Error: {error}"

    def _run(self, call: ToolCall) -> str:
        if call.fault:
            raise ToolError(call.fault)
        if call.name not in self.functions:
            raise ToolError(f"there is no tool {call.name!r}: there are {', '.join(self.functions)}.")
        return self.functions[call.name].call(call.arguments)


def load_tools(names: str | Sequence[str | Callable[..., Any]]) -> list[Tool]:
    """Tools by their names (`python`, `calculator`), as `module:function`, or functions themselves."""
    return [_load(name) for name in (names.split(",") if isinstance(names, str) else names)]


def _load(name: str | Callable[..., Any]) -> Tool:
    if not isinstance(name, str):
        return FunctionTool(name)
    if name == "python":
        from lmgym.tools.python_tool import PythonTool

        return FunctionTool(PythonTool(), "python")
    if name == "calculator":
        return FunctionTool(calculator)
    if ":" in name:
        return FunctionTool(import_named(name))
    meant = nearest(name, ("python", "calculator"))
    guess = f" (did you mean {meant}?)" if meant else ""
    raise UserError(f"there is no tool {name!r}{guess}: there are python, calculator, and your own as module:function.")


def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression with + - * / and brackets exactly."""
    from lmgym.calculator import calculate

    result = calculate(expression)
    if result is None:
        raise ValueError(f"{expression[:60]!r} is not an arithmetic expression")
    return result
