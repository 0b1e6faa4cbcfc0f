"""`python -m benchmarks.gsm8k`: repeats a recipe from nothing to its table; finished parts are not repeated."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import tyro

from benchmarks.gsm8k.curves import Curve, draw, read_curve
from benchmarks.gsm8k.evaluations import MEASURES, difference, row, table
from benchmarks.gsm8k.recipes import RECIPES, TASK, VALIDATION, Recipe, Training
from lmgym.console import messages, results

HERE = Path(__file__).parent
UNTRAINED = HERE / "untrained"
"""Evaluations of the models before any training, which are kept in the repository: they take as long as the others."""


@dataclass
class Settings:
    """Which recipe to repeat."""

    recipe: Literal["small", "qwen"] = "small"
    """small: SmolLM2-135M, supervised fine-tuning and then RL, line by line with the calculator; qwen:
    qwen2.5-coder-0.5b, RL from the untrained model with worked examples in the prompt."""
    runs: str = "runs/gsm8k"
    """Where the runs and the evaluations are kept."""
    measures: tuple[Literal["test", "sampled", "svamp"], ...] = ("test", "sampled", "svamp")
    """What to evaluate of each model; figures that were measured before stay in the table."""
    minutes: float = 0.0
    """Stop in time for this session to end within so many minutes; the same command continues. 0: no limit."""
    rollout_dtype: Literal["same", "int8"] = "same"
    """int8: sample and evaluate with 8-bit products, on a CPU that has VNNI instructions."""
    processes: int = 1
    """Processes of one thread each that torchrun starts; on a machine that others use too, they do not wait for each
    other at every operation, as two threads do."""


def main(settings: Settings) -> None:
    """Evaluates the untrained model, then trains and evaluates step by step; the table grows with each step."""
    recipe, folder = RECIPES[settings.recipe], Path(settings.runs) / settings.recipe
    folder.mkdir(parents=True, exist_ok=True)
    session = Session(settings.rollout_dtype, settings.processes, settings.minutes)
    measures = settings.measures
    # One for each dtype, because the difference of two models should not be one of rounding.
    untrained = UNTRAINED / settings.rollout_dtype / settings.recipe
    found = _evaluate(recipe.model, recipe.untrained_policy, measures, untrained, session)
    rows, differences = {"before": row("before", found)}, list[dict[str, Any]]()
    for training in recipe.trainings:
        _train(training, recipe, folder, session)
        outputs = folder / "evaluations" / training.name
        found = _evaluate(str(folder / training.name), recipe.policy, measures, outputs, session)
        rows[training.name] = row(training.name, found)
        starts = dict.fromkeys((training.start or "before", "before"))
        differences += [difference(rows[start], rows[training.name]) for start in starts]
        curves = {each.name: read_curve(folder / each.name) for each in recipe.trainings if each.name in rows}
        _write(settings, list(rows.values()), differences, curves)
    results.print(table(list(rows.values()), differences), markup=False, soft_wrap=True)


@dataclass
class Session:
    """How the commands of this session run, and until when."""

    rollout_dtype: str
    processes: int
    minutes: float

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + 60 * self.minutes if self.minutes else None

    def minutes_left(self) -> float | None:
        """Exits if there are none; None without a limit."""
        if self.ends is None:
            return None
        minutes = (self.ends - time.monotonic()) / 60
        if minutes <= 0:
            self.stop()
        return minutes

    def lmgym(self, *arguments: str, timeout: float | None = None) -> None:
        """Prints a command and runs it; its failure is ours, and after `timeout` minutes it is ended and we exit."""
        arguments = (*arguments, "--rollout_dtype", self.rollout_dtype)
        messages.print(f"$ lmgym {shlex.join(arguments)}", markup=False, soft_wrap=True)
        command, environment = ["-m", "lmgym", *arguments], dict(os.environ)
        if self.processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
            command, environment = [*torchrun, *command], environment | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, *command], env=environment)
        try:
            code = process.wait(None if timeout is None else 60 * timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its processes
            process.wait()
            self.stop()
        if code:
            sys.exit(code)

    def stop(self) -> NoReturn:
        """Ends the session."""
        sys.exit("out of time: the same command continues")


def _write(
    settings: Settings, rows: list[dict[str, Any]], differences: list[dict[str, Any]], curves: dict[str, Curve]
) -> None:
    """The table and the curves so far, as JSON, in Markdown and as a picture."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    made_by = {"recipe": settings.recipe, "commit": commit, "rollout_dtype": settings.rollout_dtype}
    found = made_by | {"rows": rows, "differences": differences, "curves": curves}
    (HERE / f"{settings.recipe}.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / f"{settings.recipe}.md").write_text(table(rows, differences) + "\n")
    draw(rows, curves, HERE / f"{settings.recipe}.png")


def _train(training: Training, recipe: Recipe, folder: Path, session: Session) -> None:
    """Starts or continues a training until it is done; exits if the time is over before."""
    out = folder / training.name
    if (out / "results.json").exists():
        return
    left = session.minutes_left()
    budget = () if left is None else ("--minutes", f"{max(left, 0.1):.1f}")
    if any(out.glob("checkpoints/*/state.json")):
        session.lmgym("train", "--resume", str(out), *budget)
    else:
        model = str(folder / training.start) if training.start else recipe.model
        flags = (*training.task, *VALIDATION, "--model", model, *recipe.policy, *training.flags, "--out", str(out))
        session.lmgym("train", training.algorithm, *flags, *budget)
    if not (out / "results.json").exists():
        session.stop()


def _evaluate(
    model: str, policy: tuple[str, ...], measures: Sequence[str], outputs: Path, session: Session
) -> dict[str, dict[str, Any]]:
    """The evaluations of one model that are asked for or were made before, by the name of the measure.

    One that the end of the session cuts off keeps its finished episodes.
    """
    found = {}
    for measure in MEASURES:
        output = outputs / f"{measure.name}.json"
        if measure.name in measures and not output.exists():
            flags = (*TASK, "--model", model, *policy, *measure.flags, "--output", str(output))
            session.lmgym("eval", *flags, timeout=session.minutes_left())
        if output.exists():
            (found[measure.name],) = json.loads(output.read_text()).values()
    return found


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python -m benchmarks.gsm8k", use_underscores=True))
