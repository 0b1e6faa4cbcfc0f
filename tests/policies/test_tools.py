"""Where a policy stops the engine, what its tools write there, and that it is what reading every token would give."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from conftest import tiny_model, tiny_tokenizer
from dictated import Dictated
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import lmgym
from lmgym.assets.catalogue import model_folder
from lmgym.calculator import calculate, open_expression
from lmgym.engines.engine import Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.envs.vector_env import VectorEnv
from lmgym.policies.chat_policy import ChatPolicy
from lmgym.policies.few_shot_llm_stepwise_math_policy import FINISHED_ANSWER, FewShotLLMStepwiseMathPolicy
from lmgym.policies.plain_prompt import begins_next_problem
from lmgym.policies.token_text import TokenText, token_text

TEXTS = [
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThe answer is: 24\n",
    "So that is The answer is: 1,234.5 and more",
    "The answer is: 1,234.5 and more",
    "the answer is:\u30007\u3000so",
    "The answer is: $12 \n",
    "The answer is:  the number 5 . ",
    "The answer is: \u0663 \n",
    "ünïcödé 数学 🙂 <<(1+2)*3=9>> 数\n",
    "<<" + "1+" * 90 + "1=91>>" + "<<" + "1+" * 120 + "1=121>>",
    "a = b = <<6*7= 42>> = <<9=9>>" + "word " * 40 + "The answer is: " + "9" * 30 + " x",
    "It is 7.\n\nProblem: What is",
    "Problem: none",
    "No Problem: really. Problem:\n",
]
PIECES = [
    *["The answer is", "the answer is:", ":", ": ", " ", "7", "12", ",", ".5", "$", "-", "\n", "\u3000", "\t"],
    *["=", "<<", "3*4=", "Problem:", "Problem", "so", "é"],
]


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def tokenizer(request):
    return tiny_tokenizer() if request.param == "tiny" else AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))


def reading_every_token(policy, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Ids and mask of an action that samples these, by the whole decoded text after every sampled token."""
    written: list[int] = []
    mask: list[int] = []
    for token in ids:
        written, mask = [*written, token], [*mask, 1]
        if token in policy.model.eos_ids:
            break
        text = policy.decode(written)
        stepwise = isinstance(policy, FewShotLLMStepwiseMathPolicy)
        if stepwise and ("\n" in text or FINISHED_ANSWER.match(text)):
            break
        if policy.is_plain and begins_next_problem(text):
            break
        expression = open_expression(text) if policy.calculator else None
        result = calculate(expression) if expression is not None else None
        forced = policy.encode(f"{result}>>") if result is not None else ()
        written, mask = [*written, *forced], mask + [0] * len(forced)
    return written, mask


def check_text(policy, text: str) -> None:
    ids = (*policy.encode(text), policy.model.tokenizer.eos_token_id)
    policy.engine = Dictated(policy, text + policy.model.tokenizer.eos_token)
    (state,) = VectorEnv(lmgym.make("arithmetic")).reset([0])
    (action,) = policy.get_actions([state])
    assert (list(action.token_ids), list(action.mask)) == reading_every_token(policy, ids)
    assert len(action.logprobs) == len(action.mask)
    assert all(logprob == -chosen for logprob, chosen in zip(action.logprobs, action.mask, strict=True))


def policy_with(tokenizer, kind, plain: bool):
    policy = kind(tiny_model(), (), "", 1000, calculator=True)
    policy.model.tokenizer = tokenizer
    tokenizer.chat_template = None if plain else tiny_tokenizer().chat_template
    return policy


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", [ChatPolicy, FewShotLLMStepwiseMathPolicy])
def test_an_action_ends_and_is_forced_as_if_every_token_were_read(tokenizer, kind, plain):
    policy = policy_with(tokenizer, kind, plain)
    solutions = [problem.solution for problem in lmgym.make("gsm8k").problems[:10]]
    for text in [*TEXTS, *"\n".join(solutions).splitlines(keepends=True)]:
        check_text(policy, text)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=12),
    stepwise=st.booleans(),
    plain=st.booleans(),
)
def test_any_text_ends_and_is_forced_as_if_every_token_were_read(tokenizer, pieces, stepwise, plain):
    kind = FewShotLLMStepwiseMathPolicy if stepwise else ChatPolicy
    check_text(policy_with(tokenizer, kind, plain), "".join(pieces))


def test_the_engine_is_asked_once_for_a_line_without_a_tool():
    policy = FewShotLLMStepwiseMathPolicy(tiny_model(), max_line_tokens=200)
    policy.engine = Dictated(policy, "a line of many words\n")
    asked: list[Request] = []
    submit = policy.engine.submit
    policy.engine.submit = lambda requests: asked.extend(requests) or submit(requests)
    (state,) = VectorEnv(lmgym.make("arithmetic")).reset([0])
    policy.get_actions([state])
    assert len(asked) == 1


class Forcing(ChatPolicy):
    """A tool writes three ids after each sampled token."""

    def stop_ids(self, written):
        return frozenset(range(self.model.vocabulary_size))

    def tool_output(self, written):
        return self.encode("=>>")


@pytest.mark.parametrize("engine", [TorchEngine, PlainEngine])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 9])
def test_forced_tokens_count_towards_the_budget_and_are_masked(engine, budget):
    policy = Forcing(tiny_model(), (), "", max_tokens=budget)
    policy.engine = engine(policy.model)
    (state,) = VectorEnv(lmgym.make("arithmetic")).reset([0])
    (action,) = policy.get_actions([state])
    assert action.mask == ((1, 0, 0, 0) * 3)[:budget]
    assert action.finish == "length"
    forced = [token for token, chosen in zip(action.token_ids, action.mask, strict=True) if not chosen]
    assert forced == list((policy.encode("=>>") * 3)[: len(forced)])
    assert [logprob == 0 for logprob in action.logprobs] == [not chosen for chosen in action.mask]


class Asking(ChatPolicy):
    """Stops the engine after each token and has nothing to add."""

    def stop_ids(self, written):
        return frozenset(range(self.model.vocabulary_size))


def test_an_action_is_the_same_in_one_request_and_in_several():
    states = VectorEnv(lmgym.make("word-problems")).reset([0, 1, 2], 4, seed=3)
    one, several = (kind(tiny_model(), (), "", max_tokens=12).get_actions(states) for kind in (ChatPolicy, Asking))
    assert [action.token_ids for action in one] == [action.token_ids for action in several]
    assert [action.finish for action in one] == [action.finish for action in several]
    for action, other in zip(one, several, strict=True):
        assert action.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_version_of_an_action_is_that_of_its_first_token():
    policy = Asking(tiny_model(), (), "", max_tokens=4)
    states = VectorEnv(lmgym.make("arithmetic")).reset([0])
    submit, versions = policy.engine.submit, []

    def moving(requests):
        versions.append(policy.model.version)
        policy.model.version += 1
        return submit(requests)

    policy.engine.submit = moving
    (action,) = policy.get_actions(states)
    assert len(versions) == len(action.token_ids) > 1
    assert action.policy_version == 1


def test_the_text_of_a_token_keeps_its_space_where_the_decoder_strips_the_first_one():
    """As sentencepiece does it: a word begins with ▁, which the decoder strips at the beginning of a text."""
    vocabulary = {
        token: index for index, token in enumerate(["<unk>", "▁", "a", "▁a", "▁=", "=", ":", "<0x0A>", "▁b:"])
    }
    inner = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "=")], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    table = TokenText(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>"))
    assert [table.texts[index] for index in range(1, 9)] == [" ", "a", " a", " =", "=", ":", "\n", " b:"]
    assert table.matching("=$") == {4, 5}
    assert table.matching(r"\s$") == {1, 7}


def test_texts_of_a_byte_level_tokenizer_join_to_the_text_they_come_from():
    tokenizer = AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))
    table = token_text(tokenizer)
    for text in TEXTS[:3]:
        assert "".join(table.texts[token] for token in tokenizer(text)["input_ids"]) == text


def test_the_table_is_made_once_for_a_tokenizer_and_in_little_time():
    tokenizer = AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))
    start = time.process_time()
    table = token_text(tokenizer)
    assert time.process_time() - start < 5, "about 0.3 s on an idle machine"
    assert len(table.texts) == 49_152
    assert token_text(tokenizer) is table
    assert table.matching("=$") is table.matching("=$")
