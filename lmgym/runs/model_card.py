"""The model card of a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmgym.runs.training import Training


def model_card(algorithm: Training, config: Mapping[str, Any]) -> str:
    """The model, its training and its evaluations, with sample sizes and intervals."""
    task = config.get("env") or type(algorithm.envs.env).__name__
    lines = [
        "---",
        "library_name: peft" if algorithm.policy.model.has_lora else "library_name: transformers",
        "tags: [lmgym, reinforcement-learning]",
        "---",
        f"# {config.get('model', algorithm.policy.model.name)} trained with {type(algorithm).__name__}",
        "",
        f"Trained by lmgym for {algorithm.iteration} iterations on `{task}` "
        f"with seed {algorithm.config.seed}, {algorithm.config.problems_per_iteration} problems × "
        f"{algorithm.config.group_size} episodes each; `config.json` of the run has every setting.",
        "",
    ]
    if algorithm.evaluator.evaluations:
        is_graded = all(evaluation.is_graded for evaluation in algorithm.evaluator.evaluations.values())
        accuracies = ["strict accuracy", "lenient accuracy"] if is_graded else []
        columns = ["iteration", "problems", *accuracies, "mean reward", "note"]
        lines += [_row(*columns), _row(*["---"] * len(columns))]
        for iteration, evaluation in sorted(algorithm.evaluator.evaluations.items()):
            note = "CONTAMINATED: also trained on" if evaluation.contaminated else "held out"
            measured = [evaluation.strict, evaluation.lenient] if is_graded else []
            lines.append(_row(iteration, evaluation.problems, *measured, evaluation.reward, note))
        lines += ["", "Brackets are 95 % intervals over problems: Wilson for an accuracy, normal for a mean."]
    lines += [
        "",
        f"System prompt: {algorithm.policy.system_prompt!r}, worked examples: {len(algorithm.policy.examples)}.",
    ]
    return "\n".join(lines) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
