"""`lmgym train`: builds the environment, the policy and the algorithm, and trains."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lmgym.algorithms.catalogue import canonical_name
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import TruncatedImportanceSampling
from lmgym.algorithms.rl_algorithm import RLAlgorithm
from lmgym.buffer import read_episodes
from lmgym.commands.memory import expected_memory
from lmgym.commands.memory_estimate import MemoryEstimate
from lmgym.commands.settings import JudgeSettings, PolicySettings, TaskSettings
from lmgym.console import results
from lmgym.distributed.launch import mark
from lmgym.distributed.processes import processes
from lmgym.envs import names
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.mixture import is_mixture
from lmgym.errors import UserError
from lmgym.evaluation.trained_problems import trained_problems
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
"""For each environment that ships with lmgym, the flags of the next harder one."""


@dataclass
class RunSettings:
    """The run directory, trackers and other inputs."""

    out: str = ""
    """The run directory; by default runs/ALGORITHM-ENV-TIME."""
    track: tuple[str, ...] = ()
    """Trackers besides metrics.jsonl, any of: wandb tensorboard trackio."""
    eval_env: str = ""
    """Evaluate on another environment or file; by default on the test split of --env."""
    ref_model: str = ""
    """Reference model of the KL penalty; by default the initial model, or the base model of a LoRA adapter."""
    minutes: float = 0.0
    """Stop in time and save, so that this session of the run ends within so many minutes; continue with --resume."""
    from_episodes: str = ""
    """Sample nothing and learn from the saved episodes of this run directory or file: --replay_episodes of them per
    iteration, by default all."""
    load_episodes: str = ""
    """Episodes to replay with --replay_episodes, or to take success rates from with --curriculum: the episodes.jsonl of
    an earlier run."""


@dataclass
class TrainSettings:
    """The settings of `lmgym train`."""

    algorithm: RLConfig
    task: TaskSettings = field(default_factory=TaskSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    run: RunSettings = field(default_factory=RunSettings)


def train(algorithm_name: str, algorithm_class: type[RLAlgorithm], settings: TrainSettings) -> Path:
    """Starts a run and trains to its end."""
    settings = without_sampling(settings) if settings.run.from_episodes else settings
    settings.algorithm.check()
    check_trackers(settings.run.track)
    task, folder = settings.task, processes().decide(lambda: _folder(algorithm_name, settings))
    config = {"algorithm": canonical_name(algorithm_name), **flat_settings(settings), "out": str(folder)}
    with removed_on_error(folder):
        algorithm, memory = build(algorithm_class, settings, lambda: _new_run(folder, config, settings.run))
        fill_buffer(algorithm, settings.run.load_episodes)
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


def _new_run(folder: Path, config: dict[str, Any], settings: RunSettings) -> Run:
    run = Run(folder, config, settings.track, settings.minutes)
    mark(run.folder)
    return run


@contextlib.contextmanager
def removed_on_error(folder: Path) -> Iterator[None]:
    """Removes the folder of a new run if a UserError occurs before the loop starts."""
    try:
        yield
    except UserError:
        if processes().is_first:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def settings_from(config_class: type[RLConfig], flat: dict[str, Any]) -> TrainSettings:
    """Sorts flat settings, as config.json has them, into their dataclasses."""

    named = {name: value for name, value in flat.items() if name not in UNNAMED or value is not None}

    def pick(kind: Any) -> Any:
        chosen = {f.name: named[f.name] for f in fields(kind) if f.name in named}
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()})

    known = config_class().settings().keys()
    config = config_class.from_settings({name: value for name, value in flat.items() if name in known})
    return TrainSettings(config, *map(pick, (TaskSettings, PolicySettings, JudgeSettings, RunSettings)))


def report(algorithm: RLAlgorithm, folder: Path) -> None:
    """Prints the evaluations before and after training, some answers, and commands to try next, if the run is done."""
    if algorithm.run.is_paused:
        return
    evaluations = algorithm.evaluator.evaluations
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
    results.print("  and read lmgym/algorithms/rl_algorithm.py, the loop that just ran")


def next_commands(algorithm: RLAlgorithm, folder: Path) -> list[list[str]]:
    """Commands to evaluate this run, to continue it, and to train on a harder environment, if there is one."""
    saved = algorithm.run.config
    model, env = saved.get("model") or PolicySettings().model, saved.get("env")
    own = ["--reward", saved["reward"]] if saved.get("reward") else []
    if env is None or own or _is_import_path(env):
        own += ["--env", env or "my_module:MyEnv"]
        own += ["--eval_env", saved["eval_env"]] if saved.get("eval_env") else []
        options = [part for option in saved.get("env_options", {}).items() for part in option]
        own += ["--env_options", *options] if options else []
    commands = [["lmgym", "eval", "--model", str(folder), "--base", model, *own]]
    if any(folder.glob("checkpoints/*")):
        more = ["--iterations", str(2 * algorithm.config.iterations)]
        if algorithm.config.schedule != "constant":  # it has decayed: only another rate starts a new schedule
            more += ["--learning_rate", f"{algorithm.config.learning_rate / 2:g}"]
        commands.append(["lmgym", "train", "--resume", str(folder), *more, *(own if env is None else [])])
    if not own and env in HARDER:
        same = [] if model == PolicySettings().model else ["--model", model]
        commands.append(["lmgym", "train", *HARDER[env], *same])
    return commands


def _is_import_path(env: str) -> bool:
    """Whether an environment is given as module:Class, and not by a name or a file."""
    return ":" in env and env.partition(":")[0] not in names()


def build(
    algorithm_class: type[RLAlgorithm], settings: TrainSettings, make_run: Callable[[], Run]
) -> tuple[RLAlgorithm, MemoryEstimate]:
    """The algorithm with its environments, policy and reference, if it needs one, and the memory estimate."""
    env = settings.task.make("train")
    eval_env = None
    if settings.algorithm.eval_problems:
        other = settings.task.on(settings.run.eval_env) if settings.run.eval_env else settings.task
        eval_env = other.make("test")
    examples = few_shot_examples(env, settings.policy.shots)
    flags = settings.algorithm.settings()
    teacher, has_kl = flags.get("teacher", ""), bool(flags.get("kl_coeff"))
    if settings.run.ref_model and (teacher or not has_kl):
        reason = "this algorithm has no KL penalty"
        if teacher or "kl_coeff" in flags:
            reason = "--teacher is the reference" if teacher else "there is no KL penalty: give --kl_coeff"
        raise UserError(f"--ref_model {settings.run.ref_model} would not be used, because {reason}.")
    named, model = teacher or settings.run.ref_model, settings.policy.model
    reference = named or (model if has_kl else "")
    if settings.policy.shard:  # a sharded model cannot be copied
        named = reference
    memory = expected_memory(env, examples, settings.policy, settings.algorithm, model, reference)
    policy = settings.policy.make(env, examples, seed=settings.algorithm.seed)
    first, _ = env.clone().reset(options={"index": 0})
    policy.prompt_ids(first)  # fails before the run starts if the prompt cannot be built
    # If none is named, the reference is the initial policy, or under LoRA the base model.
    ref_policy = settings.policy.make(env, examples, named, samples=False) if named else None
    judge = settings.judge.make(settings.policy)
    algorithm = algorithm_class(policy, env, settings.algorithm, eval_env, make_run(), ref_policy, judge)
    algorithm.trained_problems.fingerprints |= trained_problems(model)
    return algorithm, memory


def without_sampling(settings: TrainSettings) -> TrainSettings:
    """The settings that --from_episodes stands for: no problems, and the saved episodes replayed."""
    if settings.run.load_episodes:
        raise UserError("--from_episodes and --load_episodes both name episodes: give one of them.")
    path = Path(settings.run.from_episodes)
    path = path / "episodes.jsonl" if path.is_dir() else path
    count = settings.algorithm.replay_episodes or sum(1 for _ in read_episodes(path))
    algorithm = replace(settings.algorithm, problems_per_iteration=0, replay_episodes=count)
    run = replace(settings.run, from_episodes="", load_episodes=str(path))
    return replace(settings, algorithm=algorithm, run=run)


def fill_buffer(algorithm: RLAlgorithm, given: str) -> None:
    """Loads the episodes to replay, which a run that samples nothing needs."""
    if given:
        load_buffer(algorithm, Path(given))
    elif not algorithm.config.problems_per_iteration:
        raise UserError("--problems_per_iteration 0 samples nothing: give a file of episodes with --load_episodes.")


def load_buffer(algorithm: RLAlgorithm, path: Path) -> None:
    """Puts loaded episodes before the run's own: their iterations count down from −1, and they are off-policy."""
    episodes = [episode for episode in read_episodes(path) if episode.error is None]
    if not episodes:
        raise UserError(f"{path} holds no episodes; give the episodes.jsonl of a run.")
    if not (algorithm.config.replay_episodes or algorithm.config.curriculum):
        raise UserError(
            f"the episodes of {path} would not be used: say how many with --replay_episodes, or choose problems by "
            "their success rates with --curriculum."
        )
    capacity = algorithm.buffer.capacity
    if capacity is not None and len(episodes) > capacity:
        algorithm.run.warn(f"only the last {capacity} of the {len(episodes)} episodes of {path} are kept in memory.")
    if max(max(episode.tokens, default=0) for episode in episodes) >= algorithm.policy.model.vocabulary_size:
        raise UserError(f"the episodes of {path} were sampled with another tokenizer than this model's.")
    if algorithm.config.part(TruncatedImportanceSampling) and not all(any(e.logprobs) for e in episodes):
        raise UserError(
            f"the episodes of {path} were not sampled, so they have no log-probs for importance weights: learn from "
            "them with sft, expert-iteration or dpo."
        )
    newest = max((episode.iteration for episode in episodes), default=0)
    own = list(algorithm.buffer.episodes)
    algorithm.buffer.episodes.clear()
    for episode in episodes:
        steps = tuple(replace(step, action=replace(step.action, policy_version=OFF_POLICY)) for step in episode.steps)
        algorithm.buffer.episodes.append(replace(episode, steps=steps, iteration=episode.iteration - newest - 1))
    algorithm.buffer.episodes.extend(own)
    algorithm.buffer.evict()
    algorithm.trained_problems.add(episode.problem for episode in episodes)


def _folder(algorithm_name: str, settings: TrainSettings) -> Path:
    if settings.run.out:
        folder = Path(settings.run.out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already; choose another --out, or continue it with --resume {folder}.")
        return folder
    env = settings.task.env
    task = env if ":" in env or is_mixture(env) else Path(env).stem
    return _new_folder(Path("runs"), re.sub(r"[^\w.-]+", "-", f"{algorithm_name}-{task}"))


def _new_folder(root: Path, name: str) -> Path:
    """A new folder for a run, named after its algorithm, its task and the time."""
    folder = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while folder.exists():
        number += 1
        folder = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{number}"
    return folder


def flat_settings(settings: TrainSettings) -> dict[str, Any]:
    """Every setting by its flag's name, as config.json keeps them."""
    parts = (settings.task, settings.policy, settings.judge, settings.run)
    flat = {name: value for part in parts for name, value in asdict(part).items()}
    del flat["minutes"], flat["from_episodes"]  # of a session; and what other settings say
    return flat | settings.algorithm.settings()
