"""`lmgym export`: the model of a run as an ordinary Hugging Face folder, also of a sharded checkpoint or an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lmgym.assets.catalogue import model_folder
from lmgym.assets.storage import staged_folder, writing_to
from lmgym.console import quiet_transformers, results
from lmgym.errors import UserError


@dataclass
class ExportSettings:
    """The settings of `lmgym export`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """A run of lmgym: its final model is exported, or else that of its newest checkpoint."""
    out: str = ""
    """The folder to write; by default RUN/exported."""


def export(settings: ExportSettings) -> Path:
    """Writes the model, with the adapter merged into it if it is one, and the tokenizer."""
    run = Path(settings.run)
    if not settings.run or not run.is_dir():
        raise UserError(f"{settings.run or 'nothing'} is not a folder: give a run, lmgym export runs/mine.")
    out = Path(settings.out) if settings.out else run / "exported"
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    with writing_to(out.parent, "--out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with staged_folder(out) as staging:
            _write(run, staging)
    results.print(f"{out}: load it with transformers, vLLM or lmgym --model {out}", markup=False, soft_wrap=True)
    return out


def _write(run: Path, folder: Path) -> None:
    from lmgym.runs.sharded_checkpoint import newest_shards, whole_network

    shards = newest_shards(run)
    network, tokenizer = _network_of(run) if shards is None else whole_network(shards)
    with quiet_transformers():
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _network_of(run: Path) -> tuple[Any, Any]:
    """The network of a run that was not sharded, and its tokenizer."""
    from lmgym.models.loading import load_model

    model = load_model(str(model_folder(run)), device="cpu", dtype="float32")
    model.set_prefix_sharing(False)
    network: Any = model.network
    return network.merge_and_unload() if model.has_lora else network, model.tokenizer
