"""Evaluation: held-out problems, the rollouts of training, confidence intervals and a contamination check."""

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
from lmgym.evaluation.grading import accuracy_by_env, failures, is_correct, is_correct_leniently, is_parsed
from lmgym.evaluation.kept_episodes import KeptEpisodes
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.evaluation.statistics import Mean, Proportion, mcnemar, mean_interval, paired_permutation, pass_at_k, wilson
from lmgym.policies.policy import Policy
from lmgym.rewards.final_answer import parse_number
from lmgym.types import Episode


@dataclass(frozen=True)
class Evaluation:
    """The results of a policy on a set of problems."""

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
    """Number of these problems that were also trained on."""
    solved: tuple[float, ...] = field(repr=False)
    """For each problem the share of its samples that are strictly correct."""
    rewards: tuple[float, ...] = field(repr=False)
    """For each problem the mean reward of its samples."""
    episodes: tuple[Episode, ...] = field(repr=False)

    @property
    def mean_reward(self) -> float:
        """The mean over problems."""
        return self.reward.value

    @property
    def is_graded(self) -> bool:
        """Whether the environment grades answers as correct or wrong; if not, only the reward measures them."""
        return any({"correct", "parsed"} & episode.info.keys() for episode in self.episodes)

    @property
    def strict_by_env(self) -> dict[str, float]:
        """For a mixture of environments, the accuracy in each."""
        return accuracy_by_env(self.episodes)

    @property
    def failed(self) -> int:
        """Number of episodes in which the environment, a reward or a tool failed; they count as wrong."""
        return sum(episode.error is not None for episode in self.episodes)

    @property
    def has_own_reward(self) -> bool:
        """Whether the reward differs from strict correctness."""
        return self.rewards != self.solved

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprints of the problems, in order."""
        return [fingerprint(episode.problem) for episode in self.episodes[:: self.samples]]

    @property
    def solved_leniently(self) -> list[float]:
        """For each problem the share of its samples whose answer is right in any form."""
        return [float(np.mean([is_correct_leniently(episode) for episode in group])) for group in self.by_problem]

    @property
    def parsed(self) -> list[float]:
        """For each problem the share of its samples that state an answer in the form that was asked for."""
        return [float(np.mean([is_parsed(episode) for episode in group])) for group in self.by_problem]

    @property
    def by_problem(self) -> list[Sequence[Episode]]:
        """The episodes of each problem."""
        return _by_problem(self.episodes, self.samples)

    def metrics(self) -> dict[str, float]:
        """The metrics to track; those of a contaminated evaluation have the prefix `contaminated_`."""
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
        values |= {f"strict/{name}": value for name, value in self.strict_by_env.items()}
        if self.failed:
            values["failed"] = float(self.failed)
        if self.samples > 1:
            values |= {f"pass@{self.samples}": self.pass_at_k.value, f"maj@{self.samples}": self.majority_at_k.value}
        return {f"{mark}eval/{name}": value for name, value in values.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything but the episodes, as JSON data."""
        return {
            **self.metrics(),
            "samples": self.samples,
            "temperature": self.temperature,
            "contaminated_problems": self.contaminated,
            "solved": list(self.solved),
            "solved_leniently": self.solved_leniently,
            "parsed": self.parsed,
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
    progress: EvaluationProgress | None = None,
    kept: KeptEpisodes | None = None,
) -> Evaluation:
    """Rolls out every problem `samples` times, greedily by default, and grades; `trained_on` holds fingerprints."""
    if not indices or samples < 1:
        raise UserError(f"nothing to evaluate: {len(indices)} problems and {samples} samples were requested.")
    episodes = play(policy, env, indices, samples, temperature, seed, progress, kept)
    return summarise(episodes, samples, temperature, trained_on)


def play(
    policy: Policy,
    env: Env,
    indices: Sequence[int],
    samples: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    progress: EvaluationProgress | None = None,
    kept: KeptEpisodes | None = None,
) -> list[Episode]:
    """Rolls out every problem `samples` times; the episodes are in the order of the problems.

    Those that an earlier attempt has `kept` are not sampled again, and new ones are kept as they end.
    """
    envs, buffer = VectorEnv(env, not policy.serves_all_processes), Buffer()
    envs.reset(indices, samples, seed)
    earlier = [] if kept is None else kept.load()
    envs.leave_out(episode.steps[0].state.episode for episode in earlier)
    buffer.extend(earlier)
    buffer.path = None if kept is None else kept.path
    if progress is not None:
        progress.begin(len(envs.states), earlier)
    while states := envs.states:
        actions = policy.next_actions(states, temperature)
        steps = envs.step(actions)
        finished = buffer.add(steps)
        if progress is not None:
            progress.add(finished)
    buffer.path = None  # each process keeps its own
    buffer.gather(0)
    episodes = buffer.of_iteration(0)
    failed = [episode for episode in episodes if episode.error is not None]
    if 2 * len(failed) > len(episodes):
        raise UserError(failures(failed, len(episodes)))
    return episodes


def summarise(
    episodes: Sequence[Episode], samples: int, temperature: float, trained_on: Iterable[Fingerprint] = ()
) -> Evaluation:
    """Grades episodes in the order of their problems, `samples` of each problem.

    Samples of one problem are not independent, so the sample size of all intervals is the number of problems.
    """
    by_problem = _by_problem(episodes, samples)
    solved = [float(np.mean([is_correct(episode) for episode in group])) for group in by_problem]
    rewards = [float(np.mean([episode.reward for episode in group])) for group in by_problem]
    right = [sum(is_correct(episode) for episode in group) for group in by_problem]
    count = len(by_problem)
    return Evaluation(
        problems=count,
        samples=samples,
        temperature=temperature,
        strict=wilson(float(np.mean(solved)), count),
        lenient=wilson(float(np.mean([is_correct_leniently(episode) for episode in episodes])), count),
        unparsed=float(np.mean([not is_parsed(episode) for episode in episodes])),
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


def paired_p_value(first: Evaluation, second: Evaluation) -> float:
    """The two-sided p-value of the difference between two evaluations of the same problems.

    McNemar's test on the solved problems, or without grades a permutation test on the rewards.
    """
    if not (first.is_graded and second.is_graded):
        return reward_p_value(first, second)
    return _mcnemar(first.solved, second.solved)


def lenient_p_value(first: Evaluation, second: Evaluation) -> float:
    """The two-sided p-value of the difference in lenient accuracy, by McNemar's test."""
    return _mcnemar(first.solved_leniently, second.solved_leniently)


def reward_p_value(first: Evaluation, second: Evaluation) -> float:
    """The two-sided p-value of the difference in mean reward."""
    return paired_permutation(first.rewards, second.rewards)


def _by_problem(episodes: Sequence[Episode], samples: int) -> list[Sequence[Episode]]:
    return [episodes[start : start + samples] for start in range(0, len(episodes), samples)]


def _mcnemar(first: Sequence[float], second: Sequence[float]) -> float:
    pairs = list(zip(first, second, strict=True))
    return mcnemar(sum(a > b for a, b in pairs), sum(b > a for a, b in pairs))


def _majority_is_right(group: Sequence[Episode]) -> bool:
    """Whether the most frequent answer is correct; ties go to the first one, and missing answers do not count."""
    ballots = [_vote(episode) for episode in group]
    votes = Counter(ballot for ballot in ballots if ballot is not None)
    if not votes:
        return len(group) == 1 and is_correct(group[0])
    winner = votes.most_common(1)[0][0]
    return is_correct(group[ballots.index(winner)])


def _vote(episode: Episode) -> Fraction | str | None:
    """The answer to count; numbers are compared by value, so that 1,000 equals 1000."""
    answer = episode.info.get("answer")
    number = parse_number(answer) if isinstance(answer, str) else None
    return answer if number is None else number
