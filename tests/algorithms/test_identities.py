"""What must be equal is equal: algorithms that meet in a limit, and changes that must not matter."""

from __future__ import annotations

import itertools

import pytest
import torch
from hand_made import Turn, make_episode
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import LIMIT, SEQUENCES, batch_of, credited, loss_of, make_algorithm, scores_of, set_critic, table

from lmgym.advantages import generalised_advantages, leave_one_out, over_group
from lmgym.algorithms.catalogue import ALGORITHMS
from lmgym.learning.batch import Batch

REWARDS = torch.rand(len(SEQUENCES), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
GROUP = (0, 4, 7, 2, 2, 8)
NUMBERS = [0, 0, 0, 1, 1, 1]
OUTCOME = ["reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "sapo"]


def slope(algorithm, batch, sequences=GROUP):
    logits = table(0).requires_grad_()
    return torch.autograd.grad(loss_of(algorithm, batch, logits, sequences), logits)[0]


def batch(rewards=REWARDS, sequences=GROUP, group=NUMBERS, behaviour=0):
    return batch_of(sequences, rewards, table(behaviour), group=group)


def test_grpo_without_its_deviation_is_dr_grpo_up_to_the_averaging():
    plain = slope(make_algorithm("grpo", advantage_norm="none"), batch())
    fixed = slope(make_algorithm("dr-grpo"), batch())
    assert torch.allclose(plain * 2, fixed * LIMIT)  # every episode here is two tokens long


def test_rloo_equals_its_closed_form():
    returns, group = batch().returns, batch().group
    others = [(returns[group == group[i]].sum() - returns[i]) / 2 for i in range(len(GROUP))]
    assert torch.allclose(leave_one_out(returns, group), returns - torch.stack(others))
    assert torch.allclose(leave_one_out(returns, group), over_group(returns, group) * 3 / 2)


def test_ppo_without_clip_and_with_one_epoch_is_reinforce_with_the_critic_as_its_baseline():
    episodes = batch()
    values = torch.full_like(episodes.logprobs, 0.4) * episodes.mask
    algorithm = make_algorithm("ppo", gae_lambda=1.0, advantage_norm="none", clip=1e9, updates_per_iteration=1)
    set_critic(algorithm, lambda _: values)
    reinforce = make_algorithm("reinforce", baseline="running")
    reinforce.state["mean_reward"] = 0.4
    assert torch.allclose(slope(algorithm, episodes), slope(reinforce, episodes))


def test_cispo_is_reinforce_with_grpos_advantages():
    one = slope(make_algorithm("cispo"), batch(behaviour=3))
    other = slope(make_algorithm("reinforce", advantage_norm="group", tis_cap=5.0), batch(behaviour=3))
    assert torch.allclose(one, other)


def test_a_wide_clip_is_the_importance_weighted_gradient():
    wide = slope(make_algorithm("grpo", clip_low=1.0, clip_high=1e9), batch(behaviour=3))
    weighted = slope(
        make_algorithm("reinforce", advantage_norm="group", averaging="episode", tis_cap=1e9), batch(behaviour=3)
    )
    assert torch.allclose(wide, weighted)


@pytest.mark.parametrize("name", OUTCOME)
@given(constant=st.floats(-3, 3), pair=st.sampled_from([0, 1]))
@settings(max_examples=10, deadline=None)
def test_a_constant_added_to_a_group_never_matters(name, constant, pair):
    """Two groups whose sequences do not overlap, so that one of them can be paid more."""
    sequences = (0, 4, 7, 1, 2, 8)
    moved = REWARDS.clone()
    moved[list(sequences[3 * pair : 3 * pair + 3])] += constant
    before, after = (
        slope(make_algorithm(name), batch(sequences=sequences), sequences),
        slope(make_algorithm(name), batch(moved, sequences), sequences),
    )
    assert torch.allclose(before, after, atol=1e-9)


def test_a_constant_does_matter_where_it_should():
    moved = REWARDS + 1.0
    for name, given_settings in (("reinforce", {"baseline": "none"}), ("maxrl", {}), ("expert-iteration", {})):
        one, other = (
            slope(make_algorithm(name, **given_settings), batch()),
            slope(make_algorithm(name, **given_settings), batch(moved - 1.5))
            if name == "expert-iteration"
            else slope(make_algorithm(name, **given_settings), batch(moved)),
        )
        assert not torch.allclose(one, other, atol=1e-6)


PAIRS = ["dpo", "online-dpo"]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in PAIRS])
@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
@settings(max_examples=10, deadline=None)
def test_neither_the_order_nor_the_cut_into_micro_batches_matters(name, order, cuts):
    algorithm = make_algorithm(name, **({"teacher": "t"} if name == "distill" else {}))
    algorithm.greedy_returns = torch.tensor([0.3, 0.6], dtype=torch.float64)
    set_critic(algorithm, lambda batch: batch.tokens * 0.1 * batch.mask)
    reference = table(1)
    whole = batch_of(GROUP, REWARDS, table(2), reference, group=NUMBERS)
    shuffled = [GROUP[i] for i in order]
    again = credited(algorithm, batch_of(shuffled, REWARDS, table(2), reference, group=[NUMBERS[i] for i in order]))
    logits = table(0).requires_grad_()
    total, edges = torch.zeros((), dtype=torch.float64), [0, *sorted(cuts), 6]
    for start, end in itertools.pairwise(edges):
        part = again.select(torch.arange(start, end))
        total = total + algorithm.loss(scores_of(logits, shuffled[start:end]), part)
    found = torch.autograd.grad(total, logits)[0]
    assert torch.allclose(found, slope(algorithm, whole), atol=1e-10)


@pytest.mark.parametrize("name", PAIRS)
@given(orders=st.tuples(*[st.permutations(range(3))] * 2), swapped=st.booleans())
@settings(max_examples=10, deadline=None)
def test_neither_the_order_nor_the_cut_between_groups_matters_to_pairs(name, orders, swapped):
    """Episodes of a group are never parted; groups may be, and may come in any order."""
    algorithm, reference = make_algorithm(name), table(1)
    sequences = (0, 4, 7, 1, 2, 8)
    whole = slope(algorithm, batch_of(sequences, REWARDS, table(2), reference, group=NUMBERS), sequences)
    groups = [[sequences[3 * number + place] for place in order] for number, order in enumerate(orders)]
    shuffled = [number for group in (reversed(groups) if swapped else groups) for number in group]
    again = batch_of(shuffled, REWARDS, table(2), reference, group=NUMBERS)
    again = algorithm.select_for_update(credited(algorithm, again))
    logits = table(0).requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for part in (again.select(torch.nonzero(again.group == number)[:, 0]) for number in (0, 1)):
        chosen = [SEQUENCES.index(tuple(row[1:])) for row in part.tokens.tolist()]
        total = total + algorithm.loss(scores_of(logits, chosen), part)
    assert torch.allclose(torch.autograd.grad(total, logits)[0], whole, atol=1e-10)


def test_pairs_are_never_parted():
    whole = batch_of((0, 1, 2, 3, 4, 5), REWARDS, table(0), group=[0, 0, 1, 1, 2, 2])
    parts = list(whole.micro_batches(1, whole_groups=True))
    assert [part.group.tolist() for part in parts] == [[0, 0], [1, 1], [2, 2]]


@given(
    values=st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.booleans()), min_size=1, max_size=7),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    after=st.sampled_from([0.0, 0.8]),
)
@settings(max_examples=80, deadline=None)
def test_gae_is_the_discounted_sum_of_td_errors(values, discount, gae_lambda, after):
    rewards, predicted, real = (list(column) for column in zip(*values, strict=True))
    found = generalised_advantages(
        torch.tensor([rewards]),
        torch.tensor([predicted]),
        torch.tensor([after]),
        torch.tensor([real]),
        discount,
        gae_lambda,
    )[0]
    places = [place for place, there in enumerate(real) if there]
    following = [*(predicted[place] for place in places[1:]), after][: len(places)]
    td_errors = [
        rewards[place] + discount * later - predicted[place] for place, later in zip(places, following, strict=True)
    ]
    for index, place in enumerate(places):
        later = td_errors[index:]
        expected = sum((discount * gae_lambda) ** distance * td_error for distance, td_error in enumerate(later))
        assert found[place].item() == pytest.approx(expected, abs=1e-4)
    assert all(found[place] == 0 for place, there in enumerate(real) if not there)


def test_gae_over_steps_gives_a_steps_tokens_one_advantage():
    rewards = torch.rand(len(SEQUENCES), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    episodes = batch_of((0, 3), rewards, table(0), two_steps=True)
    values = torch.tensor([[0, 0.3, 0.5], [0, 0.1, 0.9]], dtype=torch.float64)
    algorithm = make_algorithm("ppo", gae="steps", gae_lambda=0.5, advantage_norm="none")
    set_critic(algorithm, lambda _: values)
    prepared = algorithm.prepare(episodes)
    last = episodes.rewards[:, 1] - values[:, 2]
    first = episodes.rewards[:, 0] + values[:, 2] - values[:, 1] + 0.5 * last
    assert torch.allclose(prepared.advantages[:, 1:], torch.stack([first, last], dim=1))
    assert torch.allclose(prepared.value_targets[:, 1:], torch.stack([first, last], dim=1) + values[:, 1:])


def test_a_value_gains_nothing_by_leaving_its_clip():
    from lmgym.losses import clipped_value_error

    old, target = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    values = torch.tensor([0.1, 0.5], requires_grad=True)
    clipped_value_error(values, old, target, 0.2).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.9, 0.0])
    free = torch.tensor([0.1, 0.5], requires_grad=True)
    clipped_value_error(free, old, target, 0.0).sum().backward()
    assert free.grad is not None
    assert free.grad.tolist() == pytest.approx([-0.9, -0.5])


def test_a_step_in_which_nothing_was_chosen_leaves_its_reward_to_the_one_before():
    episode = make_episode(Turn([1, 2], [3, 4], [1, 1], 0.5), Turn([5], [6], [0], 1.0), Turn([7], [8, 9], [1, 0], 2.0))
    batch = Batch.from_episodes([episode])
    at_ends = batch.at_step_ends(batch.rewards)
    assert at_ends.tolist() == [[0, 0, 0, 1.5, 0, 0, 0, 2.0, 0]]
    assert batch.by_step(at_ends).tolist() == [[1.5, 0, 2.0]]
    starts, real = batch.at_step_starts(torch.arange(9.0)[None])
    assert real.tolist() == [[True, False, True]]
    assert starts.tolist() == [[2, 0, 7]]
