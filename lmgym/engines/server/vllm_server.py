"""A vLLM server (0.32 or later): token ids in and out, weights from a folder, LoRA adapters by name."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from lmgym.engines.engine import Completion, Request
from lmgym.engines.server.http import ServerUnreachableError, get, get_text, post, post_for_text
from lmgym.engines.server.server import CONTROL_SECONDS, RELOAD_SECONDS, Server, ServerStatus
from lmgym.errors import UserError
from lmgym.types import Finish

FLAGS = ("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1")
"""Flags that a server of ours needs: token ids as an API, and log-probs of the distribution that was sampled from."""

CPU_FLAGS = ("--no-enable-chunked-prefill",)
"""On a CPU, vLLM 0.32 fails when a prompt is computed in parts and its request has a seed, as ours have."""

ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""The routes that replace weights exist only in this mode."""

LORA_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prefix_cache_queries_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
}


class VLLMServer(Server):
    """Speaks the routes of `vllm serve`; lmgym itself never imports vLLM."""

    kind = "vllm"

    def __init__(self, url: str, seconds: float = 600.0) -> None:
        super().__init__(url, seconds)
        self._adapters: list[str] = []
        """Names of the adapters that were loaded, the current one last."""

    def complete(self, name: str, request: Request, eos_ids: frozenset[int]) -> Completion:
        """Samples a completion; the prefix cache is salted by the version, so that no old keys are used."""
        distribution = request.distribution
        body: dict[str, Any] = {
            "request_id": name,
            "token_ids": list(request.prompt),
            "sampling_params": {
                "max_tokens": request.max_tokens,
                "temperature": distribution.temperature,
                "top_k": distribution.top_k,
                "top_p": distribution.top_p,
                "seed": request_seed(request),
                "stop_token_ids": sorted(request.stop_ids | eos_ids),
                "logprobs": 0,
                "detokenize": False,
                "extra_args": {"seed": request.seed, "draws": request.draws},  # for a server of our own
            },
            "cache_salt": self.label,
        }
        adapter = self._adapters[-1] if self._adapters else None
        if adapter is not None:
            body["model"] = adapter
        answer = post(self.url, "/inference/v1/generate", body, self.seconds)
        return self._completion(answer["choices"][0], request, eos_ids, adapter)

    def abort(self, names: list[str]) -> None:
        """Ends requests; a server that does not answer has none left."""
        with contextlib.suppress(ServerUnreachableError):
            post(self.url, "/inference/v1/abort_requests", {"request_ids": names}, CONTROL_SECONDS)

    def load_weights(self, folder: Path, version: int) -> None:
        """Pauses, loads the weights, labels them with their version, and continues."""
        post(self.url, "/pause?mode=keep&clear_cache=false", {}, CONTROL_SECONDS)
        try:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            post(self.url, "/collective_rpc", reload, RELOAD_SECONDS)
            self.version = version  # before it continues, so that no request has the salt of older weights
            post(self.url, "/update_weight_version", {"new_version": self.label}, CONTROL_SECONDS)
        finally:
            post(self.url, "/resume", {}, CONTROL_SECONDS)

    def load_adapter(self, folder: Path, version: int) -> None:
        """Adds the adapter of this version and asks for it from now on; removes all but the last two.

        A request that was sent before may still be for the one before.
        """
        self.version = version
        name = self.label
        try:
            post_for_text(
                self.url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, RELOAD_SECONDS
            )
        except UserError as error:
            if "already been loaded" not in str(error):
                raise
        self._adapters = [*(each for each in self._adapters if each != name), name]
        while len(self._adapters) > 2:
            with contextlib.suppress(UserError):  # a server that was restarted does not have it
                post_for_text(
                    self.url, "/v1/unload_lora_adapter", {"lora_name": self._adapters.pop(0)}, CONTROL_SECONDS
                )

    def check_flags(self) -> None:
        """Refuses a server without the token API or without the control routes."""
        routes = get(self.url, "/openapi.json", CONTROL_SECONDS)["paths"]
        start = f"start it with `lmgym serve`, or add {' '.join(FLAGS)} and VLLM_SERVER_DEV_MODE=1"
        if missing := [route for route in ("/inference/v1/generate", "/collective_rpc") if route not in routes]:
            raise UserError(f"{self.url} has no route {missing[0]}: {start}.")

    def status(self) -> ServerStatus:
        """What it is serving, from its list of models and its metrics."""
        model = get(self.url, "/v1/models", CONTROL_SECONDS)["data"][0]["id"]
        version = get(self.url, "/weight_info", CONTROL_SECONDS)["weight_version"]
        text = get_text(self.url, "/metrics", CONTROL_SECONDS)
        return ServerStatus(model, str(version), **{name: _metric(text, label) for name, label in METRICS.items()})

    def _completion(
        self, choice: dict[str, Any], request: Request, eos_ids: frozenset[int], adapter: str | None
    ) -> Completion:
        tokens, logprobs = list(choice["token_ids"] or []), choice["logprobs"]
        if choice["finish_reason"] == "abort" or not tokens:
            raise ServerUnreachableError(f"{self.url} ended a request without a completion.")
        if logprobs is None or len(logprobs["content"]) != len(tokens):
            raise UserError(f"{self.url} does not return the log-prob of each token; start it with `lmgym serve`.")
        last = tokens[-1]
        finish: Finish = "eos" if last in eos_ids else "stop" if last in request.stop_ids else "length"
        versions = [self.version_of(adapter)] * len(tokens) if adapter is not None else self._versions(choice)
        return Completion(tokens, [each["logprob"] for each in logprobs["content"]], finish, versions)

    def _versions(self, choice: dict[str, Any]) -> list[int]:
        """The version of each token."""
        versions: list[int] = []
        for span in choice["weight_versions"] or []:
            versions += [self.version_of(span["version"])] * (span["end"] - span["start"])
        if len(versions) != len(choice["token_ids"]):
            raise UserError(f"{self.url} does not say which weights sampled each token: vLLM must be 0.32 or later.")
        return versions


def request_seed(request: Request) -> int:
    """A seed for vLLM's random stream, which every request begins anew: a continued action must not repeat itself."""
    return (request.seed * 1_000_003 + request.draws) % (1 << 63)


def _metric(text: str, name: str) -> int:
    """The sum of a metric in Prometheus' text form over its labels."""
    return int(sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))
