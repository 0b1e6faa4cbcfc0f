"""Rewards for single steps."""

import pytest

from lmgym import Problem, State
from lmgym.rewards.steps import calculations_are_right, weighted

STATE = State(Problem("p", "", ""), ())


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("48/2 = <<48/2=24>>24", 1.0),
        ("48/2 = <<48/2=25>>25", 0.0),
        ("<<1+1=2>>2 and <<1+1=3>>3", 0.5),
        ("<<10/3=3.33>>", 1.0),
        ("<<10/3=3.30>>", 0.0),
        ("<<10/3=3>>", 0.0),
        ("<<1/2=0.50>>", 1.0),
        ("<<$5*2=$10>>", 1.0),
        ("<<1/0=1>>", 0.0),
        ("<<x=1>>", 0.0),
        ("no calculation", 0.0),
    ],
)
def test_calculations_are_right(text, reward):
    assert calculations_are_right(STATE, text, STATE) == reward


def test_rewards_add_up_by_weight():
    total = weighted((0.1, calculations_are_right), (2.0, lambda state, text, next_state: float(len(text))))
    assert total(STATE, "<<1+1=2>>", STATE) == pytest.approx(0.1 + 2.0 * len("<<1+1=2>>"))
