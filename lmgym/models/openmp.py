"""How OpenMP's threads wait for each other; it is read when torch is loaded, so it must be set before that."""

from __future__ import annotations

import os

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""For GNU's runtime (torch on Linux) rounds of spinning, for LLVM's and Intel's (macOS, MKL) milliseconds.

By default waiting threads spin until they are needed. On an idle machine that gains nothing over a short spin; beside
one busy process they spin on the core that the thread they wait for needs, and a step takes ten times as long.
"""


def limit_spinning() -> None:
    """Lets waiting threads sleep after a short spin, unless the user has said how they are to wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
