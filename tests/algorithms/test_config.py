"""Settings that would teach nothing, or the wrong thing, are refused in one sentence."""

from __future__ import annotations

import pytest

from lmgym.algorithms.reinforce import ReinforceConfig
from lmgym.algorithms.reinforce_stable import ReinforceStableConfig
from lmgym.errors import UserError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ReinforceConfig(group_size=1), "--baseline batch"),
        (ReinforceConfig(replay_episodes=4), "reinforce-stable"),
        (ReinforceConfig(updates_per_iteration=2), "reinforce-stable"),
        (ReinforceConfig(discount=1.5), "from 0 to 1"),
        (ReinforceConfig(buffer_capacity=8), "one iteration"),
        (ReinforceConfig(learning_rate=float("nan")), "at least"),
        (ReinforceStableConfig(replay_episodes=4, balanced_replay=True), "--baseline batch"),
        (ReinforceStableConfig(kl_place="reward", kl_estimator="k2"), "k1 or k3"),
    ],
)
def test_refused(settings, says):
    with pytest.raises(UserError, match=says):
        settings.check()


@pytest.mark.parametrize(
    "settings",
    [
        ReinforceConfig(group_size=1, baseline="batch"),
        ReinforceStableConfig(replay_episodes=4, updates_per_iteration=2),
        ReinforceStableConfig(replay_episodes=4, balanced_replay=True, baseline="batch"),
        ReinforceStableConfig(kl_place="reward", kl_estimator="k3"),
    ],
)
def test_accepted(settings):
    settings.check()
