"""The nouns of the gym: what environments, policies, buffers and algorithms hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar

T = TypeVar("T")

OFF_POLICY = -1
"""The policy version of episodes that the learning policy did not sample."""

Finish = Literal["eos", "stop", "length"]
"""How an action ended: the model ended its turn, a stop condition of the policy held, or its token budget ran out."""


class Message(TypedDict):
    """One utterance of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Problem:
    """One row of a task."""

    id: str
    prompt: str
    answer: str
    solution: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Problem:
        """Gives itself: a problem never changes, and a copy of an environment may hold thousands."""
        return self


@dataclass(frozen=True)
class State:
    """A conversation waiting for the policy."""

    problem: Problem
    messages: tuple[Message, ...]
    reply: str = ""
    """What the environment said since the last action; empty when it merely waits for more."""
    turn: int = 0
    tokens: tuple[int, ...] = ()
    """All ids the policy has read and written in this episode; kept by the collector, opaque to environments."""
    episode: int = 0
    group: int = 0
    seed: int = 0

    def after(self, text: str, reply: str = "") -> State:
        """The state once the policy has said `text`, on a new line of an open message, and been told `reply`."""
        text = text.removesuffix("\n")
        messages = self.messages
        if messages[-1]["role"] == "assistant":
            text, messages = f"{messages[-1]['content']}\n{text}", messages[:-1]
        messages = (*messages, {"role": "assistant", "content": text})
        if reply:
            messages = (*messages, {"role": "user", "content": reply})
        return replace(self, messages=messages, reply=reply, turn=self.turn + 1)


@dataclass(frozen=True)
class Action:
    """Exactly what was fed and exactly what was sampled, as ids, and the text that the environment gets."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each token under the distribution it was drawn from; 0 for a forced token."""
    mask: tuple[int, ...] = ()
    """1 where the policy chose the token, 0 where a tool forced it."""
    finish: Finish = "stop"
    """`eos`: the model ended its turn; `stop`: a stop condition, as the end of a line; `length`: the token budget."""
    policy_version: int = 0
    episode: int = 0


@dataclass(frozen=True)
class Step:
    """One turn: the state, the action in it and what the environment made of it."""

    state: State
    action: Action
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    next_state: State

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


@dataclass(frozen=True)
class Episode:
    """A finished conversation; its tokens, mask, log-probs and rewards are derived from its steps, never kept twice."""

    steps: tuple[Step, ...]
    iteration: int = 0

    @property
    def problem(self) -> Problem:
        return self.steps[0].state.problem

    @property
    def group(self) -> int:
        """Episodes of one group are samples of the same problem by the same policy."""
        return self.steps[0].state.group

    @property
    def tokens(self) -> tuple[int, ...]:
        """Every id of the conversation in order: the last action's prompt holds all that went before it."""
        return self.steps[-1].action.prompt_ids + self.steps[-1].action.token_ids

    @property
    def mask(self) -> tuple[int, ...]:
        """1 at each token the policy chose, 0 at prompts, replies and forced tokens."""
        return self._spread([step.action.mask for step in self.steps], 0)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The sampler's log-probability of each chosen token, 0 elsewhere."""
        return self._spread([step.action.logprobs for step in self.steps], 0.0)

    @property
    def step_index(self) -> tuple[int, ...]:
        """The step that each token belongs to; -1 for what the policy only read."""
        return self._spread([(index,) * len(step.action.token_ids) for index, step in enumerate(self.steps)], -1)

    @property
    def rewards(self) -> tuple[float, ...]:
        """One reward per step."""
        return tuple(step.reward for step in self.steps)

    @property
    def reward(self) -> float:
        """The undiscounted sum of the step rewards."""
        return sum(self.rewards)

    @property
    def info(self) -> dict[str, Any]:
        """What the environment said of the last step: for graded tasks `correct`, `lenient`, `parsed`."""
        return self.steps[-1].info

    @property
    def cut_off(self) -> bool:
        """Whether it ended because a budget of steps or tokens ran out."""
        return self.steps[-1].truncated or self.steps[-1].action.finish == "length"

    @property
    def text(self) -> str:
        """Everything the policy wrote."""
        return "".join(step.action.text for step in self.steps)

    @property
    def length(self) -> int:
        """How many tokens the policy's turns hold, forced ones included."""
        return sum(len(step.action.token_ids) for step in self.steps)

    def _spread(self, parts: list[tuple[T, ...]], filler: T) -> tuple[T, ...]:
        """Lays one value per action token out along the whole conversation, with `filler` at what was only read."""
        spread: list[T] = []
        for step, part in zip(self.steps, parts, strict=True):
            spread += [filler] * (len(step.action.prompt_ids) - len(spread)) + list(part)
        return tuple(spread)
