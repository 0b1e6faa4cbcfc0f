"""The protocol of all baselines: one run per line on standard input, and one line of JSON with its result.

Baselines run in the virtual environment of their library, so this file imports the standard library only.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "LMGYM-BENCHMARK "


def settings() -> dict[str, Any]:
    """The settings: a JSON file that is named on the command line."""
    found: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return found


def report(result: dict[str, Any]) -> None:
    """Writes a result as one line whose mark tells it from the library's own output."""
    sys.stdout.write(MARK + json.dumps(result) + "\n")
    sys.stdout.flush()


def serve(run: Callable[[], dict[str, Any]]) -> None:
    """Reports that it is ready, then runs once per line of standard input."""
    report({})
    for _ in sys.stdin:
        started = time.perf_counter()
        result = run()
        report({"seconds": time.perf_counter() - started} | result)
