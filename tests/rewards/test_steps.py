"""Rewards for single steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmgym import Problem, State
from lmgym.calculator import calculate
from lmgym.envs import MathEnv
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
        ("<<4580/1271=3.6>>", 1.0),
        ("<<4580/1271=3.7>>", 0.0),
        ("<<1=1>>", 0.0),
        ("<<-5=-5>> <<(7)=7>> <<50%=0.5>>", 0.0),
        ("<<1=1>> <<1+1=3>>", 0.0),
        ("<<1+1=2>> <<1 + 1=2>> <<1+1=2.0>> <<1+2=4>>", 0.5),
        ("no calculation", 0.0),
    ],
)
def test_calculations_are_right(text, reward):
    assert calculations_are_right(STATE, text, STATE) == reward


@given(st.integers(1, 9999), st.integers(1, 9999))
def test_whatever_the_calculator_writes_is_right(left, right):
    expression = f"{left}/{right}"
    assert calculations_are_right(STATE, f"<<{expression}={calculate(expression)}>>", STATE) == 1.0


def test_repeating_a_calculation_pays_once_in_an_episode():
    env = MathEnv([Problem("p", "", "5")], step_reward=calculations_are_right, max_steps=9)
    env.reset()
    lines = ["<<1=1>>", "<<1+1=2>>", "<<1+1=2>>", "<<1 + 1=2.0>> <<1=1>>", "<<2+2=5>>", "<<2+2=4>>", "<<2+2=4>>"]
    assert [env.step(line)[1] for line in lines] == [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_rewards_add_up_by_weight():
    total = weighted((0.1, calculations_are_right), (2.0, lambda state, text, next_state: float(len(text))))
    assert total(STATE, "<<1+1=2>>", STATE) == pytest.approx(0.1 + 2.0 * len("<<1+1=2>>"))
