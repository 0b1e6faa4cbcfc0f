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
    prompt_tokens: int = 0
    """Prompts of this many random ids; 0 takes the problems of GSM8K."""
    collects: bool = True
    """Whether episodes are sampled; else the optimiser step is measured alone, on random ids."""
    learns: bool = False
    """Whether an optimiser step is taken, after the rollouts if there are any."""
    has_reference: bool = False
    """Whether a KL penalty needs the log-probabilities of a reference model."""
    micro_batch_tokens: int = 1024
    recompute_activations: bool = False
    layers: int = 0
    """The first so many layers of the model; 0 takes all."""
    busy: bool = False
    """Whether another process keeps one core busy."""
    model: str = "smollm2-135m"

    @property
    def name(self) -> str:
        """The workload as a label."""
        what = "iteration" if self.learns and self.collects else "learning" if self.learns else "rollouts"
        episodes = f"{self.problems} problems × {self.group_size} episodes × {self.new_tokens} tokens"
        prompt = f"prompts of {self.prompt_tokens} tokens" if self.prompt_tokens else f"{self.shots}-shot"
        details = {
            f" in {self.turns} turns": self.turns > 1,
            f", {prompt}": True,
            f", {self.layers} layers": self.layers > 0,
            f", {self.micro_batch_tokens} tokens a pass": self.micro_batch_tokens != Workload.micro_batch_tokens,
            ", with a reference": self.has_reference,
            ", recomputing activations": self.recompute_activations,
            f", {self.model}": self.model != Workload.model,
            ", beside a busy process": self.busy,
        }
        return f"{what}: {episodes}" + "".join(text for text, shown in details.items() if shown)
