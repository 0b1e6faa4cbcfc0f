"""Console output of a run: a line per iteration, evaluations side by side, answers before and after."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from lmgym.console import results
from lmgym.evaluation.evaluation import Evaluation, lenient_p_value, paired_p_value, reward_p_value

COLUMNS = {
    "reward": ("reward", "{:.3f}"),
    "accuracy": ("train acc", "{:.1%}"),
    "kl": ("KL", "{:.4f}"),
    "entropy": ("entropy", "{:.3f}"),
    "length": ("length", "{:.1f}"),
    "gradient_norm": ("grad norm", "{:.3f}"),
    "logprob_diff": ("lp diff", "{:.1e}"),
    "tokens_per_second": ("tok/s", "{:.0f}"),
}
"""The metrics in the line of each iteration, with their headings and formats."""


def header() -> str:
    """The headings of the iteration lines."""
    return "  iter " + " ".join(f"{heading:>9}" for heading in (*(heading for heading, _ in COLUMNS.values()), "left"))


def iteration_line(iteration: int, metrics: Mapping[str, float], left: str) -> str:
    """One iteration in one line, with the time that the others take; a missing metric is a dash."""
    cells = [form.format(metrics[name]) if name in metrics else "–" for name, (_, form) in COLUMNS.items()]
    return f"{iteration:6d} " + " ".join(f"{cell:>9}" for cell in (*cells, left))


def evaluation_line(evaluation: Evaluation) -> str:
    """An evaluation in one line, marked if its problems were also trained on."""
    mark = "CONTAMINATED " if evaluation.contaminated else "held-out "
    reward = f"mean reward {evaluation.reward}"
    graded = f"strict {evaluation.strict}, lenient {evaluation.lenient}, {reward}, unparsed {evaluation.unparsed:.1%}"
    return (
        f"{mark}{graded if evaluation.is_graded else reward}, cut off {evaluation.cut_off:.1%}, "
        f"length {evaluation.mean_length:.1f}, {evaluation.problems} problems"
    )


def comparison_table(rows: Mapping[str, Evaluation]) -> Table:
    """Evaluations of the same problems side by side, with their 95 % intervals."""
    first, found = next(iter(rows.values())), list(rows.values())
    is_graded = all(row.is_graded for row in found)
    kind = "CONTAMINATED" if any(row.contaminated for row in found) else "held-out"
    way = "greedy" if first.temperature == 0 else f"temperature {first.temperature:g}"
    times = f", {first.samples} samples each" if first.samples > 1 else ""
    intervals = "95 % Wilson intervals" if is_graded else "95 % intervals"
    title = f"{first.problems} {kind} problems, {way}{times}, {intervals}"
    table = Table("", *rows, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    if is_graded:
        table.add_row("strict", *(str(row.strict) for row in found))
        table.add_row("lenient", *(str(row.lenient) for row in found))
    table.add_row("mean reward", *(str(row.reward) for row in found))
    if is_graded and first.samples > 1:
        table.add_row(f"pass@{first.samples}", *(str(row.pass_at_k) for row in found))
        table.add_row(f"maj@{first.samples}", *(str(row.majority_at_k) for row in found))
    if is_graded:
        table.add_row("unparsed", *(f"{row.unparsed:.1%}" for row in found))
    table.add_row("cut off", *(f"{row.cut_off:.1%}" for row in found))
    table.add_row("length", *(f"{row.mean_length:.1f}" for row in found))
    return table


def difference_line(before: Evaluation, after: Evaluation) -> str:
    """The difference between two evaluations of the same problems, with its p-value."""
    test = f"paired permutation test on the same problems: p = {reward_p_value(before, after):.2g}"
    reward = f"mean reward {after.reward.value - before.reward.value:+.3f}; {test}"
    if not (before.is_graded and after.is_graded):
        return reward
    points = 100 * (after.strict.value - before.strict.value)
    p_value = paired_p_value(before, after)
    lines = [f"strict accuracy {points:+.1f} points; paired exact McNemar test on the same problems: p = {p_value:.2g}"]
    lines += _beyond_the_form(before, after)
    lines += [reward] if before.has_own_reward or after.has_own_reward else []
    return "\n".join(lines)


def _beyond_the_form(before: Evaluation, after: Evaluation) -> list[str]:
    """What says whether more than the form of the answer was learnt, where answers are also graded leniently."""
    if not any("lenient" in episode.info for episode in before.episodes):
        return []
    points = 100 * (after.lenient.value - before.lenient.value)
    lines = [f"lenient accuracy {points:+.1f} points: p = {lenient_p_value(before, after):.2g}"]
    parsed = [index for index, share in enumerate(before.parsed) if share == 1]
    if parsed and before.unparsed:
        was, now = (100 * sum(row.solved[index] for index in parsed) / len(parsed) for row in (before, after))
        lines.append(f"of the {len(parsed)} problems whose answer was parsed before: strict {was:.1f} % → {now:.1f} %")
    return lines


def show_answers(before: Evaluation, after: Evaluation, count: int = 3) -> None:
    """Prints some answers before and after: first those that became correct, or better, then the others in order."""
    is_graded = before.is_graded and after.is_graded
    old_scores, new_scores = (row.solved if is_graded else row.rewards for row in (before, after))
    order = sorted(range(len(after.episodes)), key=lambda i: (old_scores[i] >= new_scores[i], i))
    for index in order[:count]:
        old, new = before.episodes[index], after.episodes[index]
        answer = f"  (answer {_plain(old.problem.answer)})" if old.problem.answer else ""
        results.print(f"\n[bold]{_plain(old.problem.prompt)}[/bold]{answer}")
        for name, episode in (("before", old), ("after", new)):
            is_right = bool(episode.info.get("correct"))
            outcome = ("right" if is_right else "wrong") if is_graded else f"reward {episode.reward:g}"
            results.print(f"  {name}, {outcome}:", style=("green" if is_right else "red") if is_graded else "cyan")
            for line in episode.text.strip().split("\n"):
                results.print(f"    {_plain(line)}", soft_wrap=True)


def _plain(text: str) -> str:
    """Model text is hostile input: no markup, no control characters."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text))
