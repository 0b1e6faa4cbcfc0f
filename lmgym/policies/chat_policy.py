"""The chat policy: the whole answer is one action, and the environment's reply is the next user message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lmgym.engines.engine import Engine
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.policies.llm_policy import RECENT, LLMPolicy
from lmgym.policies.plain_prompt import NEXT_PROBLEM, begins_next_problem
from lmgym.policies.system_prompts import load_system_prompt
from lmgym.types import Finish, Message, Problem, State

PLACEHOLDER = "\u2402"


class ChatPolicy(LLMPolicy):
    """One action is one complete assistant message."""

    def __init__(
        self,
        model: LanguageModel | str,
        examples: Sequence[Problem] = (),
        system_prompt: str | None = None,
        max_tokens: int = 256,
        temperature: float = 1.0,
        calculator: bool = False,
        top_k: int = 0,
        top_p: float = 1.0,
        engine: Engine | None = None,
        max_episode_tokens: int = 0,
    ) -> None:
        super().__init__(
            load_model(model) if isinstance(model, str) else model,
            system_prompt=load_system_prompt("chat") if system_prompt is None else system_prompt,
            examples=examples,
            max_tokens=max_tokens,
            max_episode_tokens=max_episode_tokens,
            distribution=Distribution(temperature, top_k, top_p),
            calculator=calculator,
            engine=engine,
        )

    def reply_ids(self, state: State) -> tuple[int, ...]:
        """The ids that the template puts between two assistant messages: end of turn, reply, new turn.

        They are found by rendering a conversation with a placeholder, so the sampled text itself is never rendered.
        """
        answer: Message = {"role": "assistant", "content": PLACEHOLDER}
        role: Literal["user", "tool"] = "tool" if state.messages[-1]["role"] == "tool" else "user"
        reply: Message = {"role": role, "content": state.reply}
        question: Message = {"role": "user", "content": ""}
        text = self.render_chat((question, answer, reply)).split(PLACEHOLDER, 1)[1]
        if self.is_plain and begins_next_problem(self.decode(state.tokens[-RECENT:])):
            text = text.partition(NEXT_PROBLEM)[2]  # a base model has sampled this beginning itself
        between = self.encode(text)
        # The model may have sampled its EOS token itself.
        ended = state.tokens[-1] in self.model.eos_ids
        return between[1:] if ended and between and between[0] == state.tokens[-1] else between

    def demonstration(self, state: State) -> tuple[str, Finish]:
        """The whole solution."""
        return state.problem.solution, "eos"
