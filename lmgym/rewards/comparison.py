"""What a comparison of two answers found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["text", "number", "symbolic", "limit"]


@dataclass(frozen=True)
class Comparison:
    """Whether an answer is right, and which comparison decided that; `limit`: it took too long and counts as wrong."""

    is_right: bool
    stage: Stage
