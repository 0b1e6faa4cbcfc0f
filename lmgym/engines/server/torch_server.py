"""`lmgym serve --engine torch`: the in-process engine behind the routes of vLLM that `VLLMServer` speaks.

It serves every model that lmgym runs, on any device, and stands in for vLLM where that cannot be installed.

    HTTP thread ── request ──► queue ──► engine thread: submit, one pass, hand out what is finished ──► HTTP thread
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file

from lmgym.engines.engine import Completion, Request
from lmgym.engines.local_engine import LocalEngine
from lmgym.errors import UserError
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel, base_network

INITIAL_VERSION = "default"
"""The label of the weights that a server started with."""

IDLE_SECONDS = 0.05
"""How long the engine thread sleeps when it is paused."""


@dataclass
class _Job:
    """A request that an HTTP thread waits for."""

    name: str
    request: Request
    done: threading.Event = field(default_factory=threading.Event)
    completion: Completion | None = None


class EngineThread:
    """Owns the engine: all calls to it are made in one thread, between two passes."""

    def __init__(self, model: LanguageModel, engine: LocalEngine) -> None:
        self.model = model
        self.engine = engine
        self.labels = {model.version: INITIAL_VERSION}
        """The labels that versions of the weights were given, by the model's own count."""
        self.tokens = 0
        self.is_paused = False
        self.fault = ""
        """Why the engine has ended, if it has."""
        self._jobs: dict[int, _Job] = {}
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True, name="lmgym-engine").start()

    def complete(self, name: str, request: Request) -> Completion | None:
        """Waits for a completion; None if it was aborted."""
        job = _Job(name, request)
        self.call(lambda: self._submit(job))
        job.done.wait()
        return job.completion

    def call(self, function: Callable[[], None]) -> None:
        """Runs a function in the engine's thread, and raises what it raises."""
        done = threading.Event()
        errors: list[Exception] = []

        def run() -> None:
            try:
                function()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self._calls.put(run)
        done.wait()
        if errors:
            raise errors[0]

    def abort(self, names: list[str]) -> None:
        """Ends requests without a completion; without names, all of them."""
        for request_id in [key for key, job in self._jobs.items() if job.name in names or not names]:
            self.engine.cancel([request_id])
            self._jobs.pop(request_id).done.set()

    def load_weights(self, folder: Path) -> None:
        """Copies the tensors of a folder over the network's own; unfinished requests are computed again."""
        tensors = load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, weight in base_network(self.model.network).named_parameters():
                weight.copy_(tensors[name])
        self.engine.release_cache()
        self.model.version += 1
        self.label = INITIAL_VERSION

    @property
    def label(self) -> str:
        """The label of the current weights."""
        return self.labels[self.model.version]

    @label.setter
    def label(self, label: str) -> None:
        self.labels[self.model.version] = label

    @property
    def running(self) -> int:
        """Requests without a completion."""
        return len(self._jobs)

    def _submit(self, job: _Job) -> None:
        self._jobs[self.engine.submit([job.request])[0]] = job

    def _run(self) -> None:
        try:
            self._compute()
        except Exception as error:  # such as too little memory: every request must learn of it
            self.fault = f"the engine has ended: {type(error).__name__}: {error}"
            while True:
                self.abort([])
                self._calls.get()()

    def _compute(self) -> None:
        while True:
            self._make_calls()
            if self.is_paused or not self._jobs:
                continue
            for request_id, completion in self.engine.advance(list(self._jobs)).items():
                self.tokens += len(completion.token_ids)
                job = self._jobs.pop(request_id)
                job.completion = completion
                job.done.set()

    def _make_calls(self) -> None:
        """Makes the calls that wait; without anything to compute, waits for one."""
        idle = self.is_paused or not self._jobs
        try:
            self._calls.get(timeout=IDLE_SECONDS if idle else None, block=idle)()
            while True:
                self._calls.get_nowait()()
        except queue.Empty:
            return


def serve(model: LanguageModel, engine: LocalEngine, host: str, port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`."""
    thread = EngineThread(model, engine)

    class Handler(_Handler):
        engine_thread = thread

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port.") from error
    return server


class _Server(ThreadingHTTPServer):
    """A thread per connection, and room for all requests of an iteration to arrive at once."""

    daemon_threads = True
    request_queue_size = 1024


class _Handler(BaseHTTPRequestHandler):
    """Answers the routes of GET_ROUTES and POST_ROUTES."""

    engine_thread: EngineThread
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(GET_ROUTES)

    def do_POST(self) -> None:
        self._answer(POST_ROUTES)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: there are thousands of requests."""

    def _answer(self, routes: dict[str, Callable[[EngineThread, dict[str, Any]], Any]]) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        route = routes.get(urlsplit(self.path).path)
        try:
            if route is None:
                self._send(404, {"error": f"there is no route {self.path}"})
                return
            if self.engine_thread.fault:
                self._send(500, {"error": self.engine_thread.fault})
                return
            body = json.loads(text) if text else {}
            self._send(200, route(self.engine_thread, body))
        except (KeyError, TypeError, ValueError, UserError, OSError) as error:
            self._send(400, {"error": f"{type(error).__name__}: {error}"})

    def _send(self, code: int, answer: Any) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _generate(engine: EngineThread, body: dict[str, Any]) -> dict[str, Any]:
    settings = body["sampling_params"]
    request = Request(
        tuple(body["token_ids"]),
        settings["max_tokens"],
        Distribution(settings["temperature"], max(0, settings["top_k"]), settings["top_p"]),
        **settings["extra_args"],
        stop_ids=frozenset(settings["stop_token_ids"]),
    )
    if len(request.prompt) + request.max_tokens > engine.model.context_length:
        raise UserError(f"prompt and completion are longer than the context of {engine.model.context_length}")
    completion = engine.complete(body["request_id"], request)
    if completion is None:
        return {"choices": [{"token_ids": [], "logprobs": None, "finish_reason": "abort", "weight_versions": []}]}
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    choice = {
        "token_ids": completion.token_ids,
        "logprobs": {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]},
        "finish_reason": "length" if completion.finish == "length" else "stop",
        "weight_versions": [
            {"version": engine.labels[version], "start": index, "end": index + 1}
            for index, version in enumerate(completion.versions)
        ],
    }
    return {"choices": [choice]}


def _abort(engine: EngineThread, body: dict[str, Any]) -> dict[str, Any]:
    engine.call(lambda: engine.abort(body["request_ids"]))
    return {}


def _set_paused(is_paused: bool) -> Callable[[EngineThread, dict[str, Any]], Any]:
    def answer(engine: EngineThread, body: dict[str, Any]) -> dict[str, Any]:
        engine.call(lambda: setattr(engine, "is_paused", is_paused))
        return {}

    return answer


def _collective_rpc(engine: EngineThread, body: dict[str, Any]) -> dict[str, Any]:
    if body["method"] != "reload_weights":
        raise UserError(f"there is no method {body['method']}")
    engine.call(lambda: engine.load_weights(Path(body["kwargs"]["weights_path"])))
    return {}


def _update_weight_version(engine: EngineThread, body: dict[str, Any]) -> dict[str, Any]:
    engine.call(lambda: setattr(engine, "label", body["new_version"]))
    return {}


def _metrics(engine: EngineThread, body: dict[str, Any]) -> str:
    counts = {
        "num_requests_running": engine.running,
        "num_requests_waiting": 0,
        "generation_tokens_total": engine.tokens,
    }
    return "".join(f"vllm:{name} {count}\n" for name, count in counts.items())


POST_ROUTES: dict[str, Callable[[EngineThread, dict[str, Any]], Any]] = {
    "/inference/v1/generate": _generate,
    "/inference/v1/abort_requests": _abort,
    "/pause": _set_paused(True),
    "/resume": _set_paused(False),
    "/collective_rpc": _collective_rpc,
    "/update_weight_version": _update_weight_version,
}

GET_ROUTES: dict[str, Callable[[EngineThread, dict[str, Any]], Any]] = {
    "/health": lambda engine, body: {},
    "/v1/models": lambda engine, body: {"data": [{"id": engine.model.name}]},
    "/weight_info": lambda engine, body: {"weight_version": engine.label},
    "/metrics": _metrics,
    "/openapi.json": lambda engine, body: {"paths": {route: {} for route in POST_ROUTES}},
}
