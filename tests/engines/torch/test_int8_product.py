"""Products in 8-bit integers: what they compute, how far they are from float32, and who may ask for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import shake_adapter
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lmgym.commands.settings import PolicySettings
from lmgym.engines.engine import Request
from lmgym.engines.torch import engine as engines
from lmgym.engines.torch.engine import TorchEngine, int8_engine
from lmgym.engines.torch.int8_product import Int8Product, has_int8_products
from lmgym.errors import UserError
from lmgym.models.loading import wrap_network
from lmgym.models.lora import LoraSettings, add_lora

needs_vnni = pytest.mark.skipif(not has_int8_products(), reason="this CPU has no VNNI instructions")


def layers(inputs: int, outputs: tuple[int, ...], seed: int = 0, bias: bool = True) -> list[nn.Linear]:
    """Linear layers that read the same input, with weights of very different sizes per output."""
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Linear(inputs, size, bias=bias) for size in outputs]
    with torch.no_grad():
        for linear in made:
            sizes = torch.logspace(-2, 1, linear.out_features)[:, None]
            linear.weight.copy_(sizes * torch.randn(linear.weight.shape, generator=generator))
    return made


def packed(linears: list[nn.Linear]) -> Int8Product:
    product = Int8Product(linears)
    product.pack()
    return product


@needs_vnni
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70),
    inputs=st.integers(1, 130),
    outputs=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_it_is_the_sum_of_the_rounded_integers(rows, inputs, outputs, seed):
    linears = layers(inputs, tuple(outputs), seed)
    states = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)) * 10
    weight = np.concatenate([linear.weight.detach().numpy() for linear in linears])
    bias = np.concatenate([linear.bias.detach().numpy() for linear in linears])
    scales, row_scales = np.abs(weight).max(1) / np.float32(127), np.abs(states.numpy()).max(1) / np.float32(127)
    inputs_rounded = np.rint(states.numpy() / row_scales[:, None]).astype(np.int64)
    weights_rounded = np.rint(weight / scales[:, None]).astype(np.int64)
    integers = inputs_rounded @ weights_rounded.T
    expected = integers * row_scales[:, None].astype(np.float64) * scales + bias
    found = packed(linears)(states).numpy()
    # An input halfway between two integers may be rounded either way, by a unit in one summand.
    unit = 127 * row_scales[:, None] * scales
    assert (np.abs(found - expected) <= 1e-5 * np.abs(expected) + 1e-5 + unit).all()
    assert np.mean(np.abs(found - expected) <= 1e-5 * np.abs(expected) + 1e-5) > 0.9


@needs_vnni
def test_a_row_does_not_depend_on_the_others():
    product = packed(layers(96, (64, 32)))
    states = torch.randn(50, 96, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 50)[:, None]
    together = product(states)
    assert all(torch.equal(product(states[row : row + 1])[0], together[row]) for row in range(50))


@needs_vnni
def test_it_is_within_a_few_per_cent_of_the_exact_product():
    linears = layers(512, (256,), bias=False)
    states = torch.randn(4, 8, 512, generator=torch.Generator().manual_seed(2))
    exact = linears[0](states)
    found = packed(linears)(states)
    assert found.shape == exact.shape
    assert ((found - exact).norm(dim=(0, 1)) / exact.norm(dim=(0, 1))).max() < 0.03


@needs_vnni
def test_zero_rows_and_zero_weights_give_the_bias():
    linear = nn.Linear(16, 8)
    assert torch.equal(packed([linear])(torch.zeros(3, 16)), linear.bias.expand(3, 8))
    nn.init.zeros_(linear.weight)
    assert torch.equal(packed([linear])(torch.ones(3, 16)), linear.bias.expand(3, 8))


@needs_vnni
def test_adapters_are_merged_into_the_weights():
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8))
    shake_adapter(network, size=0.5)
    adapted = network.base_model.model.model.layers[0].mlp.gate_proj
    states = torch.randn(6, adapted.in_features, generator=torch.Generator().manual_seed(3))
    found, expected, base = packed([adapted])(states), adapted(states), adapted.base_layer(states)
    assert (found - expected).norm() < 0.03 * expected.norm()
    assert (expected - base).norm() > 0.1 * base.norm()


def requests(count: int = 24) -> list[Request]:
    return [Request(tuple(range(3, 20 + index % 5)), 16, seed=index) for index in range(count)]


@needs_vnni
@pytest.mark.parametrize("lora", [False, True])
def test_log_probs_are_close_to_those_of_float32_and_follow_the_weights(lora):
    network = tiny_network()
    if lora:
        network = add_lora(network, LoraSettings(rank=4, alpha=8))
        shake_adapter(network, size=0.3)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=lora)
    engine = int8_engine(model)
    for _ in range(2):
        sampled = engine.generate(requests())
        differences = []
        for request, completion in zip(requests(), sampled, strict=True):
            ids = torch.tensor([[*request.prompt, *completion.token_ids]])
            with torch.no_grad():
                exact = model.logits(model.plain_hidden_states(ids))[0].log_softmax(dim=-1)
            of_tokens = exact[len(request.prompt) - 1 : -1].gather(1, ids[0, len(request.prompt) :, None])[:, 0]
            differences.append(torch.tensor(completion.logprobs) - of_tokens)
        # The tiny network has random weights and few inputs, which round badly.
        assert 0 < torch.cat(differences).abs().mean() < 0.12
        with torch.no_grad():  # other weights, as after an update
            for weight in model.trainable().values():
                weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
        model.version += 1


@needs_vnni
def test_rows_are_the_same_however_they_are_batched():
    model = tiny_model()
    together = TorchEngine(model, rounds_to_int8=True).generate(requests())
    alone = [TorchEngine(model, rounds_to_int8=True).generate([request])[0] for request in requests()]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


@needs_vnni
def test_the_engine_says_what_it_computes_in():
    assert int8_engine(tiny_model()).dtype_name == "int8"
    assert TorchEngine(tiny_model()).dtype_name == "float32"


@needs_vnni
def test_the_flag_chooses_the_engine_of_a_model_that_samples():
    for policy, expected in ((PolicySettings(), "float32"), (PolicySettings(rollout_dtype="int8"), "int8")):
        engine = policy._engine(tiny_model(), samples=True)
        assert engine is not None
        assert engine.dtype_name == expected
        assert policy._engine(tiny_model(), samples=False) is None


def test_a_cpu_without_the_instructions_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(engines, "has_int8_products", lambda: False)
    with pytest.raises(UserError, match="VNNI"):
        int8_engine(tiny_model())


def test_a_model_that_the_engine_does_not_compute_itself_is_refused(monkeypatch):
    monkeypatch.setattr(engines, "supports_fusion", lambda model: False)
    with pytest.raises(UserError, match="Llama-like"):
        int8_engine(tiny_model())


def test_it_is_not_for_servers():
    with pytest.raises(UserError, match="precision of its own"):
        PolicySettings(rollout_dtype="int8", engine="vllm", servers="http://localhost:1")._connect(tiny_model())
