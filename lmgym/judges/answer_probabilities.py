"""The probabilities of a few given answers to each of many questions, from one forward pass.

    chats × answers ── rows: question ids + answer ids ── TokenScorer ──► log P(answer | question) ──► normalised

The answers to a question share its prefix and questions share their instructions, and each shared token is computed
once. An answer that begins like another one, `1` and `10` in a tokenizer of digits, is followed by the end of the turn,
so that the probability is that of exactly this answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmgym.errors import UserError
from lmgym.learning.batch import Batch
from lmgym.models.distribution import Distribution
from lmgym.models.language_model import LanguageModel
from lmgym.models.token_scorer import TokenScorer, common_prefix
from lmgym.policies.rendering import render_conversation
from lmgym.types import Message

MICRO_BATCH_TOKENS = 4096


@torch.no_grad()
def answer_probabilities(model: LanguageModel, chats: Sequence[Sequence[Message]], answers: Sequence[str]) -> Tensor:
    """Probabilities [chats, answers]; those of one chat add up to 1."""
    if not chats:
        return torch.zeros(0, len(answers))
    candidates = answer_ids(model, answers)
    rows = [(prompt, answer) for prompt in (_prompt_ids(model, chat) for chat in chats) for answer in candidates]
    batch = _batch(rows)
    scorer = TokenScorer(model, common_prefix(batch.tokens, batch.mask, batch.lengths), Distribution())
    logprobs = [
        scorer.score(*(part.to(model.device) for part in (each.tokens, each.mask, each.lengths))).logprobs.sum(1).cpu()
        for each in batch.micro_batches(MICRO_BATCH_TOKENS, scorer.prefix_length)
    ]
    return torch.cat(logprobs).view(len(chats), len(answers)).softmax(-1)


def answer_ids(model: LanguageModel, answers: Sequence[str]) -> list[list[int]]:
    """The ids of each answer; all end the turn if one of them begins like another."""
    ids = [list(model.tokenizer(answer, add_special_tokens=False)["input_ids"]) for answer in answers]
    if any(not each for each in ids) or len({tuple(each) for each in ids}) < len(ids):
        raise UserError(f"the tokenizer of {model.name} cannot tell these answers apart: {', '.join(answers)}.")
    is_ambiguous = any(one != other and other[: len(one)] == one for one in ids for other in ids)
    if is_ambiguous and model.tokenizer.eos_token_id is None:
        raise UserError(
            f"the tokenizer of {model.name} has no end token: answers that begin alike cannot be told apart."
        )
    return [[*each, model.tokenizer.eos_token_id] if is_ambiguous else each for each in ids]


def _prompt_ids(model: LanguageModel, chat: Sequence[Message]) -> list[int]:
    return list(model.tokenizer(render_conversation(model, chat), add_special_tokens=False)["input_ids"])


def _batch(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """Questions as prompts and answers as actions; the rewards and versions are not used."""
    count, longest = len(rows), max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.zeros(count, longest, dtype=torch.long)
    mask = torch.zeros(count, longest, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        mask[row, len(prompt) : end] = True
    return Batch.from_tensors(
        tokens=tokens,
        lengths=torch.tensor([len(prompt) + len(answer) for prompt, answer in rows]),
        mask=mask,
        logprobs=torch.zeros(count, longest),
        step_index=torch.where(mask, 0, -1),
        rewards=torch.zeros(count, 1),
        step_count=torch.ones(count, dtype=torch.long),
        truncated=torch.zeros(count, dtype=torch.bool),
        group=torch.arange(count),
        policy_version=torch.zeros(count, dtype=torch.long),
        seed=torch.arange(count),
    )
