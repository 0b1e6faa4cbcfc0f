"""Ctrl-C: held back once while an update runs, and told apart from the second that stops at once."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import tiny_model

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.run import Run, StoppedAtOnceError, uninterrupted


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_waits_for_the_end_of_the_block():
    reached = []

    @uninterrupted()
    def work() -> None:
        press()
        reached.append("the end")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert reached == ["the end"]
    assert not isinstance(caught.value, StoppedAtOnceError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("presses", "saved"), [(1, True), (2, False)])
def test_weights_of_an_unfinished_update_are_never_saved(tmp_path, monkeypatch, presses, saved):
    env = lmgym.make("arithmetic")
    config = ReinforceConfig(iterations=2, problems_per_iteration=2, group_size=2, eval_problems=0)
    algorithm = Reinforce(ChatPolicy(tiny_model(), max_tokens=4), env, config, run=Run(tmp_path / "run"))
    update = algorithm.update_policy

    def interrupted_update():
        metrics = update()
        for _ in range(presses):
            press()
        return metrics

    monkeypatch.setattr(algorithm, "update_policy", interrupted_update)
    with pytest.raises(KeyboardInterrupt):
        algorithm.train()
    assert (tmp_path / "run" / "checkpoints" / "000001").exists() is saved
