"""The rows a fit trains on: tokens, label codes and weights, and how they batch."""

import copy
import math
import warnings

import numpy as np
import torch
from skorch.dataset import Dataset, ValidSplit
from torch.utils.data import DataLoader, Subset

from .tokens import LengthBucketSampler, length_sorted_batches
from .user_code import stacklevel


class RawTexts:
    """Texts by row number, for callbacks that score on the raw input."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            rows = range(len(self))[rows]
        if isinstance(rows, (int, np.integer)):
            return self.texts.rows([rows])[0]
        return self.texts.rows(np.asarray(rows))


class TrainingRows(Dataset):
    """Tokenised texts with label codes and weights.

    Parameters
    ----------
    texts : Texts
        The checked input; callbacks such as `EpochScoring` read it as `X`.
    tokens : Tokens
        The same rows, tokenised.
    labels : array-like of shape (n_samples,)
        Labels as the user gave them; callbacks read them as `y`. `DecodedLabels` take
        no memory of their own.
    codes : ndarray of shape (n_samples,), dtype int64
        Positions in `classes_`.
    weights : ndarray of shape (n_samples,), dtype float32, default=None
        Sample weight times class weight.
    """

    def __init__(self, texts, tokens, labels, codes, weights=None):
        super().__init__(RawTexts(texts), labels, length=len(codes))
        self.tokens = tokens
        self.codes = codes
        self.weights = weights

    def __getitem__(self, row):
        return row

    def collate(self, rows):
        """Batch of rows: (inputs dict, labels (B,), weights (B,))."""
        rows = np.asarray(rows)
        labels = torch.from_numpy(self.codes[rows])
        weights = np.ones(len(rows), np.float32)
        if self.weights is not None:
            weights = self.weights[rows]
        return self.tokens.collate(rows), labels, torch.from_numpy(weights)


class TrainingSet:
    """What one call of `fit` trains and validates on.

    Parameters
    ----------
    train, valid : TrainingRows, Subset of it, or None for `valid`
    n_steps : int
        Optimizer steps of each stage of the strategy.
    constant_lr : bool, default=False
        Whether the learning rate stays where it is, as in `partial_fit`.
    heads_start : bool, default=False
        Whether the heads are new, and not those of an earlier fit.
    """

    def __init__(self, train, valid, *, n_steps, constant_lr=False, heads_start=False):
        self.train = train
        self.valid = valid
        self.n_steps = n_steps
        self.constant_lr = constant_lr
        self.heads_start = heads_start

    def __len__(self):
        return len(self.train)


def row_numbers(dataset):
    """The `TrainingRows` behind a dataset, and which of its rows are meant."""
    if isinstance(dataset, Subset):
        data, rows = row_numbers(dataset.dataset)
        return data, rows[np.asarray(dataset.indices, dtype=np.int64)]
    return dataset, np.arange(len(dataset))


class _Batches:
    """Fixed batches of row numbers, as a `DataLoader` batch sampler."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class _RowSampler:
    """A batch sampler over positions, translated to row numbers."""

    def __init__(self, sampler, rows):
        self.sampler = sampler
        self.rows = rows

    def __iter__(self):
        for batch in self.sampler:
            yield self.rows[np.asarray(batch)]

    def __len__(self):
        return len(self.sampler)


def training_batches(dataset, batch_size, *, seed, loader=DataLoader, **kwargs):
    """Loader of shuffled batches of similar length, new in every epoch."""
    data, rows = row_numbers(dataset)
    sampler = LengthBucketSampler(data.tokens.lengths[rows], batch_size, seed=seed)
    return loader(
        data,
        batch_sampler=_RowSampler(sampler, rows),
        collate_fn=data.collate,
        generator=torch.Generator().manual_seed(seed),
        **kwargs,
    )


def ordered_batches(dataset, batch_size, *, loader=DataLoader, **kwargs):
    """Loader of every row once, sorted by length, for passes without training."""
    data, rows = row_numbers(dataset)
    batches = length_sorted_batches(data.tokens.lengths[rows], batch_size)
    return loader(
        data,
        batch_sampler=_Batches([rows[batch] for batch in batches]),
        collate_fn=data.collate,
        # a loader draws a number as it starts: not from the generator of dropout, which
        # would make the training depend on what is monitored
        generator=torch.Generator(),
        **kwargs,
    )


def split_rows(rows, train_split, seed):
    """Split rows into a training and a validation part.

    A stratified split keeps classes too rare for it in the training part; when no
    class can be split that way, the split is made without stratification; when
    there are too few rows for any, all rows train. Each is said in one warning.

    Parameters
    ----------
    rows : TrainingRows
    train_split : callable or None
        skorch's `ValidSplit` or a callable of the same form.
    seed : int
        Seed of a shuffled `ValidSplit` that brings none of its own.

    Returns
    -------
    train, valid : dataset, dataset or None
    """
    if train_split is None:
        return rows, None
    if not isinstance(train_split, ValidSplit):
        return _split_by_callable(rows, train_split)
    split = copy.copy(train_split)
    is_float = split._is_float(split.cv)
    if is_float and split.random_state is None:
        split.random_state = seed
    is_count = isinstance(split.cv, (int, np.integer)) and not is_float
    needed = int(split.cv) if is_count else 2
    if len(rows) < max(4, needed):
        warnings.warn(
            f"{len(rows)} rows are too few for train_split={train_split!r}; all of "
            "them train and nothing is validated.",
            UserWarning,
            stacklevel=stacklevel(),
        )
        return rows, None
    if not split.stratified:
        return split(rows, rows.codes)
    return _stratified_split(rows, split, needed)


def _split_by_callable(rows, train_split):
    parts = train_split(rows, rows.codes)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2:
        raise TypeError(
            f"train_split={train_split!r} must return two parts, for training and for "
            f"validation, got {parts!r:.60}. Pass a skorch.dataset.ValidSplit."
        )
    for part in parts:
        if part is not None and row_numbers(part)[0] is not rows:
            raise TypeError(
                f"train_split={train_split!r} must return the rows that it is given, "
                f"or a torch Subset of them, got {type(part).__name__}. Texts of "
                "your own for validation go to fit(validation_data=(X, y))."
            )
    return parts


def _stratified_split(rows, split, needed):
    counts = np.bincount(rows.codes)
    common = counts[rows.codes] >= needed
    kept, rare = np.flatnonzero(common), np.flatnonzero(~common)
    n_common = np.unique(rows.codes[kept]).size
    size = split.cv if split._is_float(split.cv) else 1 / needed
    n_valid = math.floor(size * kept.size)
    if n_common < 2 or min(n_valid, kept.size - n_valid) < n_common:
        warnings.warn(
            f"The validation split is not stratified: of {counts[counts > 0].size} "
            f"classes, {n_common} have the {needed} rows that a stratified "
            "train_split needs. Pass stratified=False or more rows.",
            UserWarning,
            stacklevel=stacklevel(),
        )
        split.stratified = False
        return split(rows, rows.codes)
    train, valid = split(Subset(rows, kept), rows.codes[kept])
    if rare.size:
        warnings.warn(
            f"{rare.size} rows of classes with fewer than {needed} members stay in "
            "the training part: such classes cannot be split.",
            UserWarning,
            stacklevel=stacklevel(),
        )
    train_rows = np.sort(np.concatenate([kept[train.indices], rare]))
    return Subset(rows, train_rows), Subset(rows, kept[valid.indices])
