"""Where the time of decoding and of an optimiser step goes, by torch's profiler, with two threads.

python -m benchmarks.time_shares [--model qwen2.5-coder-0.5b --dtype bfloat16]

Decoding is 64 rows of 8 prompts; learning is 32 episodes of 4 prompts with 128 sampled tokens. Writes a Markdown table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import lmgym  # isort: skip # noqa: F401 - before torch, whose threads it tells how to wait
import torch
import tyro
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.random_batch import random_completions
from lmgym.engines.engine import Request
from lmgym.engines.torch.engine import TorchEngine
from lmgym.learning.learner import Learner, LearnerSettings
from lmgym.models.distribution import FULL_SOFTMAX
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model

PROMPT, SAMPLED, GROUP = 100, 128, 8
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "mkldnn::_linear_pointwise"),
    "attention": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "packing": ("mkldnn::_reorder_linear_weight",),
}


@dataclass
class Settings:
    """What to measure."""

    model: str = "smollm2-135m"
    """A name from `lmgym models`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type."""


def main(settings: Settings) -> None:
    """Prints a row for decoding and one for an optimiser step."""
    torch.set_num_threads(2)
    model = load_model(settings.model, dtype=settings.dtype)
    lines = ["| | seconds | products | attention | packing | the rest |", "|---|---|---|---|---|---|"]
    works = {"decoding 64 × 64 tokens": _decoding(model), "an optimiser step, 32 × 128 tokens": _learning(model)}
    for name, work in works.items():
        work()
        lines.append(f"| {name} | {_shares(work)} |")
    sys.stdout.write("\n".join(lines) + "\n")


def _shares(work: Callable[[], object]) -> str:
    with profile(activities=[ProfilerActivity.CPU]) as measured:
        work()
    times = {event.key: event.self_cpu_time_total / 1e6 for event in measured.key_averages()}
    total = sum(times.values())
    shares = [sum(times.get(name, 0.0) for name in names) / total for names in KINDS.values()]
    return " | ".join([f"{total:.1f}", *(f"{share:.0%}" for share in [*shares, 1 - sum(shares)])])


def _prompts(count: int) -> list[list[int]]:
    """Each prompt once per episode of its group."""
    random = torch.Generator().manual_seed(0)
    prompts = [torch.randint(10, 40_000, (PROMPT,), generator=random).tolist() for _ in range(count)]
    return [prompt for prompt in prompts for _ in range(GROUP)]


def _decoding(model: LanguageModel) -> Callable[[], object]:
    engine = TorchEngine(model)
    requests = [Request(tuple(prompt), 64, seed=seed) for seed, prompt in enumerate(_prompts(8))]

    def decode() -> None:
        engine.release_cache()
        engine.generate(requests)

    return decode


def _learning(model: LanguageModel) -> Callable[[], object]:
    batch = random_completions(_prompts(4), SAMPLED, GROUP)
    learner = Learner(model, LearnerSettings(1e-6, "constant", 0, 10, 1.0, 1024, FULL_SOFTMAX))
    return lambda: learner.step(batch, lambda scores, part: -scores.logprobs.sum() / part.total_tokens)


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python -m benchmarks.time_shares", use_underscores=True))
