"""`lmgym audit ENV`: whether an environment accepts its own answers in every spelling, and no others."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from lmgym.assets.storage import write_text, writing_to
from lmgym.commands.settings import TaskSettings
from lmgym.console import messages, results
from lmgym.envs.math_env import MathEnv
from lmgym.errors import UserError
from lmgym.evaluation.audit import Audit, audit
from lmgym.evaluation.statistics import wilson

REPORT_EVERY = 1000
MOST_PROBLEMS = 1_000_000
"""A task with more is procedural."""
SHOWN = 5
"""Failures of each kind that are printed; --out has more."""


@dataclass
class AuditSettings:
    """The settings of `lmgym audit`."""

    env: Annotated[str, tyro.conf.Positional] = "gsm8k"
    """Environment: a name, a file of problems, or your own class as module:Class."""
    env_options: dict[str, str] = field(default_factory=dict)
    """Options of the environment as names and values: --env_options levels 5"""
    split: str = "train"
    """The split of the environment."""
    problems: int = 0
    """How many problems, chosen at random; 0: all of them."""
    opinions: int = 500
    """For how many problems each decision is compared with that of computer algebra alone."""
    seed: int = 0
    """Seed of the choice."""
    out: str | None = None
    """A JSON file for all figures and failures."""


def run_audit(settings: AuditSettings) -> Audit:
    """Prints the table and the failures."""
    env = TaskSettings(settings.env, settings.env_options).make(settings.split)
    if not isinstance(env, MathEnv):
        raise UserError(f"{settings.env} has no final answers to audit: `lmgym audit` is for maths environments.")
    count = len(env.problems)
    if not settings.problems and count > MOST_PROBLEMS:
        raise UserError(f"{settings.env} generates its problems without end: say how many with --problems.")
    wanted = min(settings.problems or count, count)
    indices = random.Random(settings.seed).sample(range(count), wanted)
    found = audit(env, indices, settings.opinions, lambda done: _report(done, len(indices)))
    _show(settings.env, len(indices), found)
    if settings.out:
        path = Path(settings.out)
        with writing_to(path.parent, "--out"):
            write_text(path, json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
    return found


def _report(done: int, count: int) -> None:
    if done % REPORT_EVERY == 0:
        messages.print(f"{done:,} of {count:,} problems", markup=False)


def _show(name: str, count: int, found: Audit) -> None:
    table = Table("answers", "should be", "graded", "so graded", "slowest", title=f"{name}, {count:,} problems")
    for check in found.checks:
        if check.count:
            share = wilson(1 - check.failures / check.count, check.count)
            expected = "accepted" if check.should_accept else "refused"
            table.add_row(check.name, expected, f"{check.count:,}", str(share), f"{check.slowest:.2f} s")
    results.print(table)
    stages = ", ".join(f"{stage} {number:,}" for stage, number in sorted(found.stages.items()))
    results.print(f"decided by: {stages}", markup=False, soft_wrap=True)
    results.print(
        f"computer algebra alone decides otherwise in {len(found.disagreements):,} of {found.compared:,} cases",
        markup=False,
        soft_wrap=True,
    )
    for check in found.checks:
        for problem, answer, given in check.examples[:SHOWN]:
            said = "refused" if check.should_accept else "accepted"
            results.print(f"  {check.name} {said}: {problem}: {answer!r} {given[-80:]!r}", markup=False, soft_wrap=True)
    for answer, given, accepted in found.disagreements[:SHOWN]:
        said = "accepted" if accepted else "refused"
        results.print(f"  disagreement: {answer!r} {given!r}, here {said}", markup=False, soft_wrap=True)
