"""`lmgym eval`: evaluates a model, or two models on the same problems."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lmgym.assets.catalogue import model_folder
from lmgym.assets.storage import write_text, writing_to
from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import messages, results
from lmgym.distributed.processes import processes
from lmgym.envs import DatasetFile, Env
from lmgym.envs.env import MadeFrom
from lmgym.envs.examples import few_shot_examples
from lmgym.errors import UserError
from lmgym.evaluation.contamination import held_out_indices
from lmgym.evaluation.evaluation import Evaluation, evaluate
from lmgym.evaluation.kept_episodes import KeptEpisodes
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.evaluation.trained_problems import trained_problems
from lmgym.models.lora import find_base, is_adapter
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.runs.tables import comparison_table, difference_line
from lmgym.types import Problem


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
    """Also write the results to this JSON file. Until then the finished episodes are kept beside it, and the same
    command continues an evaluation that was interrupted; that your own code is unchanged is not checked."""


@dataclass
class EvalSettings:
    """The settings of `lmgym eval`."""

    measure: Measure = field(default_factory=Measure)
    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


def run_evaluation(settings: EvalSettings) -> None:
    """Evaluates one or two models and prints them side by side."""
    measure = settings.measure
    _check(measure)
    task = settings.task.on(measure.eval_env) if measure.eval_env else settings.task
    env = task.make(measure.split)
    shots = settings.policy.shots
    examples = few_shot_examples(settings.task.make("train"), shots) if shots else []
    indices = held_out_indices(env, measure.problems, avoid=examples)
    output = Path(measure.output) if measure.output else None
    if output is not None:
        with writing_to(output.parent, "--output"):
            output.parent.mkdir(parents=True, exist_ok=True)
    names = [name for name in (measure.base, settings.policy.model) if name]
    kept: dict[str, KeptEpisodes] = {}
    found: dict[str, Evaluation] = {}
    dtypes: dict[str, str] = {}
    for name in names:
        policy = settings.policy.make(env, examples, name)
        dtypes[name] = policy.engine.dtype_name
        if not found:
            results.print(_what_is_evaluated(env, policy, len(indices), measure), markup=False, soft_wrap=True)
        if output is not None:
            problems = [env.problems[index] for index in indices]
            kept[name] = _kept_episodes(output, settings, name, policy, problems)
        found[name] = _evaluated(name, policy, env, indices, measure, kept.get(name))
        del policy
    results.print(comparison_table(found))
    if len(found) == 2:
        results.print(difference_line(found[names[0]], found[names[1]]), soft_wrap=True)
    if output is not None and processes().is_first:
        rows = {name: result.to_json() | {"dtype": dtypes[name]} for name, result in found.items()}
        with writing_to(output.parent, "--output"):
            write_text(output, json.dumps(rows, indent=2) + "\n")
        for each in kept.values():
            each.remove()


def _check(measure: Measure) -> None:
    """Refuses what cannot be evaluated, in one sentence."""
    if measure.problems < 1 or measure.samples < 1 or measure.sample_temperature < 0:
        raise UserError("--problems and --samples must be at least 1 and --sample_temperature at least 0.")
    if measure.samples > 1 and measure.sample_temperature == 0:
        raise UserError(f"{measure.samples} greedy answers are all the same: give a --sample_temperature such as 0.8.")
    if measure.seed < 0:
        raise UserError(f"--seed is {measure.seed}: it must be at least 0.")


def _evaluated(
    name: str, policy: LLMPolicy, env: Env, indices: Sequence[int], measure: Measure, kept: KeptEpisodes | None
) -> Evaluation:
    """Evaluates one model, with its progress and a warning if it was trained on these problems."""
    messages.print(f"evaluating {name} on {len(indices)} problems …", soft_wrap=True)
    with EvaluationProgress(len(indices) * measure.samples, measure.samples) as progress, _keeping(kept):
        found = evaluate(
            policy,
            env,
            indices,
            samples=measure.samples,
            temperature=measure.sample_temperature,
            seed=measure.seed,
            trained_on=trained_problems(name),
            progress=progress,
            kept=kept,
        )
    if found.contaminated:
        messages.print(
            f"WARNING: CONTAMINATED: {name} was trained on {found.contaminated} of these problems.",
            style="bold red",
            soft_wrap=True,
        )
    return found


@contextlib.contextmanager
def _keeping(kept: KeptEpisodes | None) -> Iterator[None]:
    """Says on Ctrl-C that nothing is lost, and in one sentence that episodes cannot be written."""
    if kept is None:
        yield
        return
    try:
        with writing_to(kept.folder, "--output"):
            yield
    except KeyboardInterrupt:
        messages.print("interrupted: finished episodes are kept, and the same command continues", soft_wrap=True)
        raise


def _kept_episodes(
    output: Path, settings: EvalSettings, model: str, policy: LLMPolicy, problems: Sequence[Problem]
) -> KeptEpisodes:
    """The finished episodes of this model with these settings, if the evaluation was interrupted.

    Files are compared by what was read from them: the weights, the prompt, the problems. Code of the user's is not.
    """
    given = {name: asdict(part) for name, part in vars(settings).items()}
    del given["measure"]["output"], given["measure"]["base"], given["policy"]["model"]
    read = {
        "weights": _weights_identity(model_folder(model)),
        "system_prompt": policy.system_prompt,
        "examples": [asdict(example) for example in policy.examples],
        "problems": [asdict(problem) for problem in problems],
    }
    return KeptEpisodes(output, {**given, "model": model, **read}, settings.measure.samples)


def _weights_identity(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the weights of a model, and of an adapter's base: they change when it is trained again."""
    folders = [folder, find_base(folder)] if is_adapter(folder) else [folder]
    files = [path for each in folders for path in sorted(each.glob("*.safetensors"))]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


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
