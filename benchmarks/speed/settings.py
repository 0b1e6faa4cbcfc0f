"""The flags of `python -m benchmarks.speed`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BenchSettings:
    """Measures the speed of lmgym and of other libraries on this machine."""

    sections: tuple[str, ...] = (
        "rollouts",
        "rows",
        "long",
        "prefill",
        "stepwise",
        "learning",
        "groups",
        "packed",
        "iteration",
        "few_shot",
        "large",
        "busy",
        "dtype",
        "growth",
    )
    """Any of rollouts (transformers generate, vLLM), rows (1 to 256 rows, generate), long (prompts of 1,000 tokens,
    generate), prefill (lmgym alone), stepwise (naive loop), learning (500 to 8,000 tokens, plain transformers),
    groups (samples of two long prompts, plain transformers), packed (32,800 tokens in one pass, lmgym alone), iteration
    and few_shot (TRL), large (half a billion parameters, lmgym alone), busy (lmgym beside a busy process), dtype (lmgym
    in bfloat16 and with rollouts in 8-bit integers), growth (lmgym alone)."""
    repeats: int = 3
    """Measured runs. One warm-up run is discarded, except where a run of the other library takes minutes."""
    install_baselines: bool = True
    """Measure vLLM and TRL too. Each is installed into its own virtual environment when first needed."""
    out: str = "benchmarks"
    """The folder of speed.json, speed.md and speed.png. Sections that are not measured now are kept."""
    dtype: str = "float32"
    """The dtype of all baselines."""
