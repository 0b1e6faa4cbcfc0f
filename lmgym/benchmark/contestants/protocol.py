"""What every contestant speaks: for each line on standard input one run, and one line of JSON about it.

Contestants run in the virtual environment of the library they stand for, so this file imports nothing of ours.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "LMGYM-BENCHMARK "


def settings() -> dict[str, Any]:
    """What the benchmark asks for: the file that is named on the command line."""
    found: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return found


def say(result: dict[str, Any]) -> None:
    """One line that cannot be taken for a library's own chatter."""
    sys.stdout.write(MARK + json.dumps(result) + "\n")
    sys.stdout.flush()


def serve(run: Callable[[], dict[str, Any]]) -> None:
    """Says that it is ready, then runs once for every line it is given."""
    say({})
    for _ in sys.stdin:
        started = time.perf_counter()
        result = run()
        say({"seconds": time.perf_counter() - started} | result)
