"""A language model with its tokenizer: float32 master weights, and a compute dtype chosen for the device."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from lmgym.console import quiet_transformers
from lmgym.errors import UserError
from lmgym.models.attention import (
    IMPLEMENTATION,
    PLAIN_IMPLEMENTATION,
    AttentionBackend,
    PrefixRecorder,
    constant_rope_lengths,
)
from lmgym.models.logit_transform import IDENTITY, LogitTransform
from lmgym.models.lora import is_adapter, restore_adapter

T = TypeVar("T")

LLAMA_LIKE = {"llama", "mistral", "qwen2", "qwen3"}
"""Architectures whose layers are norm, attention, norm, gated MLP; engine and learner have code of their own for it."""


@dataclass
class LanguageModel:
    """A causal language model (a Transformers network, with or without LoRA) and its tokenizer."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    """The compute dtype; master weights are float32."""
    name: str
    version: int = 0
    """Counts weight updates; written by the learner, read by engines to notice that their weights are stale."""
    has_lora: bool = False
    shares_prefixes: bool = False
    """Whether the network computes shared prefixes once (see attention.py); else every sequence is computed in full."""
    logit_transform: LogitTransform = IDENTITY
    """Scale and soft cap between the output layer and the logits."""
    uses_flex_attention: bool = False
    """Whether the learner's tree attention is one compiled kernel (flex_tree_attention.py) or blocks."""
    entry: nn.Module | None = None
    """Of a network that is sharded over processes, the module in whose forward pass all scoring runs (sharding.py)."""

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that computes with the network, which gathers the weights of a sharded one."""
        if self.entry is None:
            return function(*arguments)
        returned: T = self.entry(function, *arguments)
        return returned

    @property
    def is_sharded(self) -> bool:
        """Whether each process of the run has only a part of the weights."""
        return self.entry is not None

    def set_prefix_sharing(self, enabled: bool) -> None:
        """Switches the network between the attention that shares prefixes and that of Transformers."""
        base_network(self.network).set_attn_implementation(IMPLEMENTATION if enabled else PLAIN_IMPLEMENTATION)
        self.shares_prefixes = enabled

    @property
    def dtype_name(self) -> str:
        """The compute dtype, spelt as in `--dtype`."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def head(self) -> nn.Module:
        """The output layer: a linear map from hidden states to logits before `logit_transform`."""
        return base_network(self.network).get_output_embeddings()

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., vocabulary] of hidden states [..., hidden_size], without a gradient: for sampling."""
        with torch.no_grad(), self.autocast():
            return self.logit_transform.apply_(self.head(hidden))

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a turn: the tokenizer's and the generation config's end tokens."""
        configured = getattr(self.network.generation_config, "eos_token_id", None)
        ids = {self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
        return frozenset(identifier for identifier in ids if identifier is not None)

    @property
    def context_length(self) -> int:
        """Maximum sequence length: that of the config, and of RoPE before its frequencies change."""
        config = self.network.config.get_text_config()
        lengths = [getattr(config, "max_position_embeddings", None), *constant_rope_lengths(config)]
        return min((length for length in lengths if length and length > 0), default=1 << 30)

    @property
    def vocabulary_size(self) -> int:
        """Number of logits; often larger than the tokenizer's vocabulary."""
        return int(self.head.get_parameter("weight").shape[0])

    @property
    def hidden_size(self) -> int:
        """Size of the hidden states that the output layer takes."""
        return int(self.head.get_parameter("weight").shape[1])

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}

    def hidden_states(self, tokens: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        """Last hidden states [rows, tokens, hidden_size] of tokens [rows, tokens], with prefix sharing."""
        decoder = base_network(self.network).get_decoder()
        with self.autocast():
            return decoder(input_ids=tokens, position_ids=positions, use_cache=False, backend=backend).last_hidden_state

    def plain_hidden_states(self, tokens: Tensor) -> Tensor:
        """Last hidden states [rows, length, hidden_size] of right-padded sequences, without prefix sharing."""
        if self.shares_prefixes:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            return self.hidden_states(tokens, positions, PrefixRecorder())
        with self.autocast():
            return base_network(self.network).get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to `dtype`; the weights stay float32."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def recompute_activations(self) -> None:
        """Turns on gradient checkpointing: activations inside a layer are recomputed in the backward pass."""
        network = base_network(self.network)
        layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not network.supports_gradient_checkpointing or not layers:
            raise UserError(f"{self.name} does not support gradient checkpointing; leave --recompute_activations out.")
        network.gradient_checkpointing_enable()
        for layer in layers:
            # Transformers checkpoints a layer only if it is in training mode, which is read before its forward begins.
            # The forward itself must run in evaluation mode, or dropout would be active.
            layer.training = True
            layer.register_forward_pre_hook(_leave_training_mode)
            layer.register_forward_hook(_enter_training_mode, always_call=True)

    def inference_copy(self) -> LanguageModel:
        """A frozen copy whose linear layers are stored in `dtype`, for an engine to decode with."""
        network = copy.deepcopy(self.network).requires_grad_(False)
        head = base_network(network).get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.to(self.dtype)
        return self._with_network(network)

    def refresh(self, source: LanguageModel) -> None:
        """Copies the weights, and nothing else, of a model of the same shapes, converting dtypes."""
        with torch.no_grad():
            source_weights = dict(source.network.named_parameters(remove_duplicate=False))
            for name, weight in self.network.named_parameters(remove_duplicate=False):
                copy_tensor(source_weights[name], weight)

    def has_shape_of(self, other: LanguageModel) -> bool:
        """Whether both have the same parameters with the same shapes, so that `refresh` works."""

        def shapes(model: LanguageModel) -> dict[str, torch.Size]:
            return {name: weight.shape for name, weight in model.network.named_parameters()}

        return shapes(self) == shapes(other)

    def frozen_copy(self) -> LanguageModel:
        """A copy without trainable parameters, such as a reference model."""
        return self._with_network(copy.deepcopy(self.network).requires_grad_(False))

    def trainable_copy(self) -> LanguageModel:
        """A copy with trainable parameters of its own, such as a critic."""
        return self._with_network(copy.deepcopy(self.network))

    def _with_network(self, network: PreTrainedModel) -> LanguageModel:
        return dataclasses.replace(self, network=network)

    def save(self, folder: Path) -> None:
        """Writes a Hugging Face model folder, or a PEFT adapter folder, with the tokenizer."""
        with quiet_transformers():
            if self.has_lora:  # only the policy's adapter: the network may also hold that of a reference
                self.network.save_pretrained(folder, selected_adapters=["default"])
            else:
                self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def save_together(self, folder: Path | None) -> None:
        """Writes the folder of a sharded model: every process takes part, and the one with a folder writes."""
        weights = {}
        for name, weight in base_network(self.network).state_dict().items():
            whole = full_tensor(weight)
            if folder is not None:
                weights[name] = whole.cpu()
        if folder is not None:
            with quiet_transformers():
                self.network.save_pretrained(folder, state_dict=weights)
                self.tokenizer.save_pretrained(folder)

    def save_without_weights(self, folder: Path) -> None:
        """Writes what describes the model: its configuration and its tokenizer."""
        with quiet_transformers():
            self.network.config.save_pretrained(folder)
            if self.network.generation_config is not None:
                self.network.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Loads weights that `save` wrote: of the full model, or of the trainable adapter."""
        if is_adapter(folder) != self.has_lora:
            saved, here = ("a full model", "an adapter")[:: 1 if self.has_lora else -1]
            raise UserError(f"{folder} holds {saved}, but {self.name} is {here} here: load it as it was when saved.")
        with quiet_transformers(), loading_errors(str(folder)):
            if self.has_lora:
                restore_adapter(self.network, folder)
                return
            source = self._with_network(load_network(folder))
        if not self.has_shape_of(source):
            raise UserError(
                f"{folder} has weights of other shapes than {self.name}: load it into the model it was saved from."
            )
        self.refresh(source)


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor; every process must call it for one that is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_tensor(source: Tensor, target: Tensor) -> None:
    """Copies a tensor over another one; either may be sharded, and then every process must call it."""
    if isinstance(target, DTensor) and not isinstance(source, DTensor):
        source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    elif isinstance(source, DTensor) and not isinstance(target, DTensor):
        source = source.full_tensor()
    target.copy_(source)


def load_network(folder: Path) -> PreTrainedModel:
    """Loads a network in float32, from safetensors only: unpickling may execute code."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)


def base_network(network: Any) -> PreTrainedModel:
    """The Transformers model inside the PEFT wrapper, if there is one; it contains the LoRA layers."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network


def _leave_training_mode(layer: nn.Module, _: Any) -> None:
    """Forward pre-hook: dropout must stay off."""
    layer.training = False


def _enter_training_mode(layer: nn.Module, _: Any, __: Any) -> None:
    """Forward hook: the next call must be checkpointed too."""
    layer.training = True


@contextlib.contextmanager
def loading_errors(name: str) -> Iterator[None]:
    """Turns what Transformers raises for a broken or unsupported model folder into a one-sentence UserError."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} cannot be loaded as a causal language model: {reason}") from error
