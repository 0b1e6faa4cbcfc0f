"""Final answers: found strictly and leniently, compared exactly, and quick on hostile text."""

import json
import re
import time
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.assets.catalogue import dataset_file
from lmgym.rewards.final_answer import BoxedAnswer, NumberAnswer, find_boxes, grade, parse_number
from lmgym.rewards.latex_checker import compare_latex

NUMBER, BOXED = NumberAnswer(), BoxedAnswer()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is: 18", "18"),
        ("The answer is: 18.", "18"),
        ("The answer is: $1,234.50.", "$1,234.50"),
        ("  the answer is: 1,234,567", "1,234,567"),
        ("The answer is: 2.0107e-06", "2.0107e-06"),
        ("So the answer is: 18", "18"),
        ("Therefore, the answer is: 18", "18"),
        ("Thus the answer is: 18", "18"),
        ("  hence,the answer is: 18.", "18"),
        ("Sothe answer is: 18", None),
        ("So I doubt that the answer is: 18", None),
        ("So, therefore, the answer is: 18", None),
        ("Not so, the answer is: 18", None),
        ("I do not think the answer is: 18", None),
        ("The answer is: 1,2,3,4", None),
        ("The answer is: 12,34", None),
        ("The answer is: 1234,567", None),
        ("The answer is: 1e9999", None),
        ("The answer is: -$5", "-$5"),
        ("The answer is: 50%", "50"),
        ("The answer is:7\r\nMore", "7"),
        ("The answer is: 1\nThe answer is: 2", "1"),
        ("The answer is: what?\nThe answer is: 2", "2"),
        ("The answer is: 18 or 19", None),
        ("The answer is: 18 clips", None),
        ("The answer is 18", None),
        ("#### 18", None),
        ("The answer is:\n18", None),
        ("The answer is: " + "9" * 1000, None),
    ],
)
def test_strict_is_the_asked_for_form_only(text, answer):
    assert NUMBER.strict(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a 3-5 b", "-5"),
        ("cost $18.00.", "$18.00."),
        ("1, 2 and 3", "3"),
        ("1,234 clips", "1,234"),
        ("about 1e-05", "1e-05"),
        ("none", None),
    ],
)
def test_lenient_is_flexible_extract(text, answer):
    assert NUMBER.lenient(text) == answer


@given(st.integers(-(10**9), 10**9), st.integers(0, 3))
def test_a_number_is_right_in_every_spelling_and_another_is_not(number, zeros):
    point = "." + "0" * zeros if zeros else ""
    for spelling in (f"{number}{point}", f"${number}", f"{number:,}{point}", f" {number}. ", f"{number}.0"):
        assert NUMBER.compare(str(number), spelling).is_right, spelling
        assert not NUMBER.compare(str(number + 1), spelling).is_right
    assert not NUMBER.compare(str(number), f"{number}.01").is_right


@given(st.decimals(-1000, 1000, places=3))
def test_numbers_are_read_exactly(number):
    assert parse_number(str(number)) == Fraction(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_of_a_json_file_is_read_back(number):
    read = parse_number(repr(number))
    assert read == Fraction(repr(number))
    assert float(read) == number
    assert grade(NUMBER, repr(number), NUMBER.show(repr(number))).correct


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_another_answer_than_any_other_float(number, other):
    found = grade(NUMBER, repr(number), NUMBER.show(repr(other)))
    assert found.correct == found.lenient == (number == other)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-2e-3, 2e-3))
def test_a_tolerance_is_absolute_from_1_on_and_relative_below(number, difference):
    form, right = NumberAnswer(tolerance=Fraction(1, 1000)), Fraction(repr(number))
    scale = min(abs(right), Fraction(1))
    text = repr(float(right + Fraction(repr(difference)) * scale))
    is_near = abs(Fraction(text) - right) * 1000 <= scale
    assert form.compare(repr(number), text).is_right == is_near
    assert not form.compare("2e-06", "0").is_right


@pytest.mark.parametrize("text", ["1,2,3,4", "12,34", "1234,567", ",123", "1,,234", "1e", "e5", "1e1000", "nan", "inf"])
def test_what_is_not_one_number_is_not_read_as_one(text):
    assert parse_number(text) is None


def test_a_number_before_a_comma_is_found_leniently():
    assert grade(NUMBER, "18", "It is 18, I think").lenient


@settings(deadline=None)  # the first one starts the workers
@given(st.text(max_size=60))
def test_any_text_is_graded(text):
    for form in (NUMBER, BOXED):
        result = grade(form, "5", text)
        assert result.parsed or not result.correct


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"\boxed{5}", ["5"]),
        (r"\boxed{\frac{1}{2}} and \boxed{3}", [r"\frac{1}{2}", "3"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"{ \boxed{7}", ["7"]),
        (r"} \boxed{7}", ["7"]),
        (r"\boxed 9$", ["9"]),
        (r"\boxed 12$.", ["12"]),
        (r"\boxed -3.5.", ["-3.5"]),
        (r"\boxed x$", ["x"]),
        (r"\boxed{}", []),
        (r"\boxed{5", []),
        (r"\fbox{A}", ["A"]),
    ],
)
def test_boxes_are_found(text, boxes):
    assert find_boxes(text) == boxes


def test_the_last_box_counts():
    assert BOXED.strict(r"\boxed{5}, no, \boxed{6}") == BOXED.lenient(r"\boxed{5}, no, \boxed{6}") == "6"


def test_lenient_of_boxed_falls_back_to_the_last_formula_and_number():
    assert BOXED.lenient(r"$x=2$, so \boxed{3}.") == "3"
    assert BOXED.lenient(r"It is $x=2$.") == "x=2"
    assert BOXED.lenient("It is 17 in all") == "17"
    assert BOXED.lenient("Who knows") is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\frac{1}{2}", r"\dfrac12"),
        (r"\frac{1}{2}", "1/2"),
        (r"\frac{1}{2}", "0.5"),
        ("0.5", ".5"),
        (r"-\frac{3}{4}", "-0.75"),
        ("10", r"10\text{ inches}"),
        ("10", r"10\mbox{ cm}^2"),
        ("90", r"90^\circ"),
        ("18", r"\$18.00"),
        ("50", r"50\%"),
        ("1234", "1,234"),
        ("1234", r"1,\!234"),
        ("x=5", "5"),
        (r"\left(1, 2\right)", "(1,2)"),
        (r"\text{Even}", "even"),
        (r"\text{Friday}", "Friday"),
        (r"\text{(C)}", "(C)"),
        (r"\text{A}", "a"),
        (r"\text{Softball, Kickball, Picnic}", "softball, kickball, picnic"),
        ("(12,102)", "(12, 102)"),
        (r"(2,12) \cup (12,102)", r"(2, 12)\cup(12, 102)"),
        ("81, 256", "81,256"),
        ("(1234,5)", r"(1{,}234,5)"),
        ("60", r"60\text{ miles per hour}"),
        ("60", r"60\text{ sq. units}"),
        ("9", r"9\text{ m}^3"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("12", r"12\text{ people}"),
        ("24", r"24\text{ ways}"),
        ("24", r"24\ \text{different seating ways}."),
        (r"\frac{1}{2}", r"\frac12\text{ pizza}"),
        ("5.", "5"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
)
def test_spellings_of_the_same_latex_are_equal(left, right):
    assert compare_latex(left, right).is_right
    assert compare_latex(right, left).is_right


@pytest.mark.parametrize(
    ("left", "right"),
    [("5", "6"), ("5", ""), (r"\frac{1}{2}", r"\frac{2}{1}"), ("(1,2)", "(2,1)"), ("1,2", "12"), ("x", "y"),
     ("2", "2x"), (r"2 \text{ or } 3", "23"), ("3", "3^2"), (r"\sqrt{2}", "2"), ("-5", "5"), ("1,234,5", "12345"),
     ("", ""), ("(12,102)", "12102"), ("(12,102)", "(12102)"), ("12, 102", "12102"), ("5", r"5\text{ is wrong}"),
     ("5", r"5\text{ or more}"), ("5", r"5\text{ not}"), ("5", r"5\text{ people are wrong}"), ("5", r"5\text{th}"),
     ("5", r"5\text{ thousand people}"), ("5", r"5\text{ people came to it}"), ("24", r"25\text{ ways}"),
     ("3", r"3\text{ p.m.}")],
)  # fmt: skip
def test_different_latex_is_different(left, right):
    assert not compare_latex(left, right).is_right


def test_a_right_answer_may_name_what_it_counts():
    for said in ("24", r"24\text{ ways}"):
        assert compare_latex(r"24\text{ ways}", said).is_right
    for said in ("25", r"24\text{ is wrong}", r"24\text{ people}"):
        assert not compare_latex(r"24\text{ ways}", said).is_right


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("5", r"\boxed{x=\boxed{5}}"),
        ("5", r"\boxed{\boxed{5}}"),
        ("x=5", r"\boxed{\boxed{x = 5}}"),
        (r"\frac{1}{2}", r"\boxed{x=\boxed{\frac{1}{2}}}"),
        (r"\{1,2\}", r"\boxed{\boxed{\{1,2\}}}"),
    ],
)
def test_a_box_within_a_box_is_what_it_holds(answer, said):
    assert grade(BOXED, answer, said).correct
    assert not grade(BOXED, "7", said).correct


@pytest.mark.network
def test_words_of_math_are_right_without_their_command():
    texts = 0
    for split in ("train", "test"):
        for line in dataset_file("math", split).read_text(encoding="utf-8").splitlines():
            answer = (find_boxes(json.loads(line)["solution"]) or [""])[-1]
            match = re.fullmatch(r"\\text\{([^{}]*[a-zA-Z][^{}]*)\}", answer)
            texts += match is not None
            assert match is None or BOXED.compare(answer, match[1]).is_right, answer
    assert texts == 140


def test_hostile_text_is_graded_quickly():
    for form in (NUMBER, BOXED):
        for piece in (
            "9",
            "\\boxed{",
            "{",
            "}",
            "$",
            "The answer is: ",
            "The answer is: 1",
            "-",
            ".",
            "\\",
            " ",
            "\\frac",
        ):
            started = time.perf_counter()
            grade(form, "5", piece * 20_000)
            grade(form, "5", rf"\boxed{{{piece * 400}}}")
            assert time.perf_counter() - started < 0.5, piece


@pytest.mark.network
def test_answers_of_other_math_problems_are_wrong():
    rows = [json.loads(line) for line in dataset_file("math", "test").read_text(encoding="utf-8").splitlines()]
    answers = sorted({find_boxes(row["solution"])[-1] for row in rows if row["level"] == "Level 1"})
    same = sum(BOXED.compare(left, right).is_right for left, right in pairwise(answers))
    assert same / len(answers) < 0.1
