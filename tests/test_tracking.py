"""Trackers: each gets every metric, any number at once, and a missing one is named with its extra."""

from __future__ import annotations

import importlib
import json

import pytest

from lmgym.errors import UserError
from lmgym.tracking import make_sinks


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
