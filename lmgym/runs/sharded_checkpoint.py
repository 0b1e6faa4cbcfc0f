"""Checkpoints of a sharded model: each process writes its part as safetensors, and any number of processes reads it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lmgym.distributed.processes import processes
from lmgym.learning.learner import Learner

FOLDER = "shards"
"""The folder of a checkpoint in which the parts are."""

WEIGHT = "weight:"
"""What the names of weights begin with; those of moments begin with the name of the moment."""


def save_shards(folder: Path, learner: Learner) -> None:
    """Writes weights and moments; every process calls it."""
    writer = checkpoint.HuggingFaceStorageWriter(str(folder / FOLDER), save_distributed=True)
    checkpoint.save(_tensors(learner), storage_writer=writer)
    if processes().is_first:
        learner.model.save_without_weights(folder / FOLDER)


def load_shards(folder: Path, learner: Learner) -> None:
    """Loads weights and moments, into a model that is sharded over any number of processes or not at all."""
    tensors = _tensors(learner)
    checkpoint.load(tensors, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder / FOLDER)))


def has_shards(folder: Path) -> bool:
    """Whether a checkpoint is of a sharded model."""
    return (folder / FOLDER).exists()


@torch.no_grad()
def _tensors(learner: Learner) -> dict[str, Tensor]:
    """The tensors themselves, which loading writes to."""
    weights = {f"{WEIGHT}{name}": weight.detach() for name, weight in learner.parameters().items()}
    return weights | learner.optimizer_tensors()


def newest_shards(run: Path) -> Path | None:
    """The newest checkpoint of a run that has no final model yet, if it is sharded."""
    if (run / "model").exists():
        return None
    numbered = [path for path in run.glob("checkpoints/*") if path.name.isdecimal()]
    newest = max(numbered, key=lambda path: int(path.name), default=None)
    return newest if newest is not None and has_shards(newest) else None


def whole_network(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The network of a sharded checkpoint in one piece, and its tokenizer."""
    config = AutoConfig.from_pretrained(folder / FOLDER)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights: dict[str, Tensor] = {f"{WEIGHT}{name}": weight.detach() for name, weight in network.named_parameters()}
    checkpoint.load(weights, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder / FOLDER)))
    with contextlib.suppress(OSError):  # most models have one: it names all end tokens
        network.generation_config = GenerationConfig.from_pretrained(folder / FOLDER)
    return network, AutoTokenizer.from_pretrained(folder / FOLDER)
