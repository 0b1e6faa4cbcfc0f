"""The recipes: a model, how it is prompted, and the trainings that follow each other."""

from __future__ import annotations

from dataclasses import dataclass

TASK = ("--env", "gsm8k", "--env_options", "hold_out_validation", "True")
SHORT_PROBLEMS = (*TASK, "max_calculations", "4")
"""Training problems that a weak model sometimes solves; the problems to evaluate on stay all."""
VALIDATION = ("--eval_env", "gsm8k:validation", "--eval_problems", "200")
"""Settings were chosen on validation problems, which no run trains on; test problems are for the final table."""


@dataclass(frozen=True)
class Training:
    """One run of `lmgym train`, which starts from the model of the training before it, or from the recipe's."""

    name: str
    algorithm: str
    flags: tuple[str, ...]
    start: str = ""
    """The training whose model it starts from; by default the recipe's own model."""
    task: tuple[str, ...] = TASK
    """The flags of the environment to train in."""


@dataclass(frozen=True)
class Recipe:
    """A model, the flags of its policy before and since its first training, and its trainings."""

    model: str
    untrained_policy: tuple[str, ...]
    """The untrained model is evaluated with the prompt that serves it best."""
    policy: tuple[str, ...]
    trainings: tuple[Training, ...]


def _flags(**settings: object) -> tuple[str, ...]:
    return tuple(part for name, value in settings.items() for part in (f"--{name}", str(value)))


SMALL_SFT = _flags(
    iterations=220,  # half of the 6,973 solutions, once
    problems_per_iteration=16,
    learning_rate=2e-4,
    warmup_steps=10,
    micro_batch_tokens=2048,
    evaluate_every=110,
)
# Not chosen by trials: neither of the two so far showed a gain (trials.md).
SMALL_RL = _flags(
    iterations=20,
    problems_per_iteration=32,
    group_size=8,
    temperature=0.7,
    learning_rate=3e-5,
    micro_batch_tokens=2048,
    evaluate_every=10,
)

SMALL = Recipe(
    model="smollm2-135m",
    untrained_policy=_flags(shots=8, max_tokens=80, max_episode_tokens=300),
    policy=_flags(shots=0, max_tokens=80, max_episode_tokens=300),
    trainings=(
        Training("sft", "sft", SMALL_SFT),
        *(Training(f"rl-seed{seed}", "rloo", (*SMALL_RL, *_flags(seed=seed)), start="sft") for seed in (0, 1)),
    ),
)

QWEN_RL = _flags(
    iterations=20,
    problems_per_iteration=16,
    group_size=8,
    learn_per_group=4,
    temperature=0.7,
    learning_rate=1e-6,
    warmup_steps=3,
    max_update_kl=0.02,
    tis_cap=2,
    micro_batch_tokens=2048,
    eval_problems=0,
    save_every=5,
)

# RL from the untrained model: none of four runs after a warm start on worked solutions showed a gain (trials.md).
QWEN = Recipe(
    model="qwen2.5-coder-0.5b",
    untrained_policy=_flags(shots=4, max_tokens=80, max_episode_tokens=300),
    policy=_flags(shots=4, max_tokens=80, max_episode_tokens=300),
    trainings=(Training("rl", "rloo", QWEN_RL, task=SHORT_PROBLEMS),),
)

RECIPES = {"small": SMALL, "qwen": QWEN}
