"""Every algorithm on the same task, model and budget of generated tokens: a table, a JSON file and a plot.

python benchmarks/algorithms.py                      # all; finished runs are skipped
python benchmarks/algorithms.py --only grpo ppo --seeds 0

Each result is written when its run ends, so the command can be stopped and started again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.assets.catalogue import cache_dir
from lmgym.assets.storage import write_text
from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import messages, results
from lmgym.envs.examples import few_shot_examples
from lmgym.errors import UserError
from lmgym.evaluation.contamination import held_out_indices
from lmgym.evaluation.evaluation import Evaluation, evaluate, play
from lmgym.evaluation.statistics import wilson
from lmgym.learning.batch import Batch
from lmgym.losses import masked_mean
from lmgym.models.loading import load_model
from lmgym.runs.plotting import new_figure
from lmgym.runs.run import Run

TEACHER = "reinforce-stable"
"""The teacher of `distill` is the model that this algorithm made with seed 0; its tokens are not counted."""

SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-5,
    "schedule": "constant",
    "eval_problems": 200,
    "evaluate_every": 3,
    "save_every": 0,
}
"""The same for all; everything else is each algorithm's default."""

BEGIN, END = "<!-- comparison:begin -->", "<!-- comparison:end -->"

KL_PROBLEMS = range(1000, 1064)
"""Test problems, none of them evaluated on, on which the KL to the initial model is measured."""


@dataclass
class Settings:
    """The algorithms, seeds and budget to compare."""

    only: tuple[str, ...] = tuple(ALGORITHMS)
    """Algorithms to run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each algorithm runs once per seed; all algorithms run with the first seed before any runs with the second."""
    token_budget: int = 12_000
    """Tokens that a run may generate, greedy baselines and worked solutions included; the last iteration is whole."""
    out: str = "benchmarks"
    """The folder that gets algorithms.json, algorithms.md and algorithms.png."""


class Curve(Run):
    """Records the accuracy at every evaluation and the tokens generated until then, and ends the run at the budget."""

    algorithm: RLAlgorithm

    def __init__(self, token_budget: int) -> None:
        super().__init__()
        self.token_budget, self.seconds = token_budget, 0.0
        self.points: list[tuple[float, float]] = []

    @property
    def tokens(self) -> float:
        """Tokens generated so far, greedy baselines and worked solutions included."""
        return self.algorithm.state.get("tokens", 0.0)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Adds up the time, and makes this iteration the last one where the budget is spent."""
        super().log(iteration, metrics)
        self.seconds += metrics["seconds_collecting"] + metrics["seconds_learning"]
        if self.tokens >= self.token_budget:
            self.algorithm.config.iterations = iteration

    def log_evaluation(self, iteration: int, evaluation: Evaluation) -> None:
        """Keeps one point of the curve."""
        super().log_evaluation(iteration, evaluation)
        self.points.append((self.tokens, evaluation.strict.value))


def main(settings: Settings) -> None:
    """Runs what is missing and writes the report after each run."""
    out = Path(settings.out)
    path = out / "algorithms.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for name in settings.only:
        find_algorithm(name)  # refuses a wrong name before anything runs
    names = sorted(
        settings.only, key=lambda name: (name != TEACHER, list(ALGORITHMS).index(name) if name in ALGORITHMS else -1)
    )
    for seed in settings.seeds:
        for name in names:
            key = f"{name} seed {seed} tokens {settings.token_budget}"
            if key in report["runs"]:
                continue
            messages.print(key, style="bold")
            if "before" not in report:
                report["before"] = _before()
            report["runs"][key] = run_once(name, seed, settings.token_budget)
            write_text(path, json.dumps(report, indent=1))
            show(report, settings.token_budget, out)
    text = show(report, settings.token_budget, out)
    if out.resolve() == Path(__file__).parent:
        publish(text)
    results.print(text, markup=False, soft_wrap=True)


def show(report: Mapping[str, Any], token_budget: int, out: Path) -> str:
    """Writes table and plot of the runs with one budget, and returns the table."""
    alike = {key: run for key, run in report["runs"].items() if key.endswith(f" tokens {token_budget}")}
    text = table({**report, "runs": alike})
    write_text(out / "algorithms.md", text)
    draw({**report, "runs": alike}, out / "algorithms.png")
    return text


def run_once(name: str, seed: int, token_budget: int) -> dict[str, Any]:
    """Trains one model from its initial weights and evaluates it."""
    kind = find_algorithm(name)
    task, policy_settings = TaskSettings(), PolicySettings()
    env, test = task.make("train"), task.make("test")
    examples = few_shot_examples(env, policy_settings.shots)
    policy = policy_settings.make(env, examples)
    named: dict[str, Any] = {"iterations": 1000, "seed": seed, **SETTINGS}
    named["problems_per_iteration"] = kind.Config().problems_per_iteration // 2  # smaller steps, and more of them
    ref_policy = None
    if name == "distill":
        named["teacher"] = str(_teacher_folder(token_budget))
        if not Path(named["teacher"]).exists():
            run_once(TEACHER, 0, token_budget)
        ref_policy = policy_settings.make(env, examples, named["teacher"])
    run = Curve(token_budget)
    algorithm = run.algorithm = kind(policy, env, kind.Config.from_settings(named), test, run, ref_policy)
    algorithm.evaluator.at_start = False  # the initial accuracy is the same for all and measured once
    algorithm.train()
    if name == TEACHER and seed == 0:
        policy.model.save(_teacher_folder(token_budget))
    last = algorithm.evaluator.evaluations[max(algorithm.evaluator.evaluations)]
    return {
        "algorithm": name,
        "seed": seed,
        "strict": last.strict.value,
        "lenient": last.lenient.value,
        "problems": last.problems,
        "mean_length": last.mean_length,
        "iterations": algorithm.iteration,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "kl": kl_moved(algorithm),
        "points": run.points,
    }


def kl_moved(algorithm: RLAlgorithm) -> float:
    """KL of the policy to the initial model in nats per token, on its own samples."""
    test = TaskSettings().make("test")
    batch = Batch.from_episodes(play(algorithm.policy, test, KL_PROBLEMS, seed=algorithm.config.seed))
    start = algorithm.learner.logprobs(load_model(PolicySettings().model), batch)
    return masked_mean(batch.logprobs - start, batch.mask)


def _before() -> float:
    """The accuracy of the untrained model."""
    env, test = TaskSettings().make("train"), TaskSettings().make("test")
    policy = PolicySettings().make(env, few_shot_examples(env, PolicySettings().shots))
    indices = held_out_indices(test, SETTINGS["eval_problems"], avoid=policy.examples)
    return evaluate(policy, test, indices).strict.value


def _teacher_folder(token_budget: int) -> Path:
    return cache_dir() / "benchmark" / f"teacher-{token_budget}"


def _by_algorithm(report: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each algorithm, the best algorithm first."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in report["runs"].values():
        runs.setdefault(run["algorithm"], []).append(run)
    return dict(sorted(runs.items(), key=lambda item: -float(np.mean([run["strict"] for run in item[1]]))))


def table(report: Mapping[str, Any]) -> str:
    """One row per algorithm, the best first."""
    lines = [
        f"Held-out accuracy before: {report.get('before', 0):.1%}. Mean of the seeds, the 95 % Wilson interval of that "
        "mean on as many problems as were evaluated, and each seed; minutes of acting and learning are the median.",
        "",
        "| algorithm | accuracy after | interval | seeds | gain | KL moved | updates | tokens | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in _by_algorithm(report).items():

        def mean(field: str, runs: Sequence[Mapping[str, Any]] = runs) -> float:
            return float(np.mean([run[field] for run in runs]))

        updates = mean("iterations") * find_algorithm(name).Config().updates_per_iteration
        interval = wilson(mean("strict"), runs[0]["problems"])
        seeds = ", ".join(f"{run['strict']:.1%}" for run in sorted(runs, key=lambda run: run["seed"]))
        lines.append(
            f"| {name} | {mean('strict'):.1%} | {interval.low:.1%} – {interval.high:.1%} | {seeds} | "
            f"{100 * (mean('strict') - report['before']):+.1f} | {mean('kl'):.3f} | {updates:.0f} | "
            f"{mean('tokens'):,.0f} | {np.median([run['seconds'] for run in runs]) / 60:.1f} |"
        )
    return "\n".join(lines) + "\n"


def publish(text: str) -> None:
    """Writes the table into docs/algorithms.md, between its two markers."""
    page = Path(__file__).parents[1] / "docs" / "algorithms.md"
    before, after = page.read_text().split(BEGIN)
    write_text(page, before + BEGIN + "\n" + text + END + after.split(END)[1])


def draw(report: Mapping[str, Any], path: Path) -> None:
    """One panel per algorithm, with the curves of all others in grey."""
    runs = _by_algorithm(report)
    if not runs:
        return
    columns = min(6, len(runs))
    rows = -(-len(runs) // columns)
    figure = new_figure(2.4 * columns, 2.0 * rows + 0.4)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    curves = {name: [_curve(report, run) for run in each] for name, each in runs.items()}
    for panel, (name, mine) in zip(panels, curves.items(), strict=False):
        for other in curves.values():
            for tokens, accuracy in other:
                panel.plot(tokens, accuracy, color="0.85", linewidth=0.7, zorder=1)
        for tokens, accuracy in mine:
            panel.plot(tokens, accuracy, color="tab:blue", linewidth=1.6, marker=".", zorder=2)
        panel.set_title(name, fontsize=9)
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=7)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    figure.supxlabel("thousand tokens generated", fontsize=9)
    figure.supylabel("held-out accuracy", fontsize=9)
    figure.savefig(path, dpi=130)


def _curve(report: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    points = [(0.0, report["before"]), *run["points"]]
    return [tokens / 1000 for tokens, _ in points], [accuracy for _, accuracy in points]


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, config=(tyro.conf.OmitArgPrefixes,), use_underscores=True))
    except UserError as error:
        sys.exit(str(error))
