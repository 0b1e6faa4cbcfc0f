"""Packing loses no token: each is found at its place, with its position, seeing exactly what came before it."""

import torch
from hand_made import ragged_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.learning.logprobs import common_trunk
from lmgym.learning.packing import pack

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
    packing = pack(tokens, mask, lengths, start)
    width = packing.tokens.shape[1]
    visible = packing.visible(start)
    assert visible.shape == (len(packing.tokens), width, start + width)
    flat_tokens, flat_positions = packing.tokens.flatten(), packing.positions.flatten()
    for line, (ids, chosen) in enumerate(rows):
        places = packing.places[line].tolist()
        assert places[:start] == [-1] * start
        assert places[len(ids) :] == [-1] * (tokens.shape[1] - len(ids))
        own = places[start : len(ids)]
        assert len(set(own)) == len(ids) - start
        assert flat_tokens[own].tolist() == list(ids[start:])
        assert flat_positions[own].tolist() == list(range(start, len(ids)))
        assert len({place // width for place in own}) == 1, "a conversation stays on one row"
        for order, place in enumerate(own):
            seen = visible[place // width, place % width].nonzero()[:, 0].tolist()
            past = [start + other % width for other in own[: order + 1]]
            assert seen == list(range(start)) + sorted(past)
        # The state that predicts a chosen token must be in the packed rows, not in the trunk.
        assert all(places[t - 1] >= 0 for t in range(1, len(ids)) if chosen[t])
    assert visible.any(dim=-1).all(), "a softmax over nothing is NaN, padding included"


def test_a_stem_is_stored_once():
    stem = [1, 2, 3, 4]
    rows = [([*stem, 5, 6, 7], [0] * 5 + [1, 1]), ([*stem, 5, 8], [0] * 5 + [1]), ([*stem, 9, 6], [0] * 5 + [1])]
    packing = pack(*ragged_rows(rows), 1)
    assert packing.tokens.tolist() == [[2, 3, 4, 5, 6, 7, 5, 8, 9, 6]]
    assert packing.branches.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 3, 3]]
    assert packing.positions.tolist() == [[1, 2, 3, 4, 5, 6, 4, 5, 4, 5]]


def test_different_stems_are_rows_of_their_own_and_padding_is_marked():
    rows = [([1, 2, 3, 4], [0, 0, 0, 1]), ([1, 5, 3], [0, 0, 1])]
    packing = pack(*ragged_rows(rows), 0)
    assert packing.tokens.tolist() == [[1, 2, 3, 4], [1, 5, 3, 0]]
    assert packing.branches.tolist() == [[0, 0, 1, 1], [0, 1, 1, -1]]


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
