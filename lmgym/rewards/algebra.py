r"""Answers as computer algebra reads them: `2\frac12` is 5/2, `14,\!400` is 14400, and a sentence is no formula."""

from __future__ import annotations

import re

from lmgym.rewards.latex import (
    DEGREES,
    FRACTION_COMMAND,
    SIZE,
    has_list,
    without_dollars,
    without_outer_braces,
    without_thousands_separators,
    without_unit,
)

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z*]+\}|\\[a-zA-Z]+|\\.")
_WORD = re.compile(r"[a-zA-Z]{3,}|\b(?:or|is|no|if|to|at)\b")
_CHARACTERS = {
    "π": r"\pi ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "×": r"\times ",
    "−": "-",
    "∪": r"\cup ",
}
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "gcd", "lcm", "max", "min", "mod", "det")
)
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textnormal|textrm|textbf|textit|mathbf)\s*\{([^{}]*)\}")
_ABOUT = re.compile(r"\\(?:approx|sim|simeq)(?![a-zA-Z])|≈")
_ONE_MATRIX = re.compile(r"\\begin\s*\{(\w+)\}(?:(?!\\begin).)*\\end\s*\{\1\}", re.DOTALL)
"""Of several matrices, or of one within a formula, computer algebra may read only a part."""
_PLAIN_MATRIX = re.compile(r"\\begin\s*\{([pbB]?matrix)\}((?:(?!\\begin).)*)\\end\s*\{\1\}", re.DOTALL)
"""One whose kind of brackets says nothing; vmatrix is a determinant."""
_NAME = re.compile(r"[a-zA-Z]{2,}")
_OR = re.compile(r"(?:\\text\s*\{\s*)?\b(?:or|and)\b(?:\s*\})?")
_SPACE = re.compile(r"\\[ ,;:!]|\\q?quad(?![a-zA-Z])|~")
_MIXED = re.compile(r"(?<![\d.}^_])(\d+)\s*\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
_PLAIN_MIXED = re.compile(r"(?<![\d.}^_])(\d+)\s+(\d+)/(\d+)(?![\d.])")
_EQUAL_NUMBERS = re.compile(r"^\s*[-\d.,\s]+=[-\d.,\s]+$")
_BASE = re.compile(r"\w+\s*_\s*\{?\s*\d+\s*\}?")
"""A number in another base: its value in base ten is not the answer."""


def for_algebra(answer: str, given: str) -> tuple[str | None, str | None]:
    """Both answers as formulas, or None for one that is a text, is empty or hedges."""
    commas_separate = has_list(answer) or has_list(given)
    if "," in answer or _OR.search(answer):  # several solutions, in whatever words; elsewhere `or` is a hedge
        answer, given = _OR.sub(",", answer), _OR.sub(",", given)
    return _formula(answer, commas_separate), _formula(given, commas_separate)


def matrix_entries(text: str) -> list[list[str]] | None:
    """The rows of a matrix, if the answer is one matrix and nothing else."""
    found = _PLAIN_MATRIX.fullmatch(SIZE.sub("", without_dollars(text)).strip())
    if found is None:
        return None
    return [[entry.strip() for entry in row.split("&")] for row in found[2].strip().removesuffix("\\\\").split("\\\\")]


def _formula(text: str, commas_separate: bool) -> str | None:
    if _ABOUT.search(text):
        return None
    text = without_thousands_separators(without_outer_braces(without_dollars(text)), commas_separate)
    text = DEGREES.sub("", SIZE.sub("", text))
    text = without_unit(text)
    if any(_NAME.search(words) for words in _TEXT.findall(text)):
        return None
    text = _SPACE.sub(" ", _TEXT.sub(r" \1 ", text))
    for character, command in _CHARACTERS.items():
        text = text.replace(character, command)
    if not text.strip() or not text.isascii() or _has_words(text) or _BASE.fullmatch(text.strip()):
        return None
    if _EQUAL_NUMBERS.search(text):  # computer algebra would compare one side only
        return None
    if r"\begin" in text and not _ONE_MATRIX.fullmatch(text.strip()):
        return None
    text = FRACTION_COMMAND.sub(r"\\frac", text)
    text = _MIXED.sub(_sum_of_mixed, text)
    text = _PLAIN_MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    return text.strip()


def _has_words(text: str) -> bool:
    return any(word.lower() not in _FUNCTIONS for word in _WORD.findall(_COMMAND.sub(" ", text)))


def _sum_of_mixed(match: re.Match[str]) -> str:
    return rf"({match[1]}+\frac{{{match[2] or match[3]}}}{{{match[4] or match[5]}}})"
