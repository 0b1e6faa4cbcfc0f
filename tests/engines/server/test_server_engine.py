"""The engine of servers against servers of our own: in threads here, and as processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conftest import tiny_model
from engine_checks import ragged_requests
from serving import address, running_servers

from lmgym.engines.engine import Request
from lmgym.engines.server import engine as engine_module
from lmgym.engines.server.connect import connect
from lmgym.engines.server.engine import NoServerLeftError, ServerEngine
from lmgym.engines.server.http import ServerUnreachableError, post
from lmgym.engines.server.sglang_server import SGLangServer
from lmgym.engines.server.vllm_server import VLLMServer
from lmgym.engines.server.weights import write_weights
from lmgym.engines.torch.engine import TorchEngine
from lmgym.errors import InterruptedRunError, UserError
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel


@pytest.fixture
def servers() -> Iterator[list[ThreadingHTTPServer]]:
    with running_servers() as two:
        yield two


def connected(model: LanguageModel, servers: list[ThreadingHTTPServer], folder: Path) -> ServerEngine:
    return connect("vllm", [address(server) for server in servers], model, folder)


def changed(model: LanguageModel) -> None:
    with torch.no_grad():
        for weight in model.trainable().values():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    model.version += 1


def test_servers_sample_what_the_engine_in_process_samples(model, servers, tmp_path):
    """Their own weights were others: they were given ours. Before and after an update, the tied head included."""
    engine = connected(model, servers, tmp_path)
    requests = [*ragged_requests(20), *ragged_requests(3, distribution=Distribution(0.0), draws=2)]
    for _ in range(2):
        there, here = engine.generate(requests), TorchEngine(model).generate(requests)
        for server_completion, own in zip(there, here, strict=True):
            assert server_completion.token_ids == own.token_ids
            assert server_completion.logprobs == pytest.approx(own.logprobs, abs=1e-5)
            assert server_completion.finish == own.finish
            assert server_completion.versions == [model.version] * len(own.token_ids)
        changed(model)
    assert engine.moved_requests == 0
    assert [folder.name for folder in tmp_path.glob("*/*")] == ["version-1"]


def test_a_group_stays_on_its_server_and_groups_are_spread(model, servers, tmp_path):
    engine = connected(model, servers, tmp_path)
    used = {group: engine._server_of(group).url for group in range(100)}
    assert used == {group: engine._server_of(group).url for group in range(100)}
    counts = [list(used.values()).count(server.url) for server in engine.servers]
    assert min(counts) > 25
    engine._lost[engine.servers[0].url] = "lost"
    moved = {group for group in used if engine._server_of(group).url != used[group]}
    assert moved == {group for group, url in used.items() if url == engine.servers[0].url}


def test_weights_that_change_within_an_answer_are_said_for_each_token(model, servers, tmp_path):
    engine = connected(model, servers[:1], tmp_path)
    server = engine.servers[0]
    request = Request((5, 6, 7), 1500, seed=4)
    (request_id,) = engine.submit([request])
    while VLLMServer(server.url).status().running == 0:
        time.sleep(0.01)
    changed(model)
    server.load_weights(write_weights(model, tmp_path / "own"), model.version)
    completion = engine.wait([request_id])[request_id]
    if len(completion.token_ids) == 1500:  # unless it happened to end before
        assert set(completion.versions) == {0, 1}
    assert completion.versions == sorted(completion.versions)


def test_a_cancelled_request_is_ended_on_the_server_too(model, servers, tmp_path):
    engine = connected(model, servers[:1], tmp_path)
    model.network.generation_config.eos_token_id = None
    ids = engine.submit([Request((5, 6, 7), 2000, seed=seed) for seed in range(3)])
    engine.cancel(ids)
    deadline = time.monotonic() + 30
    while engine.servers[0].status().running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert engine.wait(ids) == {}


def test_a_server_with_another_model_is_refused(model, servers, tmp_path, monkeypatch):
    monkeypatch.setattr(VLLMServer, "load_weights", lambda self, folder, version: setattr(self, "version", version))
    monkeypatch.setattr(VLLMServer, "_versions", lambda self, choice: [0] * len(choice["token_ids"]))
    with pytest.raises(UserError, match=r"does not have the log-probs of tiny-llama: they differ by"):
        connected(model, servers, tmp_path)


def test_a_server_that_was_restarted_is_not_trusted(model, servers, tmp_path):
    """It has the weights of its own start, and says so; the others get its requests."""
    engine = connected(model, servers, tmp_path)
    for label in ("/update_weight_version",):
        post(engine.servers[0].url, label, {"new_version": "another-3"}, 10)
    requests = [Request((5, 6, 7), 4, seed=seed, group=seed) for seed in range(12)]
    assert len(engine.generate(requests)) == 12
    assert engine.moved_requests > 0


def test_two_runs_on_the_same_servers_are_noticed(model, servers, tmp_path):
    """The second one replaces the weights of the first, which gives them again before it samples."""
    first = connected(model, servers, tmp_path)
    other = tiny_model(seed=9)
    second = connected(other, servers, tmp_path)
    requests = [Request((5, 6, 7), 4, seed=seed, group=seed) for seed in range(8)]
    expected = [each.token_ids for each in TorchEngine(other).generate(requests)]
    assert [each.token_ids for each in second.generate(requests)] == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "RETRY_SECONDS", 0.1)
        mine = [each.token_ids for each in first.generate(requests)]
    assert mine == [each.token_ids for each in TorchEngine(model).generate(requests)]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_engine_that_has_ended_says_so(model, servers, tmp_path, monkeypatch, at_once):
    """Also if the server answers before `submit` of the thread pool has returned."""
    monkeypatch.setattr(engine_module, "NO_SERVER_SECONDS", 0.5)
    engine = connected(model, servers[:1], tmp_path)
    submit = engine._threads.submit

    def submit_and_wait(*call):
        future = submit(*call)
        wait([future], timeout=60)
        return future

    if at_once:
        monkeypatch.setattr(engine._threads, "submit", submit_and_wait)

    def out_of_memory(self, request_ids):
        raise torch.OutOfMemoryError("too little memory")

    monkeypatch.setattr(TorchEngine, "advance", out_of_memory)
    with pytest.raises(NoServerLeftError, match=r"too little memory|without a completion"):
        engine.generate([Request((5, 6, 7), 4)])


def test_a_request_that_a_server_refuses_interrupts_the_run(model, servers, tmp_path):
    engine = connected(model, servers, tmp_path)
    with pytest.raises(InterruptedRunError, match="longer than the context"):
        engine.generate([Request((5, 6, 7), 5000)])


def test_mistakes_are_one_sentence(model, servers, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UserError, match=r"cannot be reached.*lmgym serve"):
        connect("vllm", [unused], model, tmp_path)
    with pytest.raises(UserError, match=r"not the address of a server"):
        connect("vllm", ["localhost:8000"], model, tmp_path)
    with pytest.raises(UserError, match=r"--servers http://host:8000"):
        connect("vllm", [], model, tmp_path)
    with pytest.raises(UserError, match=r"refuses /nowhere \(404: there is no route /nowhere\)"):
        post(address(servers[0]), "/nowhere", {}, 10)
    with pytest.raises(UserError, match=r"before --top_k and --top_p"):
        SGLangServer(address(servers[0])).complete("x", Request((1,), 1, Distribution(1.0, 5)), frozenset())


def test_a_server_that_never_answers_is_given_up_after_its_deadline():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerUnreachableError, match=r"did not answer /pause within 0 s; see its log"):
            post(url, "/pause", {}, 0.2)


def server_process(folder: Path, port: int) -> subprocess.Popen[str]:
    """`lmgym serve --engine torch` as a process of its own."""
    command = [sys.executable, "-m", "lmgym", "serve", str(folder), "--engine", "torch", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--dtype", "float32"], stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    assert "is served at" in process.stderr.readline()
    return process


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_killed_server_costs_no_request_and_gets_the_weights_when_it_returns(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(engine_module, "NO_SERVER_SECONDS", 1.0)
    model = tiny_model()
    model.network.generation_config.eos_token_id = None
    ports = [free_port(), free_port()]
    processes = [server_process(model_folder, port) for port in ports]
    try:
        engine = connect("vllm", [f"http://127.0.0.1:{port}" for port in ports], model, tmp_path)
        requests = [Request((5, 6, 7, seed), 200, seed=seed, group=seed) for seed in range(16)]
        ids = engine.submit(requests)
        time.sleep(0.3)
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        completions: dict[int, object] = {}
        while len(completions) < len(ids):
            completions |= engine.wait([each for each in ids if each not in completions])
        assert engine.metrics()["moved_requests"] > 0
        assert [server.url for server in engine.live_servers] == [f"http://127.0.0.1:{ports[1]}"]
        changed(model)
        engine.generate(requests[:1])
        processes[0] = server_process(model_folder, ports[0])
        deadline = time.monotonic() + 60
        while len(engine.live_servers) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert VLLMServer(f"http://127.0.0.1:{ports[0]}").status().weight_version.endswith("-1")
        assert {each.versions[0] for each in engine.generate(requests)} == {1}
        for process in processes:
            process.kill()
            process.wait()
        with pytest.raises(NoServerLeftError, match=r"no server is left.*cannot be reached"):
            engine.generate(requests[:2])
    finally:
        for process in processes:
            process.kill()


def test_the_status_of_servers_is_a_table(model, servers, tmp_path):
    engine = connected(model, servers, tmp_path)
    engine.generate(ragged_requests(4))
    command = [sys.executable, "-m", "lmgym", "servers", *(server.url for server in engine.servers)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"})
    assert printed.stdout.count("tiny-llama") == 2
    assert json.dumps(0) in printed.stdout
