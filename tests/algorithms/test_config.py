"""Settings that would teach nothing, or the wrong thing, are refused in one sentence."""

from __future__ import annotations

import pytest

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.registry import find_algorithm
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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_of_every_algorithm_are_accepted(name):
    find_algorithm(name).Config().check()


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("grpo", {"group_size": 1}, "alone in its group"),
        ("rloo", {"replay_episodes": 8}, "--max_ratio 2"),
        ("cispo", {"max_ratio": 0.0, "updates_per_iteration": 2}, "--max_ratio 2"),
        ("maxrl", {"balanced_replay": True, "replay_episodes": 8, "max_ratio": 2.0}, "whole groups"),
        ("reinforce", {"kl_target": 0.1}, "--kl_coeff"),
        ("remax", {"curriculum": True}, "neither"),
        ("dapo", {"curriculum": True}, "by itself"),
        ("dapo", {"soft_length": 9}, "below --hard_length"),
        ("dapo", {"buffer_capacity": 200}, "--max_helpings"),
        ("sapo", {"sharpness_good": 0.0}, "above 0"),
        ("ppo", {"filter_groups": True}, "leave --filter_groups out"),
        ("ppo", {"trace": 1.5}, "from 0 to 1"),
        ("dpo", {"update_reference_every": 2}, "online-dpo"),
        ("online-dpo", {"group_size": 1}, "--group_size 2"),
        ("online-dpo", {"kl_coeff": 0.0}, "--kl_coeff above 0"),
        ("distill", {"update_reference_every": 2}, "does not follow"),
        ("distill", {"kl_coeff": 0.0}, "nothing to learn"),
        ("distill", {"samples": "teacher", "kl_target": 0.1}, "neither a KL"),
        ("distill", {"reward_coeff": 1.0, "group_size": 1}, "within groups"),
        (
            "distill",
            {"reward_coeff": 1.0, "replay_episodes": 8, "balanced_replay": True, "max_ratio": 2.0},
            "whole groups",
        ),
        ("distill", {"filter_groups": True}, "--no_kl_on_silent_groups to hold only"),
        ("distill", {"kl_on_silent_groups": False}, "every group is silent"),
        ("dapo", {"kl_coeff": 0.1}, "--no_kl_on_silent_groups to hold only"),
        ("reinforce-pp", {"kl_on_silent_groups": False}, "part of every advantage"),
        ("ppo", {"kl_on_silent_groups": False}, "for its critic"),
        ("dapo", {"normalisation": "batch"}, "every group has one"),
        ("reinforce-pp", {"filter_groups": True}, "every group has one"),
        ("reinforce", {"update_reference_every": 2}, "--kl_coeff"),
        ("ppo", {"kl_place": "reward", "kl_estimator": "k3"}, "must be k1"),
    ],
)
def test_every_algorithm_refuses_what_would_teach_nothing(name, given, says):
    with pytest.raises(UserError, match=says):
        find_algorithm(name).Config(**given).check()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("grpo", {"replay_episodes": 8, "updates_per_iteration": 2}),
        ("distill", {"samples": "teacher", "updates_per_iteration": 2}),
        ("online-dpo", {"update_reference_every": 2}),
        ("cispo", {"updates_per_iteration": 2}),
        ("dapo", {"kl_coeff": 0.1, "kl_on_silent_groups": False}),
        ("grpo", {"kl_coeff": 0.1, "kl_on_silent_groups": False}),
        ("expert-iteration", {"updates_per_iteration": 3, "keep": 1}),
    ],
)
def test_and_takes_what_it_can_do(name, given):
    find_algorithm(name).Config(**given).check()
