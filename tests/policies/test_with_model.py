"""Another model that acts in the policy's place is prompted as the policy is, and its episodes are off-policy."""

from __future__ import annotations

from conftest import tiny_model
from small_tasks import TRAIN, Vowel, chat

from lmgym.evaluation.evaluation import play
from lmgym.types import OFF_POLICY


def test_it_is_prompted_in_the_policys_own_template():
    policy, other = chat(), tiny_model(size=32, seed=1)
    other.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}!{% endfor %}"
    theirs = play(policy.with_model(other), Vowel(TRAIN), range(4), samples=2)
    ours = play(policy, Vowel(TRAIN), range(4), samples=2)
    prompts = [[episode.steps[0].action.prompt_ids for episode in each] for each in (theirs, ours)]
    assert prompts[0] == prompts[1]
    assert [episode.tokens for episode in theirs] != [episode.tokens for episode in ours]
    assert {episode.steps[0].action.policy_version for episode in theirs} == {OFF_POLICY}


def test_the_model_that_was_given_is_not_changed():
    policy, other = chat(), tiny_model(size=32, seed=1)
    tokenizer, other.version = other.tokenizer, 7
    acting = policy.with_model(other)
    assert (other.version, other.tokenizer) == (7, tokenizer)
    assert (acting.model.version, acting.model.tokenizer) == (OFF_POLICY, policy.model.tokenizer)
    assert acting.model.network is other.network
    assert policy.model is not acting.model
