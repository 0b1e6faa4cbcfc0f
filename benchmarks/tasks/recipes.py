"""The five runs: what each shows and its command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """One run of `lmgym train`, with SmolLM2-135M."""

    name: str
    shows: str
    arguments: tuple[str, ...]
    """What follows `lmgym train`."""


def _recipe(name: str, shows: str, algorithm: str, flags: str, **options: str) -> Recipe:
    """Flags as in a shell; `options` are flags whose values contain spaces."""
    spaced = [part for option, value in options.items() for part in (f"--{option}", value)]
    return Recipe(name, shows, (algorithm, *flags.split(), *spaced))


COMMON = "--model smollm2-135m --eval_problems 200 --evaluate_every 4 "

RECIPES = (
    _recipe(
        "judge",
        "word problems, rewarded only by a judge (qwen2.5-coder-0.5b) that compares with the reference answer",
        "rloo",
        COMMON + "--env word-problems --iterations 8 --problems_per_iteration 16 --group_size 8 --judge answer "
        "--judge_model qwen2.5-coder-0.5b",
        reward="0*correct",
    ),
    _recipe(
        "tool",
        "products of three-digit numbers with the Python tool",
        "rloo",
        COMMON + "--env examples.a_task_for_a_tool:Products --env_options tools python --policy chat --shots 4 "
        "--max_tokens 60 --iterations 12 --problems_per_iteration 16 --group_size 8",
    ),
    _recipe(
        "reasoning-gym",
        "reasoning-gym/chain_sum with two terms of up to two digits",
        "rloo",
        COMMON + "--env reasoning-gym/chain_sum --env_options min_terms 2 max_terms 2 max_digits 2 --max_tokens 24 "
        "--iterations 8 --problems_per_iteration 16 --group_size 8",
    ),
    _recipe(
        "game",
        "guess a number from 1 to 8 in four turns",
        "rloo",
        COMMON + "--env guess-number --env_options largest 8 max_turns 4 --policy chat --shots 0 --max_tokens 8 "
        "--iterations 12 --problems_per_iteration 16 --group_size 8",
        system_prompt="text:You play a game. Reply with one number and nothing else.",
    ),
    _recipe(
        "mixture",
        "word problems and arithmetic in one run, without the calculator",
        "rloo",
        COMMON + "--no_calculator --max_tokens 32 --iterations 8 --problems_per_iteration 24 --group_size 8",
        env="word-problems + arithmetic",
    ),
)
