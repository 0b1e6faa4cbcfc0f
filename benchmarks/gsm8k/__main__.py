"""`python -m benchmarks.gsm8k`: repeats a recipe from nothing to its table; finished parts are not repeated."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.gsm8k.curves import Curve, draw, read_curve
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
    measures: tuple[Literal["test", "sampled", "svamp"], ...] = ("test", "sampled", "svamp")
    """What to evaluate of each model; figures that were measured before stay in the table."""
    minutes: float = 0.0
    """Stop in time for this session to end within so many minutes; the same command continues. 0: no limit."""


def main(settings: Settings) -> None:
    """Evaluates the untrained model, then trains and evaluates step by step; the table grows with each step."""
    recipe, folder = RECIPES[settings.recipe], Path(settings.runs) / settings.recipe
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * settings.minutes if settings.minutes else None
    measures = settings.measures
    found = _evaluate("before", recipe.model, recipe.untrained_policy, measures, folder, ends)
    rows, differences = {"before": row("before", found)}, list[dict[str, Any]]()
    for training in recipe.trainings:
        _train(training, recipe, folder, ends)
        found = _evaluate(training.name, str(folder / training.name), recipe.policy, measures, folder, ends)
        rows[training.name] = row(training.name, found)
        starts = dict.fromkeys((training.start or "before", "before"))
        differences += [difference(rows[start], rows[training.name]) for start in starts]
        curves = {each.name: read_curve(folder / each.name) for each in recipe.trainings if each.name in rows}
        _write(settings.recipe, list(rows.values()), differences, curves)
    results.print(table(list(rows.values()), differences), markup=False, soft_wrap=True)


def _write(
    recipe: str, rows: list[dict[str, Any]], differences: list[dict[str, Any]], curves: dict[str, Curve]
) -> None:
    """The table and the curves so far, as JSON, in Markdown and as a picture."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    found = {"recipe": recipe, "commit": commit, "rows": rows, "differences": differences, "curves": curves}
    (HERE / f"{recipe}.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / f"{recipe}.md").write_text(table(rows, differences) + "\n")
    draw(rows, curves, HERE / f"{recipe}.png")


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
        flags = (*training.task, *VALIDATION, "--model", model, *recipe.policy, *training.flags, "--out", str(out))
        _lmgym("train", training.algorithm, *flags, *budget)
    if not (out / "results.json").exists():
        sys.exit("out of time: the same command continues")


def _evaluate(
    name: str, model: str, policy: tuple[str, ...], measures: Sequence[str], folder: Path, ends: float | None
) -> dict[str, dict[str, Any]]:
    """The evaluations of one model that are asked for or were made before, by the name of the measure."""
    found = {}
    for measure in MEASURES:
        output = folder / "evaluations" / f"{name}-{measure.name}.json"
        if measure.name in measures and not output.exists():
            _minutes_left(ends)
            _lmgym("eval", *TASK, "--model", model, *policy, *measure.flags, "--output", str(output))
        if output.exists():
            (found[measure.name],) = json.loads(output.read_text()).values()
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
