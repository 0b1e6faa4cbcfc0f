"""`lmgym serve` starts an inference server, and `lmgym servers` says what servers are doing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.table import Table

from lmgym.console import messages, results
from lmgym.engines.server.http import ServerUnreachableError
from lmgym.engines.server.server import Server, ServerStatus
from lmgym.engines.server.vllm_server import CPU_FLAGS, ENVIRONMENT, FLAGS, LORA_ENVIRONMENT
from lmgym.errors import UserError

MEASURED_SECONDS = 2.0
"""Time between two readings of a server's token count."""


@dataclass
class ServeSettings:
    """The settings of `lmgym serve`; what follows -- are flags of vLLM: -- --tensor-parallel-size 2"""

    model: Annotated[str, tyro.conf.Positional] = "smollm2-135m"
    """What `--model` of `lmgym train` names."""
    engine: Literal["vllm", "torch"] = "vllm"
    """vllm: starts vLLM, which must be installed; torch: lmgym's own engine, for every model and device."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 lets other machines in, and whoever reaches it can replace the weights."""
    port: int = 8000
    """The port to listen on."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type; take the trainer's."""
    device: str = "auto"
    """The device of --engine torch."""
    lora_rank: int = 0
    """The largest rank of the adapters that the trainer will send; 0: it sends all weights."""
    vllm_python: str = sys.executable
    """The Python that has vLLM, if it is installed in an environment of its own."""
    dry_run: bool = False
    """Print the command of vLLM and do not run it."""


def serve(settings: ServeSettings, vllm_flags: Sequence[str] = ()) -> None:
    """Serves until it is interrupted."""
    if settings.engine == "torch":
        _serve_torch(settings)
        return
    from lmgym.assets.catalogue import model_folder

    command, environment = vllm_command(settings, model_folder(settings.model), vllm_flags)
    spoken = [f"{name}={value}" for name, value in environment.items()]
    messages.print(f"$ {' '.join(spoken)} {shlex.join(command)}", markup=False, soft_wrap=True)
    if settings.dry_run:
        return
    python = shutil.which(settings.vllm_python)
    if python is None:
        raise UserError(f"there is no program {settings.vllm_python}: name a Python with --vllm_python.")
    found = subprocess.run([settings.vllm_python, "-c", "import vllm"], capture_output=True, check=False)
    if found.returncode:
        raise UserError(
            f"{settings.vllm_python} has no vLLM: name the Python that has it with --vllm_python, or serve with the "
            "engine of lmgym: --engine torch."
        )
    os.execve(python, command, os.environ | environment)


def vllm_command(settings: ServeSettings, folder: Path, flags: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The command that starts vLLM with what the engine needs, and its environment variables."""
    command = [settings.vllm_python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--served-model-name", settings.model]
    command += ["--host", settings.host, "--port", str(settings.port), "--dtype", settings.dtype, *FLAGS]
    command += () if torch.cuda.is_available() else CPU_FLAGS
    command += flags
    environment = dict(ENVIRONMENT)
    if settings.lora_rank:
        command += ["--enable-lora", "--max-lora-rank", str(settings.lora_rank)]
        environment |= LORA_ENVIRONMENT
    return command, environment


def _serve_torch(settings: ServeSettings) -> None:
    from lmgym.engines.server.torch_server import serve as make_server
    from lmgym.models.loading import load_model
    from lmgym.policies.llm_policy import engine_for

    if settings.lora_rank:
        raise UserError("--engine torch serves no adapters: train all weights, or serve with --engine vllm.")
    model = load_model(settings.model, device=settings.device, dtype=settings.dtype)
    server = make_server(model, engine_for(model), settings.host, settings.port)
    messages.print(f"{settings.model} is served at http://{settings.host}:{server.server_port}", markup=False)
    server.serve_forever()


@dataclass
class ServersSettings:
    """The settings of `lmgym servers`."""

    urls: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Addresses, separated by spaces or commas: http://host:8000,http://host:8001"""
    engine: Literal["vllm", "sglang"] = "vllm"
    """What they run; servers of lmgym's own engine answer like vLLM."""
    wait: float = 0.0
    """Wait up to this many seconds until all of them answer."""


def show_servers(settings: ServersSettings) -> None:
    """Prints model, weight version, load and speed of each server."""
    from lmgym.engines.server.connect import KINDS

    urls = [url for part in settings.urls for url in part.split(",") if url]
    if not urls:
        raise UserError("give the addresses of servers: lmgym servers http://host:8000 http://host:8001")
    servers = [KINDS[settings.engine](url) for url in dict.fromkeys(urls)]
    if settings.wait:
        _wait_for(servers, time.monotonic() + settings.wait)
    with ThreadPoolExecutor(len(servers)) as threads:
        rows = list(threads.map(_row, servers))
    table = Table("server", "model", "weights", "running", "waiting", "tokens/s", "prefix cache")
    for row in rows:
        table.add_row(*row)
    results.print(table)


def _wait_for(servers: Sequence[Server], deadline: float) -> None:
    """Returns when all servers answer; names one that does not before the deadline."""
    for server in servers:
        while True:
            try:
                server.status()
                break
            except ServerUnreachableError as error:
                if time.monotonic() > deadline:
                    raise UserError(f"{error} It did not answer in time.") from error
                time.sleep(MEASURED_SECONDS)


def _row(server: Server) -> tuple[str, ...]:
    try:
        before, started = server.status(), time.perf_counter()
        time.sleep(MEASURED_SECONDS)
        now, seconds = server.status(), time.perf_counter() - started
    except (ServerUnreachableError, UserError) as error:
        return (server.url, str(error))
    return (server.url, *_cells(now, (now.tokens - before.tokens) / seconds))


def _cells(status: ServerStatus, speed: float) -> tuple[str, ...]:
    cache = f"{100 * status.cache_hit_share:.0f} % of {status.prompt_tokens:,}" if status.prompt_tokens else "–"
    return (status.model, status.weight_version, str(status.running), str(status.waiting), f"{speed:.0f}", cache)
