"""`python -m benchmarks.cost_model`: the time of an iteration on a cluster, by a model with few numbers.

    collecting    E episodes of T tokens on S server GPUs; a decode step reads the weights and the batch's KV cache once
    learning      6 FLOPs per parameter and token on L learner GPUs, at a share of their peak
    hand-over     the learner writes the weights once, every server node reads them; sampling waits

    synchronous   collecting + learning + hand-over
    asynchronous  max(collecting + reading, learning + writing)

`check` takes the two rates from the synchronous run of `benchmarks.staleness` and predicts the asynchronous ones. The
shares of a GPU's peak are assumptions: nothing of lmgym has run on one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmgym.console import results


@dataclass(frozen=True)
class Machine:
    """One GPU and its storage."""

    flops: float
    """Peak of 16-bit matrix products, per second."""
    bandwidth: float
    """Bytes of memory read per second."""
    memory: float
    """Bytes."""
    learner_share: float
    """Share of the peak that learning reaches."""
    server_share: float
    """Share of the bandwidth, or of the peak, that decoding reaches."""
    storage: float
    """Bytes per second that one process writes, or one server node reads."""


H100 = Machine(990e12, 3.35e12, 80e9, learner_share=0.4, server_share=0.6, storage=2e9)
"""Data sheet of the H100 SXM; the shares are assumptions, usual for FSDP and for vLLM with large batches."""


@dataclass(frozen=True)
class Model:
    """A decoder with grouped-query attention."""

    name: str
    parameters: float
    layers: int
    kv_size: int
    """Numbers per token and layer in the KV cache: 2 · key heads · head size."""

    @property
    def bytes(self) -> float:
        """Of the weights in 16 bits."""
        return 2 * self.parameters

    def kv_bytes(self, tokens: float) -> float:
        """Of the keys and values of a sequence."""
        return 2.0 * self.layers * self.kv_size * tokens


MODELS = (
    Model("1 B", 1.24e9, 16, 1024),
    Model("8 B", 8.0e9, 32, 2048),
    Model("70 B", 70.6e9, 80, 2048),
)
"""The shapes of Llama 3.2 1B, Llama 3.1 8B and 70B."""


@dataclass(frozen=True)
class Workload:
    """What an iteration samples."""

    episodes: int
    prompt: int = 200
    tokens: int = 1000
    group: int = 8


@dataclass(frozen=True)
class Iteration:
    """Seconds of the parts of an iteration."""

    servers: int
    collecting: float
    learning: float
    writing: float
    reading: float

    @property
    def synchronous(self) -> float:
        """One after the other."""
        return self.collecting + self.learning + self.writing + self.reading

    @property
    def asynchronous(self) -> float:
        """Whichever side takes longer."""
        return max(self.collecting + self.reading, self.learning + self.writing)


def iteration(model: Model, machine: Machine, gpus: int, servers: int, work: Workload) -> Iteration:
    """The parts of an iteration with so many of the GPUs as servers and the others as learners."""
    learnt = work.episodes * (work.tokens + work.prompt / work.group)
    learning = 6 * model.parameters * learnt / ((gpus - servers) * machine.flops * machine.learner_share)
    return Iteration(
        servers,
        collecting_seconds(model, machine, servers, work),
        learning,
        model.bytes / machine.storage,
        model.bytes / machine.storage,
    )


def collecting_seconds(model: Model, machine: Machine, servers: int, work: Workload) -> float:
    """All episodes, in batches that fit into memory, one token of each per step."""
    per_server = tensor_parallel(model, machine)
    kv = model.kv_bytes(work.prompt + work.tokens / 2)
    fits = max(1, int((0.9 * per_server * machine.memory - model.bytes) / model.kv_bytes(work.prompt + work.tokens)))
    rows = math.ceil(work.episodes / max(1, servers // per_server))
    seconds = 0.0
    for batch in [fits] * (rows // fits) + ([rows % fits] if rows % fits else []):
        reading = (model.bytes + batch * kv) / (per_server * machine.bandwidth * machine.server_share)
        computing = 2 * model.parameters * batch / (per_server * machine.flops * machine.server_share)
        seconds += work.tokens * max(reading, computing)
    return seconds


def tensor_parallel(model: Model, machine: Machine) -> int:
    """GPUs of one server: a power of two with room for the weights and as much again for the KV cache."""
    return 2 ** max(0, math.ceil(math.log2(2 * model.bytes / machine.memory)))


def least_learners(model: Model, machine: Machine) -> int:
    """GPUs that hold weights, gradients and moments in 32 bits, sharded, with a quarter left for activations."""
    return max(1, math.ceil(16 * model.parameters / (0.75 * machine.memory)))


def best_split(model: Model, machine: Machine, gpus: int, work: Workload) -> Iteration | None:
    """The number of servers with the shortest asynchronous iteration; None if the model does not fit."""
    step = tensor_parallel(model, machine)
    choices = range(step, gpus - least_learners(model, machine) + 1, step)
    found = [iteration(model, machine, gpus, servers, work) for servers in choices]
    return min(found, key=lambda each: each.asynchronous, default=None)


def table() -> str:
    """8, 64 and 1,000 GPUs; the number of episodes grows with them."""
    lines = [
        "| model | GPUs | episodes | servers : learners | collecting | learning | write + read | synchronous | "
        "asynchronous | tokens/s | bottleneck |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for gpus in (8, 64, 1000):
            work = Workload(episodes=64 * gpus)
            best = best_split(model, H100, gpus, work)
            if best is None:
                lines.append(f"| {model.name} | {gpus:,} | – | does not fit | | | | | | | memory |")
                continue
            moving = best.writing + best.reading
            sides = {"servers": best.collecting, "learners": best.learning, "storage": moving}
            cells = [model.name, f"{gpus:,}", f"{work.episodes:,}", f"{best.servers} : {gpus - best.servers}"]
            cells += [f"{each:.1f} s" for each in (best.collecting, best.learning, best.writing + best.reading)]
            cells += [f"{best.synchronous:.1f} s", f"{best.asynchronous:.1f} s"]
            cells += [
                f"{work.episodes * work.tokens / best.asynchronous:,.0f}",
                max(sides, key=lambda side: sides[side]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


MEASURED = Path(__file__).with_name("staleness.json")


def check(rows: Sequence[Mapping[str, float]]) -> str:
    """Seconds of an asynchronous iteration: by the rates of the synchronous run, the first row, and as measured."""
    tokens = rows[0]["tokens"]
    server_rate, learner_rate = (tokens / rows[0][part] for part in ("seconds_collecting", "seconds_learning"))
    lines = [
        f"Fitted: the server samples {server_rate:.0f} and the learner learns {learner_rate:.0f} tokens per second.",
        "",
        "| --max_staleness | tokens | predicted | measured | measured / predicted |",
        "|---|---|---|---|---|",
    ]
    for row in rows[1:]:
        # The time of the hand-over is part of the measured collecting.
        parts = Iteration(1, row["tokens"] / server_rate, row["tokens"] / learner_rate, writing=0.0, reading=0.0)
        cells = [f"{row['max_staleness']:.0f}", f"{row['tokens']:,.0f}", f"{parts.asynchronous:.1f} s"]
        cells += [f"{row['seconds']:.1f} s", f"{row['seconds'] / parts.asynchronous:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    results.print(table(), markup=False, soft_wrap=True)
    if MEASURED.exists():
        results.print("\n" + check(json.loads(MEASURED.read_text())["rows"]), markup=False, soft_wrap=True)
