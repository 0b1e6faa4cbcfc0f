"""What a reader of an algorithm has to know: its own file, six methods, the parts and the pure functions."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
from lmgym.algorithms.rl_algorithm import RLAlgorithm

MAY_OVERRIDE = {"train", "setup", "prepare", "advantages", "select_for_update", "loss"}
SHARED = {"catalogue", "config", "greedy_baseline", "parts", "rl_algorithm"}
"""Modules of the folder that an algorithm may import."""


def public_methods(kind: type) -> dict[str, object]:
    members = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
    return {
        name: member for name, member in members.items() if inspect.isfunction(member) or isinstance(member, property)
    }


def is_final(member: object) -> bool:
    return bool(getattr(member.fget if isinstance(member, property) else member, "__final__", False))


def test_six_methods_may_be_overridden():
    assert {name for name, member in public_methods(RLAlgorithm).items() if not is_final(member)} == MAY_OVERRIDE


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_extends_the_loop_alone_and_states_advantages_and_loss_itself(name):
    kind = find_algorithm(name)
    assert kind.__bases__ == (RLAlgorithm,)
    assert {"advantages", "loss"} <= vars(kind).keys()
    assert (vars(kind).keys() & public_methods(RLAlgorithm).keys()) <= MAY_OVERRIDE


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_file_of_an_algorithm_imports_no_other_algorithm(name):
    path = Path(inspect.getfile(find_algorithm(name)))
    imported = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = {module.removeprefix("lmgym.algorithms.") for module in imported if module.startswith("lmgym.algorithms.")}
    assert ours <= SHARED
    assert len(path.read_text().splitlines()) < 180
