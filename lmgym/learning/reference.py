"""The reference that a KL penalty holds the policy to."""

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
    """A policy that stays behind until it is refreshed."""

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Its log-probabilities [episodes, length] of the chosen tokens."""
        ...

    def refresh(self) -> None:
        """Catches up with the policy that learns."""
        ...

    def acting_model(self) -> LanguageModel:
        """A frozen model that acts as the reference would."""
        ...

    def save(self, path: Path) -> None:
        """Writes its weights, where they cannot be had from elsewhere."""
        ...

    def load(self, path: Path) -> None:
        """Reads them back."""
        ...


def make_reference(model: LanguageModel, given: LanguageModel | None) -> Reference:
    """The model that was given, else the policy as it is now: a frozen copy, or under LoRA the base model itself."""
    if given is None and model.has_lora:
        return AdapterReference(model)
    if given is not None:
        check_tokenizer(given, model)
    return ModelReference(model, given or model.frozen_copy())


def check_tokenizer(given: LanguageModel, model: LanguageModel) -> None:
    """Refuses a model that reads other tokens than the policy."""
    if given.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise UserError(
            f"{given.name} has another tokenizer than {model.name} ({len(given.tokenizer)} and {len(model.tokenizer)} "
            "tokens): a reference or a teacher must read the same tokens as the policy."
        )


class ModelReference:
    """A second, frozen model."""

    def __init__(self, model: LanguageModel, frozen: LanguageModel) -> None:
        self.model = model
        self.frozen = frozen
        self.frozen.network.requires_grad_(False)
        self.moved = False

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Scores with the frozen model."""
        return learner.logprobs(self.frozen, batch)

    def acting_model(self) -> LanguageModel:
        """The frozen model itself."""
        return self.frozen

    def refresh(self) -> None:
        """Copies the weights over."""
        self.frozen.refresh(self.model)
        self.moved = True

    def save(self, path: Path) -> None:
        """Only a reference that has moved is written: the first one is named in the run's config."""
        if self.moved:
            weights = {name: weight.contiguous() for name, weight in self.frozen.network.named_parameters()}
            save_file(weights, path)

    def load(self, path: Path) -> None:
        """Reads the weights of a reference that had moved."""
        if path.exists():
            self.frozen.network.load_state_dict(load_file(path), strict=False)
            self.moved = True


class AdapterReference:
    """The base model with the adapter off; once refreshed, a second, frozen adapter on the same base."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.moved = False

    def logprobs(self, learner: Learner, batch: Batch) -> Tensor:
        """Scores with the learner's own base weights."""
        with self._switched():
            return learner.logprobs(self.model, batch)

    def acting_model(self) -> LanguageModel:
        """A copy whose adapter is off for good."""
        twin = self.model.frozen_copy()
        network: Any = twin.network
        network.base_model.disable_adapter_layers()
        return twin

    def refresh(self) -> None:
        """Copies the learning adapter into the frozen one: megabytes, not another model."""
        network: Any = self.model.network
        if REFERENCE not in network.peft_config:
            network.add_adapter(REFERENCE, network.peft_config["default"])
            self._after_switch()
        weights = dict(network.named_parameters())
        for name, weight in weights.items():
            if f".{REFERENCE}." in name:
                weight.data.copy_(weights[name.replace(f".{REFERENCE}.", ".default.")].data)
        self.moved = True

    def save(self, path: Path) -> None:
        """Writes the frozen adapter if there is one."""
        if self.moved:
            parameters = self.model.network.named_parameters()
            save_file({name: weight.contiguous() for name, weight in parameters if f".{REFERENCE}." in name}, path)

    def load(self, path: Path) -> None:
        """Reads the frozen adapter back."""
        if path.exists():
            self.refresh()
            self.model.network.load_state_dict(load_file(path), strict=False)

    @contextlib.contextmanager
    def _switched(self) -> Iterator[None]:
        network: Any = self.model.network
        if not self.moved:
            with network.disable_adapter():
                yield
            return
        network.set_adapter(REFERENCE)
        try:
            yield
        finally:
            self._after_switch()

    def _after_switch(self) -> None:
        """Back to the learning adapter; PEFT marks whatever is active as trainable."""
        network: Any = self.model.network
        network.set_adapter("default")
        for name, weight in network.named_parameters():
            if f".{REFERENCE}." in name:
                weight.requires_grad_(False)
