"""The sections of the benchmark: which workloads are measured, with which baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.speed.baseline import LMGYM, Baseline
from benchmarks.speed.settings import BenchSettings
from benchmarks.speed.virtual_environments import TRL, VLLM
from benchmarks.speed.workload import Workload
from lmgym.engines.torch.int8_product import has_int8_products
from lmgym.models.precision import bfloat16_is_faster

ROLLOUTS = Workload(new_tokens=64)
ROWS = {1: 256, 8: 256, 256: 64}
"""Rows of the section `rows`, and tokens of each; 64 rows are those of `rollouts`."""
LONG_ROLLOUTS = Workload(new_tokens=250, prompt_tokens=1000)
PREFILL = Workload(problems=1, group_size=1, new_tokens=8)
STEPWISE = Workload(shots=5, new_tokens=96, turns=6)
ITERATION = Workload(new_tokens=128, learns=True)
FEW_SHOT_ITERATION = Workload(problems=4, shots=5, new_tokens=128, learns=True)
SMALL_ITERATION = Workload(problems=4, new_tokens=64, learns=True)
LARGE_ROLLOUTS = Workload(problems=12, new_tokens=24, model="qwen2.5-coder-0.5b")
LARGE_ITERATION = Workload(
    shots=4,
    new_tokens=128,
    learns=True,
    has_reference=True,
    micro_batch_tokens=512,
    model="qwen2.5-coder-0.5b",
)
CHAIN = Workload(problems=1, group_size=1, collects=False, learns=True, layers=4, micro_batch_tokens=1 << 20)
"""One episode, half of it sampled, with four layers: all of them do not fit into 24 GB in plain Transformers."""
CHAIN_TOKENS = (500, 1000, 2000, 4000, 8000)
GROUP = replace(CHAIN, problems=2, group_size=8, prompt_tokens=1000, new_tokens=125)
PACKED = Workload(
    problems=4,
    prompt_tokens=1000,
    new_tokens=900,
    collects=False,
    learns=True,
    micro_batch_tokens=1 << 16,
    recompute_activations=True,
)
"""4 · (1,000 + 8 · 900) = 32,800 tokens in one pass."""
SPINNING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""The defaults of OpenMP: waiting threads spin."""


@dataclass(frozen=True)
class Comparison:
    """A workload and the baselines that lmgym is compared with."""

    work: Workload
    baselines: tuple[Baseline, ...] = ()


def _peers(settings: BenchSettings) -> tuple[Baseline, ...]:
    """Each library as it is, and compiled: its fastest mode is the one to compare with."""
    ways = {"": False, ", compiled": True}
    generate = [
        Baseline(f"transformers generate{way}", "transformers_generate", options={"compiled": compiled})
        for way, compiled in ways.items()
    ]
    vllm = [
        Baseline(f"vLLM{way}", "vllm_offline", VLLM, options={"compiled": compiled}) for way, compiled in ways.items()
    ]
    return (*generate, *vllm) if settings.install_baselines else tuple(generate)


def _rollouts(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(ROLLOUTS, _peers(settings))]


GENERATE = Baseline("transformers generate", "transformers_generate")


def _rows(settings: BenchSettings) -> list[Comparison]:
    """Rows of different problems, so that none shares a prompt."""
    works = [replace(ROLLOUTS, problems=rows, group_size=1, new_tokens=tokens) for rows, tokens in ROWS.items()]
    # A run of `generate` with 256 rows takes minutes.
    return [Comparison(work, (replace(GENERATE, warm_up=work.problems < 256),)) for work in works]


def _long(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(LONG_ROLLOUTS, (replace(GENERATE, warm_up=False),))]


def _prefill(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(replace(PREFILL, prompt_tokens=tokens)) for tokens in (1000, 2000, 4000, 8000)]


def _learning(settings: BenchSettings) -> list[Comparison]:
    plain = Baseline("plain transformers, SDPA", "transformers_learning", options={"rows": 8})
    chains = [replace(CHAIN, prompt_tokens=tokens // 2, new_tokens=tokens // 2) for tokens in CHAIN_TOKENS]
    return [Comparison(work, (plain,)) for work in (*chains, GROUP)]


def _groups(settings: BenchSettings) -> list[Comparison]:
    """All layers; in plain Transformers four rows at a time fit into 24 GB."""
    plain = Baseline("plain transformers, SDPA", "transformers_learning", options={"rows": 4})
    return [Comparison(replace(GROUP, layers=0), (plain,))]


def _packed(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(PACKED)]


def _large(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(LARGE_ITERATION)]


def _stepwise(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(STEPWISE, (Baseline("naive loop", "naive_stepwise"),))]


def _trl(settings: BenchSettings, rows: int) -> tuple[Baseline, ...]:
    """As many rows per pass as fit into 24 GB without recomputing activations: TRL's fastest setting."""
    baseline = Baseline("TRL GRPOTrainer", "trl_grpo", TRL, {"trl_rows": rows}, warm_up=False)
    return (baseline,) if settings.install_baselines else ()


def _iteration(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(ITERATION, _trl(settings, 8))]


def _few_shot(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(FEW_SHOT_ITERATION, _trl(settings, 4))]


def _busy(settings: BenchSettings) -> list[Comparison]:
    """lmgym alone, on an idle machine and beside a busy process."""
    return [Comparison(replace(SMALL_ITERATION, busy=busy)) for busy in (False, True)]


def _dtype(settings: BenchSettings) -> list[Comparison]:
    """lmgym in float32 and, where the CPU has units for them, in bfloat16 and with rollouts in 8-bit integers."""
    bfloat16 = replace(LMGYM, name="lmgym, bfloat16", options={"dtype": "bfloat16"})
    int8 = replace(LMGYM, name="lmgym, int8 rollouts", options={"rounds_to_int8": True})
    has_units = ((bfloat16, bfloat16_is_faster()), (int8, has_int8_products()))
    baselines = tuple(baseline for baseline, has in has_units if has)
    small = [replace(work, group_size=4) for work in (ROLLOUTS, SMALL_ITERATION)]
    return [Comparison(work, baselines) for work in (*small, LARGE_ROLLOUTS)]


def _growth(settings: BenchSettings) -> list[Comparison]:
    grown = [replace(SMALL_ITERATION, group_size=size) for size in (4, 8, 16)]
    grown += [replace(SMALL_ITERATION, shots=shots) for shots in (1, 2, 5)]
    grown += [replace(SMALL_ITERATION, new_tokens=tokens) for tokens in (32, 128)]
    grown += [replace(SMALL_ITERATION, turns=turns) for turns in (2, 4, 8)]
    return [Comparison(work) for work in grown]


SECTIONS: dict[str, Callable[[BenchSettings], list[Comparison]]] = {
    "rollouts": _rollouts,
    "rows": _rows,
    "long": _long,
    "prefill": _prefill,
    "stepwise": _stepwise,
    "learning": _learning,
    "groups": _groups,
    "packed": _packed,
    "iteration": _iteration,
    "few_shot": _few_shot,
    "large": _large,
    "busy": _busy,
    "dtype": _dtype,
    "growth": _growth,
}
