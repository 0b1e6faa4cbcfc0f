"""Endless datasets: lazy, reproducible, right, and with splits that share no text."""

import re
import time

import pytest

import lmgym
from lmgym import UserError
from lmgym.calculator import calculate
from lmgym.envs import ArithmeticProblems, WordProblems
from lmgym.envs.word_problems import STORY_KINDS

FIRST_PROMPT = (
    "A shop sells 17 lamps on Monday. On Tuesday, the shop sells 10 fewer lamps tha"
    "n on Monday. How many lamps does the shop sell on Monday and Tuesday together?"
)
CALCULATION = re.compile(r"(\S+) = \$?<<([^=<>]+)=([^<>]+)>>(\d+)")


def test_any_item_is_made_at_once_and_alone():
    started = time.perf_counter()
    problems = WordProblems()
    assert problems[10**9] == WordProblems()[10**9]
    assert time.perf_counter() - started < 0.5
    assert len(problems) == 2**31
    with pytest.raises(IndexError):
        problems[2**31]


def test_items_do_not_depend_on_what_was_asked_before():
    problems = WordProblems(max_operations=8)
    forwards = [problems[index] for index in range(50)]
    assert forwards == [problems[index] for index in reversed(range(50))][::-1]
    assert forwards == list(problems[:50])
    assert len({problem.prompt for problem in forwards}) > 45


def test_the_first_problem_stays_the_same():
    """A fixed seed must give the same problem tomorrow: a run that is resumed relies on it."""
    assert WordProblems(seed=1, max_operations=2)[0].prompt == FIRST_PROMPT


def test_seeds_give_other_problems():
    assert {WordProblems(seed=1, max_operations=3)[index].prompt for index in range(50)}.isdisjoint(
        {WordProblems(seed=2, max_operations=3)[index].prompt for index in range(50)}
    )


@pytest.mark.parametrize("kind", [WordProblems, ArithmeticProblems])
def test_no_text_is_in_both_splits_whatever_the_seeds(kind):
    train = {kind("train", seed)[index].prompt for seed in (0, 1) for index in range(1500)}
    test = {kind("test", seed)[index].prompt for seed in (0, 1, 2) for index in range(1000)}
    assert len(train) > 500
    assert len(test) > 500
    assert train.isdisjoint(test)


@pytest.mark.parametrize("operations", range(1, 9))
@pytest.mark.parametrize("difficulty", range(1, 6))
def test_every_line_is_one_right_operation_and_the_last_gives_the_answer(operations, difficulty):
    problems = WordProblems("train", 0, operations, operations, difficulty)
    for index in range(100):
        problem = problems[index]
        *lines, last = problem.solution.split("\n")
        assert last == f"The answer is: {problem.answer}"
        assert len(lines) == operations
        for line in lines:
            shown, expression, value, result = CALCULATION.search(line).groups()
            assert shown == expression
            assert value == result == calculate(expression)
            assert int(value) >= 2
        assert value == problem.answer


@pytest.mark.parametrize("operations", [1, 2])
def test_every_kind_of_story_is_told(operations):
    problems = WordProblems("train", 0, operations, operations)
    told = {problems[index].info["story"] for index in range(600)}
    assert told == {kind.tell.__name__ for kind in STORY_KINDS}


def test_problems_read_as_sentences():
    for difficulty in (1, 3, 5):
        for index in range(400):
            prompt = WordProblems("train", 0, 1, 8, difficulty)[index].prompt
            assert prompt.endswith("?")
            assert not re.search(r"[#{}]|  |\.\.|None|\b(?:1|one) \w+s\b", prompt), prompt
            for sentence in re.split(r"(?<=[.?]) ", prompt):
                assert sentence[0].isupper(), prompt


def test_difficulty_makes_numbers_larger():
    def mean(difficulty):
        return sum(int(WordProblems(difficulty=difficulty)[index].answer) for index in range(200)) / 200

    assert mean(1) < mean(2) < mean(3) < mean(4) < mean(5)


def test_short_problems_stay_short():
    words = [len(WordProblems()[index].prompt.split()) for index in range(500)]
    assert 18 < sum(words) / len(words) < 35
    assert max(words) < 60


@pytest.mark.parametrize(
    "options",
    [{"min_operations": 0}, {"max_operations": 9}, {"min_operations": 3}, {"difficulty": 6}, {"difficulty": 0}],
)
def test_word_problem_options_out_of_range_are_one_sentence(options):
    with pytest.raises(UserError, match=r"from 1 to [58]"):
        lmgym.make("word-problems", **options)


@pytest.mark.parametrize("options", [{"digits": 0}, {"digits": 13}, {"operators": ""}, {"operators": "+^"}])
def test_arithmetic_options_out_of_range_are_one_sentence(options):
    with pytest.raises(UserError, match=r"digits is|operators is"):
        lmgym.make("arithmetic", **options)


@pytest.mark.parametrize("operator", "+-*/")
def test_arithmetic_is_right(operator):
    for index in range(300):
        problem = ArithmeticProblems(operators=operator, digits=2)[index]
        question = problem.prompt.removeprefix("What is ").removesuffix("?")
        assert calculate(question) == problem.answer
        assert int(problem.answer) >= 0
