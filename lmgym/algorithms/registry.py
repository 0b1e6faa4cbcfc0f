"""Algorithms by name; a user's own is named as `my_module:MyAlgorithm`."""

from __future__ import annotations

import difflib
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmgym.errors import UserError

if TYPE_CHECKING:
    from lmgym.algorithms.rl_algorithm import RLAlgorithm


@dataclass(frozen=True)
class Entry:
    """Where an algorithm is, and what it is in one line."""

    place: str
    summary: str
    paper: str


ALGORITHMS = {
    "reinforce": Entry(
        "lmgym.algorithms.reinforce:Reinforce",
        "discounted per-step returns over a baseline",
        "Williams, 1992",
    ),
    "reinforce-stable": Entry(
        "lmgym.algorithms.reinforce_stable:ReinforceStable",
        "REINFORCE with a reference, a KL penalty and truncated importance ratios",
        "Williams, 1992; Ahmadian et al., 2024 (arXiv 2402.14740)",
    ),
}


def find_algorithm(name: str) -> type[RLAlgorithm]:
    """The class of a known name, or of a `module:Class` that can be imported from here."""
    from lmgym.algorithms.rl_algorithm import RLAlgorithm

    if name not in ALGORITHMS and ":" not in name:
        close = difflib.get_close_matches(name, ALGORITHMS, 1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(
            f"there is no algorithm {name!r}{guess}; there are {', '.join(ALGORITHMS)}, and your own as "
            "my_module:MyClass."
        )
    module_name, _, class_name = (ALGORITHMS[name].place if name in ALGORITHMS else name).partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the user, as `python -m` would find it
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the algorithm {name!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, RLAlgorithm)):
        raise UserError(f"{name} is not an algorithm: it must be a class that extends RLAlgorithm.")
    return found
