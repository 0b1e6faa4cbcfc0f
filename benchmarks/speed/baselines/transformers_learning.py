"""Plain Transformers with its default attention (SDPA): forward and backward pass of padded rows, and an AdamW step."""

from typing import Any

import torch
from protocol import serve, settings
from transformers import AutoModelForCausalLM

asked = settings()
torch.set_num_threads(asked["threads"])
network: Any = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=getattr(torch, asked["dtype"]))
if asked["layers"]:
    network.model.layers = network.model.layers[: asked["layers"]]
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=True)
prompts = torch.tensor(asked["prompts"])
answers = torch.randint(1000, 40_000, (len(prompts), asked["new_tokens"]), generator=torch.Generator().manual_seed(1))
tokens = torch.cat([prompts, answers], dim=1)


def run() -> dict:
    optimizer.zero_grad()
    count = asked["new_tokens"]
    for row in tokens.split(asked["rows"]):
        states = network.model(input_ids=row, use_cache=False).last_hidden_state[:, -count - 1 : -1]
        logits = network.lm_head(states).float().flatten(0, 1)  # only where a token was sampled, as lmgym does
        torch.nn.functional.cross_entropy(logits, row[:, -count:].flatten(), reduction="sum").div(
            answers.numel()
        ).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return {"tokens": tokens.numel()}


serve(run)
