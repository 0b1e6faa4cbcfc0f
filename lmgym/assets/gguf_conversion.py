"""Conversion of a GGUF file to a Hugging Face folder."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lmgym.assets.downloads import first_line
from lmgym.assets.storage import disk_fault, staging_folder, writing_to
from lmgym.console import messages, quiet_transformers
from lmgym.errors import UserError


def convert_gguf(gguf: Path, target: Path, name: str, cache: Path, tied: bool = False) -> None:
    """Convert a GGUF file to a Hugging Face folder: float32 safetensors, tokenizer and chat template.

    A `tied` model gets its output matrix as its embedding too: quantisation stores the output more precisely.
    """
    with writing_to(cache), staging_folder(cache) as staging, status_line(f"converting {name} once, up to a minute …"):
        try:
            with quiet_transformers():
                save_dequantized(gguf, staging / "model", tied)
        except (OSError, ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
            if disk_fault(error, cache):
                raise
            raise UserError(f"{gguf} is a GGUF that transformers cannot convert: {first_line(error)}") from error
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(staging / "model", target)
        except OSError:
            # Another process may have converted the same file first.
            if not (target / "config.json").is_file():
                shutil.rmtree(target)
                os.rename(staging / "model", target)


def save_dequantized(gguf: Path, folder: Path, tied: bool) -> None:
    """Load the GGUF's model and tokenizer through transformers and save both."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    if tied:
        model.config.tie_word_embeddings = True
        model.get_input_embeddings().weight = model.get_output_embeddings().weight
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors ignores the umask and makes its file readable by the owner only.
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)


@contextlib.contextmanager
def status_line(title: str) -> Iterator[None]:
    """Show a status line while the body runs."""
    if messages.is_terminal:
        with messages.status(title):
            yield
    else:
        messages.print(title, markup=False, highlight=False)
        yield
