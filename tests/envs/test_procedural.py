"""Endless datasets: lazy, reproducible, right, and with splits that share no text."""

import re
import time
from itertools import combinations

import pytest

import lmgym
from lmgym import UserError
from lmgym.calculator import calculate
from lmgym.envs import ArithmeticProblems, WordProblems
from lmgym.envs.procedural import SPLITS
from lmgym.envs.word_problems.problems import STORY_KINDS
from lmgym.envs.word_problems.stories import FOODS, GOODS, THINGS
from lmgym.envs.word_problems.story import PEOPLE

FIRST_PROMPT = (
    "A market stall sells 15 hats on Monday. On Tuesday, the market stall sells five times as many hats as on Monday. "
    "How many hats does the market stall sell on Monday and Tuesday together?"
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
    assert WordProblems(seed=1, max_operations=2, difficulty=1)[0].prompt == FIRST_PROMPT


def test_seeds_give_other_problems():
    assert {WordProblems(seed=1, max_operations=3)[index].prompt for index in range(50)}.isdisjoint(
        {WordProblems(seed=2, max_operations=3)[index].prompt for index in range(50)}
    )


NAMES = "|".join(person.name for person in PEOPLE)
MASKS = (
    (rf"\b(?:{NAMES})\b", "NAME"),
    (r"\b(?:she|he|her|him|his)\b", "PRONOUN"),
    (rf"\b(?:{'|'.join((*THINGS, *GOODS, *FOODS))})\b", "THINGS"),
)


def masked(prompt):
    """A problem with its names, pronouns and things taken away and its numbers kept."""
    for pattern, mask in MASKS:
        prompt = re.sub(pattern, mask, prompt, flags=re.IGNORECASE)
    return prompt


def in_any_order(prompt):
    """A sum or product with its smaller operand first."""
    left, operator, right = prompt.removeprefix("What is ").removesuffix("?").split(" ")
    return (operator, *(sorted((int(left), int(right))) if operator in "+*" else (int(left), int(right))))


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 2), (1, 8)])
@pytest.mark.parametrize("difficulty", [1, 3, 5])
def test_no_two_splits_share_a_problem_but_for_its_names_and_things(least, most, difficulty):
    seen = [
        {masked(WordProblems(split, seed, least, most, difficulty)[index].prompt) for index in range(1000)}
        for split in SPLITS
        for seed in (0, 1)
    ]
    splits = [seen[0] | seen[1], seen[2] | seen[3], seen[4] | seen[5]]
    for left, right in combinations(splits, 2):
        assert left.isdisjoint(right)
    assert min(len(split) for split in splits) > 200


def test_a_key_does_not_depend_on_the_difficulty_that_drew_the_problem():
    easy = {masked(WordProblems("test", 0, 1, 1, 1)[index].prompt) for index in range(3000)}
    hard = {masked(WordProblems("train", 0, 1, 1, 2)[index].prompt) for index in range(3000)}
    assert easy.isdisjoint(hard)


def test_no_two_splits_share_a_sum_in_any_order():
    splits = [
        {
            in_any_order(ArithmeticProblems(split, seed, 2, "+-*/")[index].prompt)
            for seed in (0, 1)
            for index in range(1500)
        }
        for split in SPLITS
    ]
    for left, right in combinations(splits, 2):
        assert left.isdisjoint(right)
    assert min(len(split) for split in splits) > 500


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_tells_every_kind_of_story_about_equally_often_at_the_defaults(split):
    problems = lmgym.make(f"word-problems:{split}").problems
    told = [problems[index].info["story"] for index in range(1700)]
    assert set(told) == {kind.tell.__name__ for kind in STORY_KINDS}
    assert all(60 < told.count(story) < 150 for story in set(told))
    assert len({masked(problems[index].prompt) for index in range(200)}) > 120


@pytest.mark.parametrize("split", SPLITS)
def test_the_smallest_tasks_have_problems_for_every_split(split):
    for operator in "+-*/":
        assert len({ArithmeticProblems(split, 0, 1, operator)[index].prompt for index in range(200)}) > 2
    for operations in range(1, 9):
        assert len({WordProblems(split, 0, operations, operations)[index].prompt for index in range(200)}) > 100


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
            found = CALCULATION.search(line)
            assert found is not None
            shown, expression, value, result = found.groups()
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
