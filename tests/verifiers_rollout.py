"""A rollout of verifiers itself, with a harness that posts the conversation to a model server of given replies."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import verifiers.v1 as vf

HARNESS = """
import httpx
import verifiers.v1 as vf

__all__ = ["PostingChat"]


class PostingChat(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        given = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        messages = [{"role": message.role, "content": message.content} for message in given]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"model": ctx.model, "messages": messages}
        async with httpx.AsyncClient(trust_env=False) as client:
            (await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)).raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""
"""The module posting_chat."""


def own_trace(taskset: str, role: str, key: str, replies: Sequence[str]) -> Any:
    """The trace of an episode on the task with this key, as verifiers runs it."""
    with model_server(replies) as url:
        client = {"type": "eval", "base_url": url, "api_key_var": "NO_SUCH_KEY"}
        agent = {"harness": {"id": "posting-chat"}, "runtime": {"type": "subprocess"}, "model": "m", "client": client}
        env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": taskset}, role: agent}))
        task = next(task for task in env.taskset if task.key == key)
        context = vf.ModelContext(model="m", client=getattr(env.config, role).client, sampling=vf.SamplingConfig())

        async def play() -> Any:
            async with env.serving():
                return await env.run_episode(task, context)

        episode = asyncio.run(play())
    assert episode.ok, [error.message for error in (*episode.errors, *(e for t in episode.traces for e in t.errors))]
    return episode.traces[0]


@contextmanager
def model_server(replies: Sequence[str]) -> Iterator[str]:
    """A server with OpenAI's chat completions that says the replies in turn."""
    left = list(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": left.pop(0)}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
