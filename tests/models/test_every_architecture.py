"""No architecture is silently wrong: each is scored as its own network scores it, or refused when it is loaded."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import tiny_tokenizer
from hand_made import plain_scores, ragged_rows
from tiny_architectures import MODEL_TYPES, build
from transformers import PreTrainedModel

from lmgym.errors import UserError
from lmgym.models.distribution import FULL_SOFTMAX
from lmgym.models.loading import wrap_network
from lmgym.models.token_scorer import TokenScorer, common_prefix

pytestmark = pytest.mark.slow


def differences(network: PreTrainedModel) -> tuple[float, float]:
    """Differences of our log-probs from the network's own, and from those on sequences without the later tokens."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(5, 99, (12,), generator=generator).tolist()
    rows = [prompt + torch.randint(5, 99, (length,), generator=generator).tolist() for length in (28, 19)]
    tokens, mask, lengths = ragged_rows([(row, [0] * len(prompt) + [1] * (len(row) - len(prompt))) for row in rows])
    own = copy.deepcopy(network)
    model = wrap_network(network, tiny_tokenizer(), torch.device("cpu"), torch.float32, "tiny")
    with torch.no_grad():
        scorer = TokenScorer(model, common_prefix(tokens, mask, lengths), FULL_SOFTMAX)
        ours = scorer.score(tokens, mask, lengths).logprobs
        exact = plain_scores(own, tokens, mask, temperature=1.0)[0]
        cut = len(prompt) + 8
        without_later_tokens = plain_scores(own, tokens[:, :cut], mask[:, :cut], temperature=1.0)[0]
    assert exact[mask].std() > 0.02, "log-probs that are all equal would test nothing"
    return float((ours - exact).abs().max()), float((ours[:, :cut] - without_later_tokens).abs().max())


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
