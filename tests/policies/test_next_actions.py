"""A policy gives actions as they are ready, keeps writing the others, and cancels those that are no longer wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import tiny_model
from dictated import Dictated

import lmgym
from lmgym.buffer import Buffer
from lmgym.engines.engine import Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.envs.vector_env import VectorEnv
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.scripted_policy import ScriptedPolicy
from lmgym.types import Action, State


def dictated(*texts: str, **options) -> tuple[Any, list[State]]:
    """A policy whose requests say these lines in turn, one letter per pass, and a state for each of them."""
    policy = FewShotLLMStepwiseMathPolicy(tiny_model(), max_line_tokens=20, **options)
    policy.engine = Dictated(policy, *texts)
    return policy, VectorEnv(lmgym.make("arithmetic")).reset(range(len(texts)))


def said(actions: list[Action]) -> list[tuple[int, str]]:
    return [(action.episode, action.text) for action in actions]


def test_the_quickest_come_first_and_the_others_later():
    policy, states = dictated("slowest\n", "a\n", "slow\n", "b\n")
    assert said(policy.next_actions(states)) == [(1, "a\n"), (3, "b\n")]
    assert said(policy.next_actions([states[2], states[0]])) == [(2, "slow\n")]
    assert said(policy.next_actions([states[0]])) == [(0, "slowest\n")]
    assert not policy._pending
    assert not policy.engine._rows


def test_what_is_being_written_is_not_asked_for_again():
    policy, states = dictated("a\n", "slow\n", "b\n")
    asked: list[Request] = []
    submit = policy.engine.submit
    policy.engine.submit = lambda requests: asked.extend(requests) or submit(requests)
    policy.next_actions(states[:2])
    assert said(policy.next_actions([states[1], states[2]])) == [(2, "b\n")]
    policy.next_actions([states[1]])
    assert [request.prompt for request in asked] == [policy.prompt_ids(state) for state in states]


def test_all_are_waited_for_and_come_in_the_order_of_their_states():
    policy, states = dictated("slowest\n", "a\n", "slow\n")
    assert said(policy.get_actions(states)) == [(0, "slowest\n"), (1, "a\n"), (2, "slow\n")]
    assert not policy._pending


def test_states_that_are_not_given_again_are_abandoned():
    policy, states = dictated("a\n", "slow\n", "slower\n", "new\n")
    cancelled: list[int] = []
    cancel = policy.engine.cancel
    policy.engine.cancel = lambda request_ids: cancelled.extend(request_ids) or cancel(request_ids)
    policy.next_actions(states[:3])
    assert said(policy.next_actions([states[2], states[3]])) == [(3, "new\n")]
    assert cancelled == [1]
    assert list(policy._pending) == list(policy.engine._rows) == [2]
    assert said(policy.get_actions([states[0]])) == [(0, "a\n")]
    assert cancelled == [1, 2]
    assert not policy.engine._rows


def test_an_abandoned_state_that_comes_back_is_written_from_its_beginning():
    policy, states = dictated("a\n", "slow\n", "b\n", "again\n")
    policy.next_actions(states[:2])
    policy.next_actions([states[2]])
    assert said(policy.next_actions([states[1]])) == [(1, "again\n")]


def test_an_interrupted_rollout_leaves_nothing_to_the_next_one():
    policy, states = dictated("old slow\n", "old\n", "new\n", "new slow\n")
    policy.next_actions(states[:2])
    begun = VectorEnv(lmgym.make("arithmetic")).reset([5, 6])  # the same episode numbers as before
    assert said(policy.get_actions(begun)) == [(0, "new\n"), (1, "new slow\n")]


@pytest.mark.parametrize("kind", [TorchEngine, PlainEngine])
def test_states_of_the_same_episode_number_get_an_action_each(kind):
    policy = ChatPolicy(tiny_model(), max_tokens=6)
    policy.engine = kind(policy.model)
    one, other = (VectorEnv(lmgym.make("arithmetic")).reset([index], seed=index)[0] for index in (3, 8))
    twin = replace(one)
    actions = policy.get_actions([one, other, twin])
    assert [action.episode for action in actions] == [0, 0, 0]
    assert [action.prompt_ids for action in actions] == [policy.prompt_ids(state) for state in (one, other, twin)]
    assert actions[0].token_ids == actions[2].token_ids != actions[1].token_ids
    assert actions[1].token_ids == policy.get_actions([other])[0].token_ids


def test_a_state_that_fills_the_context_is_answered_at_once_and_the_others_afterwards():
    policy, states = dictated("a\n", "b\n")
    policy.model.network.config.max_position_embeddings = 60
    full = replace(states[0], tokens=(5,) * 60)
    short = replace(states[1], tokens=(5,) * 10)
    (action,) = policy.next_actions([short, full])
    assert (action.episode, action.text, action.token_ids, action.finish) == (0, "", (), "length")
    assert [action.token_ids for action in policy.get_actions([short, full])] == [policy.encode("a\n"), ()]


def test_a_temperature_holds_for_what_is_asked_with_it():
    policy = ChatPolicy(tiny_model(), max_tokens=5, temperature=0.7, top_k=9, top_p=0.9)
    asked: list[Request] = []
    submit = policy.engine.submit
    policy.engine.submit = lambda requests: asked.extend(requests) or submit(requests)
    (state,) = VectorEnv(lmgym.make("arithmetic")).reset([0])
    policy.get_actions([state])
    policy.get_actions([state], temperature=0.0)
    chosen = [(r.distribution.temperature, r.distribution.top_k, r.distribution.top_p) for r in asked]
    assert chosen == [(0.7, 9, 0.9), (0.0, 9, 0.9)]


def test_a_policy_that_answers_at_once_answers_for_all():
    policy = ScriptedPolicy(lambda state: f"{state.episode}")
    states = VectorEnv(lmgym.make("arithmetic")).reset(range(3))
    assert policy.next_actions(states) == policy.get_actions(states)


def test_episodes_are_the_same_whether_all_are_waited_for_or_not():
    env = lmgym.make("word-problems", max_steps=4)
    played = []
    for at_once in (True, False):
        policy = FewShotLLMStepwiseMathPolicy(tiny_model(seed=3), max_line_tokens=8)
        envs, buffer, calls = VectorEnv(env), Buffer(), 0
        states = envs.reset([0, 1], 3, seed=1)
        while states:
            actions = policy.get_actions(states) if at_once else policy.next_actions(states)
            buffer.add(envs.step(actions))
            states, calls = envs.states, calls + 1
        played.append((calls, [(e.tokens, e.mask, e.rewards) for e in buffer.of_iteration(0)]))
    assert played[0][0] < played[1][0], "some did not wait"
    assert len(played[0][1]) == 6
    assert played[0][1] == played[1][1]


def test_another_temperature_is_another_request():
    policy, states = dictated("a\n", "a longer line\n", "greedy\n")
    assert len(policy.next_actions(states[:2])) == 1
    ((first, partial),) = policy._pending.items()
    assert partial.distribution.temperature == 1.0
    asked: list[Request] = []
    submit = policy.engine.submit
    policy.engine.submit = lambda requests: asked.extend(requests) or submit(requests)
    assert said(policy.next_actions([states[1]], 0.0)) == [(1, "greedy\n")]
    assert [request.distribution.temperature for request in asked] == [0.0]
    assert first not in policy.engine._rows


def test_nothing_asked_is_no_action():
    policy, _ = dictated("a\n")
    assert policy.next_actions([]) == policy.get_actions([]) == []
