"""Servers of our own with a tiny model, in threads of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from conftest import tiny_model

from lmgym.engines.server.torch_server import serve
from lmgym.engines.torch.engine import TorchEngine


def started(seed: int = 0, size: int = 64) -> ThreadingHTTPServer:
    """A server on a free port, whose model has random weights of this seed."""
    served = tiny_model(seed=seed, size=size)
    server = serve(served, TorchEngine(served), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@contextmanager
def running_servers(count: int = 2, size: int = 64) -> Iterator[list[ThreadingHTTPServer]]:
    servers = [started(seed + 1, size) for seed in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
