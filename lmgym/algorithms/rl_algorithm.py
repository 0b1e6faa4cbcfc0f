"""The loop of reinforcement learning, and the two methods an algorithm writes. Read this file first.

collect     states → actions → steps → buffer          (`train`)
update      episodes → batch → reference log-probs → advantages → selection → optimiser steps → metrics
                                                       (`update_policy`)
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from lmgym.advantages import EPS, down_sampled, informative_groups
from lmgym.algorithms.catalogue import name_of
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.continued_rollouts import ContinuedRollouts
from lmgym.algorithms.metrics import has_signal, measured_kl, outcome_metrics, update_metrics, without_signal
from lmgym.algorithms.parts import EntropyBonus, GroupFilter, KLPenalty, UpdateLimit
from lmgym.algorithms.problem_order import ProblemOrder
from lmgym.algorithms.replay import Replay
from lmgym.algorithms.trust_region import TrustRegion
from lmgym.buffer import Buffer
from lmgym.distributed.processes import processes
from lmgym.envs.env import Env
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.evaluation.contamination import TrainedProblems, contamination_warning
from lmgym.evaluation.evaluation import Evaluation
from lmgym.evaluation.evaluator import Evaluator
from lmgym.evaluation.grading import failures
from lmgym.judges.judge import Judge
from lmgym.learning.batch import Batch
from lmgym.learning.critic import make_value_head
from lmgym.learning.epochs import run_epochs
from lmgym.learning.learner import Learner, Loss, Update
from lmgym.learning.reference import Reference, make_reference
from lmgym.learning.schedules import learning_rate_factor
from lmgym.losses import adapted_coefficient
from lmgym.models.token_scorer import Scores
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.policy import Policy
from lmgym.runs.interrupts import uninterrupted
from lmgym.runs.run import Run
from lmgym.runs.training import AuxiliaryState
from lmgym.types import Episode, State

BUFFER_CAPACITY = 4096
"""Episodes kept in memory, at least one iteration's; all of them stay on disk."""

RUNNING_DECAY = 0.9
"""Decay of the running mean of the reward, per iteration."""


class RLAlgorithm(ABC):
    """An algorithm is its `advantages` and its `loss`.

    A subclass may also override `setup`, `prepare`, `select_for_update` and `train`; everything else is final.
    """

    Config: ClassVar[type[RLConfig]] = RLConfig
    compares_episodes: ClassVar[bool] = False
    """Whether the loss compares episodes of a group, so that no micro-batch may split a group."""
    can_shard: ClassVar[bool] = True
    """Whether --shard is supported; not where a second network samples, learns or is kept."""
    learns_from_reference: ClassVar[bool] = False
    """Whether the KL to the reference is itself the objective, as in distillation."""

    def __init__(
        self,
        policy: LLMPolicy,
        env: Env,
        config: RLConfig | None = None,
        eval_env: Env | None = None,
        run: Run | None = None,
        ref_policy: LLMPolicy | None = None,
        judge: Judge | None = None,
    ) -> None:
        """`ref_policy` is the reference of a KL penalty; by default the policy as it is now.

        `judge` adds its rewards to those of the environment, when all episodes of an iteration have ended.
        """
        self.config = config = config or self.Config()
        config.check()
        if policy.distribution.temperature == 0:
            raise UserError("a policy that learns must sample: give it a temperature above 0.")
        kl = config.part(KLPenalty)
        keeps_networks = not self.can_shard or (kl is not None and bool(kl.update_reference_every))
        if policy.model.is_sharded and keeps_networks:
            raise UserError("--shard is not supported where a second network is trained, sampled from or updated.")
        if config.recompute_activations:
            policy.model.recompute_activations()
        self.policy = policy
        self.actor: Policy = policy
        """The policy that samples the episodes: the one that learns, or an expert, a teacher, the reference."""
        self.envs = VectorEnv(env, not policy.serves_all_processes)
        self.continued: ContinuedRollouts | None = None
        """With --max_staleness, the rollouts that go on while the policy learns."""
        if config.max_staleness:
            self.continued = ContinuedRollouts(policy, env, config.problems_per_iteration, config.max_staleness)
            self.envs = self.continued.envs
        self.run = run or Run()
        settings = config.learner_settings(policy.distribution, self.compares_episodes)
        value_head = make_value_head(policy.model) if config.uses_value_head else None
        self.learner = Learner(policy.model, settings, value_head)
        self.learner.schedule = self._scheduled
        limit = config.part(UpdateLimit)
        self.trust_region = TrustRegion(self.learner, limit.max_update_kl if limit is not None else 0.0)
        self.minibatches = 1
        self.auxiliary_objectives: list[tuple[Learner, Loss]] = []
        """Other learners that take a step on the same minibatch, such as a critic with a network of its own."""
        self.reference: Reference | None = None
        self.auxiliary_state: dict[str, AuxiliaryState] = {}
        """Weights besides the policy's that a checkpoint keeps, by name: a reference, a critic."""
        self.state: dict[str, float] = {}
        """Numbers that outlast an iteration, such as a running mean; a checkpoint keeps them."""
        self.recorded: dict[str, float] = {}
        """Metrics of your own: any method may add some; they are reported with the iteration."""
        self.iteration = 0
        episodes = config.problems_per_iteration * config.group_size * config.resample_rounds
        self.buffer = Buffer(max(BUFFER_CAPACITY, episodes), self.run.episodes_path)
        self.judge = judge
        if judge is not None:
            judge.check(config.group_size)
        self.buffer.writes_later = judge is not None
        self.replay = Replay(self.buffer, config.replay_episodes, config.seed)
        self.problem_order = ProblemOrder(
            self.envs.env.problems, config.problems_per_iteration, config.seed, config.resample_rounds
        )
        self.evaluator = Evaluator(policy, eval_env, config.eval_problems, config.evaluate_every, config.seed)
        self.trained_problems = TrainedProblems()
        self._had_signal = True
        self._rounds = (-1, 0)
        """An iteration, and how many rounds of problems it has sampled."""
        shared = self.evaluator.problems_shared_with(self.envs.env)
        self.trained_problems.fingerprints |= shared
        if shared:
            self.run.warn(contamination_warning(len(shared), len(self.evaluator.indices)))
        self.setup(ref_policy)
        if self.continued is not None and self.actor is not self.policy:
            raise UserError("--max_staleness is of weights that learn: here others sample the episodes.")

    def train(self) -> None:
        """The classic loop: collect episodes and update the policy; evaluate and save when it is time."""
        config = self.config
        with self.run.session(self):
            while self.iteration < config.iterations:
                if self.run.is_out_of_time(self):
                    self.run.pause(self)
                    return
                if self.evaluator.is_due(self.iteration):
                    self.evaluate()
                started = time.perf_counter()
                self.envs.reset(self.next_problems(), config.group_size, self.next_seed())
                while states := self.envs.states or self.resample():
                    actions = self.actor.next_actions(states)  # whichever are ready
                    steps = self.envs.step(actions)
                    self.buffer.add(steps, self.iteration)
                collected = time.perf_counter()
                with uninterrupted(), self._continuing_rollouts():
                    metrics = self.update_policy()
                    self.iteration += 1
                    self.run.log(self.iteration, metrics | _seconds(started, collected))
                self.run.save_if_due(self)
            self.evaluate()
            self.run.finish(self)

    @abstractmethod
    def advantages(self, batch: Batch) -> Tensor:
        """How much better than expected each token [episodes, length] was; the batch is on the CPU."""

    @abstractmethod
    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """What to minimise, from what the learner computed of a micro-batch on its device."""

    def setup(self, ref_policy: LLMPolicy | None) -> None:
        """Builds what the algorithm needs besides the policy: by default the reference of its KL penalty, if any."""
        kl = self.config.part(KLPenalty)
        if kl is None or not kl.kl_coeff:
            return
        if self.policy.distribution.is_truncated:
            self.run.warn(
                "under --top_k or --top_p the KL to the reference is approximate: the reference keeps each sampled "
                "token, even where its own truncation would drop it."
            )
        other = ref_policy.model if ref_policy else None
        self.reference = make_reference(self.policy.model, other, is_updated=bool(kl.update_reference_every))
        self.auxiliary_state["reference"] = self.reference

    def prepare(self, batch: Batch) -> Batch:
        """Adds to the batch what advantages and loss need beyond it, such as a critic's values."""
        return batch

    def select_for_update(self, batch: Batch) -> Batch:
        """The episodes to compute: those with a gradient, of those that the group filter keeps."""
        config = self.config
        kl, entropy, group_filter = config.part(KLPenalty), config.part(EntropyBonus), config.part(GroupFilter)
        if group_filter is not None and group_filter.filter_groups:
            informative = informative_groups(batch.advantages, batch.group)
            # Of this iteration's groups no more than were asked for; replayed groups stay.
            first = batch.group[informative & batch.on_policy].unique()[: config.problems_per_iteration]
            kept = informative & (torch.isin(batch.group, first) | ~batch.on_policy)
            batch = batch.select(kept).recounted()
        if group_filter is not None and group_filter.learn_per_group:
            kept_advantages = down_sampled(batch.advantages, batch.group, group_filter.learn_per_group, batch.seed)
            batch = batch.with_(advantages=kept_advantages)
        if (kl is not None and kl.in_loss) or (entropy is not None and entropy.entropy_coeff):
            return batch
        return batch.select(batch.advantages.abs().amax(dim=1) > EPS)

    @final
    def update_policy(self) -> dict[str, float]:
        """One update, from the episodes of this iteration and replayed ones to the metrics."""
        config = self.config
        self.policy.release_cache()
        self.actor.release_cache()
        fresh, replayed = self.buffer.of_iteration(self.iteration), self.replay.sample(self.iteration)
        episodes = fresh or replayed
        if not episodes:
            raise UserError("there are no episodes to learn from: --load_episodes reads a file of them.")
        self.trained_problems.add(episode.problem for episode in episodes)
        self.recorded |= self.policy.engine.metrics()
        if self.continued is not None:
            self.recorded |= self.continued.metrics(fresh)

        batch = self._make_batch([*fresh, *replayed])
        batch = self._with_reference(batch)
        batch = self.prepare(batch)
        batch = batch.with_(advantages=self.advantages(batch))
        selected = self.select_for_update(batch)
        had_signal, self._had_signal = self._had_signal, has_signal(batch, config) or self._learns_from_kl
        if had_signal and not self._had_signal:
            self.run.warn(without_signal(episodes))
        version = self.policy.model.version
        self.trust_region.begin()
        update, computed = self._optimise(selected, batch)
        if len(selected):
            self.recorded |= self.trust_region.end(update, computed)
        self.policy.engine.update_weights()

        tokens = float(sum(episode.length for episode in fresh))
        self.state["tokens"] = self.state.get("tokens", 0.0) + tokens
        metrics = outcome_metrics(episodes) | {"tokens": tokens, "episodes_learnt": float(len(selected))}
        metrics |= update_metrics(update, computed, version)
        if self.reference is not None:
            metrics |= {"kl": measured_kl(update, computed, batch), "kl_coeff": batch.kl_coeff}
            self._adapt_kl_coeff(metrics["kl"])
        past = self.state.get("mean_reward", metrics["reward"])
        self.state["mean_reward"] = RUNNING_DECAY * past + (1 - RUNNING_DECAY) * metrics["reward"]
        recorded, self.recorded = self.recorded, {}
        return metrics | recorded

    @final
    def resample(self) -> list[State]:
        """Dynamic sampling: further problems while too few groups are informative and rounds are left.

        It is called when all episodes of this process have ended, and first takes those of the other processes. A
        process that has no share of the further problems waits here for the others.
        """
        config, states = self.config, list[State]()
        if self._rounds[0] != self.iteration:
            self._rounds = (self.iteration, 1)
        while not states:
            self.buffer.gather(self.iteration)
            self._leave_out_failed()
            self._judge_episodes()
            if config.resample_rounds == 1 or not config.problems_per_iteration:
                break
            batch = Batch.from_episodes(self.buffer.of_iteration(self.iteration))
            informative = batch.group[informative_groups(self.advantages(batch), batch.group)].unique()
            done = self._rounds[1]
            if done >= config.resample_rounds or len(informative) >= config.problems_per_iteration:
                break
            self._rounds = (self.iteration, done + 1)
            first_group = done * config.problems_per_iteration
            states = self.envs.reset(self.next_problems(done), config.group_size, self.next_seed(), first_group)
        return states

    @final
    def _judge_episodes(self) -> None:
        """Lets the judge reward the episodes that it has not seen, each process a share of them."""
        if self.judge is None:
            return
        name = self.judge.name
        unseen = [
            episode
            for episode in self.buffer.of_iteration(self.iteration)
            if name not in episode.info.get("rewards", {})
        ]
        groups = list(dict.fromkeys(episode.group for episode in unseen))
        own = set(processes().share(groups))
        judged = self.judge.judged([episode for episode in unseen if episode.group in own])
        self.buffer.replace(processes().gather(judged))
        self._leave_out_failed()

    @final
    def _leave_out_failed(self) -> None:
        """Removes episodes whose environment, reward, tool or judge failed; if most of them did, the run ends."""
        failed = self.buffer.remove_failed(self.iteration)
        if not failed:
            return
        others = len(self.buffer.of_iteration(self.iteration))
        said = failures(failed, len(failed) + others)
        if len(failed) > others:
            raise UserError(said)
        self.run.warn(f"{said} They are not learnt from.")
        self.recorded["failed_episodes"] = self.recorded.get("failed_episodes", 0.0) + len(failed)

    @final
    def evaluate(self) -> Evaluation | None:
        """Evaluates the policy on the held-out problems and logs the result, once per iteration."""
        if self.iteration in self.evaluator.evaluations:
            return self.evaluator.evaluations[self.iteration]
        with self.run.evaluating(len(self.evaluator.indices)) as progress:
            result = self.evaluator.evaluate(self.iteration, self.trained_problems.fingerprints, progress)
        if result is not None:
            self.run.log_evaluation(self.iteration, result)
            failed = [episode for episode in result.episodes if episode.error is not None]
            if failed:
                self.run.warn(f"{failures(failed, len(result.episodes))} They count as wrong.")
        return result

    @final
    def next_problems(self, resample_round: int = 0) -> Sequence[int]:
        """The problems of this iteration, by index; the environment is told which iteration it is."""
        self.envs.env.set_iteration(self.iteration)
        if self.config.curriculum:
            return self.problem_order.curriculum(self.iteration, self.buffer.episodes)
        if self.continued is None:
            return self.problem_order.shuffled(self.iteration, resample_round)
        started = self.continued.iterations_to_start(self.iteration, self.config.iterations)
        return [index for iteration in started for index in self.problem_order.shuffled(iteration)]

    @final
    def next_seed(self) -> int:
        """The seed of this iteration's episodes: all randomness is a function of the run's seed and the iteration."""
        return int(np.random.SeedSequence([self.config.seed, self.iteration]).generate_state(1)[0])

    @property
    @final
    def name(self) -> str | None:
        """The name by which `lmgym train` finds this algorithm; None for a class that cannot be imported."""
        return name_of(type(self))

    @property
    @final
    def kl_coeff(self) -> float:
        """The coefficient of the KL penalty now; --kl_target adapts it."""
        kl, state = self.config.part(KLPenalty), self.state
        if kl is None:
            return 0.0
        # A resumed run with another --kl_coeff, or without --kl_target, starts from that one.
        is_adapted = kl.kl_target and state.get("initial_kl_coeff", kl.kl_coeff) == kl.kl_coeff
        return state.get("kl_coeff", kl.kl_coeff) if is_adapted else kl.kl_coeff

    @final
    def continue_schedule(self, factor: float) -> None:
        """A resumed run with another end or another rate decays from this factor to 0 at its new end."""
        if self.learner.steps_done > self.config.warmup_steps:
            self.state |= {"schedule_step": self.learner.steps_done - 1, "schedule_factor": factor}

    @contextlib.contextmanager
    def _continuing_rollouts(self) -> Iterator[None]:
        """With --max_staleness, samples episodes of the next iteration while the block runs."""
        if self.continued is None:
            yield
        elif self.iteration + 1 == self.config.iterations:
            self.continued.stop()
            yield
        else:
            with self.continued.stepping() as early:
                yield
            self.buffer.add(early, self.iteration)

    @property
    def _learns_from_kl(self) -> bool:
        return self.learns_from_reference and bool(self.kl_coeff)

    def _make_batch(self, episodes: Sequence[Episode]) -> Batch:
        """Episodes as tensors, their maximum length, and which of them the current weights sampled."""
        batch = Batch.from_episodes(episodes)
        on_policy = batch.policy_version == self.policy.model.version
        return batch.with_(on_policy=on_policy, length_limit=self.policy.longest_episode(self.envs.env))

    def _with_reference(self, batch: Batch) -> Batch:
        """The batch with the reference's log-probabilities; the reference is updated first when it is time."""
        kl = self.config.part(KLPenalty)
        if self.reference is None or kl is None:
            return batch
        if kl.update_reference_every and self.iteration and self.iteration % kl.update_reference_every == 0:
            self.reference.refresh()
        return batch.with_(reference_logprobs=self.reference.logprobs(self.learner, batch), kl_coeff=self.kl_coeff)

    def _optimise(self, selected: Batch, batch: Batch) -> tuple[Update, Batch]:
        """All optimiser steps; what the learner computed before the first of them, and of which episodes."""
        config, epochs = self.config, range(self.config.updates_per_iteration)
        if not len(selected):
            observed = self.learner.observe(batch)
            for _ in epochs:
                self.learner.step(selected, self.loss)  # only advances the schedule
            return observed, batch
        objectives = [(self.learner, self.loss), *self.auxiliary_objectives]
        random = [np.random.default_rng([config.seed, self.iteration, 2, epoch]) for epoch in epochs]
        return run_epochs(objectives, selected, random, self.minibatches), selected

    def _adapt_kl_coeff(self, measured: float) -> None:
        kl = self.config.part(KLPenalty)
        if kl is not None and kl.kl_target:
            adapted = adapted_coefficient(self.kl_coeff, measured, kl.kl_target)
            self.state |= {"kl_coeff": adapted, "initial_kl_coeff": kl.kl_coeff}

    def _scheduled(self, step: int, total: int) -> float:
        since, factor = int(self.state.get("schedule_step", 0)), self.state.get("schedule_factor", 1.0)
        return learning_rate_factor(step, total, self.config.schedule, self.config.warmup_steps, since, factor)


def _seconds(started: float, collected: float) -> dict[str, float]:
    return {"seconds_collecting": collected - started, "seconds_learning": time.perf_counter() - collected}
