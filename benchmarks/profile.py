"""Where the time of decoding and of an optimiser step goes, by torch's profiler: SmolLM2 in float32, two threads.

python -m benchmarks.profile

Decoding is 64 rows of 8 prompts; learning is 32 episodes of 4 prompts with 128 sampled tokens. Writes a Markdown table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import lmgym  # isort: skip # noqa: F401 - before torch, whose threads it tells how to wait
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lmgym.engines.engine import Request
from lmgym.engines.torch.engine import TorchEngine
from lmgym.learning.batch import Batch
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


def main() -> None:
    """Prints a line per kind of operation."""
    torch.set_num_threads(2)
    model = load_model("smollm2-135m", dtype="float32")
    lines = ["| | seconds | products | attention | packing | the rest |", "|---|---|---|---|---|---|"]
    for name, work in {"decoding 64 × 64 tokens": _decoding(model), "an optimiser step": _learning(model)}.items():
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


def _tokens(rows: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randint(10, 40_000, (rows,), generator=random) for _ in range(GROUP)]


def _decoding(model: LanguageModel) -> Callable[[], object]:
    engine = TorchEngine(model)
    requests = [Request(tuple(prompt.tolist()), 64, seed=seed) for prompt in _tokens(PROMPT) for seed in range(GROUP)]

    def decode() -> None:
        engine.release_cache()
        engine.generate(requests)

    return decode


def _learning(model: LanguageModel) -> Callable[[], object]:
    random, groups = torch.Generator().manual_seed(1), 4
    prompts = torch.stack(_tokens(PROMPT)[:groups]).repeat_interleave(GROUP, dim=0)
    tokens = torch.cat([prompts, torch.randint(10, 40_000, (len(prompts), SAMPLED), generator=random)], dim=1)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, PROMPT:] = True
    count = len(tokens)
    batch = Batch.from_tensors(
        tokens=tokens,
        lengths=torch.full((count,), PROMPT + SAMPLED),
        mask=mask,
        logprobs=torch.zeros(tokens.shape),
        step_index=torch.where(mask, 0, -1),
        rewards=torch.zeros(count, 1),
        step_count=torch.ones(count, dtype=torch.long),
        truncated=torch.zeros(count, dtype=torch.bool),
        group=torch.arange(groups).repeat_interleave(GROUP),
        policy_version=torch.zeros(count, dtype=torch.long),
        seed=torch.arange(count),
    )
    learner = Learner(model, LearnerSettings(1e-6, "constant", 0, 10, 1.0, 1024, FULL_SOFTMAX))
    return lambda: learner.step(batch, lambda scores, part: -(scores.logprobs * part.mask).sum() / part.total_tokens)


if __name__ == "__main__":
    main()
