"""The engine of a cluster: requests go to inference servers, and new weights before the first request that needs them.

    policy ── submit ──► one thread per request ── HTTP ──► server of the request's group
                                                              │ no answer: the next server
    learner ── model.version + 1 ──► update_weights writes them once ──► every live server loads them

A server that does not answer is lost: its requests are sent to the others, so no episode is lost with it. A thread asks
for it every few seconds, and gives it the current weights before it gets work again.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import threading
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from lmgym.console import messages
from lmgym.engines.engine import Completion, Engine, Request
from lmgym.engines.server.http import DroppedConnectionError, ServerUnreachableError
from lmgym.engines.server.server import Server
from lmgym.engines.server.weights import write_weights
from lmgym.errors import InterruptedRunError, UserError
from lmgym.models.language_model import LanguageModel

RETRY_SECONDS = 5.0
"""Time between two attempts to reach a lost server."""

NO_SERVER_SECONDS = 60.0
"""How long requests wait for a server to return when none is left."""


ATTEMPTS = 4
ATTEMPT_SECONDS = 0.2
"""A dropped connection is tried again so often, after so long, twice as long …"""


class NoServerLeftError(InterruptedRunError):
    """No server answers any more."""


class ServerEngine(Engine):
    """Samples on servers, all of which serve the current weights of `model`."""

    serves_all_processes = True

    def __init__(self, model: LanguageModel, servers: Sequence[Server], folder: Path, max_running: int = 256) -> None:
        """At most `max_running` requests per server are sent at once; all servers must be able to read `folder`."""
        self.model = model
        self.servers = list(servers)
        self.folder = folder.absolute()
        self.moved_requests = 0
        """Requests that another server had to take over."""
        self._threads = ThreadPoolExecutor(max_running * max(1, len(servers)), thread_name_prefix="lmgym-request")
        self._futures: dict[int, Future[Completion]] = {}
        self._cancelled: set[int] = set()
        """Running requests whose failure matters to nobody."""
        self._next_request_id = 0
        self._prefix = f"lmgym-{uuid.uuid4().hex[:8]}"
        """What the names of this engine's requests and its folder of weights begin with: others may use both places."""
        self._written: Path | None = None
        """The folder of the newest weights."""
        self._version: int | None = None
        """The version of the newest weights."""
        self._lost: dict[str, str] = {}
        """Why each lost server was given up, by its address."""
        self._keeps_weights = False
        self._lock = threading.Lock()
        """Held while `_lost`, `_written` and `_version` change, never during a call to a server."""
        atexit.register(shutil.rmtree, self.folder / self._prefix, ignore_errors=True)

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queues requests and returns their ids; servers with older weights get the current ones first."""
        if not self._keeps_weights:
            self.update_weights()
        first = self._next_request_id
        self._next_request_id += len(requests)
        request_ids = list(range(first, first + len(requests)))
        eos_ids = self.model.eos_ids
        for request_id, request in zip(request_ids, requests, strict=True):
            self._futures[request_id] = self._threads.submit(self._complete, request_id, request, eos_ids)
        return request_ids

    def wait(self, request_ids: Collection[int]) -> dict[int, Completion]:
        """Waits until at least one of these requests is finished, and returns all finished ones, each once."""
        pending = {self._futures[request_id]: request_id for request_id in request_ids if request_id in self._futures}
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        finished = sorted(pending[future] for future in done)
        try:
            return {request_id: self._futures.pop(request_id).result() for request_id in finished}
        except InterruptedRunError:
            raise
        except UserError as error:  # a server that answered before refuses a request
            raise InterruptedRunError(str(error)) from error

    def cancel(self, request_ids: Collection[int]) -> None:
        """Drops requests whose completions are no longer needed."""
        futures = {
            request_id: self._futures.pop(request_id) for request_id in request_ids if request_id in self._futures
        }
        running = [request_id for request_id, future in futures.items() if not future.cancel()]
        if running:
            self._cancelled.update(running)
            for server in self.live_servers:
                server.abort([self._name(request_id) for request_id in running])

    def metrics(self) -> dict[str, float]:
        """How many requests of the run another server had to take over so far."""
        return {"moved_requests": float(self.moved_requests)}

    @contextlib.contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Servers keep their weights while the block runs, in which an optimiser changes those of the model."""
        self._keeps_weights = True
        try:
            yield
        finally:
            self._keeps_weights = False

    def release_cache(self) -> None:
        """The caches are the servers' own; they are salted with the version of the weights."""

    @property
    def live_servers(self) -> list[Server]:
        """The servers that answer."""
        return [server for server in self.servers if server.url not in self._lost]

    @property
    def faults(self) -> list[str]:
        """Why each of the other servers was given up."""
        return list(self._lost.values())

    def _complete(self, request_id: int, request: Request, eos_ids: frozenset[int]) -> Completion:
        """Runs in a thread of its own: asks the group's server, and the next one if it does not answer."""
        attempts = 0
        while True:
            server = self._server_of(request.group)
            try:
                return server.complete(self._name(request_id), request, eos_ids)
            except ServerUnreachableError as error:
                if request_id in self._cancelled:
                    raise
                attempts += 1
                if isinstance(error, DroppedConnectionError) and attempts < ATTEMPTS:
                    time.sleep(attempts * ATTEMPT_SECONDS)
                    continue
                self._lose(server, str(error))
                self.moved_requests += 1
                attempts = 0

    def _server_of(self, group: int) -> Server:
        """A group's server by rendezvous hashing: when one is lost, only its own groups move."""
        deadline = time.monotonic() + NO_SERVER_SECONDS
        while not (live := self.live_servers):
            if time.monotonic() > deadline:
                raise NoServerLeftError(f"no server is left. {' '.join(self.faults)}")
            time.sleep(ATTEMPT_SECONDS)
        return max(live, key=lambda server: zlib.crc32(f"{server.url} {group}".encode()))

    def update_weights(self) -> None:
        """Writes the weights if they are new, and has every live server load them."""
        version = self.model.version
        if self._version == version:
            return
        written = write_weights(self.model, self.folder / self._prefix)
        with self._lock:
            self._written, self._version = written, version
            live = self.live_servers
        with ThreadPoolExecutor(max(1, len(live))) as threads:
            list(threads.map(self._load_or_lose, live))

    def _load_or_lose(self, server: Server) -> None:
        """Runs in a thread of its own: gives a server the newest weights."""
        try:
            self._load(server)
        except (ServerUnreachableError, UserError) as error:
            self._lose(server, str(error))

    def _load(self, server: Server) -> int:
        """Gives a server the newest weights, and returns their version."""
        with self._lock:
            written, version = self._written, self._version
        assert written is not None
        assert version is not None
        load = server.load_adapter if self.model.has_lora else server.load_weights
        load(written, version)
        return version

    def _lose(self, server: Server, reason: str) -> None:
        """Gives a server up, and starts to ask for it."""
        with self._lock:
            if server.url in self._lost:
                return
            self._lost[server.url] = reason
        left = len(self.live_servers)
        others = f" Its requests go to the other {left}." if left else ""
        messages.print(f"WARNING: {reason}{others}", style="bold red", markup=False, soft_wrap=True)
        threading.Thread(target=self._ask_again, args=(server,), daemon=True, name="lmgym-lost-server").start()

    def _ask_again(self, server: Server) -> None:
        """Runs in a thread of its own until the server answers and has the current weights."""
        pause = threading.Event()
        while not pause.wait(RETRY_SECONDS):
            try:
                server.check_flags()
                version = self._load(server)
            except (ServerUnreachableError, UserError):
                continue
            with self._lock:
                if version != self._version:  # there are newer ones meanwhile
                    continue
                del self._lost[server.url]
            messages.print(f"{server.url} answers again and has the current weights.", markup=False, soft_wrap=True)
            return

    def _name(self, request_id: int) -> str:
        return f"{self._prefix}-{request_id}"
