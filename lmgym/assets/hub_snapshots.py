"""Snapshots of models on the Hugging Face hub: from the local hub cache if complete there, else downloaded."""

from __future__ import annotations

import json
from pathlib import Path

from lmgym.assets.downloads import SourceError, first_line, hub_fault
from lmgym.assets.storage import disk_fault, writing_to

MODEL_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken"]
CONFIG_FILES = ["config.json", "adapter_config.json"]
OTHER_FORMATS = ["*/*"]
"""Subfolders of a repository hold other formats of the same weights."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def hub_snapshot(repository: str, revision: str | None) -> Path:
    """The folder of a model snapshot; downloaded unless the hub cache has all of it."""
    return _cached(repository, revision) or _downloaded(repository, revision, MODEL_FILES)


def hub_config(repository: str, revision: str | None) -> Path:
    """A folder with the config of a model, without downloading its weights."""
    return _cached(repository, revision) or _downloaded(repository, revision, CONFIG_FILES)


def _cached(repository: str, revision: str | None) -> Path | None:
    """The snapshot in the hub cache if it is complete, else None; does not use the network."""
    try:
        folder = _snapshot(repository, revision, MODEL_FILES, local_files_only=True)
    except Exception:  # huggingface_hub raises errors of several kinds: each means a download
        return None
    return folder if _is_complete(folder) else None


def _downloaded(repository: str, revision: str | None, files: list[str]) -> Path:
    """The snapshot with these files from the hub; if the hub is not available, from its cache."""
    from huggingface_hub import constants

    fault = hub_fault()
    with writing_to(Path(constants.HF_HUB_CACHE), setting="HF_HOME"):
        try:
            return _snapshot(repository, revision, files, local_files_only=fault is not None)
        except Exception as error:  # huggingface_hub raises errors of several libraries
            if disk_fault(error, Path(constants.HF_HUB_CACHE)):
                raise
            if fault:
                raise SourceError(f"cannot be used ({fault}) and its local cache does not have it") from error
            raise SourceError(f"says: {first_line(error)}") from error


def _snapshot(repository: str, revision: str | None, files: list[str], local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repository,
            revision=revision,
            allow_patterns=files,
            ignore_patterns=OTHER_FORMATS,
            local_files_only=local_files_only,
        )
    )


def _is_complete(folder: Path) -> bool:
    """Whether a snapshot has config, tokenizer and all weights: another program may have downloaded only some files."""
    for names in (("config.json", "adapter_config.json"), TOKENIZER_FILES):
        if not any((folder / name).is_file() for name in names):
            return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError):
        return False
    return all((folder / shard).is_file() for shard in shards)
