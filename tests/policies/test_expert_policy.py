"""Worked solutions become episodes in the ids that the policy itself would have written."""

from __future__ import annotations

import pytest
from conftest import tiny_model

from lmgym.envs import make
from lmgym.errors import UserError
from lmgym.evaluation.evaluation import evaluate, play
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.expert_policy import ExpertPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.types import OFF_POLICY, Problem, State

STEPWISE, CHAT = FewShotLLMStepwiseMathPolicy, ChatPolicy


@pytest.mark.parametrize("name", ["word-problems", "arithmetic"])
@pytest.mark.parametrize("kind", [STEPWISE, CHAT])
def test_demonstrations_are_always_right(name, kind):
    env = make(name)
    expert = ExpertPolicy(kind(tiny_model(), calculator=True))
    assert evaluate(expert, env, range(20)).strict.value == 1.0


@pytest.mark.parametrize("kind", [STEPWISE, CHAT])
@pytest.mark.parametrize("calculator", [True, False])
def test_the_tokens_say_what_the_solution_says(kind, calculator):
    env = make("word-problems")
    policy = kind(tiny_model(), calculator=calculator)
    for episode in play(ExpertPolicy(policy), env, range(10)):
        written = [token for step in episode.steps for token in step.action.token_ids]
        text = policy.decode(written).replace("<|stop|>", "")
        assert text.rstrip("\n") == episode.problem.solution
        assert all(step.action.policy_version == OFF_POLICY for step in episode.steps)
        assert written[-1] in policy.model.eos_ids
        finishes = [step.action.finish for step in episode.steps]
        assert finishes == ["stop"] * (len(finishes) - 1) + ["eos"]
        forced = [t for s in episode.steps for t, m in zip(s.action.token_ids, s.action.mask, strict=True) if not m]
        assert bool(forced) == (calculator and "<<" in episode.problem.solution)


def test_what_the_calculator_would_write_is_context_and_everything_else_is_learnt():
    policy = CHAT(tiny_model(), calculator=True)
    state = State(Problem("1", "?", "7", "so <<3+4=7>>7\nThe answer is: 7"), ({"role": "user", "content": "?"},))
    action = ExpertPolicy(policy).get_actions([state])[0]
    forced = [token for token, chosen in zip(action.token_ids, action.mask, strict=True) if not chosen]
    assert policy.decode(forced) == "7>>"
    assert (action.text, action.finish) == (state.problem.solution, "eos")


def test_a_problem_without_a_solution_is_refused_in_one_sentence():
    state = State(Problem("p9", "?", "7"), ({"role": "user", "content": "?"},))
    with pytest.raises(UserError, match="p9 has no worked solution"):
        ExpertPolicy(CHAT(tiny_model())).get_actions([state])
