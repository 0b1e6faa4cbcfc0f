"""Joins the processes that torchrun started; only the first one prints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from lmgym.console import messages, results
from lmgym.errors import UserError

MARK = ".torchrun"
"""The file of a run directory that names the torchrun that it belongs to."""

CONNECT = timedelta(minutes=5)
"""How long a process waits for the others to start."""

DEADLINE = timedelta(hours=2)
"""How long a process waits for the others before it fails; the first one may be sampling for all."""


def is_launched() -> bool:
    """Whether torchrun started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def attempt() -> int:
    """How often torchrun has started the processes again, because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Whether torchrun would start the processes again."""
    return is_launched() and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextlib.contextmanager
def joined_processes() -> Iterator[None]:
    """Connects to the other processes, and leaves them at the end; without torchrun it does nothing."""
    if not is_launched():
        yield
        return
    # Imported before there is a process group, which default arguments of functions in torch would keep for ever.
    from lmgym.distributed.sharding import release_meshes

    has_cuda, rank, count = torch.cuda.is_available(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if has_cuda and local >= torch.cuda.device_count():
        raise UserError(f"rank {rank} has no GPU of its own: give --nproc-per-node {torch.cuda.device_count()}.")
    if has_cuda:
        torch.cuda.set_device(local)
    try:
        # Objects are exchanged on the CPU, gradients where they are.
        backend = "cpu:gloo,cuda:nccl" if has_cuda else "gloo"
        torch.distributed.init_process_group(
            backend, store=_store(count), rank=rank, world_size=count, timeout=DEADLINE
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"rank {rank} cannot connect to the other processes of torchrun: {error}") from error
    messages.quiet = results.quiet = rank != 0
    try:
        yield
    except UserError as error:
        messages.quiet = False
        raise type(error)(f"rank {rank}: {error}" if rank else str(error)) from error
    finally:
        torch.distributed.destroy_process_group()
        release_meshes()


def _store(count: int) -> Store:
    """Where the processes find each other.

    Keys of an earlier attempt stay in the store of torchrun, and a process that read them would wait for one that is
    dead: each attempt has its own prefix. On several nodes the attempts are not counted alike, so there it has none.
    """
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
    store = TCPStore(*address, count, is_master=not is_served and os.environ["RANK"] == "0", timeout=CONNECT)
    return PrefixStore(f"lmgym-{attempt()}", store) if os.environ.get("GROUP_WORLD_SIZE", "1") == "1" else store


def mark(folder: Path | None) -> None:
    """Notes in a new run directory which torchrun it belongs to."""
    if folder is not None and may_restart():
        (folder / MARK).write_text(os.environ["TORCHELASTIC_RUN_ID"])


def is_marked(folder: Path) -> bool:
    """Whether an earlier attempt of this torchrun made the run directory."""
    path = folder / MARK
    return path.exists() and path.read_text() == os.environ["TORCHELASTIC_RUN_ID"]
