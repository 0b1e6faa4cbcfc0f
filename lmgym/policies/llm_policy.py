"""What all policies with a language model share: prompts as ids, requests to the engine, actions from completions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lmgym.calculator import calculate, open_expression
from lmgym.engines.engine import GO_ON, Completion, Engine, Request, Verdict
from lmgym.engines.plain_engine import PlainEngine
from lmgym.engines.torch_engine import TorchEngine
from lmgym.errors import UserError
from lmgym.learning.language_model import LanguageModel
from lmgym.policies.policy import Policy
from lmgym.types import END_OF_TURN, Action, Message, Problem, State


class LLMPolicy(Policy):
    """A policy that is a language model; ids that were sampled are never decoded and encoded again."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        system_prompt: str,
        examples: Sequence[Problem],
        max_tokens: int,
        temperature: float,
        calculator: bool,
        engine: Engine | None,
    ) -> None:
        if not model.tokenizer.chat_template:
            raise UserError(
                f"{model.name} has no chat template, so it cannot be prompted as an assistant; choose an instruct "
                "model, or set tokenizer.chat_template and save the folder."
            )
        if max_tokens < 1 or not 0 <= temperature < float("inf"):
            raise UserError(f"max_tokens is {max_tokens} and temperature {temperature}: at least 1 and 0 are needed.")
        self.model = model
        self.system_prompt = system_prompt
        self.examples = tuple(examples)
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.calculator = calculator
        self.engine = engine or (TorchEngine(model) if model.can_share else PlainEngine(model))

    def get_actions(self, states: Sequence[State], temperature: float | None = None) -> list[Action]:
        """Continues every conversation, all of them in one batch."""
        heat = self.temperature if temperature is None else temperature
        prompts = [self.prompt_ids(state) for state in states]
        requests = [self._request(state, prompt, heat) for state, prompt in zip(states, prompts, strict=True)]
        within = [request for request in requests if request.max_tokens > 0]
        completions = iter(self.engine.generate(within) if within else [])
        return [
            self._action(state, request.prompt, next(completions) if request.max_tokens > 0 else Completion())
            for state, request in zip(states, requests, strict=True)
        ]

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

    def opening_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The system prompt and the worked examples before the conversation itself."""
        opening: list[Message] = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for example in self.examples:
            opening.append({"role": "user", "content": example.prompt})
            opening.append({"role": "assistant", "content": example.solution})
        return [*opening, *messages]

    def render_chat(self, messages: Sequence[Message]) -> str:
        """A conversation through the model's chat template, up to where the assistant begins to speak."""
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

    def watch(self, ids: Sequence[int]) -> Verdict:
        """After each sampled token: where an expression waits for its value, the calculator writes it."""
        if not self.calculator:
            return GO_ON
        text = self.decode(ids)
        expression = open_expression(text)
        result = calculate(expression) if expression is not None else None
        return GO_ON if result is None else Verdict(force=self.encode(f"{result}>>"))

    def _request(self, state: State, prompt: tuple[int, ...], temperature: float) -> Request:
        budget = min(self.max_tokens, self.model.context_length - len(prompt))
        # Each turn of an episode draws from its own stream, so that a turn can be repeated alone.
        return Request(prompt, budget, temperature, seed=state.seed * 1_000_003 + state.turn, watch=self.watch)

    def _action(self, state: State, prompt: tuple[int, ...], completion: Completion) -> Action:
        ids = completion.token_ids
        ended = bool(ids) and ids[-1] in self.model.stop_ids
        text = self.decode(ids[:-1] if ended else ids)
        if ended or completion.finish_reason == "length":
            text += END_OF_TURN
        return Action(
            text=text,
            prompt_ids=prompt,
            token_ids=tuple(ids),
            logprobs=tuple(completion.logprobs),
            mask=tuple(completion.mask),
            finish_reason=completion.finish_reason,
            policy_version=completion.policy_version,
            episode=state.episode,
        )
