"""Any Python function with type hints and a docstring as a tool, described as chat templates want it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Protocol

from lmgym.errors import UserError

JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array", dict: "object"}


class Tool(Protocol):
    """What a policy may call: a name, a description, and a function of named arguments that returns a text."""

    @property
    def schema(self) -> dict[str, Any]:
        """The description in the form of a chat template's `tools`."""

    def call(self, arguments: dict[str, Any]) -> str:
        """Runs it; a ToolError for arguments that do not fit."""


class ToolError(Exception):
    """A call that could not be made; its text is the reply to the model."""


class FunctionTool:
    """A function as a tool."""

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.parameters = _parameters(function, self.name)
        self.description = _description(function, self.name)

    @property
    def schema(self) -> dict[str, Any]:
        """The description in the form of a chat template's `tools`."""
        properties = {name: {"type": JSON_TYPES[kind]} for name, (kind, _) in self.parameters.items()}
        required = [name for name, (_, is_required) in self.parameters.items() if is_required]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def call(self, arguments: dict[str, Any]) -> str:
        """Calls the function with checked arguments; whatever it raises becomes the reply."""
        checked = self._checked(arguments)
        try:
            return str(self.function(**checked))
        except Exception as error:  # of the user's function, on the input of a model
            raise ToolError(f"{type(error).__name__}: {error}") from error

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            raise ToolError(
                f"{self.name} has no argument {unknown[0]!r}: it has {', '.join(self.parameters) or 'none'}."
            )
        missing = [name for name, (_, is_required) in self.parameters.items() if is_required and name not in arguments]
        if missing:
            raise ToolError(f"{self.name} needs the argument {missing[0]!r}.")
        return {name: self._converted(name, value) for name, value in arguments.items()}

    def _converted(self, name: str, value: Any) -> Any:
        """The value in the declared type; whole numbers are floats too, and texts may spell numbers."""
        kind, _ = self.parameters[name]
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                return kind(value)
            except ValueError:
                pass
        raise ToolError(f"the argument {name!r} of {self.name} must be of type {JSON_TYPES[kind]}.")


def _parameters(function: Callable[..., Any], name: str) -> dict[str, tuple[type, bool]]:
    """The type of each argument, and whether it must be given."""
    hinted: Any = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    hints = typing.get_type_hints(hinted)
    found: dict[str, tuple[type, bool]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UserError(f"the tool {name} cannot have the argument {parameter}: models pass arguments by name.")
        if parameter.name not in hints:
            raise UserError(f"the argument {parameter.name!r} of the tool {name} needs a type hint.")
        found[parameter.name] = (_plain_type(hints[parameter.name], name), parameter.default is parameter.empty)
    return found


def _plain_type(hint: Any, name: str) -> type:
    """`list` for `list[int]`, and `int` for `int | None`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        hint = options[0] if len(options) == 1 else hint
    plain = typing.get_origin(hint) or hint
    if plain not in JSON_TYPES:
        kinds = ", ".join(kind.__name__ for kind in JSON_TYPES)
        raise UserError(f"the tool {name} has an argument of type {hint}: it must be one of {kinds}.")
    return typing.cast(type, plain)


def _description(function: Callable[..., Any], name: str) -> str:
    text = getattr(function, "description", None) or inspect.getdoc(function) or ""
    if not text:
        raise UserError(f"the tool {name} needs a docstring: it is what the model is told about it.")
    return str(text).split("\n\n")[0].replace("\n", " ")
