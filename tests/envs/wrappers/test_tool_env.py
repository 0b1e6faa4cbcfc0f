"""Tools in an environment: what a call gets back, what is graded, and that no output of a tool is learnt."""

from __future__ import annotations

import pytest
from conftest import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym
from lmgym import Problem, UserError
from lmgym.buffer import Buffer, episode_to_row, row_to_episode
from lmgym.envs.math_env import MathEnv
from lmgym.envs.vector_env import VectorEnv
from lmgym.envs.wrappers.tool_env import ToolEnv, load_tools
from lmgym.learning.batch import Batch
from lmgym.policies.policy_for import policy_for
from lmgym.types import Action

PROBLEMS = [Problem(str(n), f"What is {n}*{n}?", str(n * n)) for n in range(2, 12)]


def make(**options) -> ToolEnv:
    return ToolEnv(MathEnv(PROBLEMS, stepwise=False), load_tools("calculator,python"), **options)


def call(name: str, **arguments) -> str:
    import json

    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_call_is_answered_and_the_answer_is_graded():
    env = make()
    env.reset(options={"index": 3})
    state, reward, terminated, truncated, _ = env.step(Action(call("calculator", expression="5*5"), finish="eos"))
    assert state.messages[-1] == {"role": "tool", "content": "25"}
    assert (reward, terminated, truncated) == (0, False, False)
    state, *_ = env.step(Action(call("python", code="print(5**2)"), finish="eos"))
    assert state.messages[-1]["content"] == "25"
    _, reward, terminated, _, info = env.step(Action("The answer is: 25", finish="eos"))
    assert (reward, terminated) == (1, True)
    assert (info["correct"], info["tool_calls"], info["tool_errors"]) == (True, 2, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (call("calc", expression="1"), "Error: there is no tool 'calc': there are calculator, python."),
        (call("calculator", expresion="1"), "Error: calculator has no argument 'expresion'"),
        (call("calculator", expression="import os"), "Error: ValueError: 'import os' is not an arithmetic expression"),
        ("<tool_call>{nonsense}</tool_call>", "Error: The call is not valid JSON"),
        (call("python", code="1/0"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_call_that_fails_gets_an_answer_to_learn_from(text, said):
    env = make()
    env.reset(options={"index": 0})
    state, *_ = env.step(Action(text, finish="eos"))
    assert state.messages[-1]["role"] == "tool"
    assert state.messages[-1]["content"].startswith(said)


def test_calls_are_limited():
    env = make(max_calls=2)
    env.reset(options={"index": 0})
    for _ in range(2):
        *_, truncated, _ = env.step(Action(call("calculator", expression="1"), finish="eos"))
        assert not truncated
    *_, terminated, truncated, info = env.step(Action(call("calculator", expression="1"), finish="eos"))
    assert (terminated, truncated, info["correct"]) == (False, True, False)


@given(st.text(max_size=100))
@settings(max_examples=30, deadline=None)
def test_any_text_is_an_action(text):
    env = ToolEnv(MathEnv(PROBLEMS, stepwise=False), load_tools("calculator"))
    env.reset(options={"index": 0})
    env.step(Action(text, finish="eos"))


def test_the_output_of_a_tool_is_masked():
    """Replays what a model wrote: only those tokens are learnt."""
    env = VectorEnv(make())
    policy = policy_for(env.env, tiny_model(size=32), shots=0, policy="chat", max_tokens=8)
    buffer = Buffer()
    states = env.reset([3])
    for text in (call("calculator", expression="5*5"), "The answer is: 25"):
        ids = policy.encode(text)
        action = Action(text, policy.prompt_ids(states[0]), ids, (0.0,) * len(ids), (1,) * len(ids), "eos")
        buffer.add(env.step([action]))
        states = env.states
    episodes = list(buffer.episodes)
    assert [row_to_episode(episode_to_row(episode)) for episode in episodes] == episodes
    batch = Batch.from_episodes(episodes)
    learnt = policy.decode(batch.tokens[batch.mask].tolist())
    assert learnt == call("calculator", expression="5*5") + "The answer is: 25"
    everything = policy.decode(batch.tokens[0].tolist())
    assert "25" in everything[: everything.rindex("The answer is")]


def test_a_model_without_a_place_for_tools_is_told_in_the_system_prompt():
    env = make()
    policy = policy_for(env, tiny_model(size=32), shots=0, policy="chat")
    text = policy.decode(policy.prompt_ids(env.reset(options={"index": 0})[0]))
    assert '"name": "calculator"' in text
    assert text.count('"name": "python"') == 1


def test_every_environment_takes_tools():
    env = lmgym.make("arithmetic", tools="python,calculator", max_calls=2)
    assert isinstance(env, ToolEnv)
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["python", "calculator"]
    with pytest.raises(UserError, match="did you mean python"):
        lmgym.make("arithmetic", tools="pyton")


def test_a_function_of_ones_own_is_a_tool():
    def double(x: float) -> float:
        """Doubles a number."""
        return 2 * x

    env = lmgym.make("arithmetic", tools=[double])
    env.reset(options={"index": 0})
    state, *_ = env.step(Action(call("double", x=21), finish="eos"))
    assert state.messages[-1]["content"] == "42.0"
