"""Algorithms by name; a user's own is named as `my_module:MyAlgorithm`."""

from __future__ import annotations

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.errors import UserError
from lmgym.lookup import import_named, nearest


def find_algorithm(name: str) -> type[RLAlgorithm]:
    """The class of a known name, or of a `module:Class` that can be imported from here."""
    if name not in ALGORITHMS and ":" not in name:
        meant = nearest(name, ALGORITHMS)
        guess = f" (did you mean {meant}?)" if meant else ""
        raise UserError(
            f"there is no algorithm {name!r}{guess}; there are {', '.join(ALGORITHMS)}, and your own as "
            "my_module:MyClass."
        )
    found = import_named(ALGORITHMS[name].import_path if name in ALGORITHMS else name)
    if not (isinstance(found, type) and issubclass(found, RLAlgorithm)):
        raise UserError(f"{name} is not an algorithm: it must be a class that extends RLAlgorithm.")
    return found
