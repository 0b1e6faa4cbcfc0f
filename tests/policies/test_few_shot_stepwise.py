"""The step-wise policy: its prompt, its lines, the calculator's forced tokens, and one id sequence per episode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import tiny_model
from dictated import Dictated

import lmgym
from lmgym.buffer import Buffer
from lmgym.envs.examples import few_shot_examples
from lmgym.envs.vector_env import VectorEnv
from lmgym.errors import UserError
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FewShotLLMStepwiseMathPolicy
from lmgym.types import Problem, State


def dictated(text: str, **options) -> tuple[FewShotLLMStepwiseMathPolicy, State]:
    policy = FewShotLLMStepwiseMathPolicy(tiny_model(), max_line_tokens=200, **options)
    policy.engine = Dictated(policy, text)
    state = VectorEnv(lmgym.make("arithmetic")).reset([0])[0]
    return policy, state


def test_prompt_holds_system_prompt_examples_and_problem_in_that_order():
    env = lmgym.make("word-problems")
    examples = few_shot_examples(env, 2)
    policy = FewShotLLMStepwiseMathPolicy(tiny_model(), examples, system_prompt="SYSTEM")
    state = VectorEnv(env).reset([3])[0]
    text = policy.decode(policy.prompt_ids(state))
    parts = ["SYSTEM", examples[0].prompt, examples[0].solution, examples[1].prompt, state.problem.prompt]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.endswith("<|start|>assistant\n")


def test_a_state_begun_by_someone_else_is_continued_after_its_partial_solution():
    policy, state = dictated("")
    begun = state.after("First line.")
    assert policy.decode(policy.prompt_ids(begun)).endswith("<|start|>assistant\nFirst line.\n")


def test_calculator_forces_the_value_with_mask_zero_and_the_model_goes_on_from_there():
    policy, state = dictated("6*7 = <<6*7=42 apples\nmore")
    action = policy.get_actions([state])[0]
    assert action.text == "6*7 = <<6*7=42>>42 apples\n"
    forced = [token for token, chosen in zip(action.token_ids, action.mask, strict=True) if not chosen]
    assert policy.decode(forced) == "42>>"
    assert len(action.mask) == len(action.token_ids) == len(action.logprobs)


@pytest.mark.parametrize("expression", ["6*", "9**9**9**9", "__import__('os')", "1/0"])
def test_an_expression_that_cannot_be_evaluated_is_left_to_the_model(expression):
    policy, state = dictated(f"<<{expression}=5>>\n")
    action = policy.get_actions([state])[0]
    assert action.text == f"<<{expression}=5>>\n"
    assert all(action.mask)


def test_without_the_calculator_nothing_is_forced():
    policy, state = dictated("<<6*7=41>>\n", calculator=False)
    assert policy.get_actions([state])[0].text == "<<6*7=41>>\n"


@pytest.mark.parametrize(
    ("written", "action"),
    [
        ("a\nb", "a\n"),
        ("The answer is: 12 so", "The answer is: 12 "),
        ("I doubt that the answer is: 12 so\nb", "I doubt that the answer is: 12 so\n"),
    ],
)
def test_a_line_ends_at_its_end_or_at_the_answer(written, action):
    policy, state = dictated(written)
    assert policy.get_actions([state])[0].text == action


@pytest.mark.parametrize(
    ("written", "finish"),
    [("a\nb", "stop"), ("The answer is: 12 so", "stop"), ("a<|stop|>", "eos"), ("x" * 300, "length")],
)
def test_an_action_says_how_it_ended(written, finish):
    policy, state = dictated(written)
    action = policy.get_actions([state])[0]
    assert action.finish == finish
    assert "<|stop|>" not in action.text


@pytest.mark.parametrize("marker", ["<|end|>", "<|im_end|>", "</s>"])
def test_a_marker_that_the_model_types_does_not_end_its_turn(marker):
    policy, state = dictated(f"a{marker}b\n")
    action = policy.get_actions([state])[0]
    assert (action.text, action.finish) == (f"a{marker}b\n", "stop")


@pytest.mark.parametrize("kind", [FewShotLLMStepwiseMathPolicy, ChatPolicy])
def test_an_episode_is_one_sequence_that_only_grows(kind):
    """Nothing is decoded and encoded again: each prompt begins with the ids of the turn before, exactly."""
    model = tiny_model(seed=3)
    env = lmgym.make("word-problems", max_steps=4)
    envs, buffer = VectorEnv(env), Buffer()
    policy = kind(model, few_shot_examples(env, 1), temperature=1.0)
    policy.max_tokens = 12
    states = envs.reset([0, 1, 2], 4, seed=1)
    while states:
        steps = envs.step(policy.get_actions(states))
        buffer.add(steps)
        states = [step.next_state for step in steps if not step.done]
    assert len(buffer) == 12
    for episode in buffer.episodes:
        tokens = episode.tokens
        for step in episode.steps:
            seen = step.action.prompt_ids + step.action.token_ids
            assert tokens[: len(seen)] == seen
        assert sum(episode.mask) == sum(sum(step.action.mask) for step in episode.steps)
        assert len(episode.mask) == len(episode.logprobs) == len(episode.step_index) == len(tokens)


def test_chat_policy_puts_the_reply_into_a_user_turn_without_a_second_end_token():
    model = tiny_model()
    policy = ChatPolicy(model, system_prompt="")
    said = (*policy.encode("hello"), 2)
    state = State(Problem("p", "question", ""), ({"role": "user", "content": "question"},))
    first = policy.prompt_ids(state)
    heard = replace(state.after("hello", "Higher."), tokens=first + said)
    text = policy.decode(policy.prompt_ids(heard))
    assert text == (
        "<|start|>user\nquestion<|stop|>\n<|start|>assistant\nhello<|stop|>\n"
        "<|start|>user\nHigher.<|stop|>\n<|start|>assistant\n"
    )


def test_a_prompt_longer_than_the_context_is_one_sentence():
    model = tiny_model()
    model.network.config.max_position_embeddings = 32
    policy = FewShotLLMStepwiseMathPolicy(model)
    with pytest.raises(UserError, match="tokens long"):
        policy.get_actions(VectorEnv(lmgym.make("arithmetic")).reset([0]))


def test_examples_are_different_problems_and_too_many_are_refused():
    env = lmgym.make("word-problems")
    assert len({problem.prompt for problem in few_shot_examples(env, 8)}) == 8
    with pytest.raises(UserError, match="worked examples"):
        few_shot_examples(env, -1)
