"""A conversation as the text that a model continues: in its chat template, or as plain text without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmgym.errors import UserError
from lmgym.models.language_model import LanguageModel
from lmgym.policies.plain_prompt import render_plain
from lmgym.types import Message


def render_conversation(model: LanguageModel, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
    """Renders a conversation up to the next assistant message; a template that knows tools describes them."""
    if not model.tokenizer.chat_template:
        return render_plain(messages, model.tokenizer)
    plain = [{"role": str(message["role"]), "content": message["content"]} for message in messages]
    given: Any = list(tools) or None
    try:
        return str(model.tokenizer.apply_chat_template(plain, tools=given, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # a template is code of the model's author and may raise anything
        raise UserError(f"the chat template of {model.name} refuses this conversation: {error}.") from error
