"""The loop of reinforcement learning, and the two questions an algorithm answers. Read this file first."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from lmgym.advantages import NOTHING
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.learning_signal import outcome_metrics, without_signal
from lmgym.algorithms.problem_order import ENDLESS, fruitful_problems, shuffled_walk
from lmgym.buffer import Buffer
from lmgym.envs.env import Env
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.evaluation.contamination import Fingerprint, fingerprint, held_out_indices, overlap
from lmgym.evaluation.evaluation import Evaluation, evaluate
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner, LearnerSettings, Update
from lmgym.learning.schedules import learning_rate_factor
from lmgym.losses import masked_max, masked_mean
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.policy import Policy
from lmgym.runs.checkpoint import Companion
from lmgym.runs.run import Run, uninterrupted
from lmgym.types import Episode, State


class RLAlgorithm(ABC):
    """An algorithm is its credit (`advantages`) and its objective (`loss`), or a `train` of its own."""

    Config: ClassVar[type[RLConfig]] = RLConfig
    compares_episodes: ClassVar[bool] = False
    """Whether the loss looks at several episodes of a group at once, so that no micro-batch may part them."""

    def __init__(
        self,
        policy: LLMPolicy,
        env: Env,
        config: RLConfig | None = None,
        eval_env: Env | None = None,
        run: Run | None = None,
    ) -> None:
        self.config = config or self.Config()
        self.config.check()
        self.policy = policy
        self.actor: Policy = policy
        """Who plays the episodes to learn from: the policy itself, unless an algorithm learns from another."""
        self.envs = VectorEnv(env)
        self.eval_env = eval_env
        self.run = run or Run()
        if self.config.recompute_activations:
            policy.model.recompute_activations()
        self.memory: dict[str, float] = {}
        """Numbers that outlast an iteration, such as a running mean; a checkpoint keeps them."""
        self.learner = self.make_learner()
        self.learner.factor = self.learning_rate_factor
        self.buffer = Buffer(self.config.buffer_capacity, self.run.episodes_path)
        self.iteration = 0
        self.evaluations: dict[int, Evaluation] = {}
        self.eval_indices: list[int] = []
        self.trained_on: set[Fingerprint] = set()
        self._was_silent = False
        if eval_env is not None and self.config.eval_problems:
            self.eval_indices = held_out_indices(eval_env, self.config.eval_problems, avoid=policy.examples)
        self._look_for_contamination()

    def train(self) -> None:
        """The classic loop: act, remember, learn; now and then evaluate and save."""
        config = self.config
        with self.run.watch(self):
            while not self.is_finished():
                if self.evaluation_is_due():
                    self.evaluate()
                started = time.perf_counter()
                states = self.envs.reset(self.next_problems(), config.group_size, self.next_seed())
                while states:
                    actions = self.actor.next_actions(states)  # whichever are ready
                    steps = self.envs.step(actions)
                    self.buffer.add(steps, self.iteration)
                    states = self.envs.states or self.more_states()
                collected = time.perf_counter()
                with uninterrupted():
                    metrics = self.update_policy()
                    self.iteration += 1
                    self.run.log(self.iteration, metrics | self._speed(started, collected))
                if config.save_every and self.iteration % config.save_every == 0:
                    self.run.save_checkpoint(self)
            self.evaluate()
            self.run.finish(self)

    @abstractmethod
    def advantages(self, batch: Batch) -> Tensor:
        """The credit of each token [episodes, length], of a batch on the CPU: how much better than expected it was."""

    @abstractmethod
    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """What to minimise, from the learner's log-probabilities [episodes, length] of a micro-batch on its device."""

    def more_states(self) -> list[State]:
        """A second helping within one iteration, for an algorithm that is not content with what it has collected."""
        return []

    def prepare(self, batch: Batch) -> Batch:
        """Adds to the batch what credit and loss need beyond it, such as a reference's log-probabilities."""
        return batch

    def update_policy(self) -> dict[str, float]:
        """Learns from the iteration's episodes, and from older ones where replay is on."""
        self.policy.release_cache()
        self.actor.release_cache()
        fresh, replayed = self.buffer.of_iteration(self.iteration), self._replayed()
        seen = fresh or replayed
        if not seen:
            raise UserError(
                "there are no episodes to learn from: --load_buffer_from_cache_at_start reads a file of them."
            )
        self.trained_on.update(fingerprint(episode.problem) for episode in seen)
        batch = self.prepare(self.make_batch([*fresh, *replayed]))
        batch = batch.with_(advantages=self.advantages(batch))
        learnable = self.learnable(batch)
        tokens = float(sum(episode.length for episode in fresh))
        metrics = outcome_metrics(seen) | {"tokens": tokens, "episodes_learnt": float(len(learnable))}
        self.spend(tokens)
        self._warn_without_signal(seen, batch)
        return metrics | self.extra_metrics(seen, batch) | self.learn(learnable, batch)

    def learn(self, learnable: Batch, everybody: Batch) -> dict[str, float]:
        """All optimiser steps of an iteration, and what to report of the first; without episodes, of none."""
        metrics = {} if len(learnable) else self.describe(self.learner.observe(everybody), everybody, everybody)
        for index in range(self.config.updates_per_iteration):
            update = self.optimise(learnable)
            if index == 0 and update is not None:
                metrics = self.describe(update, learnable, everybody)
                learnable = learnable.after_first_update(update.logprobs)
        return metrics

    def extra_metrics(self, episodes: Sequence[Episode], batch: Batch) -> dict[str, float]:
        """Metrics of an author's own, from an iteration's episodes and their batch with its advantages."""
        return {}

    def learning_rate_factor(self, step: int, total: int) -> float:
        """The share of --learning_rate for an optimiser step, of `total`; override it for a schedule of your own."""
        config, memory = self.config, self.memory
        since, factor = int(memory.get("schedule_step", 0)), memory.get("schedule_factor", 1.0)
        return learning_rate_factor(step, total, config.schedule, config.warmup_steps, since, factor)

    def continue_schedule(self, factor: float) -> None:
        """A resumed run that has another end or another rate goes on from this factor, down to 0 at its end."""
        if self.learner.steps_done > self.config.warmup_steps:
            self.memory |= {"schedule_step": self.learner.steps_done - 1, "schedule_factor": factor}

    def has_signal(self, batch: Batch) -> bool:
        """Whether any episode has something to teach, besides staying near a reference."""
        return bool((batch.advantages.abs() > NOTHING).any())

    def make_batch(self, episodes: Sequence[Episode]) -> Batch:
        """Episodes as tensors, how long they may be, and which were sampled with the weights as they are now."""
        batch = Batch.from_episodes(episodes)
        fresh = batch.policy_version == self.policy.model.version
        return batch.with_(fresh=fresh, length_limit=self.length_limit())

    def length_limit(self) -> int:
        """Tokens per action times the lines of a step-wise episode; at most the context."""
        env = self.envs.env
        lines = int(getattr(env, "max_steps", 1)) if self.policy.writes_lines and getattr(env, "stepwise", True) else 1
        return min(self.policy.max_tokens * lines, self.policy.model.context_length)

    def spend(self, tokens: float) -> None:
        """Counts generated tokens."""
        self.memory["tokens"] = self.memory.get("tokens", 0.0) + tokens

    def is_finished(self) -> bool:
        """Whether all iterations are done, or all tokens spent."""
        spent = self.memory.get("tokens", 0.0) >= self.config.token_budget > 0
        return spent or self.iteration >= self.config.iterations

    def learnable(self, batch: Batch) -> Batch:
        """The episodes to compute; an algorithm whose loss vanishes with the advantage may leave some out."""
        return batch

    def optimise(self, batch: Batch) -> Update | None:
        """One optimiser step."""
        return self.learner.step(batch, self.loss)

    def make_learner(self) -> Learner:
        """Who moves the weights."""
        return Learner(self.policy.model, self._learner_settings())

    def companions(self) -> dict[str, Companion]:
        """What a checkpoint keeps besides the policy, by name."""
        return {}

    def describe(self, update: Update, batch: Batch, everybody: Batch) -> dict[str, float]:
        """What to report of an optimiser step on `batch`, a part of `everybody`, seen before it moved the weights."""
        on_policy = batch.mask & batch.fresh[:, None]
        gap = (update.logprobs - batch.logprobs).abs()
        return {
            "loss": update.loss,
            "entropy": masked_mean(update.entropies, batch.mask),
            "gradient_norm": update.gradient_norm,
            "learning_rate": update.learning_rate,
            "gap": masked_mean(gap, on_policy),
            "gap_max": masked_max(gap, on_policy),
        }

    def evaluation_is_due(self) -> bool:
        """Whether the policy as it is now is to be evaluated and has not been, be it before an interruption."""
        every = self.config.evaluate_every
        wanted = self.config.evaluate_at_start if self.iteration == 0 else every and self.iteration % every == 0
        return bool(wanted) and self.iteration not in self.evaluations

    def evaluate(self) -> Evaluation | None:
        """Plays the held-out problems greedily and tracks how it went."""
        if self.eval_env is None or not self.eval_indices:
            return None
        with self.run.busy("evaluating"):
            result = evaluate(
                self.policy, self.eval_env, self.eval_indices, seed=self.config.seed, trained_on=self.trained_on
            )
        self.evaluations[self.iteration] = result
        self.run.log_evaluation(self.iteration, result)
        return result

    def next_problems(self, helping: int = 0) -> Sequence[int]:
        """The problems of this iteration: a walk through a shuffled task, which any iteration can find again.

        With a curriculum, those that were neither always nor never solved come first. An iteration that takes several
        helpings goes on from one to the next.
        """
        count, size = self.config.problems_per_iteration, len(self.envs.env.problems)
        if self.config.curriculum:
            before = [episode for episode in self.buffer.episodes if episode.iteration < self.iteration]
            random = np.random.default_rng([self.config.seed, self.iteration])
            return fruitful_problems(self.envs.env.problems, before, count, random)
        first = (self.iteration * self.max_helpings + helping) * count
        return shuffled_walk(first, count, size, self.config.seed)

    @property
    def max_helpings(self) -> int:
        """How often an iteration may collect."""
        return 1

    def next_seed(self) -> int:
        """The seed of this iteration's episodes: all randomness is a function of the run's seed and the iteration."""
        return int(np.random.SeedSequence([self.config.seed, self.iteration]).generate_state(1)[0])

    def _replayed(self) -> list[Episode]:
        count, config = self.config.replay_episodes, self.config
        if not count:
            return []
        random = np.random.default_rng([config.seed, self.iteration, 1])
        draw = self.buffer.sample_balanced if config.balanced_replay else self.buffer.sample
        return draw(count, random, before=self.iteration)

    def _look_for_contamination(self) -> None:
        """Warns where held-out problems are also trained on; of an endless task those that really are."""
        problems = self.envs.env.problems
        if not self.eval_indices or self.eval_env is None or len(problems) > ENDLESS:
            return
        both = overlap((self.eval_env.problems[index] for index in self.eval_indices), problems)
        self.trained_on |= both
        if both:
            self.run.warn(
                f"CONTAMINATED: {len(both)} of the {len(self.eval_indices)} problems to evaluate on are also trained "
                "on, so the accuracy of this run says nothing about new problems; every number is marked. Give others "
                "with --eval_env."
            )

    def _warn_without_signal(self, episodes: Sequence[Episode], batch: Batch) -> None:
        """Says why nothing can be learnt, once for as many iterations as that lasts."""
        before, self._was_silent = self._was_silent, not self.has_signal(batch)
        if self._was_silent and not before:
            self.run.warn(without_signal(episodes))

    def _speed(self, started: float, collected: float) -> dict[str, float]:
        now = time.perf_counter()
        return {"seconds_collecting": collected - started, "seconds_learning": now - collected}

    def _learner_settings(self) -> LearnerSettings:
        config = self.config
        if self.policy.distribution.temperature == 0:
            raise UserError("a policy that learns must sample: give it a temperature above 0.")
        return LearnerSettings(
            learning_rate=config.learning_rate,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            total_steps=config.iterations * config.updates_per_iteration,
            max_gradient_norm=config.max_gradient_norm,
            weight_decay=config.weight_decay,
            micro_batch_tokens=config.micro_batch_tokens,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            distribution=self.policy.distribution,
            whole_groups=self.compares_episodes,
        )
