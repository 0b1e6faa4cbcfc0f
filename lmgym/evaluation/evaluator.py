"""The evaluator of a run: the same held-out problems before, during and after training."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from lmgym.envs.env import Env
from lmgym.envs.mixture import MixtureProblems
from lmgym.envs.procedural import EndlessProblems
from lmgym.evaluation.contamination import Fingerprint, fingerprint, held_out_indices, overlap
from lmgym.evaluation.evaluation import Evaluation, evaluate
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.types import Problem


class Evaluator:
    """Evaluates greedily on the held-out problems whenever it is due, and stores the results by iteration."""

    def __init__(self, policy: LLMPolicy, env: Env | None, problems: int, every: int = 0, seed: int = 0) -> None:
        self.policy = policy
        self.env = env
        self.every = every
        self.seed = seed
        self.at_start = True
        """Whether the untrained policy is evaluated too."""
        self.indices = [] if env is None or not problems else held_out_indices(env, problems, avoid=policy.examples)
        self.evaluations: dict[int, Evaluation] = {}

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprints of the problems to evaluate on, in order."""
        return [] if self.env is None else [fingerprint(self.env.problems[index]) for index in self.indices]

    def problems_shared_with(self, training: Env) -> set[Fingerprint]:
        """The held-out problems that the training task contains too; of an endless task only those sampled count."""
        if self.env is None or not self.indices:
            return set()
        trained: Iterable[Problem] = training.problems
        if isinstance(training.problems, MixtureProblems):
            trained = chain.from_iterable(training.problems.finite)
        elif isinstance(training.problems, EndlessProblems):
            return set()
        return overlap((self.env.problems[index] for index in self.indices), trained)

    def is_due(self, iteration: int) -> bool:
        """Whether the policy after `iteration` iterations must be evaluated and has not been."""
        is_scheduled = self.at_start if iteration == 0 else bool(self.every) and iteration % self.every == 0
        return is_scheduled and bool(self.indices) and iteration not in self.evaluations

    def evaluate(
        self, iteration: int, trained_on: Iterable[Fingerprint], progress: EvaluationProgress | None = None
    ) -> Evaluation | None:
        """Evaluates the current policy; None without held-out problems."""
        if self.env is None or not self.indices:
            return None
        policy = self.policy.with_own_requests()  # with --max_staleness, episodes of the training continue
        try:
            result = evaluate(policy, self.env, self.indices, seed=self.seed, trained_on=trained_on, progress=progress)
        finally:
            policy.cancel_actions()  # those of an interrupted evaluation
        self.evaluations[iteration] = result
        return result
