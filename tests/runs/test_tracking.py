"""Trackers: each gets every metric, any number at once, and a missing one is named with its extra."""

from __future__ import annotations

import importlib
import json

import pytest

from lmgym.errors import UserError
from lmgym.runs.run import Run
from lmgym.runs.tracking import check_trackers, make_sinks


def log_two(sinks) -> None:
    for iteration in (1, 2):
        for sink in sinks:
            sink.log(iteration, {"reward": iteration / 2, "eval/strict": 0.25})
    for sink in sinks:
        sink.close()


def test_all_trackers_at_once(tmp_path, monkeypatch):
    for package in ("wandb", "trackio", "tensorboard"):
        pytest.importorskip(package)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_PROJECT", "my-project")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    log_two(make_sinks(["wandb", "tensorboard", "trackio"], tmp_path, {"seed": 3}))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["reward"]) for row in rows] == [(1, 0.5), (2, 1.0)]
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [(1, 0.5), (2, 1.0)]


@pytest.mark.parametrize("package", ["wandb", "tensorboard", "trackio"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package):
    real = importlib.import_module

    def missing(name, *arguments):
        if name == package:
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=rf"lmgym\[{package}\]"):
        make_sinks([package], tmp_path, {})


def test_an_unknown_tracker_lists_the_known_ones(tmp_path):
    with pytest.raises(UserError, match="wandb, tensorboard, trackio"):
        make_sinks(["excel"], tmp_path, {})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_key(tmp_path, monkeypatch):
    """A machine without a login to wandb, which otherwise keeps its first settings."""
    pytest.importorskip("wandb").teardown()
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))


def test_wandb_without_a_key_is_refused_before_anything_is_written(tmp_path, no_key, monkeypatch):
    with pytest.raises(UserError, match="wandb has no API key: run `wandb login`, set WANDB_API_KEY, or"):
        Run(tmp_path / "run", trackers=["tensorboard", "wandb"])
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WANDB_MODE", "offline")  # as one would in a notebook, and then it works
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_two(Run(tmp_path / "run", trackers=["wandb"]).sinks)
    assert list(tmp_path.glob("run/wandb/offline-run-*/*.wandb"))


def test_wandb_is_usable_offline_or_with_a_key_where_it_looks_for_one(tmp_path, no_key, monkeypatch):
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled"), ("WANDB_API_KEY", "a" * 40)):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            check_trackers(["wandb"])
        pytest.importorskip("wandb").teardown()
    machine = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(machine))
    machine.write_text("machine example.com login me password secret\n")
    with pytest.raises(UserError):
        check_trackers(["wandb"])
    machine.write_text(f"machine api.wandb.ai login user password {'a' * 40}\n")
    check_trackers(["wandb"])
