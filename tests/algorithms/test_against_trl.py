"""The same log-probs, masks and advantages through TRL's released loss give the same number and the same gradient."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from tabular import LIMIT, bare_scores, make_algorithm
from torch import Tensor

from lmgym.learning.batch import Batch

pytest.importorskip("trl", reason="TRL is not installed; pip install 'lmgym[baselines]' to compare with it")

from trl import GRPOTrainer

ROWS, LENGTH = 5, 7
KL = 0.07


def numbers(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(ROWS, LENGTH, generator=torch.Generator().manual_seed(seed))


MASK = torch.tensor([[column < length for column in range(LENGTH)] for length in (7, 3, 5, 1, 6)])
OLD = (numbers(0) - 2) * MASK
NEW = (OLD + numbers(1, 0.4)) * MASK
REFERENCE = (NEW + numbers(2, 0.3)) * MASK
ADVANTAGES = torch.tensor([1.2, -0.7, 0.4, -1.5, 0.0])


def trl_loss(loss_type: str, logprobs: Tensor, *, level: str = "token", low: float, high: float, beta: float) -> Tensor:
    """TRL's own method, on an object that has what it looks at and no model."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LIMIT,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        args=SimpleNamespace(
            use_bias_correction_kl=False,
            delta=None,
            steps_per_generation=1,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
        ),
    )
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1),
        "completion_ids": torch.zeros(ROWS, LENGTH, dtype=torch.long),
        "completion_mask": MASK.float(),
        "advantages": ADVANTAGES,
        "old_per_token_logps": OLD,
        "ref_per_token_logps": REFERENCE,
        "num_items_in_batch": MASK.sum().float(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)  # type: ignore[arg-type]


def our_batch() -> Batch:
    return Batch.from_tensors(
        tokens=torch.zeros(ROWS, LENGTH, dtype=torch.long),
        lengths=MASK.sum(dim=1),
        mask=MASK,
        logprobs=OLD,
        step_index=torch.where(MASK, 0, -1),
        rewards=ADVANTAGES[:, None],
        step_count=torch.ones(ROWS, dtype=torch.long),
        group=torch.zeros(ROWS, dtype=torch.long),
        policy_version=torch.zeros(ROWS, dtype=torch.long),
        truncated=torch.zeros(ROWS, dtype=torch.bool),
        seed=torch.arange(ROWS),
    ).with_(advantages=ADVANTAGES[:, None] * MASK, reference_logprobs=REFERENCE, length_limit=LIMIT)


NO_FILTER = {"filter_groups": False, "max_resample_rounds": 1}
"""A KL goes with no filter."""

CASES = [
    ("grpo", {}, "grpo", "token", 0.2, 0.2),
    ("grpo", {"averaging": "token"}, "bnpo", "token", 0.2, 0.2),
    ("dr-grpo", {}, "dr_grpo", "token", 0.2, 0.2),
    ("dapo", NO_FILTER, "dapo", "token", 0.2, 0.28),
    ("gspo", {}, "grpo", "sequence", 3e-4, 4e-4),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1}, "grpo", "sequence", 0.1, 0.1),
    ("cispo", {}, "cispo", "token", 0.2, 5.0),
    ("cispo", {"tis_cap": 1.1}, "cispo", "token", 0.2, 1.1),
    ("sapo", {}, "sapo", "token", 0.2, 0.2),
]


# CISPO's KL is left out: we weigh the KL of an old token by how likely it is now, TRL only with use_bias_correction_kl.
WITH_KL = [(*case, KL) for case in CASES if case[0] != "cispo"]


@pytest.mark.parametrize(
    ("name", "settings", "loss_type", "level", "low", "high", "beta"), [*((*case, 0.0) for case in CASES), *WITH_KL]
)
def test_the_same_number_as_trl(name, settings, loss_type, level, low, high, beta):
    settings = settings if name == "cispo" else {**settings, "tis_cap": 0.0}  # TRL does not weigh the KL
    algorithm = make_algorithm(name, kl_coeff=beta, **settings)
    ours, theirs = NEW.clone().requires_grad_(), NEW.clone().requires_grad_()
    our_loss = algorithm.loss(bare_scores(ours), our_batch().with_(kl_coeff=beta))
    trl = trl_loss(loss_type, theirs, level=level, low=low, high=high, beta=beta)
    assert our_loss.item() == pytest.approx(trl.item(), rel=1e-5, abs=1e-7)
    if not beta:  # with a KL, TRL differentiates k3, which is not the gradient of the KL
        our_loss.backward()
        trl.backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad * MASK, atol=1e-7)


def test_where_trl_differs_it_is_in_the_gradient_of_the_kl():
    """Ours is that of KL(policy ‖ reference); theirs, of k3 as it stands, is that of the KL the other way round."""
    ours, theirs = NEW.clone().requires_grad_(), NEW.clone().requires_grad_()
    make_algorithm("grpo", kl_coeff=KL, tis_cap=0.0).loss(bare_scores(ours), our_batch().with_(kl_coeff=KL)).backward()
    trl_loss("grpo", theirs, low=0.2, high=0.2, beta=KL).backward()
    log_ratio = NEW - REFERENCE
    exact = KL * (log_ratio - (1 - (-log_ratio).exp())) * MASK / MASK.sum(dim=1, keepdim=True) / ROWS
    assert exact.abs().max() > 1e-4
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad - theirs.grad * MASK, exact, atol=1e-7)
