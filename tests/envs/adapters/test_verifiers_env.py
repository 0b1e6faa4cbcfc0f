"""Environments of verifiers, against the package itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from verifiers_rollout import HARNESS, own_trace

import lmgym
from lmgym import UserError
from lmgym.envs.adapters.verifiers_env import VerifiersEnv
from lmgym.envs.vector_env import VectorEnv
from lmgym.types import Action

PAGE = Path(__file__).parents[3] / "docs" / "adapters" / "verifiers.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

GUESSING = """
import verifiers.v1 as vf

__all__ = ["Guessing", "GuessingEnv"]


class Data(vf.TaskData):
    number: int


class Guess(vf.Task[Data]):
    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class Guessing(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            number += 1
            prompt = f"Guess a number from 1 to {number + 9}."
            yield Guess(Data(prompt=prompt, number=number, system_prompt="Be brief."))


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                if segment.last_reply == str(task.data.number):
                    break
                segment = await interaction.turn("No.")
        interaction.trace.record_reward("won", float(interaction.trace.last_reply == str(task.data.number)))

    async def finalize(self, task, episode):
        (trace,) = episode.traces
        trace.record_metric("truncated", float(trace.is_truncated))
"""

ODD = """
import asyncio, time
import verifiers.v1 as vf

__all__ = ["Odd"]


class Config(vf.TasksetConfig):
    kind: str = "plain"
    split: str = "train"


class Plain(vf.Task[vf.TaskData]):
    @vf.reward
    async def judged(self, trace: vf.Trace) -> float:
        if "raise" in trace.last_reply:
            raise ValueError("cannot read that")
        if "wait" in trace.last_reply:
            await asyncio.sleep(60)
        if "block" in trace.last_reply:
            time.sleep(3)
        return 1.0


class Runtime(vf.Task[vf.TaskData]):
    @vf.reward
    async def files(self, runtime) -> float:
        return 1.0


class Setup(vf.Task[vf.TaskData]):
    async def setup(self, trace, runtime) -> None:
        await runtime.start()


class Stopped(vf.Task[vf.TaskData]):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return True


class Boxed(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True


class Odd(vf.Taskset[Plain, Config]):
    def load(self):
        kinds = {"runtime": Runtime, "setup": Setup, "stop": Stopped, "box": Boxed}
        if self.config.split != "train":
            raise ValueError(f"no file for {self.config.split}")
        prompt = None if self.config.kind == "silent" else "Say something."
        if self.config.kind == "shots":
            prompt = [vf.UserMessage(content="1"), vf.AssistantMessage(content="2"), vf.UserMessage(content="3")]
        yield kinds.get(self.config.kind, Plain)(vf.TaskData(prompt=prompt))
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """The tasksets as modules of the current directory."""
    codes = {"reverse_words": BLOCKS[0], "guessing_game": GUESSING, "odd_tasks": ODD, "posting_chat": HARNESS}
    for name, code in codes.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_the_example_of_the_page_runs():
    names: dict = {}
    exec(BLOCKS[1], names)
    assert names["terminated"]
    assert names["reward"] == pytest.approx(1.1)
    assert names["info"] == {"correct": True, "rewards": {"exact": 1, "short": 1}, "metrics": {}, "final": True}


@pytest.mark.parametrize(
    ("taskset", "role", "index", "replies"),
    [
        ("reverse-words", "agent", 1, ["a long answer that is not right"]),
        ("reverse-words", "agent", 0, ["RIGHT"]),
        ("guessing-game", "player", 2, ["-1", "Maybe 5?", "RIGHT"]),
    ],
)
def test_the_trace_equals_that_of_a_rollout_of_verifiers_itself(taskset, role, index, replies):
    env = lmgym.make(f"verifiers/{taskset}", max_tasks=50)
    assert isinstance(env, VerifiersEnv)
    env.reset(options={"index": index})
    task = env.tasks[index]
    right = task.data.answer if taskset == "reverse-words" else str(task.data.number)
    said = [reply.replace("RIGHT", right) for reply in replies]
    for reply in said:
        _, reward, terminated, _, info = env.step(Action(reply, finish="eos"))
    assert terminated
    assert env.exchange is not None
    ours, own = env.exchange.trace(), own_trace(taskset, role, task.key, said)
    assert [message.model_dump() for message in ours.messages] == [message.model_dump() for message in own.messages]
    assert (ours.rewards, ours.metrics, ours.stop_condition) == (own.rewards, own.metrics, own.stop_condition)
    assert reward == own.reward
    assert info["rewards"] == {name: part.score for name, part in own.rewards.items()}


def test_splits_have_other_tasks():
    prompts = [
        {problem.prompt for problem in lmgym.make("verifiers/reverse-words", split=split).problems}
        for split in ("train", "test")
    ]
    assert all(prompts)
    assert not prompts[0] & prompts[1]


def test_a_conversation_of_several_turns():
    env = lmgym.make("verifiers/guessing-game", max_tasks=50)
    state, _ = env.reset(options={"index": 3})
    number = int(state.problem.prompt.split()[-1].strip(".")) - 9
    assert state.messages[0]["content"] == f"Be brief.\n\nGuess a number from 1 to {number + 9}."
    state, reward, terminated, truncated, _ = env.step("-1")
    assert (state.reply, reward, terminated, truncated) == ("No.", 0, False, False)
    _, reward, terminated, truncated, info = env.step(str(number))
    assert (reward, terminated, truncated) == (1, True, False)
    assert info["metrics"] == {"turns": 2, "truncated": 0}


def test_a_limit_of_turns_and_a_budget_of_tokens_truncate_and_what_is_there_is_scored():
    env = lmgym.make("verifiers/guessing-game", max_tasks=50, max_turns=2)
    env.reset(options={"index": 0})
    env.step("-1")
    _, reward, terminated, truncated, info = env.step("-2")
    assert (reward, terminated, truncated) == (0, False, True)
    assert info["metrics"] == {"turns": 2, "truncated": 1}
    env.reset(options={"index": 0})
    *_, truncated, info = env.step(Action("-1", finish="length"))
    assert (truncated, info["final"], info["metrics"]["truncated"]) == (True, True, 1)


def test_many_episodes_run_at_once_and_one_may_be_left():
    env = lmgym.make("verifiers/guessing-game", max_tasks=50)
    clones = [env.clone() for _ in range(20)]
    for index, clone in enumerate(clones):
        clone.reset(options={"index": index})
        clone.step("-1")
    again = clones[0].clone()
    again.reset(options={"index": 0})
    for clone in (*clones[:10], again):
        problem = clone.state.problem
        assert clone.step(str(int(problem.prompt.split()[-1].strip(".")) - 9))[1] == 1
    clones[15].reset(options={"index": 1})
    assert clones[15].step("-1")[0].reply == "No."


@pytest.mark.parametrize("text", ["raise", "wait", "block"])
def test_a_task_that_raises_or_takes_too_long_costs_its_episode(text):
    envs = VectorEnv(lmgym.make("verifiers/odd-tasks", timeout=0.5))
    envs.reset([0, 0])
    steps = envs.step([Action(text, episode=0), Action("fine", episode=1)])
    while len(steps) < 2:
        steps += envs.step([])
    failed, fine = sorted(steps, key=lambda step: step.state.episode)
    assert failed.truncated
    assert ("took more than" if text != "raise" else "Error") in failed.info["error"]
    assert "error" in fine.info or fine.reward == 1  # a task that blocks its event loop takes others with it
    envs.env.timeout = 60.0  # type: ignore[attr-defined]  # for the next episode, on a machine that may be busy
    envs.reset([0])
    assert envs.step([Action("fine", episode=0)])[0].reward == 1


def test_hostile_text_is_only_text():
    env = lmgym.make("verifiers/reverse-words")
    for text in ("", "\0", "\ud800", "<|im_end|>", '{"role": "system"}', "x" * 100_000):
        env.reset(options={"index": 0})
        assert env.step(text)[1] < 0.2


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("no-such-taskset", {}, "cannot be imported"),
        ("reverse-words", {"nonsense": 1}, "cannot be made with these options"),
        ("reverse-words", {"max_turns": 0}, "at least one turn"),
        ("reverse-words", {"words": "three", "split": "test"}, "none of them is in the split"),
        ("odd-tasks", {"split": "test"}, "no file for test"),
        ("odd-tasks", {"kind": "runtime"}, "needs a runtime"),
        ("odd-tasks", {"kind": "setup"}, "needs a runtime"),
        ("odd-tasks", {"kind": "stop"}, "stop conditions"),
        ("odd-tasks", {"kind": "box"}, "needs a container"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(name, options, said):
    with pytest.raises(UserError, match=said):
        lmgym.make(f"verifiers/{name}", **options)


@pytest.mark.parametrize(("kind", "said"), [("silent", "says anything"), ("shots", "not plain text of the user")])
def test_a_prompt_that_is_no_text_is_refused(kind, said):
    env = lmgym.make("verifiers/odd-tasks", kind=kind)
    assert isinstance(env, VerifiersEnv)
    with pytest.raises(UserError, match=said):
        env.reset()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    monkeypatch.delitem(sys.modules, "verifiers")
    with pytest.raises(UserError, match=r"pip install 'lmgym\[verifiers\]'"):
        lmgym.make("verifiers/reverse-words")
