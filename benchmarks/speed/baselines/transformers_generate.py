"""Transformers' own `generate`: one left-padded batch, sampling at temperature 1; static and compiled if asked."""

from typing import Any

import torch
from protocol import serve, settings
from transformers import AutoModelForCausalLM, CompileConfig

asked = settings()
torch.set_num_threads(asked["threads"])
network: Any = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=getattr(torch, asked["dtype"]))
width = max(map(len, asked["prompts"]))
tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in asked["prompts"]])
mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in asked["prompts"]])

options: dict[str, Any] = {}
if asked.get("compiled"):
    config: Any = CompileConfig(fullgraph=False, mode="default")
    config._compile_all_devices = True  # by default only a GPU compiles
    options = {"cache_implementation": "static", "compile_config": config}


def run() -> dict:
    with torch.inference_mode():
        written = network.generate(
            input_ids=tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            min_new_tokens=asked["new_tokens"],
            max_new_tokens=asked["new_tokens"],
            pad_token_id=0,
            **options,
        )
    return {"tokens": (written.shape[1] - width) * len(written)}


serve(run)
