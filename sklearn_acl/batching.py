"""Batches of rows of similar length, for training and for prediction."""

import numpy as np
from torch.utils.data import Sampler

#: A batch of prediction holds `batch_size` texts, or as many as so many tokens a text
#: leave room for; at most so many times `batch_size`.
_ROOM, _MOST = 64, 4
#: Positions of padding that a batch of prediction may hold: so many, about what another
#: batch costs, or a share of all its positions.
_PADDING, _PADDING_SHARE = 64, 1 / 16


def length_bucketed_batches(lengths, batch_size, *, rng, window=50):
    """Shuffle rows into batches of similar length, for one epoch of training.

    All rows are shuffled and cut into windows of `window` batches; rows of a window are
    sorted by length and cut into batches; the batches of the whole epoch are shuffled.
    If the rows do not fill the batches, a randomly chosen batch of the last window is
    smaller, so that it is not always the one of the longest texts.

    Parameters
    ----------
    lengths : array-like of shape (n_rows,)
        Number of tokens per row.
    batch_size : int
    rng : numpy.random.Generator
    window : int, default=50
        Batches sorted together. More means less padding and less random batches.

    Returns
    -------
    batches : list of int64 arrays
        Every row number exactly once.
    """
    lengths = np.asarray(lengths)
    order = rng.permutation(len(lengths))
    span = window * batch_size
    batches = []
    for start in range(0, len(order), span):
        rows = order[start : start + span]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        full, rest = divmod(len(rows), batch_size)
        sizes = rng.permutation([batch_size] * full + [rest] * (rest > 0))
        batches += np.split(rows, np.cumsum(sizes)[:-1])
    return [batches[i] for i in rng.permutation(len(batches))]


def length_sorted_batches(lengths, batch_size):
    """Cut rows, longest first and stable among equals, into batches for prediction.

    Parameters
    ----------
    lengths : array-like of shape (n_rows,)
        Number of tokens per row.
    batch_size : int

    Returns
    -------
    batches : list of int64 arrays
        Every row number exactly once.
    """
    order = _longest_first(lengths)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def prediction_batches(lengths, batch_size, *, pad_freely=False):
    """As `length_sorted_batches`, with batches that follow the lengths.

    A layer takes little less time for a handful of short texts than for some more, and
    of a batch that texts leave early only a handful remains: where texts are short, a
    batch holds more of them. No batch takes more room than `batch_size` texts of 64
    tokens, or of the longest if that is longer. And a batch ends where its padding
    would cost more than another batch does, unless padding costs next to nothing.

    Parameters
    ----------
    lengths : array-like of shape (n_rows,)
        Number of tokens per row.
    batch_size : int
        A batch has up to four times as many texts; 1 stays one at a time.
    pad_freely : bool, default=False
        Whether to let batches be as large as their room. For devices on which it is
        the number of batches that takes time.

    Returns
    -------
    batches : list of int64 arrays
        Every row number exactly once.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = _longest_first(lengths)
    most = 1 if batch_size == 1 else _MOST
    batches, start = [], 0
    while start < len(order):
        longest = max(lengths[order[start]], 1)
        size = batch_size * min(max(_ROOM // longest, 1), most)
        rows = order[start : start + size]
        if not pad_freely:
            rows = rows[: _n_with_little_padding(lengths[rows])]
        batches.append(rows)
        start += len(rows)
    return batches


def _n_with_little_padding(lengths):
    """How many of these rows, longest first, to put into one batch."""
    room = np.arange(1, len(lengths) + 1) * lengths[0]
    padding = room - np.cumsum(lengths)
    little = padding <= np.maximum(_PADDING, room * _PADDING_SHARE)
    return np.flatnonzero(little)[-1] + 1


def _longest_first(lengths):
    # signed: unsigned lengths have no negatives
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


class LengthBucketSampler(Sampler):
    """Batch sampler of `length_bucketed_batches`, shuffled anew in every epoch.

    Parameters
    ----------
    lengths : array-like of shape (n_rows,)
        Number of tokens per row.
    batch_size : int
    seed : int, SeedSequence or Generator, default=None
        Start of the sampler's own generator; None takes entropy from the system.
    window : int, default=50
        Batches sorted together.
    """

    def __init__(self, lengths, batch_size, *, seed=None, window=50):
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.window = window
        self._rng = np.random.default_rng(seed)

    def __iter__(self):
        batches = length_bucketed_batches(
            self.lengths, self.batch_size, rng=self._rng, window=self.window
        )
        return (batch.tolist() for batch in batches)

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)
