"""Episodes that continue while the policy learns: an iteration takes the groups that are complete, not those it began.

    iteration 0   reset: problems of iterations 0 … N   ──► the first groups that are complete ──► update ┐ the others
    iteration 1   reset: problems of iteration 1 + N    ──► the next groups that are complete ──► update ┘ continue

N is the staleness: a group with a token that was sampled more than N iterations ago is dropped, and its problem is
sampled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmgym.envs.env import Env
from lmgym.envs.vector_env import VectorEnv
from lmgym.types import Action, State, Step


class PipelinedVectorEnv(VectorEnv):
    """Keeps unfinished episodes over a reset, and returns the steps of a group together, when it is complete."""

    def __init__(self, env: Env, groups: int, oldest_version: Callable[[], int]) -> None:
        """An iteration takes `groups` groups; those with a token of a version before `oldest_version()` are dropped."""
        super().__init__(env, is_divided=False)
        self.groups = groups
        self.oldest_version = oldest_version
        self.dropped_groups = 0
        self._released_groups = 0
        """Groups that this iteration has got."""
        self._complete: list[int] = []
        """Groups that are complete and of which the steps have not been returned yet."""
        self._group_size = 1
        self._seed = 0
        self._problems: list[int] = []
        """The problem of every group that was ever started."""
        self._steps: dict[int, list[Step]] = {}
        """The steps of groups that have not been returned."""
        self._left: dict[int, int] = {}
        """How many episodes of such a group have not ended."""

    def begin_iteration(self) -> list[Step]:
        """From now on groups are for the next iteration; returns the steps of those that are complete already."""
        self._released_groups = 0
        return self._release()

    def reset(self, indices: Sequence[int], group_size: int = 1, seed: int = 0, first_group: int = 0) -> list[State]:
        """Starts further groups besides those that are live."""
        self._group_size, self._seed = group_size, seed
        self._start_groups(indices)
        return self.states

    @property
    def states(self) -> list[State]:
        """The states that wait for an action; none once the iteration has its groups."""
        return [] if self._released_groups >= self.groups else super().states

    def step(self, actions: Sequence[Action]) -> list[Step]:
        """Applies the actions, and returns the steps of complete groups, of as many as the iteration still needs."""
        for step in super().step(actions):
            group = step.state.group
            self._steps[group].append(step)
            self._left[group] -= step.done
            if not self._left[group]:
                self._complete.append(group)
        return self._release()

    def _start_groups(self, indices: Sequence[int]) -> None:
        first = len(self._problems)
        self._problems += indices
        for group in range(first, len(self._problems)):
            self._steps[group], self._left[group] = [], self._group_size
        self._start(indices, self._group_size, self._seed, first)

    def _release(self) -> list[Step]:
        """The steps of complete groups; one that is too old is dropped, and its problem started again."""
        released: list[Step] = []
        while self._complete and self._released_groups < self.groups:
            group = self._complete.pop(0)
            steps = self._steps.pop(group)
            del self._left[group]
            if min(step.action.policy_version for step in steps) < self.oldest_version():
                self.dropped_groups += 1
                self._start_groups([self._problems[group]])
            else:
                self._released_groups += 1
                released += steps
        return released
