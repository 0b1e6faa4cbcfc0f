"""The sampling distribution (temperature, top-k, top-p): part of the policy, so sampler and learner share it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmgym.errors import UserError

TOP_P_CANDIDATES = 512
"""Top-p first looks at this many of the most likely ids; the vocabulary is sorted only if they are not enough."""


@dataclass(frozen=True)
class Distribution:
    """The softmax of the logits at a temperature, truncated by top-k and then top-p, and renormalised."""

    temperature: float = 1.0
    """0 is greedy decoding, whose log-probabilities are reported at temperature 1."""
    top_k: int = 0
    """Keep this many of the most likely ids; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely ids that hold this share of the probability left by top-k."""

    def check(self) -> None:
        """Refuses settings that are out of range."""
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature is {self.temperature}: it must be 0 or more, and finite.")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                f"--top_k is {self.top_k} and --top_p {self.top_p}: --top_k must be at least 0 and --top_p above 0 and "
                "at most 1."
            )

    @property
    def is_truncated(self) -> bool:
        """Whether top-k or top-p sets the probability of some ids to 0."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def divisor(self) -> float:
        """What logits are divided by: the temperature, or 1 for greedy decoding."""
        return self.temperature or 1.0

    def apply_(self, logits: Tensor, keep: Tensor | None = None) -> Tensor:
        """Scales and truncates logits [rows, vocabulary] in place; the ids `keep` [rows] are never truncated.

        Ids that tie with the last one kept are kept too, so that the result does not depend on the order of ids.
        """
        if self.divisor != 1:
            logits = logits.div_(self.divisor)
        if not self.is_truncated or not len(logits):
            return logits
        threshold = logits.new_full((len(logits), 1), float("-inf"))
        if 0 < self.top_k < logits.shape[1]:
            threshold = logits.topk(self.top_k, dim=1).values[:, -1:]
        if self.top_p < 1:
            within_top_k = logits.masked_fill(logits < threshold, float("-inf"))
            threshold = torch.maximum(threshold, _top_p_threshold(within_top_k, self.top_p))
        removed = logits < threshold
        if keep is not None:
            removed.scatter_(1, keep[:, None], False)
        return logits.masked_fill_(removed, float("-inf"))


FULL_SOFTMAX = Distribution()
"""The model's own softmax: temperature 1, no truncation."""


def _top_p_threshold(logits: Tensor, top_p: float) -> Tensor:
    """[rows, 1] the smallest logit that top-p keeps."""
    accurate = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no float64
    log_total = logits.to(accurate).logsumexp(dim=1, keepdim=True)
    count = min(TOP_P_CANDIDATES, logits.shape[1])
    candidates = logits.topk(count, dim=1).values  # [rows, count], descending
    if count < logits.shape[1] and bool(((candidates.to(accurate) - log_total).exp().sum(dim=1) < top_p).any()):
        candidates = logits.sort(dim=1, descending=True).values
    cumulative = (candidates.to(accurate) - log_total).exp().cumsum(dim=1)
    last = (cumulative < top_p).sum(dim=1, keepdim=True).clamp_(max=candidates.shape[1] - 1)
    return candidates.gather(1, last)
