"""What is to be computed: everybody gets the same prompts and writes the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """GSM8K problems in groups, with worked examples before them, each answered in some turns of equal length."""

    problems: int = 8
    group_size: int = 8
    shots: int = 0
    new_tokens: int = 64
    turns: int = 1
    learns: bool = False
    """Whether an optimiser step follows the rollouts."""
    busy: bool = False
    """Whether another process keeps a core busy all the while, as on a laptop with a browser open."""
    model: str = "smollm2-135m"

    @property
    def name(self) -> str:
        """The workload in words."""
        what = "iteration" if self.learns else "rollouts"
        turns = f" in {self.turns} turns" if self.turns > 1 else ""
        beside = ", beside a busy process" if self.busy else ""
        return (
            f"{what}: {self.problems} problems × {self.group_size} episodes × {self.new_tokens} tokens{turns}, "
            f"{self.shots}-shot{beside}"
        )
