"""The data types that environments, policies, buffers and algorithms pass to each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar

T = TypeVar("T")

OFF_POLICY = -1
"""The policy version of episodes that the learning policy did not sample."""

Finish = Literal["eos", "stop", "length"]
"""How an action ended: the model ended its turn, a stop condition of the policy held, or its token budget ran out."""


class Message(TypedDict):
    """One message of a conversation, in the format of chat templates."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True)
class Problem:
    """One problem of a task: a prompt, its reference answer and, if there is one, a worked solution."""

    id: str
    prompt: str
    answer: str
    solution: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Problem:
        """Returns itself: a problem is immutable, and an environment may hold thousands."""
        return self


@dataclass(frozen=True)
class State:
    """An observation: the conversation so far, which waits for the next action."""

    problem: Problem
    messages: tuple[Message, ...]
    reply: str = ""
    """The environment's reply to the last action; empty if it only waits for the next line."""
    turn: int = 0
    tokens: tuple[int, ...] = ()
    """All ids of this episode up to the end of the last action; set by `VectorEnv`, ignored by environments."""
    written: int = 0
    """Number of tokens of all actions so far; set by `VectorEnv`."""
    episode: int = 0
    group: int = 0
    seed: int = 0

    def after(self, text: str, reply: str = "", role: Literal["user", "tool"] = "user") -> State:
        """The next state: the action `text`, on a new line of an open assistant message, and then `reply`."""
        text = text.removesuffix("\n")
        messages = self.messages
        if messages[-1]["role"] == "assistant":
            text, messages = f"{messages[-1]['content']}\n{text}", messages[:-1]
        messages = (*messages, {"role": "assistant", "content": text})
        if reply:
            messages = (*messages, {"role": role, "content": reply})
        return replace(self, messages=messages, reply=reply, turn=self.turn + 1)


@dataclass(frozen=True)
class Action:
    """The exact prompt ids, the exact sampled and forced ids, and the text that the environment receives."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each token under the distribution it was sampled from; 0 for a forced token."""
    mask: tuple[int, ...] = ()
    """1 for an action token, 0 for a token that a tool forced."""
    finish: Finish = "stop"
    """`eos`: the model ended its turn; `stop`: a stop condition, such as a newline; `length`: the token budget."""
    policy_version: int = 0
    """The version that sampled it; the oldest one if the weights changed while it was sampled."""
    versions: tuple[int, ...] = ()
    """The version that sampled each token, if they differ; else empty."""
    episode: int = 0


@dataclass(frozen=True)
class Step:
    """One transition: the state, the action, and the environment's response to it."""

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
    """A finished episode; its tokens, mask, log-probs and rewards are derived from its steps, never stored twice."""

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
    def policy_version(self) -> int:
        """The oldest version that sampled a token of it."""
        return min(step.action.policy_version for step in self.steps)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Every id of the episode in order: the prompt of the last action contains all earlier ids."""
        return self.steps[-1].action.prompt_ids + self.steps[-1].action.token_ids

    @property
    def mask(self) -> tuple[int, ...]:
        """1 at action tokens, 0 at prompt, reply and forced tokens."""
        return self._spread([step.action.mask for step in self.steps], 0)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The sampler's log-probability of each action token, 0 elsewhere."""
        return self._spread([step.action.logprobs for step in self.steps], 0.0)

    @property
    def versions(self) -> tuple[int, ...]:
        """The policy version that sampled each action token, `OFF_POLICY` elsewhere."""
        actions = [step.action for step in self.steps]
        known = [action.versions or (action.policy_version,) * len(action.token_ids) for action in actions]
        return self._spread(known, OFF_POLICY)

    @property
    def step_index(self) -> tuple[int, ...]:
        """The step that each token belongs to; -1 for prompt and reply tokens."""
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
        """The info of the last step; for graded tasks it has `correct`, `lenient` and `parsed`."""
        return self.steps[-1].info

    @property
    def error(self) -> str | None:
        """Why the environment, a reward, a tool or a judge failed in it, which is no fault of the policy; else None."""
        return self.info.get("error")

    @property
    def cut_off(self) -> bool:
        """Whether a limit on steps or tokens ended the episode."""
        return self.steps[-1].truncated or self.steps[-1].action.finish == "length"

    @property
    def text(self) -> str:
        """The text of all actions."""
        return "".join(step.action.text for step in self.steps)

    @property
    def length(self) -> int:
        """Number of tokens in all actions, forced tokens included."""
        return sum(len(step.action.token_ids) for step in self.steps)

    def _spread(self, parts: list[tuple[T, ...]], filler: T) -> tuple[T, ...]:
        """Aligns one value per token of each action with `tokens`; prompt and reply tokens get `filler`."""
        spread: list[T] = []
        for step, part in zip(self.steps, parts, strict=True):
            spread += [filler] * (len(step.action.prompt_ids) - len(spread)) + list(part)
        return tuple(spread)
