"""The checker of MATH answers: what it accepts, what it refuses, and that no answer holds it up."""

from __future__ import annotations

import threading
import time

import pytest

from lmgym.evaluation.audit import HOSTILE
from lmgym.rewards.final_answer import BoxedAnswer, grade
from lmgym.rewards.latex_checker import SECONDS, compare_latex

EQUAL = [
    (r"\begin{pmatrix} x+1 & 1/2 \\ 0 & 4 \end{pmatrix}", r"\begin{bmatrix}1+x&0.5\\0&4\\ \end{bmatrix}"),
    ("x^2", "x^{2}"),
    ("x_1", "x_{1}"),
    ("1+x", "x+1"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\frac{3}{2}\pi", r"\frac{3\pi}{2}"),
    (r"\pi r^2", r"r^2 \pi"),
    (r"6 \cdot 5", "30"),
    (r"2 \times 10^3", "2000"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("1,-2", "-2, 1"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
    (r"(2,\infty)", "x>2"),
    (r"x \ge 2", r"[2,\infty)"),
    (r"[1,3)", r"1 \le x < 3"),
    (r"(-\infty,0) \cup (0,\infty)", r"(0,\infty)\cup(-\infty,0)"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    (r"\begin{pmatrix} 1/2 & 0 \\ 0 & 1 \end{pmatrix}", r"\begin{pmatrix} 0.5 & 0 \\ 0 & 1 \end{pmatrix}"),
    (r"2\frac{1}{2}", r"\frac{5}{2}"),
    ("2.5", r"2\frac12"),
    ("101_2", "101_{2}"),
    ("x+1", r"1~+~x"),
    (r"14,\!400", "14400"),
    (r"4\pi", r"4\pi."),
    ("y=2x+3", "y = 3 + 2x"),
    (r"x=1 \text{ or } x=2", "1,2"),
    (r"3-2i", "-2i+3"),
    (r"\sqrt{12}", r"2\sqrt{3}"),
    (r"2^{-3}", r"\frac{1}{8}"),
    (r"\log_2 8", "3"),
    (r"\left( \frac{1}{2}, 3 \right)", "(0.5, 3)"),
]

DIFFERENT = [
    (r"\begin{pmatrix} 4 \\ 0 \end{pmatrix}", r"\begin{pmatrix} 5 \\ 0 \end{pmatrix}"),
    (r"\begin{pmatrix} 0 \\ 0 \\ 0 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 0 \\ 0 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"0.56 = 56\%", r"1.56 = 56\%"),
    ("5", "5 or 6"),
    ("5", "5 is wrong"),
    ("5", r"5 \text{ or } 6"),
    ("5", "5, 6"),
    ("5", "x"),
    ("(12,102)", "12,102"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    (r"4\pi", "4"),
    ("101_2", "5"),
    ("101_2", "101_3"),
    (r"\sqrt{2}", "1.41"),
    ("x+1", "y+1"),
    (r"\frac{1}{3}", "0.33"),
    ("x>2", r"x \ge 2"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\text{Evelyn}", r"\text{Angela}"),
    (r"\text{Evelyn}", "5"),
    ("1,2", "1"),
    (r"2\frac{1}{2}", r"\frac{2}{2}"),
    ("-5", "5"),
    ("0.5", "50"),
    (r"\frac{1}{2004!}", r"\frac{7}{2004!}"),
    (
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}, \begin{pmatrix} 3 \\ 4 \end{pmatrix}",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}, \begin{pmatrix} 3 \\ 4 \end{pmatrix}7",
    ),
    (r"10^{-20}", r"2 \cdot 10^{-20}"),
    (r"\frac{2}{3} \approx 0.67", r"\frac{2}{3} \approx 0.677"),
]


@pytest.mark.parametrize(("answer", "given"), EQUAL)
def test_what_is_equal_is_accepted_either_way(answer, given):
    assert compare_latex(answer, given).is_right
    assert compare_latex(given, answer).is_right


@pytest.mark.parametrize(("answer", "given"), DIFFERENT)
def test_what_differs_is_refused(answer, given):
    assert not compare_latex(answer, given).is_right


def test_a_hostile_answer_is_wrong_within_its_limit_and_the_next_one_is_judged():
    for hostile in HOSTILE:
        compare_latex("x+2", "2+x")  # a worker is ready
        started = time.monotonic()
        comparison = compare_latex("7", hostile)
        assert not comparison.is_right
        assert time.monotonic() - started < SECONDS + 20, hostile  # a hang, on however slow a machine
        assert compare_latex("a+2", "2+a").is_right


def test_the_grade_names_the_stage():
    form = BoxedAnswer()
    stages = [grade(form, "x+1", rf"\boxed{{{said}}}").stage for said in ("x+1", "1+x", "(x+1)^{99999}")]
    assert stages[:2] == ["text", "symbolic"]
    assert grade(form, "0.5", r"\boxed{\frac12}").stage == "number"
    assert grade(form, "5", "none").stage is None


def test_threads_share_the_workers():
    comparisons: dict[int, bool] = {}

    def ask(number: int) -> None:
        comparisons[number] = compare_latex(f"x+{number}", f"{number}+x").is_right

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(comparisons.values())
    assert len(comparisons) == 8
