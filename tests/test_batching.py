"""Batches of similar length: every row once, little padding, honest randomness."""

import pickle

import numpy as np
import pytest
from torch.utils.data import DataLoader

from sklearn_acl.batching import (
    LengthBucketSampler,
    length_bucketed_batches,
    length_sorted_batches,
    prediction_batches,
)


def make_lengths(n, seed=0):
    return np.random.default_rng(seed).integers(3, 60, n).astype(np.int32)


def padding_share(batches, lengths):
    """Share of positions that are padding."""
    size = sum(len(rows) * lengths[rows].max() for rows in batches)
    return 1 - lengths.sum() / size


SIZES = [
    (0, 4, 50),
    (1, 4, 50),
    (4, 4, 1),
    (7, 4, 50),
    (8, 4, 1),
    (9, 4, 2),
    (100, 1, 3),
    (1000, 32, 5),
    (1000, 2000, 50),
]


@pytest.mark.parametrize("n, batch_size, window", SIZES)
def test_every_row_is_in_one_batch_and_one_batch_at_most_is_smaller(
    n, batch_size, window
):
    lengths = make_lengths(n)
    bucketed = length_bucketed_batches(
        lengths, batch_size, rng=np.random.default_rng(1), window=window
    )
    for batches in (bucketed, length_sorted_batches(lengths, batch_size)):
        rows = np.concatenate([np.zeros(0, np.int64), *batches])
        assert sorted(rows) == list(range(n))
        sizes = sorted(map(len, batches))
        assert len(batches) == -(-n // batch_size)
        assert all(size == batch_size for size in sizes[1:])
        assert all(size > 0 for size in sizes)


def test_prediction_batches_are_sorted_and_stable():
    lengths = [3, 5, 3, 9, 5, 3, 9]
    batches = [b.tolist() for b in length_sorted_batches(lengths, 3)]
    assert batches == [[3, 6, 1], [4, 0, 2], [5]]


def holds_little_padding(lengths, rows):
    """Whether padding takes at most 64 positions, or a sixteenth of all."""
    room = len(rows) * lengths[rows].max(initial=0)
    return room - lengths[rows].sum() <= max(64, room / 16)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize("n", [0, 1, 700])
def test_batches_of_prediction_are_as_large_as_room_and_padding_allow(n, batch_size):
    lengths = np.random.default_rng(0).integers(1, 150, size=n)
    lengths[: n // 2] //= 10  # short texts, some of no token
    batches = prediction_batches(lengths, batch_size)
    rows = np.concatenate([np.zeros(0, np.int64), *batches])
    assert sorted(rows) == list(range(n))
    assert (np.diff(lengths[rows]) <= 0).all()
    for batch, following in zip(batches, [*batches, rows[:0]][1:], strict=True):
        longest = max(lengths[batch].max(), 1)
        most = batch_size if batch_size == 1 else 4 * batch_size
        assert len(batch) <= most
        assert len(batch) <= batch_size or len(batch) * longest <= batch_size * 64
        assert holds_little_padding(lengths, batch)
        # what follows does not fit: by number, by room or by padding
        more = [np.append(batch, following[: k + 1]) for k in range(len(following))]
        for larger in more:
            assert (
                len(larger) > most
                or len(larger) > batch_size * max(64 // longest, 1)
                or not holds_little_padding(lengths, larger)
            )


@pytest.mark.parametrize("batch_size", [1, 8, 256])
def test_padding_may_be_free(batch_size):
    lengths = np.random.default_rng(0).integers(1, 150, size=700)
    batches = prediction_batches(lengths, batch_size, pad_freely=True)
    rows = np.concatenate(batches)
    assert sorted(rows) == list(range(700))
    for batch in batches[:-1]:
        times = 1 if batch_size == 1 else min(max(64 // lengths[batch[0]], 1), 4)
        assert len(batch) == batch_size * times


@pytest.mark.parametrize("length", [0, 1, 5, 16, 17, 33, 64, 65, 500])
def test_texts_of_one_length_share_batches_of_the_room_that_there_is(length):
    batches = prediction_batches(np.full(200, length), 8)
    size = 8 * min(max(64 // max(length, 1), 1), 4)
    assert [len(b) for b in batches[:-1]] == [size] * (len(batches) - 1)


@pytest.mark.parametrize("top", [30, 90, 500])
def test_prediction_batches_hold_less_padding_than_batches_of_one_size(top):
    # half of them short, and a long tail
    lengths = 3 + np.random.default_rng(1).geometric(8 / top, size=501).clip(0, top)
    ours, plain = (f(lengths, 32) for f in (prediction_batches, length_sorted_batches))
    assert padding_share(ours, lengths) < padding_share(plain, lengths)
    assert len(ours) < 2 * len(plain)


def test_prediction_batches_of_unsigned_lengths():
    batches = length_sorted_batches(np.array([1, 3, 2], dtype=np.uint8), 2)
    assert [b.tolist() for b in batches] == [[1, 2], [0]]


def test_rows_of_a_batch_are_neighbours_in_their_window():
    # one window holds all rows, so that sorted batches must not overlap in length
    lengths = make_lengths(640)
    batches = length_bucketed_batches(lengths, 32, rng=np.random.default_rng(0))
    spans = sorted((lengths[rows].min(), lengths[rows].max()) for rows in batches)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_little_padding_is_left():
    lengths = make_lengths(20_000)
    rng = np.random.default_rng(0)
    shuffled = np.array_split(rng.permutation(len(lengths)), len(lengths) // 32)
    bucketed = length_bucketed_batches(lengths, 32, rng=rng)
    assert padding_share(shuffled, lengths) > 0.4
    assert padding_share(bucketed, lengths) < 0.05


def test_batch_order_does_not_follow_length():
    # rows come sorted: neither they nor the windows may show in the order of batches
    lengths = np.sort(make_lengths(5000))
    rng = np.random.default_rng(3)
    correlations = []
    for _ in range(20):
        batches = length_bucketed_batches(lengths, 16, rng=rng, window=10)
        means = [lengths[rows].mean() for rows in batches]
        correlations.append(np.corrcoef(np.arange(len(means)), means)[0, 1])
        neighbours = np.corrcoef(means[:-1], means[1:])[0, 1]
        assert abs(neighbours) < 0.25
    # 20 means of about 312 batches: the mean has a standard error of 0.013
    assert abs(np.mean(correlations)) < 0.05


def test_the_smaller_batch_is_not_always_that_of_the_longest():
    lengths = np.arange(50)
    rng = np.random.default_rng(0)
    longest = []
    for _ in range(200):
        batches = length_bucketed_batches(lengths, 16, rng=rng)
        (small,) = (rows for rows in batches if len(rows) == 2)
        longest.append(lengths[small].max())
    # it may be any of the four
    assert {0, 1, 2, 3} == {value // 16 for value in longest}


def test_only_the_given_generator_is_used():
    lengths = make_lengths(100)
    state = np.random.get_state()[1].copy()
    first, second = (
        length_bucketed_batches(lengths, 8, rng=np.random.default_rng(5))
        for _ in range(2)
    )
    assert [b.tolist() for b in first] == [b.tolist() for b in second]
    assert (np.random.get_state()[1] == state).all()


@pytest.mark.parametrize("n, batch_size", [(0, 4), (1, 4), (8, 4), (9, 4)])
def test_sampler_length_is_the_number_of_batches(n, batch_size):
    sampler = LengthBucketSampler(make_lengths(n), batch_size, seed=0)
    assert len(sampler) == len(list(sampler)) == -(-n // batch_size)


def test_sampler_shuffles_anew_in_every_epoch_and_the_same_for_a_seed():
    lengths = make_lengths(200)
    sampler = LengthBucketSampler(lengths, 8, seed=3, window=2)
    epochs = [list(sampler) for _ in range(3)]
    assert all(sorted(sum(epoch, [])) == list(range(200)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = LengthBucketSampler(lengths, 8, seed=3, window=2)
    assert [list(again) for _ in range(3)] == epochs
    assert list(LengthBucketSampler(lengths, 8, seed=4, window=2)) != epochs[0]


def test_a_pickled_sampler_continues_where_it_was():
    sampler = LengthBucketSampler(make_lengths(50), 8, seed=3)
    list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))
    assert list(copy) == list(sampler)


def test_sampler_drives_a_data_loader():
    lengths = make_lengths(30)
    sampler = LengthBucketSampler(lengths, 8, seed=0)
    loader = DataLoader(lengths, batch_sampler=sampler, collate_fn=list)
    assert sorted(value for batch in loader for value in batch) == sorted(lengths)
    assert len(loader) == 4
