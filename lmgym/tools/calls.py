"""Reads tool calls from what a model wrote, in the forms of Qwen and Hermes and of Llama.

<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>      Qwen 2.5 and 3, Hermes
<|python_tag|>{"name": "python", "parameters": {"code": "print(1)"}}              Llama 3, also without the tag
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_TAGGED = re.compile(r"<tool_call>(.{0,20000}?)(?:</tool_call>|\Z)", re.DOTALL)
_LLAMA = re.compile(r"\s*(?:<\|python_tag\|>)?\s*(\{.{0,20000})\Z", re.DOTALL)
FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


@dataclass(frozen=True)
class ToolCall:
    """A call as a model wrote it; with a fault, what is wrong with it."""

    name: str
    arguments: dict[str, Any]
    fault: str = ""


def described(schemas: Sequence[dict[str, Any]]) -> str:
    """The tools in words, for a model whose chat template has no place for them."""
    if not schemas:
        return ""
    lines = "\n".join(json.dumps(schema["function"]) for schema in schemas)
    return f"You may call these tools:\n{lines}\nTo call one, write {FORM} and end your turn."


def tool_calls(text: str) -> list[ToolCall]:
    """The calls in a text, in their order; none if it only speaks."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return [_call(body) for body in tagged]
    match = _LLAMA.fullmatch(text)
    if match is None or not ('"name"' in match[1] and ("parameters" in match[1] or "arguments" in match[1])):
        return []
    return [_call(match[1].rstrip().removesuffix("<|eom_id|>").removesuffix("<|eot_id|>"))]


def _call(body: str) -> ToolCall:
    try:
        found = json.loads(body.strip(), strict=False)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"The call is not valid JSON ({error}); write {FORM}.")
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return ToolCall("", {}, f"The call has no name; write {FORM}.")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as JSON within JSON
        try:
            arguments = json.loads(arguments, strict=False)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(found["name"], {}, f"The arguments must be an object; write {FORM}.")
    return ToolCall(found["name"], arguments)
