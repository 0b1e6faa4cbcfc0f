"""Another model that acts in the policy's place is asked as the policy is, and never taken for it."""

from __future__ import annotations

from conftest import tiny_model
from small_tasks import TRAIN, Vowel, chat

from lmgym.evaluation.evaluation import play
from lmgym.types import NOBODY


def test_it_is_asked_in_the_policys_own_template():
    policy, other = chat(), tiny_model(size=32, seed=1)
    other.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}!{% endfor %}"
    theirs = play(policy.stranger(other), Vowel(TRAIN), range(4), samples=2)
    ours = play(policy, Vowel(TRAIN), range(4), samples=2)
    prompts = [[episode.steps[0].action.prompt_ids for episode in each] for each in (theirs, ours)]
    assert prompts[0] == prompts[1]
    assert [episode.tokens for episode in theirs] != [episode.tokens for episode in ours]
    assert {episode.steps[0].action.policy_version for episode in theirs} == {NOBODY}
