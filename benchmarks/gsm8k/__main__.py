"""`python -m benchmarks.gsm8k`: repeats a recipe from nothing to its table; finished parts are not repeated."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.gsm8k.evaluations import MEASURES, difference, row, table
from benchmarks.gsm8k.recipes import RECIPES, TASK, VALIDATION, Recipe, Training
from lmgym.console import messages, results

HERE = Path(__file__).parent


@dataclass
class Settings:
    """Which recipe to repeat."""

    recipe: Literal["small", "qwen"] = "small"
    """small: SmolLM2-135M, supervised fine-tuning and then RL, line by line with the calculator; qwen:
    qwen2.5-coder-0.5b, a short warm start and then RL."""
    runs: str = "runs/gsm8k"
    """Where the runs and the evaluations are kept."""
    minutes: float = 0.0
    """Stop in time for this session to end within so many minutes; the same command continues. 0: no limit."""


def main(settings: Settings) -> None:
    """Evaluates the untrained model, then trains and evaluates step by step; the table grows with each step."""
    recipe, folder = RECIPES[settings.recipe], Path(settings.runs) / settings.recipe
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * settings.minutes if settings.minutes else None
    rows = {"before": row("before", _evaluate("before", recipe.model, recipe.untrained_policy, folder, ends))}
    differences: list[dict[str, Any]] = []
    for training in recipe.trainings:
        _train(training, recipe, folder, ends)
        found = row(training.name, _evaluate(training.name, str(folder / training.name), recipe.policy, folder, ends))
        rows[training.name] = found
        starts = dict.fromkeys((training.start or "before", "before"))
        differences += [difference(rows[start], found) for start in starts]
        _write(settings.recipe, list(rows.values()), differences)
    results.print(table(list(rows.values()), differences), markup=False, soft_wrap=True)


def _write(recipe: str, rows: list[dict[str, Any]], differences: list[dict[str, Any]]) -> None:
    """The table so far, as JSON and in Markdown."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    found = {"recipe": recipe, "commit": commit, "rows": rows, "differences": differences}
    (HERE / f"{recipe}.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / f"{recipe}.md").write_text(table(rows, differences) + "\n")


def _train(training: Training, recipe: Recipe, folder: Path, ends: float | None) -> None:
    """Starts or continues a training until it is done; exits if the time is over before."""
    out = folder / training.name
    if (out / "results.json").exists():
        return
    budget = _minutes_left(ends)
    if any(out.glob("checkpoints/*/state.json")):
        _lmgym("train", "--resume", str(out), *budget)
    else:
        model = str(folder / training.start) if training.start else recipe.model
        flags = (*TASK, *VALIDATION, "--model", model, *recipe.policy, *training.flags, "--out", str(out))
        _lmgym("train", training.algorithm, *flags, *budget)
    if not (out / "results.json").exists():
        sys.exit("out of time: the same command continues")


def _evaluate(
    name: str, model: str, policy: tuple[str, ...], folder: Path, ends: float | None
) -> dict[str, dict[str, Any]]:
    """All evaluations of one model, by the name of the measure."""
    found = {}
    for measure in MEASURES:
        output = folder / "evaluations" / f"{name}-{measure.name}.json"
        if not output.exists():
            _minutes_left(ends)
            _lmgym("eval", *TASK, "--model", model, *policy, *measure.flags, "--output", str(output))
        found[measure.name] = json.loads(output.read_text())[model]
    return found


def _minutes_left(ends: float | None) -> tuple[str, ...]:
    """The flag that limits a session to the time that is left; exits if there is none."""
    if ends is None:
        return ()
    minutes = (ends - time.monotonic()) / 60
    if minutes <= 0:
        sys.exit("out of time: the same command continues")
    return ("--minutes", f"{minutes:.1f}")


def _lmgym(*arguments: str) -> None:
    """Prints a command and runs it; its failure is ours."""
    messages.print(f"$ lmgym {shlex.join(arguments)}", markup=False, soft_wrap=True)
    finished = subprocess.run([sys.executable, "-m", "lmgym", *arguments], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python -m benchmarks.gsm8k", use_underscores=True))
