"""Trained reward models: a Hugging Face classifier of sequences scores episodes, one of tokens scores their steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmgym.errors import UserError
from lmgym.judges.judge import Judge, at_last_steps
from lmgym.types import Episode

ROWS = 16
"""Sequences of one length that are scored at once."""

STEP_END = "\n"
"""Ends a step; process reward models are trained to say at this token whether the step is good."""


class TrainedJudge(Judge):
    """A classifier with its tokenizer; its scores are its own, for instance unbounded logits."""

    def __init__(self, network: Any, tokenizer: Any, weight: float = 1.0, model_name: str | None = None) -> None:
        super().__init__(weight, model_name=model_name)
        self.network = network.eval()
        self.tokenizer = tokenizer

    @torch.no_grad()
    def _logits(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """The logits of each row, in batches of rows of the same length.

        Nothing is padded: many of these models look for the last token that is not padding, and would skip an
        end token that is the same as the padding.
        """
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            by_length[len(row)].append(index)
        count = ROWS if self.network.config.pad_token_id is not None else 1
        found: dict[int, Tensor] = {}
        for members in by_length.values():
            for start in range(0, len(members), count):
                chosen = members[start : start + count]
                ids = torch.tensor([list(rows[index]) for index in chosen], device=self.network.device)
                logits = self.network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().cpu()
                found |= dict(zip(chosen, logits, strict=True))
        return [found[index] for index in range(len(rows))]

    def _ids(self, text: str, special_tokens: bool = False) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special_tokens)["input_ids"])


class RewardModel(TrainedJudge):
    """Scores the whole conversation with a classifier of sequences: its logit, or the probability of its last label."""

    name = "reward-model"
    scores_steps = False

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One score per episode, which is that of its last step."""
        logits = self._logits([self._conversation_ids(episode) for episode in episodes])
        values = [float(row[0]) if len(row) == 1 else float(row.softmax(-1)[-1]) for row in logits]
        return at_last_steps(values, episodes)

    def _conversation_ids(self, episode: Episode) -> list[int]:
        """In the chat template, which has its own special tokens, or else as plain text with those of the tokenizer."""
        messages = episode.steps[-1].next_state.messages
        if self.tokenizer.chat_template:
            return self._ids(str(self.tokenizer.apply_chat_template(list(messages), tokenize=False)))
        return self._ids("\n\n".join(message["content"] for message in messages), special_tokens=True)


class ProcessRewardModel(TrainedJudge):
    """Scores every step with a classifier of tokens: the probability that the step is good, at the newline after it."""

    name = "process-reward-model"

    def scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """One score per step, all steps of an episode in one pass.

        A row is that of TRL's trainer of such models: the first token of a sequence, the prompt, and each step and the
        newline after it, encoded one by one.
        """
        rows: list[list[int]] = []
        places: list[list[int]] = []
        first = [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        for episode in episodes:
            row = first + self._ids(episode.problem.prompt)
            ends = []
            for step in episode.steps:
                row += self._ids(step.action.text.strip("\n")) + self._ids(STEP_END)
                ends.append(len(row) - 1)
            rows.append(row)
            places.append(ends)
        return [
            [_probability(logits[place]) for place in ends]
            for logits, ends in zip(self._logits(rows), places, strict=True)
        ]


def _probability(logits: Tensor) -> float:
    """Of the last label, or of a single logit."""
    return float(logits.sigmoid()) if len(logits) == 1 else float(logits.softmax(-1)[-1])


def load_reward_model(kind: str, name: str, weight: float, device: str) -> TrainedJudge:
    """The judge of a kind, with the classifier of a folder or of the hub."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

    judge, loader = {
        RewardModel.name: (RewardModel, AutoModelForSequenceClassification),
        ProcessRewardModel.name: (ProcessRewardModel, AutoModelForTokenClassification),
    }[kind]
    if not name:
        raise UserError(f"--judge {kind} needs a trained classifier: name it with --judge_model.")
    try:
        network, tokenizer = loader.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--judge_model {name} cannot be loaded as a {kind}: {reason}") from None
    return judge(network.to(device), tokenizer, weight, name)
