"""A baseline: a library, or lmgym itself, that a workload is measured with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.speed.virtual_environments import VirtualEnvironment


@dataclass(frozen=True)
class Baseline:
    """The script of a library, its interpreter, and its own options."""

    name: str
    script: str
    """A file of benchmarks/speed/baselines, without its suffix."""
    virtual_environment: VirtualEnvironment | None = None
    """Created before the first run; None means this interpreter."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this script only, such as a micro-batch size."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are added to those of this process."""
    warm_up: bool = True
    """Whether one run is discarded before the measured ones."""

    def python(self) -> str:
        """The interpreter; its virtual environment is created if it does not exist."""
        return self.virtual_environment.python() if self.virtual_environment else sys.executable


LMGYM = Baseline("lmgym", "lmgym_baseline")
