"""TRL's GRPOTrainer: one optimiser step per run, generation included."""

import sys
import time

import torch
from datasets import Dataset
from protocol import report, settings
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

asked = settings()
torch.set_num_threads(asked["threads"])
tokenizer = AutoTokenizer.from_pretrained(asked["model"])
network = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=getattr(torch, asked["dtype"]))
written = 0


def reward(completion_ids: list[list[int]], **_: object) -> list[float | None]:
    """Half of the episodes get a reward, so that groups have an advantage to learn from."""
    global written
    written = sum(map(len, completion_ids))
    return [float(sum(ids) % 2) for ids in completion_ids]


class OneStepPerLine(TrainerCallback):
    """Waits for a line before each optimiser step and reports the step."""

    def on_step_begin(self, *_: object, **__: object) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self.started = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        report({"seconds": time.perf_counter() - self.started, "tokens": written})


config = GRPOConfig(
    output_dir=asked["scratch"],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    per_device_train_batch_size=asked["trl_rows"],
    gradient_accumulation_steps=len(asked["prompts"]) // asked["trl_rows"],
    num_generations=asked["group_size"],
    max_completion_length=asked["new_tokens"],
    generation_kwargs={"min_new_tokens": asked["new_tokens"]},
    learning_rate=1e-6,
    beta=0.0,
    temperature=1.0,
    max_steps=1000,
    save_strategy="no",
    logging_steps=1000,
    report_to="none",
    disable_tqdm=True,
)
texts = asked["texts"][:: asked["group_size"]]
trainer = GRPOTrainer(
    model=network,
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_dict({"prompt": texts}),
    processing_class=tokenizer,
    callbacks=[OneStepPerLine()],
)
report({})
trainer.train()
