"""Asynchronous training: the servers' episodes go on while the policy learns, in a thread that steps them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from lmgym.engines.server.engine import ServerEngine
from lmgym.envs.env import Env
from lmgym.envs.pipelined_vector_env import PipelinedVectorEnv
from lmgym.errors import UserError
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.types import Episode, Step


class ContinuedRollouts:
    """The environments of a run with --max_staleness, and how old the weights are that sampled its episodes."""

    def __init__(self, policy: LLMPolicy, env: Env, groups: int, max_staleness: int) -> None:
        """An iteration learns from `groups` groups, no token of which is older than `max_staleness` iterations."""
        if not isinstance(policy.engine, ServerEngine):
            raise UserError("--max_staleness needs servers that sample while this process learns: --engine vllm.")
        if any(server.kind == "sglang" for server in policy.engine.servers):
            raise UserError("--max_staleness needs vLLM servers: SGLang gives one version of the weights per answer.")
        self.policy = policy
        self.engine = policy.engine
        self.max_staleness = max_staleness
        self.envs = PipelinedVectorEnv(env, groups, self._oldest_version)
        self._versions: list[int] = []
        """The version at the beginning of each iteration of this process."""
        self._collected = 0
        """The iteration of this process whose groups are being collected."""

    def iterations_to_start(self, iteration: int, total: int) -> range:
        """Those of all iterations whose problems are started now: at first until `max_staleness` later, then one."""
        first = iteration + self.max_staleness if self._versions else iteration
        self._versions.append(self.policy.model.version)
        return range(first, min(iteration + self.max_staleness + 1, total))

    @contextlib.contextmanager
    def stepping(self) -> Iterator[list[Step]]:
        """Steps the live episodes in a thread while the block runs, and collects the steps of complete groups.

        The servers keep their weights meanwhile, because an optimiser is changing those of the model.
        """
        self._collected += 1
        stop, early, errors = threading.Event(), self.envs.begin_iteration(), list[BaseException]()

        def step_until_stopped() -> None:
            try:
                while not stop.is_set() and (states := self.envs.states):
                    early.extend(self.envs.step(self.policy.next_actions(states)))
            except BaseException as error:  # raised again in the main thread
                errors.append(error)

        thread = threading.Thread(target=step_until_stopped, name="lmgym-rollouts", daemon=True)
        with self.engine.keeping_weights():
            thread.start()
            try:
                yield early
            finally:
                stop.set()
                thread.join()
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Ends the live episodes, when no iteration will learn from them."""
        self.policy.cancel_actions()

    def _oldest_version(self) -> int:
        """The version whose tokens the iteration that is being collected may just learn from."""
        return self._versions[max(0, self._collected - self.max_staleness)]

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How many versions before the current one the episodes began, and how many groups were too old to learn from.

        `versions` count optimiser steps.
        """
        ages = [self.policy.model.version - episode.policy_version for episode in episodes]
        dropped, self.envs.dropped_groups = self.envs.dropped_groups, 0
        return {"staleness": sum(ages) / max(1, len(ages)), "dropped_groups": float(dropped)}
