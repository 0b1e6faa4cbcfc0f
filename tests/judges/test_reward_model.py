"""Trained reward models: scores equal the classifier's own on each row alone, and a run learns from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from conftest import tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForSequenceClassification, LlamaForTokenClassification

from lmgym import Problem
from lmgym.buffer import Buffer
from lmgym.commands.cli import main
from lmgym.judges.reward_model import ProcessRewardModel, RewardModel, load_reward_model
from lmgym.types import Action, Episode, State, Step


def classifier(kind, labels: int, pad: int | None):
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_labels": labels, "pad_token_id": pad, "eos_token_id": 2}
    config = LlamaConfig(
        vocab_size=104,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        **shape,
    )
    return kind(config)


def episode(*texts: str) -> Episode:
    state = State(Problem("p", "What is 2+3?", "5"), ({"role": "user", "content": "What is 2+3?"},))
    steps = []
    for index, text in enumerate(texts):
        following = state.after(text)
        steps.append(Step(state, Action(text), 0.0, index == len(texts) - 1, False, {}, following))
        state = following
    return Episode(tuple(steps))


EPISODES = [
    episode("2+3 = 5\n", "The answer is: 5"),
    episode("It is 6"),
    episode("It is 7"),
    episode("a\n", "b\n", "c"),
]


@pytest.mark.parametrize("pad", [None, 2])  # 2 is the end of a turn, as in SmolLM2
@pytest.mark.parametrize("labels", [1, 2])
def test_an_episode_gets_what_the_classifier_says_of_it_alone(labels, pad):
    network, tokenizer = classifier(LlamaForSequenceClassification, labels, pad), tiny_tokenizer()
    judged = RewardModel(network, tokenizer, weight=0.5).judged(EPISODES)
    for given, scored in zip(EPISODES, judged, strict=True):
        messages: Any = list(given.steps[-1].next_state.messages)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = network(ids).logits[0]
        expected = float(logits[0]) if labels == 1 else float(logits.softmax(-1)[1])
        assert scored.reward == pytest.approx(0.5 * expected, abs=1e-5)
        assert scored.rewards[:-1] == (0.0,) * (len(given.steps) - 1)
        assert scored.info["rewards"] == {"reward-model": pytest.approx(expected, abs=1e-5)}


@pytest.mark.parametrize("labels", [1, 2])
def test_a_step_gets_the_probability_at_its_newline(labels):
    network, tokenizer = classifier(LlamaForTokenClassification, labels, 2), tiny_tokenizer()
    judged = ProcessRewardModel(network, tokenizer).judged(EPISODES)
    for given, scored in zip(EPISODES, judged, strict=True):
        text = "What is 2+3?" + "".join(step.action.text.strip("\n") + "\n" for step in given.steps)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        newline = tokenizer("\n", add_special_tokens=False)["input_ids"][0]
        with torch.no_grad():
            logits = network(ids).logits[0][ids[0] == newline]
        expected = logits.sigmoid()[:, 0] if labels == 1 else logits.softmax(-1)[:, 1]
        assert scored.rewards == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_classifier_without_a_chat_template_gets_its_special_tokens():
    """As BERT, whose score is that of its first token."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    ids = tokenizer.convert_tokens_to_ids("<|start|>"), tokenizer.convert_tokens_to_ids("<|stop|>")
    pairs = [("<|start|>", ids[0]), ("<|stop|>", ids[1])]
    backend: Any = tokenizer._tokenizer
    backend.post_processor = TemplateProcessing(single="<|start|> $A <|stop|>", special_tokens=pairs)
    network = classifier(LlamaForSequenceClassification, 1, None)
    judged = RewardModel(network, tokenizer).judged(EPISODES[1:2])
    row = tokenizer("What is 2+3?\n\nIt is 6", return_tensors="pt")["input_ids"]
    assert (int(row[0, 0]), int(row[0, -1])) == ids
    with torch.no_grad():
        assert judged[0].reward == pytest.approx(float(network(row).logits[0, 0]), abs=1e-5)


def test_a_run_is_rewarded_by_a_trained_model_and_resumes(model_folder, tmp_path):
    classifier(LlamaForSequenceClassification, 1, 2).save_pretrained(tmp_path / "rm")
    tiny_tokenizer().save_pretrained(tmp_path / "rm")
    out = tmp_path / "run"
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--max_tokens", "8"]
    flags += ["--save_every", "1", "--problems_per_iteration", "2", "--group_size", "4", "--eval_problems", "0"]
    judge = ["--judge", "reward-model", "--judge_model", str(tmp_path / "rm"), "--judge_weight", "0.25"]
    main(["train", "rloo", *flags, *judge, "--iterations", "1", "--out", str(out)])
    main(["train", "--resume", str(out), "--iterations", "2"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len({row["reward/reward-model"] for row in rows}) == 2
    for saved in Buffer.load(out / "episodes.jsonl").episodes:
        assert saved.reward == pytest.approx(0.25 * saved.info["rewards"]["reward-model"], abs=1e-6)


def test_what_cannot_be_loaded_is_one_sentence(model_folder, tmp_path, capsys):
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--out", str(tmp_path / "run")]
    for more, said in (
        (["--judge", "reward-model"], "needs a trained classifier"),
        (
            ["--judge", "process-reward-model", "--judge_model", str(tmp_path)],
            "cannot be loaded as a process-reward-model",
        ),
        (["--judge", "reward-model", "--judge_model", "x", "--judge_prompt", "y"], "takes no --judge_prompt"),
    ):
        with pytest.raises(SystemExit):
            main(["train", "rloo", *flags, *more])
        assert said in " ".join(capsys.readouterr().err.split())


def test_loading_by_kind(tmp_path):
    classifier(LlamaForTokenClassification, 2, None).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert isinstance(load_reward_model("process-reward-model", str(tmp_path), 1.0, "cpu"), ProcessRewardModel)
