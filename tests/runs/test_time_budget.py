"""Sessions of limited length: a run stops in time, saves, and goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import tiny_model

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.console import format_duration
from lmgym.errors import UserError
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.runs import time_budget
from lmgym.runs.run import Run
from lmgym.runs.time_budget import TimeBudget


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time_budget.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_a_session_ends_before_an_iteration_that_might_not_fit(clock):
    budget = TimeBudget(minutes=10)
    assert not budget.is_over(False)
    clock.now += 300
    budget.iterations += [100.0, 120.0]
    assert not budget.is_over(False)  # 300 + 1.25 · 120 = 450 of 600 seconds
    clock.now += 151
    assert budget.is_over(False)
    clock.now -= 51
    budget.evaluated(60.0)
    assert not budget.is_over(False)
    assert budget.is_over(True)  # 400 + 1.25 · (120 + 60) = 625
    budget.saved(seconds=51.0)
    assert budget.is_over(False)


def test_a_session_does_at_least_one_iteration_and_without_minutes_all(clock):
    short, endless = TimeBudget(minutes=0.01), TimeBudget()
    clock.now += 1e6
    assert not short.is_over(True)
    endless.iterations.append(1e6)
    assert not endless.is_over(True)


def test_evaluations_and_checkpoints_are_not_part_of_an_iteration(clock):
    budget = TimeBudget()
    clock.now += 500  # the model is loaded
    budget.begin()
    clock.now += 10
    budget.evaluated(10.0)
    clock.now += 100
    budget.iterated()
    clock.now += 7
    budget.saved(7.0)
    clock.now += 50
    budget.iterated()
    assert budget.iterations == [100.0, 50.0]
    assert budget.minutes_since_save() == pytest.approx(50 / 60)


def test_the_rest_is_estimated_from_recent_iterations(clock):
    budget = TimeBudget()
    assert budget.seconds_left(3) is None
    budget.iterations += [1000.0, 10.0, 10.0, 10.0, 10.0, 20.0]
    assert budget.seconds_left(3) == pytest.approx(36.0)


@pytest.mark.parametrize("minutes", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused(minutes):
    with pytest.raises(UserError, match="--minutes is"):
        TimeBudget(minutes)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (60, "1m 00s"), (3599.6, "1h 00m"), (7500, "2h 05m")]
)
def test_durations_are_readable(seconds, text):
    assert format_duration(seconds) == text


def build(folder: Path, minutes: float, **settings) -> Reinforce:
    settings = {"iterations": 4, "problems_per_iteration": 2, "group_size": 2, "save_every": 0, **settings}
    config = ReinforceConfig.from_settings({"eval_problems": 0, "save_minutes": 0.0, **settings})
    policy = ChatPolicy(tiny_model(), max_tokens=4)
    return Reinforce(policy, lmgym.make("arithmetic"), config, run=Run(folder, minutes=minutes))


def weights(algorithm: Reinforce) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in algorithm.policy.model.network.parameters()]


def test_short_sessions_end_with_the_same_weights_as_one_long_run(tmp_path, capsys):
    whole = build(tmp_path / "whole", minutes=0)
    whole.train()
    for session in range(4):
        part = build(tmp_path / "parts", minutes=1e-9)
        if session:
            part.run.resume(part)
        part.train()
        assert part.iteration == session + 1
        assert (tmp_path / "parts" / "model").exists() is (session == 3)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(weights(part), weights(whole), strict=True))
    message = " ".join(capsys.readouterr().err.split())
    assert "stopping after iteration 3 of 4, because the next one might not end within 1e-09 minutes" in message
    assert f"resume with: lmgym train --resume {tmp_path / 'parts'}" in message
    rows = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]


def test_checkpoints_are_written_by_minutes_too(tmp_path, monkeypatch):
    algorithm = build(tmp_path / "run", minutes=0, save_minutes=5.0)
    saved = []
    monkeypatch.setattr(algorithm.run, "save_checkpoint", lambda it: saved.append(it.iteration))
    passed = iter([4.9, 5.0, 5.1, 1.0])
    monkeypatch.setattr(algorithm.run.time, "minutes_since_save", lambda: next(passed))
    algorithm.train()
    assert saved == [2, 3]
