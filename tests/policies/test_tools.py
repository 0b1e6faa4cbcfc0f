"""What a policy looks at after each token: only the end of what was written, and with the same verdict as the whole."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from conftest import tiny_model, tiny_tokenizer
from transformers import AutoTokenizer

import lmgym
from lmgym.assets.catalogue import model_folder
from lmgym.calculator import calculate, open_expression
from lmgym.engines.engine import GO_ON, STOP, Verdict
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FINISHED_ANSWER, FewShotLLMStepwiseMathPolicy

TEXTS = [
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThe answer is: 24\n",
    "So that is The answer is: 1,234.5 and more",
    "The answer is: 1,234.5 and more",
    "ünïcödé 数学 🙂 <<(1+2)*3=9>> 数\n",
    "<<" + "1+" * 90 + "1=91>>" + "<<" + "1+" * 120 + "1=121>>",
    "a = b = <<6*7= 42>> = <<9=9>>" + "word " * 40 + "The answer is: " + "9" * 30 + " x",
]


@pytest.fixture(params=["tiny", "smollm2"])
def tokenizer(request):
    return tiny_tokenizer() if request.param == "tiny" else AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))


@pytest.mark.network
@pytest.mark.parametrize("kind", [ChatPolicy, FewShotLLMStepwiseMathPolicy])
def test_the_verdict_is_that_of_the_whole_text(tokenizer, kind):
    solutions = [problem.solution for problem in lmgym.make("gsm8k").problems[:30]]
    policy = kind(tiny_model(), calculator=True)
    policy.model.tokenizer = tokenizer
    for line in "\n".join([*TEXTS, *solutions]).splitlines(keepends=True):
        ids = policy.encode(line)
        for end in range(1, len(ids) + 1):
            verdict = verdict_on_whole(policy, ids[:end])
            assert policy.watch(ids[:end]) == verdict, policy.decode(ids[:end])
            if verdict.stop:
                break


def verdict_on_whole(policy, ids) -> Verdict:
    """By the decoded text from its beginning."""
    text = policy.decode(ids)
    stepwise = isinstance(policy, FewShotLLMStepwiseMathPolicy)
    if stepwise and ("\n" in text or FINISHED_ANSWER.match(text)):
        return STOP
    expression = open_expression(text)
    result = calculate(expression) if expression is not None else None
    return GO_ON if result is None else Verdict(force=policy.encode(f"{result}>>"))


def test_watching_costs_the_same_after_the_two_thousandth_token_as_after_the_hundredth(monkeypatch):
    policy = ChatPolicy(tiny_model(), calculator=True)
    read = SimpleNamespace(ids=0)
    decode = policy.decode

    def counting(ids):
        read.ids += len(ids)
        return decode(ids)

    monkeypatch.setattr(policy, "decode", counting)
    ids = policy.encode("some words without any sum " * 80)
    costs = []
    for end in (100, 2000):
        read.ids = 0
        policy.watch(ids[:end])
        costs.append(read.ids)
    assert costs[0] == costs[1]
