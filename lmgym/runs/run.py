"""A run: its directory, its trackers and its console output."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from lmgym import __version__
from lmgym.assets.storage import staged_folder, write_text, writing_to
from lmgym.buffer import Buffer, append_episodes, read_episodes
from lmgym.console import format_duration, messages, progress_bars
from lmgym.distributed.processes import processes
from lmgym.errors import InterruptedRunError, UserError
from lmgym.evaluation.evaluation import Evaluation, paired_p_value, summarise
from lmgym.evaluation.progress import EvaluationProgress
from lmgym.runs.changes import resumed_config
from lmgym.runs.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from lmgym.runs.interrupts import StoppedAtOnceError, interrupted_by_sigterm, uninterrupted
from lmgym.runs.model_card import model_card
from lmgym.runs.old_names import check_old_run
from lmgym.runs.plotting import plot_learning_curve
from lmgym.runs.record import run_settings
from lmgym.runs.tables import evaluation_line, header, iteration_line
from lmgym.runs.time_budget import TimeBudget
from lmgym.runs.tracking import Sink, check_trackers, make_sinks
from lmgym.runs.training import Training

LARGE_LOGPROB_DIFF = 0.05
"""A larger mean difference between the log-probs of sampler and learner is an error, not rounding."""


class Run:
    """Without a folder it only prints; with one it also stores everything there."""

    def __init__(
        self,
        folder: Path | str | None = None,
        config: Mapping[str, Any] | None = None,
        trackers: Sequence[str] = (),
        minutes: float = 0.0,
    ) -> None:
        """With `minutes` above 0 the loop stops in time and can be resumed."""
        self.time = TimeBudget(minutes)
        self.source = Path(folder) if folder is not None else None
        """The run directory, which every process may read; only the first one writes to it."""
        self.folder = folder = self.source if processes().is_first else None
        self.config = dict(config or {})
        self.trackers = list(trackers)
        self.sinks: list[Sink] = []
        self._progress: Progress | None = None
        self.is_paused = False
        """Whether the last session stopped before the end of the run, because it was out of time."""
        self._iterations = 0
        self._lines = 0
        self._holds_other_run = folder is not None and (folder / "metrics.jsonl").exists()
        if folder is None:
            if trackers and self.source is None:
                raise UserError("tracking needs a run directory: give the run a folder.")
            return
        check_trackers(trackers)
        with writing_to(folder, "--out"):
            folder.mkdir(parents=True, exist_ok=True)
            self.sinks = make_sinks(trackers, folder, self.config)
            if self.config and not self._holds_other_run:
                self._write_config(folder)

    @property
    def episodes_path(self) -> Path | None:
        """Where episodes are written as they end."""
        return self.folder / "episodes.jsonl" if self.folder else None

    def record(self, algorithm: Training) -> None:
        """Completes config.json with the algorithm's settings, so that --resume and `lmgym eval` find all they need."""
        if self.folder is None:
            return
        if self._holds_other_run and algorithm.iteration == 0:
            raise UserError(
                f"{self.folder} already holds a run: give Run another folder, or resume that run with "
                "run.resume(algorithm)."
            )
        place = {"lmgym_version": __version__, "out": str(self.folder), "track": self.trackers}
        self.config = run_settings(algorithm) | place | self.config
        with self._writing():
            self._write_config(self.folder)

    @contextlib.contextmanager
    def session(self, algorithm: Training) -> Iterator[None]:
        """Shows progress while the loop runs; if it is interrupted, saves a checkpoint and prints how to resume."""
        progress = progress_bars()
        self._iterations = total = algorithm.config.iterations
        if self.source is None:
            messages.print("this run is not saved: pass run=Run(folder) to the algorithm to save it.")
        self.record(algorithm)
        self._holds_other_run = False
        self.time.begin()
        with interrupted_by_sigterm():
            try:
                with progress, self._writing():
                    self._progress = progress
                    self._task = progress.add_task("training", total=total, completed=algorithm.iteration)
                    yield
            except StoppedAtOnceError:
                messages.print("stopped during an update: the last checkpoint, if there is one, can be resumed.")
                raise
            except (KeyboardInterrupt, InterruptedRunError):
                self._progress = None
                algorithm.buffer.drop_unfinished()
                if algorithm.policy.model.is_sharded:  # the other processes may be elsewhere
                    messages.print("interrupted: the last checkpoint, if there is one, can be resumed.")
                    raise
                messages.print("interrupted: saving …")
                self._save_to_resume(algorithm)
                raise
            finally:
                self._progress = None
                algorithm.policy.cancel_actions()  # those of an interrupted rollout
                for sink in self.sinks:
                    sink.close()

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of an iteration and prints its line."""
        seconds = metrics.get("seconds_collecting", 0.0) + metrics.get("seconds_learning", 0.0)
        metrics = {**metrics, "tokens_per_second": metrics.get("tokens", 0.0) / max(seconds, 1e-9)}
        for sink in self.sinks:
            sink.log(iteration, metrics)
        if self._lines % 20 == 0:
            messages.print(header(), style="bold", soft_wrap=True)
        self._lines += 1
        self.time.iterated()
        left = self.time.seconds_left(max(0, self._iterations - iteration))
        messages.print(iteration_line(iteration, metrics, format_duration(left or 0.0)), soft_wrap=True)
        if metrics.get("logprob_diff", 0.0) > LARGE_LOGPROB_DIFF:
            self.warn(
                f"the log-probs of sampler and learner differ by {metrics['logprob_diff']:.3f} per token: the gradient "
                "is not that of the policy that sampled; use --dtype float32 or report this model."
            )
        norm = metrics.get("gradient_norm", 0.0)
        if norm != norm or norm == float("inf"):
            self.warn("the gradient was not finite and this update was skipped; lower --learning_rate.")
        if self._progress is not None:
            self._progress.update(self._task, completed=iteration)

    def log_evaluation(self, iteration: int, evaluation: Evaluation) -> None:
        """Logs an evaluation, stores its episodes and prints its line."""
        for sink in self.sinks:
            sink.log(iteration, evaluation.metrics())
        if self.folder is not None:
            folder = self.folder / "evaluations"
            folder.mkdir(exist_ok=True)
            write_text(folder / f"{iteration:06d}.json", json.dumps(evaluation.to_json()) + "\n")
            details = folder / f"{iteration:06d}_episodes.jsonl"
            details.unlink(missing_ok=True)
            append_episodes(details, evaluation.episodes)
        messages.print(f"{iteration:6d} {evaluation_line(evaluation)}", style="cyan", soft_wrap=True)

    @contextlib.contextmanager
    def evaluating(self, problems: int) -> Iterator[EvaluationProgress]:
        """Shows the progress of an evaluation, and measures its time."""
        started = time.monotonic()
        with EvaluationProgress(problems, bars=self._progress) as progress:
            yield progress
        self.time.evaluated(time.monotonic() - started)

    def warn(self, text: str) -> None:
        """Prints a warning."""
        messages.print(f"WARNING: {text}", style="bold red", markup=False, soft_wrap=True)

    def save_checkpoint(self, algorithm: Training) -> None:
        """Writes a checkpoint to resume from."""
        folder = self.source if algorithm.policy.model.is_sharded else self.folder
        if folder is not None:
            started = time.monotonic()
            with uninterrupted(), self._writing():
                (folder / "checkpoints").mkdir(exist_ok=True)
                save_checkpoint(folder / "checkpoints", algorithm)
            self.time.saved(time.monotonic() - started)

    def save_if_due(self, algorithm: Training) -> None:
        """Writes a checkpoint after the iterations of --save_every or the minutes of --save_minutes."""
        every, minutes = algorithm.config.save_every, algorithm.config.save_minutes
        by_iterations = bool(every) and algorithm.iteration % every == 0
        by_time = bool(minutes) and self.time.minutes_since_save() >= minutes
        if processes().decide(lambda: by_iterations or by_time):
            self.save_checkpoint(algorithm)

    def is_out_of_time(self, algorithm: Training) -> bool:
        """Whether the next iteration might not end within the minutes of this session."""
        done, evaluator = algorithm.iteration, algorithm.evaluator
        has_evaluation = evaluator.is_due(done) or (bool(evaluator.indices) and done + 1 == algorithm.config.iterations)
        return processes().decide(lambda: self.time.is_over(has_evaluation))

    def pause(self, algorithm: Training) -> None:
        """Ends a session that is out of time: saves a checkpoint and prints how to resume."""
        self.is_paused = True
        done, total = algorithm.iteration, algorithm.config.iterations
        left = format_duration(self.time.seconds_left(total - done) or 0.0)
        messages.print(
            f"stopping after iteration {done} of {total}, because the next one might not end within "
            f"{self.time.minutes:g} minutes; the rest takes about {left}.",
            soft_wrap=True,
        )
        self._save_to_resume(algorithm)

    def resume(self, algorithm: Training) -> None:
        """Resumes from the newest checkpoint, in an algorithm built with the run's initial model.

        Later iterations are repeated: their episodes and metrics are removed from the run directory.
        """

        folder = self.source
        if folder is None:
            raise UserError("there is nothing to resume: give Run the folder of the run.")
        checkpoint = newest_checkpoint(folder)
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        check_old_run(folder, saved, algorithm.config.settings())
        now = run_settings(algorithm) | {"track": self.trackers} | self.config
        self.config = resumed_config(folder, now, type(algorithm.config)().settings(), int(checkpoint.name))
        self.config["lmgym_version"] = __version__
        load_checkpoint(checkpoint, algorithm)
        algorithm.policy.engine.update_weights()
        self._holds_other_run = False
        reached = algorithm.iteration
        path = folder / "episodes.jsonl"
        kept = Buffer(algorithm.buffer.capacity)
        if path.exists():
            episodes = [episode for episode in read_episodes(path) if episode.iteration < reached]
            kept.extend(episode for episode in episodes if episode.error is None)
            algorithm.trained_problems.add(episode.problem for episode in episodes)
            everything = Buffer()
            everything.extend(episodes)
            if self.folder is not None:
                everything.save(path)
        algorithm.buffer.episodes = kept.episodes
        algorithm.evaluator.evaluations = self._comparable(
            algorithm, _read_evaluations(folder / "evaluations", reached)
        )
        if self.folder is not None:
            _drop_lines_after(self.folder / "metrics.jsonl", reached)

    def _comparable(self, algorithm: Training, found: dict[int, Evaluation]) -> dict[int, Evaluation]:
        """The evaluations of the problems that the run is evaluated on now."""
        current = algorithm.evaluator.fingerprints
        if not current:
            return found
        kept = {iteration: evaluation for iteration, evaluation in found.items() if evaluation.fingerprints == current}
        if len(kept) < len(found):
            self.warn("earlier evaluations were of other problems: they stay on disk and are not compared.")
        return kept

    def finish(self, algorithm: Training) -> None:
        """Writes the final model, its card, the results and the learning curve."""
        model = algorithm.policy.model
        if self.folder is None:
            if model.is_sharded and self.source is not None:
                model.save_together(None)
            return
        with uninterrupted(), self._writing():
            with staged_folder(self.folder / "model") as staging:
                if model.is_sharded:
                    model.save_together(staging)
                else:
                    model.save(staging)
                (staging / "README.md").write_text(model_card(algorithm, self.config), encoding="utf-8")
            write_text(self.folder / "results.json", json.dumps(self._results(algorithm), indent=2) + "\n")
            try:
                plot_learning_curve(self.folder)
            except UserError as error:
                self.warn(str(error))

    def _results(self, algorithm: Training) -> dict[str, Any]:
        evaluations = algorithm.evaluator.evaluations
        results: dict[str, Any] = {
            "iterations": algorithm.iteration,
            "seed": algorithm.config.seed,
            "device": str(algorithm.policy.model.device),
            "dtype": algorithm.policy.model.dtype_name,
            "rollout_dtype": algorithm.policy.engine.dtype_name,
            "contaminated": any(evaluation.contaminated for evaluation in evaluations.values()),
            "evaluations": {str(iteration): evaluations[iteration].metrics() for iteration in sorted(evaluations)},
        }
        if len(evaluations) > 1:
            first, last = evaluations[min(evaluations)], evaluations[max(evaluations)]
            results["paired_p_value"] = paired_p_value(first, last)
        return results

    def _save_to_resume(self, algorithm: Training) -> None:
        self.save_checkpoint(algorithm)
        if self.folder is None:
            return
        messages.print(
            f"saved after iteration {algorithm.iteration}; resume with: "
            f"lmgym train --resume {shlex.quote(str(self.folder))}",
            soft_wrap=True,
        )

    def _write_config(self, folder: Path) -> None:
        write_text(folder / "config.json", json.dumps(self.config, indent=2, default=str) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        with writing_to(self.folder, "--out"):
            yield


def _drop_lines_after(path: Path, iteration: int) -> None:
    """Keeps only the metrics up to a checkpoint, so that no iteration is reported twice."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["iteration"] <= iteration:
                kept.append(line)
    write_text(path, "".join(f"{line}\n" for line in kept))


def _read_evaluations(folder: Path, until: int) -> dict[int, Evaluation]:
    """The evaluations up to a checkpoint, from their episodes; an incomplete one is skipped."""
    found = {}
    for details in sorted(folder.glob("*_episodes.jsonl")):
        iteration = int(details.name.partition("_")[0])
        saved = json.loads((folder / f"{iteration:06d}.json").read_text(encoding="utf-8"))
        episodes = list(read_episodes(details))
        if iteration <= until and len(episodes) == len(saved["solved"]) * saved["samples"]:
            graded = summarise(episodes, saved["samples"], saved["temperature"])
            found[iteration] = replace(graded, contaminated=saved["contaminated_problems"])
    return found
