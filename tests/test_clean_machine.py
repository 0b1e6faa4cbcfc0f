"""A machine that has never seen the project: a new virtual environment, empty caches, and the README's first command.

Everything else in the suite runs where the test extras are installed and the assets are cached, which hides whatever
the package forgets to declare.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PROVIDERS = packages_distributions()
ROOT = Path(__file__).parent.parent
TINY = "--iterations 1 --problems_per_iteration 1 --group_size 2 --eval_problems 2 --max_tokens 8"
EXAMPLE = """--num_iterations 1 --num_collection_episodes 2 --max_trajectory_steps 1 --n_eval_steps 1
--n_few_shot_examples 1 --sym_calc --save_path runs/example"""
OWN = ("LMGYM_CACHE", "HF_HOME", "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""Variables of this process that a new machine would not have."""


@dataclass(frozen=True)
class Machine:
    """A virtual environment and caches of its own; only pip's configuration and downloads are this machine's."""

    folder: Path
    environment: Path

    def run(self, *command: object, stdin: str = "", code: int = 0, **variables: str) -> str:
        """Runs a program of the virtual environment, or of the system, and gives all it said."""
        program = self.environment / "bin" / str(command[0])
        own = {name: value for name, value in os.environ.items() if name not in OWN}
        own |= {"LMGYM_CACHE": str(self.folder / "cache"), "HF_HOME": str(self.folder / "hub"), "COLUMNS": "250"}
        done = subprocess.run(
            [str(program if program.exists() else command[0]), *map(str, command[1:])],
            cwd=self.folder,
            env=own | variables,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Machine:
    """The README's first command, `make train`, with one tiny iteration."""
    folder = tmp_path_factory.mktemp("clean")
    found = Machine(folder, folder / "venv")
    arguments = f"ARGS={TINY} --out {folder / 'runs' / 'first'}"
    found.run("make", "-C", ROOT, "train", f"VENV={found.environment}", f"PYTHON={sys.executable}", arguments)
    return found


@pytest.mark.network
def test_make_train_leaves_a_whole_run(machine):
    run = machine.folder / "runs" / "first"
    assert json.loads((run / "results.json").read_text())["iterations"] == 1
    assert (run / "learning_curve.png").stat().st_size > 10_000
    assert (run / "model" / "model.safetensors").is_file()


@pytest.mark.network
def test_the_other_commands_work_on_what_make_train_installed(machine):
    run = machine.folder / "runs" / "first"
    told = machine.run("lmgym", "eval", "--model", run, "--base", "smollm2-135m", "--problems", 2)
    assert "2 held-out problems" in told
    told = machine.run("lmgym", "play", "--env", "arithmetic", stdin="The answer is: 1\n" * 4)
    assert "The episode is over" in told
    assert "word-problems" in machine.run("lmgym", "envs")
    assert "reinforce-stable" in machine.run("lmgym", "algorithms")
    assert "smollm2-135m" in machine.run("lmgym", "models")


@pytest.mark.network
def test_the_example_that_the_project_began_with_works(machine):
    told = machine.run(
        "python",
        ROOT / "examples" / "reinforce_stable_on_gsm8k_training.py",
        *EXAMPLE.split(),
    )
    assert "1 held-out problems" in told


@pytest.mark.network
@pytest.mark.parametrize(
    ("extras", "flag"),
    [(("lora",), "--lora_rank 4"), (("wandb", "tensorboard", "trackio"), "--track wandb tensorboard trackio")],
)
def test_extras_that_are_missing_are_named_and_are_enough(machine, model_folder, extras, flag):
    wanted = f"train --model {model_folder} --env arithmetic --shots 0 {TINY}".split()
    for extra in extras:
        own = flag.split() if len(extras) == 1 else ["--track", extra]
        told = machine.run("lmgym", *wanted, *own, "--out", f"runs/without-{extra}", code=2, WANDB_MODE="offline")
        assert f"pip install 'lmgym[{extra}]'" in told
    layer, out = with_extra(machine, ",".join(extras)), f"runs/with-{extras[0]}"
    told = layer.run("python", "-m", "lmgym.commands.cli", *wanted, *flag.split(), "--out", out, WANDB_MODE="offline")
    assert "The run is in" in told


@pytest.mark.network
def test_the_hub_extra_alone_is_enough(machine):
    """There is no hub here: a local file stands in for the repository, and the extra's library reads it."""
    (machine.folder / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    read = """
import datasets, pathlib
from lmgym.assets import downloads
downloads.hub_fault = lambda: None
real = datasets.load_dataset
datasets.load_dataset = lambda repository, configuration, split: real(repository, data_files="rows.jsonl", split=split)
downloads.HubRows("json", None, {"train": "read.jsonl"}).fetch(pathlib.Path("."))
"""
    assert "pip install 'lmgym[hub]'" in machine.run(
        "python", "-c", "from lmgym.assets.downloads import *; HubRows('json', None, {}).fetch(Path('.'))", code=1
    )
    with_extra(machine, "hub").run("python", "-c", read)
    assert json.loads((machine.folder / "read.jsonl").read_text()) == {"question": "1+1?", "answer": "2", "idx": 0}


def with_extra(machine: Machine, extra: str) -> Machine:
    """A virtual environment that sees what `make train` installed and gets one extra on top of it."""
    layer = machine.folder / f"venv-{extra}"
    venv.create(layer, with_pip=False, symlinks=True)
    packages = {"base": str(machine.environment), "platbase": str(machine.environment)}
    own = sysconfig.get_path("purelib", "venv", {"base": str(layer), "platbase": str(layer)})
    below = sysconfig.get_path("purelib", "venv", packages)
    # An editable install stands in a .pth file of its own, which only a site folder has read.
    (Path(own) / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    pip = (machine.environment / "bin" / "python", "-m", "pip", "--python", layer)
    machine.run(*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", "-e", f"{ROOT}[{extra}]")
    return Machine(machine.folder, layer)


def test_everything_that_is_imported_is_declared():
    """An undeclared dependency is installed only as long as some other package depends on it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {distribution(item) for item in project["dependencies"]}
    extras = {distribution(item) for items in project["optional-dependencies"].values() for item in items}
    for path in (ROOT / "lmgym").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            undeclared = imported(node) - core - (set() if node in tree.body else extras)
            assert not undeclared, f"{path}, line {getattr(node, 'lineno', 0)}"


def imported(node: ast.AST) -> set[str]:
    """The distributions, outside of Python and of this project, that a statement imports from."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"lmgym"}
    return {distribution(PROVIDERS[module][0]) for module in modules}


def distribution(requirement: str) -> str:
    """The normalised name of what a requirement asks for."""
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")
