"""The system prompts that ship with lmgym, and those in the user's own files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.rewards.final_answer import BoxedAnswer, NumberAnswer

TEXT = "text:"
"""The prefix of a system prompt that is given literally, and not by name or file."""


def default_system_prompt(env: Env, stepwise: bool) -> str:
    """The shipped prompt for this kind of action and the answer format of the environment."""
    form, instruction = getattr(env, "answer_form", None), getattr(env, "instruction", "")
    if not stepwise:
        return f"{load_system_prompt('chat')} {instruction}".strip()
    if isinstance(form, BoxedAnswer):
        return load_system_prompt("stepwise_math_boxed")
    if isinstance(form, NumberAnswer) or not instruction:
        return load_system_prompt("stepwise_math")
    return f"{load_system_prompt('stepwise')} {instruction}"


def load_system_prompt(name_or_path: str | Path) -> str:
    """The text of a shipped prompt (`stepwise_math`), of a file, or what follows `text:`."""
    if str(name_or_path).startswith(TEXT):
        return str(name_or_path).removeprefix(TEXT)
    path = Path(name_or_path)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the system prompt {path} cannot be read ({error}); give a UTF-8 text file.") from None
    shipped = files("lmgym.policies") / "prompts"
    prompts = {Path(entry.name).stem: entry for entry in shipped.iterdir() if entry.name.endswith(".txt")}
    # A path that does not exist falls back to the shipped prompt of the same name.
    if path.stem in prompts and path.parent in (Path(), Path("lmgym/policies/prompts")):
        return prompts[path.stem].read_text(encoding="utf-8").strip()
    raise UserError(
        f"there is no system prompt {str(name_or_path)!r}; give a text file, one of {sorted(prompts)}, or the prompt "
        f"itself as {TEXT}…"
    )
