"""Layers that keep less for the backward pass compute what the layers of Transformers compute."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import tiny_model
from torch import Tensor

from lmgym.models.language_model import LanguageModel, base_network
from lmgym.models.lora import LoraSettings, add_lora
from lmgym.models.low_memory_layers import low_memory_layers

TOKENS = torch.tensor([[5, 9, 9, 0, 70, 41, 5, 12], [7, 7, 1, 2, 3, 4, 5, 0]])
"""0 is the padding id, whose embedding gets no gradient."""


def tiny(architecture: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    model = tiny_model(architecture)
    random = torch.Generator().manual_seed(0)
    for name, weight in model.network.named_parameters():
        if "norm" in name:  # ones would hide a weight that is left out
            weight.data = torch.rand(weight.shape, generator=random) + 0.5
    model.dtype = dtype
    return model


def outcome(model: LanguageModel, accumulates: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states and all gradients of a function of them, given gradients to add to or not."""
    for weight in model.trainable().values():
        weight.grad = torch.ones_like(weight) if accumulates else None
    hidden = model.plain_hidden_states(TOKENS)
    hidden.float().square().sum().backward()
    return hidden.detach().float(), {name: _gradient(weight) for name, weight in model.trainable().items()}


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad.clone()


def check_equal(ours: Any, theirs: Any, tolerance: float) -> None:
    assert (ours[0] - theirs[0]).abs().max() <= tolerance * theirs[0].abs().max()
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        difference = (ours[1][name] - gradient).norm()
        assert difference <= tolerance * gradient.norm() + 1e-6, name


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_results_and_gradients_are_those_of_transformers(architecture, accumulates):
    model = tiny(architecture)
    plain = outcome(model, accumulates)
    with low_memory_layers(model):
        ours = outcome(model, accumulates)
    check_equal(ours, plain, tolerance=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_in_bfloat16_the_difference_is_rounding(architecture):
    exact, model = outcome(tiny(architecture)), tiny(architecture, torch.bfloat16)
    plain = outcome(model)
    with low_memory_layers(model):
        ours = outcome(model)
    assert (ours[0] - exact[0]).norm() <= 2 * (plain[0] - exact[0]).norm()
    for name, gradient in exact[1].items():  # no farther from the exact gradient than that of autocast
        far = (plain[1][name] - gradient).norm()
        assert (ours[1][name] - gradient).norm() <= 2 * far + 1e-3 * gradient.norm(), name


def test_frozen_weights_and_adapters():
    model = tiny("llama")
    network: Any = add_lora(copy.deepcopy(model.network), LoraSettings(rank=4, alpha=8))
    adapted = LanguageModel(network, model.tokenizer, model.device, model.dtype, "adapted", has_lora=True)
    adapted.shares_prefixes = model.shares_prefixes
    for name, weight in adapted.trainable().items():
        weight.data += 0.1 if "lora_B" in name else 0.0
    plain = outcome(adapted)
    assert all("lora" in name for name in plain[1])
    with low_memory_layers(adapted):
        ours = outcome(adapted)
    check_equal(ours, plain, tolerance=1e-5)


def test_less_is_kept_for_the_backward_pass():
    def kept(model: LanguageModel) -> int:
        sizes: dict[int, int] = {}
        weights = {weight.data_ptr() for weight in model.network.parameters()}

        def note(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in weights:
                sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model.plain_hidden_states(TOKENS.repeat(1, 8))
        return sum(sizes.values())

    model = tiny("llama")
    before = kept(model)
    with low_memory_layers(model):
        after = kept(model)
    assert after < 0.75 * before


def test_the_layers_are_those_of_transformers_again_afterwards():
    model = tiny("llama")
    modules = list(base_network(model.network).modules())
    with low_memory_layers(model):
        assert any("forward" in vars(module) for module in modules)
        with pytest.raises(IndexError):  # an error inside restores them too
            model.plain_hidden_states(torch.full((1, 2), 10_000))
    assert not any("forward" in vars(module) for module in modules)
