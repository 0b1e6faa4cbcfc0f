"""A reference stays where it was while the policy moves, and costs no second model under LoRA."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import Turn, make_episode, shake_adapter

from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner, LearnerSettings
from lmgym.learning.reference import make_reference
from lmgym.losses import per_token, policy_gradient
from lmgym.models.distribution import FULL_SOFTMAX, Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora

SETTINGS = LearnerSettings(0.01, "constant", 0, 10, 1e9, 10**6, FULL_SOFTMAX)
STEM = list(range(40, 60))
BATCH = Batch.from_episodes(
    [make_episode(Turn([*STEM, 5 + n % 2], [9 + n, 30, 31 + n, 8], [1, 0, 1, 1]), group=n % 2) for n in range(4)]
)


def lora_model(shaken: bool = True) -> LanguageModel:
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    torch.manual_seed(1)
    if shaken:
        shake_adapter(network)
    return wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)


def move(learner: Learner) -> None:
    batch = BATCH.with_(advantages=torch.where(BATCH.mask, 1.0, 0.0))
    learner.step(batch, lambda scores, part: per_token(policy_gradient(scores.logprobs, part.advantages), part))


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((one - other).abs().max() < tolerance)


def storages(model: LanguageModel) -> int:
    """Numbers held by all parameters, each block of memory counted once."""
    blocks = {weight.untyped_storage().data_ptr(): weight.numel() for weight in model.network.parameters()}
    return sum(blocks.values())


@pytest.mark.parametrize("make", [tiny_model, lora_model])
def test_it_stays_behind_until_it_is_refreshed(make):
    model = make()
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, None)
    first = reference.logprobs(learner, BATCH)
    for _ in range(2):
        move(learner)
        assert close(reference.logprobs(learner, BATCH), first)
        assert not close(learner.logprobs(model, BATCH), first, 0.1)
    now = learner.logprobs(model, BATCH)
    reference.refresh()
    assert close(reference.logprobs(learner, BATCH), now)
    for _ in range(2):
        move(learner)
        assert close(reference.logprobs(learner, BATCH), now), "a refreshed reference does not learn"
        assert not close(learner.logprobs(model, BATCH), now, 1e-3)
    again = learner.logprobs(model, BATCH)
    reference.refresh()
    assert close(reference.logprobs(learner, BATCH), again)


def test_the_first_reference_is_the_policy_itself():
    model = tiny_model()
    learner = Learner(model, SETTINGS)
    assert close(make_reference(model, None).logprobs(learner, BATCH), learner.logprobs(model, BATCH))


def test_under_lora_it_is_the_base_model():
    model, base = lora_model(), tiny_model()
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, None).logprobs(learner, BATCH)
    assert close(reference, learner.logprobs(base, BATCH))
    assert not close(reference, learner.logprobs(model, BATCH), 0.01)


def test_under_lora_nothing_but_an_adapter_is_added():
    model = lora_model()
    learner = Learner(model, SETTINGS)
    base = {name: weight.data_ptr() for name, weight in model.network.named_parameters() if "lora_" not in name}
    held, learns = storages(model), set(model.trainable())
    adapter = sum(weight.numel() for weight in model.trainable().values())
    reference = make_reference(model, None)
    reference.logprobs(learner, BATCH)
    assert storages(model) == held
    for _ in range(2):
        reference.refresh()
        reference.logprobs(learner, BATCH)
    assert storages(model) == held + adapter
    assert {n: w.data_ptr() for n, w in model.network.named_parameters() if "lora_" not in n} == base
    assert set(model.trainable()) == learns, "what learns is what learnt before"


def test_using_the_reference_leaves_the_policy_as_it_was():
    model = lora_model()
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, None)
    before = learner.logprobs(model, BATCH)
    reference.logprobs(learner, BATCH)
    assert torch.equal(learner.logprobs(model, BATCH), before)
    reference.refresh()
    move(learner)
    moved = learner.logprobs(model, BATCH)
    reference.logprobs(learner, BATCH)
    assert torch.equal(learner.logprobs(model, BATCH), moved)
    assert not close(before, moved, 1e-3)


@pytest.mark.parametrize("make", [tiny_model, lora_model])
def test_a_refreshed_reference_survives_a_round_trip(make, tmp_path):
    model = make()
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, None)
    path = tmp_path / "reference.safetensors"
    reference.save(path)
    assert not path.exists(), "the first reference is known without a file"
    move(learner)
    reference.refresh()
    kept = reference.logprobs(learner, BATCH)
    reference.save(path)

    resumed = make()
    other = Learner(resumed, SETTINGS)
    move(other)
    move(other)
    policy = other.logprobs(resumed, BATCH)
    loaded = make_reference(resumed, None)
    loaded.load(path)
    assert close(loaded.logprobs(other, BATCH), kept)
    assert close(other.logprobs(resumed, BATCH), policy), "the policy keeps its own weights"
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").exists()


@pytest.mark.parametrize("make", [tiny_model, lora_model])
def test_loading_where_nothing_was_saved_keeps_the_first_reference(make, tmp_path):
    model = make()
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, None)
    first = reference.logprobs(learner, BATCH)
    reference.load(tmp_path / "reference.safetensors")
    assert torch.equal(reference.logprobs(learner, BATCH), first)


@pytest.mark.parametrize("make", [tiny_model, lora_model])
def test_a_model_that_is_given_is_the_reference(make):
    model, given = make(), tiny_model(seed=7)
    learner = Learner(model, SETTINGS)
    reference = make_reference(model, given)
    expected = learner.logprobs(given, BATCH)
    move(learner)
    assert close(reference.logprobs(learner, BATCH), expected)
    assert not given.trainable()


def test_a_reference_with_another_vocabulary_is_refused_in_one_sentence():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<|new|>"])
    given = replace(tiny_model(), tokenizer=tokenizer, name="other-model")
    with pytest.raises(UserError, match=r"other-model has another tokenizer than tiny-llama \(\d+ and \d+"):
        make_reference(tiny_model(), given)


@pytest.mark.parametrize("make", [tiny_model, lora_model])
def test_temperature_counts_for_the_reference_too(make):
    model = make()
    warm, cold = Learner(model, SETTINGS), Learner(model, replace(SETTINGS, distribution=Distribution(2.0)))
    reference = make_reference(model, None)
    assert not close(reference.logprobs(warm, BATCH), reference.logprobs(cold, BATCH), 0.1)
