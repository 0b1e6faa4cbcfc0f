"""The sections of the benchmark: which workloads are measured, with which baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.speed.baseline import LMGYM, Baseline
from benchmarks.speed.settings import BenchSettings
from benchmarks.speed.virtual_environments import TRL, VLLM
from benchmarks.speed.workload import Workload

ROLLOUTS = Workload(new_tokens=64)
STEPWISE = Workload(shots=5, new_tokens=96, turns=6)
ITERATION = Workload(new_tokens=128, learns=True)
FEW_SHOT_ITERATION = Workload(problems=4, shots=5, new_tokens=128, learns=True)
SMALL_ITERATION = Workload(problems=4, new_tokens=64, learns=True)
SMALL_ROLLOUTS = Workload(problems=1, new_tokens=16)
"""For the section `busy`: threads that spin beside a busy process take minutes instead of seconds."""
SPINNING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""The defaults of OpenMP: waiting threads spin."""


@dataclass(frozen=True)
class Comparison:
    """A workload and the baselines that lmgym is compared with."""

    work: Workload
    baselines: tuple[Baseline, ...] = ()


def _rollouts(settings: BenchSettings) -> list[Comparison]:
    generate = Baseline("transformers generate", "transformers_generate")
    vllm = Baseline("vLLM", "vllm_offline", VLLM)
    return [Comparison(ROLLOUTS, (generate, vllm) if settings.install_baselines else (generate,))]


def _stepwise(settings: BenchSettings) -> list[Comparison]:
    return [Comparison(STEPWISE, (Baseline("naive loop", "naive_stepwise"),))]


def _iteration(settings: BenchSettings) -> list[Comparison]:
    if not settings.install_baselines:
        return [Comparison(ITERATION), Comparison(FEW_SHOT_ITERATION)]

    def trl(rows: int) -> Baseline:
        """As many rows per pass as fit into 24 GB without recomputing activations: TRL's fastest setting."""
        return Baseline("TRL GRPOTrainer", "trl_grpo", TRL, {"trl_rows": rows}, warm_up=False)

    return [Comparison(ITERATION, (trl(8),)), Comparison(FEW_SHOT_ITERATION, (trl(4),))]


def _busy(settings: BenchSettings) -> list[Comparison]:
    """lmgym with OpenMP's default waiting, on an idle machine and beside a busy process."""
    spinning = replace(LMGYM, name="lmgym, spinning threads", variables=SPINNING)
    return [Comparison(replace(SMALL_ROLLOUTS, busy=busy), (spinning,)) for busy in (False, True)]


def _growth(settings: BenchSettings) -> list[Comparison]:
    grown = [replace(SMALL_ITERATION, group_size=size) for size in (4, 8, 16)]
    grown += [replace(SMALL_ITERATION, shots=shots) for shots in (1, 2, 5)]
    grown += [replace(SMALL_ITERATION, new_tokens=tokens) for tokens in (32, 128)]
    grown += [replace(SMALL_ITERATION, turns=turns) for turns in (2, 4, 8)]
    return [Comparison(work) for work in grown]


SECTIONS: dict[str, Callable[[BenchSettings], list[Comparison]]] = {
    "rollouts": _rollouts,
    "stepwise": _stepwise,
    "iteration": _iteration,
    "busy": _busy,
    "growth": _growth,
}
