"""DPO: pairs come from the policy as it was at the start, never from the one that learns (Rafailov et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.online_dpo import OnlineDPO, OnlineDPOConfig
from lmgym.errors import UserError


@dataclass
class DPOConfig(OnlineDPOConfig):
    """DPO on pairs that the reference sampled; under LoRA that is the base model."""

    def check(self) -> None:
        """Also refuses a reference that moves: what it sampled before would no longer be its own."""
        super().check()
        if self.update_reference_every:
            raise UserError("dpo's reference stays where it is: leave --update_reference_every out, or use online-dpo.")


class DPO(OnlineDPO):
    """The reference acts, so every pair is offline data (https://arxiv.org/abs/2305.18290)."""

    Config: ClassVar[type[RLConfig]] = DPOConfig
    config: DPOConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert self.reference is not None
        self.actor = self.policy.with_model(self.reference.acting_model())
