"""The curriculum prefers what is solved now and then, and never starves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made import Turn, make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym
from lmgym import Problem
from lmgym.algorithms.problem_order import POOL, ProblemOrder, choose_problems, success_rates

IDS = [f"p{index}" for index in range(12)]


def episode(group: int, reward: float, iteration: int = 0):
    return make_episode(Turn([1], [2], [1], reward), group=group, iteration=iteration)


def test_the_newest_group_of_a_problem_counts():
    episodes = [episode(0, 0.0), episode(0, 0.0), episode(1, 1.0), episode(0, 1.0, 3), episode(0, 0.0, 3)]
    assert success_rates(episodes) == {"p0": 0.5, "p1": 1.0}
    assert success_rates([replace(each, iteration=0) for each in episodes])["p0"] == pytest.approx(0.25)


def test_half_are_fruitful_then_come_new_ones():
    rates = {"p0": 0.5, "p1": 0.0, "p2": 1.0, "p3": 0.4, "p4": 0.2, "p5": 0.8}
    chosen = choose_problems(range(12), IDS, rates, 6)
    assert chosen == [0, 3, 4, 6, 7, 8]


@given(
    st.permutations(range(12)),
    st.dictionaries(st.sampled_from(IDS), st.floats(0, 1)),
    st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_there_are_always_enough_and_none_twice(order, rates, count):
    chosen = choose_problems(order, IDS, rates, count)
    assert len(chosen) == len(set(chosen)) == count
    fruitful = {index for index in order if 0.2 <= rates.get(IDS[index], -1) <= 0.8}
    assert len(fruitful & set(chosen)) >= min(len(fruitful), count - count // 2)


def test_a_task_smaller_than_an_iteration_is_gone_through_again():
    assert choose_problems([2, 0, 1], IDS, {}, 7) == [2, 0, 1, 2, 0, 1, 2]


def test_a_curriculum_chooses_from_all_problems_of_a_file_and_the_first_of_an_endless_task():
    problems = [Problem(f"p{index}", "", "") for index in range(2 * POOL)]
    last = [episode(2 * POOL - 1, reward) for reward in (0.0, 1.0)]
    order = ProblemOrder(problems, count=4, seed=0)
    assert order.curriculum(1, last)[:1] == [2 * POOL - 1]
    endless = ProblemOrder(lmgym.make("word-problems").problems, count=4, seed=0)
    assert max(index for iteration in range(50) for index in endless.curriculum(iteration, [])) < POOL
