"""Environments of lmgym in TRL: a step of the real trainer runs, and its rewards are those of lmgym."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from conftest import tiny_network, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

import lmgym
from lmgym import Action, Problem, UserError
from lmgym.exports.trl import ENDED, HINT, TRLEnvironment, environment_factory, prompt_dataset, reward_function
from lmgym.policies.system_prompts import default_system_prompt


def vowels(problem: Problem, text: str) -> float:
    """A reward that random texts earn in different amounts."""
    return sum(text.count(letter) for letter in "aeiou") + len(problem.answer) / 10


def config(folder, **settings: Any) -> GRPOConfig:
    common = {"per_device_train_batch_size": 4, "num_generations": 2, "max_steps": 1, "max_completion_length": 24}
    return GRPOConfig(
        output_dir=str(folder),
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        **{**common, **settings},
    )


def tool_tokenizer():
    """The tiny tokenizer with a template in which TRL can parse calls."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    return tokenizer


def test_a_step_with_the_reward_function_pays_what_lmgym_pays(tmp_path):
    env = lmgym.make("arithmetic", stepwise=False, reward=vowels)
    reward, calls = reward_function(env), []

    def watched(**columns: Any) -> list[float | None]:
        calls.append((columns, reward(**columns)))
        return calls[-1][1]

    trainer = GRPOTrainer(
        tiny_network(),
        reward_funcs=watched,
        args=config(tmp_path),
        train_dataset=prompt_dataset(env, problems=4),
        processing_class=tiny_tokenizer(),
    )
    trainer.train()
    ((columns, paid),) = calls
    own = []
    for index, (message,) in zip(columns["index"], columns["completions"], strict=True):
        env.reset(options={"index": index})
        own.append(env.step(Action(message["content"], finish="eos"))[1])
    assert paid == own
    assert len(set(own)) > 1
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(own) / len(own))
    assert trainer.state.log_history[0]["grad_norm"] > 0


class Dictated(GRPOTrainer):
    """TRL's trainer on a model that says, in turn, what is given."""

    texts: tuple[tuple[str, ...], ...] = ()
    """The completions of each rollout."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        if len(prompt_ids) == len(self.texts):
            self.turn, self.going_on = 0, list(range(len(prompt_ids)))
        else:
            self.turn += 1
        self.going_on = [rollout for rollout in self.going_on if self.turn < len(self.texts[rollout])]
        assert len(self.going_on) == len(prompt_ids)
        spoken = [self.texts[rollout][self.turn] for rollout in self.going_on]
        return [self._tokenizer.encode(text + "<|im_end|>") for text in spoken], None


def call(text: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'act', 'arguments': {'text': text}})}\n</tool_call>"


def test_a_step_with_the_environment_pays_what_lmgym_pays(tmp_path):
    env = lmgym.make("guess-number", max_turns=3, speed_bonus=0.5)
    secrets = [int(env.problems[index].answer) for index in range(2)]
    tokenizer = tool_tokenizer()
    dataset = prompt_dataset(env, problems=2)
    trainer = Dictated(
        tiny_network(vocabulary=len(tokenizer) + 4),
        args=config(tmp_path, max_completion_length=600, shuffle_dataset=False),
        train_dataset=dataset,
        processing_class=tokenizer,
        environment_factory=environment_factory(env),
    )
    wrong = [next(number for number in (1, 2) if number != secret) for secret in secrets]
    guesses: list[list[object]] = [
        [str(secrets[0])],  # right at once
        [wrong[0], f"Let me think.\n{secrets[0]}"],  # an integer, then right
        [str(wrong[1]), "no idea", str(wrong[1]), str(secrets[1])],  # lost before it is right
        [],  # no call
    ]
    trainer.texts = tuple((*(call(guess) for guess in spoken), "Done.") for spoken in guesses)
    trainer.train()
    own = []
    for rollout, spoken in enumerate(guesses):
        env.reset(options={"index": rollout // 2})
        total = 0.0
        for guess in spoken[:3]:
            _, reward, terminated, truncated, _ = env.step(str(guess))
            total += reward
            if terminated or truncated:
                break
        own.append(total)
    assert own == [1.5, 1.25, 0.0, 0.0]
    environments: Any = trainer.environments
    assert [environment.get_reward() for environment in environments] == own
    logged = trainer.state.log_history[0]
    assert logged["rewards/TRLEnvironment/mean"] == logged["reward"] == pytest.approx(sum(own) / 4)
    assert logged["tools/call_frequency"] == 7 / 4
    assert logged["tools/failure_frequency"] == 0


def test_a_random_model_plays_without_a_call(tmp_path):
    env, tokenizer = lmgym.make("guess-number"), tool_tokenizer()
    trainer = GRPOTrainer(
        tiny_network(vocabulary=len(tokenizer)),
        args=config(tmp_path),
        train_dataset=prompt_dataset(env, problems=2),
        processing_class=tokenizer,
        environment_factory=environment_factory(env),
    )
    trainer.train()
    assert trainer.state.log_history[0]["reward"] == 0.0


def test_the_dataset_has_the_prompts_of_the_chat_policy():
    env = lmgym.make("word-problems:test", stepwise=False)
    rows = prompt_dataset(env, problems=3)
    assert rows.column_names == ["prompt", "index", "id", "answer"]
    assert list(rows["index"]) == [0, 1, 2]
    assert rows[2]["prompt"] == [
        {"role": "system", "content": default_system_prompt(env, stepwise=False)},
        {"role": "user", "content": env.problems[2].prompt},
    ]
    assert (rows[2]["id"], rows[2]["answer"]) == (env.problems[2].id, env.problems[2].answer)
    assert [message["role"] for message in prompt_dataset(env, 1, system_prompt="")[0]["prompt"]] == ["user"]


def test_completions_are_texts_or_messages():
    env = lmgym.make("arithmetic", stepwise=False)
    right = env.problems[0].solution
    messages = [{"role": "assistant", "content": right, "tool_calls": []}]
    empty = [{"role": "assistant", "content": None}]
    reward = reward_function(env)
    assert reward([""] * 4, [right, "no", messages, empty], index=[0] * 4, answer=["?"] * 4) == [1.0, 0.0, 1.0, 0.0]
    assert reward.__name__ == "arithmetic"


def test_an_environment_answers_after_its_end_and_starts_anew():
    env = lmgym.make("guess-number")
    played = environment_factory(env)()
    assert isinstance(played, TRLEnvironment)
    assert played.reset(prompt=[], index=0, answer="?") == HINT
    assert played.act(env.problems[0].answer).endswith(ENDED)
    assert played.act("1") == ENDED
    assert played.get_reward() == 1.0
    played.reset(index=1)
    assert played.get_reward() == 0.0
    assert played.act("no idea") == "Write a number."


def test_what_cannot_be_exported_is_one_sentence(monkeypatch):
    arithmetic, game = lmgym.make("arithmetic", stepwise=False), lmgym.make("guess-number")
    with pytest.raises(UserError, match="make it with stepwise=False"):
        reward_function(lmgym.make("arithmetic"))
    with pytest.raises(UserError, match="make it with stepwise=False"):
        reward_function(lmgym.make("word-problems + guess-number"))
    with pytest.raises(UserError, match="make it without them, and use the library's own"):
        environment_factory(lmgym.make("arithmetic", stepwise=False, tools="calculator"))
    with pytest.raises(UserError, match=r"several turns.*use environment_factory"):
        reward_function(game)([""], ["1"], index=[0])
    with pytest.raises(UserError, match='no column "index"'):
        reward_function(arithmetic)([""], ["1"])
    with pytest.raises(UserError, match='no column "index"'):
        environment_factory(game)().reset(prompt="")
    with pytest.raises(UserError, match="arithmetic generates its problems: say how many"):
        prompt_dataset(arithmetic)
    with pytest.raises(UserError, match="problems is 0: arithmetic has 1 to"):
        prompt_dataset(arithmetic, problems=0)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'lmgym\[trl\]'"):
        prompt_dataset(arithmetic, problems=1)


def test_self_play_is_refused():
    with pytest.raises(UserError, match="several episodes at once"):
        reward_function(lmgym.make("number-race"))
