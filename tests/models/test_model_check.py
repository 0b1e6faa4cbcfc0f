"""A model's log-probabilities are those of its network, or it is refused when it is loaded."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import shake_adapter
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.errors import UserError
from lmgym.models import model_check
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.logit_transform import IDENTITY, LogitTransform
from lmgym.models.lora import LoraSettings, add_lora

CPU = torch.device("cpu")


def wrap(network, has_lora: bool = False, dtype: torch.dtype = torch.float32) -> LanguageModel:
    return wrap_network(network, tiny_tokenizer(), CPU, dtype, "mine", has_lora)


def change_output(module: torch.nn.Module, change) -> None:
    module.register_forward_hook(lambda _, __, output: change(output))


def test_logits_that_are_more_than_the_output_layer_are_refused_with_the_difference():
    network = tiny_network()

    def twice(output):
        output.logits = 2 * output.logits
        return output

    change_output(network, twice)
    with pytest.raises(UserError, match=r"^mine \(llama\).*more than its output layer.*differ by \d.* nats.*choose"):
        wrap(network)


def test_a_network_that_attends_to_later_tokens_is_refused():
    network = tiny_network("gpt2")

    def look_ahead(output):
        output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.mean(dim=1, keepdim=True)
        return output

    change_output(network.transformer, look_ahead)
    with pytest.raises(UserError, match=r"depend on tokens that come later \(its log-probabilities differ by"):
        wrap(network)


@pytest.mark.parametrize("model_type", ["bert", "xlnet"])
def test_real_architectures_that_were_silently_wrong_are_refused(model_type):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    shape = shape if model_type == "bert" else {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=104, is_decoder=True, initializer_range=0.2, **shape)
    with pytest.raises(UserError, match=f"^mine \\({model_type}\\) cannot be trained here: .* nats"):
        wrap(AutoModelForCausalLM.from_config(config))


def test_a_network_that_needs_more_than_ids_is_refused_in_one_sentence():
    network = tiny_network()
    network.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(ValueError("pixel values are needed\nmore")))
    with pytest.raises(UserError, match=r"^mine .* from token ids alone \(pixel values are needed\); choose"):
        wrap(network)


def test_the_plain_path_is_taken_if_only_prefix_sharing_is_inexact(monkeypatch, capsys):
    config = AutoConfig.for_model(
        "mistral",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=104,
        initializer_range=0.2,
        sliding_window=4,  # which TreeAttention does not implement
    )
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    rows = torch.arange(5, 35)[None]
    with torch.no_grad():
        exact = network(input_ids=rows).logits
    monkeypatch.setattr(model_check, "supports_prefix_sharing", lambda _: True)
    model = wrap(network)
    assert not model.shares_prefixes
    assert "sharing prefixes would change its log-probs by" in capsys.readouterr().err
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model.plain_hidden_states(rows)), exact, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [60, 104, 500])
def test_any_vocabulary_and_dtype_pass(vocabulary, dtype):
    assert wrap(tiny_network(vocabulary=vocabulary), dtype=dtype).shares_prefixes


def test_a_context_shorter_than_the_check_passes():
    network = tiny_network("gpt2")
    config = copy.deepcopy(network.config)
    config.n_positions = 8
    assert not wrap(AutoModelForCausalLM.from_config(config)).shares_prefixes


def test_a_lora_adapter_is_part_of_the_check():
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    shake_adapter(network)
    assert wrap(network, has_lora=True).shares_prefixes


def test_a_network_can_be_wrapped_again():
    network = tiny_model().network
    assert wrap(network).shares_prefixes
    assert wrap(add_lora(network, LoraSettings(rank=4, alpha=8)), has_lora=True).shares_prefixes


def test_no_global_random_state_is_touched():
    network = tiny_network()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    wrap(network)
    torch.testing.assert_close(torch.rand(3), expected)
    assert (np.random.get_state(legacy=False)["state"]["key"] == before).all()


def test_the_transform_is_read_from_the_text_part_of_a_config():
    gemma = AutoConfig.for_model("gemma3n")
    assert gemma.get_text_config().final_logit_softcapping == LogitTransform.of(gemma).softcap == 30.0
    assert LogitTransform.of(tiny_model().network.config) == IDENTITY
    assert LogitTransform.of(AutoConfig.for_model("mpt", logit_scale="inv_sqrt_d_model")) == IDENTITY
