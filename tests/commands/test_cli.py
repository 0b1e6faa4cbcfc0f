"""The program as its users meet it: mistakes are one sentence, and a tiny real training goes through to the end."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import lmgym
from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
from lmgym.commands.cli import main
from lmgym.commands.evaluate import EvalSettings
from lmgym.commands.flag_names import USUAL_NAMES, flag_names
from lmgym.commands.train import TrainSettings
from lmgym.engines.torch.int8_product import has_int8_products
from lmgym.envs import registry
from lmgym.evaluation.trained_problems import trained_problems

TINY = ["--iterations", "2", "--problems_per_iteration", "2", "--group_size", "2", "--max_tokens", "8", "--shots", "1"]
TINY += ["--eval_problems", "4", "--dtype", "float32", "--env_options", "max_steps", "2"]


class Outcome:
    """How a command ended and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process, where lines are wide."""
    monkeypatch.setenv("COLUMNS", "250")

    def run_command(*arguments: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


def is_one_sentence(outcome: Outcome) -> bool:
    """Exit code 2, one line on standard error, nothing else anywhere."""
    lines = outcome.err.strip().split("\n")
    return outcome.code == 2 and len(lines) == 1 and lines[0].startswith("lmgym: ") and not outcome.out.strip()


def is_untouched(out: Path) -> bool:
    return not out.exists() or not any(out.iterdir())


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def train(run, model_folder, out):
    """Runs a tiny training, with some flags of one's own."""

    def run_training(
        *arguments: object, algorithm: str = "reinforce-stable", env: object = "arithmetic", name: str = "run"
    ) -> Outcome:
        start = ["train", algorithm, "--env", env, "--out", out / name, *TINY]
        model = [] if "--model" in arguments else ["--model", model_folder]
        return run(*start, *model, *arguments)

    return run_training


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "there is no command 'trian' (did you mean train?); there are train, eval, play"),
        (["train", "reinforce-stabel"], "did you mean reinforce-stable?"),
        (["train", "gpro"], "did you mean grpo?"),
        (["train", "--lr", "1e-5"], "there is no flag --lr (did you mean --learning_rate?); see lmgym train"),
        (["train", "--lr=1e-5"], "there is no flag --lr (did you mean --learning_rate?)"),
        (["train", "grpo", "--num-generations", "8"], "did you mean --group_size?"),
        (["train", "--batch_size", "8"], "did you mean --problems_per_iteration?"),
        (["train", "--epochs", "8"], "did you mean --iterations?"),
        (["train", "--beta", "0.1"], "did you mean --kl_coeff?"),
        (["train", "--max_new_tokens", "8"], "did you mean --max_tokens?"),
        (["train", "--modle", "smollm2-135m"], "did you mean --model?"),
        (["train", "--env", "arithmetic", "digits", "3"], "'digits' belongs to no flag; see lmgym train"),
        (["train", "--zzz"], "there is no flag --zzz; see lmgym train"),
        (["eval", "--model_name_or_path", "smollm2-135m"], "did you mean --model?"),
        (["eval", "--limit", "8"], "did you mean --problems?"),
        (["play", "--indx", "8"], "did you mean --index?"),
        (["train", "nowhere:Nothing"], "cannot be imported"),
        (["train", "json:JSONDecoder"], "must be a class that extends RLAlgorithm"),
        (["train", "--resume"], "--resume needs a value"),
        (["train", "--resume", "no/such/folder"], "is not a folder"),
        (["envs", "--all"], "takes no flags"),
        (["eval", "--problems", "0"], "must be at least 1"),
        (["eval", "--samples", "4"], "4 greedy answers are all the same"),
        (["eval", "--model", "smollm2-135n"], "did you mean smollm2-135m?"),
        (["eval", "--env", "arithmetic", "--split", "dev"], 'has no split "dev"'),
        (["play", "--env", "arithmetic", "--index", "-1"], "There is no problem -1"),
        (["play", "--env", "arithmetic"], "the input ended"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, says):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.strip().count("\n") == 0
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--env", "arithmetics"], 'did you mean "arithmetic"?'),
        (["--env_options", "digitz", "3"], "digitz"),
        (["--env_options", "digits", "77"], "digits is 77"),
        (["--eval_env", "gsm9k"], "gsm9k"),
        (["--model", "smollm2-135"], "did you mean smollm2-135m?"),
        (["--model", "no/such/folder/anywhere"], "no model is named"),
        (["--ref_model", "nothing"], "no model is named 'nothing'"),
        (["--iterations", "0"], "--iterations is 0: it must be at least 1"),
        (["--group_size", "0"], "--group_size is 0: it must be at least 1"),
        (["--kl_coeff", "-0.5"], "--kl_coeff is -0.5: it must be at least 0"),
        (["--update_reference_every", "2", "--kl_coeff", "0"], "--update_reference_every needs a KL penalty"),
        (["--learning_rate", "nan"], "--learning_rate is nan"),
        (["--learning_rate", "0"], "--learning_rate and --max_gradient_norm must be above 0"),
        (["--temperature", "-1"], "--temperature is -1.0: it must be 0 or more"),
        (["--top_k", "-1"], "--top_k is -1 and"),
        (["--top_p", "0"], "--top_p 0.0"),
        (["--temperature", "0"], "must sample"),
        (["--max_tokens", "0"], "max_tokens is 0"),
        (["--shots", "-1"], "-1 worked examples"),
        (["--device", "gpu9"], "device 'gpu9' cannot be used"),
        (["--system_prompt", "no_such_prompt.txt"], "there is no system prompt 'no_such_prompt.txt'"),
        (["--track", "wandbb"], "there is no tracker 'wandbb'; there are wandb, tensorboard, trackio"),
        (["--load_episodes", "none.jsonl"], "none.jsonl cannot be read"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_leaves_no_run_behind(train, out, flags, says):
    outcome = train(*flags)
    assert says in outcome.err
    assert is_one_sentence(outcome), outcome.err
    assert is_untouched(out)


@pytest.mark.parametrize("flags", [["--iterations", "many"], ["--no_such_flag", "1"], ["--baseline", "nowhere"]])
def test_a_flag_that_cannot_be_read_exits_with_2_and_names_it(train, out, flags):
    outcome = train(*flags)
    assert outcome.code == 2
    assert flags[0] in outcome.err
    assert "Traceback" not in outcome.err
    assert is_untouched(out)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        ("", "holds no problems"),
        ("[]", "holds no problems"),
        (
            '{"question": "1+1?", "answer": "2"}\n{"question": "1+2?"}\n',
            'line 2: the row has no "solution" or "answer"',
        ),
        ('{"question": "1+1?", "answer": "2"}\n{"question": "1+2', "line 2: not valid JSON"),
        ('{"question": "1+1?", "solution": "two"}\n', "line 1: the solution states no answer"),
    ],
)
def test_a_bad_data_file_is_one_sentence_with_file_and_line(train, out, tmp_path, content, says):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    outcome = train(env=path)
    assert is_one_sentence(outcome), outcome.err
    assert f"{path}" in outcome.err
    assert says in outcome.err
    assert is_untouched(out)


@pytest.fixture
def changed_model(model_folder, tmp_path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "changed"))


def test_a_model_without_a_chat_template_is_prompted_in_plain_text(train, out, changed_model):
    (changed_model / "chat_template.jinja").unlink(missing_ok=True)
    path = changed_model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template", None)
    path.write_text(json.dumps(settings))
    assert train("--model", changed_model, name="base").code == 0
    episode = json.loads((out / "base" / "episodes.jsonl").read_text().splitlines()[0])
    assert episode["steps"][0]["read_ids"][-10:] == AutoTokenizer.from_pretrained(changed_model).encode("Solution:\n")


def test_the_memory_a_run_will_need_is_said_before_it_begins_and_too_much_is_refused(train, out, changed_model):
    told = train(name="fits").out
    assert told.index("memory: about") < told.index("held-out problems")
    path = changed_model / "config.json"
    large = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "vocab_size": 128256}
    path.write_text(json.dumps(json.loads(path.read_text()) | large))
    outcome = train("--model", changed_model, name="does-not-fit")
    assert is_one_sentence(outcome), outcome.err
    assert "does not fit into memory: it needs about" in outcome.err
    assert "--lora_rank" in outcome.err
    assert not (out / "does-not-fit").exists()


def test_a_context_too_long_for_the_model_is_one_sentence(train, out, changed_model):
    path = changed_model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 64}))
    outcome = train("--model", changed_model)
    assert is_one_sentence(outcome), outcome.err
    assert "is 64; use fewer or shorter examples" in outcome.err
    assert is_untouched(out)


def test_a_folder_that_is_no_model_is_one_sentence(train, out, tmp_path):
    (tmp_path / "empty").mkdir()
    outcome = train("--model", tmp_path / "empty")
    assert is_one_sentence(outcome), outcome.err
    assert "is not a model" in outcome.err
    assert is_untouched(out)


def test_a_name_that_exists_is_one_sentence_and_nothing_is_overwritten(train, out):
    (out / "mine").mkdir(parents=True)
    (out / "mine" / "notes.txt").write_text("keep me")
    (out / "file").write_text("keep me too")
    for name in ("mine", "file"):
        outcome = train(name=name)
        assert is_one_sentence(outcome), outcome.err
        assert f"{out / name} exists already" in outcome.err
    assert sorted(path.name for path in out.rglob("*")) == ["file", "mine", "notes.txt"]


def test_an_out_that_cannot_be_written_is_one_sentence(train, out):
    out.write_text("a file")
    outcome = train()
    assert is_one_sentence(outcome), outcome.err
    assert "--out" in outcome.err


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model_type": "llama"}', '{"algorithm": "reinforce"}'])
def test_resuming_what_is_no_run_is_one_sentence(run, tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = run("train", "--resume", tmp_path)
    assert is_one_sentence(outcome), outcome.err
    assert str(tmp_path) in outcome.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("package", ["wandb", "tensorboard", "trackio"])
def test_a_tracker_that_is_not_installed_is_one_sentence_that_names_the_extra(train, out, monkeypatch, package):
    find = importlib.import_module

    def missing(name: str, *arguments):
        if name == package:
            raise ImportError(name)
        return find(name, *arguments)

    monkeypatch.setattr("lmgym.runs.tracking.importlib.import_module", missing)
    outcome = train("--track", package)
    assert is_one_sentence(outcome), outcome.err
    assert f"pip install 'lmgym[{package}]'" in outcome.err
    assert is_untouched(out)


def test_wandb_without_a_key_is_one_sentence_and_leaves_no_run(train, out, tmp_path, monkeypatch):
    pytest.importorskip("wandb").teardown()  # it remembers how it was set up first
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome = train("--track", "wandb")
    assert is_one_sentence(outcome), outcome.err
    assert "wandb login" in outcome.err
    assert is_untouched(out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "grpo", "--normalisation", "none"], "--normalisation is now called --advantage_norm"),
        (["train", "--max_ratio", "2"], "--max_ratio is now called --tis_cap"),
        (["train", "grpo", "--max_sampler_ratio=2"], "--max_sampler_ratio is now called --tis_cap"),
        (["train", "sft", "--trace", "1"], "--trace is now called --gae_lambda, which this command does not have"),
        (["train", "dapo", "--max-helpings", "2"], "--max_helpings is now called --max_resample_rounds"),
        (["train", "--name", "mine"], "--name was removed: a run directory is named by --out"),
        (["train", "--no_kl_on_silent_groups"], "--kl_on_silent_groups was removed: the KL penalty is always over all"),
        (["train", "--lora"], "--lora was removed: --lora_rank above 0"),
        (["eval", "--import", "json"], "--import was removed"),
        (["bench"], "python -m benchmarks.speed"),
    ],
)
def test_what_version_01_called_differently_says_its_name_now(run, arguments, says):
    outcome = run(*arguments)
    assert is_one_sentence(outcome), outcome.err
    assert says in outcome.err


def old_run(finished: Path, folder: Path, **changed: object) -> Path:
    """A run as version 0.1 wrote it."""
    shutil.copytree(finished, folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("lmgym_version", "tis_cap", "load_episodes", "out", "lora_rank"):
        config.pop(name)
    config |= {"max_ratio": 2.0, "normalisation": "none", "averaging": "token", "kl_place": "loss", "discount": 1.0}
    config |= {"kl_on_silent_groups": True, "kl_estimator": "k3", "lora": False, "lora_rank": 16, "lora_alpha": 32}
    config |= {"out": str(folder.parent), "name": folder.name, "imports": [], "load_buffer_from_cache_at_start": ""}
    config |= {"token_budget": 0, "weight_decay": 0.0, "evaluate_at_start": True, "entropy_coeff": 0.0}
    (folder / "config.json").write_text(json.dumps(config | changed))
    for path in folder.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text())
        state["memory"] = state.pop("algorithm_state")
        path.write_text(json.dumps(state))
    return folder


def test_an_old_run_says_what_its_settings_are_called_now_and_goes_on(run, stopped, tmp_path):
    folder = old_run(stopped, tmp_path / "old")
    measured = run("eval", "--model", folder, "--problems", 2)
    assert measured.code == 0, measured.err
    assert f"{folder} was written by lmgym 0.1: --normalisation is now --advantage_norm" in measured.err
    resumed = run("train", "--resume", folder, "--iterations", 2)
    assert resumed.code == 0, resumed.err
    assert "--max_ratio is now --tis_cap" in resumed.err
    config = json.loads((folder / "config.json").read_text())
    assert (config["tis_cap"], config["lora_rank"], config["lmgym_version"]) == (2.0, 0, lmgym.__version__)


def test_an_old_run_whose_settings_are_no_more_is_refused_in_one_sentence(run, stopped, tmp_path):
    for name, value in {"kl_on_silent_groups": False, "kl_place": "reward", "averaging": "episode"}.items():
        folder = old_run(stopped, tmp_path / name, **{name: value})
        outcome = run("train", "--resume", folder, "--iterations", 2)
        assert is_one_sentence(outcome), outcome.err
        assert f"--{name} {value}" in outcome.err
        assert f"lmgym train --model {folder}" in outcome.err


def test_the_default_algorithm_has_few_settings(run):
    flags = flag_names(TrainSettings(find_algorithm("reinforce-stable").Config()))
    assert 30 < len(flags) <= 55
    text = run("train", "--help").out
    assert all(f"--{flag}" in text for flag in flags)


def test_every_usual_name_means_a_flag_that_there_is():
    known = set()
    for name in ALGORITHMS:
        known |= set(flag_names(TrainSettings(find_algorithm(name).Config())))
    known |= set(flag_names(EvalSettings()))
    assert set(USUAL_NAMES.values()) <= known


# A real process.


def process(*arguments: str, **options: Any) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(lmgym.__file__).parents[1])}
    command = [sys.executable, "-m", "lmgym", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)


def test_the_package_runs_as_a_module():
    out, err = process("--version").communicate(timeout=120)
    assert (out.strip(), err) == (lmgym.__version__, "")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["algorithms"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    begun = process(*arguments)
    assert begun.stdout is not None
    assert begun.stderr is not None
    begun.stdout.close()  # as `| head -1` does
    errors = begun.stderr.read()
    assert begun.wait(timeout=120) != 2
    assert errors == ""


# What there is.


def test_the_listings_name_what_there_is(run):
    envs, algorithms, models = (run(command) for command in ("envs", "algorithms", "models"))
    assert envs.code == algorithms.code == models.code == 0
    assert all(name in envs.out for name in ("gsm8k", "math", "word-problems", "arithmetic", "digits=2"))
    assert all(name in algorithms.out for name in ("reinforce", "reinforce-stable", "Williams, 1992"))
    assert "smollm2-135m" in models.out


def test_help_shows_every_command_and_every_flag_with_its_line(run):
    assert all(command in run("--help").out for command in ("train", "eval", "play", "envs", "algorithms", "models"))
    assert run("--version").out.strip() == lmgym.__version__
    text = " ".join(run("train", "--help").out.split())
    assert "--kl_coeff" in text
    assert "Coefficient of the KL penalty to the reference policy" in text
    assert "--group_size" in text
    assert "--kl_coeff" not in run("train", "sft", "--help").out
    assert "--sample_temperature" in run("eval", "--help").out


def test_playing_by_hand_shows_problem_reward_and_solution(run):
    problem = lmgym.make("arithmetic").problems[3]
    won = run("play", "--env", "arithmetic", "--index", 3, stdin=f"let me think\nThe answer is: {problem.answer}\n")
    assert won.code == 0
    assert problem.prompt in won.out
    assert "reward 1" in won.out
    assert f"The episode is over; the answer was {problem.answer}." in won.out
    lost = run("play", "--env", "arithmetic", "--index", 3, stdin="The answer is: -1\n")
    assert lost.code == 0
    assert "reward" not in lost.out


# A run from beginning to end.


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model_folder) -> Path:
    """A real run of two iterations."""
    root = tmp_path_factory.mktemp("finished")
    arguments = ["train", "reinforce-stable", "--env", "arithmetic", "--model", str(model_folder)]
    main([*arguments, *TINY, "--out", str(root / "run"), "--track", "tensorboard", "--replay_episodes", "2"])
    return root / "run"


def test_a_run_keeps_all_that_was_promised(finished, model_folder):
    config = json.loads((finished / "config.json").read_text())
    assert config["algorithm"] == "reinforce-stable"
    assert config["model"] == str(model_folder)
    assert config["group_size"] == 2
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "reward" in row] == [1, 2]
    assert [row["iteration"] for row in rows if "eval/strict" in row] == [0, 2]
    assert {
        "kl",
        "entropy",
        "length",
        "gradient_norm",
        "logprob_diff",
        "logprob_diff_p95",
        "logprob_diff_max",
        "tokens_per_second",
    } <= set(rows[1])
    assert len((finished / "episodes.jsonl").read_text().splitlines()) == 8
    results = json.loads((finished / "results.json").read_text())
    assert results["contaminated"] is False
    assert "paired_p_value" in results
    assert (finished / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "lmgym" in (finished / "model" / "README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(finished / "model").config.model_type == "llama"
    assert list(finished.glob("tensorboard/events.*"))
    assert not list(finished.rglob(".partial-*"))


def test_tensorboard_gets_the_same_numbers(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    entropies = {row["iteration"]: row["entropy"] for row in rows if "entropy" in row}
    assert {event.step: event.value for event in events.Scalars("entropy")} == pytest.approx(entropies)
    assert [event.step for event in events.Scalars("eval/strict")] == [0, 2]


def test_a_run_is_evaluated_beside_its_base_as_it_was_trained(run, finished, model_folder, tmp_path):
    output = tmp_path / "new" / "results.json"
    flags = ["--problems", 4, "--samples", 4, "--sample_temperature", 1, "--output", output]
    outcome = run("eval", "--model", finished, "--base", model_folder, *flags)
    assert outcome.code == 0, outcome.err
    assert "pass@4" in outcome.out
    assert "maj@4" in outcome.out
    assert "4 held-out problems, temperature 1, 4 samples each" in outcome.out
    assert "paired exact McNemar test" in outcome.out
    assert "environment: arithmetic, split test, max_steps 2, 4 problems\n" in outcome.out
    policy = "policy: stepwise, 1 worked examples, 8 tokens per action, temperature 1, system prompt “Solve the problem"
    assert policy in outcome.out
    saved = json.loads(output.read_text())
    assert set(saved) == {str(finished), str(model_folder)}
    assert saved[str(finished)]["samples"] == 4
    assert saved[str(finished)]["eval/problems"] == 4


@pytest.mark.skipif(not has_int8_products(), reason="this CPU has no VNNI instructions")
def test_a_run_may_sample_in_8_bits_and_is_evaluated_as_it_is(run, model_folder, tmp_path):
    flags = ["--env", "arithmetic", "--model", model_folder, *TINY, "--rollout_dtype", "int8", "--out", tmp_path / "it"]
    assert run("train", "rloo", *flags).code == 0
    results = json.loads((tmp_path / "it" / "results.json").read_text())
    assert (results["dtype"], results["rollout_dtype"]) == ("float32", "int8")
    rows = [json.loads(line) for line in (tmp_path / "it" / "metrics.jsonl").read_text().splitlines()]
    assert all(1e-4 < row["logprob_diff"] < 0.3 for row in rows if "logprob_diff" in row)
    for given, dtype in (([], "float32"), (["--rollout_dtype", "int8"], "int8")):
        outcome = run("eval", "--model", tmp_path / "it", "--problems", 2, *given, "--output", tmp_path / "out.json")
        assert outcome.code == 0
        assert json.loads((tmp_path / "out.json").read_text())[str(tmp_path / "it")]["dtype"] == dtype


def test_ctrl_c_says_that_an_evaluation_continues(run, finished, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    flags = ["--model", finished, "--problems", 3]
    with monkeypatch.context() as patch:
        patch.setattr("lmgym.evaluation.evaluation.summarise", interrupted)
        assert "continues" not in run("eval", *flags).err
        outcome = run("eval", *flags, "--output", tmp_path / "out.json")
    assert outcome.code == 130
    assert "finished episodes are kept, and the same command continues" in outcome.err
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    assert run("eval", *flags, "--output", tmp_path / "out.json").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_run_can_be_evaluated_with_other_options_than_it_was_trained_with(run, finished, tmp_path):
    flags = ["--problems", 3, "--env_options", "max_steps", 1, "digits", 1, "--output", tmp_path / "out.json"]
    outcome = run("eval", "--model", finished, *flags)
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / "out.json").read_text())[str(finished)]["eval/problems"] == 3


def test_a_run_evaluated_on_another_environment_leaves_the_rest_of_its_task_behind(run, finished, tmp_path):
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    task = {"env": "word-problems", "env_options": {"difficulty": "2"}, "eval_env": "word-problems:train"}
    (copy / "config.json").write_text(json.dumps(config | task))
    outcome = run("eval", "--model", copy, "--problems", 2)
    assert "environment: word-problems, split train, difficulty 2, 2 problems\n" in outcome.out
    outcome = run("eval", "--model", copy, "--problems", 2, "--env", "arithmetic")
    assert outcome.code == 0, outcome.err
    assert "environment: arithmetic, split test, 2 problems\n" in outcome.out
    outcome = run("eval", "--model", copy, "--problems", 2, "--env=arithmetic", "--env_options", "digits", 3)
    assert "environment: arithmetic, split test, digits 3, 2 problems\n" in outcome.out


def test_evaluating_a_run_on_what_it_was_trained_on_is_found(run, finished):
    rows = [json.loads(line) for line in (finished / "episodes.jsonl").read_text().splitlines()]
    data = finished.parent / "seen.jsonl"
    problems = {row["problem"]["prompt"]: row["problem"]["solution"] for row in rows}
    problems["What is 1 + 1?"] = "The answer is: 2"
    lines = [json.dumps({"problem": prompt.upper(), "solution": solution}) for prompt, solution in problems.items()]
    data.write_text("\n".join(lines) + "\n")
    outcome = run("eval", "--model", finished, "--env", data, "--problems", 9, "--shots", 0)
    assert outcome.code == 0, outcome.err
    assert f"WARNING: CONTAMINATED: {finished} was trained on {len(problems) - 1} of these problems" in outcome.err
    assert f"{len(problems)} CONTAMINATED problems" in outcome.out


def test_only_a_path_has_a_training_whatever_the_current_directory_is(finished, monkeypatch):
    trained = trained_problems(str(finished))
    assert trained
    assert trained_problems(str(finished / "model")) == trained
    for place in (finished, finished / "model"):
        monkeypatch.chdir(place)
        assert trained_problems("smollm2-135m") == set()
        assert trained_problems("someone/a-hub-model") == set()
        assert trained_problems(".") == trained
    shadow = finished / "model" / "smollm2-135m"  # the known model is what such a name means
    shadow.mkdir()
    assert trained_problems("smollm2-135m") == set()
    shadow.rmdir()


def test_episodes_can_be_loaded_for_the_success_rates_of_a_curriculum(run, finished, tmp_path):
    flags = ["--env", "arithmetic", *TINY, "--iterations", 1, "--eval_problems", 0, "--model", finished / "model"]
    flags += ["--load_episodes", finished / "episodes.jsonl"]
    refused = run("train", "rloo", *flags, "--out", tmp_path / "refused")
    assert is_one_sentence(refused)
    assert (
        "say how many with --replay_episodes, or choose problems by their success rates with --curriculum"
        in refused.err
    )
    assert run("train", "rloo", *flags, "--curriculum", "--out", tmp_path / "it").code == 0


def test_what_a_run_learnt_from_a_buffer_or_before_it_began_counts_as_trained_on(run, finished, tmp_path):
    trained = trained_problems(str(finished))
    loaded = ["--problems_per_iteration", 0, "--replay_episodes", 4]
    loaded += ["--load_episodes", finished / "episodes.jsonl"]
    flags = ["--env", "arithmetic", *TINY, "--iterations", 1, "--eval_problems", 0, "--out", tmp_path / "offline"]
    outcome = run("train", "expert-iteration", "--model", finished / "model", *flags, *loaded)
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "offline" / "episodes.jsonl").exists()
    config = json.loads((tmp_path / "offline" / "config.json").read_text())
    for change in ({"model": "smollm2-135m"}, {"load_episodes": ""}):  # by the one or by the other
        (tmp_path / "offline" / "config.json").write_text(json.dumps(config | change))
        assert trained_problems(str(tmp_path / "offline" / "model")) == trained


def test_the_runs_that_a_model_came_from_are_followed_once_and_as_far_as_they_are_there(finished, tmp_path):
    trained = trained_problems(str(finished))
    configs = {
        "first": {"model": str(tmp_path / "third"), "load_episodes": "gone.jsonl"},
        "second": {"model": str(tmp_path / "first" / "model")},
        "third": {"model": str(tmp_path / "second")},
        "orphan": {"model": str(tmp_path / "gone")},
        "unnamed": {"load_episodes": str(finished / "episodes.jsonl")},
    }
    for name, config in configs.items():
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    shutil.copy(finished / "episodes.jsonl", tmp_path / "second")
    assert [trained_problems(str(tmp_path / name)) for name in configs] == [trained, trained, trained, set(), trained]
    (tmp_path / "unnamed" / "config.json").write_text("{torn")
    assert trained_problems(str(tmp_path / "unnamed")) == set()


def test_a_run_that_saved_no_checkpoint_says_so_and_stays_as_it_was(run, finished, tmp_path):
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    outcome = run("train", "--resume", copy, "--iterations", 3)
    assert is_one_sentence(outcome), outcome.err
    assert "has no checkpoint to resume from" in outcome.err
    assert json.loads((copy / "config.json").read_text())["iterations"] == 2


def test_a_wrong_setting_beside_resume_does_not_spoil_the_run(train, run, out):
    assert train("--save_every", 1, name="it").code == 0
    before = (out / "it" / "config.json").read_text()
    for flags in (["--iterations", 0], ["--temperature", 0], ["--track", "nothing"]):
        outcome = run("train", "--resume", out / "it", *flags)
        assert is_one_sentence(outcome), outcome.err
        assert (out / "it" / "config.json").read_text() == before
    outcome = run("train", "--resume", out / "it", "--iterations", 3)
    assert outcome.code == 0, outcome.err
    assert "after iteration 2" in outcome.out
    rows = [json.loads(line) for line in (out / "it" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "reward" in row] == [1, 2, 3]
    results = json.loads((out / "it" / "results.json").read_text())
    assert list(results["evaluations"]) == ["0", "2", "3"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, model_folder) -> Path:
    """A run of one iteration that can be resumed; every test of it works on a copy."""
    root = tmp_path_factory.mktemp("stopped")
    arguments = ["train", "reinforce-stable", "--env", "arithmetic", "--model", str(model_folder)]
    main([*arguments, *TINY, "--iterations", "1", "--out", str(root / "run"), "--save_every", "1"])
    return root / "run"


@pytest.mark.parametrize(
    "flags",
    [
        ["--model", "smollm2-135m"],
        ["--env", "gsm8k"],
        ["--env_options", "max_steps", 3],
        ["--policy", "chat"],
        ["--shots", 2],
        ["--system_prompt", "chat"],
        ["--max_tokens", 9],
        ["--temperature", 0.5],
        ["--top_k", 5],
        ["--top_p", 0.5],
        ["--no-calculator"],
        ["--lora_rank", 4],
        ["--ref_model", "smollm2-135m"],
        ["--seed", 1],
        ["--out", "elsewhere"],
    ],
    ids=lambda flags: flags[0],
)
def test_what_makes_it_another_run_cannot_be_changed_on_resume(run, stopped, flags):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    outcome = run("train", "--resume", stopped, "--iterations", 2, *flags)
    assert is_one_sentence(outcome), outcome.err
    assert flags[0].replace("--no-", "--") in outcome.err
    assert f"lmgym train --model {stopped}" in outcome.err
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_a_run_goes_on_only_with_its_own_algorithm(run, stopped, tmp_path):
    outcome = run("train", "grpo", "--resume", stopped, "--iterations", 2)
    assert is_one_sentence(outcome), outcome.err
    assert "was trained with reinforce-stable and cannot continue with grpo" in outcome.err
    copy = Path(shutil.copytree(stopped, tmp_path / "copy"))
    same = "lmgym.algorithms.reinforce_stable:ReinforceStable"
    assert run("train", same, "--resume", copy, "--iterations", 2).code == 0
    assert json.loads((copy / "config.json").read_text())["algorithm"] == "reinforce-stable"


def test_what_is_changed_on_resume_is_said_and_kept(run, stopped, tmp_path, model_folder):
    copy = Path(shutil.copytree(stopped, tmp_path / "copy"))
    same = ["--model", model_folder, "--env", "arithmetic", "--seed", 0]
    outcome = run("train", "--resume", copy, "--iterations", 2, "--learning_rate", 1e-5, "--save_every", 1, *same)
    assert outcome.code == 0, outcome.err
    assert "from here on: iterations 1 → 2, learning_rate 6e-05 → 1e-05\n" in outcome.out
    assert run("train", f"--resume={copy}", "--iterations", 3).code == 0
    config, original = (json.loads((folder / "config.json").read_text()) for folder in (copy, stopped))
    assert config.pop("changed_on_resume") == [
        {"after_iteration": 1, "iterations": [1, 2], "learning_rate": [6e-5, 1e-5]},
        {"after_iteration": 2, "iterations": [2, 3]},
    ]
    assert config == original | {"iterations": 3, "learning_rate": 1e-5}


def test_a_run_that_is_resumed_with_other_problems_to_evaluate_compares_only_those(train, run, out):
    assert train("--save_every", 1, name="it").code == 0
    outcome = run("train", "--resume", out / "it", "--iterations", 3, "--eval_problems", 3)
    assert outcome.code == 0, outcome.err
    assert "of other problems" in outcome.err
    results = json.loads((out / "it" / "results.json").read_text())
    assert list(results["evaluations"]) == ["3"]
    assert {row["eval/problems"] for row in results["evaluations"].values()} == {3}


def test_the_closing_hint_fits_the_task(train, run, finished, own, out):
    def hints(outcome: Outcome) -> str:
        assert outcome.code == 0, outcome.err
        return outcome.out.split("What to try next:")[1]

    shown = hints(train("--save_every", 1, name="sums"))
    assert f"lmgym train --resume {out / 'sums'} --iterations 4 --learning_rate 3e-05\n" in shown
    assert "lmgym train --env word-problems --model" in shown
    assert "gsm8k" not in shown
    flags = ["--shots", 0, "--env_options", "letters", "abcdef"]
    shown = hints(train(*flags, env=f"{own}:echo-of-a-module", name="own"))
    assert f"lmgym eval --model {out / 'own'} --base" in shown
    assert f"--env {own}:echo-of-a-module --env_options letters abcdef\n" in shown
    assert shown.count("lmgym train") == 0


def test_training_and_evaluating_on_one_file_is_called_contaminated(train, out, tmp_path):
    data = tmp_path / "rows.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n}+1\n#### {n + 1}"} for n in range(6)]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    outcome = train(env=data, name="it")
    assert outcome.code == 0, outcome.err
    assert "WARNING: CONTAMINATED: 4 of the 4 problems" in outcome.err
    assert "4 CONTAMINATED problems" in outcome.out
    assert json.loads((out / "it" / "results.json").read_text())["contaminated"] is True
    assert '"contaminated_eval/strict"' in (out / "it" / "metrics.jsonl").read_text()


def test_a_run_can_begin_with_the_episodes_of_another(train, out, finished):
    outcome = train("--load_episodes", finished / "episodes.jsonl", "--replay_episodes", 4, name="it")
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in (out / "it" / "metrics.jsonl").read_text().splitlines()]
    assert [row["episodes_learnt"] for row in rows if "reward" in row] == [8, 8]  # 4 fresh and 4 old, from the start
    assert len((out / "it" / "episodes.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize("algorithm", ["dpo", "expert-iteration", "sft", "reinforce-stable"])
def test_a_run_can_learn_from_the_episodes_of_another_alone(train, run, out, finished, algorithm):
    offline = ["--problems_per_iteration", 0, "--replay_episodes", 4]
    given = ["--load_episodes", finished / "episodes.jsonl"]
    outcome = train(*offline, *given, algorithm=algorithm, name="it")
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in (out / "it" / "metrics.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows if "reward" in row] == [0, 0]
    assert not (out / "it" / "episodes.jsonl").exists()


def test_episodes_that_were_not_sampled_are_refused_by_a_policy_gradient(train, out):
    assert train(algorithm="sft", name="sft").code == 0
    flags = ["--load_episodes", out / "sft" / "episodes.jsonl", "--replay_episodes", 2]
    outcome = train(*flags, algorithm="grpo")
    assert is_one_sentence(outcome), outcome.err
    assert "were not sampled" in outcome.err
    assert train(*flags, algorithm="expert-iteration", name="imitation").code == 0


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--problems_per_iteration", 0], "--replay_episodes"),
        (["--problems_per_iteration", 0, "--replay_episodes", 4], "--load_episodes"),
        (["--ref_model", "smollm2-135m", "--kl_coeff", 0], "would not be used"),
    ],
)
def test_flags_that_leave_nothing_to_do_are_refused(train, flags, wanted):
    outcome = train(*flags)
    assert is_one_sentence(outcome)
    assert wanted in outcome.err


def test_lora_is_saved_as_an_adapter_that_can_be_evaluated(train, run, out):
    outcome = train("--lora_rank", 4, algorithm="reinforce", name="it")
    assert outcome.code == 0, outcome.err
    assert (out / "it" / "model" / "adapter_config.json").is_file()
    assert run("eval", "--model", out / "it", "--problems", 2).code == 0


def test_the_reference_of_an_adapter_needs_no_memory_of_its_own_fresh_or_resumed(train, run, out):
    flags = ["--lora_rank", 4, "--kl_coeff", 0.1, "--save_every", 1]
    outcomes = [train(*flags, name="it"), run("train", "--resume", out / "it", "--iterations", 3)]
    assert [outcome.code for outcome in outcomes] == [0, 0]
    lines = [line for outcome in outcomes for line in outcome.out.splitlines() if line.startswith("memory: ")]
    assert len(lines) == 2
    assert not any("reference" in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_saves_says_how_to_resume_and_resuming_finishes(run, out, model_folder, number):
    """A real process and a real signal, in the middle of a run far too long to end by itself."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lmgym.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    flags = ["--env", "arithmetic", "--model", model_folder, "--out", out / "it", *TINY, "--save_every", 0]
    command = [sys.executable, "-m", "lmgym.commands.cli", "train", "reinforce-stable", *flags, "--iterations", 100_000]
    process = subprocess.Popen(
        [str(part) for part in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = out / "it" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while (not metrics.exists() or metrics.read_text().count("\n") < 4) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert f"resume with: lmgym train --resume {out / 'it'}" in errors
    assert "Traceback" not in errors
    (checkpoint,) = (out / "it" / "checkpoints").iterdir()
    reached = int(checkpoint.name)
    assert reached >= 3

    outcome = run("train", "--resume", out / "it", "--iterations", reached + 1)
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["iteration"] for row in rows if "reward" in row] == list(range(1, reached + 2))
    assert (out / "it" / "results.json").is_file()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_from_the_command_line(train, out, model_folder, name):
    extra = ["--teacher", model_folder] if name == "distill" else []
    outcome = train(*extra, algorithm=name, name="one")
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    assert (out / "one" / "model").is_dir()
    metrics = [json.loads(line) for line in (out / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in metrics if "reward" in row] == [1, 2]


def test_a_teacher_is_asked_for_and_must_speak_the_same_tokens(train, out, model_folder, tmp_path):
    assert "name it with --teacher" in train(algorithm="distill").err
    foreign = tmp_path / "foreign"
    shutil.copytree(model_folder, foreign)
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "another tokenizer" in train("--teacher", foreign, "--samples", "teacher", algorithm="distill").err
    outcome = train("--teacher", foreign, algorithm="distill")
    assert outcome.code == 2
    assert "another tokenizer" in outcome.err
    assert is_untouched(out)


# One's own environment and reward.

OWN = """
import lmgym

class Echo(lmgym.Env):
    \"\"\"Says a letter, which is to be said back.\"\"\"

    def __init__(self, split: str = "train", letters: str = "ab") -> None:
        super().__init__([lmgym.Problem(f"{split}/{letter}", f"{split}: say {letter}", letter) for letter in letters])

    def respond(self, state, text, finish):
        return lmgym.Response(reward=0.25 + text.count(state.problem.answer), terminated=True)

def shortness(problem: lmgym.Problem, answer: str) -> float:
    return 1 / (2 + len(answer))

NUMBER = 3
lmgym.register("echo-of-a-module", Echo)
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    """The name of a module of the user's in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_registrations", dict(registry._registrations))
    name = f"own_module_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN)
    return name


def test_a_module_of_ones_own_registers_environments_for_every_command(train, run, out, own):
    env = f"{own}:echo-of-a-module"
    unknown = run("play", "--env", "echo-of-a-module")
    assert is_one_sentence(unknown)
    played = run("play", "--env", env, stdin="a\n")
    assert played.code == 0, played.err
    assert "train: say a" in played.out
    assert "reward 1.25" in played.out
    options = ["--env_options", "letters", "abcdef", "--shots", 0, "--policy", "chat", "--save_every", 1]
    trained = train(*options, env=env, name="it")
    assert trained.code == 0, trained.err
    assert "mean reward" in trained.out
    assert "strict" not in trained.out + (out / "it" / "model" / "README.md").read_text()
    assert json.loads((out / "it" / "config.json").read_text())["env"] == env
    fresh = {**os.environ, "PYTHONPATH": str(Path(lmgym.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    for command in (
        ["train", "--resume", out / "it", "--iterations", 3],
        ["eval", "--model", out / "it", "--problems", 2],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "lmgym.commands.cli", *map(str, command)], env=fresh, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_a_module_that_is_not_there_is_one_sentence(run, own):
    outcome = run("play", "--env", "no_such_module_here:its-env")
    assert is_one_sentence(outcome), outcome.err
    assert "'no_such_module_here:its-env' cannot be imported from" in outcome.err


def test_an_environment_and_a_reward_by_their_places(train, run, out, own):
    pytest.importorskip("lmgym.rewards.custom")
    trained = train("--reward", f"{own}:shortness", "--save_every", 1, name="it")
    assert trained.code == 0, trained.err
    rows = [json.loads(line) for line in (out / "it" / "episodes.jsonl").read_text().splitlines()]
    rewards = [sum(step["reward"] for step in row["steps"]) for row in rows]
    assert all(0 < reward < 1 for reward in rewards)  # the environment's own would be 0 or 1
    assert run("train", "--resume", out / "it", "--iterations", 3).code == 0
    other = run("train", "--resume", out / "it", "--iterations", 4, "--reward", "")
    assert is_one_sentence(other), other.err
    assert "the reward" in other.err
    measured = run("eval", "--model", out / "it", "--problems", 2, "--output", "out.json")
    assert measured.code == 0, measured.err
    (found,) = json.loads(Path("out.json").read_text()).values()
    assert 0 < found["eval/mean_reward"] < 1
    played = run("play", "--env", f"{own}:Echo", stdin="a\n")
    assert played.code == 0, played.err
    assert "reward 1.25" in played.out


@pytest.mark.parametrize("what", ["nothing", "NUMBER"])
def test_a_reward_that_cannot_be_called_is_refused_before_anything_runs(train, out, own, what):
    pytest.importorskip("lmgym.rewards.custom")
    outcome = train("--reward", f"{own}:{what}")
    assert is_one_sentence(outcome), outcome.err
    assert f"{own}:{what}" in outcome.err
    assert is_untouched(out)


def test_an_environment_that_takes_no_reward_refuses_one(run, own):
    pytest.importorskip("lmgym.rewards.custom")
    outcome = run("play", "--env", f"{own}:echo-of-a-module", "--reward", f"{own}:shortness")
    assert is_one_sentence(outcome), outcome.err
    assert 'has no option "reward"' in outcome.err
