"""Evaluation that can be believed: held-out problems, the same rollouts as training, intervals, contamination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from lmgym.buffer import Buffer
from lmgym.envs.env import Env
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.evaluation.contamination import Fingerprint, are_copies, fingerprint
from lmgym.evaluation.statistics import Mean, Proportion, mcnemar, mean_interval, paired_permutation, pass_at_k, wilson
from lmgym.policies.policy import Policy
from lmgym.rewards.final_answer import parse_number
from lmgym.types import Episode


@dataclass(frozen=True)
class Evaluation:
    """How well a policy does on some problems."""

    problems: int
    samples: int
    temperature: float
    strict: Proportion
    lenient: Proportion
    unparsed: float
    cut_off: float
    mean_length: float
    reward: Mean
    pass_at_k: Proportion
    majority_at_k: Proportion
    contaminated: int
    """How many of the problems were also trained on."""
    solved: tuple[float, ...] = field(repr=False)
    """For each problem the share of its samples that are strictly right."""
    rewards: tuple[float, ...] = field(repr=False)
    """For each problem the mean reward of its samples."""
    episodes: tuple[Episode, ...] = field(repr=False)

    @property
    def mean_reward(self) -> float:
        """The mean over problems."""
        return self.reward.value

    @property
    def is_graded(self) -> bool:
        """Whether the environment calls answers right or wrong; else only the reward says how good they are."""
        return any({"correct", "parsed"} & episode.info.keys() for episode in self.episodes)

    @property
    def has_own_reward(self) -> bool:
        """Whether the reward says something else than right or wrong."""
        return self.rewards != self.solved

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """Which problems were asked, in order."""
        return [fingerprint(episode.problem) for episode in self.episodes[:: self.samples]]

    def metrics(self) -> dict[str, float]:
        """The numbers to track; those of a contaminated evaluation carry the mark in their names."""
        mark = "contaminated_" if self.contaminated else ""
        values = {
            "strict": self.strict.value,
            "strict_low": self.strict.low,
            "strict_high": self.strict.high,
            "lenient": self.lenient.value,
            "lenient_low": self.lenient.low,
            "lenient_high": self.lenient.high,
            "unparsed": self.unparsed,
            "cut_off": self.cut_off,
            "mean_length": self.mean_length,
            "mean_reward": self.reward.value,
            "mean_reward_low": self.reward.low,
            "mean_reward_high": self.reward.high,
            "graded": float(self.is_graded),
            "problems": float(self.problems),
        }
        if self.samples > 1:
            values |= {f"pass@{self.samples}": self.pass_at_k.value, f"maj@{self.samples}": self.majority_at_k.value}
        return {f"{mark}eval/{name}": value for name, value in values.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything but the episodes, as plain data."""
        return {
            **self.metrics(),
            "samples": self.samples,
            "temperature": self.temperature,
            "contaminated_problems": self.contaminated,
            "solved": list(self.solved),
            "rewards": list(self.rewards),
        }


def evaluate(
    policy: Policy,
    env: Env,
    indices: Sequence[int],
    *,
    samples: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    trained_on: Iterable[Fingerprint] = (),
) -> Evaluation:
    """Plays every problem `samples` times, greedily unless told, and grades; `trained_on` holds fingerprints."""
    if not indices or samples < 1:
        raise UserError(f"nothing to evaluate: {len(indices)} problems and {samples} samples were asked for.")
    return summarise(play(policy, env, indices, samples, temperature, seed), samples, temperature, trained_on)


def play(
    policy: Policy, env: Env, indices: Sequence[int], samples: int = 1, temperature: float | None = None, seed: int = 0
) -> list[Episode]:
    """Plays every problem `samples` times; the episodes stand in the order of the problems."""
    envs, buffer = VectorEnv(env), Buffer()
    states = envs.reset(indices, samples, seed)
    while states:
        actions = policy.next_actions(states, temperature)
        steps = envs.step(actions)
        buffer.add(steps)
        states = envs.states
    return buffer.of_iteration(0)


def summarise(
    episodes: Sequence[Episode], samples: int, temperature: float, trained_on: Iterable[Fingerprint] = ()
) -> Evaluation:
    """Grades episodes that stand in order, `samples` of each problem.

    Samples of one problem are not independent, so all intervals count problems.
    """
    by_problem = [episodes[start : start + samples] for start in range(0, len(episodes), samples)]
    solved = [float(np.mean([is_correct(episode) for episode in group])) for group in by_problem]
    rewards = [float(np.mean([episode.reward for episode in group])) for group in by_problem]
    right = [sum(is_correct(episode) for episode in group) for group in by_problem]
    count = len(by_problem)
    return Evaluation(
        problems=count,
        samples=samples,
        temperature=temperature,
        strict=wilson(float(np.mean(solved)), count),
        lenient=wilson(
            float(np.mean([episode.info.get("lenient", is_correct(episode)) for episode in episodes])), count
        ),
        unparsed=float(np.mean([not episode.info.get("parsed", True) for episode in episodes])),
        cut_off=float(np.mean([episode.cut_off for episode in episodes])),
        mean_length=float(np.mean([episode.length for episode in episodes])),
        reward=mean_interval(rewards),
        pass_at_k=wilson(float(np.mean([pass_at_k(samples, hits, samples) for hits in right])), count),
        majority_at_k=wilson(float(np.mean([_majority_is_right(group) for group in by_problem])), count),
        contaminated=sum(are_copies([group[0].problem for group in by_problem], trained_on)),
        solved=tuple(solved),
        rewards=tuple(rewards),
        episodes=tuple(episodes),
    )


def is_correct(episode: Episode) -> bool:
    """Whether the environment calls it correct; an environment that does not grade is taken at its reward."""
    return bool(episode.info.get("correct", episode.reward >= 1))


def paired_p_value(first: Evaluation, second: Evaluation) -> float:
    """The chance of so large a difference on the same problems if both were equally good.

    McNemar's test on what was solved, and where nothing is called right or wrong a permutation test on the rewards.
    """
    if not (first.is_graded and second.is_graded):
        return reward_p_value(first, second)
    pairs = list(zip(first.solved, second.solved, strict=True))
    return mcnemar(sum(a > b for a, b in pairs), sum(b > a for a, b in pairs))


def reward_p_value(first: Evaluation, second: Evaluation) -> float:
    """The same for the mean reward."""
    return paired_permutation(first.rewards, second.rewards)


def _majority_is_right(group: Sequence[Episode]) -> bool:
    """Whether the answer given most often is right; the first given wins a tie, and silence has no vote."""
    ballots = [_vote(episode) for episode in group]
    votes = Counter(ballot for ballot in ballots if ballot is not None)
    if not votes:
        return len(group) == 1 and is_correct(group[0])
    winner = votes.most_common(1)[0][0]
    return is_correct(group[ballots.index(winner)])


def _vote(episode: Episode) -> Fraction | str | None:
    """The answer to count: numbers by their value, so that 1,000 and 1000 are one."""
    answer = episode.info.get("answer")
    number = parse_number(answer) if isinstance(answer, str) else None
    return answer if number is None else number
