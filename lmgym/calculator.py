"""The symbolic calculator: exact arithmetic on what a model wrote, in bounded time, without `eval`."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DEPTH = 30
MAX_BITS = 512
EXACT_PLACES = 6
ROUNDED_PLACES = 2

_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)|(?P<operator>\*\*|//|[-+*/%()])",
    re.ASCII,
)
_SPELLINGS = str.maketrans({"×": "*", "x": "*", "X": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "$": " "})


class _CannotEvaluateError(Exception):
    """Raised by the parser for anything that is not a bounded arithmetic expression."""


def calculate(expression: str) -> str | None:
    """Evaluates an expression exactly and formats the result as GSM8K does; None if it cannot be evaluated."""
    value = evaluate(expression)
    return None if value is None else format_number(value)


def evaluate(expression: str) -> Fraction | None:
    """The exact value of an expression, or None if it cannot be evaluated."""
    if len(expression) > MAX_CHARACTERS:
        return None
    try:
        return _Parser(_tokens(expression.translate(_SPELLINGS))).parse()
    except _CannotEvaluateError:
        return None


def canonical_expression(expression: str) -> str:
    """Rewrites a valid expression without spaces, `$` or thousands commas, and with one spelling per operator."""
    return "".join(token.replace(",", "") for token in _tokens(expression.translate(_SPELLINGS)))


def format_number(value: Fraction) -> str:
    """Formats a number as GSM8K mostly does: no trailing zeros, and two places if it has more than six decimals."""
    for places in range(EXACT_PLACES + 1):
        if (value * 10**places).denominator == 1:
            return _decimal(value, places)
    places = ROUNDED_PLACES
    # A value such as 1/300 would be rounded to 0: keep two significant digits.
    while abs(value) * 10 ** (places - 1) < 1 and places < 20:
        places += 1
    return _trim(_decimal(value, places))


def open_expression(text: str) -> str | None:
    """The expression if the text ends with `<<expression=`, after which the calculator inserts the value; else None."""
    tail = text[-MAX_CHARACTERS - 3 :]
    start = tail.rfind("<<")
    if start < 0 or not tail.endswith("="):
        return None
    expression = tail[start + 2 : -1].strip()
    if not expression or any(character in expression for character in "=<>\n"):
        return None
    return expression


def _decimal(value: Fraction, places: int) -> str:
    scaled = round(abs(value) * 10**places)
    sign = "-" if value < 0 and scaled else ""
    if not places:
        return f"{sign}{scaled}"
    digits = str(scaled).rjust(places + 1, "0")
    return f"{sign}{digits[:-places]}.{digits[-places:]}"


def _trim(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise _CannotEvaluateError
        tokens.append(match.group())
        position = match.end()
    return tokens


class _Parser:
    """A recursive-descent parser with Python's precedence, one method per level."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    def parse(self) -> Fraction:
        value = self.sum()
        if self.position != len(self.tokens):
            raise _CannotEvaluateError
        return value

    def peek(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else ""

    def take(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1]

    def sum(self) -> Fraction:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = _bounded(value + self.product() if self.take() == "+" else value - self.product())
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while self.peek() in ("*", "/", "//", "%"):
            value = _multiply_or_divide(value, self.take(), self.signed())
        return value

    def signed(self) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = sign if self.take() == "+" else -sign
        return sign * self.power()

    def power(self) -> Fraction:
        base = self.atom()
        if self.peek() != "**":
            return base
        self.take()
        self.descend()
        exponent = self.signed()
        self.depth -= 1
        return _power(base, exponent)

    def atom(self) -> Fraction:
        if self.peek() == "(":
            self.take()
            self.descend()
            value = self.sum()
            self.depth -= 1
            if self.peek() != ")":
                raise _CannotEvaluateError
            self.take()
        elif self.peek()[:1].isdigit() or self.peek()[:1] == ".":
            value = _bounded(Fraction(self.take().replace(",", "")))
        else:
            raise _CannotEvaluateError
        return self.percent(value)

    def percent(self, value: Fraction) -> Fraction:
        """Parses `%` as a percent sign unless a second operand follows, which makes it a modulo."""
        following = self.peek(1)
        if self.peek() == "%" and not (following[:1].isdigit() or following[:1] in (".", "(")):
            self.take()
            return value / 100
        return value

    def descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _CannotEvaluateError


def _multiply_or_divide(left: Fraction, operator: str, right: Fraction) -> Fraction:
    if operator == "*":
        return _bounded(left * right)
    if right == 0:
        raise _CannotEvaluateError
    if operator == "/":
        return _bounded(left / right)
    return _bounded(Fraction(left // right) if operator == "//" else left % right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_BITS or (base == 0 and exponent < 0):
        raise _CannotEvaluateError
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    # Checked before computing the power, the only operation whose result can be much larger than its operands.
    if size > 1 and size * abs(int(exponent)) > 2 * MAX_BITS:
        raise _CannotEvaluateError
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _CannotEvaluateError
    return value
