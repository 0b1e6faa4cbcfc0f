"""What a run from Python writes down is what the command line would have, and the command line can go on with it."""

from __future__ import annotations

import json
import random
from typing import Any

import gymnasium
import pytest
from conftest import tiny_model
from small_tasks import TRAIN, Vowel

import lmgym
from lmgym.algorithms.distill import Distill, DistillConfig
from lmgym.algorithms.registry import find_algorithm
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.commands.cli import _parse_train, main
from lmgym.commands.train import build, flat_settings
from lmgym.envs import ArithmeticProblems
from lmgym.envs.options import literal, spelled
from lmgym.errors import UserError
from lmgym.models.loading import load_model
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.policies.policy_for import policy_for
from lmgym.rewards.final_answer import BoxedAnswer
from lmgym.rewards.steps import calculations_are_right, weighted
from lmgym.runs.record import run_settings
from lmgym.runs.run import Run
from lmgym.types import Problem

SMALL: dict[str, Any] = {
    "iterations": 1,
    "problems_per_iteration": 2,
    "group_size": 2,
    "eval_problems": 2,
    "save_every": 1,
}


def shortness(problem: Problem, answer: str) -> float:
    return 1 / (2 + len(answer))


def algorithm_on(env, run=None, eval_env=None, policy=None, **settings) -> Reinforce:
    policy = policy or policy_for(env, tiny_model(), shots=1, max_tokens=6)
    return Reinforce(policy, env, ReinforceConfig(**SMALL | settings), eval_env, run)


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        ("reinforce-stable", []),
        ("grpo", ["--policy", "chat", "--shots", "1", "--top_k", "5", "--top_p", "0.9", "--temperature", "0.7"]),
        ("sft", ["--env_options", "digits", "3", "max_steps", "2", "--no-calculator", "--max_tokens", "7"]),
        (
            "reinforce",
            ["--env", "arithmetic:test", "--eval_env", "arithmetic:train", "--system_prompt", "text:Be brief."],
        ),
        ("reinforce", ["--eval_problems", "0", "--lora_rank", "4"]),
        ("distill", ["--teacher", "MODEL"]),
    ],
)
def test_what_is_described_is_what_the_command_line_was_told(model_folder, algorithm, flags):
    kind = find_algorithm(algorithm)
    given = ["--env", "arithmetic", "--model", str(model_folder), "--device", "cpu", "--dtype", "float32", *flags]
    settings = _parse_train(kind.Config, [str(model_folder) if flag == "MODEL" else flag for flag in given], "")
    told = {"algorithm": algorithm, **flat_settings(settings)}
    described = run_settings(build(kind, settings, Run)[0])
    elsewhere = {"out", "track", "load_episodes"}  # what the run itself knows
    elsewhere |= {"ref_model"} if algorithm == "distill" else set()
    assert set(told) - set(described) == elsewhere
    assert {name: described[name] for name in described} == {
        name: list(told[name]) if isinstance(told[name], tuple) else told[name] for name in described
    }


def test_environments_are_named_however_they_were_made(tmp_path):
    for env in (lmgym.make("arithmetic", digits=3), gymnasium.make("lmgym/Arithmetic-v0", digits=3)):
        described = run_settings(algorithm_on(env.unwrapped))
        assert (described["env"], described["env_options"]) == ("arithmetic", {"digits": "3"})
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1+2?", "answer": "3"}\n')
    env, test = lmgym.make(str(path)), lmgym.make(str(path), "test")
    described = run_settings(algorithm_on(env, eval_env=test))
    assert (described["env"], described["eval_env"]) == (str(path), "")
    described = run_settings(algorithm_on(lmgym.make("arithmetic"), eval_env=test))
    assert (described["env"], described["eval_env"]) == ("arithmetic", str(path))


def test_a_reward_is_named_by_its_place_and_what_has_none_is_null():
    described = run_settings(algorithm_on(lmgym.make("arithmetic", reward=shortness)))
    assert (described["env"], described["reward"]) == ("arithmetic", f"{__name__}:shortness")
    by_hand = [
        lmgym.make("arithmetic", reward=lambda problem, answer: 1.0),
        lmgym.make("arithmetic", step_reward=weighted((0.1, calculations_are_right))),
        lmgym.MathEnv([Problem(str(n), f"{n}?", str(n), f"The answer is: {n}") for n in range(4)]),
    ]
    for env in by_hand:
        described = run_settings(algorithm_on(env))
        assert (described["env"], described["env_options"], described["reward"]) == (None, {}, "")
    other = run_settings(algorithm_on(lmgym.make("arithmetic"), eval_env=lmgym.make("arithmetic", "test", digits=3)))
    assert (other["env"], other["eval_env"]) == ("arithmetic", None)


@pytest.mark.parametrize(
    "edit",
    [
        {"reward": shortness},
        {"max_steps": 1},
        {"stepwise": False},
        {"answer_form": BoxedAnswer()},
        {"step_reward": weighted((0.1, calculations_are_right))},
        {"problems": ArithmeticProblems("train", seed=1)},
        {"problems": [Problem(str(n), f"{n}?", str(n), f"The answer is: {n}") for n in range(4)]},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_environment_that_was_edited_after_it_was_made_has_no_name(edit):
    env, test = lmgym.make("arithmetic"), lmgym.make("arithmetic", "test")
    described = run_settings(algorithm_on(env, eval_env=test))
    assert (described["env"], described["eval_env"]) == ("arithmetic", "")
    vars(test).update(edit)
    described = run_settings(algorithm_on(env, eval_env=test))
    assert (described["env"], described["eval_env"]) == ("arithmetic", None)
    vars(env).update(edit)
    assert run_settings(algorithm_on(env, policy=policy_for(env, tiny_model(), shots=0)))["env"] is None


class Game(lmgym.Env):
    """Has attributes that episodes set, a closure, a method and something that cannot be compared."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__(TRAIN)
        self.said: list[str] = []
        self.turns, self.random = 0, random.Random(0)
        self.scale, self.judge, self.lock = (lambda value: factor * value), self.respond, iter("abc")

    def opening(self, problem: Problem) -> str:
        self.turns, self.secret = 0, self.random.random()
        self.said.clear()
        return problem.prompt

    def respond(self, state, text, finish):
        self.turns += 1
        self.said.append(text)
        return lmgym.Response(terminated=True)


def test_an_environment_that_was_only_played_keeps_its_name():
    env = lmgym.make(f"{__name__}:Game", factor=3)
    policy = policy_for(env, tiny_model(), shots=0, policy="chat")
    for _ in range(2):
        env.reset(seed=5)
        env.step("a")
    assert run_settings(algorithm_on(env, policy=policy))["env"] == f"{__name__}:Game"
    other = lmgym.make(f"{__name__}:Game", factor=4)
    assert isinstance(env, Game)
    assert isinstance(other, Game)
    env.scale = other.scale
    assert run_settings(algorithm_on(env, policy=policy))["env"] is None


def test_a_policy_by_hand_is_said_to_be_one():
    class Own(FewShotLLMStepwiseMathPolicy):
        """A way of acting of one's own."""

    env = lmgym.make("arithmetic")
    policy = Own(tiny_model(), [env.problems[0]], "Be brief.")
    described = run_settings(algorithm_on(env, policy=policy))
    assert (described["policy"], described["shots"]) == (None, None)
    assert described["system_prompt"] == "text:Be brief."


@pytest.mark.parametrize("value", [3, -1, 0.5, True, None, "hard", [1, 2], (3,), ["a", "b"]])
def test_options_survive_being_written_as_text(value):
    text = spelled(value)
    assert text is not None
    assert literal(text) == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("value", ["3", "a,b", print, {"a": 1}, [], Vowel])
def test_options_that_would_be_read_as_something_else_have_no_text(value):
    assert spelled(value) is None


# From Python to the command line.


def test_a_run_from_python_is_resumed_and_evaluated_from_the_command_line(tmp_path, model_folder, capsys):
    folder = tmp_path / "run"
    env, test = (lmgym.make("arithmetic", split, max_steps=2) for split in ("train", "test"))
    policy = policy_for(env, load_model(str(model_folder), dtype="float32"), shots=1, max_tokens=6)
    algorithm_on(env, Run(folder, trackers=["tensorboard"]), test, policy).train()
    written = json.loads((folder / "config.json").read_text())
    assert (written["algorithm"], written["model"], written["shots"]) == ("reinforce", str(model_folder), 1)
    assert (written["out"], written["track"]) == (str(folder), ["tensorboard"])
    assert written["lmgym_version"] == lmgym.__version__
    main(["train", "--resume", str(folder), "--iterations", "2"])
    assert "after iteration 1" in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    prompts = {row["iteration"]: row["steps"][0]["read_ids"] for row in rows}
    question = {row["iteration"]: row["problem"]["prompt"] for row in rows}
    shared = len(prompts[0]) - len(question[0]) - 20  # the tiny tokenizer has one token per character
    assert prompts[0][:shared] == prompts[1][:shared]  # the same system prompt and worked example
    main(["eval", "--model", str(folder), "--problems", "2", "--output", str(tmp_path / "out.json")])
    saved = json.loads((folder / "config.json").read_text())
    assert saved.pop("changed_on_resume") == [{"after_iteration": 1, "iterations": [1, 2]}]
    assert {name: saved[name] for name in written} == written | {"iterations": 2}


def test_what_python_made_by_hand_must_be_named_on_the_command_line(tmp_path, model_folder, capsys):
    folder = tmp_path / "run"
    env = lmgym.MathEnv([Problem(str(n), f"{n}?", str(n), f"The answer is: {n}") for n in range(4)], max_steps=2)
    policy = policy_for(env, load_model(str(model_folder)), examples=[env.problems[0]], max_tokens=6)
    algorithm_on(env, Run(folder), policy=policy).train()
    before = (folder / "config.json").read_text()
    assert json.loads(before)["env"] is None
    for command in (["train", "--iterations", "2", "--resume"], ["eval", "--problems", "2", "--model"]):
        for given, asks in (([], "--env"), (["--env", "arithmetic"], "--shots")):
            with pytest.raises(SystemExit) as ended:
                main([*command, str(folder), *given])
            error = capsys.readouterr().err
            assert ended.value.code == 2
            assert "by hand" in error
            assert error.strip().endswith(f"give {asks}.")
    assert (folder / "config.json").read_text() == before
    named = ["--env", "arithmetic", "--shots", "1"]
    main(["eval", "--model", str(folder), "--problems", "2", *named])
    main(["train", "--resume", str(folder), "--iterations", "2", *named])
    assert json.loads((folder / "config.json").read_text())["env"] == "arithmetic"


def test_settings_that_are_given_to_a_run_are_kept_beside_those_that_are_found(tmp_path):
    algorithm_on(lmgym.make("arithmetic"), Run(tmp_path / "run", {"note": "mine", "model": "smollm2-135m"})).train()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["note"], config["model"], config["algorithm"]) == ("mine", "smollm2-135m", "reinforce")


def test_a_second_run_in_the_same_folder_is_refused_until_it_is_resumed(tmp_path, model_folder):
    env = lmgym.make("arithmetic")

    def begin(model: str, iterations: int) -> Reinforce:
        policy = policy_for(env, model, shots=0, max_tokens=4)
        return algorithm_on(env, Run(tmp_path / "run"), policy=policy, iterations=iterations)

    begin(str(model_folder), 1).train()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="already holds a run"):
        begin(str(model_folder), 2).train()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    resumed = begin(str(model_folder), 2)
    resumed.run.resume(resumed)
    resumed.train()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["model"], config["iterations"]) == (str(model_folder), 2)


def test_a_run_without_a_folder_says_so_once(capsys):
    algorithm_on(Vowel(TRAIN), policy=policy_for(Vowel(TRAIN), tiny_model(), shots=0, max_tokens=4)).train()
    assert capsys.readouterr().err.count("this run is not saved") == 1


def test_a_teacher_is_named(tmp_path):
    env = lmgym.make("arithmetic")
    policy, teacher = (policy_for(env, tiny_model(seed=seed), shots=0) for seed in (0, 1))
    teacher.model.name = "the-teacher"
    for samples in ("student", "teacher"):
        config = DistillConfig(**SMALL, samples=samples)
        assert run_settings(Distill(policy, env, config, ref_policy=teacher))["teacher"] == "the-teacher"
