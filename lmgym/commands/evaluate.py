"""`lmgym eval`: evaluates a model, or two models on the same problems."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from lmgym.assets.storage import write_text, writing_to
from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import messages, results
from lmgym.envs import DatasetFile, Env
from lmgym.envs.env import MadeFrom
from lmgym.envs.examples import few_shot_examples
from lmgym.errors import UserError
from lmgym.evaluation.contamination import held_out_indices
from lmgym.evaluation.evaluation import Evaluation, evaluate
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.evaluation.trained_problems import trained_problems
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.runs.tables import comparison_table, difference_line


@dataclass
class Measure:
    """What to evaluate, and how."""

    base: str = ""
    """A second model to compare with, on the same problems, with a paired test."""
    eval_env: str = ""
    """Evaluate on another environment or file than --env, which provides the worked examples."""
    split: str = "test"
    """The split to evaluate on."""
    problems: int = 200
    """Number of problems, from the first on."""
    samples: int = 1
    """Samples per problem; more than one also gives pass@k and maj@k."""
    sample_temperature: float = 0.0
    """Sampling temperature; 0: greedy."""
    seed: int = 0
    """Seed of the sampling."""
    output: str = ""
    """Also write the results to this JSON file."""


@dataclass
class EvalSettings:
    """The settings of `lmgym eval`."""

    measure: Measure = field(default_factory=Measure)
    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


def run_evaluation(settings: EvalSettings) -> None:
    """Evaluates one or two models and prints them side by side."""
    measure = settings.measure
    if measure.problems < 1 or measure.samples < 1 or measure.sample_temperature < 0:
        raise UserError("--problems and --samples must be at least 1 and --sample_temperature at least 0.")
    if measure.samples > 1 and measure.sample_temperature == 0:
        raise UserError(f"{measure.samples} greedy answers are all the same: give a --sample_temperature such as 0.8.")
    if measure.seed < 0:
        raise UserError(f"--seed is {measure.seed}: it must be at least 0.")
    task = settings.task.on(measure.eval_env) if measure.eval_env else settings.task
    env = task.make(measure.split)
    shots = settings.policy.shots
    examples = few_shot_examples(settings.task.make("train"), shots) if shots else []
    indices = held_out_indices(env, measure.problems, avoid=examples)
    names = [name for name in (measure.base, settings.policy.model) if name]
    found: dict[str, Evaluation] = {}
    for name in names:
        policy = settings.policy.make(env, examples, name)
        if not found:
            results.print(_what_is_evaluated(env, policy, len(indices), measure), markup=False, soft_wrap=True)
        messages.print(f"evaluating {name} on {len(indices)} problems …", soft_wrap=True)
        with EvaluationProgress(len(indices) * measure.samples, measure.samples) as progress:
            found[name] = evaluate(
                policy,
                env,
                indices,
                samples=measure.samples,
                temperature=measure.sample_temperature,
                seed=measure.seed,
                trained_on=trained_problems(name),
                progress=progress,
            )
        if found[name].contaminated:
            messages.print(
                f"WARNING: CONTAMINATED: {name} was trained on {found[name].contaminated} of these problems.",
                style="bold red",
                soft_wrap=True,
            )
        del policy
    results.print(comparison_table(found))
    if len(found) == 2:
        results.print(difference_line(found[names[0]], found[names[1]]), soft_wrap=True)
    if measure.output:
        path = Path(measure.output)
        with writing_to(path.parent, "--output"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({name: result.to_json() for name, result in found.items()}, indent=2) + "\n")


def _what_is_evaluated(env: Env, policy: LLMPolicy, problems: int, measure: Measure) -> str:
    """The environment and the policy, in two lines."""
    made_from = env.made_from or MadeFrom(type(env).__name__, measure.split, {})
    parts = [] if isinstance(env, DatasetFile) else [f"split {made_from.split}"]
    parts += [f"{option} {getattr(value, '__name__', value)}" for option, value in made_from.options.items()]
    way = "greedy" if measure.sample_temperature == 0 else f"temperature {measure.sample_temperature:g}"
    kind = "stepwise" if isinstance(policy, FewShotLLMStepwiseMathPolicy) else "chat"
    prompt = textwrap.shorten(policy.system_prompt, 100, placeholder=" …")
    return (
        f"environment: {', '.join([made_from.name, *parts, f'{problems} problems'])}\n"
        f"policy: {kind}, {len(policy.examples)} worked examples, {policy.max_tokens} tokens per action, {way}, "
        f"system prompt “{prompt}”"
    )
