"""Environments of OpenEnv servers: the server is the real package, in a virtual environment of its own.

It cannot be installed beside verifiers 0.4: they need different versions of mcp.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import lmgym
from lmgym import UserError
from lmgym.assets.catalogue import cache_dir
from lmgym.envs.adapters.openenv_env import OpenEnv
from lmgym.types import Action

ROOT = Path(__file__).parents[3]
OPENENV = "openenv==0.10.0"
SERVER = Path(__file__).parent / "openenv_server.py"

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with OpenEnv on top of the packages of this one; made once and kept in the cache."""
    key = hashlib.sha256(f"{sys.version}{sys.prefix}{OPENENV}".encode()).hexdigest()[:12]
    folder = cache_dir() / f"test-openenv-{key}"
    found = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=False, symlinks=True, clear=True)
        own = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
        below = [path for path in sys.path if path.endswith("site-packages")]
        (Path(own) / "below.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in below))
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder),
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        subprocess.run([*pip, OPENENV, "mcp<2"], check=True, timeout=300)
        (folder / "installed").touch()
    return found


@dataclass(frozen=True)
class Servers:
    """A process with a server of each kind."""

    process: subprocess.Popen[str]
    ports: dict[str, int]

    def url(self, kind: str = "message") -> str:
        return f"http://127.0.0.1:{self.ports[kind]}"


@pytest.fixture(scope="module")
def servers(python) -> Iterator[Servers]:
    with subprocess.Popen([str(python), str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = Servers(process, json.loads(process.stdout.readline()))
        for kind in found.ports:
            wait_for(found.url(kind))
        yield found
        process.kill()


def wait_for(url: str) -> None:
    for _ in range(100):
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            assert answer.status == 200
            return
        time.sleep(0.1)
    raise AssertionError(f"no server at {url}")


def halved(env: lmgym.Env, write: Callable[[int], str], largest: int = 20) -> tuple[list[str], float]:
    """Finds the number of an episode by halving; returns what was said, and the sum of rewards."""
    low, high, said, total, ended = 1, largest, [], 0.0, False
    while not ended:
        guess = (low + high) // 2
        state, reward, ended, truncated, info = env.step(write(guess))
        assert info["valid"]
        assert not truncated
        said.append(state.reply)
        total += reward
        low, high = (guess + 1, high) if state.reply == "Higher." else (low, guess - 1)
    return said, total


def test_an_episode_is_played_and_depends_on_its_problem(servers):
    env = lmgym.make(f"openenv/{servers.url()}", prompt="You play a game.")
    assert isinstance(env, OpenEnv)
    state, _ = env.reset(options={"index": 0})
    assert state.messages[0]["content"] == "You play a game.\n\nGuess a number from 1 to 20."
    said, total = halved(env, str)
    assert (said[-1], total) == ("Right.", 1)
    games = []
    for index in (0, 1, 2, 3):
        clone = env.clone()
        clone.reset(options={"index": index})
        games.append(halved(clone, str)[0])
    assert games[0] == said
    assert any(game != said for game in games)


def test_options_go_to_reset_and_the_address_may_be_an_option_and_the_name_may_have_a_split(servers):
    env = lmgym.make("openenv/guessing", url=servers.url(), largest=5)
    assert env.reset(options={"index": 0})[0].messages[0]["content"] == "Guess a number from 1 to 5."
    env = lmgym.make(f"openenv/{servers.url()}:test")
    assert env.made_from is not None
    assert (env.made_from.name, env.made_from.split) == (f"openenv/{servers.url()}", "test")


def test_an_action_of_one_number_is_the_last_line(servers):
    env = lmgym.make(f"openenv/{servers.url('number')}")
    assert isinstance(env, OpenEnv)
    assert env.instruction == 'The last line of your message is your action: "number" (integer).'
    env.reset(options={"index": 0})
    assert halved(env, lambda guess: f"Let me try:\n{guess}")[1] == 1


def test_an_action_of_several_fields_is_json_and_every_step_has_its_reward(servers):
    env = lmgym.make(f"openenv/{servers.url('move')}")
    state, _ = env.reset(options={"index": 0})
    assert state.messages[0]["content"] == "cells: [0, 0]\nnote: Reach 3."
    state, reward, terminated, *_ = env.step('I go down.\n{"row": 1, "column": 2}')
    assert (state.reply, reward, terminated) == ("cells: [1, 2]", 0.5, False)
    _, reward, terminated, *_ = env.step('{"row": 3, "column": 0}')
    assert (reward, terminated) == (1.5, True)


def to_fields(text: str) -> dict:
    return dict(zip(("row", "column"), map(int, text.split()), strict=True))


def test_one_may_bring_functions_of_ones_own(servers):
    url = servers.url("move")
    env = lmgym.make(f"openenv/{url}", action=f"{__name__}:to_fields", observation_text=lambda seen: str(seen["cells"]))
    assert env.reset(options={"index": 0})[0].messages[0]["content"] == "[0, 0]"
    assert env.step("2 1")[0].reply == "[2, 1]"
    state, *_, info = env.step("two one")
    assert not info["valid"]
    assert state.reply.startswith("This action cannot be read: ")


@pytest.mark.parametrize("kind", ["message", "number", "move"])
@pytest.mark.parametrize(
    "text", ["", "x", "[" * 5000, '{"row": "a"}', '{"type": "close"}', "\ud800", "9" * 5000, "NaN"]
)
def test_hostile_text_costs_a_turn_and_nothing_else(servers, kind, text):
    env = lmgym.make(f"openenv/{servers.url(kind)}", max_turns=2)
    env.reset(options={"index": 0})
    state, reward, terminated, truncated, info = env.step(text)
    assert (reward, terminated, truncated) == (0, False, False)
    assert info == {"valid": False}
    assert 0 < len(state.reply) <= 500
    assert env.step(text)[3], "the turns are used up"


def test_an_unreadable_action_cut_off_by_its_budget_is_truncated(servers):
    env = lmgym.make(f"openenv/{servers.url()}")
    env.reset(options={"index": 0})
    assert env.step(Action("I think that", finish="length"))[3]


def test_a_server_with_one_session_plays_one_episode_after_the_other_but_not_two_at_once(servers):
    env = lmgym.make(f"openenv/{servers.url('one session')}")
    for index in range(5):
        clone = env.clone()
        clone.reset(options={"index": index})
        halved(clone, str)
    env.reset()
    with pytest.raises(UserError, match="raise its max_concurrent_envs"):
        env.clone().reset()
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("openenv/localhost:8000", {}, "write openenv/http://HOST:PORT"),
        ("openenv/file:///etc/passwd", {}, "is not the address of a server"),
        ("openenv/x", {"url": "http://127.0.0.1:9", "max_turns": 0}, "at least one turn"),
        ("openenv/http://127.0.0.1:9", {}, "There is no OpenEnv server"),
    ],
)
def test_a_mistake_gets_one_sentence(name, options, said):
    with pytest.raises(UserError, match=said):
        lmgym.make(name, **options)


def test_a_missing_package_is_named(servers, monkeypatch):
    env = lmgym.make(f"openenv/{servers.url()}")
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(UserError, match=r"pip install 'lmgym\[openenv\]'"):
        env.reset()


def test_a_server_that_stops_is_named(servers):
    url = servers.url()
    env = lmgym.make(f"openenv/{url}")
    env.reset()
    servers.process.kill()
    servers.process.wait()
    with pytest.raises(UserError, match="did not answer a step"):
        env.step("3")
    with pytest.raises(UserError, match="does not open a session"):
        env.reset()
    with pytest.raises(UserError, match="There is no OpenEnv server"):
        lmgym.make(f"openenv/{url}")
