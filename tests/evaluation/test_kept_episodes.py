"""An evaluation that is cut off continues where it was, with the same result, and only with its own episodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from lmgym.envs.math_env import MathEnv
from lmgym.evaluation.evaluation import Evaluation, evaluate
from lmgym.evaluation.kept_episodes import KeptEpisodes
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.policies.scripted_policy import ScriptedPolicy
from lmgym.types import Problem, State

PROBLEMS = [Problem(f"sum/{i}", f"What is {i} + {i}?", str(2 * i), f"The answer is: {2 * i}") for i in range(8)]


class InterruptedEarlyError(Exception):
    """What cuts an evaluation off."""


class Answers:
    """A policy's answers: every third is wrong; it counts them, and stops after `limit`."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit, self.given = limit, 0

    def __call__(self, state: State) -> str:
        if self.given == self.limit:
            raise InterruptedEarlyError
        self.given += 1
        return f"The answer is: {int(state.problem.answer) + state.episode % 3}"


def outcome(answers: Answers, kept: KeptEpisodes | None, samples: int) -> Evaluation:
    env = MathEnv(PROBLEMS)
    return evaluate(OneByOne(answers), env, range(8), samples=samples, temperature=1.0, kept=kept)


class OneByOne(ScriptedPolicy):
    """Acts for one episode at a time, so that episodes end one by one, as those of a language model do."""

    def next_actions(self, states, temperature=None):
        return super().next_actions(states[:1], temperature)


@pytest.mark.parametrize(("samples", "limit", "repeated"), [(1, 5, 0), (3, 10, 1), (3, 12, 0), (2, 0, 0)])
def test_an_interrupted_evaluation_continues(tmp_path, samples, limit, repeated):
    whole = outcome(Answers(), None, samples)
    kept = KeptEpisodes(tmp_path / "out.json", {"model": "a"}, samples)
    with pytest.raises(InterruptedEarlyError):
        outcome(Answers(limit), kept, samples)
    second = Answers()
    continued = outcome(second, KeptEpisodes(tmp_path / "out.json", {"model": "a"}, samples), samples)
    assert second.given == 8 * samples - limit + repeated  # of a problem with a part of its samples, all are repeated
    assert continued.to_json() == whole.to_json()
    assert [e.problem for e in continued.episodes] == [e.problem for e in whole.episodes]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_model_or_setting_does_not_continue_it(tmp_path):
    with pytest.raises(InterruptedEarlyError):
        outcome(Answers(5), KeptEpisodes(tmp_path / "out.json", {"model": "a", "seed": 0}), 1)
    for other in ({"model": "b", "seed": 0}, {"model": "a", "seed": 1}):
        assert KeptEpisodes(tmp_path / "out.json", other).load() == []
    assert KeptEpisodes(tmp_path / "other.json", {"model": "a", "seed": 0}).load() == []
    assert len(KeptEpisodes(tmp_path / "out.json", {"seed": 0, "model": "a"}).load()) == 5


def test_a_line_that_a_crash_cut_short_is_sampled_again(tmp_path):
    kept = KeptEpisodes(tmp_path / "out.json", {})
    with pytest.raises(InterruptedEarlyError):
        outcome(Answers(5), kept, 1)
    kept.path.write_bytes(kept.path.read_bytes()[:-30])
    second = Answers()
    assert outcome(second, kept, 1).to_json() == outcome(Answers(), None, 1).to_json()
    assert second.given == 4


def test_an_episode_that_failed_is_sampled_again(tmp_path):
    class Fragile(MathEnv):
        def respond(self, state, text, finish):
            if state.problem.id == "sum/2":
                raise ValueError("out of order")
            return super().respond(state, text, finish)

    kept = KeptEpisodes(tmp_path / "out[1].json", {}, 1)  # a name with characters that mean something to a glob
    failed = evaluate(OneByOne(Answers()), Fragile(PROBLEMS), range(8), kept=kept)
    assert failed.failed == 1
    second = Answers()
    assert outcome(second, kept, 1).failed == 0
    assert second.given == 1
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_time_that_is_left_counts_only_what_this_attempt_did(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("lmgym.evaluation.progress.time.monotonic", lambda: clock[0])
    episodes = outcome(Answers(), None, 1).episodes
    with EvaluationProgress(8) as progress:
        progress.begin(4, episodes[:4])
        clock[0] = 60.0
        progress.add(episodes[4:6])  # two in a minute, and two are left
    assert "6 of 8 problems" in (shown := capsys.readouterr().err)
    assert "about 1m 00s left" in shown


FLAGS = ["--env", "arithmetic", "--shots", "0", "--max_tokens", "6", "--dtype", "float32", "--problems", "60"]
KILLED = """
import os, signal
from lmgym import buffer
from lmgym.commands.cli import main
append, written = buffer.append_episodes, []
def append_and_die(path, episodes):
    append(path, episodes)
    written.extend(episodes)
    if len(written) >= 10:
        os.kill(os.getpid(), signal.SIGKILL)
buffer.append_episodes = append_and_die
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def killed(arguments: list[str]) -> int:
    """An evaluation that is killed when it has finished ten episodes; how it ended."""
    return run("-c", f"{KILLED}\nmain({arguments!r})").returncode


@pytest.fixture(scope="module")
def uninterrupted(model_folder, tmp_path_factory) -> dict[str, object]:
    output = tmp_path_factory.mktemp("whole") / "out.json"
    done = run("-m", "lmgym", "eval", "--model", str(model_folder), *FLAGS, "--output", str(output))
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(output.parent.iterdir()) == [output]
    return json.loads(output.read_text())


TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("processes", [(), TWO_PROCESSES], ids=["one process", "two processes"])
def test_a_killed_process_loses_nothing(model_folder, tmp_path, uninterrupted, processes):
    output = tmp_path / "out.json"
    arguments = ["eval", "--model", str(model_folder), *FLAGS, "--output", str(output)]
    assert killed(arguments) == -signal.SIGKILL
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes().count(b"\n") >= 10
    done = run(*processes, "-m", "lmgym", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(output.read_text()) == uninterrupted
    assert done.stdout.count("strict") == 1  # only the first process prints
    assert list(tmp_path.iterdir()) == [output]


def test_changed_weights_problems_or_prompts_begin_again(model_folder, tmp_path):
    model, problems, prompt, output = (tmp_path / name for name in ("model", "rows.jsonl", "prompt.txt", "out.json"))
    shutil.copytree(model_folder, model)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20)]
    prompt.write_text("Answer.")

    def kept_files(changed: list[dict[str, str]]) -> int:
        problems.write_text("".join(json.dumps(row) + "\n" for row in changed))
        flags = ["--shots", "0", "--max_tokens", "4", "--dtype", "float32", "--problems", "20", "--policy", "chat"]
        task = ["--env", str(problems), "--system_prompt", str(prompt), "--model", str(model), *flags]
        assert killed(["eval", *task, "--output", str(output)]) == -signal.SIGKILL
        return len(list(tmp_path.glob("out.json.*.jsonl")))

    assert kept_files(rows) == 1
    assert kept_files([*rows[:5], {"question": "What is 8 + 8?", "answer": "16"}, *rows[6:]]) == 2
    prompt.write_text("Answer well.")
    assert kept_files(rows) == 3
    os.utime(model / "model.safetensors", (1, 1))
    assert kept_files(rows) == 4
