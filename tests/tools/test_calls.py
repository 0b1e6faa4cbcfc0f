"""Tool calls as models write them, and functions as tools."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmgym.errors import UserError
from lmgym.tools.calls import ToolCall, tool_calls
from lmgym.tools.function_tool import FunctionTool, ToolError
from lmgym.tools.python_tool import PythonTool

values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
arguments = st.dictionaries(st.text(max_size=8), values, max_size=4)


@given(st.text(min_size=1, max_size=10), arguments)
def test_both_forms_are_read_back(name, given_arguments):
    qwen = f"Let me see.\n<tool_call>\n{json.dumps({'name': name, 'arguments': given_arguments})}\n</tool_call>"
    llama = f"<|python_tag|>{json.dumps({'name': name, 'parameters': given_arguments})}"
    assert tool_calls(qwen) == [ToolCall(name, given_arguments)]
    assert tool_calls(llama) == tool_calls(llama.removeprefix("<|python_tag|>")) == [ToolCall(name, given_arguments)]


@given(st.text(max_size=200))
def test_any_text_is_read(text):
    assert isinstance(tool_calls(text), list)
    assert isinstance(tool_calls(f"<tool_call>{text}</tool_call>"), list)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<tool_call>{'name': 'f'}</tool_call>", "not valid JSON"),
        ("<tool_call>{}</tool_call>", "no name"),
        ("<tool_call>[1]</tool_call>", "no name"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be an object"),
        ('<tool_call>{"name": "f", "argum', "not valid JSON"),
        ("<tool_call>" + "[" * 5000 + "</tool_call>", "not valid JSON"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(text, fault):
    (call,) = tool_calls(text)
    assert fault in call.fault


def test_speaking_is_no_call():
    assert tool_calls("The answer is: 5") == []
    assert tool_calls("The set is {1, 2}.") == []
    assert tool_calls('{"answer": 5}') == []


def test_two_calls_are_two():
    text = "".join(f'<tool_call>{{"name": "f", "arguments": {{"x": {x}}}}}</tool_call>' for x in (1, 2))
    assert [call.arguments for call in tool_calls(text)] == [{"x": 1}, {"x": 2}]


def add(a: float, b: int = 2, note: str | None = None) -> float:
    """Adds two numbers.

    Not shown.
    """
    return a + b


def test_a_function_is_described_by_its_hints_and_docstring():
    tool = FunctionTool(add)
    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "integer"}, "note": {"type": "string"}},
                "required": ["a"],
            },
        },
    }
    assert tool.call({"a": 1}) == "3.0"
    assert tool.call({"a": "1.5", "b": "3"}) == "4.5"


@pytest.mark.parametrize(
    ("given_arguments", "said"),
    [
        ({}, "needs the argument 'a'"),
        ({"a": 1, "c": 2}, "no argument 'c'"),
        ({"a": "one"}, "type number"),
        ({"a": True}, "type number"),
        ({"a": 1, "b": [1]}, "type integer"),
    ],
)
def test_arguments_that_do_not_fit_get_an_answer(given_arguments, said):
    with pytest.raises(ToolError, match=said):
        FunctionTool(add).call(given_arguments)


def test_what_a_function_raises_is_the_answer():
    def divide(a: int, b: int) -> float:
        """Divides."""
        return a / b

    with pytest.raises(ToolError, match="ZeroDivisionError: division by zero"):
        FunctionTool(divide).call({"a": 1, "b": 0})


def test_a_function_that_cannot_be_described_is_refused():
    def no_hint(a) -> str:
        """Text."""
        return a

    def no_doc(a: int) -> int:
        return a

    def odd(a: set) -> str:
        """Text."""
        return str(a)

    for function, said in ((no_hint, "type hint"), (no_doc, "docstring"), (odd, "must be one of"), (print, "by name")):
        with pytest.raises((UserError, TypeError), match=said):
            FunctionTool(function)


def test_the_python_tool_is_a_tool():
    tool = FunctionTool(PythonTool(seconds=20), "python")
    assert tool.schema["function"]["description"] == "Runs Python code and returns what it prints."
    assert tool.call({"code": "print(6*7)"}) == "42"
