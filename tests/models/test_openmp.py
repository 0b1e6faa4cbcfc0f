"""The OpenMP spin limits are set before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = "import os, sys, lmgym; print('torch' in sys.modules, *(os.environ.get(name) for name in sys.argv[1:]))"


def after_import(**given: str) -> list[str]:
    """Whether `import lmgym` imports torch, and the variables after it, in a subprocess."""
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in (*names, "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", SHOWN, *names]
    done = subprocess.run(command, env=environment | given, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, ["2000", "1"]),
        ({"GOMP_SPINCOUNT": "7"}, ["7", "1"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["None", "None"]),
    ],
)
def test_spinning_is_limited_before_torch_is_loaded_unless_the_user_chose(given, left):
    assert after_import(**given) == ["False", *left]
