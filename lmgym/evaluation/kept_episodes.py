"""The episodes of an unfinished evaluation, kept beside its output, so that the same command continues it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmgym.buffer import read_episodes
from lmgym.distributed.processes import processes
from lmgym.types import Episode


class KeptEpisodes:
    """Files of episodes whose name has a hash of what is evaluated: other settings or weights do not continue them."""

    def __init__(self, output: Path, evaluated: Mapping[str, Any], samples: int = 1) -> None:
        """`evaluated` identifies the model, the problems and the way of sampling `samples` of each."""
        digest = hashlib.sha256(json.dumps(evaluated, sort_keys=True, default=str).encode()).hexdigest()[:12]
        self.folder, self.name, self.samples = output.parent, f"{output.name}.{digest}", samples
        self.path = self.folder / f"{self.name}.{processes().rank}.jsonl"
        """The file that this process appends to; it reads those of all."""

    def load(self) -> list[Episode]:
        """The episodes of problems whose samples are all there, each once; those that failed are sampled again.

        The first process reads for all, before any of them samples.
        """
        return processes().decide(self._read)

    def _read(self) -> list[Episode]:
        found = [episode for path in self._files() for episode in read_episodes(path)]
        episodes = {episode.steps[0].state.episode: episode for episode in found if episode.error is None}
        counts = Counter(episode.group for episode in episodes.values())
        return [episode for episode in episodes.values() if counts[episode.group] == self.samples]

    def remove(self) -> None:
        """Deletes the files, once the evaluation is written."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        paths = sorted(self.folder.iterdir())
        return [path for path in paths if path.name.startswith(f"{self.name}.") and path.suffix == ".jsonl"]
