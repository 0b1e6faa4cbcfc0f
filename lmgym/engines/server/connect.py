"""Connects to servers by their addresses, and refuses those whose log-probs are not those of our model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from lmgym.distributed.processes import processes
from lmgym.engines.engine import Completion, Request
from lmgym.engines.server.engine import ServerEngine
from lmgym.engines.server.http import ServerUnreachableError
from lmgym.engines.server.server import Server
from lmgym.engines.server.sglang_server import SGLangServer
from lmgym.engines.server.vllm_server import VLLMServer
from lmgym.errors import UserError
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel

KINDS: dict[str, type[Server]] = {kind.kind: kind for kind in (VLLMServer, SGLangServer)}

ServerKind = Literal["vllm", "sglang"]

CHECKED_TOKENS = 8
CHECK_TEMPERATURE = 0.7
"""Not 1, so that log-probs of the raw logits are noticed."""
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.1}
"""Largest mean difference of log-probs, in nats, that rounding explains."""


def connect(kind: str, urls: Sequence[str], model: LanguageModel, folder: Path) -> ServerEngine:
    """The engine of these servers, after each of them has loaded the model's weights and passed the check."""
    if not urls:
        raise UserError(f"--engine {kind} needs the addresses of servers: --servers http://host:8000,http://host:8001")
    if not processes().is_first:  # which samples for all processes
        engine = ServerEngine(model, [], folder)
        engine.update_weights()  # as the first one does: all know which version was handed over
        return engine
    servers = [KINDS[kind](url) for url in dict.fromkeys(urls)]
    for server in servers:
        try:
            server.check_flags()
        except ServerUnreachableError as error:
            raise UserError(f"{error} Start one with `lmgym serve {model.name}`.") from error
    engine = ServerEngine(model, servers, folder)
    engine.update_weights()
    if engine.faults:
        raise UserError(" ".join(engine.faults))
    for server in servers:
        _check_logprobs(server, model)
    return engine


def _check_logprobs(server: Server, model: LanguageModel) -> None:
    """Samples a few tokens on the server and compares their log-probs with the model's own."""
    prompt = tuple(torch.randint(model.vocabulary_size, (16,), generator=torch.Generator().manual_seed(0)).tolist())
    request = Request(prompt, CHECKED_TOKENS, Distribution(CHECK_TEMPERATURE), seed=1)
    try:
        completion = server.complete("lmgym-check", request, model.eos_ids)
    except ServerUnreachableError as error:
        raise UserError(str(error)) from error
    difference = _logprob_difference(completion, request, model)
    if not difference <= TOLERANCE.get(model.dtype, 0.1):  # nan is too large
        raise UserError(
            f"{server.url} does not have the log-probs of {model.name}: they differ by {difference:.2g} on average. It "
            "serves another model, or log-probs of the raw logits; start it with `lmgym serve`."
        )


@torch.no_grad()
def _logprob_difference(completion: Completion, request: Request, model: LanguageModel) -> float:
    """The mean absolute difference of the completion's log-probs to the model's own."""
    if max(completion.token_ids) >= model.vocabulary_size:
        return float("inf")
    tokens = torch.tensor([[*request.prompt, *completion.token_ids]], device=model.device)
    logits = model.logits(model.plain_hidden_states(tokens))[0, len(request.prompt) - 1 : -1].float()
    expected = (logits / CHECK_TEMPERATURE).log_softmax(dim=-1)
    chosen = expected.gather(1, tokens[0, len(request.prompt) :, None])[:, 0]
    return float((chosen.cpu() - torch.tensor(completion.logprobs)).abs().mean())
