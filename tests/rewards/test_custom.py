"""Rewards of one's own, found by name and checked before anything runs."""

import sys

import pytest

from lmgym import Problem, UserError
from lmgym.rewards.custom import load_reward

OWN_REWARDS = """
import functools

def length(problem, text):
    return float(len(text))

def with_more(problem, text, weight=2.0):
    return weight

def one_argument(text):
    return 1.0

def three_arguments(problem, text, other):
    return 1.0

class Judge:
    def __init__(self, word):
        self.word = word

    def __call__(self, problem, text):
        return float(self.word in text)

judge = Judge("sun")
scaled = functools.partial(with_more, weight=3.0)
number = 5
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(OWN_REWARDS)
    (tmp_path / "bad_syntax.py").write_text("def")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_rewards", None)


@pytest.mark.parametrize(("name", "reward"), [("length", 8.0), ("with_more", 2.0), ("judge", 1.0), ("scaled", 3.0)])
def test_a_function_in_the_current_directory_is_found(name, reward):
    assert load_reward(f"own_rewards:{name}")(Problem("p", "", ""), "sunshine") == reward


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("own_rewards:number", "is of type int, and must be a function"),
        ("own_rewards:Judge", "the class Judge"),
        ("own_rewards:one_argument", "too many positional arguments"),
        ("own_rewards:three_arguments", "missing a required argument: 'other'"),
        ("own_rewards:lenght", "did you mean 'length'"),
        ("own_rewards", "your own as module:name"),
        (":length", "write a sum such as"),
        ("nowhere:length", "No module named 'nowhere'"),
        ("bad_syntax:length", "SyntaxError"),
    ],
)
def test_what_is_not_a_reward_is_refused_in_one_sentence(place, fault):
    with pytest.raises(UserError, match=fault) as caught:
        load_reward(place)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)
