"""The limit on the tokens of a whole episode."""

from __future__ import annotations

import pytest
from conftest import tiny_model

import lmgym
from lmgym.errors import UserError
from lmgym.evaluation.evaluation import play
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.policy_for import policy_for
from lmgym.types import Episode


def episodes(max_episode_tokens: int) -> list[Episode]:
    env = lmgym.make("arithmetic", max_steps=8)
    policy = policy_for(env, tiny_model(), shots=0, max_tokens=6, max_episode_tokens=max_episode_tokens)
    policy.stop_ids = lambda written: frozenset(range(40, 120))  # lines of a few tokens each
    policy.tool_output = lambda written: None if len(written) > 2 else ()
    return play(policy, env, range(12), samples=2, seed=1)


def test_an_episode_is_truncated_at_its_limit_and_is_the_same_up_to_there():
    free, limited = episodes(0), episodes(13)
    assert max(episode.length for episode in free) > 13
    for long, short in zip(free, limited, strict=True):
        start = len(short.steps[0].action.prompt_ids)
        assert short.length == min(long.length, 13)
        assert long.tokens[: start + short.length] == short.tokens
        if long.length > 13:
            assert short.cut_off
            assert short.steps[-1].truncated
            assert short.steps[-1].action.finish == "length"


def test_the_limit_bounds_the_longest_episode_and_cannot_be_negative():
    env = lmgym.make("arithmetic", max_steps=8)
    for limit, longest in ((0, 48), (13, 13), (100, 48)):
        policy = policy_for(env, tiny_model(), shots=0, max_tokens=6, max_episode_tokens=limit)
        assert policy.longest_episode(env) == longest
    with pytest.raises(UserError, match="--max_episode_tokens is -1"):
        ChatPolicy(tiny_model(), max_episode_tokens=-1)
