"""`lmgym train`: an environment, a policy and an algorithm, and then the loop."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.buffer import read_episodes
from lmgym.commands.memory import expected_memory
from lmgym.commands.settings import PolicySettings, TaskSettings
from lmgym.console import results
from lmgym.envs import names
from lmgym.errors import UserError
from lmgym.evaluation.contamination import fingerprint
from lmgym.evaluation.trained_problems import trained_problems
from lmgym.policies.examples import few_shot_examples
from lmgym.runs.changes import UNNAMED
from lmgym.runs.run import Run
from lmgym.runs.tables import comparison_table, difference_line, show_answers
from lmgym.runs.tracking import check_trackers
from lmgym.types import OFF_POLICY

HARDER = {
    "arithmetic": ["--env", "word-problems"],
    "word-problems": ["--env", "gsm8k", "--max_tokens", "80"],
    "gsm8k": ["--env", "math", "--max_tokens", "128"],
}
"""After an environment that ships with lmgym, the flags of the next."""

if TYPE_CHECKING:
    from lmgym.commands.memory_estimate import MemoryEstimate


@dataclass
class RunSettings:
    """Where the run is kept and how it is watched."""

    out: str = "runs"
    """The folder that gets a folder for this run."""
    name: str = ""
    """The run's name; by default algorithm, environment and time."""
    track: tuple[str, ...] = ()
    """Trackers besides metrics.jsonl, any number of: wandb tensorboard trackio."""
    eval_env: str = ""
    """Evaluate on another environment or file; by default on the test split of --env."""
    ref_model: str = ""
    """The reference of the KL penalty; by default the model as it was at the start, or the base of an adapter."""
    load_buffer_from_cache_at_start: str = ""
    """A file of episodes (episodes.jsonl of a run) to learn from with --replay_episodes, beside fresh ones or alone."""


@dataclass
class TrainSettings:
    """All that `lmgym train` can be told."""

    algorithm: RLConfig
    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    run: RunSettings = field(default_factory=RunSettings)


def train(algorithm_name: str, algorithm_class: type[RLAlgorithm], settings: TrainSettings) -> Path:
    """Begins a run and sees it through."""
    settings.algorithm.check()
    check_trackers(settings.run.track)
    task, folder = settings.task, _folder(algorithm_name, settings)
    config = {"algorithm": algorithm_name, **flat_settings(settings)}
    with undone_by_a_mistake(folder):
        algorithm, memory = build(algorithm_class, settings, lambda: Run(folder, config, settings.run.track))
        fill_buffer(algorithm, settings.run.load_buffer_from_cache_at_start)
    model = algorithm.policy.model
    results.print(
        f"{algorithm_name} on {task.env} with {settings.policy.model}, computed in {model.dtype_name} on "
        f"{model.device}; the run is in {folder}",
        soft_wrap=True,
    )
    results.print(f"memory: {memory}", markup=False, soft_wrap=True)
    algorithm.train()
    report(algorithm, folder)
    return folder


@contextlib.contextmanager
def undone_by_a_mistake(folder: Path) -> Iterator[None]:
    """Until the loop begins, a user's mistake leaves no folder of the new run."""
    try:
        yield
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def settings_from(config_class: type[RLConfig], flat: dict[str, Any]) -> TrainSettings:
    """Sorts flat settings, as config.json has them, into their dataclasses."""

    def pick(kind: Any) -> Any:
        known = {f.name for f in fields(kind)}
        unnamed = {name for name in UNNAMED if flat.get(name) is None}
        chosen = {name: value for name, value in flat.items() if name in known - unnamed}
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()})

    return TrainSettings(pick(config_class), pick(TaskSettings), pick(PolicySettings), pick(RunSettings))


def report(algorithm: RLAlgorithm, folder: Path) -> None:
    """Before and after side by side, some answers, and what to do next."""
    evaluations = algorithm.evaluations
    if len(evaluations) > 1:
        before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
        show_answers(before, after)
        results.print()
        results.print(comparison_table({"before": before, "after": after}))
        results.print(difference_line(before, after), soft_wrap=True)
    elif evaluations:
        results.print(comparison_table({"after": next(iter(evaluations.values()))}))
    results.print(
        f"\nThe run is in {folder}: model/, metrics.jsonl, episodes.jsonl, learning_curve.png", soft_wrap=True
    )
    results.print("What to try next:")
    for command in next_commands(algorithm, folder):
        results.print(f"  {shlex.join(command)}", markup=False, soft_wrap=True)
    results.print("  and read lmgym/algorithms/rl_algorithm.py, which is what just ran")


def next_commands(algorithm: RLAlgorithm, folder: Path) -> list[list[str]]:
    """Measure this run, go on with it, and then a harder task of the same kind, where there is one."""
    saved = algorithm.run.config
    model, env = saved.get("model") or PolicySettings().model, saved.get("env")
    own = [part for module in saved.get("imports", ()) for part in ("--import", module)]
    own += ["--reward", saved["reward"]] if saved.get("reward") else []
    if env is None or own or _is_a_place(env):
        own += ["--env", env or "my_module:MyEnv"]
        own += ["--eval_env", saved["eval_env"]] if saved.get("eval_env") else []
        options = [part for option in saved.get("env_options", {}).items() for part in option]
        own += ["--env_options", *options] if options else []
    commands = [["lmgym", "eval", "--model", str(folder), "--base", model, *own]]
    if any(folder.glob("checkpoints/*")):
        budget = algorithm.config.token_budget
        more = ["--iterations", str(2 * algorithm.config.iterations)]
        if algorithm.config.schedule != "constant":  # it has fallen: only another rate begins a schedule of its own
            more += ["--learning_rate", f"{algorithm.config.learning_rate / 2:g}"]
        more += ["--token_budget", str(2 * budget)] if budget else []
        commands.append(["lmgym", "train", "--resume", str(folder), *more, *(own if env is None else [])])
    if not own and env in HARDER:
        same = [] if model == PolicySettings().model else ["--model", model]
        commands.append(["lmgym", "train", *HARDER[env], *same])
    return commands


def _is_a_place(env: str) -> bool:
    """Whether an environment is named as module:Class, and not by a name or a file."""
    return ":" in env and env.partition(":")[0] not in names()


def build(
    algorithm_class: type[RLAlgorithm], settings: TrainSettings, make_run: Callable[[], Run]
) -> tuple[RLAlgorithm, MemoryEstimate]:
    """The algorithm with its environments, its policy and its reference if it asks for one; the memory it will need."""
    env = settings.task.make("train")
    eval_env = None
    if settings.algorithm.eval_problems:
        other = replace(settings.task, env=settings.run.eval_env) if settings.run.eval_env else settings.task
        eval_env = other.make("test")
    examples = few_shot_examples(env, settings.policy.shots)
    teacher, holds = getattr(settings.algorithm, "teacher", ""), getattr(settings.algorithm, "kl_coeff", 0)
    if settings.run.ref_model and (teacher or not holds):
        reason = "--teacher is the reference" if teacher else "nothing is held to a reference: give --kl_coeff"
        raise UserError(f"--ref_model {settings.run.ref_model} would not be used, because {reason}.")
    named, model = teacher or settings.run.ref_model, settings.policy.model
    reference = named or (model if holds else "")
    memory = expected_memory(env, examples, settings.policy, settings.algorithm, model, reference)
    policy = settings.policy.make(env, examples, seed=settings.algorithm.seed)
    policy.prompt_ids(env.reset(options={"index": 0})[0])  # a prompt that cannot be built is said before a run begins
    # Where none is named, the algorithm takes the policy's first weights, or under LoRA its base.
    extra: dict[str, Any] = {}
    if named:
        extra["ref_policy"] = replace(settings.policy, lora=False).make(env, examples, named)
    algorithm = algorithm_class(policy, env, settings.algorithm, eval_env, make_run(), **extra)
    algorithm.trained_on |= trained_problems(model)
    return algorithm, memory


def fill_buffer(algorithm: RLAlgorithm, given: str) -> None:
    """Episodes that exist already, which a run that plays nothing cannot do without."""
    if given:
        load_buffer(algorithm, Path(given))
    elif not algorithm.config.problems_per_iteration:
        raise UserError(
            "--problems_per_iteration 0 learns from episodes that exist: name their file with "
            "--load_buffer_from_cache_at_start."
        )


def load_buffer(algorithm: RLAlgorithm, path: Path) -> None:
    """Puts foreign episodes before the run's own: their iterations count down from −1, their policy is nobody's."""
    episodes = list(read_episodes(path))
    if not episodes:
        raise UserError(f"{path} holds no episodes; give the episodes.jsonl of a run.")
    if not algorithm.config.replay_episodes:
        raise UserError(f"the episodes of {path} would not be learnt from: say how many with --replay_episodes.")
    capacity = algorithm.config.buffer_capacity
    if len(episodes) > capacity:
        algorithm.run.warn(f"only the last {capacity} of the {len(episodes)} episodes of {path} fit --buffer_capacity.")
    if max(max(episode.tokens, default=0) for episode in episodes) >= algorithm.policy.model.vocabulary_size:
        raise UserError(f"the episodes of {path} were written with another tokenizer than this model's.")
    newest = max((episode.iteration for episode in episodes), default=0)
    own = list(algorithm.buffer.episodes)
    algorithm.buffer.episodes.clear()
    for episode in episodes:
        steps = tuple(replace(step, action=replace(step.action, policy_version=OFF_POLICY)) for step in episode.steps)
        algorithm.buffer.episodes.append(replace(episode, steps=steps, iteration=episode.iteration - newest - 1))
    algorithm.buffer.episodes.extend(own)
    algorithm.buffer.evict()
    algorithm.trained_on |= {fingerprint(episode.problem) for episode in episodes}


def _folder(algorithm_name: str, settings: TrainSettings) -> Path:
    root = Path(settings.run.out)
    if settings.run.name:
        folder = root / settings.run.name
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already; choose another --name, or go on with --resume {folder}.")
        return folder
    env = settings.task.env
    task = env if ":" in env else Path(env).stem
    return _new_folder(root, f"{algorithm_name}-{task}".replace(":", "-"))


def _new_folder(root: Path, name: str) -> Path:
    """A folder for a run that does not exist yet, named after what it does and when."""
    folder = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while folder.exists():
        number += 1
        folder = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{number}"
    return folder


def flat_settings(settings: TrainSettings) -> dict[str, Any]:
    """Every setting by its flag's name, as config.json keeps them."""
    parts = (settings.task, settings.policy, settings.run, settings.algorithm)
    return {name: value for part in parts for name, value in asdict(part).items()}
