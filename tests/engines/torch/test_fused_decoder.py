"""The engine's own forward pass computes what the network computes, for every architecture that it takes."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import shake_adapter
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.engines.torch.engine import TorchEngine
from lmgym.engines.torch.fused_decoder import LLAMA_LIKE, FusedDecoder, supports_fusion
from lmgym.models.attention import PrefixRecorder
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora

TOKENS = torch.arange(40).view(2, 20) % 90 + 3
POSITIONS = torch.arange(20).expand(2, 20) + 7


def model_of(model_type: str, **settings) -> LanguageModel:
    """A tiny network whose heads do not make up the hidden size, with biases where the config allows them."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=104,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        initializer_range=0.2,
        sliding_window=None,
        **settings,
    )
    network = AutoModelForCausalLM.from_config(config)
    return wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, model_type)


def difference(model: LanguageModel) -> float:
    """The largest difference of a log-probability between the fused and the network's own pass."""
    decoder = FusedDecoder(model)
    decoder.pack()
    found, expected = (
        each.logits(each.hidden_states(TOKENS, POSITIONS, PrefixRecorder())).log_softmax(dim=-1)
        for each in (decoder, model)
    )
    return float((found - expected).detach().abs().max())


@pytest.mark.parametrize("model_type", sorted(LLAMA_LIKE))
@pytest.mark.parametrize("settings", [{}, {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}])
def test_log_probs_are_those_of_the_network(model_type, settings):
    model = model_of(model_type, **settings)
    with torch.no_grad():
        for weight in model.network.parameters():  # norms and biases of a new network are all 1 or 0
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    assert supports_fusion(model)
    assert isinstance(TorchEngine(model)._decoder, FusedDecoder)
    assert difference(model) < 1e-4


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj,down_proj"])
def test_adapters_are_part_of_it_until_they_are_disabled(targets):
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8, target_modules=targets))
    shake_adapter(network, size=0.5)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    assert supports_fusion(model)
    assert difference(model) < 1e-4
    adapted = model.logits(model.hidden_states(TOKENS, POSITIONS, PrefixRecorder()))
    network.base_model.disable_adapter_layers()
    assert difference(model) < 1e-4
    plain = model.logits(model.hidden_states(TOKENS, POSITIONS, PrefixRecorder()))
    assert (adapted - plain).abs().max() > 0.1


def test_other_adapters_take_the_networks_own_pass():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", use_dora=True)
    network = peft.get_peft_model(tiny_network(), config)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    assert not supports_fusion(model)
    assert TorchEngine(model)._decoder is model


def test_without_packed_products_the_network_itself_decodes(monkeypatch):
    monkeypatch.setattr("lmgym.engines.torch.fused_decoder._can_pack", lambda dtype: False)
    model = tiny_model()
    assert TorchEngine(model)._decoder is model


def test_released_weights_are_packed_again():
    model = tiny_model()
    decoder = FusedDecoder(model)
    decoder.pack()
    assert all(product.weight is not None for product in decoder.products)
    decoder.release()
    assert all(product.weight is None for product in decoder.products)
