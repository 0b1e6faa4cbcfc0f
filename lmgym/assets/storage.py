"""Writing files so that they are complete or absent, and one-sentence errors for full or read-only disks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from lmgym.errors import UserError

PARTIAL = ".partial-"
STALE_SECONDS = 24 * 3600


@contextlib.contextmanager
def staging_folder(root: Path) -> Iterator[Path]:
    """A temporary folder under root, always removed; on the same file system, so that files move atomically."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(PARTIAL + "*"):  # of a process that was killed
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(leftover)
    # Not tempfile.mkdtemp: folders moved from it would keep its mode 0700 in a cache that several users share.
    folder = root / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def writing_to(folder: Path, setting: str = "LMGYM_CACHE") -> Iterator[None]:
    """Turn disk errors into a one-sentence UserError that names the folder and the variable that sets it."""
    try:
        yield
    except Exception as error:
        fault = disk_fault(error, folder)
        if fault is None:
            raise
        advice = f"free some space or set {setting} to another folder"
        raise UserError(f"cannot write to {folder}: {fault}; {advice}") from error


def disk_fault(error: Exception, folder: Path) -> str | None:
    """The reason if an error is about a full disk or a folder that cannot be written, else None."""
    # By text too: safetensors and huggingface_hub wrap the system's error in their own.
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
        return "the disk is full"
    if isinstance(error, OSError) and error.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
    ):
        path = Path(os.fsdecode(error.filename)) if error.filename else None
        if path is not None and (path == folder or path in folder.parents or folder in path.parents):
            return (error.strerror or "not writable").lower()
    return None


@contextlib.contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which replaces `target` once it is complete."""
    with staging_folder(target.parent) as staging:
        filled = staging / target.name
        filled.mkdir()
        yield filled
        if target.exists():
            os.rename(target, staging / "replaced")
        os.rename(filled, target)


def write_text(path: Path, text: str) -> None:
    """Writes a small file atomically."""
    temporary = path.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
