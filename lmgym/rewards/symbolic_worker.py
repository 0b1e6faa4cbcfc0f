"""`python -m lmgym.rewards.symbolic_worker`: compares pairs of formulas, a line of JSON each, until its input ends."""

from __future__ import annotations

import json
import signal
import sys

ORPHAN_SECONDS = 30
"""After so long on one pair it ends itself: whoever asked would have killed it, and must be gone."""

MEMORY = 4 << 30
"""Bytes of address space; `10^{10^{10}}` would need more."""


def main() -> None:
    """Answers [correct, given] by true or false."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that asks
    _limit_memory()
    from lmgym.rewards.symbolic import is_equivalent

    is_equivalent("x+1", "1+x")  # loads everything before the first question, whose time is limited
    _say("ready")
    for line in sys.stdin:
        _end_in(ORPHAN_SECONDS)
        _say(is_equivalent(*json.loads(line)))
        _end_in(0)


def _end_in(seconds: int) -> None:
    """Ends this process after so long, whatever it computes; 0: never."""
    if hasattr(signal, "alarm"):  # not on Windows
        signal.alarm(seconds)


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    main()
