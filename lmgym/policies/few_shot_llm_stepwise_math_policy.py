"""The step-wise maths policy: a few worked examples, the problem, and one line of the solution at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from lmgym.engines.engine import Engine
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.loading import load_model
from lmgym.policies.llm_policy import LLMPolicy
from lmgym.policies.scripted_policy import gold_line
from lmgym.policies.system_prompts import load_system_prompt
from lmgym.types import Finish, Problem, State

BEGUN_ANSWER = re.compile(r"[ \t]*[Tt]he answer is:[ \t$\-\d,.%\ufffd]*$")
"""A line that may still become a complete answer; U+FFFD is an incomplete character."""

FINISHED_ANSWER = re.compile(r"[ \t]*[Tt]he answer is:[ \t]*\$?-?\d[\d,]*(\.\d+)?[%.]?\s$")
"""An answer line that ends in white space: the number is complete, and nothing follows it yet."""

LONGEST_ANSWER = 128
"""A line of more tokens than this is not an answer."""

LINE_END = "\n"
COLON = ":"
WHITE_SPACE = "[\\s\ufffd]\\Z"
"""Patterns of token texts; an incomplete character (U+FFFD) may be part of a white space."""


class FewShotLLMStepwiseMathPolicy(LLMPolicy):
    """One action is one line; after `<<…=` the calculator's value is inserted as forced tokens."""

    writes_lines: ClassVar[bool] = True

    def __init__(
        self,
        model: LanguageModel | str,
        examples: Sequence[Problem] = (),
        system_prompt: str | None = None,
        max_line_tokens: int = 64,
        temperature: float = 1.0,
        calculator: bool = True,
        top_k: int = 0,
        top_p: float = 1.0,
        engine: Engine | None = None,
        max_episode_tokens: int = 0,
    ) -> None:
        super().__init__(
            load_model(model) if isinstance(model, str) else model,
            system_prompt=load_system_prompt("stepwise_math") if system_prompt is None else system_prompt,
            examples=examples,
            max_tokens=max_line_tokens,
            max_episode_tokens=max_episode_tokens,
            distribution=Distribution(temperature, top_k, top_p),
            calculator=calculator,
            engine=engine,
        )

    def reply_ids(self, state: State) -> tuple[int, ...]:
        """Only the environment's reply, if any: nothing else separates two lines of a solution."""
        return self.encode(state.reply)

    def demonstration(self, state: State) -> tuple[str, Finish]:
        """The next line of the solution; the last line ends the turn."""
        lines = state.problem.solution.split("\n")
        last = state.turn >= len(lines) - 1
        return (gold_line(state), "eos") if last else (gold_line(state) + "\n", "stop")

    def stop_ids(self, written: Sequence[int]) -> frozenset[int]:
        """Also a newline, a colon and, after the colon of an answer, white space."""
        ids = super().stop_ids(written) | self.token_text.matching(LINE_END) | self.token_text.matching(COLON)
        if written and BEGUN_ANSWER.match(self.decode(written)):
            ids |= self.token_text.matching(WHITE_SPACE)
        return ids

    def tool_output(self, written: Sequence[int]) -> tuple[int, ...] | None:
        """Also ends the action at a newline, or as soon as the answer is complete."""
        if written[-1] in self.token_text.matching(LINE_END):
            return None
        if len(written) <= LONGEST_ANSWER and FINISHED_ANSWER.match(self.decode(written)):
            return None
        return super().tool_output(written)
