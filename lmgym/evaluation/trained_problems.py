"""Which problems a model was trained on, as far as the runs that produced it still exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmgym.assets.catalogue import KNOWN_MODELS
from lmgym.buffer import read_episodes
from lmgym.evaluation.contamination import Fingerprint, fingerprint

RUN_FILES = ("episodes.jsonl", "metrics.jsonl")
"""A folder with one of these files is a run directory."""


def trained_problems(model: str) -> set[Fingerprint]:
    """The problems a model was trained on, if it is a run of lmgym or a folder inside one.

    It includes those of the runs that it started from and of the episodes that they loaded; files that no longer exist
    are ignored.
    """
    trained: set[Fingerprint] = set()
    read: set[Path] = set()
    folder = _run_of(model)
    while folder is not None and folder not in read:
        read.add(folder)
        config = _config_of(folder)
        buffers = [folder / "episodes.jsonl"]
        if loaded := config.get("load_episodes", config.get("load_buffer_from_cache_at_start")):
            buffers.append(Path(loaded).expanduser())
        for buffer in filter(Path.is_file, buffers):
            trained |= {fingerprint(episode.problem) for episode in read_episodes(buffer)}
        folder = _run_of(config.get("model", ""))
    return trained


def _run_of(model: str) -> Path | None:
    """The run directory that a path is or is inside of."""
    path = Path(model).expanduser()
    if not model or model in KNOWN_MODELS or not path.exists():
        return None
    path = path.resolve()
    folders = (path, *path.parents[:3])
    return next((one for one in folders for name in RUN_FILES if (one / name).is_file()), None)


def _config_of(folder: Path) -> dict[str, Any]:
    """The config.json of a run, or an empty one if it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
