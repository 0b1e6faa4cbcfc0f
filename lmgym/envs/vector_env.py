"""Many episodes at once: each advances when its own action is ready, without auto-reset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial

import numpy as np

from lmgym.distributed.processes import processes
from lmgym.envs.env import Env
from lmgym.envs.step_threads import StepThreads
from lmgym.envs.time_limit import time_limit
from lmgym.errors import UserError, described
from lmgym.types import Action, State, Step

CHECK_SECONDS = 0.5
"""How often concurrent steps are checked for their time limit."""


class VectorEnv:
    """Clones of one environment, one per live episode; it also stores the token ids, which environments never see."""

    def __init__(self, env: Env, is_divided: bool = True) -> None:
        """Of several processes, each steps its share of the groups if it `is_divided`, else the first one all."""
        inner = env.unwrapped  # `gymnasium.make` wraps
        if not isinstance(inner, Env):
            raise UserError(f"{type(inner).__name__} is not a text environment: it must extend lmgym.Env.")
        self.env = inner
        self.is_divided = is_divided
        self._live: dict[int, tuple[Env, State]] = {}
        """Episodes that wait for an action, by their number."""
        self._stepping: dict[Future[Step], tuple[Env, State, Action]] = {}
        """Steps that an environment takes its time for."""
        self._held: dict[int, tuple[Env, State, Action]] = {}
        """Actions, by episode, that wait for those of the other players."""
        self._threads = StepThreads[Step](inner.concurrency) if inner.concurrency > 1 else None

    def reset(self, indices: Sequence[int], group_size: int = 1, seed: int = 0, first_group: int = 0) -> list[State]:
        """Starts `group_size` episodes on each problem; episodes of one problem form a group.

        The number of processes changes neither the numbers nor the seeds of groups and episodes.
        """
        self._live, self._stepping, self._held = {}, {}, {}
        self._start(indices, group_size, seed, first_group)
        return self.states

    def leave_out(self, episodes: Iterable[int]) -> None:
        """Ends episodes that have just been started, by their numbers, without a step."""
        for episode in episodes:
            self._live.pop(episode, None)

    @property
    def states(self) -> list[State]:
        """The states of all episodes that wait for an action."""
        return [state for _, state in self._live.values()]

    def step(self, actions: Sequence[Action]) -> list[Step]:
        """Applies each action to its own episode; of a concurrent environment, returns the steps that are ready.

        An environment that raises or overruns `max_step_seconds` ends only the episode: its `info` has the `error`.
        """
        applied = self._complete_turns([(*self._live.pop(action.episode), action) for action in actions])
        if self._threads is None:
            return [self._apply(env, _guarded(env, state, action)) for env, state, action in applied]
        self._stepping |= {self._threads.submit(partial(_step, *each)): each for each in applied}
        steps: list[Step] = []
        while self._stepping and not (steps and self._live):
            # Waits only if no other episode has anything to do.
            timeout = 0 if self._live else CHECK_SECONDS
            ready, _ = wait(self._stepping, timeout=timeout, return_when=FIRST_COMPLETED)
            steps += [self._apply(self._stepping[future][0], self._result(future)) for future in ready]
            self._threads.expire(self.env.max_step_seconds)
            if self._live:
                break
        return sorted(steps, key=lambda step: step.state.episode)

    def _complete_turns(self, given: Sequence[tuple[Env, State, Action]]) -> list[tuple[Env, State, Action]]:
        """The actions that can be applied: of a game for several players, those of matches in which all have moved."""
        players = self.env.players
        if players == 1:
            return list(given)
        self._held |= {action.episode: (env, state, action) for env, state, action in given}
        waiting = {episode // players for episode in self._live}
        ready = [episode for episode in self._held if episode // players not in waiting]
        moved = {episode: self._held.pop(episode) for episode in sorted(ready)}
        for episode, (env, _, _) in moved.items():
            match = range(episode // players * players, (episode // players + 1) * players)
            env.others = tuple(moved[other][2] for other in match if other in moved and other != episode)
        return list(moved.values())

    def _result(self, future: Future[Step]) -> Step:
        """The step, or one that ends the episode if the environment failed."""
        env, state, action = self._stepping.pop(future)
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return future.result() if error is None else _failed(env, state, action, error)

    def _start(self, indices: Sequence[int], group_size: int, seed: int, first_group: int) -> None:
        if group_size % self.env.players:
            raise UserError(
                f"{self.env.players} episodes of a group play each other: --group_size is {group_size}, and must be a "
                f"multiple of {self.env.players}."
            )
        groups = list(enumerate(indices, start=first_group))
        own = processes().share(groups) if self.is_divided else groups if processes().is_first else []
        for group, index in own:
            for episode in range(group * group_size, (group + 1) * group_size):
                env = self.env.clone()
                episode_seed = int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])
                state = _first_state(env, episode_seed, index)
                self._live[episode] = (env, replace(state, episode=episode, group=group, seed=episode_seed))

    def _apply(self, env: Env, step: Step) -> Step:
        """Puts an episode that has not ended back among those that wait for an action."""
        if not step.done:
            self._live[step.state.episode] = (env, step.next_state)
        return step


def _first_state(env: Env, seed: int, index: int) -> State:
    try:
        return env.reset(seed=seed, options={"index": index})[0]
    except UserError:
        raise
    except Exception as error:  # of any kind: environments are code of others
        name = type(env).__name__
        raise UserError(f"{name} cannot start an episode of problem {index}: {described(error)}.") from error


def _guarded(env: Env, state: State, action: Action) -> Step:
    """The transition of one episode, within its time limit."""
    try:
        with time_limit(env.max_step_seconds):
            return _step(env, state, action)
    except Exception as error:  # of any kind: environments, rewards and tools are code of others
        return _failed(env, state, action, error)


def _step(env: Env, state: State, action: Action) -> Step:
    """The transition of one episode.

    A model that has no tokens left, in its context or for the episode, writes nothing: the episode is truncated.
    """
    reached, reward, terminated, truncated, info = env.step(action)
    has_nothing_left = action.finish == "length" and bool(action.prompt_ids) and not action.token_ids
    truncated = truncated or (has_nothing_left and not terminated)
    return Step(state, action, reward, terminated, truncated, info, _continued(reached, state, action))


def _failed(env: Env, state: State, action: Action, error: Exception) -> Step:
    """The end of an episode whose environment failed."""
    info = {**env.episode_info, "error": described(error), "final": True}
    reached = _continued(state.after(action.text), state, action)
    return Step(state, action, 0.0, False, True, info, reached)


def _continued(reached: State, state: State, action: Action) -> State:
    """The state that was reached, with the token ids and numbers that environments do not keep."""
    return replace(
        reached,
        tokens=action.prompt_ids + action.token_ids,
        written=state.written + len(action.token_ids),
        episode=state.episode,
        group=state.group,
        seed=state.seed,
    )
