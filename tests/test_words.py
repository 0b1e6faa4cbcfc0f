"""The field's own words: none of the names that version 0.1 had for things remains in code, help or docs."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXCEPT = {"lmgym/runs/old_names.py", "tests/test_words.py", "tests/commands/test_cli.py", "CHANGELOG.md"}
"""Where the old names are translated into the new ones."""

WORDS = ["seats?", "trunks?", "stranger", "helpings?", "companions?", "learnable", "demonstrator", "rivals?", "verdict"]
WORDS += ["contestants?", "newcomers?", "part_ways", "expel\\w*", "dismiss\\w*", "END_OF_TURN"]
WORDS += ["(silent|teaching) groups?", "KeyValueStore", "max_(sampler_)?ratio", "gap_max", "kl_on_silent_groups"]
PROSE = re.compile(rf"(?<![A-Za-z])({'|'.join(WORDS)})(?![A-Za-z])", re.IGNORECASE)

NAMES = {"NOTHING", "WHOLE", "LOOKING_AHEAD", "NOBODY", "Reader", "Rival", "Peer", "rest", "watch", "taken", "describe"}
NAMES |= {"more_states", "rows_to_hold", "normalisation", "trace", "gap", "room", "spend"}
"""Words of plain English that are forbidden as names only."""
NAMES_OF_VERIFIERS = {"trace"}
"""Those that are names in the API of verifiers, for its adapter and the tests of it."""

FILES = [path for folder in ("lmgym", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in [*FILES, *PAGES] if relative(path) not in EXCEPT], ids=relative)
def test_no_old_word_remains(path):
    text = path.read_text(encoding="utf-8")
    assert not [match.group() for match in PROSE.finditer(text)]
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = NAMES - NAMES_OF_VERIFIERS if "verifiers" in path.name else NAMES
        assert not names & {token.string for token in tokens if token.type == tokenize.NAME}


def test_an_old_word_would_be_found():
    assert PROSE.search("rows behind the trunk")
    assert PROSE.search("def part_ways(self)")
    assert not PROSE.search("truncated")
