"""Both halves of the loop alone: collecting, judging again, and learning from a file."""

from __future__ import annotations

import json

import pytest

from lmgym.buffer import Buffer
from lmgym.commands.cli import main


@pytest.fixture(scope="module")
def collected(model_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("rollout") / "episodes.jsonl"
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--max_tokens", "40"]
    main(["rollout", *flags, "--problems", "3", "--group_size", "4", "--out", str(out)])
    return out


def test_rollout_writes_whole_groups(collected):
    episodes = list(Buffer.load(collected).episodes)
    assert len(episodes) == 12
    assert sorted(episode.group for episode in episodes) == [0] * 4 + [1] * 4 + [2] * 4
    assert all(episode.tokens and any(episode.mask) for episode in episodes)


def test_rescore_changes_the_rewards_and_says_how(collected, tmp_path, capsys):
    (out := tmp_path / "again.jsonl").unlink(missing_ok=True)
    main(["rescore", str(collected), "--reward", "0.5*length(1)", "--out", str(out)])
    said = capsys.readouterr().out
    assert "12 episodes" in said
    assert "told apart" in said
    for old, new in zip(Buffer.load(collected).episodes, Buffer.load(out).episodes, strict=True):
        assert new.tokens == old.tokens
        assert new.reward == 0.5 * len(new.text.split())


def test_what_was_collected_can_be_learnt_from(collected, model_folder, tmp_path, capsys):
    scored = tmp_path / "scored.jsonl"
    main(["rescore", str(collected), "--reward", "length(1)", "--out", str(scored)])
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--max_tokens", "40"]
    flags += ["--eval_problems", "0", "--from_episodes", str(scored)]
    out = tmp_path / "run"
    main(["train", "grpo", *flags, "--iterations", "1", "--out", str(out)])
    row = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["tokens"] == 0
    assert row["gradient_norm"] > 0
    assert row["episodes_learnt"] > 0


def test_a_run_directory_is_learnt_from_and_the_new_run_resumes(model_folder, tmp_path, capsys):
    flags = ["--model", str(model_folder), "--env", "arithmetic", "--shots", "0", "--max_tokens", "40"]
    flags += ["--eval_problems", "0", "--save_every", "1", "--reward", "length(1)"]
    sampled, learnt = tmp_path / "sampled", tmp_path / "learnt"
    size = ["--problems_per_iteration", "3", "--group_size", "4", "--iterations", "2"]
    main(["train", "grpo", *flags, *size, "--out", str(sampled)])
    main(["train", "grpo", *flags, "--from_episodes", str(sampled), "--iterations", "1", "--out", str(learnt)])
    main(["train", "--resume", str(learnt), "--iterations", "2"])
    rows = [json.loads(line) for line in (learnt / "metrics.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [0, 0]
    config = json.loads((learnt / "config.json").read_text())
    assert (config["problems_per_iteration"], config["replay_episodes"]) == (0, 24)
    assert config["load_episodes"] == str(sampled / "episodes.jsonl")
    with pytest.raises(SystemExit):
        main(["train", "grpo", *flags, "--from_episodes", str(sampled), "--load_episodes", "x"])
    assert "give one of them" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rescore"], "give the folder of a run and a reward"),
        (["rescore", "nowhere", "--reward", "length"], "cannot be read"),
        (["rollout", "--problems", "0"], "at least 1"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in " ".join(capsys.readouterr().err.split())
