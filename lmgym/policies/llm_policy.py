"""The base class of LLM policies: prompts as ids, requests to the engine, actions from completions."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from lmgym.calculator import MAX_CHARACTERS, calculate, open_expression
from lmgym.engines.engine import Completion, Engine
from lmgym.engines.local_engine import LocalEngine
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch.engine import TorchEngine
from lmgym.envs.env import Env
from lmgym.errors import UserError
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.policies.partial_action import PartialAction
from lmgym.policies.plain_prompt import NEXT_PROBLEM, before_next_problem, begins_next_problem
from lmgym.policies.policy import Policy
from lmgym.policies.rendering import render_conversation
from lmgym.policies.token_text import TokenText, token_text
from lmgym.tools.calls import described
from lmgym.types import OFF_POLICY, Action, Finish, Message, Problem, State

RECENT = 16
"""Number of last ids that are decoded to check how a text ends, at a cost independent of its length."""


class LLMPolicy(Policy):
    """A policy that is a language model; sampled ids are never decoded and encoded again."""

    writes_lines: ClassVar[bool] = False
    """Whether an action is one line of the answer and not the whole answer."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        system_prompt: str,
        examples: Sequence[Problem],
        max_tokens: int,
        max_episode_tokens: int,
        distribution: Distribution,
        calculator: bool,
        engine: Engine | None,
    ) -> None:
        if max_tokens < 1:
            raise UserError(f"--max_tokens is {max_tokens}: an action needs at least 1.")
        if max_episode_tokens < 0:
            raise UserError(f"--max_episode_tokens is {max_episode_tokens}: give 0 for no limit, or a number above.")
        distribution.check()
        self.model = model
        self.system_prompt = system_prompt
        self.examples = tuple(examples)
        self.max_tokens = max_tokens
        self.max_episode_tokens = max_episode_tokens
        self.distribution = distribution
        self.calculator = calculator
        self.engine = engine or engine_for(model)
        self.serves_all_processes = self.engine.serves_all_processes
        self.tools: tuple[dict[str, Any], ...] = ()
        """Descriptions of the tools that the policy may call, for the chat template."""
        self._pending: dict[int, PartialAction] = {}
        """The actions that the engine is sampling, by request id."""

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Samples an action for every state and waits for all of them."""
        actions: dict[int, Action] = {}
        while left := [state for state in states if id(state) not in actions]:
            actions |= {id(state): action for state, action in self._ready_actions(left, temperature)}
        return [actions[id(state)] for state in states]

    def next_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """The actions that are ready; the other states are still being sampled."""
        return [action for _, action in self._ready_actions(states, temperature)]

    def _ready_actions(self, states: Sequence[State], temperature: float | None) -> list[tuple[State, Action]]:
        """Submits new states, cancels those no longer given, and waits until at least one action is complete."""
        distribution = self.distribution if temperature is None else replace(self.distribution, temperature=temperature)
        new_states = {id(state): state for state in states}
        self._cancel(
            [
                request_id
                for request_id, partial in self._pending.items()
                if partial.distribution != distribution or new_states.pop(id(partial.state), None) is None
            ]
        )
        begun = [self._begin(state, distribution) for state in new_states.values()]
        full = [partial for partial in begun if partial.left <= 0]
        if full:  # the context is full or the episode has no tokens left: nothing can be sampled
            return [(partial.state, self._action(partial, "length")) for partial in full]
        self._submit(begun)
        ready: list[tuple[State, Action]] = []
        while self._pending and not ready:
            completions = self.engine.wait(self._pending)
            received = [(self._pending.pop(request_id), completion) for request_id, completion in completions.items()]
            finishes = [(partial, self._receive(partial, completion)) for partial, completion in received]
            self._submit([partial for partial, finish in finishes if finish is None])
            ready = [(partial.state, self._action(partial, finish)) for partial, finish in finishes if finish]
        return ready

    def _begin(self, state: State, distribution: Distribution) -> PartialAction:
        prompt = self.prompt_ids(state)
        budget = min(self.max_tokens, self.model.context_length - len(prompt))
        if self.max_episode_tokens:
            budget = min(budget, self.max_episode_tokens - state.written)
        return PartialAction(state, prompt, budget, distribution, self.model.version)

    def _submit(self, partials: Sequence[PartialAction]) -> None:
        """Requests the continuation of actions up to their next stop id."""
        if not partials:
            return
        requests = [partial.request(self.stop_ids(partial.token_ids)) for partial in partials]
        self._pending |= dict(zip(self.engine.submit(requests), partials, strict=True))

    def _receive(self, partial: PartialAction, completion: Completion) -> Finish | None:
        """Appends a completion and the tool's forced ids; returns how the action ended, or None if it continues."""
        partial.sampled(completion)
        if completion.finish != "stop":
            return completion.finish
        forced = self.tool_output(partial.token_ids)
        if forced is None:
            return "stop"
        partial.force(forced)
        return None if partial.left > 0 else "length"

    def cancel_actions(self) -> None:
        """Drops all actions that are being sampled."""
        self._cancel(list(self._pending))

    def _cancel(self, request_ids: Sequence[int]) -> None:
        """Cancels requests, so that those of an interrupted rollout do not return as actions of another one."""
        self.engine.cancel(request_ids)
        for request_id in request_ids:
            del self._pending[request_id]

    def longest_episode(self, env: Env) -> int:
        """Maximum tokens of an episode: per action, times the lines of a step-wise episode; at most its own limit and
        the context."""
        lines = int(getattr(env, "max_steps", 1)) if self.writes_lines and getattr(env, "stepwise", True) else 1
        longest = min(self.max_tokens * lines, self.model.context_length)
        return min(longest, self.max_episode_tokens or longest)

    def release_cache(self) -> None:
        """Frees the KV cache of the engine."""
        self.engine.release_cache()

    def with_own_requests(self) -> LLMPolicy:
        """The same policy on the same engine; neither cancels what the other one is sampling."""
        policy = copy.copy(self)
        policy._pending = {}
        return policy

    def with_model(self, model: LanguageModel) -> LLMPolicy:
        """The same policy with another model, whose episodes are marked as off-policy.

        It uses this policy's chat template, because this policy learns from its samples.
        """
        policy = copy.copy(self)
        policy.model = replace(model, version=OFF_POLICY, tokenizer=self.model.tokenizer)
        policy.engine, policy._pending = engine_for(policy.model), {}
        policy.serves_all_processes = False
        return policy

    def prompt_ids(self, state: State) -> tuple[int, ...]:
        """The ids to continue: all ids of the episode so far, and the environment's reply, encoded once."""
        if state.tokens:
            return state.tokens + self.reply_ids(state)
        begun = state.messages[-1]["role"] == "assistant"
        prompt = self.encode(self.render_chat(self.opening_messages(state.messages[:-1] if begun else state.messages)))
        if begun:
            prompt += self.encode(state.messages[-1]["content"] + "\n")
        if len(prompt) >= self.model.context_length:
            raise UserError(
                f"problem {state.problem.id} with {len(self.examples)} examples is {len(prompt)} tokens long, but "
                f"the context of {self.model.name} is {self.model.context_length}; use fewer or shorter examples."
            )
        return prompt

    @abstractmethod
    def reply_ids(self, state: State) -> tuple[int, ...]:
        """The ids between the last action and the next one."""

    @abstractmethod
    def demonstration(self, state: State) -> tuple[str, Finish]:
        """The next action that follows the problem's own solution, as text, and its finish."""

    def opening_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The system prompt and the worked examples before the conversation itself."""
        system = (
            self.system_prompt if self.describes_tools else f"{self.system_prompt}\n\n{described(self.tools)}".strip()
        )
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        for example in self.examples:
            opening.append({"role": "user", "content": example.prompt})
            opening.append({"role": "assistant", "content": example.solution})
        return [*opening, *messages]

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Renders a conversation up to the next assistant message, in the chat template or else as plain text."""
        return render_conversation(self.model, messages, self.tools)

    @property
    def describes_tools(self) -> bool:
        """Whether there are no tools, or the chat template tells the model about them itself."""
        if not self.tools or self.is_plain:
            return not self.tools
        marker: list[Message] = [{"role": "user", "content": "?"}]
        return all(str(tool["function"]["description"]) in self.render_chat(marker) for tool in self.tools)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encodes a text that was not sampled."""
        return tuple(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids to text, which is never encoded again."""
        return str(self.model.tokenizer.decode(list(ids), skip_special_tokens=False))

    @property
    def is_plain(self) -> bool:
        """Whether prompts are plain text, because the model has no chat template."""
        return not self.model.tokenizer.chat_template

    @property
    def token_text(self) -> TokenText:
        """The text of each id, to find stop ids."""
        return token_text(self.model.tokenizer)

    def stop_ids(self, written: Sequence[int]) -> frozenset[int]:
        """The ids at which the engine stops and `tool_output` is called; `written` is the action so far."""
        ids: frozenset[int] = frozenset()
        if self.calculator:
            ids |= self.token_text.matching(r"=\Z")
        if self.is_plain:
            ids |= self.token_text.matching(":")
        return ids

    def tool_output(self, written: Sequence[int]) -> tuple[int, ...] | None:
        """The output after a stop id: ids to force into the action, () to continue without, or None to end the action.

        After `<<expression=` the output is the calculator's value.
        """
        if self.is_plain and self._begins_next_problem(written):
            return None
        expression = open_expression(self.decode(written[-MAX_CHARACTERS:])) if self.calculator else None
        result = calculate(expression) if expression is not None else None
        return () if result is None else self.encode(f"{result}>>")

    def _begins_next_problem(self, written: Sequence[int]) -> bool:
        return NEXT_PROBLEM in self.decode(written[-RECENT:]) and begins_next_problem(self.decode(written))

    def _action(self, partial: PartialAction, finish: Finish) -> Action:
        """The complete action; its text has no EOS token, and no beginning of another problem."""
        text = self.decode(partial.token_ids[:-1] if finish == "eos" else partial.token_ids)
        if self.is_plain and begins_next_problem(text):
            text, finish = before_next_problem(text), "eos"
        return partial.action(text, finish)


def engine_for(model: LanguageModel) -> LocalEngine:
    """The fast engine if it is exact for this model, else the plain one."""
    return TorchEngine(model) if model.shares_prefixes else PlainEngine(model)
