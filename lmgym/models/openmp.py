"""How long OpenMP threads spin while they wait; must be set before torch is imported, which reads it."""

from __future__ import annotations

import os

SPIN_LIMITS = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""Spin iterations for the GNU runtime (torch on Linux), milliseconds for those of LLVM and Intel (macOS, MKL).

By default waiting threads spin until they get work. On an idle machine that is no faster than a short spin. Next to a
busy process they occupy the core that the thread they wait for needs, and a step takes ten times as long.
"""


def limit_spinning() -> None:
    """Makes waiting threads sleep after a short spin, unless the user has set OMP_WAIT_POLICY or these variables."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPIN_LIMITS.items():
            os.environ.setdefault(name, value)
