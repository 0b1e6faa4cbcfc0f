"""The warning of an iteration without a learning signal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made import Turn, make_episode

from lmgym.algorithms.metrics import without_signal
from lmgym.types import Episode


def episode(reward: float, *, group: int = 0, cut: bool = False, **graded: bool) -> Episode:
    made = make_episode(Turn([1], [2], [1], reward), group=group)
    last = made.steps[-1]
    action = replace(last.action, finish="length" if cut else "stop")
    return replace(made, steps=(replace(last, action=action, info=dict(graded)),))


@pytest.mark.parametrize(
    ("episodes", "says"),
    [
        (
            [episode(0.0, cut=True)] * 47 + [episode(0.0)] * 3,
            ["all 50 rewards are 0", "94% were cut off", "--max_tokens"],
        ),
        ([episode(0.0, parsed=False)] * 3 + [episode(0.0, parsed=True)], ["all 4 rewards are 0", "75% no answer"]),
        ([episode(1.0)] * 4, ["all 4 rewards are 1", "harder"]),
        ([episode(1.0, cut=True)] * 4, ["all 4 rewards are 1", "harder"]),
        ([episode(0.1)] * 4, ["all 4 rewards are 0.1", "some episodes succeed"]),
        ([episode(0.1, cut=True)] * 4, ["all 4 rewards are 0.1", "100% were cut off"]),
        ([episode(0.5, correct=True)] * 2 + [episode(0.5, correct=False)] * 2, ["all 4 rewards are 0.5", "harder"]),
        (
            [episode(1.0, correct=True)] + [episode(1.0, correct=False)] * 2,
            ["all 3 rewards are 1", "some episodes succeed"],
        ),
        ([episode(0.0)] * 2 + [episode(1.0, group=1)] * 2, ["within each group", "--group_size"]),
        ([episode(0.0)] * 2, ["all 2 rewards are 0", "some episodes succeed"]),
    ],
)
def test_the_sentence_names_the_rewards_and_the_likely_cause(episodes, says):
    sentence = without_signal(episodes)
    assert all(part in sentence for part in says), sentence
