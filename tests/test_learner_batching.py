"""Mini-batches, micro-batches and buckets: nothing is lost, groups stay whole, budgets hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_gym.learner.batching import length_buckets, micro_batches, parts, shuffled
from grpo_gym.learner.rows import pack

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def grouped(sizes: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


@given(SIZES, st.integers(1, 8))
def test_parts_keep_every_row_in_order_and_groups_whole(sizes: list[int], count: int) -> None:
    group = grouped(sizes)
    rows = np.arange(len(group))
    split = parts(rows, group, count)
    assert len(split) == count
    assert np.concatenate(split).tolist() == rows.tolist()
    if len(sizes) >= count:
        owners = [set(group[part].tolist()) for part in split]
        assert all(owners)
        assert not any(a & b for a, b in itertools.combinations(owners, 2))
    else:
        lengths = [len(part) for part in split]
        assert max(lengths) - min(lengths) <= 1


def test_shuffling_keeps_groups_together_and_depends_on_the_generator_alone() -> None:
    group = grouped([3, 2, 4, 1])
    first = shuffled(group, np.random.default_rng(3))
    assert sorted(first.tolist()) == list(range(10))
    changes = np.count_nonzero(np.diff(group[first]))
    assert changes == 3
    assert np.array_equal(first, shuffled(group, np.random.default_rng(3)))
    others = [shuffled(group, np.random.default_rng(seed)).tolist() for seed in range(20)]
    assert len({tuple(other) for other in others}) > 5


@given(SIZES, st.integers(1, 120), st.booleans(), st.integers(0, 10**6))
def test_micro_batches_hold_every_row_once_within_the_budget(
    sizes: list[int], budget: int, share: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    group = grouped(sizes)
    prompts = rng.integers(1, 20, len(sizes))[group]
    lengths = rng.integers(0, 30, len(group))
    rows = rng.permutation(len(group))[: rng.integers(1, len(group) + 1)]
    split = micro_batches(rows, group, prompts, lengths, budget, share)
    assert sorted(np.concatenate(split).tolist()) == sorted(rows.tolist())
    for part in split:
        assert len(part) > 0
        different = len(set(group[part].tolist()))
        if share:
            tokens = different * prompts[part].max() + len(part) * lengths[part].max()
        else:
            tokens = len(part) * (prompts[part] + lengths[part]).max()
        assert tokens <= budget or len(part) == 1
        # rows of a group are neighbours, so that they can share their prompt
        assert np.count_nonzero(np.diff(group[part])) == different - 1


def test_groups_that_fit_are_not_split() -> None:
    group = grouped([4, 4, 4])
    lengths = np.full(12, 10)
    split = micro_batches(np.arange(12), group, np.full(12, 5), lengths, 45, True)
    assert [sorted(part.tolist()) for part in split] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def padded(buckets: list[np.ndarray], lengths: np.ndarray, overhead: int) -> int:
    return sum(len(b) * int(lengths[b].max()) + overhead for b in buckets)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(0, 40))
def test_buckets_cost_no_more_than_any_split_of_the_sorted_rows(
    values: list[int], overhead: int
) -> None:
    lengths = np.array(values)
    buckets = length_buckets(lengths, overhead)
    assert sorted(np.concatenate(buckets).tolist()) == list(range(len(values)))
    assert all(np.array_equal(bucket, np.sort(bucket)) for bucket in buckets)
    order = np.argsort(-lengths, kind="stable")
    for cuts in itertools.product([False, True], repeat=len(values) - 1):
        split = np.split(order, [i + 1 for i, cut in enumerate(cuts) if cut])
        assert padded(buckets, lengths, overhead) <= padded(split, lengths, overhead)


def test_packing_shares_prompts_of_neighbours_and_cuts_what_is_not_scored() -> None:
    prompts = [np.array(p) for p in ([1, 2], [1, 2], [3], [1, 2])]
    tokens = [np.array(t) for t in ([4, 5, 6], [7], [8, 9], [])]
    masks = [np.array(m, dtype=bool) for m in ([1, 1, 0], [1], [0, 0], [])]
    rows = pack(prompts, tokens, masks)
    assert rows.counts == (2, 1, 1)
    assert rows.prompts.tolist() == [[1, 2], [0, 3], [1, 2]]
    assert rows.prompt_lengths.tolist() == [2, 1, 2]
    assert rows.lengths.tolist() == [2, 1, 0, 0]
    assert rows.tokens.tolist() == [[4, 5], [7, 0], [0, 0], [0, 0]]
    assert rows.mask.tolist() == [[True, True], [True, False], [False] * 2, [False] * 2]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        pack([np.array([], dtype=np.int64)], [np.array([1])], [np.array([True])])
