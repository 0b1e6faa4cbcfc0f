"""`lmgym play`: a person's lines or a model's, with the replies, the rewards and their parts."""

from __future__ import annotations

import io

import pytest

from lmgym.buffer import Buffer
from lmgym.commands.cli import main
from lmgym.commands.play import PlaySettings


def test_a_person_plays_and_sees_the_reward_and_its_parts(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\nThe answer is: 12\n"))
    main(["play", "arithmetic", "--reward", "correct + 0.5*form"])
    said = capsys.readouterr().out
    assert "reward" in said
    assert "parts of the reward: correct" in said
    assert "form 1" in said
    assert "The episode is over; the answer was" in said


def test_a_person_plays_a_game(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n" * 6))
    main(["play", "--env", "guess-number"])
    assert "Write a number." in capsys.readouterr().out


def test_a_model_plays_and_its_text_is_shown(model_folder, capsys):
    flags = ["--model", str(model_folder), "--shots", "0", "--max_tokens", "5"]
    main(["play", "guess-number", *flags, "--policy", "chat", "--env_options", "max_turns", "2"])
    said = capsys.readouterr().out
    assert "I think of a number" in said
    assert "The episode" in said


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory):
    """A run whose model writes one letter per action, of a policy that writes whole answers."""
    out = tmp_path_factory.mktemp("trained") / "run"
    flags = ["--model", str(model_folder), "--env", "guess-number", "--shots", "0", "--max_tokens", "1"]
    flags += ["--policy", "chat", "--eval_problems", "0", "--env_options", "max_turns", "2"]
    size = ["--iterations", "1", "--problems_per_iteration", "2", "--group_size", "2"]
    main(["train", "rloo", *flags, *size, "--out", str(out)])
    return out


def test_the_model_of_a_run_plays_and_samples_as_it_was_trained(trained, tmp_path, monkeypatch, capsys):
    main(["play", "guess-number", "--model", str(trained)])
    assert "The episode" in capsys.readouterr().out
    settings: list[PlaySettings] = []
    monkeypatch.setattr("lmgym.commands.play.play", settings.append)
    main(["play", "guess-number", "--model", str(trained)])
    policy = settings[0].policy
    assert (policy.policy, policy.shots, policy.max_tokens) == ("chat", 0, 1)
    out = tmp_path / "episodes.jsonl"
    main(["rollout", "--model", str(trained), "--problems", "1", "--group_size", "2", "--out", str(out)])
    for episode in Buffer.load(out).episodes:
        assert episode.problem.prompt.startswith("I think of a number")
        assert all(len(step.action.token_ids) == 1 for step in episode.steps)


def test_a_model_plays_against_itself(model_folder, capsys):
    flags = ["--model", str(model_folder), "--shots", "0", "--max_tokens", "5"]
    main(["play", "number-race", *flags, "--policy", "chat", "--env_options", "max_turns", "1"])
    said = capsys.readouterr().out
    assert "player 1:" in said
    assert "player 2:" in said


def test_what_is_missing_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for arguments, said in ((["play", "arithmetic"], "the input ended"), (["play", "no-such-env"], "no environment")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in " ".join(capsys.readouterr().err.split())
