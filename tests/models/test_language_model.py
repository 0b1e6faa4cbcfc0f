"""Models are ordinary folders, and what cannot be used is said in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_model, tiny_tokenizer
from hand_made import plain_twin, shake_adapter
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lmgym.engines.engine import Request
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.errors import UserError
from lmgym.learning.reference import make_reference
from lmgym.models import allocator, precision
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import find_device, find_dtype, load_model, wrap_network
from lmgym.models.lora import LoraSettings

TOKENS = torch.arange(5, 45).view(2, 20)
CPU = torch.device("cpu")


@torch.no_grad()
def logits(model: LanguageModel) -> torch.Tensor:
    return plain_twin(model)(input_ids=TOKENS).logits


def load(folder, **changes) -> LanguageModel:
    return load_model(str(folder), device="cpu", dtype="float32", **changes)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gpt2"])
def test_a_saved_model_is_an_ordinary_folder(architecture, tmp_path):
    model = tiny_model(architecture, seed=3)
    model.save(tmp_path)
    with torch.no_grad():
        ordinary = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=TOKENS).logits
    torch.testing.assert_close(ordinary, logits(model), atol=1e-5, rtol=0)
    loaded = load(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5, rtol=0)
    text = "How many?\nSeven."
    if architecture != "qwen2":  # Transformers gives every qwen2 folder Qwen's own way of splitting, not the saved one
        assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == model.tokenizer(text).input_ids
    assert loaded.tokenizer.chat_template == model.tokenizer.chat_template
    assert loaded.eos_ids == model.eos_ids == {2}
    assert (loaded.can_share, loaded.has_lora) == (architecture != "gpt2", False)


def test_an_adapter_is_saved_alone_and_loaded_onto_its_base(model_folder, tmp_path):
    from peft import AutoPeftModelForCausalLM

    model = load(model_folder, lora=LoraSettings(rank=4, alpha=8))
    assert model.has_lora
    shake_adapter(model.network)
    model.save(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < (model_folder / "model.safetensors").stat().st_size
    assert (logits(model) - logits(load(model_folder))).abs().max() > 0.01
    loaded = load(tmp_path)
    assert loaded.has_lora
    assert loaded.can_share
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5, rtol=0)
    with torch.no_grad():
        ordinary = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path))(input_ids=TOKENS).logits
    torch.testing.assert_close(ordinary, logits(model), atol=1e-5, rtol=0)
    assert set(loaded.trainable()) == set(model.trainable()), "it goes on learning where it stopped"


def saved_adapter(folder, base: str):
    model = load(base, lora=LoraSettings(rank=4, alpha=8))
    shake_adapter(model.network)
    model.save(folder)
    return logits(model)


def named_base(folder) -> str:
    return json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]


def test_an_adapter_of_a_model_in_a_relative_folder_loads_from_anywhere(model_folder, tmp_path, monkeypatch):
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(model_folder, work / "models" / "base")
    monkeypatch.chdir(work)
    expected = saved_adapter(Path("run/model"), "models/base")
    monkeypatch.chdir(elsewhere)
    assert named_base(work / "run" / "model") == str(work / "models" / "base")
    torch.testing.assert_close(logits(load("../work/run")), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("base", ["models/base", "base", "model"])
def test_an_adapter_that_names_its_base_relatively_is_found_from_its_own_folder_up(
    model_folder, tmp_path, monkeypatch, base
):
    adapter = tmp_path / "work" / "run" / "checkpoints" / "7" / "model"
    expected = saved_adapter(adapter, str(model_folder))
    shutil.copytree(model_folder, tmp_path / "work" / ("run" if base == "base" else "") / base)
    written = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(written | {"base_model_name_or_path": base}))
    monkeypatch.chdir(tmp_path)
    loaded = load(tmp_path / "work" / "run")
    torch.testing.assert_close(logits(loaded), expected, atol=1e-5, rtol=0)
    loaded.save(tmp_path / "again")
    assert Path(named_base(tmp_path / "again")).is_absolute()


def test_an_adapter_without_its_base_names_it_in_one_sentence(model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "base")
    saved_adapter(tmp_path / "adapter", str(tmp_path / "base"))
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match=rf"adapter in .*adapter was trained on '{tmp_path / 'base'}', which is not"):
        load(tmp_path / "adapter")


def test_the_adapter_of_a_reference_does_not_take_the_policys_place_on_disk(model_folder, tmp_path):
    model = load(model_folder, lora=LoraSettings(rank=4, alpha=8))
    reference = make_reference(model, None)
    reference.refresh()
    with torch.no_grad():
        for weight in model.trainable().values():
            weight.add_(0.05)
    model.save(tmp_path)
    torch.testing.assert_close(logits(load(tmp_path)), logits(model), atol=1e-5, rtol=0)


def test_loading_makes_a_model_that_is_ready_to_act(model_folder):
    model = load(model_folder)
    requests = [Request((*range(5, 30), n), 4, seed=n) for n in range(3)]
    fast, plain = TorchEngine(model).generate(requests), PlainEngine(model).generate(requests)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert not model.network.training


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=8)])
def test_a_compute_copy_stands_still_until_it_is_refreshed(model_folder, lora):
    model = load(model_folder, lora=lora)
    twin = model.compute_copy()
    before = logits(model)
    torch.testing.assert_close(logits(twin), before, atol=1e-6, rtol=0)
    assert not twin.trainable()
    with torch.no_grad():
        for weight in model.trainable().values():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    model.version += 1
    torch.testing.assert_close(logits(twin), before, atol=1e-6, rtol=0)
    twin.refresh(model)
    torch.testing.assert_close(logits(twin), logits(model), atol=1e-6, rtol=0)
    assert (logits(twin) - before).abs().max() > 0.01
    assert twin.version == 1


def test_several_end_tokens(model_folder):
    model = load(model_folder)
    model.network.generation_config.eos_token_id = [2, 9]
    assert model.eos_ids == {2, 9}
    model.network.generation_config.eos_token_id = None
    assert model.eos_ids == {2}


@pytest.mark.parametrize(
    ("model_type", "rope_type"), [("llama", "longrope"), ("phi3", "longrope"), ("llama", "dynamic")]
)
def test_a_conversation_ends_where_rotary_frequencies_would_change(model_type, rope_type):
    original, stretched = 32, 32 if rope_type == "dynamic" else 128
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": original}
    rope = {"rope_type": rope_type, "rope_theta": 10_000.0, "factor": 4.0}
    config = AutoConfig.for_model(
        model_type,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=104,
        initializer_range=0.2,
        pad_token_id=0,
        max_position_embeddings=stretched,
        rope_parameters=rope | (factors if rope_type == "longrope" else {}),
        **({"original_max_position_embeddings": original} if model_type == "phi3" else {}),
    )
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    row = torch.arange(5, 5 + original + 1)[None]
    with torch.no_grad():
        exact, longer = network(input_ids=row[:, :original]).logits, network(input_ids=row).logits
    assert (exact - longer[:, :original]).abs().max() > 0.1, "one token more changes what was said of those before it"

    model = wrap_network(network, tiny_tokenizer(), CPU, torch.float32, "stretched")
    assert model.context_length == original
    engine = TorchEngine(model) if model.can_share else PlainEngine(model)
    prompt = tuple(row[0, :20].tolist())
    written = engine.generate([Request(prompt, model.context_length - len(prompt), seed=1)])[0]
    sequence = torch.tensor([[*prompt, *written.token_ids]])
    with torch.no_grad():
        exact = plain_twin(model)(input_ids=sequence).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
    assert written.logprobs == pytest.approx(exact.gather(1, sequence[0, 20:, None])[:, 0].tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["nonsense", "", "cpu:x", "cuda:99", "hpu", "privateuseone"])
def test_a_device_that_cannot_be_used_is_said_in_one_sentence(name):
    with pytest.raises(UserError, match="cannot be used here"):
        find_device(name)


def test_devices_that_can():
    assert find_device("cpu") == CPU
    assert find_device().type in {"cpu", "cuda", "mps"}


@pytest.mark.parametrize("name", ["float16", "bf16", "", "float64"])
def test_an_unknown_dtype_is_said_in_one_sentence(name):
    with pytest.raises(UserError, match="choose auto, float32 or bfloat16"):
        find_dtype(name, CPU)


def test_keeping_memory_does_no_harm(monkeypatch):
    allocator.keep_memory()
    allocator.keep_memory()
    big = [torch.ones(1_000_000) for _ in range(4)]
    assert sum(float(tensor.sum()) for tensor in big) == 4_000_000

    def no_such_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(allocator.ctypes, "CDLL", no_such_library)
    allocator.keep_memory()
    monkeypatch.setattr(allocator.platform, "system", lambda: "Darwin")
    allocator.keep_memory()


@pytest.fixture
def probes(monkeypatch, tmp_path):
    """How often the machine was asked, and what it answers."""
    asked = SimpleNamespace(count=0, answer="faster\n")

    def run(*_: object, **__: object) -> SimpleNamespace:
        asked.count += 1
        return SimpleNamespace(stdout=asked.answer, returncode=0 if asked.answer else -4)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("LMGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # so that it is put back, whoever sets it
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    return asked


@pytest.mark.parametrize(
    ("answer", "dtype"), [("faster\n", torch.bfloat16), ("slower\n", torch.float32), ("", torch.float32)]
)
def test_the_machine_is_asked_once_which_type_is_fast(probes, tmp_path, answer, dtype):
    probes.answer = answer
    for _ in range(3):
        assert find_dtype("auto", CPU) == dtype
    assert probes.count == 1
    assert list(json.loads((tmp_path / "cache" / "precision.json").read_text()).values()) == [
        answer.strip() or "crashes"
    ]


def test_float32_asks_nobody(probes):
    assert find_dtype("float32", CPU) == torch.float32
    assert probes.count == 0


def test_another_instruction_set_is_another_question(probes, monkeypatch):
    precision.bfloat16_is_faster()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    precision.bfloat16_is_faster()
    assert probes.count == 2


def test_where_bfloat16_crashes_it_is_made_safe_and_elsewhere_nothing_is_touched(probes):
    precision.make_bfloat16_safe()
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    probes.answer = ""
    (precision.cache_dir() / "precision.json").unlink()
    assert find_dtype("bfloat16", CPU) == torch.bfloat16
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == precision.SAFE_INSTRUCTIONS
