"""Evaluation sets by name: all gold answers are accepted, and a row that cannot be read is named with its fault."""

import json
from fractions import Fraction

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import lmgym
from lmgym import Action, UserError
from lmgym.assets.catalogue import dataset_file
from lmgym.envs import MathEnv
from lmgym.rewards.final_answer import BoxedAnswer, NumberAnswer, grade, parse_number

AIMO = {"id": 0, "problem": "Find $m+n$.", "solution": r"$\boxed{\frac13}$, so it is 4. $\boxed{004}$", "answer": "4"}
AIME_2024 = {"ID": "2024-II-4", "Problem": "Find $m+n$.", "Solution": r"It is $\boxed{\frac{7}{26}}$.", "Answer": 33}
AIME_2025 = {"question": "Find $b$.", "answer": "070"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def play(env, index, solution):
    """The total reward and the last info of a solution, line by line where the environment is step-wise."""
    env.reset(options={"index": index})
    total = 0.0
    for line in solution.split("\n") if env.stepwise else [solution]:
        _, reward, terminated, truncated, info = env.step(line)
        total += reward
        if terminated or truncated:
            break
    return total, info


@pytest.mark.network
@pytest.mark.parametrize(("name", "size"), [("gsm-hard", 1319), ("math-500", 500)])
@pytest.mark.parametrize("stepwise", [True, False])
def test_every_gold_answer_is_worth_1(name, size, stepwise):
    env = lmgym.make(f"{name}:test", stepwise=stepwise)
    assert isinstance(env, MathEnv)
    assert len(env.problems) == len({problem.id for problem in env.problems}) == size
    for index, problem in enumerate(env.problems):
        for solution in (problem.solution, env.answer_form.show(problem.answer)):
            reward, info = play(env, index, solution)
            assert (reward, info["correct"], info["lenient"]) == (1.0, True, True), problem
    with pytest.raises(UserError, match=f'{name} has no split "train": it has test'):
        lmgym.make(name)


@pytest.mark.network
@pytest.mark.parametrize("gym_id", ["lmgym/GSMHard-v0", "lmgym/MATH500-v0"])
def test_gymnasium_accepts_them(gym_id):
    check_env(gymnasium.make(gym_id).unwrapped)


@pytest.mark.network
def test_the_published_answers_of_math_500_are_right():
    with open(dataset_file("math-500", "test"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    env = lmgym.make("math-500:test")
    for row, problem in zip(rows, env.problems, strict=True):
        assert grade(BoxedAnswer(), problem.answer, BoxedAnswer().show(row["answer"])).correct, row
    assert env.problems[0].id == "math-500/test/precalculus/807.json"
    assert env.problems[0].info == {"subject": "Precalculus", "level": 2}
    assert {each.prompt for each in env.problems} < {each.prompt for each in lmgym.make("math:test").problems}
    assert {each.info["level"] for each in lmgym.make("math-500:test", levels=[5]).problems} == {5}


@pytest.mark.network
def test_the_answers_of_gsm_hard_are_those_of_its_file():
    with open(dataset_file("gsm-hard", "test"), encoding="utf-8") as file:
        targets = [json.loads(line)["target"] for line in file]
    answers = [problem.answer for problem in lmgym.make("gsm-hard:test").problems]
    assert [float(answer) for answer in answers] == targets
    assert [parse_number(answer) for answer in answers] == [Fraction(repr(target)) for target in targets]
    assert "3.509e-07" in answers
    assert "-9867630" in answers


@pytest.mark.parametrize(
    ("target", "given", "is_right"),
    [
        (3244047.0999999996, "3,244,047.1", True),
        (3244047.0999999996, "3244047", False),
        (5.3333333333, "5.333", True),
        (5.3333333333, "5.33", False),
        (2e-06, "2e-06", True),
        (2e-06, "0.000002", True),
        (2e-06, "2E-6", True),
        (2e-06, "0", False),
        (2e-06, "2e-07", False),
        (-12345.0, "-12345", True),
        (-12345.0, "12345", False),
        (0.0, "0", True),
        (0.0, "0.0009", False),
        ("1,500", "1500", True),
    ],
)
@pytest.mark.parametrize("stepwise", [True, False])
def test_the_targets_of_gsm_hard_are_floats(tmp_path, target, given, is_right, stepwise):
    path = write(tmp_path / "hard.jsonl", {"input": "How much?", "code": "def solution(): ...", "target": target})
    env = lmgym.make("gsm-hard:test", path=path, stepwise=stepwise)
    assert play(env, 0, env.problems[0].solution)[0] == 1.0
    reward, info = play(env, 0, NumberAnswer().show(given))
    assert (reward, info["correct"], info["parsed"]) == (float(is_right), is_right, True)
    assert play(env, 0, f"I think it is {given}\nGoodbye")[0] == 0.0


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"input": "How much?", "code": ""}, "the row has no \"target\"; it has 'input', 'code'."),
        ({"input": "How much?", "target": "many"}, "\"target\" is 'many', which is not a number."),
        ({"input": "How much?", "target": float("nan")}, '"target" is neither a number nor a text'),
        ({"input": "", "target": 1.0}, '"input" is not a text, or is empty.'),
        ([1], "a row is a JSON object, but this one is list."),
    ],
)
def test_a_row_of_gsm_hard_that_cannot_be_read_is_named(tmp_path, row, fault):
    path = write(tmp_path / "hard.jsonl", {"input": "How much?", "target": 1.0}, row)
    with pytest.raises(UserError) as error:
        lmgym.make("gsm-hard:test", path=path)
    assert str(error.value).startswith(f"{path}, line 2: {fault}")


@pytest.mark.parametrize("stepwise", [True, False])
def test_aime_is_read_in_the_forms_it_is_published_in(tmp_path, stepwise):
    env = lmgym.make("aime:test", path=write(tmp_path / "a.jsonl", AIMO, AIME_2024, AIME_2025), stepwise=stepwise)
    assert [(each.id, each.prompt, each.answer) for each in env.problems] == [
        ("aime/0", "Find $m+n$.", "4"),
        ("aime/2024-II-4", "Find $m+n$.", "33"),
        ("aime/2", "Find $b$.", "70"),
    ]
    for index, problem in enumerate(env.problems):
        assert problem.solution.count("\\boxed") == 1
        assert play(env, index, problem.solution)[0] == 1.0
        assert play(env, index, BoxedAnswer().show(f"0{problem.answer}"))[0] == 1.0
        assert play(env, index, BoxedAnswer().show(str(int(problem.answer) + 1)))[0] == 0.0
    env.reset(options={"index": 0})
    *_, terminated, truncated, info = env.step(Action("Let me think", finish="length"))
    assert (terminated, truncated, info["correct"]) == (False, True, False)
    check_env(env)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (AIMO | {"answer": "1000"}, "\"answer\" is '1000', but answers of AIME are integers from 0 to 999."),
        (AIMO | {"answer": "-1"}, "\"answer\" is '-1', but answers"),
        (AIMO | {"answer": 0.5}, "\"answer\" is '0.5', but answers"),
        (AIMO | {"answer": r"\frac13"}, r'"answer" is'),
        (AIMO | {"answer": None}, '"answer" is neither a number nor a text'),
        ({"answer": 1, "text": "?"}, "the row has no \"problem\" or \"question\"; it has 'answer', 'text'."),
    ],
)
def test_a_row_of_aime_that_cannot_be_read_is_named(tmp_path, row, fault):
    path = write(tmp_path / "a.jsonl", AIMO, row)
    with pytest.raises(UserError) as error:
        lmgym.make("aime:test", path=path)
    assert str(error.value).startswith(f"{path}, line 2: {fault}")


def test_aime_without_a_file_and_an_empty_file_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="give a JSON or JSONL file of them as the option path"):
        lmgym.make("aime:test")
    with pytest.raises(UserError, match="holds no problems"):
        lmgym.make("aime:test", path=write(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        lmgym.make("gsm-hard:test", path=tmp_path / "none.jsonl")
