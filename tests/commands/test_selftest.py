"""`lmgym selftest` passes here, and fails where something is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from lmgym.commands.selftest import SelftestSettings, selftest
from lmgym.learning.learner import Learner


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_passes_on_this_cpu(model_folder, dtype):
    command = [sys.executable, "-m", "lmgym", "selftest", "--model", str(model_folder), "--dtype", dtype]
    done = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything passed" in done.stdout
    for check in ("same seed, same tokens", "gradient", "LoRA", "tokens/s", "peak memory"):
        assert check in done.stdout


def test_a_learner_with_other_logprobs_fails(model_folder, monkeypatch, capsys):
    observe = Learner.observe

    def wrong(self, batch):
        update = observe(self, batch)
        return replace(update, logprobs=1.05 * update.logprobs)

    monkeypatch.setattr(Learner, "observe", wrong)
    assert not selftest(SelftestSettings(model=str(model_folder), device="cpu", dtype="float32"))
    assert "FAILED" in capsys.readouterr().out


def test_a_check_that_raises_is_a_failed_check_and_the_others_go_on(model_folder, monkeypatch, capsys):
    def out_of_memory(self, *arguments):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Learner, "step", out_of_memory)
    assert not selftest(SelftestSettings(model=str(model_folder), device="cpu", dtype="float32"))
    printed = capsys.readouterr().out
    assert "OutOfMemoryError" in printed
    assert "same seed, same tokens" in printed
