"""Probabilities of given answers, against plain forward passes of the same network."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from small_tasks import chat

from lmgym.errors import UserError
from lmgym.judges.answer_probabilities import answer_ids, answer_probabilities
from lmgym.types import Message

CHATS: list[list[Message]] = [
    [{"role": "system", "content": "Rate it."}, {"role": "user", "content": text}]
    for text in ("good", "bad work", "a much longer text than the others")
]


def plain(model, prompt: list[int], answer: list[int]) -> float:
    """The log-probability of an answer by a pass of its own."""
    with torch.no_grad():
        logits = model.network(torch.tensor([prompt + answer])).logits[0].float().log_softmax(-1)
    return float(sum(logits[len(prompt) + place - 1, token] for place, token in enumerate(answer)))


def expected(answers):
    model = tiny_model(size=32)
    policy = chat(model)
    model.set_prefix_sharing(False)
    rows = []
    for messages in CHATS:
        prompt = list(policy.encode(policy.render_chat(messages)))
        rows.append([plain(model, prompt, answer) for answer in answer_ids(model, answers)])
    return torch.tensor(rows).softmax(-1)


@pytest.mark.parametrize("answers", [("a", "b"), ("1", "2", "3", "10"), ("yes", "no"), ("a",)])
def test_they_are_those_of_plain_passes(answers):
    model = tiny_model(size=32)
    found = answer_probabilities(model, CHATS, answers)
    assert torch.allclose(found, expected(answers), atol=1e-5)
    assert torch.allclose(found.sum(1), torch.ones(len(CHATS)))


def test_answers_that_begin_alike_end_the_turn():
    model = tiny_model(size=32)
    eos = model.tokenizer.eos_token_id
    alone, *_ = answer_ids(model, ("1", "2"))
    assert eos not in alone
    one, ten = answer_ids(model, ("1", "10"))
    assert ten[: len(one) - 1] == one[:-1]
    assert one[-1] == ten[-1] == eos


def test_answers_that_cannot_be_told_apart_are_refused():
    model = tiny_model(size=32)
    with pytest.raises(UserError, match="cannot tell"):
        answer_ids(model, ("a", "a"))
    with pytest.raises(UserError, match="cannot tell"):
        answer_ids(model, ("", "a"))


def test_no_questions_have_no_answers():
    assert answer_probabilities(tiny_model(size=32), [], ("a", "b")).shape == (0, 2)
