"""A judge behind HTTP: its probabilities equal the model's own, and busy, broken and silly servers are survived."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from conftest import tiny_model, tiny_network

from lmgym import Problem, UserError
from lmgym.engines.server.http import ServerUnreachableError
from lmgym.judges.answer_probabilities import answer_probabilities
from lmgym.judges.endpoint import AnswerCache, Endpoint, read_answer
from lmgym.judges.verbal import EpisodeVerbalReward, MultiDimensionVerbalReward
from lmgym.policies.rendering import render_conversation
from lmgym.types import Action, Episode, State, Step


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server whose answers a function gives."""

    def __init__(self, answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        self._say(200, {"data": [{"id": "first-model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        answer = self.server.answer(body)
        self._say(*answer) if isinstance(answer, tuple) else self._say(200, answer)

    def _say(self, code: int, body: Any) -> None:
        text = json.dumps(body).encode()
        with contextlib.suppress(BrokenPipeError):  # a client that has given up
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Server] = []

    def start(answer) -> Server:
        server = Server(answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def completion(**logprobs: float) -> dict[str, Any]:
    tops = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    first = max(logprobs, key=lambda token: logprobs[token])
    content = [{"token": first, "logprob": logprobs[first], "top_logprobs": tops}]
    return {"choices": [{"message": {"content": first}, "logprobs": {"content": content}}]}


def chat(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@torch.no_grad()
def most_probable(model, messages, count: int) -> dict[str, float]:
    """The next tokens of the plain network and their log-probs."""
    ids = model.tokenizer(render_conversation(model, messages), add_special_tokens=False)["input_ids"]
    top = tiny_network()(torch.tensor([ids])).logits[0, -1].log_softmax(-1).topk(count)
    return {model.tokenizer.decode([int(token)]): float(value) for value, token in zip(*top, strict=True)}


def test_probabilities_equal_those_of_the_model_in_this_process(serve):
    model = tiny_model()
    server = serve(lambda body: completion(**most_probable(model, body["messages"], body["top_logprobs"])))
    endpoint = Endpoint(server.url)
    question = chat("Is 7 good?")
    answers = [text for text in most_probable(model, question, 20) if text.isalnum()][:2]
    found, exact = endpoint([question], answers), answer_probabilities(model, [question], answers)
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=0)
    assert endpoint.model == "first-model"


def test_many_questions_are_asked_at_once_and_only_once(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    def slow(body):
        time.sleep(0.05)
        return completion(yes=-0.1, no=-2.5)

    server = serve(slow)
    chats = [chat(f"question {number}") for number in range(16)]
    for _ in range(2):
        endpoint = Endpoint(server.url, "judge", AnswerCache(tmp_path / "judges.sqlite"))
        found = endpoint(chats, ["yes", "no"])
        assert found[:, 0].tolist() == pytest.approx([math.exp(-0.1) / (math.exp(-0.1) + math.exp(-2.5))] * 16)
    assert len(server.requests) == 16
    assert {request["model"] for request in server.requests} == {"judge"}
    assert set(server.keys) == {"Bearer secret"}
    Endpoint(server.url, "another", AnswerCache(tmp_path / "judges.sqlite"))(chats[:1], ["yes", "no"])
    assert len(server.requests) == 17


def test_a_busy_server_is_asked_again_and_a_broken_one_given_up(serve):
    answers = iter([(429, {"error": "busy"}), (503, {"error": "starting"}), completion(yes=-0.1)])
    patient = Endpoint(serve(lambda body: next(answers)).url, "m", waits=(0.01, 0.01, 0.01))
    assert patient([chat("?")], ["yes", "no"]).tolist() == [[1, 0]]
    broken = Endpoint(serve(lambda body: (500, {"error": "out of memory"})).url, "m", waits=(0.01,))
    assert broken([chat("?")], ["yes", "no"]).isnan().all()


def test_a_server_that_hangs_is_given_up(serve):
    def hangs(body):
        time.sleep(3)
        return completion(yes=-0.1)

    endpoint = Endpoint(serve(hangs).url, "m", deadline=0.3, waits=())
    started = time.monotonic()
    assert endpoint([chat("?")], ["yes", "no"]).isnan().all()
    assert time.monotonic() - started < 2.5


@pytest.mark.parametrize(
    "response",
    [{}, {"choices": []}, [], None, "yes", {"choices": [{"message": {"content": "maybe"}}]}, completion(perhaps=-0.1)],
)
def test_nonsense_is_no_answer(response):
    assert all(map(math.isnan, read_answer(response, ["yes", "no"])))


def test_an_endpoint_without_logprobs_is_read_by_its_text():
    response = {"choices": [{"message": {"content": " Yes."}}]}
    assert read_answer(response, ["yes", "no"]) == [1, 0]


def test_scores_need_a_tokenizer_that_writes_ten_as_one_token(serve):
    whole = serve(lambda body: completion(**{"10": -0.1, "1": -3.0}))
    assert Endpoint(whole.url, "m")([chat("?")], ["1", "10"])[0, 1] > 0.9
    digits = serve(lambda body: completion(**{"1": -0.1}))
    with pytest.raises(UserError, match="writes 10 as several tokens"):
        Endpoint(digits.url, "m")([chat("?")], ["1", "10"])


def test_a_wrong_address_is_one_sentence():
    with pytest.raises(UserError, match="not the address of a server"):
        Endpoint("localhost:8000")
    with pytest.raises(UserError, match="cannot be asked"):
        Endpoint("http://127.0.0.1:9/v1")


def episode(text: str, group: int = 0) -> Episode:
    state = State(Problem("p", "2+3?", "5"), tuple(chat("2+3?")), group=group)
    return Episode((Step(state, Action(text), 1.0, True, False, {}, state.after(text)),))


def test_a_question_without_an_answer_costs_its_episode(serve):
    server = serve(lambda body: (500, {}) if "unlucky" in body["messages"][0]["content"] else completion(yes=-0.1))
    judge = MultiDimensionVerbalReward(Endpoint(server.url, "m", waits=()), weight=0.5)
    judged = judge.judged([episode("lucky"), episode("unlucky")])
    assert [each.error for each in judged] == [None, "the judge dimensions failed: it gave no score"]
    assert judged[0].reward == pytest.approx(1.5)


def test_a_judge_that_raises_costs_only_the_groups_it_raises_for():
    class Fragile(EpisodeVerbalReward):
        def scores(self, episodes):
            if any("bad" in each.text for each in episodes):
                raise ServerUnreachableError("gone")
            return [[1.0] for _ in episodes]

    judged = Fragile(lambda chats, answers: torch.zeros(0)).judged([episode("a"), episode("bad", 1), episode("b", 1)])
    assert [each.error is None for each in judged] == [True, False, False]
    assert "ServerUnreachableError: gone" in (judged[1].error or "")
