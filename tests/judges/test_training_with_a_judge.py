"""Runs with a judge: its rewards are learnt from, reported and saved, and a run goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmgym.buffer import Buffer
from lmgym.commands.cli import main


def flags(model: Path) -> list[str]:
    flags = ["--model", str(model), "--env", "arithmetic", "--shots", "0", "--max_tokens", "8", "--save_every", "1"]
    return [*flags, "--problems_per_iteration", "2", "--group_size", "4", "--eval_problems", "0"]


@pytest.mark.parametrize("kind", ["step", "dimensions", "episode", "answer", "group"])
def test_its_rewards_are_learnt_from_reported_and_saved(model_folder, kind, tmp_path):
    out = tmp_path / "run"
    judge = ["--judge", kind, "--judge_weight", "2"]
    main(["train", "rloo", *flags(model_folder), "--iterations", "1", *judge, "--out", str(out)])
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


def test_a_question_of_ones_own_is_asked(model_folder, tmp_path):
    (tmp_path / "polite.txt").write_text("Is this polite? {solution}")
    out = tmp_path / "run"
    judge = ["--judge", "episode", "--judge_prompt", str(tmp_path / "polite.txt")]
    main(["train", "rloo", *flags(model_folder), "--iterations", "1", *judge, "--out", str(out)])
    assert json.loads((out / "config.json").read_text())["judge_prompt"] == str(tmp_path / "polite.txt")


def test_a_judge_without_a_kind_is_refused(model_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "rloo", *flags(model_folder), "--judge_model", "any", "--out", str(tmp_path / "run")])
    assert "name its kind with --judge" in " ".join(capsys.readouterr().err.split())
