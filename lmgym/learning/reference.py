"""The reference policy of a KL penalty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor

from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner
from lmgym.models.language_model import LanguageModel
from lmgym.models.lora import REFERENCE


class Reference(Protocol):
    """A frozen policy that can be updated from the trained policy."""

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Its log-probabilities [episodes, length] of the action tokens."""
        ...

    def refresh(self) -> None:
        """Copies the current weights of the trained policy."""
        ...

    def acting_model(self) -> LanguageModel:
        """A frozen model that samples from the reference policy."""
        ...

    def save(self, path: Path) -> None:
        """Writes its weights, unless they are those of the initial model."""
        ...

    def load(self, path: Path) -> None:
        """Loads them, if `save` wrote any."""
        ...


def make_reference(model: LanguageModel, other: LanguageModel | None, is_updated: bool = False) -> Reference:
    """The other model if there is one, else the current policy: a frozen copy, or under LoRA the base model."""
    if other is None:
        return AdapterReference(model) if model.has_lora else ModelReference(model, model.frozen_copy())
    check_tokenizer(other, model)
    if is_updated and model.has_lora:
        raise UserError(
            "a separate reference model cannot be updated from a LoRA policy: omit the reference (under LoRA the "
            "base model is the reference), or set --update_reference_every 0."
        )
    if is_updated and not other.has_shape_of(model):
        raise UserError(
            f"{other.name} has weights of other shapes than {model.name}, so it cannot be updated from it: "
            "omit --update_reference_every."
        )
    return ModelReference(model, other)


def check_tokenizer(given: LanguageModel, model: LanguageModel) -> None:
    """Raises a UserError if the model's vocabulary is not the policy's."""
    if given.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise UserError(
            f"{given.name} has another tokenizer than {model.name} ({len(given.tokenizer)} and {len(model.tokenizer)} "
            "tokens): a reference or a teacher must share the policy's tokenizer."
        )


class ModelReference:
    """A second, frozen model."""

    def __init__(self, model: LanguageModel, frozen: LanguageModel) -> None:
        self.model = model
        self.frozen = frozen
        self.frozen.network.requires_grad_(False)
        self.is_updated = False

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Scores the batch with the frozen model."""
        return learner.logprobs(self.frozen, batch)

    def acting_model(self) -> LanguageModel:
        """The frozen model itself."""
        return self.frozen

    def refresh(self) -> None:
        """Copies the policy's weights into the frozen model."""
        self.frozen.refresh(self.model)
        self.is_updated = True

    def save(self, path: Path) -> None:
        """Writes only a reference that was updated: the initial one is named in the run's config."""
        if self.is_updated:
            weights = {name: weight.contiguous() for name, weight in self.frozen.network.named_parameters()}
            save_file(weights, path)

    def load(self, path: Path) -> None:
        """Loads the weights of a reference that was updated."""
        if path.exists():
            self.frozen.network.load_state_dict(load_file(path), strict=False)
            self.is_updated = True


class AdapterReference:
    """The base model with the adapter disabled; once updated, a second, frozen adapter on the same base."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.is_updated = False

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Scores the batch with the base weights of the policy, or with the frozen adapter."""
        with self._switched():
            return learner.logprobs(self.model, batch)

    def acting_model(self) -> LanguageModel:
        """A frozen copy with its adapter disabled."""
        frozen = self.model.frozen_copy()
        network: Any = frozen.network
        network.base_model.disable_adapter_layers()
        return frozen

    def refresh(self) -> None:
        """Copies the trained adapter into the frozen one, which takes megabytes instead of a second model."""
        network: Any = self.model.network
        if REFERENCE not in network.peft_config:
            network.add_adapter(REFERENCE, network.peft_config["default"])
            self._after_switch()
        weights = dict(network.named_parameters())
        for name, weight in weights.items():
            if f".{REFERENCE}." in name:
                weight.data.copy_(weights[name.replace(f".{REFERENCE}.", ".default.")].data)
        self.is_updated = True

    def save(self, path: Path) -> None:
        """Writes the frozen adapter if there is one."""
        if self.is_updated:
            parameters = self.model.network.named_parameters()
            save_file({name: weight.contiguous() for name, weight in parameters if f".{REFERENCE}." in name}, path)

    def load(self, path: Path) -> None:
        """Loads the frozen adapter, if there is one."""
        if path.exists():
            self.refresh()
            self.model.network.load_state_dict(load_file(path), strict=False)

    @contextlib.contextmanager
    def _switched(self) -> Iterator[None]:
        network: Any = self.model.network
        if not self.is_updated:
            with network.disable_adapter():
                yield
            return
        network.set_adapter(REFERENCE)
        try:
            yield
        finally:
            self._after_switch()

    def _after_switch(self) -> None:
        """Activates the trained adapter and freezes the reference, which PEFT made trainable when it was active."""
        network: Any = self.model.network
        network.set_adapter("default")
        for name, weight in network.named_parameters():
            if f".{REFERENCE}." in name:
                weight.requires_grad_(False)
