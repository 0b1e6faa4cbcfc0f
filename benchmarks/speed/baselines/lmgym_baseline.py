"""lmgym itself, through its own loop: rollouts alone, or whole iterations of an algorithm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from protocol import serve, settings
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.workload import Workload
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.envs import Env, Response, make
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.examples import few_shot_examples
from lmgym.runs.run import Run
from lmgym.types import Finish, State


class Endless(LanguageModel):
    """A model without stop tokens: every action has the maximum number of tokens."""

    eos_ids = frozenset()


class Turns(ChatPolicy):
    """A chat policy whose turns follow each other directly."""

    def reply_ids(self, state: State) -> tuple[int, ...]:
        """The environment replies nothing."""
        return ()


class LastMetrics(Run):
    """A run that keeps the metrics of the last iteration."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Keeps them and prints nothing."""
        self.logged = dict(metrics)


class Parity(Env):
    """Rewards texts of odd length, so that groups have an advantage to learn from; ends after a number of turns."""

    turns = 1

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        """The reward is the parity of the text's length."""
        return Response(reward=float(len(text) % 2), terminated=state.turn >= self.turns)


def serve_workload(work: Workload, threads: int, dtype: str, prompts_file: str) -> None:
    """Loads the model, writes the prompts for the other baselines, and serves runs."""
    torch.set_num_threads(threads)
    model = Endless(**vars(load_model(work.model, dtype=dtype)))
    gsm8k = make("gsm8k", split="train")
    examples = few_shot_examples(gsm8k, work.shots)
    policy = Turns(model, examples, max_tokens=work.new_tokens // work.turns)
    env = Parity([gsm8k.problems[index] for index in range(work.problems)])
    env.turns = work.turns
    config = ReinforceConfig(
        iterations=1,
        problems_per_iteration=work.problems,
        group_size=work.group_size,
        learning_rate=1e-6,
        schedule="constant",
        eval_problems=0,
        save_every=0,
    )
    metrics = LastMetrics()
    algorithm = Reinforce(policy, env, config, run=metrics)
    states = algorithm.envs.reset(range(work.problems), work.group_size)
    ids = [list(policy.prompt_ids(state)) for state in states]
    Path(prompts_file).write_text(json.dumps({"prompts": ids, "texts": [policy.decode(prompt) for prompt in ids]}))

    serve(MeasuredWorkload(algorithm, work, metrics))


class MeasuredWorkload:
    """Runs of the workload; the warm-up run also counts the operations of the matrix products."""

    def __init__(self, algorithm: Reinforce, work: Workload, metrics: LastMetrics) -> None:
        self.algorithm = algorithm
        self.work = work
        self.metrics = metrics
        self.counts: dict[str, float] = {}

    def __call__(self) -> dict[str, Any]:
        """One run: rollouts, and an optimiser step if the workload learns."""
        if not self.work.learns:
            with self._counting("collecting_products"):
                return self._collect() | self.counts
        if not self.counts:
            with self._counting("collecting_products"):
                self._collect()
            with self._counting("learning_products"):
                return self._iterate() | self.counts
        return self._iterate() | self.counts

    def _collect(self) -> dict[str, Any]:
        algorithm = self.algorithm
        algorithm.policy.model.version += 1  # as after an update, which invalidates the KV cache
        states = algorithm.envs.reset(algorithm.next_problems(), self.work.group_size, algorithm.next_seed())
        written = 0
        while states:
            steps = algorithm.envs.step(algorithm.policy.next_actions(states))
            written += sum(len(step.action.token_ids) for step in steps)
            states = algorithm.envs.states
        return {"tokens": written}

    def _iterate(self) -> dict[str, Any]:
        algorithm = self.algorithm
        algorithm.config = replace(algorithm.config, iterations=algorithm.iteration + 1)
        algorithm.train()
        logged = self.metrics.logged
        return {
            "tokens": int(logged["tokens"]),
            "collecting": logged["seconds_collecting"],
            "learning": logged["seconds_learning"],
        }

    @contextlib.contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        """Sums the operations of all products with a weight matrix; attention is not included."""
        if name in self.counts:
            yield
            return
        with FlopCounterMode(display=False) as counter:
            yield
        found = counter.get_flop_counts()["Global"]
        self.counts[name] = sum(found.get(product, 0) for product in (torch.ops.aten.mm, torch.ops.aten.addmm))
        if name == "learning_products":  # an iteration also collects
            self.counts[name] -= self.counts["collecting_products"]


if __name__ == "__main__":
    asked = settings()
    serve_workload(Workload(**asked["workload"]), asked["threads"], asked["dtype"], asked["prompts_file"])
