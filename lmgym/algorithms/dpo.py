"""DPO: pairs come from the policy as it was at the start, never from the one that learns (Rafailov et al., 2023)."""

from __future__ import annotations

from typing import Any

from lmgym.algorithms.online_dpo import OnlineDPO


class DPO(OnlineDPO):
    """The reference acts, so every pair is offline data (https://arxiv.org/abs/2305.18290)."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert self.reference is not None
        self.actor = self.policy.stranger(self.reference.acting_model())
