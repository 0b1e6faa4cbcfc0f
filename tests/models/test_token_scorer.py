"""Prefix sharing changes neither log-probabilities nor gradients: everything is compared with plain Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_model, tiny_network, tiny_tokenizer
from hand_made import gradients, plain_network, plain_scores, ragged_rows, shake_adapter
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from lmgym.engines.engine import Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.errors import UserError
from lmgym.models.attention import PREFIX_SHARING_MODEL_TYPES
from lmgym.models.distribution import FULL_SOFTMAX, Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network
from lmgym.models.logit_transform import IDENTITY
from lmgym.models.lora import LoraSettings, add_lora
from lmgym.models.low_memory_layers import low_memory_layers
from lmgym.models.token_scorer import TokenScorer, common_prefix

PREFIX_SHARING = ["llama", "qwen2", "qwen3"]


def ids(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 99, count)]


def grouped(prefix: int, groups: Sequence[int] = (3, 2), seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of ragged completions with gaps in their masks, after a prompt per group and a prefix shared by all."""
    random = np.random.default_rng(seed)
    rows = []
    for group, size in enumerate(groups):
        prompt = ids(prefix, seed=1) + ids(4 + 3 * group, seed=10 + group)
        for member in range(size):
            written = ids(int(random.integers(1, 12)), seed=100 * group + member)
            rows.append((prompt + written, [0] * len(prompt) + [1] + random.integers(0, 2, len(written) - 1).tolist()))
    return ragged_rows(rows)


def with_an_empty_mask() -> tuple[Tensor, Tensor, Tensor]:
    tokens, mask, lengths = grouped(prefix=6)
    mask[1] = False
    mask[4] = False
    return tokens, mask, lengths


BATCHES = {
    "shared prefix and prompts": lambda: grouped(prefix=9),
    "no shared prefix": lambda: ragged_rows([(ids(n, seed=n), [0, 0] + [1] * (n - 2)) for n in (5, 9, 3)]),
    "one row": lambda: grouped(prefix=9, groups=(1,)),
    "one group": lambda: grouped(prefix=5, groups=(4,)),
    "rows with an empty mask": with_an_empty_mask,
    "sampled right after one token": lambda: ragged_rows([([7, 8, 9], [0, 1, 1]), ([7, 5], [0, 1])]),
}


def weights_of(tokens: Tensor) -> Tensor:
    """An upstream gradient that is different at every token."""
    return torch.linspace(-1, 2, tokens.numel()).view(tokens.shape)


def shared_pass(
    model: LanguageModel,
    batch: tuple[Tensor, Tensor, Tensor],
    temperature: float,
    parts: Sequence[slice] = (slice(None),),
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    tokens, mask, lengths = batch
    model.network.zero_grad()
    scorer = TokenScorer(model, common_prefix(tokens, mask, lengths), Distribution(temperature))
    weights, logprobs, entropies = weights_of(tokens), [], []
    for part in parts:
        scored = scorer.score(tokens[part], mask[part], lengths[part])
        ((scored.logprobs - 0.3 * scored.entropies) * weights[part]).sum().backward()
        logprobs.append(scored.logprobs.detach())
        entropies.append(scored.entropies.detach())
    scorer.backward_prefix()
    return torch.cat(logprobs), torch.cat(entropies), gradients(model.network)


def plain_pass(network: Any, batch: tuple[Tensor, Tensor, Tensor], temperature: float):
    tokens, mask, _ = batch
    logprobs, entropies = plain_scores(network, tokens, mask, temperature)
    ((logprobs - 0.3 * entropies) * weights_of(tokens)).sum().backward()
    return logprobs.detach(), entropies.detach(), gradients(network)


def check_same_gradients(mine: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float = 1e-3) -> None:
    largest = max(gradient.norm() for gradient in exact.values())
    for name, gradient in exact.items():
        # A gradient that is only rounding (a key bias does not change the softmax) is compared with the largest.
        scale = max(gradient.norm(), 1e-3 * largest)
        found = mine.get(name, torch.zeros_like(gradient))
        assert (found - gradient).norm() <= tolerance * scale, name


def check_same(model: LanguageModel, batch: tuple[Tensor, Tensor, Tensor], temperature: float = 1.0) -> None:
    logprobs, entropies, mine = shared_pass(model, batch, temperature)
    exact_logprobs, exact_entropies, exact = plain_pass(plain_network(model), batch, temperature)
    assert logprobs[batch[1]].abs().sum() > 0
    assert (logprobs - exact_logprobs).abs().max() < 1e-4
    assert (entropies - exact_entropies).abs().max() < 1e-4
    assert exact
    check_same_gradients(mine, exact)


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
@pytest.mark.parametrize("name", BATCHES)
def test_logprobs_entropies_and_gradients_are_those_of_transformers(architecture, name):
    check_same(tiny_model(architecture), BATCHES[name]())


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
def test_recomputed_activations_give_the_same_gradient(architecture):
    model = tiny_model(architecture)
    layers = [module for module in model.network.modules() if isinstance(module, GradientCheckpointingLayer)]
    calls: list[int] = []
    layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    check_same(model, grouped(prefix=9))
    once = len(calls)
    model.recompute_activations()
    check_same(model, grouped(prefix=9))
    assert len(calls) - once > once, "each layer ran again for the gradient"
    assert not any(module.training for module in model.network.modules() if module not in layers)


def test_products_by_onednn_give_the_same_gradient():
    model, batch = tiny_model(), grouped(prefix=9)
    exact = shared_pass(model, batch, 1.0)
    with low_memory_layers(model):
        found = shared_pass(model, batch, 1.0)
    assert (found[0] - exact[0]).abs().max() < 1e-4
    check_same_gradients(found[2], exact[2], tolerance=1e-4)
    model.recompute_activations()
    with low_memory_layers(model):
        found = shared_pass(model, batch, 1.0)
    check_same_gradients(found[2], exact[2], tolerance=1e-4)


DROPOUT = {
    "opt": {"dropout": 0.5, "attention_dropout": 0.5, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "llama": {"attention_dropout": 0.5},
    "phi3": {"resid_pdrop": 0.5, "attention_dropout": 0.5},
    "gpt_neox": {"hidden_dropout": 0.5, "attention_dropout": 0.5},
}


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("model_type", DROPOUT)
def test_dropout_stays_off_when_activations_are_recomputed(model_type, lora):
    network = tiny_of_type(model_type, **DROPOUT[model_type]).network
    if lora:
        network = add_lora(network, LoraSettings(rank=4, alpha=8))
        shake_adapter(network)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, model_type, lora)
    batch = grouped(prefix=9)
    logprobs, _, kept = shared_pass(model, batch, 1.0)
    model.recompute_activations()
    for recomputing in (model, model.trainable_copy()):
        again, _, recomputed = shared_pass(recomputing, batch, 1.0)
        assert (again - logprobs).abs().max() < 1e-5
        check_same_gradients(recomputed, kept, tolerance=1e-4)


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_temperature_is_part_of_the_distribution(architecture, temperature):
    check_same(tiny_model(architecture), grouped(prefix=9), temperature)


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
def test_a_lora_adapter_gets_the_same_gradient(architecture):
    network = add_lora(tiny_network(architecture), LoraSettings(rank=4, alpha=8))
    shake_adapter(network)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)
    check_same(model, grouped(prefix=9))
    trained = gradients(model.network)
    assert all("lora_" in name for name in trained)
    assert all(gradient.norm() > 0 for gradient in trained.values())


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
@pytest.mark.parametrize(
    "parts",
    [[slice(0, 1), slice(1, 3), slice(3, 5)], [slice(0, 4), slice(4, 5)], [slice(i, i + 1) for i in range(5)]],
)
def test_micro_batches_add_up_to_the_same_gradient(architecture, parts):
    model = tiny_model(architecture)
    batch = with_an_empty_mask()  # the fifth row alone is a micro-batch without action tokens
    one_pass = shared_pass(model, batch, 1.0)
    micro_batches = shared_pass(model, batch, 1.0, parts)
    torch.testing.assert_close(micro_batches[0], one_pass[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(micro_batches[1], one_pass[1], atol=1e-5, rtol=0)
    check_same_gradients(micro_batches[2], one_pass[2], 1e-5)


def test_without_backward_prefix_the_gradient_is_incomplete():
    """The comparison with Transformers detects a missing gradient through the shared prefix."""
    model, batch = tiny_model(), grouped(prefix=9)
    exact = plain_pass(plain_network(model), batch, 1.0)[2]
    scorer = TokenScorer(model, common_prefix(*batch), FULL_SOFTMAX)
    model.network.zero_grad()
    scored = scorer.score(*batch)
    ((scored.logprobs - 0.3 * scored.entropies) * weights_of(batch[0])).sum().backward()
    with pytest.raises(AssertionError):
        check_same_gradients(gradients(model.network), exact, 1e-2)


def test_scores_are_zero_where_the_mask_is_zero():
    tokens, mask, lengths = grouped(prefix=9)
    scorer = TokenScorer(tiny_model(), common_prefix(tokens, mask, lengths), FULL_SOFTMAX)
    scores = scorer.score(tokens, mask, lengths)
    assert (scores.values == 0).all()
    assert (scores.last_values == 0).all()
    assert scores.last_values.shape == lengths.shape
    assert (scores.logprobs[~mask] == 0).all()
    assert (scores.entropies[~mask] == 0).all()
    assert (scores.logprobs[mask] < 0).all()
    assert (scores.entropies[mask] > 0).all()


def test_shared_tokens_are_computed_once(monkeypatch):
    model = tiny_model()
    computed, real = [], model.hidden_states
    monkeypatch.setattr(
        model, "hidden_states", lambda tokens, *others: computed.append(tokens.numel()) or real(tokens, *others)
    )
    prefix, prompt = ids(30, seed=1), ids(10, seed=2)
    rows = [(prefix + prompt + ids(5, seed=seed), [0] * 41 + [1] * 4) for seed in range(3, 7)]
    rows.append((prefix + ids(31, seed=8), [0] * 60 + [1]))
    batch = ragged_rows(rows)
    TokenScorer(model, common_prefix(*batch), FULL_SOFTMAX).score(*batch)
    # The shared prefix; then one tree: the prompt, 4 × 5 tokens, and the 31 of the last row.
    assert computed == [30, 10 + 4 * 5 + 31]


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
def test_values_and_their_gradients_are_those_of_a_value_head_on_transformers_hidden_states(architecture):
    model, (tokens, mask, lengths) = tiny_model(architecture), grouped(prefix=9)
    head = torch.nn.Linear(64, 1)
    plain = plain_network(model)
    states = plain(input_ids=tokens, output_hidden_states=True).hidden_states[-1]
    exact = torch.cat([torch.zeros(len(tokens), 1), head(states[:, :-1])[..., 0]], dim=1) * mask
    (exact * weights_of(tokens)).sum().backward()
    assert head.weight.grad is not None
    exact_head = head.weight.grad.clone()
    head.zero_grad()
    model.network.zero_grad()
    for computes_logprobs in (True, False):
        scorer = TokenScorer(model, common_prefix(tokens, mask, lengths), FULL_SOFTMAX, head, computes_logprobs)
        scores = scorer.score(tokens, mask, lengths)
        assert bool(scores.logprobs.any()) == computes_logprobs
        assert (scores.values - exact).abs().max() < 1e-4
    (scores.values * weights_of(tokens)).sum().backward()
    scorer.backward_prefix()
    assert torch.allclose(head.weight.grad, exact_head, rtol=1e-3, atol=1e-4)
    check_same_gradients(gradients(model.network), gradients(plain))


@pytest.mark.parametrize("architecture", [*PREFIX_SHARING, "gpt2"])
@pytest.mark.parametrize(
    "distribution",
    [Distribution(0.8), Distribution(top_k=7), Distribution(top_p=0.6), Distribution(1.4, top_k=30, top_p=0.8)],
)
def test_sampler_and_learner_agree_on_the_logprobs_of_sampled_tokens(architecture, distribution):
    check_sampler_and_learner(tiny_model(architecture), distribution)


def check_sampler_and_learner(model: LanguageModel, distribution: Distribution) -> None:
    engine = TorchEngine(model) if model.shares_prefixes else PlainEngine(model)
    prefix = tuple(ids(30, seed=1))
    requests = [Request(prefix + tuple(ids(4 + seed % 3, seed=seed)), 12, distribution, seed) for seed in range(8)]
    completions = engine.generate(requests)
    tokens, mask, lengths = ragged_rows(
        [
            (request.prompt + tuple(written.token_ids), [0] * len(request.prompt) + [1] * len(written.token_ids))
            for request, written in zip(requests, completions, strict=True)
        ]
    )
    with torch.no_grad():
        shared = common_prefix(tokens, mask, lengths)
        scores = TokenScorer(model, shared, distribution).score(tokens, mask, lengths)
        full_softmax = TokenScorer(model, shared, FULL_SOFTMAX).score(tokens, mask, lengths).logprobs
    sampled = torch.tensor([logprob for written in completions for logprob in written.logprobs])
    assert (scores.logprobs[mask] - sampled).abs().max() < 1e-4
    assert (scores.logprobs[mask] - full_softmax[mask]).abs().max() > 0.1
    assert scores.entropies.isfinite().all()


def tiny_of_type(model_type: str, **special: Any) -> LanguageModel:
    config = AutoConfig.for_model(
        model_type,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        vocab_size=104,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
        **special,
    )
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    return wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, model_type)


@pytest.mark.parametrize("model_type", [*sorted(PREFIX_SHARING_MODEL_TYPES), "granite", "phi3"])
def test_other_architectures_are_scored_exactly_too(model_type):
    special: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "granite": {"embedding_multiplier": 2.0}}
    model = tiny_of_type(model_type, **special.get(model_type, {}))
    assert model.shares_prefixes == (model_type in PREFIX_SHARING_MODEL_TYPES)
    check_same(model, grouped(prefix=9))


TRANSFORMS = {
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "gemma2": {"final_logit_softcapping": 3.0, "head_dim": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {"final_logit_softcapping": 3.0, "head_dim": 16, "query_pre_attn_scalar": 16},
    "falcon_h1": {
        "lm_head_multiplier": 0.3,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("model_type", TRANSFORMS)
def test_scaled_and_capped_logits_have_the_value_and_gradient_of_transformers(model_type, temperature):
    model = tiny_of_type(model_type, **TRANSFORMS[model_type])
    assert model.logit_transform != IDENTITY
    batch = grouped(prefix=9)
    check_same(model, batch, temperature)
    exact = shared_pass(model, batch, temperature)[0]
    model.logit_transform = IDENTITY
    assert (exact - shared_pass(model, batch, temperature)[0]).abs().max() > 0.1, "the test can tell the difference"


@pytest.mark.parametrize("model_type", TRANSFORMS)
def test_sampler_and_learner_agree_on_scaled_and_capped_logits(model_type):
    check_sampler_and_learner(tiny_of_type(model_type, **TRANSFORMS[model_type]), Distribution(0.8, top_k=30))


def test_an_adapter_on_the_output_layer_is_refused_in_one_sentence():
    network = add_lora(tiny_network(), LoraSettings(rank=4, alpha=8, target_modules="q_proj,lm_head"))
    with pytest.raises(UserError, match="output layer"):
        wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny", has_lora=True)


def test_a_sliding_window_takes_the_plain_path():
    model = tiny_of_type("mistral", sliding_window=4)
    assert not model.shares_prefixes
    check_same(model, grouped(prefix=9))
