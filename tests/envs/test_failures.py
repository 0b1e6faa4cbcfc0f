"""An environment, reward or tool that raises, hangs or returns nonsense costs its own episode, never the run."""

from __future__ import annotations

import json
import re
import signal
import threading
import time

import pytest
from conftest import tiny_model

import lmgym
from lmgym import Problem, UserError
from lmgym.algorithms.registry import find_algorithm
from lmgym.buffer import Buffer
from lmgym.commands.cli import main
from lmgym.envs.math_env import MathEnv
from lmgym.envs.mixture import Mixture
from lmgym.envs.time_limit import TimeLimitError, time_limit
from lmgym.envs.vector_env import VectorEnv
from lmgym.evaluation.evaluation import evaluate, play
from lmgym.policies.policy_for import policy_for
from lmgym.policies.scripted_policy import ScriptedPolicy
from lmgym.rewards.latex_checker import _pool, compare_latex
from lmgym.types import Action

PROBLEMS = [Problem(f"p/{n}", f"{n}?", str(n)) for n in range(8)]


def spins():
    while True:
        pass


FAULTS = {
    "raise": lambda: 1 / 0,
    "nan": lambda: float("nan"),
    "text": lambda: "good",
    "sleep": lambda: time.sleep(600),
    "loop": spins,
    "regex": lambda: bool(re.match(r"(a+)+$", "a" * 40 + "b")),
}


def faulty(problem, text):
    """A reward that fails in the way that the action names."""
    return FAULTS[text]() if text in FAULTS else 1.0


class Faulty(MathEnv):
    max_step_seconds = 0.5

    def __init__(self):
        super().__init__(PROBLEMS, stepwise=False, reward=faulty)


class Concurrent(Faulty):
    concurrency = 2


@pytest.mark.parametrize("kind", [Faulty, Concurrent])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise", "ZeroDivisionError: division by zero"),
        ("nan", "faulty returned the reward 'nan'"),
        ("text", "faulty returned the reward 'good'"),
        ("sleep", "took longer than 0.5 s"),
    ],
)
def test_a_fault_ends_only_its_episode(kind, fault, said):
    envs = VectorEnv(kind())
    envs.reset(range(6))
    texts = ["fine", fault, "fine", fault, "fine", "fine"]
    steps = []
    states, actions = envs.states, [Action(text, episode=number) for number, text in enumerate(texts)]
    steps += envs.step(actions)
    while len(steps) < len(states):
        steps += envs.step([])
    steps.sort(key=lambda step: step.state.episode)
    assert [step.reward for step in steps] == [1, 0, 1, 0, 1, 1]
    assert all(step.done for step in steps)
    failed = [step for step in steps if "error" in step.info]
    assert [step.state.episode for step in failed] == [1, 3]
    assert all(step.truncated and said in step.info["error"] for step in failed)
    assert envs.states == []


@pytest.mark.parametrize("fault", ["loop", "regex"])
def test_what_computes_without_end_is_interrupted(fault):
    envs = VectorEnv(Faulty())
    envs.reset([0])
    (step,) = envs.step([Action(fault, episode=0)])
    assert "took longer" in step.info["error"]


def test_a_time_limit_interrupts_code_that_catches_everything_and_leaves_nothing_behind():
    started = time.monotonic()
    with pytest.raises(TimeLimitError):
        _sleeps_whatever_happens()
    with time_limit(0.1):
        pass
    time.sleep(0.2)
    assert time.monotonic() - started < 30
    done = []
    thread = threading.Thread(target=lambda: done.append(_limited_in_a_thread()))
    thread.start()
    thread.join()
    assert done == ["unlimited"]


def _sleeps_whatever_happens():
    with time_limit(0.1):
        try:
            time.sleep(60)
        except Exception:
            time.sleep(60)


def _limited_in_a_thread():
    with time_limit(0.01):
        time.sleep(0.05)
        return "unlimited"


def test_failed_episodes_count_as_wrong_and_are_counted_in_an_evaluation():
    policy = ScriptedPolicy(lambda state: "raise" if state.problem.id == "p/1" else "fine")
    found = evaluate(policy, Faulty(), range(4))
    assert found.failed == 1
    assert found.metrics()["eval/failed"] == 1
    assert found.rewards == (1, 0, 1, 1)
    with pytest.raises(UserError, match=r"4 of 4 episodes failed, the first one \(p/0\) with: ZeroDivisionError"):
        evaluate(ScriptedPolicy(lambda state: "raise"), Faulty(), range(4))


def sometimes(problem, text):
    """A reward that raises for a third of the problems, and depends on the text."""
    if int(problem.answer) % 3 == 0:
        raise RuntimeError("no connection")
    return len(set(text))


def always(problem, text):
    raise RuntimeError("no connection")


def test_a_run_goes_on_without_them_and_says_how_many(model_folder, tmp_path, capsys):
    out = tmp_path / "run"
    (tmp_path / "numbers.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(12))
    )
    flags = [
        "--model",
        str(model_folder),
        "--env",
        str(tmp_path / "numbers.jsonl"),
        "--shots",
        "0",
        "--max_tokens",
        "6",
    ]
    flags += ["--problems_per_iteration", "12", "--group_size", "2", "--eval_problems", "0"]
    main(["train", "rloo", *flags, "--reward", f"{__name__}:sometimes", "--iterations", "2", "--out", str(out)])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["failed_episodes"] for row in rows] == [8, 8]
    assert "8 of 24 episodes failed, the first one" in " ".join(capsys.readouterr().err.split())
    saved = list(Buffer.load(out / "episodes.jsonl").episodes)
    assert len(saved) == 48
    failed = [episode.error for episode in saved if episode.error is not None]
    assert len(failed) == 16
    assert all(error.startswith("RuntimeError: no connection (test_failures.py, line ") for error in failed)
    with pytest.raises(SystemExit):
        main(["train", "rloo", *flags, "--reward", f"{__name__}:always", "--out", str(tmp_path / "other")])
    assert "24 of 24 episodes failed" in " ".join(capsys.readouterr().err.split())


class Forever(lmgym.Env):
    """Replies without end, to a model of few tokens."""

    def respond(self, state, text, finish):
        return lmgym.Response(reply="again")


@pytest.mark.parametrize("limit", [20, 0])
def test_an_episode_that_its_environment_never_ends_is_truncated(limit):
    """By the tokens of the episode, or by the context of the model."""
    env = Forever(PROBLEMS)
    policy = policy_for(env, tiny_model(), policy="chat", shots=0, max_tokens=200, max_episode_tokens=limit)
    (episode,) = play(policy, env, [0], temperature=1.0)
    assert episode.steps[-1].truncated
    assert episode.error is None
    written = [place for place, is_action in enumerate(episode.mask) if is_action]
    assert len(written) == 20 if limit else 1000 < written[-1] < 2048


def test_an_environment_of_ones_own_may_take_longer():
    class Slow(lmgym.Env):
        max_step_seconds = 5.0

        def respond(self, state, text, finish):
            time.sleep(0.6)
            return lmgym.Response(reward=1, terminated=True)

    envs = VectorEnv(Slow(PROBLEMS))
    envs.reset([0])
    assert envs.step([Action("x", episode=0)])[0].reward == 1


def fails_for_some(problem, text):
    """A reward of the problem alone, so that every episode of a problem has the same, and one problem fails."""
    if problem.answer == "2":
        raise RuntimeError("no connection")
    return float(problem.answer)


@pytest.mark.parametrize("kind", ["remax", "reinforce"])
def test_a_failed_problem_does_not_shift_the_greedy_baselines_of_others(kind):
    env = MathEnv(PROBLEMS, stepwise=False, reward=fails_for_some)
    algorithm_class = find_algorithm(kind)
    settings = {"baseline": "greedy"} if kind == "reinforce" else {}
    config = algorithm_class.Config.from_settings(
        {"iterations": 1, "problems_per_iteration": 8, "group_size": 1, "eval_problems": 0, **settings}
    )
    policy = policy_for(env, tiny_model(), policy="chat", shots=0, max_tokens=4)
    seen = []

    class Watched(algorithm_class):  # type: ignore[valid-type,misc]
        def select_for_update(self, batch):
            seen.append(batch.advantages)
            return super().select_for_update(batch)

    algorithm = Watched(policy, env, config)
    algorithm.train()
    assert len(seen[0]) == 7
    assert seen[0].abs().max() == 0


def test_further_rounds_of_dynamic_sampling_count_failed_groups():
    """Every group is of one problem, whichever groups failed before."""
    env = MathEnv(PROBLEMS * 8, stepwise=False, reward=fails_for_some)
    config = find_algorithm("dapo").Config.from_settings(
        {"iterations": 2, "problems_per_iteration": 4, "group_size": 2, "eval_problems": 0, "max_resample_rounds": 4}
    )
    policy = policy_for(env, tiny_model(), policy="chat", shots=0, max_tokens=4)
    algorithm = find_algorithm("dapo")(policy, env, config)
    algorithm.train()
    for iteration in range(2):
        episodes = algorithm.buffer.of_iteration(iteration)
        numbers = [episode.steps[0].state.episode for episode in episodes]
        assert len(set(numbers)) == len(numbers) > 16
        for group in {episode.group for episode in episodes}:
            assert len({episode.problem.id for episode in episodes if episode.group == group}) == 1


def test_a_time_limit_keeps_an_alarm_that_was_set_before():
    heard = []
    previous = signal.signal(signal.SIGALRM, lambda *_: heard.append("alarm"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with time_limit(5):
            time.sleep(0.05)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 0.3
        time.sleep(0.4)
        assert heard == ["alarm"]
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_an_interrupted_question_does_not_leave_its_answer_to_the_next_one():
    compare_latex("x+2", "2+x")  # the worker is ready
    with pytest.raises(TimeLimitError), time_limit(0.2):
        _pool().ask(["(x+1)^{999}", "(x+2)^{998}"])
    assert [compare_latex("x+7", "7+x").is_right, compare_latex("x+7", "8+x").is_right] == [True, False]


def test_an_episode_that_was_rewarded_before_it_failed_is_wrong():
    class Late(lmgym.Env):
        def respond(self, state, text, finish):
            if state.turn == 2:
                raise RuntimeError("gone")
            return lmgym.Response(reward=1.0, reply="and then?")

    mixed = Mixture({"late": Late(PROBLEMS), "fine": MathEnv(PROBLEMS, stepwise=False)}, [1, 3])
    found = evaluate(ScriptedPolicy(lambda state: f"The answer is: {state.problem.answer}"), mixed, range(8))
    assert found.failed == 2
    assert found.strict_by_env == {"late": 0, "fine": 1}
    assert found.strict.value == 0.75


def test_failed_episodes_are_saved_also_with_a_judge(model_folder, tmp_path):
    (tmp_path / "numbers.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(6))
    )
    flags = ["--model", str(model_folder), "--env", str(tmp_path / "numbers.jsonl"), "--shots", "0"]
    flags += ["--max_tokens", "6", "--problems_per_iteration", "6", "--group_size", "2", "--eval_problems", "0"]
    flags += ["--judge", "dimensions", "--reward", f"{__name__}:sometimes", "--iterations", "1"]
    main(["train", "rloo", *flags, "--out", str(tmp_path / "run")])
    saved = list(Buffer.load(tmp_path / "run" / "episodes.jsonl").episodes)
    assert len(saved) == 12
    assert sum(episode.error is not None for episode in saved) == 4
    assert all("dimensions" in episode.info["rewards"] for episode in saved if episode.error is None)


def test_an_environment_that_cannot_start_is_one_sentence():
    class Closed(lmgym.Env):
        def opening(self, problem):
            raise ConnectionError("no server")

        def respond(self, state, text, finish):
            return lmgym.Response()

    with pytest.raises(UserError, match="Closed cannot start an episode of problem 0: ConnectionError: no server"):
        VectorEnv(Closed(PROBLEMS)).reset([0])


def test_rescoring_counts_what_fails(model_folder, tmp_path, capsys):
    (tmp_path / "numbers.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(6))
    )
    episodes = tmp_path / "episodes.jsonl"
    flags = ["--model", str(model_folder), "--env", str(tmp_path / "numbers.jsonl"), "--shots", "0"]
    main(["rollout", *flags, "--max_tokens", "6", "--problems", "12", "--group_size", "2", "--out", str(episodes)])
    main(["rescore", str(episodes), "--reward", f"{__name__}:sometimes"])
    assert "of 24 episodes failed, the first one" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["rescore", str(episodes), "--reward", f"{__name__}:always"])
    assert "no episode could be scored" in " ".join(capsys.readouterr().err.split())


def test_code_of_the_user_that_raises_is_named_with_its_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_env.py").write_text(
        "import lmgym\n\n\nclass Broken(lmgym.Env):\n    def __init__(self):\n        1 / 0\n"
    )
    (tmp_path / "broken_module.py").write_text("x = 1\nraise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    for env, said in (
        ("broken_env:Broken", "cannot be made: ZeroDivisionError: division by zero (broken_env.py, line 6)."),
        ("broken_module:Env", "ValueError: no (broken_module.py, line 2)."),
    ):
        with pytest.raises(SystemExit):
            main(["play", env])
        assert said in " ".join(capsys.readouterr().err.split())
