"""What all policies with a language model share: prompts as ids, requests to the engine, actions from completions."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from lmgym.calculator import MAX_CHARACTERS, calculate, open_expression
from lmgym.engines.engine import GO_ON, STOP, Completion, Engine, Request, Verdict
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.errors import UserError
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.policies.plain_prompt import NEXT_PROBLEM, before_next_problem, begins_next_problem, render_plain
from lmgym.policies.policy import Policy
from lmgym.types import END_OF_TURN, NOBODY, Action, Message, Problem, State

RECENT = 16
"""How many of the last ids are decoded after each token, to see whether anything is to be done."""


class LLMPolicy(Policy):
    """A policy that is a language model; ids that were sampled are never decoded and encoded again."""

    writes_lines: ClassVar[bool] = False
    """Whether an action is one line of an answer, of which there are many, and not the whole of it."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        system_prompt: str,
        examples: Sequence[Problem],
        max_tokens: int,
        distribution: Distribution,
        calculator: bool,
        engine: Engine | None,
    ) -> None:
        if max_tokens < 1:
            raise UserError(f"--max_tokens is {max_tokens}: an action needs at least 1.")
        distribution.check()
        self.model = model
        self.system_prompt = system_prompt
        self.examples = tuple(examples)
        self.max_tokens = max_tokens
        self.distribution = distribution
        self.calculator = calculator
        self.engine = engine or _engine_for(model)
        self._writing: dict[int, tuple[State, Request]] = {}

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Continues every conversation and waits for them all."""
        actions: dict[int, Action] = {}
        while left := [state for state in states if id(state) not in actions]:
            actions |= {id(state): action for state, action in self._written(left, temperature)}
        return [actions[id(state)] for state in states]

    def next_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """The actions that are ready; the other states are still being written on."""
        return [action for _, action in self._written(states, temperature)]

    def _written(self, states: Sequence[State], temperature: float | None) -> list[tuple[State, Action]]:
        """Asks for what is new, abandons what is no longer wanted, and waits until something is ready."""
        distribution = self.distribution if temperature is None else replace(self.distribution, temperature=temperature)
        wanted = {id(state): state for state in states}
        self._abandon(
            [
                ticket
                for ticket, (state, request) in self._writing.items()
                if request.distribution != distribution or wanted.pop(id(state), None) is None
            ]
        )
        asked = [(state, self._request(state, distribution)) for state in wanted.values()]
        full = [(state, request) for state, request in asked if request.max_tokens <= 0]
        if full:  # the context is used up: there is nothing to wait for
            return [
                (state, self._action(state, request, Completion(policy_version=self.model.version)))
                for state, request in full
            ]
        tickets = self.engine.submit([request for _, request in asked])
        self._writing |= dict(zip(tickets, asked, strict=True))
        completions = self.engine.finished(self._writing)
        done = [(*self._writing.pop(ticket), completion) for ticket, completion in completions.items()]
        return [(state, self._action(state, request, completion)) for state, request, completion in done]

    def _abandon(self, tickets: Sequence[int]) -> None:
        """What an interrupted rollout left behind must not come back as somebody's action."""
        self.engine.cancel(tickets)
        for ticket in tickets:
            del self._writing[ticket]

    def rest(self) -> None:
        """Lets the engine give back its keys and values."""
        self.engine.rest()

    def stranger(self, model: LanguageModel) -> LLMPolicy:
        """The same way of prompting and acting with another model, whose episodes are never taken for the policy's.

        It is asked in the policy's own chat template, because the policy will have to answer to that.
        """
        twin = copy.copy(self)
        model.version, model.tokenizer = NOBODY, self.model.tokenizer
        twin.model, twin.engine, twin._writing = model, _engine_for(model), {}
        return twin

    def prompt_ids(self, state: State) -> tuple[int, ...]:
        """The ids to continue: all that was read and written, and the environment's reply, encoded once."""
        if state.tokens:
            return state.tokens + self.reply_ids(state)
        begun = state.messages[-1]["role"] == "assistant"
        prompt = self.encode(self.render_chat(self.opening_messages(state.messages[:-1] if begun else state.messages)))
        if begun:
            prompt += self.encode(state.messages[-1]["content"] + "\n")
        if len(prompt) >= self.model.context_length:
            raise UserError(
                f"problem {state.problem.id} with {len(self.examples)} examples is {len(prompt)} tokens long and "
                f"{self.model.name} reads {self.model.context_length}; use fewer or shorter examples."
            )
        return prompt

    @abstractmethod
    def reply_ids(self, state: State) -> tuple[int, ...]:
        """The ids that stand between the last action and the next one."""

    @abstractmethod
    def demonstration(self, state: State) -> str:
        """What this policy would have to say next to follow the problem's own solution."""

    def opening_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The system prompt and the worked examples before the conversation itself."""
        opening: list[Message] = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for example in self.examples:
            opening.append({"role": "user", "content": example.prompt})
            opening.append({"role": "assistant", "content": example.solution})
        return [*opening, *messages]

    def render_chat(self, messages: Sequence[Message]) -> str:
        """A conversation, in the chat template or without one in plain text, up to where the assistant begins."""
        if self.is_plain:
            return render_plain(messages, self.model.tokenizer)
        plain = [{"role": str(message["role"]), "content": message["content"]} for message in messages]
        try:
            return str(self.model.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # a template is a program of the model's author, which may raise anything
            raise UserError(f"the chat template of {self.model.name} refuses this conversation: {error}.") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Text that nobody sampled, as ids."""
        return tuple(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, only ever to be read."""
        return str(self.model.tokenizer.decode(list(ids), skip_special_tokens=False))

    @property
    def is_plain(self) -> bool:
        """Whether prompts are plain text, because the model has no chat template."""
        return not self.model.tokenizer.chat_template

    def recent(self, ids: Sequence[int]) -> str:
        """The text of the last few ids: enough to see how it ends, at a cost that does not grow with it."""
        return self.decode(ids[-RECENT:])

    def watch(self, ids: Sequence[int]) -> Verdict:
        """After each sampled token: where an expression waits for its value, the calculator writes it."""
        recent = self.recent(ids)
        if self.is_plain and NEXT_PROBLEM in recent and begins_next_problem(self.decode(ids)):
            return STOP
        if not (self.calculator and recent.endswith("=")):
            return GO_ON
        expression = open_expression(self.decode(ids[-MAX_CHARACTERS:]))
        result = calculate(expression) if expression is not None else None
        return GO_ON if result is None else Verdict(force=self.encode(f"{result}>>"))

    def _request(self, state: State, distribution: Distribution) -> Request:
        prompt = self.prompt_ids(state)
        budget = min(self.max_tokens, self.model.context_length - len(prompt))
        # Each turn of an episode draws from its own stream, so that a turn can be repeated alone.
        return Request(prompt, budget, distribution, seed=state.seed * 1_000_003 + state.turn, watch=self.watch)

    def _action(self, state: State, request: Request, completion: Completion) -> Action:
        ids = completion.token_ids
        ended = bool(ids) and ids[-1] in self.model.stop_ids
        text = self.decode(ids[:-1] if ended else ids)
        if self.is_plain and begins_next_problem(text):
            text, ended = before_next_problem(text), True
        if ended or completion.finish_reason == "length":
            text += END_OF_TURN
        return Action(
            text=text,
            prompt_ids=request.prompt,
            token_ids=tuple(ids),
            logprobs=tuple(completion.logprobs),
            mask=tuple(completion.mask),
            finish_reason=completion.finish_reason,
            policy_version=completion.policy_version,
            episode=state.episode,
        )


def _engine_for(model: LanguageModel) -> Engine:
    """The fast engine where it is exact, else the plain one."""
    return TorchEngine(model) if model.shares_prefixes else PlainEngine(model)
