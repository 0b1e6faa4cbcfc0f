"""Environments of lmgym as tasks of lm-eval, with the accuracy by lmgym's own grader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.exports.episodes import exportable, first_messages, name_of, play, problem_count
from lmgym.policies.plain_prompt import NEXT_PROBLEM, PARTS
from lmgym.policies.system_prompts import default_system_prompt
from lmgym.types import Problem

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask

MEAN = {"aggregation": "mean", "higher_is_better": True}


def lm_eval_task(
    env: Env,
    problems: int | None = None,
    max_tokens: int = 512,
    system_prompt: str | None = None,
    examples: Sequence[Problem] = (),
    plain: bool = False,
) -> ConfigurableTask:
    """A task for `tasks=[…]` of `lm_eval.simple_evaluate`: the first `problems`, or all, answered greedily.

    Its metrics are `strict` and `lenient`. The messages are those of lmgym's chat policy: pass lm-eval
    `apply_chat_template=True`. With `plain` the prompt is that of lmgym for base models. `examples` are shown before
    each problem.
    """
    try:
        from lm_eval.api.task import ConfigurableTask
    except ImportError as error:
        raise UserError("lm-eval is not installed: run pip install 'lmgym[lm-eval]'.") from error
    if max_tokens < 1:
        raise UserError(f"max_tokens is {max_tokens}: an answer needs at least one token.")
    played = exportable(env)
    prompt = default_system_prompt(env, stepwise=False) if system_prompt is None else system_prompt
    rows = [_row(played, index) for index in range(problem_count(env, problems))]
    shown = [{"index": -1, "question": each.prompt, "solution": each.solution} for each in examples]
    config = {
        "task": _task_name(env),
        "custom_dataset": lambda **metadata: _dataset(rows),
        "test_split": "test",
        "output_type": "generate_until",
        "description": PARTS["system"].format(prompt) if plain and prompt else prompt,
        "doc_to_text": lambda row: PARTS["user"].format(row["question"]) if plain else row["question"],
        "doc_to_target": lambda row: row["solution"],
        "target_delimiter": "",
        "fewshot_delimiter": "\n\n",
        "fewshot_config": {"sampler": "first_n", "samples": shown},
        "num_fewshot": len(shown),
        "generation_kwargs": {
            "until": [NEXT_PROBLEM] if plain else [],
            "max_gen_toks": max_tokens,
            "do_sample": False,
        },
        "process_results": lambda row, results: _accuracies(played, row["index"], results[0]),
        "metric_list": [{"metric": name, **MEAN} for name in ("strict", "lenient")],
    }
    return ConfigurableTask(config=config)


def _row(env: Env, index: int) -> dict[str, Any]:
    (message,) = first_messages(env, index, system_prompt="")
    problem = env.problems[index]
    return {"index": index, "question": message["content"], "solution": problem.solution or problem.answer}


def _dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset, DatasetDict

    return DatasetDict({"test": Dataset.from_list(rows)})


def _accuracies(env: Env, index: int, text: str) -> dict[str, float]:
    """Whether a text is right in the required form, and in any; without a grade, a reward of at least 1 is right."""
    reward, info = play(env, index, text)
    strict = bool(info.get("correct", reward >= 1))
    return {"strict": float(strict), "lenient": float(info.get("lenient", strict))}


def _task_name(env: Env) -> str:
    """`lmgym-gsm8k-test`."""
    split = [env.made_from.split] if env.made_from else []
    return "-".join(["lmgym", name_of(env).replace("/", "-"), *split])
