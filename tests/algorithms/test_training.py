"""The loop really learns, on tiny real models: rewards rise, tokens are the sampled ones, and a run can be resumed."""

from __future__ import annotations

import itertools
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_model, tiny_tokenizer
from small_tasks import TEST, TRAIN, Nothing, Remembering, TwoTurns, Uneven, Vowel, chat, rewards

from lmgym.algorithms.parts import KLPenalty
from lmgym.algorithms.registry import find_algorithm
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.algorithms.reinforce_stable import ReinforceStable, ReinforceStableConfig
from lmgym.buffer import read_episodes
from lmgym.envs.env import Env, Response
from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.losses import kl_estimate, masked_mean
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.models.lora import LoraSettings
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.runs.checkpoint import newest_checkpoint
from lmgym.types import Finish, State


def shake(model: LanguageModel) -> None:
    """Moves every weight a little, the same way each time."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.trainable().values():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


CLOCK = {"seconds", "seconds_collecting", "seconds_learning", "tokens_per_second"}


def config(kind=ReinforceStableConfig, **given):
    start = {"iterations": 15, "problems_per_iteration": 4, "group_size": 16, "learning_rate": 5e-3, "eval_problems": 0}
    return kind.from_settings({**start, "schedule": "constant", "save_every": 0, **given})


def learn(settings, policy=None, env: Env | None = None, eval_env: Env | None = None, **extra) -> Any:
    kind = ReinforceStable if isinstance(settings, ReinforceStableConfig) else Reinforce
    algorithm = kind(policy or chat(), env or Vowel(TRAIN), settings, eval_env, Remembering(), **extra)
    algorithm.train()
    return algorithm


@pytest.mark.parametrize(
    "settings",
    [
        config(ReinforceConfig),
        config(ReinforceConfig, baseline="batch"),
        config(),
        config(ReinforceConfig, kl_coeff=0.01, tis_cap=2.0, kl_place="reward"),
        config(replay_episodes=32, updates_per_iteration=2),
        config(
            ReinforceConfig,
            kl_coeff=0.01,
            tis_cap=2.0,
            kl_place="reward",
            replay_episodes=32,
            updates_per_iteration=2,
            baseline="batch",
        ),
        config(update_reference_every=2, micro_batch_tokens=256, schedule="cosine", warmup_steps=2),
    ],
    ids=lambda settings: f"{type(settings).__name__}",
)
def test_the_mean_reward_rises_clearly(settings):
    algorithm = learn(settings)
    assert rewards(algorithm)[0] < 0.3
    assert sum(rewards(algorithm)[-3:]) / 3 > 0.8
    assert max(metrics["logprob_diff_max"] for metrics in algorithm.run.history) < 1e-4


@pytest.mark.parametrize("kl_place", ["loss", "reward"])
def test_lora_learns_while_the_base_weights_stay(model_folder, kl_place):
    model = load_model(str(model_folder), dtype="float32", lora=LoraSettings(rank=8, alpha=16))
    before = {name: weight.detach().clone() for name, weight in model.network.named_parameters()}
    given = {"kl_coeff": 0.01, "tis_cap": 2.0, "kl_place": kl_place, "update_reference_every": 3}
    settings = config(ReinforceConfig, learning_rate=1e-2, iterations=20, **given)
    algorithm = learn(settings, chat(model))
    assert rewards(algorithm)[0] < 0.5
    assert sum(rewards(algorithm)[-3:]) / 3 > 0.8
    after = dict(model.network.named_parameters())
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert set(model.trainable()) == {name for name in before if "lora_" in name}


@pytest.mark.parametrize("lora", [False, True])
def test_a_refreshed_reference_is_the_policy_itself_and_another_is_left_behind(model_folder, lora):
    adapter = LoraSettings(rank=4, alpha=8) if lora else None
    distances = {}
    for every in (0, 1, 2):
        policy = chat(load_model(str(model_folder), dtype="float32", lora=adapter))
        settings = config(iterations=4, update_reference_every=every, learning_rate=1e-2)
        algorithm = learn(settings, policy)
        distances[every] = [metrics["kl"] > 1e-6 for metrics in algorithm.run.history]
    assert distances == {0: [False, True, True, True], 1: [False] * 4, 2: [False, True, False, True]}


def test_without_a_learning_signal_nothing_moves():
    policy = chat()
    before = {name: weight.clone() for name, weight in policy.model.network.state_dict().items()}
    learn(config(ReinforceConfig, iterations=2), policy, Nothing(TRAIN))
    after = policy.model.network.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_a_penalty_alone_brings_the_policy_back_to_the_reference():
    """Without a reward only the KL moves the weights."""
    distances = {}
    for rate in (1e-12, 3e-3):
        policy = chat()
        shake(policy.model)
        settings = config(kl_coeff=1.0, learning_rate=rate)
        history = learn(settings, policy, Nothing(TRAIN), ref_policy=chat()).run.history
        distances[rate] = sum(metrics["kl"] for metrics in history[-5:]) / 5
    assert distances[3e-3] < 0.5 * distances[1e-12]


@pytest.mark.parametrize("name", ["reinforce", "grpo", "ppo", "expert-iteration", "online-dpo", "reinforce-stable"])
def test_an_iteration_with_nothing_to_learn_reports_that(name):
    kind = find_algorithm(name)
    given = {"kl_coeff": 0.0} if name == "reinforce-stable" else {}
    settings = config(
        kind.Config, iterations=2, problems_per_iteration=2, group_size=4, updates_per_iteration=1, **given
    )
    algorithm: Any = kind(chat(), Nothing(TRAIN), settings, None, Remembering())
    algorithm.train()
    for metrics in algorithm.run.history:
        assert {"entropy", "logprob_diff", "logprob_diff_max", "learning_rate"} <= metrics.keys()
        assert (metrics["loss"], metrics["gradient_norm"]) == (0, 0)
        assert metrics["episodes_learnt"] == (8 if name == "ppo" else 0)
        assert ("kl" in metrics) == (name == "online-dpo")
        assert metrics["entropy"] > 0
        assert metrics["learning_rate"] == 5e-3
        assert metrics["logprob_diff_max"] < 1e-4
    assert len(algorithm.run.warnings) == 1, "once, for as long as it lasts"
    assert "all 8 rewards are 0" in algorithm.run.warnings[0]


def test_a_new_lack_of_signal_is_said_again():
    class Now(Vowel):
        """Rewards by lot, in every second iteration."""

        def respond(self, state: State, text: str, finish: Finish) -> Response:
            lot = float(algorithm.iteration % 2 == 1 and self.np_random.random() < 0.5)
            return Response(reward=lot, terminated=True)

    algorithm: Any = Reinforce(chat(), Now(TRAIN), config(ReinforceConfig, iterations=5), None, Remembering())
    algorithm.train()
    assert len(algorithm.run.warnings) == 3


def test_two_turns_with_step_rewards_are_both_learnt():
    algorithm = learn(
        config(ReinforceConfig, kl_coeff=0.01, tis_cap=2.0, kl_place="reward", discount=0.5), env=TwoTurns(TRAIN)
    )
    assert rewards(algorithm)[0] < 0.4
    assert sum(rewards(algorithm)[-3:]) / 3 > 0.8
    last = algorithm.buffer.of_iteration(14)
    for step in (0, 1):
        assert sum(episode.rewards[step] for episode in last) / len(last) > 0.35


class Forcing(ChatPolicy):
    """After its second token a tool writes two more, as a calculator would."""

    def stop_ids(self, written):
        return frozenset(range(self.model.vocabulary_size)) if len(written) < 2 else frozenset()

    def tool_output(self, written):
        return self.encode("=>") if len(written) == 2 else ()


def test_the_tokens_trained_on_are_the_tokens_sampled():
    policy = Forcing(tiny_model(), (), "", max_tokens=8, temperature=0.7)
    settings = config(iterations=2, problems_per_iteration=2, group_size=3)
    algorithm: Any = ReinforceStable(policy, TwoTurns(TRAIN), settings, run=Remembering())
    seen, step = [], algorithm.learner.step

    def recording(batch, loss):
        seen.append(batch)
        return step(batch, loss)

    algorithm.learner.step = recording
    algorithm.train()
    for iteration, batch in enumerate(seen):
        episodes = algorithm.buffer.of_iteration(iteration)
        actions = [turn.action for episode in episodes for turn in episode.steps]
        assert int(batch.mask.sum()) == sum(sum(action.mask) for action in actions) == batch.total_tokens
        assert sum(len(action.token_ids) for action in actions) > batch.total_tokens  # some were forced
        sampled = [
            t for e in episodes for s in e.steps for t, m in zip(s.action.token_ids, s.action.mask, strict=True) if m
        ]
        assert sorted(batch.tokens[batch.mask].tolist()) == sorted(sampled)
        rows = [tuple(row[:end]) for row, end in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
        assert sorted(rows) == sorted(episode.tokens for episode in episodes)
    assert max(metrics["logprob_diff_max"] for metrics in algorithm.run.history) < 1e-4


def test_the_stepwise_policy_learns_line_by_line():
    class Digit(Env):
        """Lines until one has a digit, three at the most; a digit earns 1."""

        def respond(self, state: State, text: str, finish: Finish) -> Response:
            found = any(letter.isdigit() for letter in text)
            over = found or finish != "stop"
            return Response(float(found), terminated=over, truncated=state.turn == 3 and not over)

    policy = FewShotLLMStepwiseMathPolicy(tiny_model(size=32), (), "", max_line_tokens=2)
    algorithm = learn(config(iterations=20), policy, Digit(TRAIN))
    assert rewards(algorithm)[0] < 0.4
    assert sum(rewards(algorithm)[-3:]) / 3 > 0.8


def without_clock(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in CLOCK}


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    runs = [learn(config(iterations=3, seed=seed), env=TwoTurns(TRAIN)).run.history for seed in (5, 5, 6)]
    first, again, other = ([without_clock(metrics) for metrics in run] for run in runs)
    assert first == again
    assert first != other


def test_the_size_of_a_micro_batch_does_not_change_what_is_learnt():
    # One step only: Adam makes a whole step of a gradient that is mere rounding, and other episodes follow from it.
    runs = [learn(config(iterations=1, micro_batch_tokens=size)) for size in (4096, 16)]
    whole, cut = (algorithm.run.history[0] for algorithm in runs)
    for metric in ("gradient_norm", "loss", "entropy", "reward"):
        assert whole[metric] == pytest.approx(cut[metric], rel=1e-4, abs=1e-6)


def test_old_episodes_do_not_count_in_the_gap_between_sampler_and_learner():
    class Once(Env):
        """Only the first iteration's problems earn anything, so later only replayed episodes have an advantage."""

        def respond(self, state: State, text: str, finish: Finish) -> Response:
            return Response(float(state.seed == 0 and text < "Q" and state.problem.id in early), terminated=True)

    algorithm: Any = ReinforceStable(
        chat(),
        Once(TRAIN),
        config(kl_coeff=0.0, iterations=2, replay_episodes=64, learning_rate=0.05),
        run=Remembering(),
    )
    early = {TRAIN[index].id for index in algorithm.next_problems()}
    algorithm.train()
    assert algorithm.run.history[1]["episodes_learnt"] > 0
    assert algorithm.run.history[1]["reward"] == 0
    assert algorithm.run.history[1]["logprob_diff_max"] < 1e-4
    assert not algorithm.run.warnings


def test_a_policy_that_does_not_sample_cannot_learn():
    with pytest.raises(UserError, match="must sample"):
        Reinforce(chat(temperature=0.0), Vowel(TRAIN), config(ReinforceConfig))


# Runs on disk.


class Stopping(ChatPolicy):
    """Is interrupted, as by Ctrl-C, when it is asked to sample at a bad time."""

    is_bad_time = staticmethod(lambda: False)

    def next_actions(self, states, temperature=None):
        if self.is_bad_time():
            raise KeyboardInterrupt
        return super().next_actions(states, temperature)


def begin(folder: Path, model_folder: Path, lora: bool, **given) -> Any:
    """Everything built anew, as a fresh process would, from the model that the run began with."""
    settings = LoraSettings(rank=4, alpha=8) if lora else None
    loaded = load_model(str(model_folder), dtype="float32", lora=settings)
    kind = find_algorithm(given.pop("algorithm", "reinforce-stable"))
    chosen: dict[str, Any] = {
        "iterations": 4,
        "problems_per_iteration": 2,
        "group_size": 4,
        "eval_problems": 4,
        "evaluate_every": 2,
    }
    chosen |= {"schedule": "cosine", "warmup_steps": 1, "learning_rate": 1e-2, "save_every": 1}
    if kind.Config().part(KLPenalty) is not None:
        chosen["kl_coeff"] = 0.1
    run = Remembering(folder)
    envs = Uneven(TRAIN), Uneven(TEST)
    settings = config(kind.Config, **{**chosen, **given})
    return kind(chat(loaded, Stopping), envs[0], settings, envs[1], run)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    return [without_clock(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("lora", "done", "given"),
    [
        (False, 2, {}),
        (False, 3, {"update_reference_every": 2}),
        (
            False,
            2,
            {
                "algorithm": "reinforce",
                "kl_place": "reward",
                "tis_cap": 2.0,
                "replay_episodes": 4,
                "updates_per_iteration": 2,
            },
        ),
        (False, 2, {"algorithm": "gspo", "replay_episodes": 8, "updates_per_iteration": 2}),
        (True, 2, {"update_reference_every": 1}),
        (True, 3, {"update_reference_every": 2}),
        (False, 2, {"algorithm": "ppo", "critic": "head"}),
        (False, 2, {"algorithm": "ppo", "critic": "model"}),
        (False, 3, {"algorithm": "reinforce", "baseline": "running", "kl_target": 0.05}),
        (False, 2, {"algorithm": "online-dpo"}),
        (False, 2, {"algorithm": "expert-iteration", "restart": True}),
        (True, 2, {"algorithm": "expert-iteration", "restart": True}),
        (True, 2, {"algorithm": "grpo"}),
    ],
)
def test_a_run_interrupted_and_taken_up_equals_one_that_was_not(tmp_path, model_folder, lora, done, given):
    straight = begin(tmp_path / "straight", model_folder, lora, **given)
    straight.train()

    broken = begin(tmp_path / "broken", model_folder, lora, **given)
    broken.policy.is_bad_time = lambda: 0 < len(broken.buffer.of_iteration(done)) < 8  # some episodes are over
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    checkpoint = newest_checkpoint(tmp_path / "broken")
    assert json.loads((checkpoint / "state.json").read_text())["iteration"] == done
    written = [episode.iteration for episode in read_episodes(tmp_path / "broken" / "episodes.jsonl")]
    assert 0 < written.count(done) < 8
    resumed = begin(tmp_path / "broken", model_folder, lora, **given)
    resumed.run.resume(resumed)
    resumed.train()

    weights = dict(straight.policy.model.network.named_parameters())
    again = dict(resumed.policy.model.network.named_parameters())
    assert weights.keys() == again.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, again[name]), name

    ours, theirs = read_metrics(tmp_path / "straight"), read_metrics(tmp_path / "broken")
    assert [row["iteration"] for row in theirs if "reward" in row] == [1, 2, 3, 4]
    assert [row["iteration"] for row in theirs if "eval/strict" in row] == [0, 2, 4]
    assert len(ours) == len(theirs)
    assert ours == theirs
    files = [(tmp_path / name / "episodes.jsonl").read_bytes() for name in ("straight", "broken")]
    assert files[0] == files[1]
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("straight", "broken")]
    assert results[0].keys() == results[1].keys()
    assert list(results[1]["evaluations"]) == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("schedule", "warmup", "iterations"), [("linear", 0, 8), ("cosine", 1, 8), ("constant", 0, 8), ("linear", 0, 5)]
)
def test_a_resumed_run_with_another_number_of_iterations_keeps_its_learning_rate(
    tmp_path, model_folder, schedule, warmup, iterations
):
    given = {"schedule": schedule, "warmup_steps": warmup, "updates_per_iteration": 2, "evaluate_every": 0}
    begin(tmp_path, model_folder, lora=False, **given).train()
    for until in (iterations, iterations + 2):  # and once more: the second bend begins at the first
        again = begin(tmp_path, model_folder, lora=False, **given, iterations=until)
        again.run.resume(again)
        again.train()
    rates = [row["learning_rate"] for row in read_metrics(tmp_path) if "learning_rate" in row]
    assert len(rates) == iterations + 2
    falling = rates[1:] if warmup else rates
    if schedule == "constant":
        assert set(rates) == {1e-2}
    else:
        assert all(0 < later < earlier for earlier, later in itertools.pairwise(falling))


def test_another_learning_rate_begins_a_schedule_of_its_own(tmp_path, model_folder):
    """Of a run that was finished there is nothing left to fall from."""
    begin(tmp_path, model_folder, lora=False, schedule="linear", iterations=4).train()
    given = {"schedule": "linear", "iterations": 8, "learning_rate": 4e-3}
    again = begin(tmp_path, model_folder, False, **given)
    again.run.resume(again)
    again.train()
    rates = [row["learning_rate"] for row in read_metrics(tmp_path) if "learning_rate" in row]
    assert rates[4:] == pytest.approx([4e-3 * share for share in (0.8, 0.6, 0.4, 0.2)])


def test_resumed_with_the_same_iterations_the_schedule_stays(tmp_path, model_folder):
    begin(tmp_path, model_folder, lora=False, iterations=2).train()
    again = begin(tmp_path, model_folder, lora=False, iterations=2)
    again.run.resume(again)
    assert "schedule_step" not in again.state


def test_another_coefficient_on_resume_replaces_the_adapted_one(tmp_path, model_folder):
    given = {"algorithm": "reinforce", "kl_target": 0.05}
    begin(tmp_path, model_folder, lora=False, **given).train()
    for kl_coeff, kl_target, expected in ((0.1, 0.05, None), (0.3, 0.05, 0.3), (0.1, 0.0, 0.1)):
        again = begin(tmp_path, model_folder, False, **{**given, "kl_coeff": kl_coeff, "kl_target": kl_target})
        again.run.resume(again)
        assert again.kl_coeff == (again.state["kl_coeff"] if expected is None else expected)


def test_a_finished_run_is_not_evaluated_twice(tmp_path, model_folder):
    begin(tmp_path, model_folder, lora=False).train()
    again = begin(tmp_path, model_folder, lora=False)
    again.run.resume(again)
    again.train()
    assert [row["iteration"] for row in read_metrics(tmp_path) if "eval/strict" in row] == [0, 2, 4]


def test_a_torn_line_of_metrics_does_not_stop_a_resumed_run(tmp_path, model_folder):
    begin(tmp_path, model_folder, lora=False).train()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "sec')
    again = begin(tmp_path, model_folder, lora=False, iterations=5)
    again.run.resume(again)
    again.train()
    assert [row["iteration"] for row in read_metrics(tmp_path) if "reward" in row] == [1, 2, 3, 4, 5]


def test_an_author_adds_a_metric_and_a_schedule():
    class Mine(ReinforceStable):
        def setup(self, ref_policy):
            super().setup(ref_policy)
            self.learner.schedule = lambda step, total: 0.5**step

        def advantages(self, batch):
            advantages = super().advantages(batch)
            self.recorded |= {"advantage_max": float(advantages.max()), "episodes": float(len(batch))}
            return advantages

    algorithm: Any = Mine(chat(), Vowel(TRAIN), config(iterations=3), None, Remembering())
    algorithm.train()
    assert [metrics["learning_rate"] for metrics in algorithm.run.history] == [5e-3, 2.5e-3, 1.25e-3]
    assert all(metrics["episodes"] == 64 and metrics["advantage_max"] >= 0 for metrics in algorithm.run.history)


def test_ctrl_c_while_learning_finishes_the_update_and_loses_none_of_its_numbers(tmp_path, model_folder):
    broken = begin(tmp_path, model_folder, lora=False, save_every=0)
    step = broken.learner.step

    def interrupted(batch, loss):
        if broken.iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(batch, loss)

    broken.learner.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    assert broken.iteration == 2
    resumed = begin(tmp_path, model_folder, lora=False)
    resumed.run.resume(resumed)
    assert resumed.iteration == 2
    resumed.train()
    assert [row["iteration"] for row in read_metrics(tmp_path) if "reward" in row] == [1, 2, 3, 4]


def test_a_checkpoint_that_could_not_be_written_leaves_the_one_before(tmp_path, model_folder, monkeypatch):
    algorithm = begin(tmp_path, model_folder, lora=False)
    algorithm.run.save_checkpoint(algorithm)
    before = newest_checkpoint(tmp_path)
    algorithm.iteration = 1

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lmgym.runs.checkpoint.save_file", full)
    with pytest.raises(UserError, match="the disk is full"):
        algorithm.run.save_checkpoint(algorithm)
    assert newest_checkpoint(tmp_path) == before
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [before.name]


def test_only_the_newest_checkpoint_is_kept_and_it_holds_no_pickle(tmp_path, model_folder):
    begin(tmp_path, model_folder, lora=False, iterations=2).train()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000002"]
    endings = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert endings <= {".json", ".jsonl", ".safetensors", ".jinja", ".md", ".png"}


def test_training_on_the_problems_evaluated_on_is_a_loud_warning_and_marks_every_number(tmp_path, capsys):
    copies = [replace(problem, id=f"copy/{problem.id}", prompt=f" {problem.prompt.lower()}\n") for problem in TRAIN[:2]]
    settings = config(iterations=1, problems_per_iteration=2, group_size=2, eval_problems=4)
    run = Remembering(tmp_path / "run", {})
    algorithm = ReinforceStable(chat(), Vowel(TRAIN), settings, Vowel([*copies, *TEST[:2]]), run)
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith("CONTAMINATED: 2 of the 4 problems")
    algorithm.train()
    keys = {key for row in read_metrics(tmp_path / "run") for key in row if "eval/" in key}
    assert keys
    assert all(key.startswith("contaminated_eval/") for key in keys)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["contaminated"] is True
    printed = capsys.readouterr().err
    assert "WARNING: CONTAMINATED" in printed
    assert "CONTAMINATED mean reward" in printed
    assert "held-out" not in printed


def test_a_clean_run_is_not_marked(tmp_path):
    settings = config(iterations=1, problems_per_iteration=2, group_size=2, eval_problems=4)
    run = Remembering(tmp_path / "run", {})
    ReinforceStable(chat(), Vowel(TRAIN), settings, Vowel(TEST), run).train()
    assert not run.warnings
    assert json.loads((tmp_path / "run" / "results.json").read_text())["contaminated"] is False
    assert any("eval/strict" in row for row in read_metrics(tmp_path / "run"))


def test_a_sampler_that_disagrees_with_the_learner_is_a_loud_warning():
    policy = chat()
    act = policy.next_actions
    policy.next_actions = lambda states, temperature=None: [
        replace(action, logprobs=tuple(value - 0.2 for value in action.logprobs)) for action in act(states, temperature)
    ]
    algorithm = learn(config(iterations=1), policy)
    assert algorithm.run.history[0]["logprob_diff"] == pytest.approx(0.2, abs=1e-3)
    assert len(algorithm.run.warnings) == 1
    assert "differ by 0.2" in algorithm.run.warnings[0]


def test_every_problem_comes_once_before_any_comes_twice():
    algorithm = Reinforce(chat(), Vowel(TRAIN), config(ReinforceConfig, problems_per_iteration=3))
    seen: list[int] = []
    for algorithm.iteration in range(8):
        seen += algorithm.next_problems()
    assert all(sorted(seen[start : start + 8]) == list(range(8)) for start in (0, 8, 16))
    assert seen[:8] != seen[8:16]


def test_episodes_on_disk_are_those_of_the_run(tmp_path):
    settings = config(iterations=2, problems_per_iteration=2, group_size=2)
    algorithm = ReinforceStable(chat(), TwoTurns(TRAIN), settings, run=Remembering(tmp_path, {}))
    algorithm.buffer.capacity = 4
    algorithm.train()
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [episode.iteration for episode in episodes] == [0] * 4 + [1] * 4
    assert len(algorithm.buffer) == 4
    assert [episode.tokens for episode in episodes[4:]] == [episode.tokens for episode in algorithm.buffer.episodes]
    decoded = str(tiny_tokenizer().decode(list(episodes[0].tokens)))
    assert decoded.startswith("<|start|>user\nQ")
    assert "<|start|>user\nmore<|stop|>" in decoded


@pytest.mark.parametrize("kl_coeff", [0.0, 0.01])
def test_with_a_kl_every_group_is_computed_else_only_those_with_an_advantage(kl_coeff):
    class OneProblemCounts(Vowel):
        def respond(self, state: State, text: str, finish: Finish) -> Response:
            response = super().respond(state, text, finish)
            return response if state.problem is TRAIN[0] else replace(response, reward=0.0)

    asked = []

    class Asking(ReinforceStable):
        def loss(self, scores, batch):
            asked.append(len(batch) if self.iteration == 0 else 0)
            return super().loss(scores, batch)

    settings = config(iterations=2, kl_coeff=kl_coeff)
    algorithm: Any = Asking(chat(), OneProblemCounts(TRAIN[:4]), settings, None, Remembering())
    algorithm.train()
    assert sum(asked) == (64 if kl_coeff else 16)
    if not kl_coeff:
        return
    batch = Batch.from_episodes(algorithm.buffer.of_iteration(1))
    assert algorithm.reference is not None
    reference = algorithm.reference.logprobs(algorithm.learner, batch)
    measured = masked_mean(kl_estimate(batch.logprobs, reference, "k3"), batch.mask)
    assert measured > 1e-3
    assert algorithm.run.history[1]["kl"] == pytest.approx(measured, rel=1e-3)
