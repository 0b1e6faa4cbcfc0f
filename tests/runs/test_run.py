"""Ctrl-C, held back once while an update runs, and a run that is resumed from Python."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_model

import lmgym
from lmgym.algorithms.grpo import GRPO, GRPOConfig
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.commands.cli import main
from lmgym.errors import UserError
from lmgym.learning.reference import ModelReference
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.models.lora import LoraSettings
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.system_prompts import load_system_prompt
from lmgym.runs.checkpoint import newest_checkpoint
from lmgym.runs.interrupts import StoppedAtOnceError, uninterrupted
from lmgym.runs.run import Run


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


# Resuming from Python.


def length(problem: lmgym.Problem, answer: str) -> float:
    return float(len(answer) % 7)


def build(folder: Path, model: Path, lora: bool = False, kind: Any = GRPO, max_tokens: int = 4, **settings) -> GRPO:
    """An algorithm with a KL penalty, as a script builds it whether or not it goes on with a run."""
    settings = {"iterations": 2, "kl_coeff": 0.1, "learning_rate": 1e-2, "filter_groups": False, **settings}
    settings |= {"problems_per_iteration": 2, "group_size": 3, "save_every": 1, "eval_problems": 0}
    config = kind.Config.from_settings(settings)
    rank = LoraSettings(rank=4, alpha=8) if lora else None
    policy = ChatPolicy(load_model(str(model), dtype="float32", lora=rank), max_tokens=max_tokens)
    algorithm: GRPO = kind(policy, lmgym.make("arithmetic", reward=length), config, run=Run(folder))
    return algorithm


def weights(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.network.named_parameters()}


def are_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_built_with_its_first_model_gets_the_weights_of_the_checkpoint(tmp_path, model_folder, lora):
    trained = build(tmp_path / "run", model_folder, lora)
    first = weights(trained.policy.model)
    trained.train()
    reached = weights(trained.policy.model)
    assert not are_equal(first, reached)
    resumed = build(tmp_path / "run", model_folder, lora, iterations=3)
    resumed.run.resume(resumed)
    assert resumed.iteration == 2
    assert are_equal(weights(resumed.policy.model), reached)
    if not lora:
        assert isinstance(resumed.reference, ModelReference)
        assert are_equal(weights(resumed.reference.frozen), first)


def test_what_is_changed_on_resume_from_python_is_kept(tmp_path, model_folder):
    folder = tmp_path / "run"
    build(folder, model_folder).train()
    before = json.loads((folder / "config.json").read_text())
    for until in (3, 4):
        resumed = build(folder, model_folder, iterations=until, learning_rate=5e-2)
        resumed.run.resume(resumed)
        resumed.train()
    after = json.loads((folder / "config.json").read_text())
    assert after.pop("changed_on_resume") == [
        {"after_iteration": 2, "iterations": [2, 3], "learning_rate": [1e-2, 5e-2]},
        {"after_iteration": 3, "iterations": [3, 4]},
    ]
    assert after == before | {"iterations": 4, "learning_rate": 5e-2}


class Other(GRPO):
    """Another algorithm with the same settings."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_tokens": 5}, "--max_tokens 5 cannot be given on resume"),
        ({"seed": 1}, "--seed 1 cannot be given on resume"),
        ({"lora": True}, "--lora_rank 4 cannot be given on resume"),
        ({"kind": Other}, f"--algorithm {__name__}:Other cannot be given on resume"),
        ({"model": "checkpoint"}, "000002 cannot be given on resume: the model of"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_makes_it_another_run_is_refused_from_python_too(tmp_path, model_folder, given, says):
    folder = tmp_path / "run"
    build(folder, model_folder).train()
    if "model" in given:
        given = {"model": newest_checkpoint(folder)}
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    resumed = build(folder, **{"model": model_folder, "iterations": 3, **given})
    with pytest.raises(UserError, match=says):
        resumed.run.resume(resumed)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_settings_given_to_a_run_do_not_overwrite_the_record_of_the_folder(tmp_path, model_folder):
    build(tmp_path, model_folder).train()
    before = (tmp_path / "config.json").read_text()
    Run(tmp_path, {"model": "another"})
    assert (tmp_path / "config.json").read_text() == before


def test_a_run_from_the_command_line_is_resumed_from_python(tmp_path, model_folder):
    flags = (
        "--env arithmetic --policy chat --shots 0 --max_tokens 4 --eval_problems 0 --save_every 1 --system_prompt chat"
    )
    settings = "--iterations 1 --problems_per_iteration 2 --group_size 3"
    main(
        [
            "train",
            "grpo",
            "--model",
            str(model_folder),
            "--out",
            str(tmp_path / "run"),
            *flags.split(),
            *settings.split(),
        ]
    )
    folder, env = tmp_path / "run", lmgym.make("arithmetic")
    policy = ChatPolicy(load_model(str(model_folder)), (), load_system_prompt("chat"), 4, calculator=True)
    config = GRPOConfig(iterations=2, problems_per_iteration=2, group_size=3, eval_problems=0, save_every=1)
    resumed = GRPO(policy, env, config, run=Run(folder))
    resumed.run.resume(resumed)
    resumed.train()
    saved = json.loads((folder / "config.json").read_text())
    assert (saved["iterations"], saved["out"]) == (2, str(tmp_path / "run"))
    assert saved["system_prompt"] == "chat"
    assert saved["changed_on_resume"][0]["iterations"] == [1, 2]


def test_weights_of_another_kind_or_shape_are_refused(tmp_path, model_folder):
    whole, adapter = tiny_model(size=32), load_model(str(model_folder), lora=LoraSettings(rank=2))
    whole.save(tmp_path / "whole")
    adapter.save(tmp_path / "adapter")
    with pytest.raises(UserError, match=r"holds a full model, but .* is an adapter here"):
        adapter.load_weights(tmp_path / "whole")
    with pytest.raises(UserError, match=r"holds an adapter, but .* is a full model here"):
        whole.load_weights(tmp_path / "adapter")
    with pytest.raises(UserError, match="other shapes"):
        tiny_model(size=64).load_weights(tmp_path / "whole")
    with pytest.raises(UserError, match="rank 2, but the adapter to load it into has rank 4"):
        load_model(str(model_folder), lora=LoraSettings(rank=4)).load_weights(tmp_path / "adapter")
