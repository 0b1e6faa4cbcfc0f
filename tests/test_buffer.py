"""Episodes survive the disk: round trips, torn files, killed processes, and draws from memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made import Turn, make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

import lmgym.buffer
from lmgym.buffer import Buffer, append_episodes, episode_to_row, read_episodes
from lmgym.envs.env import Env, Response
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.types import Action, Episode, Finish, Problem, State

PROBLEMS = [
    Problem("a", "Guess: which number?", "3", info={"level": 2, "tags": ["x", "ß"]}),
    Problem("b", "Und diese — größer?", "7", "because\nof this"),
]


class Guess(Env):
    """Replies to the first guess, says nothing to the second, and ends with the third."""

    def respond(self, state: State, text: str, finish: Finish) -> Response:
        over = state.turn == 3
        reply = "No: größer ☃\nTry again." if state.turn == 1 else ""
        ended = finish == "eos"
        return Response(0.5 * state.turn, reply, terminated=over and ended, truncated=over and not ended, info={"n": 1})


def act(state: State, random: np.random.Generator, finish: Finish) -> Action:
    """What a policy with a tool would do: read the reply, choose some tokens and have others forced on it."""
    read = tuple(random.integers(1, 99, size=3).tolist()) if state.reply or not state.tokens else ()
    mask = (1, 0, 0, 1, 1)
    return Action(
        text=f"line {state.turn} naïve\u2028\n",
        prompt_ids=state.tokens + read,
        token_ids=tuple(random.integers(1, 99, size=5).tolist()),
        logprobs=tuple(float(-random.random()) if chosen else 0.0 for chosen in mask),
        mask=mask,
        finish=finish,
        policy_version=4,
        episode=state.episode,
    )


def play(groups: int = 2, group_size: int = 2, iteration: int = 0, buffer: Buffer | None = None) -> list[Episode]:
    """Real episodes of three turns, through the real collector."""
    random = np.random.default_rng(iteration)
    envs, buffer = VectorEnv(Guess(PROBLEMS)), Buffer() if buffer is None else buffer
    states = envs.reset([group % 2 for group in range(groups)], group_size, seed=iteration)
    while states:
        steps = envs.step([act(state, random, "length" if state.episode % 2 else "eos") for state in states])
        buffer.add(steps, iteration)
        states = [step.next_state for step in steps if not step.done]
    return list(buffer.episodes)


def rounded(episode: Episode) -> Episode:
    """The same episode with its log-probs as float32, which is what a sampler gives and a batch takes."""
    steps = [
        replace(step, action=replace(step.action, logprobs=tuple(np.array(step.action.logprobs, np.float32).tolist())))
        for step in episode.steps
    ]
    return replace(episode, steps=tuple(steps))


def test_episodes_come_back_equal_with_every_bit_of_their_log_probs(tmp_path):
    episodes = play(iteration=3)
    append_episodes(tmp_path / "e.jsonl", episodes)
    back = list(read_episodes(tmp_path / "e.jsonl"))
    assert back == [rounded(episode) for episode in episodes]
    for before, after in zip(episodes, back, strict=True):
        assert len(before.steps) == 3
        assert after.tokens == before.tokens
        assert after.mask == before.mask
        assert sum(after.mask) == 9
        assert after.steps[0].next_state.messages[-1] == {"role": "user", "content": "No: größer ☃\nTry again."}
        assert after.steps[-1].next_state.tokens == before.tokens
        assert np.array_equal(np.array(after.logprobs, np.float32), np.array(before.logprobs, np.float32))
    assert max(len(f"{value}") for row in map(episode_to_row, episodes) for value in row["steps"][0]["logprobs"]) <= 15


def test_rows_of_older_versions_can_still_be_read(tmp_path):
    row = episode_to_row(play(1, 1)[0])
    for step, (text, reason) in zip(
        row["steps"], [("a\n<|end|>", "stop"), ("b\n", "stop"), ("c<|end|>", "length")], strict=True
    ):
        del step["finish"]
        step |= {"text": text, "finish_reason": reason}
    (tmp_path / "e.jsonl").write_text(json.dumps(row) + "\n")
    (episode,) = read_episodes(tmp_path / "e.jsonl")
    actions = [step.action for step in episode.steps]
    assert [(action.text, action.finish) for action in actions] == [("a\n", "eos"), ("b\n", "stop"), ("c", "length")]
    assert episode.steps[-1].next_state.messages[-1]["content"] == "b\nc"


def test_a_file_is_readable_json_with_no_id_written_twice(tmp_path):
    append_episodes(tmp_path / "e.jsonl", play(1, 1))
    (line,) = (tmp_path / "e.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    row = json.loads(line)
    assert "größer ☃" in line
    ids = [identifier for step in row["steps"] for part in ("read_ids", "token_ids") for identifier in step[part]]
    assert ids == list(next(read_episodes(tmp_path / "e.jsonl")).tokens)


def test_a_buffer_with_a_path_writes_every_episode_as_it_ends(tmp_path):
    episodes = play(buffer=Buffer(capacity=1, path=tmp_path / "e.jsonl"))
    assert [episode.group for episode in episodes] == [1, 1]
    assert len(list(read_episodes(tmp_path / "e.jsonl"))) == 4


def test_a_file_cut_at_any_byte_of_its_last_line_loses_only_that_episode_and_can_be_appended_to(tmp_path):
    path = tmp_path / "e.jsonl"
    first, second, third, extra = [rounded(episode) for episode in play()]
    append_episodes(path, [first, second, third])
    whole = path.read_bytes()
    start = whole.removesuffix(b"\n").rindex(b"\n") + 1
    complete = len(whole) - 1  # without its line end, a line is still whole
    for length in range(start, len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = [first, second, third] if length >= complete else [first, second]
        assert list(read_episodes(path)) == kept, length
        append_episodes(path, [extra])
        assert list(read_episodes(path)) == [*kept, extra], length


@pytest.mark.parametrize(
    "wrong",
    [
        "5",
        "[]",
        "null",
        "{}",
        '{"iteration": 0, "episode": 0, "group": 0, "seed": 0, "problem": {"id": "a"}, "opening": [], "steps": []}',
        "no steps",
        "text is a number",
        "mask is missing",
        "no opening",
    ],
)
def test_a_wrong_row_is_one_sentence_with_file_and_line(tmp_path, wrong):
    path = tmp_path / "e.jsonl"
    append_episodes(path, play(1, 1))
    row = json.loads(path.read_text(encoding="utf-8"))
    if wrong == "no steps":
        row["steps"] = []
    elif wrong == "text is a number":
        row["steps"][0]["text"] = 5
    elif wrong == "mask is missing":
        del row["steps"][1]["mask"]
    elif wrong == "no opening":
        row["opening"] = []
    else:
        row = json.loads(wrong)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"e\.jsonl, line 2: ") as caught:
        list(read_episodes(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        Buffer.load(tmp_path / "none.jsonl")


def test_capacity_keeps_the_newest_and_must_be_at_least_one(tmp_path):
    buffer = Buffer(capacity=3)
    for iteration in range(4):
        play(1, 2, iteration, buffer)
    assert [episode.iteration for episode in buffer.episodes] == [3, 3]
    buffer.save(tmp_path / "e.jsonl")
    assert [episode.iteration for episode in Buffer.load(tmp_path / "e.jsonl", capacity=2).episodes] == [3, 3]
    with pytest.raises(UserError, match="capacity 0"):
        Buffer(capacity=0)


@given(
    order=st.permutations([(group, member) for group in range(3) for member in range(4)]),
    capacity=st.integers(1, 30),
    chunk=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_eviction_never_breaks_a_group_in_whatever_order_its_episodes_end(order, capacity, chunk):
    buffer = Buffer(capacity)
    everything: list[Episode] = []
    for iteration in range(2):
        made = {
            (group, member): make_episode(Turn([1], [10 + member], [1]), group=group, iteration=iteration)
            for group, member in order
        }
        for start in range(0, len(order), chunk):
            buffer.extend(made[key] for key in order[start : start + chunk])
        everything += made.values()
    sizes = Counter((episode.iteration, episode.group) for episode in buffer.episodes)
    assert set(sizes.values()) == {4}, "all of a group or none of it"
    assert len(buffer) <= max(capacity, 4)
    kept = sorted(sizes)
    assert kept == sorted({(e.iteration, e.group) for e in everything})[-len(kept) :], "the newest ones"
    if capacity >= 12:  # a whole iteration fits, as a run requires
        assert len(kept) == min(capacity // 4, 6)


def test_episodes_of_an_iteration_come_in_the_order_they_began_whichever_ended_first():
    envs, buffer, random = VectorEnv(Guess(PROBLEMS)), Buffer(), np.random.default_rng(0)
    states = envs.reset([0, 1], 2)
    while states:
        buffer.add(envs.step([act(state, random, "eos") for state in states[-2:]]), iteration=5)
        states = envs.states
    play(1, 1, iteration=6, buffer=buffer)
    assert [episode.steps[0].state.episode for episode in buffer.episodes] == [2, 3, 0, 1, 0]
    assert [episode.steps[0].state.episode for episode in buffer.of_iteration(5)] == [0, 1, 2, 3]
    assert [len(episode.steps) for episode in buffer.of_iteration(5)] == [3] * 4


def test_unfinished_episodes_are_forgotten_and_do_not_join_later_ones():
    envs, buffer, random = VectorEnv(Guess(PROBLEMS)), Buffer(), np.random.default_rng(0)
    buffer.add(envs.step([act(state, random, "eos") for state in envs.reset([0, 1])]))
    buffer.drop_unfinished()
    assert all(len(episode.steps) == 3 for episode in play(buffer=buffer))


def test_sampling_draws_whole_groups_without_repeats():
    buffer = Buffer()
    for iteration in range(3):
        play(4, 2, iteration, buffer)
    seen = set()
    for seed in range(20):
        drawn = buffer.sample(5, np.random.default_rng(seed))
        assert len(drawn) == 6
        assert len({id(episode) for episode in drawn}) == 6
        groups = [(episode.iteration, episode.group) for episode in drawn]
        assert all(groups.count(group) == 2 for group in groups)
        seen |= set(groups)
    assert len(seen) == 12
    assert len(buffer.sample(1000, np.random.default_rng(0))) == 24
    assert {episode.iteration for episode in buffer.sample(1000, np.random.default_rng(0), before=2)} == {0, 1}
    assert buffer.sample(5, np.random.default_rng(0), before=0) == []
    assert buffer.sample(5, np.random.default_rng(1)) == buffer.sample(5, np.random.default_rng(1))


def test_rescoring_replaces_the_rewards_by_a_function_of_problem_and_text():
    buffer = Buffer(capacity=10)
    old = play(buffer=buffer)
    buffer.rescore(
        lambda problem, text: len(problem.prompt) if text.startswith("line 0") and "<|end|>" not in text else 0
    )
    for before, after in zip(old, buffer.episodes, strict=True):
        assert after.rewards == (*(0.0 for _ in before.rewards[1:]), float(len(before.problem.prompt)))
        assert after.tokens == before.tokens
    assert buffer.capacity == 10


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path, buffer = tmp_path / "e.jsonl", Buffer()
    play(buffer=buffer)
    buffer.save(path)
    old, written = path.read_bytes(), []
    to_row = lmgym.buffer.episode_to_row

    def fails_at_the_third(episode):
        written.append(episode)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return to_row(episode)

    monkeypatch.setattr(lmgym.buffer, "episode_to_row", fails_at_the_third)
    with pytest.raises(OSError, match="No space"):
        buffer.save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from pathlib import Path
from lmgym.buffer import append_episodes, read_episodes
episodes = list(read_episodes(Path(sys.argv[1])))
while True:
    append_episodes(Path(sys.argv[2]), episodes)
"""


def test_the_file_of_a_process_killed_while_it_writes_still_loads(tmp_path):
    episodes = [rounded(episode) for episode in play()]
    source, path = tmp_path / "source.jsonl", tmp_path / "e.jsonl"
    append_episodes(source, episodes)
    root = Path(lmgym.buffer.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(source), str(path)], env=environment)
    try:
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_size < 100_000) and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    back = list(read_episodes(path))
    assert len(back) > 10
    assert back == [episodes[index % 4] for index in range(len(back))]
    append_episodes(path, episodes[:1])
    assert list(read_episodes(path)) == [*back, episodes[0]]
