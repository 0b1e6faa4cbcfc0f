"""The tables of the GSM8K runs, and the command that repeats them, with commands that are only recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gsm8k import __main__ as command
from benchmarks.gsm8k.curves import Curve, draw, read_curve
from benchmarks.gsm8k.evaluations import difference, row, table
from benchmarks.gsm8k.recipes import RECIPES
from lmgym.algorithms.registry import find_algorithm
from lmgym.commands.flag_names import flag_names
from lmgym.commands.train import TrainSettings
from lmgym.evaluation.statistics import mcnemar, wilson
from lmgym.runs.plotting import new_figure


def evaluation(solved: list[int], lenient: list[int], parsed: list[int]) -> dict[str, object]:
    share = sum(solved) / len(solved)
    return {
        "eval/strict": share,
        "eval/lenient": sum(lenient) / len(lenient),
        "eval/unparsed": 1 - sum(parsed) / len(parsed),
        "eval/cut_off": 0.25,
        "eval/mean_length": 100.0,
        "eval/pass@8": 0.5,
        "eval/maj@8": 0.25,
        "dtype": "float32",
        "solved": [float(one) for one in solved],
        "solved_leniently": [float(one) for one in lenient],
        "parsed": [float(one) for one in parsed],
    }


BEFORE = evaluation([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0])
AFTER = evaluation([1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1])


def test_the_tables_have_shares_gains_and_p_values():
    found = {"before": BEFORE, "after": AFTER}
    rows = [row(name, dict.fromkeys(("test", "sampled", "svamp"), each)) for name, each in found.items()]
    assert rows[1]["strict"] == {"value": 0.75, "low": wilson(0.75, 4).low, "high": wilson(0.75, 4).high}
    gain = difference(*rows)
    assert (gain["strict_points"], gain["lenient_points"]) == (50.0, 25.0)
    assert gain["strict_p"] == mcnemar(0, 2)
    assert (gain["parsed_before"], gain["strict_of_parsed"]) == (2, [0.5, 1.0])
    text = table(rows, [gain])
    assert "| after | 75.0 % [30.1, 95.4] | 75.0 % [30.1, 95.4] | 0.0 % | 25.0 % | 100 |" in text
    assert "| before → after | +50.0 | 0.5 | +25.0 | 1 | 50.0 → 100.0 % of 2 | +50.0 | 0.5 |" in text


def test_what_was_not_measured_is_a_dash():
    rows = [row("before", {"test": BEFORE, "svamp": BEFORE}), row("after", {"test": AFTER})]
    text = table(rows, [difference(*rows)])
    assert "| 0.0 % | 25.0 % | 100 | – | – | – |" in text
    assert "| 50.0 → 100.0 % of 2 | – | – |" in text


def test_the_picture_has_the_evaluations_of_a_run_and_the_test_problems(tmp_path):
    evaluated = {"eval/problems": 200.0, "eval/strict_low": 0.2, "eval/strict_high": 0.4}
    lines = [
        {"iteration": 0, "eval/strict": 0.3, **evaluated},
        {"iteration": 1, "accuracy": 0.25, "seconds_collecting": 60.0, "seconds_learning": 40.0, "reward": 0.25},
        {"iteration": 1, "eval/strict": 0.35, **evaluated},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = read_curve(tmp_path)
    assert [point["eval/strict"] for point in curve["validation"]] == [0.3, 0.35]
    assert curve["iterations"] == [
        {"iteration": 1, "accuracy": 0.25, "seconds_collecting": 60.0, "seconds_learning": 40.0}
    ]
    draw([row("before", {"test": BEFORE}), row("rl", {"test": AFTER})], {"rl": curve}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_not_evaluated_on_the_way_shows_its_samples_and_worked_solutions_show_nothing(
    tmp_path, monkeypatch
):
    figures = []

    def watched(width: float, height: float) -> Any:
        figures.append(new_figure(width, height))
        return figures[-1]

    monkeypatch.setattr("benchmarks.gsm8k.curves.new_figure", watched)
    sampled = [{"iteration": 1.0, "accuracy": 0.25}, {"iteration": 2.0, "accuracy": 0.5}]
    solutions = [{"iteration": 1.0, "accuracy": 1.0}]
    curves: dict[str, Curve] = {
        "sft": {"iterations": solutions, "validation": []},
        "rl": {"iterations": sampled, "validation": []},
    }
    draw([row("before", {"test": BEFORE})], curves, tmp_path / "curve.png")
    (line,) = figures[0].axes[0].lines
    assert line.get_label() == "rl: training problems, sampled"
    assert [tuple(point) for point in line.get_xydata()] == [(1, 0.25), (2, 0.5)]


@pytest.mark.parametrize("name", RECIPES)
def test_every_flag_of_a_recipe_exists(name):
    for training in RECIPES[name].trainings:
        known = flag_names(TrainSettings(find_algorithm(training.algorithm).Config()))
        flags = [*training.flags, *RECIPES[name].policy, *RECIPES[name].untrained_policy]
        assert {flag.removeprefix("--") for flag in flags if flag.startswith("--")} <= set(known)


def test_finished_parts_are_not_repeated_and_interrupted_ones_are_resumed(tmp_path, monkeypatch):
    asked: list[list[str]] = []

    def start(arguments: list[str], **_: object) -> SimpleNamespace:
        assert arguments[1:3] == ["-m", "lmgym"]
        given = arguments[3:]
        asked.append(given)
        if given[:1] == ["train"]:
            folder = Path(given[given.index("--resume" if "--resume" in given else "--out") + 1])
            (folder / "checkpoints" / "000001").mkdir(parents=True, exist_ok=True)
            (folder / "checkpoints" / "000001" / "state.json").touch()
            if "--resume" in given:  # the second session ends
                (folder / "results.json").touch()
        else:
            output, model = Path(given[given.index("--output") + 1]), given[given.index("--model") + 1]
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps({model: AFTER}))
        return SimpleNamespace(wait=lambda seconds: 0)

    monkeypatch.setattr(command.subprocess, "Popen", start)
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="abc\n"))
    monkeypatch.setattr(command, "HERE", tmp_path)
    monkeypatch.setattr(command, "UNTRAINED", tmp_path / "untrained")
    settings = command.Settings(runs=str(tmp_path / "runs"), minutes=60.0)
    trainings = len(RECIPES["small"].trainings)
    for _ in range(trainings):
        with pytest.raises(SystemExit, match="the same command continues"):
            command.main(settings)
    command.main(settings)
    resumed = [given for given in asked if "--resume" in given]
    assert len(resumed) == trainings
    assert all("--minutes" in given for given in resumed)
    shots = [given[given.index("--shots") + 1] for given in asked if given[:1] == ["eval"]]
    assert shots == ["8"] * 3 + ["0"] * 3 * trainings  # the untrained model first, with its own prompt
    count = len(asked)
    command.main(settings)
    assert asked[count:] == []
    assert json.loads((tmp_path / "small.json").read_text())["commit"] == "abc"


def test_a_command_that_outlasts_the_session_is_ended_and_one_that_fails_ends_it(tmp_path, monkeypatch):
    written = tmp_path / "lmgym" / "__main__.py"
    written.parent.mkdir()
    (written.parent / "__init__.py").touch()
    written.write_text("import sys, time\nif 'fail' in sys.argv: sys.exit(3)\ntime.sleep(60)")
    monkeypatch.chdir(tmp_path)  # where `python -m lmgym` finds this instead
    session = command.Session("same", 1, minutes=0.0)
    with pytest.raises(SystemExit) as failed:
        session.lmgym("fail")
    assert failed.value.code == 3
    started = time.monotonic()
    with pytest.raises(SystemExit, match="the same command continues"):
        session.lmgym("eval", timeout=2 / 60)
    assert time.monotonic() - started < 30


def test_a_training_has_the_options_of_its_own_task(tmp_path, monkeypatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(command.Session, "lmgym", lambda self, *arguments, timeout=None: asked.append(arguments))
    (training,) = RECIPES["qwen"].trainings
    with pytest.raises(SystemExit, match="the same command continues"):  # no results were written
        command._train(training, RECIPES["qwen"], tmp_path, command.Session("same", 1, minutes=0.0))
    (given,) = asked
    place = given.index("--env_options")
    assert given[place : place + 5] == ("--env_options", "hold_out_validation", "True", "max_calculations", "4")


def test_several_processes_have_one_thread_each(monkeypatch):
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(arguments: list[str], env: dict[str, str]) -> SimpleNamespace:
        started.append((arguments, env))
        return SimpleNamespace(wait=lambda seconds: 0)

    monkeypatch.setattr(command.subprocess, "Popen", start)
    command.Session("int8", 2, minutes=0.0).lmgym("eval", "--model", "x")
    ((arguments, environment),) = started
    assert arguments[arguments.index("--nproc-per-node") + 1] == "2"
    assert arguments[-6:] == ["lmgym", "eval", "--model", "x", "--rollout_dtype", "int8"]
    assert environment["OMP_NUM_THREADS"] == "1"
