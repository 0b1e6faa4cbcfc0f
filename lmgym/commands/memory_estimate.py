"""The peak memory of a run, estimated from a model's config before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from lmgym.assets.catalogue import model_config_folder
from lmgym.console import quiet_transformers
from lmgym.engines.memory import known_free_bytes
from lmgym.engines.torch.engine import MEMORY_SHARE
from lmgym.engines.torch.kv_cache import rounded_capacity
from lmgym.errors import UserError
from lmgym.models.attention import supports_prefix_sharing
from lmgym.models.language_model import LLAMA_LIKE
from lmgym.models.lora import adapter_rank, find_base, is_adapter
from lmgym.models.vocabulary_head import CHUNK as VOCABULARY_CHUNK

FLOAT32 = 4
GIGABYTE = 1e9

CERTAIN_SHARE = 0.5
"""The share of the activations that is certainly needed: they are estimated, everything else is exact."""

HEAP_SHARE = 1.5
"""The heap while learning, relative to the activations: it also has temporary tensors, and gaps between all of them."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a network that determine its memory."""

    parameters: int
    embedding_parameters: int
    """Of one matrix [vocabulary, hidden size]."""
    adapter_parameters_per_rank: int
    """Parameters of a LoRA adapter of rank 1 on all linear layers."""
    layers: int
    hidden_size: int
    intermediate_size: int
    """Summed over the experts that a token is routed to."""
    key_size: int
    """Of one layer's keys of one token: heads × head size; the hidden size where there is no KV cache."""
    vocabulary: int
    shares: bool
    """Whether the engine has a KV cache, and decodes with a copy of the weights."""
    has_low_memory_layers: bool = False
    """Whether the learner has layers for it, on a CPU, that keep less for the backward pass (low_memory_layers.py)."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> ModelShape:
        """Builds the network on the meta device, where weights have a shape and no memory."""
        with quiet_transformers(), torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        head = network.get_output_embeddings()
        adapted = [each for each in network.modules() if isinstance(each, nn.Linear | Conv1D) and each is not head]
        vocabulary = int(network.get_input_embeddings().get_parameter("weight").shape[0])
        return cls(
            parameters=sum(weight.numel() for weight in network.parameters()),
            embedding_parameters=vocabulary * text.hidden_size,
            adapter_parameters_per_rank=sum(sum(each.weight.shape) for each in adapted),
            layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=_intermediate_size(text),
            key_size=_key_size(text) if supports_prefix_sharing(config) else text.hidden_size,
            vocabulary=vocabulary,
            shares=supports_prefix_sharing(config),
            has_low_memory_layers=config.model_type in LLAMA_LIKE,
        )


@dataclass(frozen=True)
class Workload:
    """The settings of a run that determine its memory."""

    dtype: torch.dtype
    """Compute type."""
    micro_batch_tokens: int
    recompute_activations: bool = False
    on_cpu: bool = True
    lora_rank: int = 0
    """0 trains all weights."""
    reference_parameters: int = 0
    """Of a second network that is loaded or copied for the KL penalty; 0 if the LoRA base model is the reference."""
    critic: bool = False
    """Whether the critic is a separate trained network."""
    rows: int = 64
    """Maximum sequences per decoding batch."""
    shared_tokens: int = 0
    """Tokens of the prefix that all prompts share, such as worked examples."""
    row_tokens: int = 512
    """Tokens of a whole episode after the shared prefix."""
    shards: int = 1
    """Processes among which weights, gradients and moments are divided."""
    on_servers: bool = False
    """Whether others sample."""
    rounds_to_int8: bool = False
    """Whether the engine's weights have 8 bits; adapters are merged into them, and the KV cache is float32."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose."""

    weights: int
    gradients: int
    moments: int
    reference: int
    critic: int
    engine: int
    kv_cache: int
    activations: int

    @property
    def permanent(self) -> int:
        """Bytes allocated during the whole run; they are exact, not estimated."""
        return self.weights + self.gradients + self.moments + self.reference + self.critic

    @property
    def total(self) -> int:
        """The peak: the engine's weights and KV cache are freed before the learner's activations are allocated."""
        return self.permanent + max(self.engine + self.kv_cache, int(HEAP_SHARE * self.activations))

    @property
    def certain(self) -> int:
        """The least that is needed if the activations are overestimated; the KV cache adapts to free memory."""
        return self.permanent + max(self.engine, int(CERTAIN_SHARE * self.activations))

    def __str__(self) -> str:
        parts = {name.replace("kv_", "KV "): size for name, size in vars(self).items() if size}
        listed = ", ".join(f"{name} {size / GIGABYTE:.1f}" for name, size in parts.items())
        return f"about {self.total / GIGABYTE:.1f} GB at the peak ({listed})"


def estimate_memory(shape: ModelShape, work: Workload, free: int | None = None) -> MemoryEstimate:
    """The memory of this workload on a model of this shape; the KV cache takes at most a share of `free`."""
    adapter = work.lora_rank * shape.adapter_parameters_per_rank
    learning = adapter or shape.parameters
    computed = work.dtype.itemsize
    held = work.rows * rounded_capacity(work.row_tokens) + work.shared_tokens
    of_cache = FLOAT32 if work.rounds_to_int8 else computed
    cached = 2 * shape.layers * shape.key_size * of_cache * held if shape.shares else 0
    engine = computed * (shape.parameters + adapter) if shape.shares else 0
    if work.rounds_to_int8:  # the largest matrix is copied in float32 before it is rounded
        engine = shape.parameters + FLOAT32 * shape.embedding_parameters
    if work.shards > 1:  # the engine reads a whole copy of the weights
        engine += FLOAT32 * shape.parameters
    if work.on_servers:
        engine = cached = 0
    return MemoryEstimate(
        weights=FLOAT32 * (shape.parameters + adapter) // work.shards,
        gradients=FLOAT32 * learning // work.shards,
        moments=2 * FLOAT32 * learning // work.shards,
        reference=FLOAT32 * work.reference_parameters // work.shards,
        critic=FLOAT32 * (shape.parameters + adapter + 3 * learning) if work.critic else 0,
        engine=engine,
        kv_cache=cached if free is None else min(cached, int(MEMORY_SHARE * free)),
        activations=_activations(shape, work),
    )


def _activations(shape: ModelShape, work: Workload) -> int:
    """The activations that a forward pass saves for the gradient, fitted to what autograd saves for a Llama."""
    computed, keeps_less = work.dtype.itemsize, shape.has_low_memory_layers and work.on_cpu
    batch = max(work.micro_batch_tokens, work.row_tokens)
    # Norms are computed in float32; projections, rotary embeddings and the gated MLP in `dtype`.
    norms = 2 if keeps_less else 4
    products = 2 if keeps_less and not work.lora_rank else 4
    layer = norms * FLOAT32 * shape.hidden_size
    layer += computed * (4 * shape.hidden_size + products * shape.intermediate_size + 2 * shape.key_size)
    states = FLOAT32 * shape.hidden_size
    tokens = batch + work.shared_tokens
    kept = tokens * (shape.layers * states + layer if work.recompute_activations else shape.layers * layer)
    is_cast = work.dtype != torch.float32 and not keeps_less
    cast = computed * (shape.parameters - shape.embedding_parameters) if is_cast else 0
    logits = 3 * FLOAT32 * min(batch, VOCABULARY_CHUNK) * shape.vocabulary
    if work.dtype != torch.float32:  # the output layer is converted once per pass
        logits += computed * shape.vocabulary * shape.hidden_size
    head = FLOAT32 * shape.embedding_parameters if not (work.lora_rank or keeps_less) else 0
    return kept + 4 * tokens * states + cast + logits + head


def require_memory(name: str, estimate: MemoryEstimate, free: int, work: Workload) -> None:
    """Raises a UserError with what to change if a run cannot fit into free memory."""
    if estimate.certain <= free:
        return
    ways = ["a smaller --model"]
    if not work.lora_rank:
        ways.append("--lora_rank 16")
    if work.reference_parameters:
        ways.append("--kl_coeff 0")
    if not work.recompute_activations:
        ways.append("--recompute_activations")
    ways.append(f"--micro_batch_tokens below {work.micro_batch_tokens}")
    raise UserError(
        f"{name} does not fit into memory: it needs {estimate}, and {free / GIGABYTE:.1f} GB are free; "
        f"try {', '.join(ways[:-1])} or {ways[-1]}."
    )


def read_shape(name: str) -> ModelShape:
    """The shape of the model that `--model` names, from its config alone; for an adapter, that of its base."""
    folder = model_config_folder(name)
    base = find_base(folder) if is_adapter(folder) else folder
    try:
        return ModelShape.of(AutoConfig.from_pretrained(base))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} cannot be loaded as a causal language model: {reason}") from error


def memory_report(name: str, device: torch.device, work: Workload, reference: str = "") -> MemoryEstimate:
    """The estimate for a run with the model of that name, before its weights are loaded; an error if it cannot fit.

    `reference` names the model of the KL penalty, if there is one; under LoRA the policy's own base needs no copy.
    """
    free = known_free_bytes(device)
    folder = model_config_folder(name)
    if is_adapter(folder):
        work = replace(work, lora_rank=adapter_rank(folder))
    if reference and not (work.lora_rank and reference == name):
        work = replace(work, reference_parameters=read_shape(reference).parameters)
    estimate = estimate_memory(read_shape(name), work, free)
    if free is not None:
        require_memory(name, estimate, free, work)
    return estimate


def _key_size(text: PretrainedConfig) -> int:
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(size * text.num_key_value_heads)


def _intermediate_size(text: PretrainedConfig) -> int:
    experts = getattr(text, "num_experts_per_tok", None)
    if experts:
        return experts * int(getattr(text, "moe_intermediate_size", None) or text.intermediate_size)
    size = getattr(text, "intermediate_size", None) or getattr(text, "ffn_dim", None) or 4 * text.hidden_size
    return int(size if isinstance(size, int) else max(size))
