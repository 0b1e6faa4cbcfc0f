"""Every example runs, with tiny sizes and a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.network
def test_the_users_command(tmp_path, model_folder):
    out = run(
        "reinforce_stable_on_gsm8k_training.py",
        *f"""--gsm8k_path gsm8k:train --train_data_file gsm8k:train --test_gsm8k_path gsm8k:test
        --sys_prompt_path stepwise_math --model_name_or_path {model_folder} --ref_model_name {model_folder}
        --n_few_shot_examples 1 --num_iterations 2 --num_collection_episodes 4
        --max_trajectory_steps 2 --num_update_steps 2 --cache_buffer --evaluation_iterations 1 --n_eval_steps 2
        --buffer_cache_path {tmp_path / "buffer.jsonl"} --gradient_accumulation_steps 2 --save_path {tmp_path / "run"}
        --n_save_iterations 1 --kl_coeff 0.1 --sym_calc --evaluation_at_start --update_ref_iterations 1""".split(),
        cwd=tmp_path,
    )
    assert "2 held-out problems" in out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "reward" in row] == [1, 2]
    assert [row["iteration"] for row in rows if "eval/strict" in row] == [0, 1, 2]
    assert len((tmp_path / "buffer.jsonl").read_text().splitlines()) == 8
    again = run(
        "reinforce_stable_on_gsm8k_training.py",
        *f"""--model_name_or_path {model_folder} --n_few_shot_examples 1 --num_iterations 1
        --num_collection_episodes 4 --max_trajectory_steps 2 --n_eval_steps 2 --save_path {tmp_path / "second"}
        --load_buffer_from_cache_at_start --buffer_cache_path {tmp_path / "buffer.jsonl"}""".split(),
        cwd=tmp_path,
    )
    assert "2 held-out problems" in again


@pytest.mark.network
def test_the_users_run_goes_on_and_is_evaluated_as_it_was_trained(tmp_path, model_folder):
    run(
        "reinforce_stable_on_gsm8k_training.py",
        *f"""--model_name_or_path {model_folder} --n_few_shot_examples 1 --num_iterations 1
        --num_collection_episodes 2 --max_trajectory_steps 2 --n_eval_steps 2 --n_save_iterations 1
        --save_path {tmp_path / "run"}""".split(),
        cwd=tmp_path,
    )
    program = [sys.executable, "-m", "lmgym.commands.cli"]
    resumed = subprocess.run(
        [*program, "train", "--resume", str(tmp_path / "run"), "--iterations", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) == 4
    assert all(episode["problem"]["id"].startswith("gsm8k/train") for episode in episodes)
    measured = subprocess.run(
        [*program, "eval", "--model", str(tmp_path / "run"), "--problems", "2", "--output", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert measured.returncode == 0, measured.stderr
    assert "2 held-out problems" in measured.stdout


@pytest.mark.network
def test_a_users_mistake_in_the_example_is_one_sentence_and_exit_code_2(tmp_path, model_folder):
    command = [sys.executable, str(EXAMPLES / "reinforce_stable_on_gsm8k_training.py")]
    for wrong in (["--num_collection_episodes", "1"], ["--train_data_file", "nowhere.jsonl"]):
        arguments = ["--model_name_or_path", str(model_folder), *wrong]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "runs").exists()


@pytest.mark.network
def test_training_on_the_test_split_is_called_contaminated(tmp_path, model_folder):
    out = run(
        "reinforce_stable_on_gsm8k_training.py",
        *f"""--model_name_or_path {model_folder} --train_data_file gsm8k:test --n_few_shot_examples 0
        --num_iterations 1 --num_collection_episodes 2 --max_trajectory_steps 1 --n_eval_steps 2
        --save_path {tmp_path / "run"}""".split(),
        cwd=tmp_path,
    )
    assert "CONTAMINATED" in out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["contaminated"] is True


def test_the_loop_by_hand(tmp_path, model_folder):
    arguments = ("--model", str(model_folder), "--iterations", "2", "--problems", "2", "--group_size", "2")
    assert "iteration 2" in run("the_loop_by_hand.py", *arguments, cwd=tmp_path)


def test_a_new_environment(tmp_path, model_folder):
    run("a_new_environment.py", "--model", str(model_folder), "--iterations", "1", cwd=tmp_path)


def test_a_task_for_a_tool(tmp_path, model_folder):
    arguments = ("--model", str(model_folder), "--iterations", "1", "--problems", "2")
    run("a_task_for_a_tool.py", *arguments, cwd=tmp_path)


def test_the_solution_of_a_task_for_a_tool_is_a_call_that_gives_the_answer():
    from examples.a_task_for_a_tool import Products
    from lmgym.envs.wrappers.tool_env import ToolEnv, load_tools
    from lmgym.types import Action

    env = ToolEnv(Products("test"), load_tools("python"))
    state, _ = env.reset(options={"index": 0})
    state, *_ = env.step(Action(state.problem.solution, finish="eos"))
    assert state.reply == state.problem.answer
    assert env.step(Action(f"The answer is: {state.reply}", finish="eos"))[1] == 1


def test_step_wise_rewards(tmp_path, model_folder):
    arguments = ("--model", str(model_folder), "--iterations", "1", "--problems_per_iteration", "2")
    run("step_wise_rewards.py", *arguments, cwd=tmp_path)


def test_a_new_algorithm_by_its_name(tmp_path, model_folder):
    command = [sys.executable, "-m", "lmgym.commands.cli", "train", "examples.a_new_algorithm:LeaveOneOut"]
    command += f"--env arithmetic --model {model_folder} --iterations 1 --problems_per_iteration 2".split()
    command += f"--group_size 2 --eval_problems 2 --shots 1 --max_tokens 8 --out {tmp_path / 'run'}".split()
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES.parent, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_own_settings_metric_and_schedule(tmp_path, model_folder):
    command = [sys.executable, "-m", "lmgym.commands.cli", "train"]
    command += ["examples.own_settings_metric_and_schedule:HalvingReinforce"]
    command += (
        f"--env arithmetic --model {model_folder} --iterations 3 --problems_per_iteration 2 --halve_every 2".split()
    )
    command += f"--group_size 2 --eval_problems 0 --shots 1 --max_tokens 8 --out {tmp_path / 'it'}".split()
    command += ["--learning_rate", "1e-4"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES.parent, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "it" / "metrics.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows] == [1e-4, 1e-4, 5e-5]
    assert all(0 <= row["rewarded"] <= 1 for row in rows)
    assert json.loads((tmp_path / "it" / "config.json").read_text())["halve_every"] == 2
    refused = subprocess.run(
        [*command, "--halve_every", "0"], capture_output=True, text=True, cwd=EXAMPLES.parent, check=False
    )
    assert refused.returncode == 2
    assert "--halve_every is 0" in refused.stderr
