"""lmgym itself, through its own loop: rollouts alone, or whole iterations of an algorithm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol import serve, settings
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.random_batch import random_completions
from benchmarks.speed.workload import Workload
from lmgym.algorithms.parts import KL
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.engines.torch.engine import int8_engine
from lmgym.envs import Env, Response, make
from lmgym.envs.examples import few_shot_examples
from lmgym.models.language_model import LanguageModel, base_network
from lmgym.models.loading import load_model
from lmgym.policies.chat_policy import ChatPolicy
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


class FixedPrompts(Turns):
    """Prompts of random ids, one per problem, that have no text."""

    prompts: Mapping[str, tuple[int, ...]]

    def prompt_ids(self, state: State) -> tuple[int, ...]:
        """The problem's prompt, or all ids so far."""
        return state.tokens or self.prompts[state.problem.id]


def serve_workload(work: Workload, threads: int, dtype: str, prompts_file: str, rounds_to_int8: bool = False) -> None:
    """Loads the model, writes the prompts for the other baselines, and serves runs."""
    torch.set_num_threads(threads)
    model = Endless(**vars(load_model(work.model, dtype=dtype)))
    if work.layers:
        keep_layers(model, work.layers)
    engine = int8_engine(model) if rounds_to_int8 else None
    gsm8k = make("gsm8k", split="train")
    problems = [gsm8k.problems[index] for index in range(work.problems)]
    vocabulary = model.vocabulary_size
    random_ids = np.random.default_rng(0).integers(vocabulary // 2, vocabulary, (work.problems, work.prompt_tokens))
    policy_class = FixedPrompts if work.prompt_tokens else Turns
    examples = few_shot_examples(gsm8k, work.shots)
    policy = policy_class(model, examples, max_tokens=work.new_tokens // work.turns, engine=engine)
    if isinstance(policy, FixedPrompts):
        pairs = zip(problems, random_ids.tolist(), strict=True)
        policy.prompts = {problem.id: tuple(ids) for problem, ids in pairs}
    env = Parity(problems)
    env.turns = work.turns
    config = ReinforceConfig(
        iterations=1,
        problems_per_iteration=work.problems,
        group_size=max(work.group_size, 2),  # a group of one has no advantage; rollouts take the size of the workload
        learning_rate=1e-6,
        schedule="constant",
        eval_problems=0,
        save_every=0,
        micro_batch_tokens=work.micro_batch_tokens,
        recompute_activations=work.recompute_activations,
        kl=KL(kl_coeff=0.01 if work.has_reference else 0.0),
    )
    metrics = LastMetrics()
    algorithm = Reinforce(policy, env, config, run=metrics)
    states = algorithm.envs.reset(range(work.problems), work.group_size)
    ids = [list(policy.prompt_ids(state)) for state in states]
    Path(prompts_file).write_text(json.dumps({"prompts": ids, "texts": [policy.decode(prompt) for prompt in ids]}))

    serve(MeasuredWorkload(algorithm, work, metrics) if work.collects else LearningAlone(algorithm, ids, work))


def keep_layers(model: LanguageModel, count: int) -> None:
    """Removes all but the first layers of a model."""
    decoder: Any = base_network(model.network).get_decoder()
    decoder.layers = decoder.layers[:count]
    model.network.config.num_hidden_layers = count


class LearningAlone:
    """Optimiser steps on random completions of the prompts."""

    def __init__(self, algorithm: Reinforce, prompts: list[list[int]], work: Workload) -> None:
        self.learner, self.work = algorithm.learner, work
        self.counts: dict[str, float] = {}
        self.batch = random_completions(prompts, work.new_tokens, work.group_size)

    def __call__(self) -> dict[str, Any]:
        """One optimiser step; `tokens` are those of all episodes, prompts included."""
        with counting(self.counts, "learning_products"):
            self.learner.step(self.batch, lambda scores, part: -scores.logprobs.sum() / part.total_tokens)
        return {"tokens": self.batch.tokens.numel()} | self.counts


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
            with counting(self.counts, "collecting_products"):
                return self._collect() | self.counts
        if not self.counts:
            with counting(self.counts, "collecting_products"):
                self._collect()
            with counting(self.counts, "learning_products"):
                found = self._iterate()
            self.counts["learning_products"] -= self.counts.get(
                "collecting_products", 0.0
            )  # an iteration also collects
            return found | self.counts
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
            "logprob_diff": logged["logprob_diff"],
        }


@contextlib.contextmanager
def counting(counts: dict[str, float], name: str) -> Iterator[None]:
    """Sums the operations of all products with a weight matrix, in the first run; attention is not included."""
    if name in counts:
        yield
        return
    formulas = {torch.ops.mkldnn._linear_pointwise: packed_product_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        yield
    found = counter.get_flop_counts()["Global"]
    products = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.mkldnn._linear_pointwise)
    if operations := sum(found.get(product, 0) for product in products):  # those in 8-bit integers are not counted
        counts[name] = operations


def packed_product_flops(states: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Operations of a packed product, from the shapes [..., inputs] and [outputs, inputs]."""
    return int(2 * np.prod(states) * weight[0])


if __name__ == "__main__":
    asked = settings()
    rounds_to_int8 = asked.get("rounds_to_int8", False)
    serve_workload(
        Workload(**asked["workload"]), asked["threads"], asked["dtype"], asked["prompts_file"], rounds_to_int8
    )
