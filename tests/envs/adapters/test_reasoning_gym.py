"""Tasks of reasoning-gym, against the package itself."""

from __future__ import annotations

import pytest

import lmgym
from lmgym import UserError
from lmgym.envs.adapters.reasoning_gym import ReasoningGym, task_names
from lmgym.types import Action

TASKS = ("countdown", "basic_arithmetic", "leg_counting", "spell_backward", "syllogism", "maze", "chain_sum")


@pytest.mark.parametrize("task", TASKS)
def test_its_own_answer_gets_the_full_score_and_another_does_not(task):
    env = lmgym.make(f"reasoning-gym/{task}")
    assert isinstance(env, ReasoningGym)
    for index in range(3):
        state, _ = env.reset(options={"index": index})
        problem = state.problem
        item = env.tasks.dataset[problem.info["index"]]
        assert item["question"] == problem.prompt
        right = env.tasks.score(problem.answer, problem)
        assert right == env.tasks.dataset.score_answer(problem.answer, item)
        _, reward, terminated, _, info = env.step(Action(f"So <answer>{problem.answer}</answer>", finish="eos"))
        assert (reward, terminated, info["correct"]) == (right, True, right >= 0.999)
        env.reset(options={"index": index})
        *_, info = env.step(Action("<answer>no such answer</answer>", finish="eos"))
        assert not info["correct"]


def test_every_task_can_be_made_and_asked():
    names = task_names()
    assert len(names) >= 100
    for name in names[::9]:
        env = lmgym.make(f"reasoning-gym/{name}")
        state, _ = env.reset(options={"index": 0})
        assert state.problem.prompt
        *_, info = env.step(Action("<answer></answer>", finish="eos"))
        assert "correct" in info


def test_splits_have_other_questions():
    prompts = {
        split: {lmgym.make("reasoning-gym/chain_sum", split=split).problems[i].prompt for i in range(30)}
        for split in ("train", "test")
    }
    assert not prompts["train"] & prompts["test"]


def test_options_are_those_of_the_task():
    env = lmgym.make("reasoning-gym/chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    assert env.problems[0].prompt.count("+") + env.problems[0].prompt.count("-") == 1


def test_an_answer_that_is_not_out_is_waited_for_and_one_that_never_comes_is_cut_off():
    env = lmgym.make("reasoning-gym/chain_sum", max_steps=2)
    env.reset(options={"index": 0})
    assert not env.step(Action("Let me see", finish="stop"))[3]
    *_, truncated, info = env.step(Action("still", finish="stop"))
    assert (truncated, info["parsed"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [("countdwn", {}, "did you mean countdown"), ("chain_sum", {"nonsense": 1}, "cannot be made")],
)
def test_a_mistake_gets_one_sentence(name, options, said):
    with pytest.raises(UserError, match=said):
        lmgym.make(f"reasoning-gym/{name}", **options)
