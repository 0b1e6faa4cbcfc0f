"""What is computed: all baselines get the same prompts and generate the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """GSM8K problems, a group of episodes each, after few-shot examples, in turns of equal length."""

    problems: int = 8
    group_size: int = 8
    shots: int = 0
    new_tokens: int = 64
    turns: int = 1
    learns: bool = False
    """Whether an optimiser step follows the rollouts."""
    busy: bool = False
    """Whether another process keeps one core busy."""
    model: str = "smollm2-135m"

    @property
    def name(self) -> str:
        """The workload as a label."""
        what = "iteration" if self.learns else "rollouts"
        turns = f" in {self.turns} turns" if self.turns > 1 else ""
        beside = ", beside a busy process" if self.busy else ""
        return (
            f"{what}: {self.problems} problems × {self.group_size} episodes × {self.new_tokens} tokens{turns}, "
            f"{self.shots}-shot{beside}"
        )
