"""Settings that would learn nothing, or the wrong thing, are refused in one sentence."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.algorithms.config import RLConfig
from lmgym.algorithms.parts import KL, GroupFilter, KLPenalty, TruncatedImportanceSampling
from lmgym.algorithms.registry import find_algorithm
from lmgym.algorithms.reinforce import ReinforceConfig
from lmgym.algorithms.reinforce_stable import ReinforceStableConfig
from lmgym.errors import UserError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ReinforceConfig(group_size=1), "another --baseline"),
        (ReinforceConfig(replay_episodes=4), "reinforce-stable"),
        (ReinforceConfig(updates_per_iteration=2), "reinforce-stable"),
        (ReinforceConfig(discount=1.5), "from 0 to 1"),
        (ReinforceConfig(learning_rate=float("nan")), "at least"),
        (ReinforceStableConfig(group_size=1), "another --baseline"),
        (ReinforceStableConfig(kl=KLPenalty(0.0, update_reference_every=2)), "--kl_coeff"),
        (ReinforceStableConfig(importance=TruncatedImportanceSampling(0.0), replay_episodes=4), "--tis_cap 2"),
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
        ReinforceStableConfig(group_size=1, baseline="batch"),
        ReinforceConfig(kl=KL(0.1, kl_place="reward")),
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
        ("rloo", {"replay_episodes": 8}, "--tis_cap 2"),
        ("cispo", {"tis_cap": 0.0, "updates_per_iteration": 2}, "--tis_cap 2"),
        ("maxrl", {"group_size": 1}, "alone in its group"),
        ("reinforce", {"kl_target": 0.1}, "--kl_coeff"),
        ("remax", {"curriculum": True}, "neither"),
        ("reinforce", {"baseline": "greedy", "filter_groups": True, "max_resample_rounds": 2}, "neither"),
        ("dapo", {"curriculum": True}, "itself"),
        ("dapo", {"soft_length": 9}, "below --hard_length"),
        ("dapo", {"max_resample_rounds": 0}, "--max_resample_rounds"),
        ("grpo", {"max_resample_rounds": 2}, "--filter_groups"),
        ("sapo", {"temperature_positive": 0.0}, "above 0"),
        ("ppo", {"gae_lambda": 1.5}, "from 0 to 1"),
        ("dpo", {"update_reference_every": 2}, "online-dpo"),
        ("online-dpo", {"group_size": 1}, "--group_size 2"),
        ("online-dpo", {"kl_coeff": 0.0}, "above 0"),
        ("dpo", {"kl_coeff": 0.0}, "above 0"),
        ("distill", {"update_reference_every": 2}, "not updated"),
        ("distill", {"kl_coeff": 0.0}, "nothing to learn"),
        ("distill", {"samples": "teacher", "kl_target": 0.1}, "neither a KL"),
        ("distill", {"reward_coeff": 1.0, "group_size": 1}, "within groups"),
        ("dapo", {"kl_coeff": 0.1}, "bias it"),
        ("dapo", {"advantage_norm": "batch"}, "no group has that"),
        ("grpo", {"filter_groups": True, "kl_coeff": 0.1, "kl_place": "reward"}, "no group has that"),
        ("reinforce", {"update_reference_every": 2}, "--kl_coeff"),
        ("reinforce-pp", {"baseline": "group", "group_size": 1}, "--group_size 2"),
    ],
)
def test_every_algorithm_refuses_what_would_learn_nothing(name, given, says):
    with pytest.raises(UserError, match=says):
        find_algorithm(name).Config.from_settings(given).check()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("grpo", {"replay_episodes": 8, "updates_per_iteration": 2}),
        ("distill", {"samples": "teacher", "updates_per_iteration": 2}),
        ("online-dpo", {"update_reference_every": 2}),
        ("cispo", {"updates_per_iteration": 2}),
        ("dapo", {"kl_coeff": 0.1, "filter_groups": False, "max_resample_rounds": 1}),
        ("grpo", {"kl_coeff": 0.1, "kl_place": "reward"}),
        ("grpo", {"filter_groups": True, "max_resample_rounds": 2}),
        ("expert-iteration", {"updates_per_iteration": 3, "keep": 1}),
    ],
)
def test_and_takes_what_it_can_do(name, given):
    find_algorithm(name).Config.from_settings(given).check()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ReinforceConfig(kl=KL(0.1, kl_place="rewards")), "--kl_place is 'rewards'"),  # type: ignore[arg-type]
        (ReinforceStableConfig(baseline="running"), "--baseline is 'running'"),  # type: ignore[arg-type]
        (ReinforceConfig(averaging="tokens"), "--averaging"),  # type: ignore[arg-type]
        (ReinforceConfig(schedule="exp"), "--schedule"),  # type: ignore[arg-type]
        (ReinforceConfig(importance=TruncatedImportanceSampling(0.5)), "0 or at least 1"),
        (ReinforceConfig(group_filter=GroupFilter(True), baseline="batch"), "no group has that"),
        (ReinforceConfig(group_filter=GroupFilter(learn_per_group=1)), "give 2 or more"),
        (ReinforceConfig(group_filter=GroupFilter(learn_per_group=4), kl=KL(0.1)), "--learn_per_group weights"),
    ],
)
def test_from_python_too_a_value_must_be_one_of_the_choices(config, says):
    with pytest.raises(UserError, match=says):
        config.check()


def test_without_its_filter_dapo_samples_once():
    config = find_algorithm("dapo").Config.from_settings({"filter_groups": False, "kl_coeff": 0.1})
    config.check()
    assert config.resample_rounds == 1


def test_a_policy_gradient_without_importance_weights_refuses_stale_episodes():
    with pytest.raises(UserError, match="--tis_cap"):
        RLConfig(updates_per_iteration=2).check()


def test_flags_find_their_part_and_come_back():
    kind = find_algorithm("grpo").Config
    config = kind.from_settings({"iterations": 3, "kl_coeff": 0.2, "kl_place": "reward", "tis_cap": 4.0})
    assert (config.iterations, config.part(KL), config.part(TruncatedImportanceSampling)) == (
        3,
        KL(0.2, kl_place="reward"),
        TruncatedImportanceSampling(4.0),
    )
    assert kind.from_settings(config.settings()) == config
    with pytest.raises(TypeError, match="'clip'"):
        kind.from_settings({"clip": 0.1})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_two_settings_of_an_algorithm_share_a_name(name):
    config = find_algorithm(name).Config()
    own = [field.name for field in fields(config) if not is_dataclass(getattr(config, field.name))]
    listed = [field.name for part in config.parts() for field in fields(part)]
    assert sorted([*own, *listed]) == sorted(config.settings())
