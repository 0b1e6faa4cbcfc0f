"""Many episodes at once: each advances when its own action is ready, without auto-reset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.types import Action, State, Step


class VectorEnv:
    """Clones of one environment, one per live episode; it also stores the token ids, which environments never see."""

    def __init__(self, env: Env) -> None:
        inner = env.unwrapped  # `gymnasium.make` wraps
        if not isinstance(inner, Env):
            raise UserError(f"{type(inner).__name__} is not a text environment: it must extend lmgym.Env.")
        self.env = inner
        self._live: dict[int, tuple[Env, State]] = {}

    def reset(self, indices: Sequence[int], group_size: int = 1, seed: int = 0, first_group: int = 0) -> list[State]:
        """Starts `group_size` episodes on each problem; episodes of one problem form a group."""
        self._live = {}
        for group, index in enumerate(indices, start=first_group):
            for episode in range(group * group_size, (group + 1) * group_size):
                env = self.env.clone()
                episode_seed = int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])
                state, _info = env.reset(seed=episode_seed, options={"index": index})
                self._live[episode] = (env, replace(state, episode=episode, group=group, seed=episode_seed))
        return self.states

    @property
    def states(self) -> list[State]:
        """The states of all episodes that have not ended."""
        return [state for _, state in self._live.values()]

    def step(self, actions: Sequence[Action]) -> list[Step]:
        """Applies each action to its own episode."""
        return [self._step(action) for action in actions]

    def _step(self, action: Action) -> Step:
        env, state = self._live.pop(action.episode)
        reached, reward, terminated, truncated, info = env.step(action)
        next_state = replace(
            reached,
            tokens=action.prompt_ids + action.token_ids,
            written=state.written + len(action.token_ids),
            episode=state.episode,
            group=state.group,
            seed=state.seed,
        )
        if not (terminated or truncated):
            self._live[action.episode] = (env, next_state)
        return Step(state, action, reward, terminated, truncated, info, next_state)
