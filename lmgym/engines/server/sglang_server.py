"""An SGLang server (0.5 or later): the same engine, its own routes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lmgym.engines.engine import Completion, Request
from lmgym.engines.server.http import ServerUnreachableError, get, post
from lmgym.engines.server.server import CONTROL_SECONDS, RELOAD_SECONDS, Server, ServerStatus
from lmgym.errors import UserError
from lmgym.types import Finish


class SGLangServer(Server):
    """Speaks the routes of `python -m sglang.launch_server`; not tried against a real server here."""

    kind = "sglang"

    def complete(self, name: str, request: Request, eos_ids: frozenset[int]) -> Completion:
        """Samples a completion; refuses top-k and top-p, because SGLang's log-probs are those before them."""
        distribution = request.distribution
        if distribution.is_truncated:
            raise UserError(
                "SGLang reports log-probs of the distribution before --top_k and --top_p, which would be wrong here: "
                "leave them out, or use vLLM."
            )
        body = {
            "rid": name,
            "input_ids": list(request.prompt),
            "sampling_params": {
                "max_new_tokens": request.max_tokens,
                "temperature": distribution.temperature,
                "stop_token_ids": sorted(request.stop_ids | eos_ids),
                "skip_special_tokens": False,
            },
            "return_logprob": True,
        }
        meta = post(self.url, "/generate", body, self.seconds)["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise ServerUnreachableError(f"{self.url} ended a request without a completion.")
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        tokens = [entry[1] for entry in meta["output_token_logprobs"]]
        version = self.version_of(str(meta["weight_version"]))
        finish: Finish = "eos" if tokens[-1] in eos_ids else "stop" if tokens[-1] in request.stop_ids else "length"
        return Completion(tokens, logprobs, finish, [version] * len(tokens))

    def abort(self, names: list[str]) -> None:
        """Ends requests; a server that does not answer has none left."""
        for name in names:
            with contextlib.suppress(ServerUnreachableError):
                post(self.url, "/abort_request", {"rid": name}, CONTROL_SECONDS)

    def load_weights(self, folder: Path, version: int) -> None:
        """Pauses, loads the weights with their version, clears the cache of the old ones, and continues."""
        post(self.url, "/pause_generation", {}, CONTROL_SECONDS)
        try:
            self.version = version
            body = {"model_path": str(folder), "flush_cache": True, "weight_version": self.label}
            answer = post(self.url, "/update_weights_from_disk", body, RELOAD_SECONDS)
            if not answer["success"]:
                raise UserError(f"{self.url} cannot load {folder}: {answer['message']}.")
        finally:
            post(self.url, "/continue_generation", {}, CONTROL_SECONDS)

    def load_adapter(self, folder: Path, version: int) -> None:
        """Not offered: SGLang's adapters have no version."""
        raise UserError("--lora_rank with SGLang servers is not supported: use vLLM servers, or train all weights.")

    def check_flags(self) -> None:
        """A server without the routes answers with an error."""
        get(self.url, "/get_model_info", CONTROL_SECONDS)

    def status(self) -> ServerStatus:
        """What it is serving, and its load."""
        info = get(self.url, "/get_model_info", CONTROL_SECONDS)
        load = get(self.url, "/get_load", CONTROL_SECONDS)[0]
        running = load["num_reqs"] - load["num_waiting_reqs"]
        return ServerStatus(info["model_path"], str(info["weight_version"]), running, load["num_waiting_reqs"])
