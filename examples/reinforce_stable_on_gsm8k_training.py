"""REINFORCE with a reference policy on GSM8K: an env, two policies, an algorithm, and `train()`.

A small run:

    python examples/reinforce_stable_on_gsm8k_training.py --model_name_or_path smollm2-135m \
        --train_data_file gsm8k:train --test_gsm8k_path gsm8k:test --n_few_shot_examples 3 --num_iterations 4 \
        --num_collection_episodes 32 --max_trajectory_steps 6 --n_eval_steps 20 --sym_calc --evaluation_at_start

On several processes: torchrun --standalone --nproc-per-node 2 examples/reinforce_stable_on_gsm8k_training.py …
With rollouts on servers that `lmgym serve` started: … --engine vllm --servers http://host:8000,http://host:8001
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import lmgym
from lmgym.algorithms.parts import KLPenalty
from lmgym.algorithms.reinforce_stable import ReinforceStable, ReinforceStableConfig
from lmgym.commands.train import load_buffer, report
from lmgym.distributed.launch import joined_processes
from lmgym.distributed.processes import processes
from lmgym.engines.server.connect import connect
from lmgym.envs.examples import few_shot_examples
from lmgym.errors import UserError
from lmgym.models.loading import load_model
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.policy_for import policy_for
from lmgym.policies.system_prompts import load_system_prompt
from lmgym.runs.run import Run

LINE_TOKENS = 80
"""Maximum tokens per line of a solution."""

PASS_TOKENS = 1024
"""Tokens per forward and backward pass without gradient accumulation."""


@dataclass
class Arguments:
    """Train a language model on GSM8K with REINFORCE, a reference policy and a KL penalty."""

    gsm8k_path: str = "gsm8k:train"
    """Problems for the worked examples: a JSON or JSONL file, or gsm8k:train."""
    train_data_file: str = "gsm8k:train"
    """Problems to train on: a file, gsm8k:train or gsm8k:test."""
    test_gsm8k_path: str = "gsm8k:test"
    """Problems to evaluate on: a file, gsm8k:test or gsm8k:train."""
    sys_prompt_path: str = "stepwise_math"
    """A text file with the system prompt, or the name of one that ships with lmgym."""
    model_name_or_path: str = "smollm2-135m"
    """The model to train."""
    ref_model_name: str = ""
    """The reference model; by default the model itself as it is at the start."""
    cache_dir: str = ""
    """Cache of models and data (LMGYM_CACHE)."""
    n_few_shot_examples: int = 3
    """Worked examples in the prompt."""
    num_iterations: int = 20
    """Iterations of collecting episodes and updating the policy."""
    num_collection_episodes: int = 64
    """Episodes per iteration, in groups of up to eight per problem."""
    max_trajectory_steps: int = 10
    """Maximum lines per solution; each line is a step."""
    max_trajectory_tokens: int = 300
    """Maximum tokens of all lines of a solution together."""
    temperature: float = 1.0
    """Sampling temperature while training; evaluations are greedy."""
    num_update_steps: int = 1
    """Optimiser steps per iteration."""
    learning_rate: float = 6e-5
    """Peak learning rate of AdamW, which decays linearly to 0."""
    cache_buffer: bool = False
    """Write the episodes to --buffer_cache_path."""
    evaluation_iterations: int = 0
    """Evaluate every this many iterations; 0: only at the end."""
    n_eval_steps: int = 100
    """Problems per evaluation."""
    buffer_cache_path: str = "buffer.jsonl"
    """The file of --cache_buffer and --load_buffer_from_cache_at_start."""
    load_buffer_from_cache_at_start: bool = False
    """Load the episodes of --buffer_cache_path and replay them."""
    gradient_accumulation_steps: int = 1
    """Divides the tokens per forward and backward pass; the gradient stays the same."""
    save_path: str = "runs/reinforce_stable_on_gsm8k"
    """The run directory."""
    n_save_iterations: int = 0
    """Write a checkpoint every this many iterations; 0: only on Ctrl-C."""
    kl_coeff: float = 0.01
    """Coefficient of the KL penalty to the reference."""
    sym_calc: bool = False
    """Calculator tool: after <<48/2= the result is forced into the text."""
    evaluation_at_start: bool = False
    """Evaluate before the first iteration."""
    update_ref_iterations: int = 0
    """Copy the policy into the reference every this many iterations; 0: never."""
    engine: Literal["torch", "vllm", "sglang"] = "torch"
    """torch: sample in this process; vllm, sglang: on --servers."""
    servers: str = ""
    """Addresses of inference servers, separated by commas."""
    weights_folder: str = "weights"
    """A folder that the servers can read, where new weights are written."""


def main(arguments: Arguments) -> None:
    run_folder = Path(arguments.save_path)
    if processes().decide(run_folder.exists):
        raise UserError(f"{run_folder} exists already; choose another --save_path.")
    env = lmgym.make(arguments.train_data_file, max_steps=arguments.max_trajectory_steps)
    eval_env = lmgym.make(arguments.test_gsm8k_path, max_steps=arguments.max_trajectory_steps)
    examples = few_shot_examples(lmgym.make(arguments.gsm8k_path), arguments.n_few_shot_examples)

    def make_policy(model_name: str, engine_name: str = "torch") -> LLMPolicy:
        model, engine = load_model(model_name), None
        if engine_name != "torch":
            urls = [url for url in arguments.servers.split(",") if url]
            engine = connect(engine_name, urls, model, Path(arguments.weights_folder))
        return policy_for(
            env,
            model,
            engine=engine,
            examples=examples,
            system_prompt=load_system_prompt(arguments.sys_prompt_path),
            max_tokens=LINE_TOKENS,
            max_episode_tokens=arguments.max_trajectory_tokens,
            temperature=arguments.temperature,
            calculator=arguments.sym_calc,
        )

    policy = make_policy(arguments.model_name_or_path, arguments.engine)
    ref_policy = make_policy(arguments.ref_model_name or arguments.model_name_or_path)

    episodes = arguments.num_collection_episodes
    group_size = max((size for size in range(2, 9) if episodes % size == 0), default=0)
    if not group_size:
        raise UserError(f"{episodes} episodes cannot be cut into groups of 2 to 8; give --num_collection_episodes 64.")
    config = ReinforceStableConfig(
        iterations=arguments.num_iterations,
        problems_per_iteration=episodes // group_size,
        group_size=group_size,
        updates_per_iteration=arguments.num_update_steps,
        learning_rate=arguments.learning_rate,
        micro_batch_tokens=max(1, PASS_TOKENS // arguments.gradient_accumulation_steps),
        evaluate_every=arguments.evaluation_iterations,
        eval_problems=arguments.n_eval_steps,
        save_every=arguments.n_save_iterations,
        kl=KLPenalty(arguments.kl_coeff, arguments.update_ref_iterations),
        replay_episodes=arguments.num_collection_episodes if arguments.load_buffer_from_cache_at_start else 0,
    )
    algorithm = ReinforceStable(policy, env, config, eval_env, Run(run_folder), ref_policy)
    algorithm.evaluator.at_start = arguments.evaluation_at_start
    if arguments.load_buffer_from_cache_at_start:
        load_buffer(algorithm, Path(arguments.buffer_cache_path))
    try:
        algorithm.train()
    finally:
        if arguments.cache_buffer and processes().is_first:
            algorithm.buffer.save(Path(arguments.buffer_cache_path))
    report(algorithm, run_folder)


if __name__ == "__main__":
    given = tyro.cli(Arguments, use_underscores=True)
    if given.cache_dir:
        os.environ["LMGYM_CACHE"] = given.cache_dir
    try:
        with joined_processes():
            main(given)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
