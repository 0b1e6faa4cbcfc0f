"""Metric tracking: always a JSON-lines file, and optionally wandb, tensorboard or trackio."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import netrc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from lmgym.errors import UserError

WANDB_HOST = "api.wandb.ai"


class Sink(Protocol):
    """A tracker that receives metrics."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one iteration."""
        ...

    def close(self) -> None:
        """Flushes all metrics."""
        ...


class JsonLines:
    """One line per call of `log`, readable during the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A resumed run continues to count its seconds.
        self.started = time.time() - _last_seconds(path)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends a line."""
        row = {"iteration": iteration, "seconds": round(time.time() - self.started, 1), **metrics}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Every line is already on disk."""


def _last_seconds(path: Path) -> float:
    """The seconds of the last complete line; a crash may have left a torn one."""
    for line in reversed(path.read_text(encoding="utf-8").splitlines() if path.exists() else []):
        with contextlib.suppress(ValueError, KeyError):
            return float(json.loads(line)["seconds"])
    return 0.0


class Wandb:
    """Weights & Biases; it uses WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = _require("wandb")
        project = os.environ.get("WANDB_PROJECT", "lmgym")
        # The id depends on the folder alone, so that a resumed run continues its own curves.
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
        try:
            self.run = wandb.init(
                project=project, id=identity, name=folder.name, dir=str(folder), config=dict(config), resume="allow"
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"wandb cannot start a run: {reason}; set WANDB_MODE=offline to log locally.") from error

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs under the iteration."""
        self.run.log(dict(metrics), step=iteration)

    def close(self) -> None:
        """Uploads what is left, or in offline mode leaves it in the run directory."""
        self.run.finish()


class Tensorboard:
    """TensorBoard event files in the run directory."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        _require("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))
        self.writer.add_text("config", json.dumps(dict(config), indent=2, default=str))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, iteration)
        self.writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self.writer.close()


class Trackio:
    """Trackio, the local-first tracker of Hugging Face."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.trackio = _require("trackio")
        self.trackio.init(project="lmgym", name=folder.name, config=dict(config), resume="allow", embed=False)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs under the iteration."""
        self.trackio.log(dict(metrics), step=iteration)

    def close(self) -> None:
        """Waits until everything is stored."""
        self.trackio.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "wandb": Wandb,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises a UserError for a tracker that is unknown, not installed or not logged in, before anything is written."""
    for name in names:
        if name not in SINKS:
            raise UserError(f"there is no tracker {name!r}; there are {', '.join(SINKS)}.")
        package = _require(name)
        if name == "wandb" and not _is_usable(package.setup().settings):
            package.teardown()  # else it keeps these settings if the user then sets WANDB_MODE in this process
            raise UserError(
                "wandb has no API key: run `wandb login`, set WANDB_API_KEY, or keep the run on this machine with "
                "WANDB_MODE=offline."
            )


def make_sinks(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Sink]:
    """The JSON-lines file of a run and every tracker named."""
    check_trackers(names)
    return [JsonLines(folder / "metrics.jsonl"), *(SINKS[name](folder, config) for name in names)]


def _is_usable(settings: Any) -> bool:
    """Whether wandb needs no API key, or will find one."""
    if (os.environ.get("WANDB_MODE") or settings.mode) in ("offline", "disabled", "dryrun"):
        return True
    if settings.api_key or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    usual = [path for path in (Path.home() / ".netrc", Path.home() / "_netrc") if path.is_file()]
    path = Path(os.environ["NETRC"]).expanduser() if os.environ.get("NETRC") else next(iter(usual), None)
    try:
        hosts = netrc.netrc(path).hosts if path else {}
    except (OSError, netrc.NetrcParseError):
        return False
    return bool({urlsplit(settings.base_url).netloc, WANDB_HOST} & hosts.keys())


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UserError(
            f"tracking with {package} needs the package; install it with: pip install 'lmgym[{package}]'."
        ) from None
