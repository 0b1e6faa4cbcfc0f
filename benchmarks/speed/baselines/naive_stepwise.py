"""The naive step-wise loop: one sequence at a time, and a full prefill for every line."""

from typing import Any

import torch
from protocol import serve, settings
from transformers import AutoModelForCausalLM

asked = settings()
torch.set_num_threads(asked["threads"])
network: Any = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=getattr(torch, asked["dtype"]))
EPISODES = 4
"""Episodes run one at a time at the same cost, so a few suffice to measure tokens per second."""


def run() -> dict:
    written = 0
    for prompt in asked["prompts"][:: max(1, len(asked["prompts"]) // EPISODES)][:EPISODES]:
        ids = torch.tensor([prompt])
        for _ in range(asked["turns"]):
            with torch.inference_mode():
                longer = network.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    min_new_tokens=asked["new_tokens"] // asked["turns"],
                    max_new_tokens=asked["new_tokens"] // asked["turns"],
                    pad_token_id=0,
                )
            written += longer.shape[1] - ids.shape[1]
            ids = longer
    return {"tokens": written}


serve(run)
