"""Packing loses no token: each is found at its place, with its position, seeing exactly what came before it."""

from unittest import mock

import torch
from hand_made import ragged_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.models.attention import TreeReader
from lmgym.models.prefix_tree import pack, shared_with_previous
from lmgym.models.token_scorer import common_trunk

# Two ids only, so that rows often begin alike.
IDS = st.lists(st.integers(1, 2), min_size=0, max_size=4)


@st.composite
def batches(draw):
    trunk = draw(IDS)
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        stem = trunk + draw(IDS)
        for _ in range(draw(st.integers(1, 3))):
            ids = [*stem, 1, *draw(IDS)]
            prompt = draw(st.integers(1, len(ids)))
            mask = [0] * prompt + draw(
                st.lists(st.integers(0, 1), min_size=len(ids) - prompt, max_size=len(ids) - prompt)
            )
            rows.append((ids, mask))
    return rows


@settings(max_examples=300, deadline=None)
@given(rows=batches(), share=st.booleans())
def test_every_token_is_at_its_place_and_sees_its_own_past_and_nothing_else(rows, share):
    tokens, mask, lengths = ragged_rows(rows)
    start = len(common_trunk(tokens, mask, lengths)) if share else 0
    tree = pack(tokens, lengths, start)
    nodes = torch.arange(len(tree.tokens))
    visible = (nodes <= nodes[:, None]) & (nodes[:, None] <= tree.ends)
    for line, (ids, chosen) in enumerate(rows):
        places = tree.places[line].tolist()
        assert places[:start] == [-1] * start
        assert places[len(ids) :] == [-1] * (tokens.shape[1] - len(ids))
        own = places[start : len(ids)]
        assert tree.tokens[own].tolist() == list(ids[start:])
        assert tree.positions[own].tolist() == list(range(start, len(ids)))
        for order, place in enumerate(own):
            assert visible[place].nonzero()[:, 0].tolist() == own[: order + 1]
        # The state that predicts a chosen token must be in the tree, not in the trunk.
        assert all(places[t - 1] >= 0 for t in range(1, len(ids)) if chosen[t])


@settings(max_examples=300, deadline=None)
@given(rows=batches())
def test_in_order_no_beginning_stands_twice(rows):
    rows = sorted(rows)
    tokens, _, lengths = ragged_rows(rows)
    tree = pack(tokens, lengths, 0)
    beginnings = {tuple(ids[:length]) for ids, _ in rows for length in range(1, len(ids) + 1)}
    assert len(tree.tokens) == len(beginnings)
    counted = lengths - shared_with_previous(tokens, lengths)
    assert int(counted.sum()) == len(beginnings), "what micro-batches count is what is computed"


def test_a_tree_by_hand():
    stem = [1, 2, 3]
    tokens, _, lengths = ragged_rows([([*stem, 5, 6, 7], [1] * 6), ([*stem, 5, 8], [1] * 5), ([*stem, 9], [1] * 4)])
    tree = pack(tokens, lengths, 1)
    assert tree.tokens.tolist() == [2, 3, 5, 6, 7, 8, 9]
    assert tree.positions.tolist() == [1, 2, 3, 4, 5, 4, 3]
    assert tree.ends.tolist() == [6, 6, 5, 4, 4, 5, 6]
    assert tree.places.tolist() == [[-1, 0, 1, 2, 3, 4], [-1, 0, 1, 2, 5, -1], [-1, 0, 1, 6, -1, -1]]


@settings(max_examples=100, deadline=None)
@given(rows=batches(), chunk=st.integers(1, 7), trunk=st.integers(0, 3))
def test_attention_in_chunks_is_attention_over_the_whole_tree(rows, chunk, trunk):
    tokens, _, lengths = ragged_rows(rows)
    ends = pack(tokens, lengths, 0).ends
    count, random = len(ends), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, count, 4, generator=random) for heads in (4, 2, 2))
    shared = [torch.randn(1, 2, trunk, 4, generator=random) for _ in range(2)] if trunk else []
    with mock.patch("lmgym.models.attention.CHUNK", chunk):
        reader = TreeReader(shared[:1], shared[1:], ends, torch.float32)
        mixed = reader.attend(0, query, key, value, 0.5)
    nodes = torch.arange(count)
    visible = (nodes <= nodes[:, None]) & (nodes[:, None] <= ends)
    visible = torch.cat([torch.ones(count, trunk, dtype=torch.bool), visible], dim=1)
    if trunk:
        key, value = torch.cat([shared[0], key], dim=2), torch.cat([shared[1], value], dim=2)
    scores = (query @ key.repeat_interleave(2, dim=1).transpose(2, 3) * 0.5).masked_fill(~visible, float("-inf"))
    torch.testing.assert_close(mixed, scores.softmax(dim=-1) @ value.repeat_interleave(2, dim=1))


@settings(max_examples=300, deadline=None)
@given(rows=batches())
def test_the_common_trunk_is_the_longest_that_leaves_each_row_a_token_before_its_first_chosen_one(rows):
    tokens, mask, lengths = ragged_rows(rows)
    trunk = common_trunk(tokens, mask, lengths).tolist()
    longest = 0
    for length in range(1, tokens.shape[1]):
        alike = all(list(ids[:length]) == list(rows[0][0][:length]) for ids, _ in rows)
        room = all(length < len(ids) and not any(mask[: length + 1]) for ids, mask in rows)
        longest = length if alike and room else longest
    assert trunk == list(rows[0][0][:longest])


def test_padding_is_not_mistaken_for_a_shared_token():
    tokens, mask, lengths = ragged_rows([([1, 0, 0, 5], [0, 0, 0, 1]), ([1, 0], [0, 0])])
    assert common_trunk(tokens, mask, lengths).tolist() == [1]
    assert torch.equal(tokens[:, 2], torch.tensor([0, 0]))
