"""The settings a run was trained with, which are the defaults of other commands for its model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmgym.console import messages
from lmgym.errors import UserError


def saved_config(folder: Path) -> dict[str, Any]:
    """The config.json of a run, as it was written."""
    try:
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a run of lmgym: its config.json cannot be read ({error}).") from None
    if not isinstance(saved, dict) or "algorithm" not in saved:
        raise UserError(f"{folder} is not a run of lmgym: its config.json names no algorithm.")
    return saved


def trained_settings(model: str | None, env: str | None, arguments: Sequence[str]) -> Any:
    """The TrainSettings of the run that `model` names, for a model that samples in this process; None if it is no run.

    `env` is the environment on the command line, if any: the run's options are those of the run's own environment.
    """
    if model is None or not all((Path(model) / name).is_file() for name in ("config.json", "metrics.jsonl")):
        return None
    from lmgym.algorithms.config import RLConfig
    from lmgym.commands.resume import require_names
    from lmgym.commands.train import settings_from
    from lmgym.runs.old_names import upgraded

    saved, changes = upgraded(Path(model), saved_config(Path(model)))
    if changes:
        messages.print(changes, markup=False, soft_wrap=True)
    require_names(Path(model), saved, ("env", "policy", "shots"), arguments)
    trained = settings_from(RLConfig, saved)
    trained.policy = replace(
        trained.policy,
        model=model,
        lora_rank=0,
        engine="torch",
        servers="",
        weights_folder="",
        shard=False,
        rollout_dtype="same",
    )
    if env is not None:
        trained.task.env_options, trained.run.eval_env = {}, ""
    return trained
