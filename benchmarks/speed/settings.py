"""The flags of `python -m benchmarks.speed`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BenchSettings:
    """Measures the speed of lmgym and of other libraries on this machine."""

    sections: tuple[str, ...] = ("rollouts", "stepwise", "iteration", "growth")
    """Any of rollouts (transformers generate, vLLM), stepwise (naive loop), iteration (TRL), growth (lmgym alone),
    busy (lmgym beside a busy process; spinning threads may take a quarter of an hour)."""
    repeats: int = 3
    """Measured runs. One warm-up run is discarded, except for TRL, whose runs take minutes."""
    install_baselines: bool = True
    """Measure vLLM and TRL too. Each is installed into its own virtual environment when first needed."""
    out: str = "benchmarks"
    """The folder of speed.json, speed.md and speed.png. Sections that are not measured now are kept."""
    dtype: str = "float32"
    """The dtype of all baselines."""
