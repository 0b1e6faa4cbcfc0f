"""The logit scale and the logit soft cap that some architectures apply after the output layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import PretrainedConfig

MULTIPLIERS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Config fields of Cohere, Falcon-H1 and Muse that multiply the logits."""

DIVISORS = ("logits_scaling",)
"""Config field of Granite that divides the logits."""

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Config fields c of Gemma, RecurrentGemma and xLSTM: logits become c · tanh(logits / c)."""


@dataclass(frozen=True)
class LogitTransform:
    """Maps the output layer's products x to logits: x · scale, then cap · tanh(x · scale / cap) if there is a cap."""

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: PretrainedConfig) -> LogitTransform:
        """The transform of a model config, or of its text config if the model is multimodal."""
        text = config.get_text_config()

        def values(names: tuple[str, ...]) -> list[float]:
            found = [getattr(text, name, None) for name in names]
            return [float(value) for value in found if isinstance(value, int | float) and value]

        scale = 1.0
        for value in values(MULTIPLIERS):
            scale *= value
        for value in values(DIVISORS):
            scale /= value
        return cls(scale, next(iter(values(SOFT_CAPS)), None))

    def apply_(self, products: Tensor) -> Tensor:
        """The logits in float32, computed in place if the products are float32."""
        if self == IDENTITY:
            return products
        logits = products.float()
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def slope(self, logits: Tensor) -> Tensor | float:
        """∂logit/∂product: the scale, or with a soft cap scale · (1 − (logit / cap)²)."""
        if self.softcap is None:
            return self.scale
        return (logits / self.softcap).square_().neg_().add_(1).mul_(self.scale)


IDENTITY = LogitTransform()
"""No scale and no soft cap: the logits are the output layer's products."""
