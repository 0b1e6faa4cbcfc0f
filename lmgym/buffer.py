"""Episodes in memory and on disk: readable JSON lines, appended whole, never pickled."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.distributed.processes import processes
from lmgym.errors import UserError, described
from lmgym.rewards.reward import checked_reward
from lmgym.types import Action, Episode, Problem, State, Step

OLD_END_MARKER = "<|end|>"
"""The marker of an ended turn at the end of a text, in rows of older versions."""


class Buffer:
    """Collects steps into episodes, keeps the newest groups in memory, and writes each episode to `path` as it ends.

    A group is identified by its iteration and number. When there are more than `capacity` episodes, whole groups are
    evicted, the oldest first; a single group may be larger than the capacity.
    """

    def __init__(self, capacity: int | None = None, path: Path | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise UserError(f"a buffer cannot have capacity {capacity}; it must be at least 1.")
        self.capacity = capacity
        self.episodes: deque[Episode] = deque()
        self.path = path
        self.writes_later = False
        """Whether episodes are written by `replace`, once a judge has rewarded them, and not when they end."""
        self._evicted: set[tuple[int, int]] = set()
        """Groups of the newest iteration that were evicted before all of their episodes had ended."""
        self._open: dict[int, list[Step]] = {}

    def __len__(self) -> int:
        return len(self.episodes)

    def add(self, steps: Sequence[Step], iteration: int = 0) -> list[Episode]:
        """Appends each step to its episode; stores the episodes that end, writes them to disk and returns them."""
        finished: list[Episode] = []
        for step in steps:
            history = self._open.setdefault(step.state.episode, [])
            history.append(step)
            if step.done:
                finished.append(Episode(tuple(self._open.pop(step.state.episode)), iteration))
        self.extend(finished)
        return finished

    def extend(self, episodes: Iterable[Episode]) -> None:
        """Stores finished episodes and writes them to disk."""
        episodes = list(episodes)
        for episode in episodes:
            self._evicted = {key for key in self._evicted if key[0] >= episode.iteration}
            if group_key(episode) not in self._evicted:
                self.episodes.append(episode)
        self.evict()
        if self.path is not None and episodes and not self.writes_later:
            append_episodes(self.path, episodes)

    def replace(self, episodes: Sequence[Episode]) -> None:
        """Puts these in the place of the stored episodes with their iterations and numbers, and writes them to disk."""
        changed = {(episode.iteration, episode.steps[0].state.episode): episode for episode in episodes}
        stored = [
            changed.get((episode.iteration, episode.steps[0].state.episode), episode) for episode in self.episodes
        ]
        self.episodes = deque(stored)
        self._write_later(episode for episode in episodes if episode.error is None)

    def evict(self) -> None:
        """Removes the oldest groups until the capacity is met."""
        if self.capacity is None or len(self.episodes) <= self.capacity:
            return
        sizes = Counter(map(group_key, self.episodes))
        kept, evicted = len(self.episodes), set()
        for key in sorted(sizes)[:-1]:
            if kept > self.capacity:
                kept -= sizes[key]
                evicted.add(key)
        self._evicted |= evicted
        self.episodes = deque(episode for episode in self.episodes if group_key(episode) not in evicted)

    def gather(self, iteration: int) -> None:
        """Adds the episodes of this iteration that other processes have collected."""
        own = self.of_iteration(iteration)
        known = {episode.steps[0].state.episode for episode in own}
        self.extend(episode for episode in processes().gather(own) if episode.steps[0].state.episode not in known)

    def remove_failed(self, iteration: int) -> list[Episode]:
        """Removes the episodes of one iteration in which an environment, a reward, a tool or a judge failed.

        They stay on disk.
        """
        failed = [episode for episode in self.of_iteration(iteration) if episode.error is not None]
        removed = set(map(id, failed))
        self.episodes = deque(episode for episode in self.episodes if id(episode) not in removed)
        self._write_later(failed)
        return failed

    def _write_later(self, episodes: Iterable[Episode]) -> None:
        """Writes episodes to disk that were not written when they ended."""
        if self.path is not None and self.writes_later:
            append_episodes(self.path, episodes)

    def drop_unfinished(self) -> None:
        """Discards episodes that were interrupted."""
        self._open = {}

    def of_iteration(self, iteration: int) -> list[Episode]:
        """The episodes of one iteration, ordered by episode number and not by when they ended."""
        found = [episode for episode in self.episodes if episode.iteration == iteration]
        return sorted(found, key=lambda episode: episode.steps[0].state.episode)

    def sample(self, count: int, random: np.random.Generator, *, before: int | None = None) -> list[Episode]:
        """Samples whole groups uniformly, without replacement, until they hold `count` episodes.

        With `before`, only groups of earlier iterations than that are sampled.
        """
        groups: dict[tuple[int, int], list[Episode]] = {}
        for episode in self.episodes:
            if before is None or episode.iteration < before:
                groups.setdefault(group_key(episode), []).append(episode)
        keys = sorted(groups)  # and not by when they ended
        drawn: list[Episode] = []
        for index in random.permutation(len(keys)):
            if len(drawn) >= count:
                break
            drawn += groups[keys[index]]
        return drawn

    def rescore(self, reward: Callable[[Problem, str], float]) -> None:
        """Replaces the rewards of every episode by one at its end, a function of the problem and the episode's text.

        An episode for which the function raises has its error.
        """
        rescored = []
        for episode in self.episodes:
            steps = [replace(step, reward=0.0) for step in episode.steps]
            info = {name: value for name, value in steps[-1].info.items() if name != "rewards"}  # the old one's parts
            try:
                value = checked_reward(reward(episode.problem, episode.text), reward, episode.problem)
                steps[-1] = replace(steps[-1], reward=value, info=info)
            except Exception as error:  # of any kind: rewards are code of others
                steps[-1] = replace(steps[-1], info={**info, "error": described(error)})
            rescored.append(replace(episode, steps=tuple(steps)))
        self.episodes = deque(rescored)

    def save(self, path: Path) -> None:
        """Writes the stored episodes to a new file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.unlink(missing_ok=True)
        try:
            append_episodes(temporary, self.episodes)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, capacity: int | None = None) -> Buffer:
        """Loads a file; a line that was cut short by a crash is skipped."""
        buffer = cls(capacity)
        buffer.extend(read_episodes(path))
        return buffer


def group_key(episode: Episode) -> tuple[int, int]:
    """The key of a group; group numbers alone repeat, because they restart in every iteration."""
    return episode.iteration, episode.group


def append_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Appends one line per episode; a last line that a crash cut short is terminated first."""
    torn = False
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" if torn else "")
        for episode in episodes:
            file.write(json.dumps(episode_to_row(episode), ensure_ascii=False) + "\n")


def read_episodes(path: Path) -> Iterator[Episode]:
    """Reads episodes one by one; only a line that was cut short by a crash is skipped."""
    try:
        with path.open("rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise UserError(f"the buffer {path} cannot be read ({error.strerror}); give an episodes.jsonl.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut short by a crash
        try:
            yield row_to_episode(row)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{path}, line {number}: this is not an episode ({error!r} is missing or wrong).") from None


def episode_to_row(episode: Episode) -> dict[str, Any]:
    """The episode as JSON data; each step stores only the prompt ids that follow the previous step.

    A log-prob has the fewest digits that parse to the same float32, which is the precision of the learner.
    """
    first = episode.steps[0].state
    steps = []
    seen = 0
    for step in episode.steps:
        action = step.action
        steps.append(
            {
                "text": action.text,
                "read_ids": action.prompt_ids[seen:],
                "token_ids": action.token_ids,
                "logprobs": [float(str(value)) for value in np.array(action.logprobs, dtype=np.float32)],
                "mask": action.mask,
                "finish": action.finish,
                "policy_version": action.policy_version,
                **({"versions": action.versions} if action.versions else {}),
                "reward": step.reward,
                "terminated": step.terminated,
                "truncated": step.truncated,
                "info": step.info,
                "reply": step.next_state.reply,
                **({"role": "tool"} if step.next_state.messages[-1]["role"] == "tool" else {}),
            }
        )
        seen = len(action.prompt_ids) + len(action.token_ids)
    return {
        "iteration": episode.iteration,
        "episode": first.episode,
        "group": first.group,
        "seed": first.seed,
        "reward": episode.reward,
        "problem": asdict(episode.problem),
        "opening": first.messages,
        "steps": steps,
    }


def row_to_episode(row: dict[str, Any]) -> Episode:
    """The inverse of `episode_to_row`; it also rebuilds the conversations."""
    state = State(
        Problem(**row["problem"]),
        tuple(row["opening"]),
        episode=row["episode"],
        group=row["group"],
        seed=row["seed"],
    )
    steps: list[Step] = []
    for part in map(_current_format, row["steps"]):
        action = Action(
            text=part["text"],
            prompt_ids=state.tokens + tuple(part["read_ids"]),
            token_ids=tuple(part["token_ids"]),
            logprobs=tuple(np.array(part["logprobs"], dtype=np.float32).tolist()),
            mask=tuple(part["mask"]),
            finish=part["finish"],
            policy_version=part["policy_version"],
            versions=tuple(part.get("versions", ())),
            episode=state.episode,
        )
        following = replace(
            state.after(action.text, part["reply"], part.get("role", "user")),
            tokens=action.prompt_ids + action.token_ids,
            written=state.written + len(action.token_ids),
        )
        steps.append(
            Step(state, action, part["reward"], part["terminated"], part["truncated"], part["info"], following)
        )
        state = following
    if not steps:
        raise KeyError("steps")
    return Episode(tuple(steps), row["iteration"])


def _current_format(step: dict[str, Any]) -> dict[str, Any]:
    """A step in the current format: older rows have a `finish_reason`, and a marker in the text of an ended turn."""
    if "finish_reason" not in step:
        return step
    text = step["text"].removesuffix(OLD_END_MARKER)
    ended = text != step["text"] and step["finish_reason"] == "stop"
    return {**step, "text": text, "finish": "eos" if ended else step["finish_reason"]}
