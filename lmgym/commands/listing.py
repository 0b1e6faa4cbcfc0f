"""`lmgym envs`, `lmgym algorithms`, `lmgym models`: lists of what is available."""

from __future__ import annotations

from rich.table import Table

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.assets.catalogue import KNOWN_MODELS, cache_dir, is_cached
from lmgym.console import results
from lmgym.envs import registrations


def list_envs() -> None:
    """Every environment with its options."""
    table = Table("name", "description", "options and their defaults")
    for entry in registrations():
        options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
        table.add_row(entry.name, entry.description, options)
    results.print(table)
    results.print("A JSON or JSONL file of problems: --env my_problems.jsonl")
    results.print("Your own class, or a name that your module registers: --env my_module:MyEnv, --env my_module:my-env")


def list_algorithms() -> None:
    """Every algorithm in one line with its paper."""
    table = Table("name", "description", "paper")
    for name, entry in ALGORITHMS.items():
        table.add_row(name, entry.summary, entry.paper)
    results.print(table)
    results.print("Your own algorithm: lmgym train my_module:MyAlgorithm")


def list_models() -> None:
    """Every known model and whether it is in the cache."""
    table = Table("name", "description", "licence", "in the cache")
    for name, model in KNOWN_MODELS.items():
        table.add_row(name, model.description, model.licence, "yes" if is_cached(name) else "no")
    results.print(table)
    results.print(f"The cache is {cache_dir()} (LMGYM_CACHE).", soft_wrap=True)
    results.print("--model also takes a hub id, a Hugging Face folder, a GGUF file and a run of lmgym.")
