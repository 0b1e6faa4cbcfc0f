"""Environments of lmgym as tasks of lm-eval: its models answer, and lmgym's grader decides."""

from __future__ import annotations

import sys

import pytest
from conftest import tiny_network, tiny_tokenizer
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import lmgym
from lmgym import Action, Problem, UserError
from lmgym.envs.examples import few_shot_examples
from lmgym.exports.lm_eval import lm_eval_task
from lmgym.policies.plain_prompt import render_plain
from lmgym.policies.system_prompts import default_system_prompt
from lmgym.types import Message


class Scripted(LM):
    """A model of lm-eval that gives the answers it is made with, and keeps what it is asked."""

    tokenizer_name = "scripted"

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[tuple[str, dict]] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.asked = [request.args for request in requests]
        assert len(self.asked) == len(self.answers)
        return list(self.answers)

    def loglikelihood(self, requests, disable_tqdm=False):
        raise AssertionError

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise AssertionError

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return tiny_tokenizer().apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def chat_template(self, chat_template=False):
        return ""


def vowels(problem: Problem, text: str) -> float:
    return float(sum(text.count(letter) for letter in "aeiou"))


def evaluate(model: LM, task, chat: bool = True) -> tuple[dict, list[dict]]:
    found = simple_evaluate(
        model=model,
        tasks=[task],
        apply_chat_template=chat,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),  # or it reads thousands of files
    )
    assert found is not None
    ((name, scores),) = found["results"].items()
    return {"task": name, **scores}, found["samples"][name]


def test_the_grader_of_lmgym_decides():
    env = lmgym.make("word-problems:test", stepwise=False)
    right = env.problems[0].solution
    lenient = f"It must be {env.problems[1].answer}"
    model = Scripted(right, lenient, "The answer is: 9999999", "")
    scores, samples = evaluate(model, lm_eval_task(env, problems=4, max_tokens=99))
    assert (scores["task"], scores["strict,none"], scores["lenient,none"]) == ("lmgym-word-problems-test", 0.25, 0.5)
    assert [(each["strict"], each["lenient"]) for each in samples] == [(1, 1), (0, 1), (0, 0), (0, 0)]
    messages: list[Message] = [
        {"role": "system", "content": default_system_prompt(env, stepwise=False)},
        {"role": "user", "content": env.problems[0].prompt},
    ]
    context, settings = model.asked[0]
    assert context == model.apply_chat_template(messages)
    assert (settings["until"], settings["max_gen_toks"], settings["do_sample"]) == ([], 99, False)


def test_a_base_model_is_prompted_as_lmgym_prompts_it():
    env = lmgym.make("word-problems:test", stepwise=False)
    examples = few_shot_examples(lmgym.make("word-problems", stepwise=False), 2)
    model = Scripted("")
    evaluate(model, lm_eval_task(env, 1, system_prompt="Solve it.", examples=examples, plain=True), chat=False)
    messages: list[Message] = [{"role": "system", "content": "Solve it."}]
    for example in examples:
        messages.append({"role": "user", "content": example.prompt})
        messages.append({"role": "assistant", "content": example.solution})
    messages.append({"role": "user", "content": env.problems[0].prompt})
    context, settings = model.asked[0]
    assert context == render_plain(messages, tiny_tokenizer())
    assert settings["until"] == ["Problem:"]


def test_a_tiny_model_is_evaluated_as_lmgym_grades_it():
    env = lmgym.make("arithmetic:test", stepwise=False, reward=vowels)
    model = HFLM(pretrained=tiny_network(), tokenizer=tiny_tokenizer(), backend="causal", batch_size=2, device="cpu")
    task = lm_eval_task(env, problems=4, max_tokens=8, system_prompt="")
    scores, samples = evaluate(model, task)
    own = []
    for sample in samples:
        env.reset(options={"index": sample["doc"]["index"]})
        info = env.step(Action(sample["filtered_resps"][0], finish="eos"))[4]
        own.append((info["correct"], info["lenient"]))
    assert [(each["strict"], each["lenient"]) for each in samples] == own
    assert scores["lenient,none"] == sum(lenient for _, lenient in own) / 4


def test_without_a_grade_a_reward_of_1_is_right(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "Say something nice."}\n{"question": "Say nothing."}\n')
    env = lmgym.make(str(path), stepwise=False, reward=vowels)
    scores, _ = evaluate(Scripted("nice", "hm"), lm_eval_task(env))
    assert (scores["strict,none"], scores["lenient,none"]) == (0.5, 0.5)


def test_what_cannot_be_a_task_is_one_sentence(monkeypatch):
    with pytest.raises(UserError, match="make it with stepwise=False"):
        lm_eval_task(lmgym.make("arithmetic"), problems=1)
    with pytest.raises(UserError, match="several turns"):
        evaluate(Scripted("1"), lm_eval_task(lmgym.make("guess-number"), problems=1))
    with pytest.raises(UserError, match="max_tokens is 0"):
        lm_eval_task(lmgym.make("arithmetic", stepwise=False), problems=1, max_tokens=0)
    monkeypatch.setitem(sys.modules, "lm_eval.api.task", None)
    with pytest.raises(UserError, match=r"pip install 'lmgym\[lm-eval\]'"):
        lm_eval_task(lmgym.make("arithmetic", stepwise=False), problems=1)
