"""The engine of servers against vLLM itself, where there is one; elsewhere the stand-in is all that is tested."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from engine_checks import ragged_requests

from lmgym.engines.engine import Completion, Request
from lmgym.engines.server.connect import connect
from lmgym.engines.server.vllm_server import VLLMServer
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.models.lora import LoraSettings

PYTHON = Path(os.environ.get("LMGYM_VLLM_PYTHON", "none"))
"""The Python of an environment that has vLLM; `make bench` makes one in LMGYM_CACHE/baselines/vllm."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="LMGYM_VLLM_PYTHON names no Python with vLLM"),
]

SIZE = 128
"""vLLM's attention needs heads of at least 32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model with other weights than ours."""
    folder = tmp_path_factory.mktemp("vllm-model")
    tiny_network(size=SIZE, seed=7).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    with serving(folder) as url:
        yield url


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[str]:
    """`lmgym serve` with vLLM; its address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "lmgym", "serve", str(folder), "--port", str(port), "--dtype", "float32", *flags]
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--vllm_python", str(PYTHON), "--", "--max-model-len", "512", "--enforce-eager"],
            stdout=file,
            stderr=file,
            env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 600
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")
        try:
            VLLMServer(url).status()
        except Exception:  # it is starting
            time.sleep(1)
        else:
            return


@torch.no_grad()
def difference(model: LanguageModel, request: Request, completion: Completion) -> float:
    """The largest difference of the completion's log-probs to those of a plain forward pass."""
    tokens = torch.tensor([[*request.prompt, *completion.token_ids]])
    logits = model.logits(model.plain_hidden_states(tokens))[0, len(request.prompt) - 1 : -1]
    expected = (logits / request.distribution.temperature).log_softmax(dim=-1)
    chosen = expected.gather(1, tokens[0, len(request.prompt) :, None])[:, 0]
    return float((chosen - torch.tensor(completion.logprobs)).abs().max())


def test_vllm_samples_with_our_weights_before_and_after_an_update(server, tmp_path):
    """The tied head included; log-probs at a temperature, versions of each token, stop ids and EOS."""
    model = tiny_model(size=SIZE)
    engine = connect("vllm", [server], model, tmp_path)
    stop = frozenset(range(10, 30))
    requests = [
        Request(each.prompt, 12, Distribution(0.7), seed=each.seed, stop_ids=stop, group=index)
        for index, each in enumerate(ragged_requests(16))
    ]
    for version in range(3):
        completions = engine.generate(requests)
        for request, completion in zip(requests, completions, strict=True):
            assert completion.versions == [version] * len(completion.token_ids)
            assert difference(model, request, completion) < 1e-3
            ended = completion.token_ids[-1]
            finishes = {"stop": ended in stop, "eos": ended in model.eos_ids, "length": len(completion.token_ids) == 12}
            assert finishes[completion.finish]
            assert not stop & set(completion.token_ids[:-1])
        with torch.no_grad():
            for weight in model.trainable().values():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(version)))
        model.version += 1
        engine.update_weights()
    assert engine.moved_requests == 0


def test_the_weights_change_within_an_answer(server, tmp_path):
    model = tiny_model(size=SIZE)
    model.network.generation_config.eos_token_id = None
    engine = connect("vllm", [server], model, tmp_path)
    (request_id,) = engine.submit([Request((5, 6, 7), 400, seed=4)])
    time.sleep(0.5)
    model.version += 1
    engine.update_weights()
    completion = engine.wait([request_id])[request_id]
    assert completion.versions == sorted(completion.versions)
    assert set(completion.versions) <= {0, 1}


def test_adapters_are_handed_over_by_name(folder, tmp_path):
    """Three versions of an adapter; the base stays, and log-probs are those of each version."""
    model = load_model(str(folder), device="cpu", dtype="float32", lora=LoraSettings(8, 16))
    requests = [
        Request(each.prompt, 8, Distribution(0.7), seed=each.seed, group=index)
        for index, each in enumerate(ragged_requests(8))
    ]
    with serving(folder, "--lora_rank", "8") as url:
        engine = connect("vllm", [url], model, tmp_path)
        for version in range(3):
            for request, completion in zip(requests, engine.generate(requests), strict=True):
                assert completion.versions == [version] * len(completion.token_ids)
                assert difference(model, request, completion) < 1e-3
            with torch.no_grad():
                for weight in model.trainable().values():
                    weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(version)))
            model.version += 1
            engine.update_weights()


def test_two_servers_and_two_processes_train_together(folder, server, tmp_path):
    """Sharded weights, two vLLM servers, sampling while learning: from the command line, to the end of the run."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    out = tmp_path / "run"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lmgym", "train", "rloo"]
    flags = f"""--env arithmetic --shots 0 --max_tokens 8 --eval_problems 8 --group_size 4 --problems_per_iteration 4
        --iterations 4 --tis_cap 2 --max_staleness 1 --shard --dtype float32 --model {folder} --engine vllm
        --weights_folder {tmp_path / "weights"} --out {out}""".split()
    with serving(other) as second:
        done = subprocess.run(
            [sys.executable, *torchrun, *flags, "--servers", f"{server},{second}"],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "reward" in row]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(row["logprob_diff"] < 1e-3 and row["staleness"] <= 1 for row in rows)
    assert (out / "model" / "model.safetensors").exists()
