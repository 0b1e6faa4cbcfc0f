"""Base models: a tokenizer without a chat template is prompted in plain text and stops before a problem of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import tiny_model
from dictated import Dictated

import lmgym
from lmgym.algorithms.reinforce import Reinforce, ReinforceConfig
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.vector_env import VectorEnv
from lmgym.models.language_model import LanguageModel
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.types import Problem, State


def base_model() -> LanguageModel:
    model = tiny_model()
    model.tokenizer.chat_template = None
    return model


@pytest.mark.parametrize("kind", [FewShotLLMStepwiseMathPolicy, ChatPolicy])
def test_examples_and_problem_stand_one_below_the_other(kind):
    env = lmgym.make("arithmetic")
    example = few_shot_examples(env, 1)[0]
    policy = kind(base_model(), [example], system_prompt="SYSTEM")
    state = VectorEnv(env).reset([0])[0]
    assert policy.decode(policy.prompt_ids(state)) == (
        f"SYSTEM\n\nProblem: {example.prompt}\nSolution:\n{example.solution}\n\n"
        f"Problem: {state.problem.prompt}\nSolution:\n"
    )


def test_a_token_that_begins_every_text_begins_the_prompt():
    model = base_model()
    model.tokenizer.add_special_tokens({"bos_token": "<|start|>"})
    policy = ChatPolicy(model, system_prompt="")
    assert not policy.decode(policy.prompt_ids(question())).startswith("<|start|>")  # this tokenizer adds none itself
    plain = model.tokenizer
    policy.model.tokenizer = WithFirstToken(plain)  # type: ignore[assignment]
    assert policy.decode(policy.prompt_ids(question())).startswith("<|start|>Problem:")


class WithFirstToken:
    """A tokenizer that puts its first token before whatever it is given, as Llama's does."""

    def __init__(self, plain) -> None:
        self.plain = plain

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.plain(text, add_special_tokens=False)["input_ids"]
        return {"input_ids": [self.plain.bos_token_id, *ids] if add_special_tokens else ids}

    def __getattr__(self, name: str):
        return getattr(self.plain, name)


def question() -> State:
    return State(Problem("p", "question", ""), ({"role": "user", "content": "question"},))


def test_a_reply_becomes_the_next_problem():
    policy = ChatPolicy(base_model(), system_prompt="")
    first = policy.prompt_ids(question())
    heard = replace(question().after("hello", "Higher."), tokens=first + policy.encode("hello"))
    assert policy.decode(policy.prompt_ids(heard)) == (
        "Problem: question\nSolution:\nhello\n\nProblem: Higher.\nSolution:\n"
    )


def test_a_reply_goes_on_from_the_problem_that_the_model_began_itself():
    policy = ChatPolicy(base_model(), system_prompt="")
    first = policy.prompt_ids(question())
    heard = replace(question().after("7", "Higher."), tokens=first + policy.encode("7\n\nProblem:"))
    assert policy.decode(policy.prompt_ids(heard)) == (
        "Problem: question\nSolution:\n7\n\nProblem: Higher.\nSolution:\n"
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("It is 7.\n\nProblem: What is", "It is 7."),
        ("Problem: no newline before", ""),
        ("It is no Problem: really." + "x" * 20 + "Problem: still none." + "y" * 99, None),
    ],
)
def test_a_problem_of_its_own_ends_the_turn_and_is_not_part_of_it(written, text):
    policy = ChatPolicy(base_model(), system_prompt="", max_tokens=60)
    policy.engine = Dictated(policy, written)
    action = policy.get_actions([question()])[0]
    assert (action.text, action.finish) == ((text, "eos") if text is not None else (written[:60], "length"))
    assert policy.decode(action.token_ids) == written[: len(action.token_ids)]  # the ids stay what was sampled


def test_a_base_model_is_trained_like_any_other():
    env = lmgym.make("arithmetic", max_steps=2)
    policy = FewShotLLMStepwiseMathPolicy(base_model(), few_shot_examples(env, 1), max_line_tokens=6)
    config = ReinforceConfig(iterations=1, problems_per_iteration=2, group_size=2, eval_problems=0)
    algorithm = Reinforce(policy, env, config)
    algorithm.train()
    assert len(algorithm.buffer) == 4
