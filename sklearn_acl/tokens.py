"""Tokenise texts once, keep the ids flat, and make batches of similar length."""

import contextlib
import itertools
import logging
import os
import threading
import weakref

import numpy as np
import torch
from torch.utils.data import Dataset

from .batching import (
    LengthBucketSampler,
    length_bucketed_batches,
    length_sorted_batches,
)
from .max_length import resolve_max_length
from .text import as_positions
from .token_storage import STORES, delete_directory

__all__ = [
    "LengthBucketSampler",
    "Tokens",
    "length_bucketed_batches",
    "length_sorted_batches",
    "resolve_max_length",
    "tokenize",
]

# Rows kept together; storage and row lookup rely on every chunk but the last having
# this many.
_CHUNK_ROWS = 1000
# Characters handed to the tokenizer at a time: a token costs it some 100 bytes while
# it works, so that a chunk of long documents would take gigabytes.
_CALL_CHARACTERS = 2_000_000
_DTYPES = {"input_ids": np.int32, "token_type_ids": np.uint8}


class Tokens(Dataset):
    """Tokenised texts without padding, addressed by position.

    Made by `tokenize`. A pickled copy holds its ids in memory.

    Parameters
    ----------
    chunks : list of dict of str to ndarray
        Ids of `_CHUNK_ROWS` rows each, one after the other.
    lengths : ndarray of shape (n_rows,), dtype int32
        Number of tokens per row.
    padding : dict of str to int
        Padding value of each key in `chunks`.
    with_mask : bool
        Whether batches have an ``attention_mask``.
    n_truncated : int
        Number of texts that were longer than `max_length`.
    directory : str or None, default=None
        Temporary directory behind `chunks`, deleted with this object.
    """

    def __init__(
        self, chunks, lengths, *, padding, with_mask, n_truncated, directory=None
    ):
        self.lengths = lengths
        self.n_truncated = n_truncated
        self._chunks = chunks
        self._starts = _starts_in_chunk(lengths)
        self._padding = padding
        self._with_mask = with_mask
        self._delete = directory and weakref.finalize(
            self, delete_directory, directory, os.getpid()
        )

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        """Row `index`: a dict of int arrays of shape (length,)."""
        (row,) = as_positions([index], len(self))
        return {key: self._row(key, row) for key in self._padding}

    def __getstate__(self):
        chunks = [{k: np.array(v) for k, v in c.items()} for c in self._chunks]
        return {**self.__dict__, "_chunks": chunks, "_delete": None}

    def rows(self, indices):
        """``input_ids`` of the rows at `indices`: a list of int32 arrays."""
        rows = as_positions(indices, len(self))
        return [self._row("input_ids", row) for row in rows]

    def collate(self, indices):
        """Batch of the rows at `indices`, padded on the right to the longest.

        Returns
        -------
        batch : dict of str to Tensor of shape (B, T), dtype int64
            Those of ``input_ids``, ``token_type_ids`` and ``attention_mask`` that the
            model accepts and the tokenizer gives.
        """
        rows = np.asarray(as_positions(indices, len(self)), dtype=np.int64)
        lengths = self.lengths[rows]
        shape = (len(rows), lengths.max(initial=0))  # (B, T)
        batch = {}
        for key, padding in self._padding.items():
            array = np.full(shape, padding, dtype=np.int64)
            for line, row, length in zip(array, rows, lengths, strict=True):
                line[:length] = self._row(key, row)
            batch[key] = torch.from_numpy(array)
        if self._with_mask:
            mask = np.arange(shape[1]) < lengths[:, None]
            batch["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        return batch

    def close(self):
        """Forget the ids and delete their file; nothing can be read afterwards."""
        self._chunks, self._starts = [], self._starts[:0]
        self.lengths = self.lengths[:0]
        if self._delete:
            self._delete()

    def _row(self, key, row):
        start = self._starts[row]
        return self._chunks[row // _CHUNK_ROWS][key][start : start + self.lengths[row]]


def _starts_in_chunk(lengths):
    """Position of every row's first token within its chunk, as int64."""
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    return starts - np.repeat(starts[::_CHUNK_ROWS], _CHUNK_ROWS)[: len(starts)]


# -- tokenising ------------------------------------------------------------------------


def tokenize(texts, tokenizer, *, max_length, accepted, storage="memory"):
    """Tokenise every text once, in this process.

    Parameters
    ----------
    texts : Texts
        Single texts or pairs.
    tokenizer : transformers.PreTrainedTokenizerBase
        Fast or slow. Left as it was found.
    max_length : int
        Tokens kept of a row, special ones included; see `resolve_max_length`. Of a
        pair, the longer text is shortened first.
    accepted : collection of str
        Names the model's forward takes; other outputs are not kept.
    storage : {"memory", "arrow"}, default="memory"
        Where ids are kept: in memory, or in an Arrow file in a temporary directory,
        memory-mapped, at some 12 bytes of memory per row.

    Returns
    -------
    tokens : Tokens
    """
    if storage not in STORES:
        raise ValueError(f"storage={storage!r} must be one of {sorted(STORES)}.")
    store = STORES[storage]()
    lengths, n_truncated = [np.zeros(0, np.int32)], 0
    try:
        with _left_as_found(tokenizer):
            for start in range(0, len(texts), _CHUNK_ROWS):
                rows, n_long = _encode(
                    *texts.slice(start, start + _CHUNK_ROWS),
                    tokenizer,
                    max_length,
                    "token_type_ids" in accepted,
                )
                n_truncated += n_long
                lengths.append(np.fromiter(map(len, rows["input_ids"]), np.int32))
                store.append({key: _flat(rows[key], key) for key in rows})
        chunks = store.finish()
    except BaseException:
        store.discard()
        raise
    paddings = {
        "input_ids": tokenizer.pad_token_id or 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
    keys = chunks[0] if chunks else ["input_ids"]
    return Tokens(
        chunks,
        np.concatenate(lengths),
        padding={key: paddings[key] for key in keys},
        with_mask="attention_mask" in accepted,
        n_truncated=n_truncated,
        directory=store.directory,
    )


def _flat(rows, key):
    return np.fromiter(itertools.chain.from_iterable(rows), _DTYPES[key])


def _encode(first, second, tokenizer, max_length, with_types):
    """Ids of some rows, as lists of lists, and how many had to be shortened."""
    rows, n_long = {}, 0
    for part in _parts(first, second):
        texts = [column[part] for column in (first, second) if column is not None]
        encoded = tokenizer(
            *texts,
            truncation=False,
            return_attention_mask=False,
            # None leaves it to the tokenizer: RoBERTa's knows no segments
            return_token_type_ids=None if with_types else False,
            verbose=False,
        )
        columns = {key: encoded[key] for key in _DTYPES if key in encoded}
        shorten = _shorten_fast if tokenizer.is_fast else _shorten_slow
        for row, ids in enumerate(columns["input_ids"]):
            if len(ids) > max_length:
                short = shorten(encoded, texts, row, tokenizer, max_length)
                for key in columns:
                    columns[key][row] = short[key]
                n_long += 1
        for key, values in columns.items():
            rows.setdefault(key, []).extend(values)
    return _filled(rows, tokenizer), n_long


def _parts(first, second):
    """Slices of rows of at most `_CALL_CHARACTERS` characters, or of a single row."""
    sizes = np.fromiter(map(len, first), np.int64)
    if second is not None:
        sizes = sizes + np.fromiter(map(len, second), np.int64)
    start, characters = 0, 0
    for row, size in enumerate(sizes):
        if row > start and characters + size > _CALL_CHARACTERS:
            yield slice(start, row)
            start, characters = row, 0
        characters += size
    yield slice(start, len(sizes))


def _shorten_fast(encoded, texts, row, tokenizer, max_length):
    """Cut one row as the tokenizer's own "longest_first" truncation would.

    Its own keeps what it cuts off, and for pairs every combination of such pieces, so
    that one pair of long documents costs seconds and gigabytes.
    """
    encoding = encoded.encodings[row]
    origin = np.array([-1 if s is None else s for s in encoding.sequence_ids])
    available = max_length - np.count_nonzero(origin == -1)
    n_first, n_second = (np.count_nonzero(origin == s) for s in (0, 1))
    keep = origin == -1
    for sequence, size in enumerate(_longest_first(n_first, n_second, available)):
        positions = np.flatnonzero(origin == sequence)
        from_end = tokenizer.truncation_side == "left"
        start = len(positions) - size if from_end else 0
        keep[positions[start : start + size]] = True
    columns = {"input_ids": encoding.ids, "token_type_ids": encoding.type_ids}
    return {key: list(itertools.compress(ids, keep)) for key, ids in columns.items()}


def _longest_first(n_first: int, n_second: int, available: int) -> tuple[int, int]:
    """Tokens kept of both texts of a pair that is too long.

    The longer text loses tokens until both are equally long, then both do; of an odd
    number the longer text keeps one more, and the second at equal length.
    """
    half = available // 2
    short = min(n_first, n_second, half)
    if n_first > n_second:
        return available - short, short
    return short, available - short


def _shorten_slow(encoded, texts, row, tokenizer, max_length):
    texts = [column[row] for column in texts]
    return tokenizer(
        *texts, truncation=True, max_length=max_length, return_token_type_ids=True
    )


def _filled(rows, tokenizer):
    """Give rows without any token one, so that there is something to pool.

    Only tokenizers that add no special tokens leave an empty text empty.
    """
    empty = [i for i, ids in enumerate(rows["input_ids"]) if not len(ids)]
    unknown, padding = tokenizer.unk_token_id, tokenizer.pad_token_id
    filler = unknown if unknown is not None else padding or 0
    for i in empty:
        for key in rows:
            rows[key][i] = [filler if key == "input_ids" else 0]
    return rows


# A tokenizer keeps padding and truncation in itself: threads that share one take turns.
_TURN = threading.RLock()


@contextlib.contextmanager
def _left_as_found(tokenizer):
    """Restore a tokenizer's padding and truncation, which every call changes."""
    with _TURN:
        # a slow one logs at every pair it shortens that it does not return the rest
        logger = logging.getLogger("transformers.tokenization_python")
        disabled, logger.disabled = logger.disabled, True
        backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        found = (backend.truncation, backend.padding) if backend else (0, 0)
        truncation, padding = found
        try:
            yield
        finally:
            logger.disabled = disabled
            if truncation:
                backend.enable_truncation(**truncation)
            if padding:
                backend.enable_padding(**padding)
