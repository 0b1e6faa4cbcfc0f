"""Runs with a judge: its rewards are learnt from, reported and saved, and a run goes on with it."""

from __future__ import annotations

import json

import pytest
from conftest import tiny_network, tiny_tokenizer

from lmgym.buffer import Buffer
from lmgym.commands.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_network(size=32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def flags(model: str) -> list[str]:
    flags = ["--model", model, "--env", "arithmetic", "--shots", "0", "--max_tokens", "8", "--save_every", "1"]
    return [*flags, "--problems_per_iteration", "2", "--group_size", "4", "--eval_problems", "0"]


@pytest.mark.parametrize("kind", ["step", "dimensions", "episode", "group"])
def test_its_rewards_are_learnt_from_reported_and_saved(model, kind, tmp_path):
    out = tmp_path / "run"
    main(
        ["train", "rloo", *flags(model), "--iterations", "1", "--judge", kind, "--judge_weight", "2", "--out", str(out)]
    )
    main(["train", "--resume", str(out), "--iterations", "2"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    learnt = [row for row in rows if "reward" in row]
    assert len(learnt) == 2
    episodes = list(Buffer.load(out / "episodes.jsonl").episodes)
    assert len(episodes) == 16
    for row in learnt:
        assert 0 < row[f"reward/{kind}"] < 1
        assert row["gradient_norm"] > 0
    for episode in episodes:
        assert 0 < episode.info["rewards"][kind] < 1
        assert episode.reward > 0


def test_a_question_of_ones_own_is_asked(model, tmp_path):
    (tmp_path / "polite.txt").write_text("Is this polite? {solution}")
    out = tmp_path / "run"
    judge = ["--judge", "episode", "--judge_prompt", str(tmp_path / "polite.txt")]
    main(["train", "rloo", *flags(model), "--iterations", "1", *judge, "--out", str(out)])
    assert json.loads((out / "config.json").read_text())["judge_prompt"] == str(tmp_path / "polite.txt")


def test_a_judge_without_a_kind_is_refused(model, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "rloo", *flags(model), "--judge_model", model, "--out", str(tmp_path / "run")])
    assert "name its kind with --judge" in " ".join(capsys.readouterr().err.split())
