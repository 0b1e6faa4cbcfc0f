"""An episode of verifiers whose agent is a policy of lmgym.

In verifiers the environment calls the agent and waits for its reply; in lmgym the policy calls `step`. So the episode
is a coroutine in the background, which waits at every turn of the agent:

    Env.run(task, agents) ── turn(message) ──► question() ──► policy ──► answer(text) ──► turn returns
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lmgym.envs.adapters.background_loop import abandon, background_loop
from lmgym.errors import UserError

_GRACE = 0.5
"""Seconds for a cancelled episode to end, before its event loop counts as blocked."""


@dataclass(frozen=True)
class Answer:
    """A message of the policy, and whether it is the last one that it may write."""

    text: str
    is_last: bool
    is_cut_off: bool


@dataclass
class Channel:
    """The messages between an episode and the policy."""

    questions: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    """What the policy is told; None at the end of the episode."""
    answers: asyncio.Queue[Answer] = field(default_factory=asyncio.Queue)
    is_refused: bool = False
    """Whether the episode asked for another message after the last one that the policy may write."""


class Exchange:
    """One running episode; it ends when `question` returns None, and then has a trace with rewards."""

    def __init__(self, env: Any, task: Any, role: str, timeout: float) -> None:
        self.timeout = timeout
        self._loop = background_loop()
        self._channel = Channel()
        self._episode = asyncio.run_coroutine_threadsafe(_play(env, task, role, self._channel), self._loop)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """None: a clone of an environment starts episodes of its own."""

    def __del__(self) -> None:
        self.close()

    def question(self) -> str | None:
        """The next message to the policy; None if the episode has ended. TimeoutError if the task takes too long."""
        waiting = asyncio.run_coroutine_threadsafe(self._channel.questions.get(), self._loop)
        try:
            return waiting.result(self.timeout)
        except concurrent.futures.TimeoutError:
            self.close()
            try:
                waiting.result(_GRACE)  # an episode that could be cancelled says that it has ended
            except concurrent.futures.TimeoutError:
                abandon(self._loop)
            raise TimeoutError(f"it took more than {self.timeout:g} s") from None

    def answer(self, answer: Answer) -> None:
        """Continues the episode with a message of the policy."""
        self._loop.call_soon_threadsafe(self._channel.answers.put_nowait, answer)

    @property
    def is_truncated(self) -> bool:
        """Whether the limit of turns ended the episode."""
        return self._channel.is_refused

    def trace(self) -> Any:
        """The trace of the finished episode; an error of the task is raised here."""
        return self._episode.result(self.timeout)

    def close(self) -> None:
        """Cancels an episode that has not ended."""
        if not self._episode.done():
            self._loop.call_soon_threadsafe(self._episode.cancel)


async def _play(env: Any, task: Any, role: str, channel: Channel) -> Any:
    """Runs an environment of verifiers on a task, as its own `run_episode` does."""
    import verifiers.v1 as vf

    try:
        recorded = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode = vf.Episode(env=vf.EnvInfo(id=env.config.env_id), task=recorded)
        agents = _Agents(role, PolicyAgent(role, getattr(env.config, role), channel, episode.traces))
        await env.setup(agents)
        await env.run(task, agents)
        if not episode.traces:
            raise UserError(f"{type(env).__name__} of verifiers did not run its agent {role!r}.")
        await env.finalize(task, episode)
        return episode.traces[0]
    finally:
        channel.questions.put_nowait(None)


class _Agents:
    """The agents of an episode by their roles: there is one."""

    def __init__(self, role: str, agent: PolicyAgent) -> None:
        setattr(self, role, agent)


class PolicyAgent:
    """What an environment of verifiers uses of an agent, answered by the policy; it can be run once in an episode."""

    def __init__(self, role: str, config: Any, channel: Channel, traces: list[Any]) -> None:
        self.role = role
        self.config = config
        self.trainable = True
        self._channel = channel
        self._traces = traces
        self._is_started = False

    async def run(self, task: Any) -> Any:
        """One reply to the prompt of the task; returns its trace with rewards."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
            interaction.trace.stop("agent_completed")
        return interaction.trace

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[Interaction]:
        """A conversation with the policy; its trace has rewards when the context is left."""
        from verifiers.v1.utils.decorators import invoke

        if self._is_started:
            raise UserError(f"The environment of verifiers runs its agent {self.role!r} twice in an episode.")
        self._is_started = True
        interaction = Interaction(task, self.role, self.config, self._channel)
        trace = interaction.trace
        await invoke(task.setup, {"trace": trace, "runtime": None})
        yield interaction
        trace.stop("user_closed")
        await invoke(task.finalize, {"trace": trace, "runtime": None})
        await task.score(trace)
        trace.ok = True
        self._traces.append(trace)


class Interaction:
    """A conversation of the policy with an environment of verifiers, and the trace of it."""

    def __init__(self, task: Any, role: str, config: Any, channel: Channel) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls

        self._vf = vf
        self._channel = channel
        self._conversation: list[Any] = []
        self._is_over = False
        recorded = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace = vf.Trace(
            task=recorded, state=state_cls(type(task))(), agent=vf.AgentInfo(config=config, name=role)
        )

    async def turn(self, message: Any = None) -> Any:
        """Passes a message to the policy, by default the prompt of the task, and returns its reply as a segment."""
        if self._channel.is_refused:
            raise RuntimeError("the conversation is over: its last segment was terminated")
        if self._is_over:
            self._channel.is_refused = True
            self.trace.stop("max_turns")
            return self._vf.Segment(messages=[], terminated=True)
        told = self._told(message)
        self._channel.questions.put_nowait("\n\n".join(text for text in map(_text_of, told) if text))
        answer = await self._channel.answers.get()
        limit = self.trace.agent.config.max_turns
        self._is_over = answer.is_last or (limit is not None and self.trace.num_turns + 1 >= limit)
        reply = self._vf.AssistantMessage(content=answer.text)
        self._record([*self._conversation, *told], reply, answer.is_cut_off)
        return self._vf.Segment(messages=[reply])

    def _told(self, message: Any) -> list[Any]:
        """The messages that the policy has not seen yet."""
        data = self.trace.task.data
        opening = [] if self._conversation or not data.system_prompt else [data.system_prompt]
        system = [self._vf.SystemMessage(content=text) for text in opening]
        new = message if message is not None or self._conversation else data.prompt
        if isinstance(new, str):
            return [*system, self._vf.UserMessage(content=new)]
        if not new:
            raise UserError("An environment of verifiers asks for a reply, but neither it nor the task says anything.")
        return [*system, *new]

    def _record(self, prompt: list[Any], reply: Any, is_cut_off: bool) -> None:
        """Adds a turn to the trace, as a model call would."""
        from verifiers.v1.graph import prepare_turn

        finish = "length" if is_cut_off else "stop"
        response = self._vf.Response(id="", created=0, model="lmgym", message=reply, finish_reason=finish)
        node = prepare_turn(self.trace, prompt).commit(response)
        self.trace.calls.append(self._vf.ModelCall(node=node, model="lmgym", finish_reason=finish))
        self._conversation = [*prompt, reply]


def _text_of(message: Any) -> str:
    """The text of a message from the environment; an image or a message of another role is an error."""
    fields = message if isinstance(message, dict) else vars(message)
    role, content = fields["role"], fields["content"]
    if role not in ("system", "user") or not isinstance(content, str):
        raise UserError(f"A message of verifiers is not plain text of the user: it has the role {role!r} or an image.")
    return content
