"""The reward for results that an answer shares with the worked solution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmgym
from lmgym import Problem
from lmgym.rewards.calculations import IntermediateResults
from lmgym.rewards.custom import load_reward

SOLUTION = "48/2 = <<48/2=24>>24 in May.\n48+24 = <<48+24=72>>72 altogether.\nThe answer is: 72"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (SOLUTION, 1.0),
        ("<<24+48=72>> <<0.5*48=24>>", 1.0),  # other ways to the same results
        ("<<48/2=24>>", 0.5),
        ("<<48/2=24>> <<48-24=24>>", 0.5),  # a result counts once
        ("<<48/2=24>> <<48*2=96>>", 1 / 3),  # superfluous ones count against it
        ("<<48/2=25>> <<48+25=73>>", 0.0),
        ("<<1+1=24>> <<24=24>> <<72=72>>", 0.0),  # neither wrong calculations nor bare numbers have results
        ("24 and 72", 0.0),
        ("", 0.0),
    ],
)
def test_shared_results_over_all_results(text, reward):
    assert IntermediateResults()(Problem("p", "", "72", SOLUTION), text) == pytest.approx(reward)


def test_without_a_worked_solution_nothing_is_shared():
    assert IntermediateResults()(Problem("p", "", "72"), SOLUTION) == 0.0


@given(st.lists(st.integers(0, 99)), st.lists(st.integers(0, 99), min_size=1))
def test_it_is_from_0_to_1_and_1_only_for_the_same_results(found, known):
    text, solution = (" ".join(f"<<{number}+1={number + 1}>>" for number in numbers) for numbers in (found, known))
    reward = IntermediateResults()(Problem("p", "", "1", solution), text)
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (set(found) == set(known))


def test_worked_solutions_of_gsm8k_have_all_their_results():
    reward = load_reward("intermediate")
    rewards = [reward(problem, problem.solution) for problem in lmgym.make("gsm8k").problems]
    assert set(rewards) <= {0.0, 1.0}
    assert sum(rewards) / len(rewards) > 0.95  # a few have no annotated calculation
