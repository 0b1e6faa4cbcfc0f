"""`python -m benchmarks.tasks`: runs the recipes that are not done yet, and writes the table and the picture."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.tasks.recipes import RECIPES, Recipe
from benchmarks.tasks.report import draw, read_run, table
from lmgym.console import messages, results

HERE = Path(__file__).parent


@dataclass
class Settings:
    """Which recipes to run."""

    only: tuple[str, ...] = ()
    """Names of recipes; by default all."""
    runs: str = "runs/tasks"
    """Where the runs are kept; one that was interrupted continues."""


def main(settings: Settings) -> None:
    """Trains and writes tasks.json, tasks.md and tasks.png from all runs that are done."""
    unknown = set(settings.only) - {recipe.name for recipe in RECIPES}
    if unknown:
        sys.exit(f"there is no recipe {sorted(unknown)[0]}: there are {', '.join(each.name for each in RECIPES)}")
    for recipe in RECIPES:
        if not settings.only or recipe.name in settings.only:
            _train(recipe, Path(settings.runs) / recipe.name)
    done = [recipe for recipe in RECIPES if (Path(settings.runs) / recipe.name / "results.json").exists()]
    found = [_figures(recipe, Path(settings.runs) / recipe.name) for recipe in done]
    (HERE / "tasks.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "tasks.md").write_text(table(found) + "\n")
    draw(found, HERE / "tasks.png")
    results.print(table(found), markup=False, soft_wrap=True)


def _figures(recipe: Recipe, folder: Path) -> dict[str, Any]:
    command = shlex.join(("lmgym", "train", *recipe.arguments))
    return {"name": recipe.name, "shows": recipe.shows, "command": command, **read_run(folder)}


def _train(recipe: Recipe, folder: Path) -> None:
    if (folder / "results.json").exists():
        return
    is_begun = any(folder.glob("checkpoints/*/state.json"))
    arguments = ("--resume", str(folder)) if is_begun else (*recipe.arguments, "--out", str(folder))
    messages.print(f"$ lmgym {shlex.join(('train', *arguments))}", markup=False, soft_wrap=True)
    finished = subprocess.run([sys.executable, "-m", "lmgym", "train", *arguments], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python -m benchmarks.tasks", use_underscores=True))
