"""Normalises LaTeX answers, and compares them as texts and as exact values."""

from __future__ import annotations

import re
from fractions import Fraction

from lmgym.rewards.comparison import Comparison

MAX_CHARACTERS = 500

_FORMULA = re.compile(r"\$([^$]{1,200})\$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LINE_BREAK_OR_SPACE = re.compile(r"(\\\\)|\\[ ,;:!]|\\q?quad(?![a-zA-Z])|~|\s+")
SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![a-zA-Z])")
_LONG_UNIT = (
    "(?:degree|radian|percent|cent|dollar|euro|pound|unit|point|inche|inch|feet|foot|yard|mile|acre|gallon|quart|pint"
    "|ounce|gram|kilogram|liter|litre|meter|metre|centimeter|millimeter|kilometer|second|minute|hour|day|week|month"
    "|year|mph|cm|mm|km|kg|ft|lb|USD)s?"
)
_UNIT = rf"(?:{_LONG_UNIT}|in|yd|min|sec|hr|oz|mg|ml|gm|rad|[mgshlL])"
_TEXT_UNIT = re.compile(
    r"(?<=[\d})])\\(?:text|mbox|mathrm|textnormal|textrm)"
    rf"\{{(?:square|sq\.?|cubic|cu\.?)?{_UNIT}(?:(?:per|/){_UNIT})?\.?\}}(?:\^\{{?[23]\}}?)?\.?$"
)
_PLAIN_UNIT = re.compile(rf"(?<=\d){_LONG_UNIT}$")
_COUNTED = re.compile(r"(?<=[\d})])(?:\\[ ,;:]|~|\s)*\\(?:text|mbox|textrm)\{([a-zA-Z\s]{2,40})\.?\}\.?$")
_OTHER_THAN_COUNTED = re.compile(
    r"\b(?:is|are|was|were|be|no|not|never|none|nor|cannot|wrong|incorrect|false|error|doubt|except|maybe|undefined"
    r"|or|and|but|if|to|than|the|more|less|fewer|at|most|least|about|over|under|negative|plus|minus|times|squared|cubed"
    r"|mod|modulo|base|pi|remainder|am|pm|st|nd|rd|th|half|thirds?|quarters?|tenths?|hundredths?|thousandths?|dozen"
    r"|hundred|thousand|million|billion)\b"
)
MOST_COUNTED_WORDS = 3
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textnormal|textrm|textbf|textit|mathbf|operatorname)\{([^{}]*)\}")
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}")
_LIST = re.compile(r"[(\[]|\\\{|,\s")
DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])")
FRACTION_COMMAND = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_BARE_FRACTION = re.compile(r"\\frac(?:\{([^{}]+)\}|([0-9a-zA-Z]))(?:\{([^{}]+)\}|([0-9a-zA-Z]))")
_SLASH_FRACTION = re.compile(r"(?<![\d.])(\d+)/(\d+)(?![\d.])")
_BARE_ROOT = re.compile(r"\\sqrt([0-9a-zA-Z])")
_SPACED_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!|\{,\})(?=\d{3}(?!\d))")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SYNONYMS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\(?:cdot|times)(?![a-zA-Z])|\*|×", "·"),
        (r"\\(?:leq?|leqslant)(?![a-zA-Z])|<=", "≤"),
        (r"\\(?:geq?|geqslant)(?![a-zA-Z])|>=", "≥"),
        (r"\\neq?(?![a-zA-Z])", "≠"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\pi(?![a-zA-Z])", "π"),
        (r"\\infty(?![a-zA-Z])", "∞"),
        (r"√", r"\\sqrt"),
        (r"(?<=\\begin\{)[bp]matrix|(?<=\\end\{)[bp]matrix", "matrix"),
    )
)
"""One spelling of several; a single character, because spaces after a command are removed."""
_BRACED_CHARACTER = re.compile(r"([\^_])\{([0-9a-zA-Z])\}")
_POINT_WITHOUT_ZERO = re.compile(r"(?<!\d)\.(?=\d)")
_NAME_EQUALS = re.compile(r"^[a-zA-Z](?:_\{?\w+\}?)?(?:\([a-z]\))?(?:=|\\in(?![a-zA-Z]))(?=.)")
_DECIMAL = re.compile(r"-?\d{1,60}(?:\.\d{1,60})?")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d{1,60}(?:\.\d{1,60})?)\}\{(-?\d{1,60}(?:\.\d{1,60})?)\}")


def compare_exactly(answer: str, given: str) -> Comparison | None:
    """Compares normalised texts, and then exact values; None where neither decides."""
    if max(len(answer), len(given)) > MAX_CHARACTERS:
        return Comparison(answer.strip() == given.strip(), "text")
    commas_separate = has_list(answer) or has_list(given)
    # Either may name the counted unit, 24 or 24\text{ ways}; if both do, the units must be equal.
    pairs = ((answer, given), (_without_count(answer), given), (answer, _without_count(given)))
    normalised = [[normalise_latex(text, commas_separate) for text in pair] for pair in pairs]
    if any(left == right != "" for left, right in normalised):
        return Comparison(True, "text")
    for pair in normalised:
        left, right = map(_value, pair)
        if left is not None and right is not None:
            return Comparison(left == right, "number")
    return None


def has_list(text: str) -> bool:
    """Whether commas in it separate items, or else thousands."""
    return bool(_LIST.search(text))


def _without_count(text: str) -> str:
    r"""Removes a final `\text{...}` of at most three words, if none of them negates or changes the number."""
    text = text.strip().strip("$").rstrip()
    match = _COUNTED.search(text)
    if match is None or len(match[1].split()) > MOST_COUNTED_WORDS or _OTHER_THAN_COUNTED.search(match[1].lower()):
        return text
    return text[: match.start()]


def normalise_latex(text: str, commas_separate: bool = False) -> str:
    """Rewrites an answer so that equivalent spellings become equal; commas separate items, or else thousands."""
    text = without_dollars(text)
    text = without_thousands_separators(without_outer_braces(text), commas_separate)
    text = SIZE.sub("", text)
    for pattern, plain in _SYNONYMS:
        text = pattern.sub(plain, text)
    text = _LINE_BREAK_OR_SPACE.sub(lambda match: match[1] or "", text)
    text = DEGREES.sub("", text)
    text = _TEXT.sub(r"\1", without_unit(text)).rstrip(".")
    text = _PLAIN_UNIT.sub("", text)
    text = _WORD.sub(lambda match: match[0].lower(), text)
    text = FRACTION_COMMAND.sub(r"\\frac", text)
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text)
    text = _BARE_FRACTION.sub(lambda match: f"\\frac{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}", text)
    text = _SLASH_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _POINT_WITHOUT_ZERO.sub("0.", text)
    text = _BRACED_CHARACTER.sub(r"\1\2", text)
    return without_outer_braces(_NAME_EQUALS.sub("", text))


def without_dollars(text: str) -> str:
    """Removes spaces and dollar signs around a formula, dollars and percent signs within, and a final full stop."""
    return text.strip().strip("$").replace("\\$", "").replace("\\%", "").replace("%", "").rstrip(". ")


def without_thousands_separators(text: str, commas_separate: bool) -> str:
    r"""Joins the digits of `14,\!400`, and of `14,400` unless commas separate items."""
    text = _SPACED_THOUSANDS.sub("", text)
    return text if commas_separate else _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def without_unit(text: str) -> str:
    r"""Removes a unit in `\text{...}` from the end."""
    return _TEXT_UNIT.sub("", text)


def without_outer_braces(text: str) -> str:
    """Removes braces that enclose the full text, such as those of a removed box."""
    while text.startswith("{") and _end_of_group(text) == len(text) - 1:
        text = text[1:-1]
    return text


def _end_of_group(text: str) -> int:
    """Index of the brace that closes the first one of a text, or -1."""
    depth = 0
    for match in _BRACE.finditer(text):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


def last_formula(text: str) -> str | None:
    """The last `$...$` of a text, or None."""
    formulas = _FORMULA.findall(text)
    return formulas[-1].strip() if formulas else None


def without_boxes(text: str) -> str:
    r"""Removes the command `\boxed` and keeps its content in braces."""
    return _BOX.sub("", text)


def _value(text: str) -> Fraction | None:
    """Parses a normalised answer that is a plain number or a fraction of plain numbers."""
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    match = _FRACTION.fullmatch(text)
    if match is None or Fraction(match[3]) == 0:
        return None
    value = Fraction(match[2]) / Fraction(match[3])
    return -value if match[1] else value
