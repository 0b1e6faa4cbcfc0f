"""The distribution that tokens are drawn from, which sampler and learner must share: it is part of the policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmgym.errors import UserError

LIKELIEST = 512
"""Where so many ids do not hold the mass that top-p asks for, the whole vocabulary is sorted."""


@dataclass(frozen=True)
class Distribution:
    """The softmax of logits at a temperature, cut to the likeliest ids and normalised again."""

    temperature: float = 1.0
    """0 is greedy: the likeliest id, whose probability is reported at temperature 1."""
    top_k: int = 0
    """Only so many of the likeliest ids; 0 is all of them."""
    top_p: float = 1.0
    """Only the fewest likeliest ids that hold this much of the probability that top-k left."""

    def check(self) -> None:
        """Refuses what is no distribution."""
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature is {self.temperature}: it must be 0 or more.")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(f"--top_k is {self.top_k} and --top_p {self.top_p}: at least 0, and above 0 up to 1.")

    @property
    def is_cut(self) -> bool:
        """Whether some ids can never be drawn."""
        return self.top_k > 0 or self.top_p < 1

    def apply(self, logits: Tensor, keep: Tensor | None = None) -> Tensor:
        """Logits [rows, vocabulary], changed in place, whose softmax this is; `keep` [rows] are never cut away.

        An id as likely as the last one kept is kept too, so that equal logits never depend on an order.
        """
        if self.temperature not in (0, 1):
            logits = logits.div_(self.temperature)
        if not self.is_cut or not len(logits):
            return logits
        least = logits.new_full((len(logits), 1), float("-inf"))
        if 0 < self.top_k < logits.shape[1]:
            least = logits.topk(self.top_k, dim=1).values[:, -1:]
        if self.top_p < 1:
            within = logits.masked_fill(logits < least, float("-inf"))
            least = torch.maximum(least, _least_of_mass(within, self.top_p))
        cut = logits < least
        if keep is not None:
            cut.scatter_(1, keep[:, None], False)
        return logits.masked_fill_(cut, float("-inf"))


WHOLE = Distribution()
"""The model's own softmax."""


def _least_of_mass(logits: Tensor, mass: float) -> Tensor:
    """[rows, 1] the logit of the last id needed for so much probability, likeliest first."""
    total = logits.double().logsumexp(dim=1, keepdim=True)
    count = min(LIKELIEST, logits.shape[1])
    likeliest = logits.topk(count, dim=1).values
    if count < logits.shape[1] and bool(((likeliest.double() - total).exp().sum(dim=1) < mass).any()):
        likeliest = logits.sort(dim=1, descending=True).values
    sums = (likeliest.double() - total).exp().cumsum(dim=1)
    last = (sums < mass).sum(dim=1, keepdim=True).clamp_(max=likeliest.shape[1] - 1)
    return likeliest.gather(1, last)
