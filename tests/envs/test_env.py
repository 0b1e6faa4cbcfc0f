"""The contract of every environment: Gymnasium's, and the bookkeeping of conversations."""

import re
import sys
import warnings
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import lmgym
from lmgym import Action, Env, Finish, Problem, Response, State, UserError
from lmgym.commands.settings import TaskSettings
from lmgym.envs import MathEnv, find
from lmgym.rewards.steps import weighted

DOWNLOADED = [
    pytest.param(name, marks=pytest.mark.network) for name in ("lmgym/GSM8K-v0", "lmgym/MATH-v0", "lmgym/SVAMP-v0")
]
PROBLEM = Problem("p", "What is 2 + 3?", "5", "2+3 = <<2+3=5>>5\nThe answer is: 5")


class GuessTheNumber(Env):
    """A game of several turns."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        if text == state.problem.answer:
            return Response(reward=1.0, reply="Yes!", terminated=True)
        return Response(reply="No, guess again.", truncated=state.turn == 3)


@pytest.mark.parametrize("gym_id", [*DOWNLOADED, "lmgym/WordProblems-v0", "lmgym/Arithmetic-v0"])
def test_gymnasium_accepts_every_environment_without_a_warning(gym_id):
    env = gymnasium.make(gym_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_gymnasium_accepts_a_game():
    check_env(GuessTheNumber([PROBLEM]), skip_render_check=True)


@pytest.mark.network
def test_a_seed_decides_which_problems_are_drawn_and_the_index_chooses_one():
    env = lmgym.make("gsm8k")
    first = [env.reset(seed=3)[0]] + [env.reset()[0] for _ in range(5)]
    again = [env.reset(seed=3)[0]] + [env.reset()[0] for _ in range(5)]
    assert first == again
    assert len({state.problem.id for state in first}) > 1
    assert env.reset(options={"index": 7})[0].problem is env.problems[7]


@pytest.mark.parametrize("index", [-1, 1, "0", True, None, 0.0, 10**30])
def test_an_index_that_is_not_there_is_one_sentence(index):
    with pytest.raises(UserError, match="There is no problem"):
        MathEnv([PROBLEM]).reset(options={"index": index})


def test_an_unknown_reset_option_is_one_sentence():
    with pytest.raises(UserError, match='given "indx"'):
        MathEnv([PROBLEM]).reset(options={"indx": 0})


@pytest.mark.parametrize("value", [None, "1", float("nan"), float("inf"), [1.0, 2.0], 1j, 10**400])
@pytest.mark.parametrize("kind", ["reward", "step_reward", "part", "respond"])
def test_a_reward_that_is_no_number_is_a_sentence_with_its_name_the_problem_and_the_value(value, kind):
    class NoNumber(Env):
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            return Response(value)

    def my_reward(*arguments):
        return value

    env = {
        "reward": lambda: MathEnv([PROBLEM], reward=my_reward),
        "step_reward": lambda: MathEnv([PROBLEM], step_reward=my_reward),
        "part": lambda: MathEnv([PROBLEM], step_reward=weighted((0.5, my_reward))),
        "respond": lambda: NoNumber([PROBLEM]),
    }[kind]()
    env.reset()
    name = "NoNumber.respond" if kind == "respond" else "my_reward"
    says = rf"{name} returned the reward .{re.escape(str(value)[:60])}.* for the problem p: "
    with pytest.raises(UserError, match=says):
        env.step("The answer is: 5")


@pytest.mark.parametrize(
    "value", [True, 1, np.float32(1.0), np.bool_(True), np.array(1), torch.tensor(1.0), Fraction(1)]
)
def test_any_kind_of_finite_number_is_a_reward(value):
    env = MathEnv([PROBLEM], reward=lambda problem, text: value)
    env.reset()
    reward = env.step("The answer is: 6")[1]
    assert (reward, type(reward)) == (1.0, float)


def test_an_environment_that_does_not_respond_is_one_sentence():
    class Mute(Env):
        def respond(self, state, text, finish):
            return 1.0

    env = Mute([PROBLEM])
    env.reset()
    with pytest.raises(UserError, match=r"Mute.respond returned 1.0: return an lmgym.Response"):
        env.step("5")


def test_stepping_needs_an_episode():
    env = MathEnv([PROBLEM])
    with pytest.raises(ResetNeeded):
        env.step("5")
    env.reset()
    env.step("The answer is: 5")
    with pytest.raises(ResetNeeded):
        env.step("5")


def test_a_game_keeps_the_whole_conversation():
    env = GuessTheNumber([PROBLEM])
    env.reset()
    state, reward, terminated, truncated, _ = env.step(Action("4", finish="eos"))
    assert (reward, terminated, truncated, state.turn, state.reply) == (0.0, False, False, 1, "No, guess again.")
    state, reward, terminated, _, _ = env.step("5")
    assert (reward, terminated) == (1.0, True)
    assert [message["role"] for message in state.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in state.messages][1::2] == ["4", "5"]


def test_an_environment_is_told_how_the_action_ended():
    class Recording(Env):
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            told.append((text, finish))
            return Response()

    told: list[tuple[str, Finish]] = []
    env = Recording([PROBLEM])
    env.reset()
    for action in ("a", Action("b"), Action("c", finish="eos"), Action("d", finish="length")):
        env.step(action)
    assert told == [("a", "stop"), ("b", "stop"), ("c", "eos"), ("d", "length")]


def test_an_action_that_is_no_text_is_one_sentence():
    env = GuessTheNumber([PROBLEM])
    env.reset()
    with pytest.raises(UserError, match=r"a text or an lmgym\.Action, but step\(\) was given int"):
        env.step(5)  # type: ignore[arg-type]


def test_an_empty_dataset_is_one_sentence():
    with pytest.raises(UserError, match="empty"):
        MathEnv([])


def test_clones_play_at_the_same_time():
    env = MathEnv([PROBLEM, Problem("q", "What is 1 + 1?", "2")])
    twin = env.clone()
    env.reset(options={"index": 0})
    twin.reset(options={"index": 1})
    assert env.step("The answer is: 5")[1] == twin.step("The answer is: 2")[1] == 1.0
    env.reset(seed=1)
    assert twin.np_random is not env.np_random


def test_names_options_and_splits_that_do_not_exist_are_named():
    with pytest.raises(UserError, match='did you mean "gsm8k"'):
        lmgym.make("gsm9k")
    with pytest.raises(UserError, match='did you mean "word-problems"'):
        lmgym.make("word_problems")
    with pytest.raises(UserError, match=r'no option "steps".*max_steps'):
        lmgym.make("gsm8k", steps=3)
    with pytest.raises(UserError, match='no split "dev": it has train, validation, test'):
        lmgym.make("gsm8k", split="dev")
    with pytest.raises(UserError, match="max_steps is 0"):
        lmgym.make("arithmetic", max_steps=0)


OWN_ENVIRONMENTS = """
import lmgym

class Echo(lmgym.Env):
    "Says what it hears."

    def __init__(self, split="train", turns=1, greeting="hello"):
        super().__init__([lmgym.Problem(split, f"{greeting} {turns}", "")])

    def respond(self, state, text, finish):
        return lmgym.Response(1.0, terminated=True)

class WithoutSplits(Echo):
    def __init__(self, **options):
        super().__init__(**options)

class Needy(Echo):
    def __init__(self, problems):
        super().__init__()

def function():
    pass
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_environments.py").write_text(OWN_ENVIRONMENTS)
    (tmp_path / "broken_environments.py").write_text("import lmgym\n1/0\n")
    monkeypatch.chdir(tmp_path)
    yield "own_environments"
    sys.modules.pop("own_environments", None)


def test_a_class_of_ones_own_is_made_by_its_module_and_name(own_module):
    env = lmgym.make(f"{own_module}:Echo", split="test", turns=3)
    assert (env.problems[0].id, env.problems[0].prompt) == ("test", "hello 3")
    assert lmgym.make(f"{own_module}:WithoutSplits", split="test", greeting="hi").problems[0].prompt == "hi 1"
    assert find(f"{own_module}:Echo").options == {"turns": 1, "greeting": "hello"}
    assert find(f"{own_module}:Echo").description == "Says what it hears."


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("own_environments:function", {}, "must be a class that extends lmgym.Env"),
        ("own_environments:lmgym", {}, "must be a class that extends lmgym.Env"),
        ("own_environments:Ecko", {}, "has no 'Ecko' .did you mean 'Echo'"),
        ("own_environments:", {}, "write it as module:name"),
        ("nowhere:Echo", {}, "No module named 'nowhere'"),
        ("broken_environments:Echo", {}, "ZeroDivisionError"),
        ("gsm9k:test", {}, 'did you mean "gsm8k"'),
        ("own_environments:Echo", {"turn": 2}, 'no option "turn" .did you mean "turns"'),
        ("own_environments:Needy", {}, 'needs the option "problems"'),
    ],
)
def test_what_is_not_an_environment_is_refused_in_one_sentence(own_module, name, options, fault):
    with pytest.raises(UserError, match=fault):
        lmgym.make(name, **options)


def test_a_registered_environment_is_made_by_its_name():
    lmgym.register("guess-for-test", lambda: GuessTheNumber([PROBLEM]), description="A game.")
    assert isinstance(lmgym.make("guess-for-test"), GuessTheNumber)
    assert "guess-for-test" in lmgym.names()


def test_an_option_is_known_by_the_name_that_make_takes(tmp_path):
    for name in ("gsm8k", "gsm8k:validation"):
        assert lmgym.envs.takes_option(name, "hold_out_validation")
    assert not lmgym.envs.takes_option("svamp", "hold_out_validation")
    assert lmgym.envs.takes_option(str(tmp_path / "mine.jsonl"), "max_steps")
    assert not lmgym.envs.takes_option(str(tmp_path / "mine.jsonl"), "split")


def test_another_environment_to_evaluate_on_gets_the_options_that_it_has():
    task = TaskSettings("gsm8k", {"hold_out_validation": "True", "max_steps": "4"}, "my_module:my_reward")
    assert task.on("svamp") == TaskSettings("svamp", {"max_steps": "4"}, "my_module:my_reward")
    assert task.on("gsm8k:validation").env_options == task.env_options
