"""The command that `lmgym serve` makes for vLLM; the servers themselves are tested in tests/engines/server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lmgym.commands.serve import ServeSettings, vllm_command
from lmgym.engines.server.vllm_server import CPU_FLAGS, FLAGS


@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_command_has_what_the_engine_needs(monkeypatch, has_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    settings = ServeSettings("my-model", port=8001, lora_rank=8)
    command, environment = vllm_command(settings, Path("folder"), ["--tensor-parallel-size", "2"])
    assert [*FLAGS] == command[command.index(FLAGS[0]) : command.index(FLAGS[0]) + len(FLAGS)]
    assert (CPU_FLAGS[0] in command) is not has_gpu
    assert command[command.index("--model") + 1] == "folder"
    assert command[command.index("--served-model-name") + 1] == "my-model"
    assert command[command.index("--max-lora-rank") + 1] == "8"
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
