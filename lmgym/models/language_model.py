"""A language model with its tokenizer: weights in float32, computed in the type that is fast here."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from lmgym.console import quiet_transformers
from lmgym.errors import UserError
from lmgym.models.attention import IMPLEMENTATION, PLAIN_IMPLEMENTATION, Reader, TrunkRecorder, unstretched_lengths
from lmgym.models.logit_transform import IDENTITY, LogitTransform
from lmgym.models.lora import is_adapter, restore_adapter


@dataclass
class LanguageModel:
    """The network that learns and the tokenizer it was trained with."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    name: str
    version: int = 0
    """Counts optimiser steps, so that an engine knows when its copy of the weights is stale."""
    has_lora: bool = False
    can_share: bool = False
    """Whether rows that begin alike are computed once; else every row is computed whole."""
    logit_transform: LogitTransform = IDENTITY
    """What follows the last matrix product."""

    def share_prefixes(self, on: bool) -> None:
        """Gives the network the attention that shares prefixes, or Transformers' own."""
        base_network(self.network).set_attn_implementation(IMPLEMENTATION if on else PLAIN_IMPLEMENTATION)
        self.can_share = on

    @property
    def dtype_name(self) -> str:
        """The type that is computed in, as `--dtype` has it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def head(self) -> nn.Module:
        """The linear map from hidden states to the logits as they are before `logit_transform`."""
        return base_network(self.network).get_output_embeddings()

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., vocabulary] of hidden states [..., size], for acting: they have no gradient."""
        with torch.no_grad(), self.autocast():
            return self.logit_transform.apply(self.head(hidden))

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a turn: the tokenizer's and the generation config's end tokens."""
        configured = getattr(self.network.generation_config, "eos_token_id", None)
        ids = {self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
        return frozenset(identifier for identifier in ids if identifier is not None)

    @property
    def context_length(self) -> int:
        """The longest conversation, in tokens, that the model was made for and that one set of frequencies rotates."""
        config = self.network.config.get_text_config()
        lengths = [getattr(config, "max_position_embeddings", None), *unstretched_lengths(config)]
        return min((length for length in lengths if length and length > 0), default=1 << 30)

    @property
    def vocabulary_size(self) -> int:
        """How many ids have a logit; often more than the tokenizer has tokens."""
        return int(self.head.get_parameter("weight").shape[0])

    @property
    def hidden_size(self) -> int:
        """How wide the states before the output layer are."""
        return int(self.head.get_parameter("weight").shape[1])

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that learn, by name."""
        return {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}

    def hidden_states(self, tokens: Tensor, positions: Tensor, reader: Reader) -> Tensor:
        """The last layer's states [rows, tokens, size] on the sharing path."""
        decoder = base_network(self.network).get_decoder()
        with self.autocast():
            return decoder(input_ids=tokens, position_ids=positions, use_cache=False, reader=reader).last_hidden_state

    def plain_hidden_states(self, tokens: Tensor) -> Tensor:
        """The last layer's states of whole, right-padded rows, with nothing shared, for every architecture."""
        if self.can_share:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            return self.hidden_states(tokens, positions, TrunkRecorder())
        with self.autocast():
            return base_network(self.network).get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Computes in `dtype` while the weights stay float32."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def recompute_activations(self) -> None:
        """From now on keeps only what enters each layer, and computes the rest again for the gradient: less memory."""
        network = base_network(self.network)
        layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not network.supports_gradient_checkpointing or not layers:
            raise UserError(f"{self.name} cannot recompute its activations; leave --recompute_activations out.")
        network.gradient_checkpointing_enable()
        for layer in layers:
            # Transformers recomputes layers in training mode alone, which is asked before the layer's own pass begins.
            layer.training = True
            layer.register_forward_pre_hook(_leave_training_mode)
            layer.register_forward_hook(_enter_training_mode, always_call=True)

    def compute_copy(self) -> LanguageModel:
        """A second network whose matrices are stored in `dtype`: what an engine decodes with."""
        network = copy.deepcopy(self.network).requires_grad_(False)
        head = base_network(network).get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.to(self.dtype)
        twin = copy.copy(self)
        twin.network = network
        return twin

    def refresh(self, source: LanguageModel) -> None:
        """Takes over the weights of another model of the same shape, converting as it copies."""
        with torch.no_grad():
            fresh = dict(source.network.named_parameters(remove_duplicate=False))
            for name, weight in self.network.named_parameters(remove_duplicate=False):
                weight.copy_(fresh[name])
        self.version = source.version

    def has_shape_of(self, other: LanguageModel) -> bool:
        """Whether the weights of one could be copied into the other."""

        def shapes(model: LanguageModel) -> dict[str, torch.Size]:
            return {name: weight.shape for name, weight in model.network.named_parameters()}

        return shapes(self) == shapes(other)

    def frozen_copy(self) -> LanguageModel:
        """A copy that does not learn, to serve as a reference."""
        twin = copy.copy(self)
        twin.network = copy.deepcopy(self.network).requires_grad_(False)
        return twin

    def trainable_copy(self) -> LanguageModel:
        """A copy that learns on its own."""
        twin = copy.copy(self)
        twin.network = copy.deepcopy(self.network)
        return twin

    def save(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder, or a PEFT adapter, with the tokenizer."""
        with quiet_transformers():
            if self.has_lora:  # the reference's adapter, where there is one, is not part of the result
                self.network.save_pretrained(folder, selected_adapters=["default"])
            else:
                self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Takes over the weights that `save` wrote, of the whole model or of the adapter that learns."""
        if is_adapter(folder) != self.has_lora:
            saved, here = ("a whole model", "an adapter")[:: 1 if self.has_lora else -1]
            raise UserError(f"{folder} holds {saved}, but {self.name} is {here} here: load it as it was when saved.")
        with quiet_transformers(), loading_errors(str(folder)):
            if self.has_lora:
                restore_adapter(self.network, folder)
                return
            source = copy.copy(self)
            source.network = load_network(folder)
        if not self.has_shape_of(source):
            raise UserError(f"{folder} has weights of other shapes than {self.name}: load the model it was saved from.")
        self.refresh(source)


def load_network(folder: Path) -> PreTrainedModel:
    """Weights in float32, from safetensors alone: a pickle may run anything."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)


def base_network(network: Any) -> PreTrainedModel:
    """The Transformers model itself, out of its PEFT wrapper where it has one; LoRA layers live inside it."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network


def _leave_training_mode(layer: nn.Module, _: Any) -> None:
    """Before a layer's pass: some read their own mode, and would drop out."""
    layer.training = False


def _enter_training_mode(layer: nn.Module, _: Any, __: Any) -> None:
    """After a layer's pass."""
    layer.training = True


@contextlib.contextmanager
def loading_errors(name: str) -> Iterator[None]:
    """One sentence for whatever a broken or foreign model folder makes Transformers raise."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} cannot be loaded as a causal language model: {reason}") from error
