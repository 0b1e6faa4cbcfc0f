"""Other spellings of a correct answer, which a grader must accept, and wrong answers that look like it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from lmgym.rewards.final_answer import parse_number
from lmgym.rewards.latex import has_list

_INTEGER = re.compile(r"-?\d+")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_POWER = re.compile(r"([\^_])(\w)(?!\w)")
_BRACED_POWER = re.compile(r"([\^_])\{(\w)\}")
_SUM = re.compile(r"([^-+=<>,(){}\[\]\\]+)\+([^-+=<>,(){}\[\]\\]+)")
_DIGIT = re.compile(r"\d")
_TEXT = re.compile(r"\\text\{([^{}]+)\}")


def rewrites(answer: str, is_latex: bool) -> Iterator[tuple[str, str]]:
    """Spellings of the same answer, each with the name of what was changed."""
    found = dict(_latex_rewrites(answer) if is_latex else _number_rewrites(answer))
    yield from ((name, text) for name, text in found.items() if text != answer)


def perturbations(answer: str, is_latex: bool) -> Iterator[tuple[str, str]]:
    """Wrong answers made from the right one, each with the name of what was changed."""
    number = parse_number(answer)
    if number is not None:
        yield "one more", _decimal(number + 1)
        if number:
            yield "negative", _decimal(-number)
            yield "ten times", _decimal(10 * number)
        yield "hedged", f"{answer} or {_decimal(number + 1)}"
        return
    if not is_latex:
        return
    digit = _DIGIT.search(answer)
    if digit:
        other = str((int(digit[0]) + 1) % 10 or 1)
        if other != digit[0]:
            yield "another digit", answer[: digit.start()] + other + answer[digit.end() :]
    yield "doubted", rf"{answer} \text{{ is wrong}}"
    if not _TEXT.search(answer):
        yield "hedged", rf"{answer} \text{{ or }} 7919"
        if not has_list(answer) and "=" not in answer:
            yield "one more", f"{answer} + 1"


def _number_rewrites(answer: str) -> Iterator[tuple[str, str]]:
    number = parse_number(answer)
    if number is None:
        return
    plain = _decimal(number)
    yield "plain", plain
    yield "dollars", f"${plain}"
    yield "full stop", f"{plain}."
    if number.denominator == 1:
        yield "decimals", f"{plain}.00"
        yield "thousands", f"{int(number):,}"


def _latex_rewrites(answer: str) -> Iterator[tuple[str, str]]:
    yield "dollar signs", f"${answer}$"
    yield "full stop", f"{answer}."
    yield "spaces", rf"\ {answer}\,"
    yield "displayed fractions", answer.replace(r"\frac", r"\dfrac").replace(r"\ddfrac", r"\dfrac")
    yield (
        "sized brackets",
        answer.replace("(", r"\left(").replace(")", r"\right)") if r"\left" not in answer else answer,
    )
    yield "braced exponents", _POWER.sub(r"\1{\2}", answer)
    yield "bare exponents", _BRACED_POWER.sub(r"\1\2", answer)
    yield "words without \\text", _TEXT.sub(r"\1", answer)
    yield "dots for products", answer.replace(r"\times", r"\cdot")
    swapped = _SUM.fullmatch(answer)
    if swapped:
        yield "terms swapped", f"{swapped[2]}+{swapped[1]}"
    fraction = _FRACTION.fullmatch(answer)
    if fraction and int(fraction[3]):
        yield "slash", f"{fraction[1]}{fraction[2]}/{fraction[3]}"
        value = Fraction(int(fraction[2]), int(fraction[3]))
        yield "expanded fraction", rf"{fraction[1]}\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}"
        if _is_finite(value):
            yield "decimal", f"{fraction[1]}{_decimal(value)}"
        if value > 1 and value.denominator > 1:
            whole, left = divmod(value.numerator, value.denominator)
            yield "mixed number", rf"{fraction[1]}{whole}\frac{{{left}}}{{{value.denominator}}}"
    if _INTEGER.fullmatch(answer):
        yield "decimals", f"{answer}.0"
        yield "thousands", f"{int(answer):,}"
        yield "spaced thousands", f"{int(answer):,}".replace(",", r",\!")
        yield "equation", f"x={answer}"


def _is_finite(value: Fraction) -> bool:
    return (10**12 * value).denominator == 1


def _decimal(number: Fraction) -> str:
    """All digits of a finite decimal; other numbers are rounded."""
    if number.denominator == 1:
        return str(number.numerator)
    return f"{float(number):.12f}".rstrip("0")
