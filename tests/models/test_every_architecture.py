"""No architecture is silently wrong: each is scored as its own network scores it, or refused when it is made."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import tiny_tokenizer
from hand_made import plain_scores, ragged_rows
from tiny_architectures import MODEL_TYPES, build
from transformers import PreTrainedModel

from lmgym.errors import UserError
from lmgym.models.distribution import WHOLE
from lmgym.models.loading import wrap_network
from lmgym.models.token_scorer import TokenScorer, common_trunk

pytestmark = pytest.mark.slow


def differences(network: PreTrainedModel) -> tuple[float, float]:
    """How far our log-probs are from the network's own, and from what it says where later tokens are missing."""
    generator = torch.Generator().manual_seed(1)
    stem = torch.randint(5, 99, (12,), generator=generator).tolist()
    rows = [stem + torch.randint(5, 99, (length,), generator=generator).tolist() for length in (28, 19)]
    tokens, mask, lengths = ragged_rows([(row, [0] * len(stem) + [1] * (len(row) - len(stem))) for row in rows])
    own = copy.deepcopy(network)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny")
    with torch.no_grad():
        scorer = TokenScorer(model, common_trunk(tokens, mask, lengths), WHOLE)
        ours = scorer.score(tokens, mask, lengths).logprobs
        exact = plain_scores(own, tokens, mask, temperature=1.0)[0]
        cut = len(stem) + 8
        without_the_rest = plain_scores(own, tokens[:, :cut], mask[:, :cut], temperature=1.0)[0]
    assert exact[mask].std() > 0.02, "a network without opinions shows nothing"
    return float((ours - exact).abs().max()), float((ours[:, :cut] - without_the_rest).abs().max())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_architecture_is_exact_or_refused(model_type, record_property):
    network = build(model_type)
    if isinstance(network, str):
        pytest.skip(f"cannot be built tiny: {network}")
    try:
        from_own, from_earlier = differences(network)
    except UserError as refusal:
        record_property("refused", str(refusal))
        return
    record_property("exact", from_own)
    assert from_own < 1e-3
    assert from_earlier < 1e-3
