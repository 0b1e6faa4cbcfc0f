"""Wrappers: what each changes, that the wrapped environment is seeded and cloned with it, and their options of make."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

import lmgym
from lmgym import Problem, Response, UserError
from lmgym.envs.math_env import MathEnv
from lmgym.envs.vector_env import VectorEnv
from lmgym.envs.wrappers.few_shot_prompt import FewShotPrompt
from lmgym.envs.wrappers.recording import Recording
from lmgym.envs.wrappers.reward_shaping import RewardShaping
from lmgym.envs.wrappers.turn_limit import TurnLimit
from lmgym.envs.wrappers.wrapper import EnvWrapper
from lmgym.types import Action

PROBLEMS = [Problem(f"square/{n}", f"What is {n}*{n}?", str(n * n), f"{n}*{n} = {n * n}") for n in range(2, 12)]


class Dice(lmgym.Env):
    """Draws a number at the opening and another one in every turn."""

    def __init__(self) -> None:
        super().__init__(PROBLEMS)

    def opening(self, problem):
        return f"You rolled {self.np_random.integers(1_000_000)}."

    def respond(self, state, text, finish):
        return Response(reply=str(self.np_random.integers(1_000_000)), terminated=state.turn == 3, reward=0.5)


def halved(state, text, response):
    return response.reward / 2


@pytest.mark.parametrize(
    "wrap",
    [
        EnvWrapper,
        lambda env: TurnLimit(env, 5),
        lambda env: FewShotPrompt(env, PROBLEMS[:2]),
        lambda env: RewardShaping(env, halved),
    ],
)
def test_a_wrapper_is_a_gymnasium_environment_whose_inside_is_seeded(wrap):
    env = wrap(Dice())
    check_env(env, skip_render_check=True)
    bare, _ = Dice().reset(seed=7, options={"index": 3})
    state, _ = env.reset(seed=7, options={"index": 3})
    assert bare.messages[0]["content"] in state.messages[0]["content"]
    clone = env.clone()
    clone.reset(seed=7, options={"index": 3})
    assert [env.step("a")[0].reply for _ in range(2)] == [clone.step("a")[0].reply for _ in range(2)]


def test_episodes_of_a_wrapped_environment_do_not_share_what_is_inside():
    envs = VectorEnv(RewardShaping(Dice(), halved))
    first, second = envs.reset([0, 0], seed=1)
    assert first.messages != second.messages
    for turn in range(3):
        steps = envs.step([Action("x", episode=state.episode) for state in envs.states])
        assert len({step.next_state.reply for step in steps}) == 2
        assert [step.done for step in steps] == [turn == 2] * 2
    assert [step.info["rewards"] for step in steps] == [{"unshaped": 1.5}] * 2
    assert [step.reward for step in steps] == [0.25] * 2


def test_a_turn_limit_truncates_and_does_not_hide_an_end():
    env = TurnLimit(MathEnv(PROBLEMS), 2)
    env.reset(options={"index": 0})
    assert env.step("let me see")[2:4] == (False, False)
    assert env.step("hm")[2:4] == (False, True)
    env.reset(options={"index": 0})
    env.step("let me see")
    _, reward, terminated, truncated, _ = env.step("The answer is: 4")
    assert (reward, terminated, truncated) == (1, True, False)
    with pytest.raises(UserError, match="at least one turn"):
        TurnLimit(MathEnv(PROBLEMS), 0)


def test_worked_examples_come_before_the_problem():
    env = FewShotPrompt(MathEnv(PROBLEMS), PROBLEMS[:2])
    state, _ = env.reset(options={"index": 5})
    assert state.messages[0]["content"] == (
        "Problem: What is 2*2?\nSolution: 2*2 = 4\n\nProblem: What is 3*3?\nSolution: 3*3 = 9\n\n"
        "Problem: What is 7*7?\nSolution:"
    )


def test_what_is_played_is_recorded(tmp_path):
    path = tmp_path / "new" / "played.jsonl"
    envs = VectorEnv(Recording(MathEnv(PROBLEMS), path))
    envs.reset([0, 1])
    envs.step([Action("thinking", episode=0), Action("The answer is: 9", episode=1)])
    envs.step([Action("The answer is: 5", episode=0)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["problem"] for row in rows] == ["square/3", "square/2"]
    assert [row["rewards"] for row in rows] == [[1], [0, 0]]
    assert rows[1]["messages"][-1] == {"role": "assistant", "content": "thinking\nThe answer is: 5"}
    assert rows[0]["info"]["correct"]


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Recording(MathEnv(PROBLEMS), tmp_path / "file" / "played.jsonl")


def test_every_environment_takes_the_options_of_wrappers(tmp_path):
    options = {"turn_limit": 2, "few_shot": 1, "tools": "calculator", "record": str(tmp_path / "played.jsonl")}
    env: Any = lmgym.make("arithmetic", "test", **options)
    assert env.made_from.options == options
    kinds = [type(each).__name__ for each in (env, env.env, env.env.env, env.env.env.env, env.env.env.env.env)]
    assert kinds == ["Recording", "FewShotPrompt", "TurnLimit", "ToolEnv", "ArithmeticEnv"]
    training: Any = lmgym.make("arithmetic", "train")
    assert env.answer_form == training.answer_form
    assert env.tool_schemas[0]["function"]["name"] == "calculator"
    shown = env.env.examples[0]
    assert training.problems.split_key(shown) != training.problems.split_key(env.problems[0])
    with pytest.raises(UserError, match="no option"):
        lmgym.make("arithmetic", turnlimit=3)


def test_a_solution_that_the_turn_limit_cuts_is_graded():
    env = TurnLimit(MathEnv(PROBLEMS), 2)
    env.reset(options={"index": 0})
    env.step("a")
    *_, truncated, info = env.step("it may be 4")
    assert (truncated, info["correct"], info["lenient"], info["parsed"]) == (True, False, True, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"turn_limit": "five"}, "turn_limit is 'five': give a whole number"),
        ({"turn_limit": 0}, "at least one turn"),
        ({"few_shot": 1.5}, "few_shot is 1.5"),
        ({"max_calls": 3}, "max_calls is of tools"),
        ({"shaping": 3}, "shaping is 3"),
    ],
)
def test_wrong_options_of_wrappers_are_one_sentence(options, said):
    with pytest.raises(UserError, match=said):
        lmgym.make("arithmetic", **options)
