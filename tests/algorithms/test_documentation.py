"""The page on algorithms: it names every algorithm, and the parts and flags that each one has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lmgym.algorithms import parts
from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
WITH_KL = {name for name in ALGORITHMS if any(type(part) is parts.KL for part in find_algorithm(name).Config().parts())}


def row_of(first_cell: str) -> list[str]:
    (row,) = re.findall(rf"^\| `{first_cell}` \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in row.split(" | ")]


def named(cell: str) -> set[str]:
    """The algorithms that a cell lists, or all except those that it lists."""
    listed = set(re.findall(r"`([\w-]+)`", cell.replace("`KL`", "")))
    if cell.startswith("all except"):
        return set(ALGORITHMS) - listed
    return WITH_KL - listed if cell.startswith("the algorithms with `KL`, except") else listed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_row(name):
    assert row_of(name)


@pytest.mark.parametrize(
    "part",
    [
        parts.KLPenalty,
        parts.KL,
        parts.EntropyBonus,
        parts.TruncatedImportanceSampling,
        parts.AdvantageNorm,
        parts.GroupFilter,
        parts.UpdateLimit,
    ],
)
def test_the_parts_are_listed_by_those_that_have_them(part):
    flags, algorithms = row_of(part.__name__)
    having = {name for name in ALGORITHMS if any(type(own) is part for own in find_algorithm(name).Config().parts())}
    assert named(algorithms) == having
    said = set(re.findall(r"--(\w+)", flags.replace("the same", "`--kl_coeff`, `--update_reference_every`")))
    assert said == {field.name for field in fields(part)}


def test_every_flag_of_the_page_exists():
    known = {flag for name in ALGORITHMS for flag in find_algorithm(name).Config().settings()}
    known |= {"max_tokens", "temperature", "top_k", "top_p", "load_episodes", "help"}
    assert set(re.findall(r"--(\w+)", PAGE)) - known == set()
