"""How far an update moves the policy, and a limit to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmgym.learning.batch import Batch
from lmgym.learning.learner import Learner, Update
from lmgym.losses import kl_estimate, masked_mean

EPISODES = 8
"""Episodes of an update of which the KL is measured: a forward pass for each of them."""

ATTEMPTS = 4
"""How often an update is scaled back at most: the KL is quadratic only for small updates."""


AIM = 0.9
"""An update is scaled to this share of the limit, so that once is nearly always enough."""


class TrustRegion:
    """Measures the KL per token of each update; one above the limit is scaled back towards the weights before it.

    The step keeps its direction, as in TRPO (Schulman et al., 2015, https://arxiv.org/abs/1502.05477). The KL of a
    small step is quadratic in its length, so the factor is the root of limit / KL.
    """

    def __init__(self, learner: Learner, max_kl: float) -> None:
        """`max_kl` is in nats per token; 0 only measures."""
        self.learner = learner
        self.max_kl = max_kl
        self._before: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Keeps a copy of the weights, if there is a limit."""
        if self.max_kl:
            self._before = {name: weight.detach().clone() for name, weight in self.learner.parameters().items()}

    def end(self, update: Update, computed: Batch) -> dict[str, float]:
        """Scales the update back if necessary; its KL, and the share of it that is left where there is a limit.

        Nothing is measured of episodes that another policy sampled.
        """
        rows = torch.nonzero(computed.on_policy)[:, 0]
        before, self._before = self._before, {}
        if not len(rows):
            return {}
        rows = rows[:: math.ceil(len(rows) / EPISODES)]
        sample, logprobs = computed.select(rows), update.logprobs[rows]
        kl, left = self._kl(sample, logprobs), 1.0
        for _ in range(ATTEMPTS if self.max_kl else 0):
            if kl <= self.max_kl:
                break
            # A KL that overflows says nothing of the step's length, and nan would spoil every weight.
            factor = math.sqrt(AIM * self.max_kl / kl) if math.isfinite(kl) else 0.1
            self._scale(before, factor)
            kl, left = self._kl(sample, logprobs), left * factor
        return {"update_kl": kl} | ({"update_scale": left} if self.max_kl else {})

    def _kl(self, sample: Batch, before: Tensor) -> float:
        """KL(policy before ‖ policy now) per token, from samples of the former."""
        return masked_mean(kl_estimate(before, self.learner.logprobs(self.learner.model, sample), "k3"), sample.mask)

    @torch.no_grad()
    def _scale(self, before: dict[str, Tensor], factor: float) -> None:
        for name, weight in self.learner.parameters().items():
            weight.lerp_(before[name], 1 - factor)
