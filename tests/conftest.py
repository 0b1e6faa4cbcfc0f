"""What the tests share: tiny real models of several architectures, with a real tokenizer and chat template."""

from __future__ import annotations

import lmgym  # isort: skip # noqa: F401 - before torch, whose threads it tells how to wait
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import wrap_network

CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, and the three words a chat needs."""
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: index for index, token in enumerate(["<|pad|>", "<|start|>", "<|stop|>", "?u", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?u"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|stop|>", pad_token="<|pad|>", unk_token="?u"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_network(architecture: str = "llama", seed: int = 0, size: int = 64, vocabulary: int = 104):
    """Two layers of random weights."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {"vocab_size": vocabulary, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
    shape: dict[str, Any] = {
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        # Wide enough that a random model has opinions and its gradients are not all alike.
        "initializer_range": 0.2,
        **common,
    }
    configs = {
        "llama": lambda: LlamaConfig(**shape),
        "qwen2": lambda: Qwen2Config(**shape),
        "qwen3": lambda: Qwen3Config(**shape, head_dim=size // 4),
        "gpt2": lambda: GPT2Config(
            n_embd=size, n_layer=2, n_head=4, n_positions=2048, initializer_range=0.2, resid_pdrop=0, **common
        ),
    }
    return AutoModelForCausalLM.from_config(configs[architecture]())


def tiny_model(architecture: str = "llama", seed: int = 0, size: int = 64, vocabulary: int = 104) -> LanguageModel:
    """A tiny language model, ready to act and to learn, in float32 on the CPU."""
    network = tiny_network(architecture, seed, size, vocabulary)
    return wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, f"tiny-{architecture}")


@pytest.fixture
def model() -> LanguageModel:
    return tiny_model()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as an ordinary Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tiny_network().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


FIRST = (
    "test_clean_machine.py",  # waits for pip most of the time, while another worker computes
    "test_openenv_env.py",
    "test_processes.py",
    "test_sharded_runs.py",
    "test_the_users_command.py",
    "test_server_engine.py",
    "test_examples.py",
    "test_smollm2.py",
)
"""Files that take long: begun last, one worker would still compute while the other has nothing to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long first."""
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
