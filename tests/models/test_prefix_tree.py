"""The prefix tree keeps every token, at its position, attending to exactly the tokens before it."""

import torch
from hand_made import ragged_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lmgym.models.prefix_tree import build_prefix_tree, shared_with_previous
from lmgym.models.token_scorer import common_prefix

# Two ids only, so that episodes often share prefixes.
IDS = st.lists(st.integers(1, 2), min_size=0, max_size=4)


@st.composite
def batches(draw):
    prefix = draw(IDS)
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        prompt = prefix + draw(IDS)
        for _ in range(draw(st.integers(1, 3))):
            ids = [*prompt, 1, *draw(IDS)]
            unsampled = draw(st.integers(1, len(ids)))
            possible = len(ids) - unsampled
            mask = [0] * unsampled + draw(st.lists(st.integers(0, 1), min_size=possible, max_size=possible))
            rows.append((ids, mask))
    return rows


@settings(max_examples=300, deadline=None)
@given(rows=batches(), share=st.booleans())
def test_every_token_has_its_node_and_position_and_attends_to_exactly_its_episode_so_far(rows, share):
    tokens, mask, lengths = ragged_rows(rows)
    start = len(common_prefix(tokens, mask, lengths)) if share else 0
    tree = build_prefix_tree(tokens, lengths, start)
    nodes = torch.arange(len(tree.tokens))
    visible = (nodes <= nodes[:, None]) & (nodes[:, None] <= tree.subtree_end)
    for episode, (ids, sampled) in enumerate(rows):
        node_of = tree.node_of[episode].tolist()
        assert node_of[:start] == [-1] * start
        assert node_of[len(ids) :] == [-1] * (tokens.shape[1] - len(ids))
        path = node_of[start : len(ids)]
        assert tree.tokens[path].tolist() == list(ids[start:])
        assert tree.positions[path].tolist() == list(range(start, len(ids)))
        for depth, node in enumerate(path):
            assert visible[node].nonzero()[:, 0].tolist() == path[: depth + 1]
        # The state that predicts a sampled token must be in the tree, not in the shared prefix.
        assert all(node_of[t - 1] >= 0 for t in range(1, len(ids)) if sampled[t])


@settings(max_examples=300, deadline=None)
@given(rows=batches())
def test_sorted_episodes_have_one_node_per_distinct_prefix(rows):
    rows = sorted(rows)
    tokens, _, lengths = ragged_rows(rows)
    tree = build_prefix_tree(tokens, lengths, 0)
    prefixes = {tuple(ids[:length]) for ids, _ in rows for length in range(1, len(ids) + 1)}
    assert len(tree.tokens) == len(prefixes)
    counted = lengths - shared_with_previous(tokens, lengths)
    assert int(counted.sum()) == len(prefixes), "micro-batches count the tokens that are computed"


def test_the_example_of_the_module_docstring():
    episodes = [[1, 2, 3, 5, 6, 7], [1, 2, 3, 5, 8], [1, 2, 3, 9]]
    tokens, _, lengths = ragged_rows([(ids, [1] * len(ids)) for ids in episodes])
    tree = build_prefix_tree(tokens, lengths, 1)
    assert tree.tokens.tolist() == [2, 3, 5, 6, 7, 8, 9]
    assert tree.positions.tolist() == [1, 2, 3, 4, 5, 4, 3]
    assert tree.subtree_end.tolist() == [6, 6, 5, 4, 4, 5, 6]
    assert tree.node_of.tolist() == [[-1, 0, 1, 2, 3, 4], [-1, 0, 1, 2, 5, -1], [-1, 0, 1, 6, -1, -1]]


@settings(max_examples=300, deadline=None)
@given(rows=batches())
def test_the_common_prefix_is_the_longest_that_leaves_a_token_before_the_first_sampled_one(rows):
    tokens, mask, lengths = ragged_rows(rows)
    prefix = common_prefix(tokens, mask, lengths).tolist()
    longest = 0
    for length in range(1, tokens.shape[1]):
        equal = all(list(ids[:length]) == list(rows[0][0][:length]) for ids, _ in rows)
        has_prompt_left = all(length < len(ids) and not any(mask[: length + 1]) for ids, mask in rows)
        longest = length if equal and has_prompt_left else longest
    assert prefix == list(rows[0][0][:longest])


def test_padding_is_not_mistaken_for_a_shared_token():
    tokens, mask, lengths = ragged_rows([([1, 0, 0, 5], [0, 0, 0, 1]), ([1, 0], [0, 0])])
    assert common_prefix(tokens, mask, lengths).tolist() == [1]
    assert torch.equal(tokens[:, 2], torch.tensor([0, 0]))
