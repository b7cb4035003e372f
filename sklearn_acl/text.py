"""Check the texts a user passes and read them by position, whatever holds them."""

import warnings

import numpy as np

from .containers import (
    choose_dataset_columns,
    dataset_of,
    read_columns,
    reject_containers,
)
from .user_code import stacklevel

_KINDS = {1: "single texts", 2: "pairs of texts"}
# Rows of a Dataset read at a time while looking for missing values.
_SCAN_ROWS = 10_000
# Row numbers shown in a message.
_SHOWN_ROWS = 5


def as_positions(indices, n_rows):
    """Row numbers as a range or an int64 array, counted from 0.

    Parameters
    ----------
    indices : range, array-like of int, or boolean mask of shape (n_rows,)
        Negative numbers count from the end.
    n_rows : int

    Raises
    ------
    IndexError
        For a number outside the rows there are, or a mask of another length.
    """
    if isinstance(indices, range):
        ends = (indices[0], indices[-1]) if indices else (0, 0)
        if not indices or (min(ends) >= 0 and max(ends) < n_rows):
            return indices
    indices = np.asarray(indices)
    if indices.dtype == bool:
        if indices.shape != (n_rows,):
            raise IndexError(f"A mask of shape {indices.shape} for {n_rows} rows.")
        return np.flatnonzero(indices)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise IndexError(
            "Row numbers must be a one-dimensional array of integers, got shape "
            f"{indices.shape} and dtype {indices.dtype}."
        )
    positions = indices.astype(np.int64)
    outside = (positions < -n_rows) | (positions >= n_rows)
    if outside.any():
        raise IndexError(f"Row {positions[outside][0]} is not one of {n_rows} rows.")
    return np.where(positions < 0, positions + n_rows, positions)


class Texts:
    """Checked texts, or pairs of texts, addressed by position.

    Parameters
    ----------
    first : list of str
        The texts, or the first text of every pair.
    second : list of str or None, default=None
        The second text of every pair.
    column_names : tuple or None, default=None
        Names of the columns the texts came from, where they had any.

    Attributes
    ----------
    n_columns : {1, 2}
        1 for single texts, 2 for pairs.
    is_memory_mapped : bool
        Whether the texts lie in a file and not in memory.
    """

    is_memory_mapped = False

    def __init__(self, first, second=None, column_names=None):
        self._first = first
        self._second = second
        self.n_columns = 1 if second is None else 2
        self.column_names = column_names

    def __len__(self):
        return len(self._first)

    def slice(self, start, stop):
        """Texts of rows start to stop - 1.

        Returns
        -------
        first, second : list of str, list of str or None
        """
        return self._read(range(len(self))[start:stop])

    def rows(self, indices):
        """The rows at `indices`: a list of str, or of (str, str) for pairs."""
        first, second = self._read(as_positions(indices, len(self)))
        return first if second is None else list(zip(first, second, strict=True))

    def take(self, indices):
        """The rows at `indices`, in that order, as texts of the same kind."""
        first, second = self._read(as_positions(indices, len(self)))
        return Texts(first, second, self.column_names)

    def _read(self, positions):
        if self._second is None:
            return _pick(self._first, positions), None
        return _pick(self._first, positions), _pick(self._second, positions)


def _pick(values, positions):
    if not isinstance(positions, range):
        positions = positions.tolist()
    elif positions.step == 1:
        return values[positions.start : positions.stop]
    return [values[i] for i in positions]


class DatasetTexts(Texts):
    """Texts that stay in a `datasets.Dataset` and are decoded when read.

    Parameters
    ----------
    dataset : datasets.Dataset
        Memory-mapped or not; an indices mapping (``select``, ``shuffle``) is followed,
        a format is ignored.
    column_names : tuple of str
        One string column, or two for pairs, without missing values.
    """

    def __init__(self, dataset, column_names):
        self._dataset = dataset.with_format("arrow", columns=list(column_names))
        self.n_columns = len(column_names)
        self.column_names = column_names

    def __len__(self):
        return len(self._dataset)

    @property
    def is_memory_mapped(self):
        return bool(self._dataset.cache_files)

    def take(self, indices):
        """The rows at `indices`, in that order, as a view of the same Dataset."""
        positions = as_positions(indices, len(self))
        return DatasetTexts(self._dataset.select(positions), self.column_names)

    def _read(self, positions):
        if not len(positions):
            return [], [] if self.n_columns == 2 else None
        if isinstance(positions, range) and positions.step == 1:
            table = self._dataset[positions.start : positions.stop]
        else:
            table = self._dataset[list(map(int, positions))]
        lists = [table.column(name).to_pylist() for name in self.column_names]
        return lists[0], lists[1] if self.n_columns == 2 else None

    def missing_rows(self, column):
        """How many values of a column are missing, and the first row numbers.

        Both come from Arrow's validity bits, some rows at a time; no text is decoded.
        """
        # the table may hold rows that select() left out, so this only rules nulls out
        if not self._dataset.data.column(column).null_count:
            return 0, []
        count, rows = 0, []
        for start in range(0, len(self), _SCAN_ROWS):
            chunk = self._dataset[start : start + _SCAN_ROWS].column(column)
            count += chunk.null_count
            if chunk.null_count and len(rows) < _SHOWN_ROWS:
                rows += (np.flatnonzero(chunk.is_null().to_numpy()) + start).tolist()
        return count, rows[:_SHOWN_ROWS]


def check_texts(
    X, *, columns=None, n_columns=None, exclude=None, allow_empty=False, name="X"
):
    """Check texts or pairs of texts and make them readable by position.

    Parameters
    ----------
    X : sequence of str, or of pairs of str, or Texts
        A list, tuple, numpy array of shape (n,), (n, 1) or (n, 2), pandas or polars
        Series or DataFrame, pyarrow array or table, `datasets.Dataset` or a column of
        one. Two columns, or rows that are tuples or lists of two, are pairs. `Texts`
        have been checked and are returned.
    columns : str, or list of one or two names, default=None
        Columns to read from a DataFrame, table or Dataset; by default every column of
        a DataFrame or table, and every string column of a Dataset, of which there must
        be one or two. Ignored where `X` has no columns.
    n_columns : {1, 2} or None, default=None
        What `fit` saw; None accepts single texts and pairs.
    exclude : str or list of names, default=None
        Columns left out unless `columns` names them, such as the labels.
    allow_empty : bool, default=False
        Whether no rows at all are fine.
    name : str, default="X"
        Name of `X` in messages.

    Returns
    -------
    texts : Texts
        A Dataset stays where it is; everything else becomes lists of exact str.

    Raises
    ------
    TypeError
        If an element is no str, or `X` cannot hold texts by its type.
    ValueError
        If a text is missing, or `X` has the wrong shape or columns, or is empty.

    Warns
    -----
    UserWarning
        Once, with a count, if lone surrogates were replaced by U+FFFD.
    """
    texts, n_repaired = _read_texts(X, columns, exclude, name)
    if n_repaired:
        warnings.warn(
            f"{n_repaired} of {len(texts)} rows of {name} held lone surrogates (halves "
            "of a character), which no tokenizer reads; each was replaced by U+FFFD.",
            UserWarning,
            stacklevel=stacklevel(),
        )
    if not len(texts):
        if not allow_empty:
            raise ValueError(f"{name} is empty; it must hold at least one text.")
        # a list without rows cannot tell texts from pairs: go by what fit saw
        return texts if n_columns in (None, texts.n_columns) else _no_texts(n_columns)
    if n_columns not in (None, texts.n_columns):
        raise ValueError(
            f"{name} holds {_KINDS[texts.n_columns]}, but fit saw "
            f"{_KINDS[n_columns]}; pass {_KINDS[n_columns]}."
        )
    return texts


def _read_texts(X, columns, exclude, name):
    """Texts, and the number of rows in which lone surrogates were replaced."""
    if isinstance(X, Texts):
        return X, 0
    reject_containers(X, name)
    dataset, columns = dataset_of(X, columns)
    if dataset is not None:
        # Arrow strings are valid UTF-8: they hold no surrogates
        return _from_dataset(dataset, columns, exclude, name), 0
    return _from_values(X, columns, exclude, name)


def _no_texts(n_columns):
    return Texts([], [] if n_columns == 2 else None)


def _from_dataset(dataset, columns, exclude, name):
    chosen = choose_dataset_columns(dataset, columns, exclude, name)
    texts = DatasetTexts(dataset, chosen)
    for column in chosen:
        count, rows = texts.missing_rows(column)
        if count:
            _raise_missing(count, rows, name, f" in column {column!r}")
    return texts


def _from_values(X, columns, exclude, name):
    lists, names = read_columns(X, columns, exclude, name)
    labels = [""] if len(lists) == 1 else [" in the first text", " in the second text"]
    if names is not None:
        labels = [f" in column {column!r}" for column in names]
    lists = [
        _check_column(values, name, label)
        for values, label in zip(lists, labels, strict=True)
    ]
    repaired = {row for values in lists for row in _repair_surrogates(values)}
    return Texts(*lists, column_names=names), len(repaired)


def _check_column(values, name, label):
    """Values as exact str; raise for anything that is no text."""
    if set(map(type, values)) <= {str}:
        return values
    missing = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            continue
        if not _is_missing(value):
            is_bytes = isinstance(value, (bytes, bytearray))
            raise TypeError(
                f"{name} must hold texts, but row {row}{label} is of type "
                f"{type(value).__name__}: {value!r:.60}. Convert such values, for "
                f"example with {'t.decode()' if is_bytes else 'str(t)'}."
            )
        missing.append(row)
    if missing:
        _raise_missing(len(missing), missing[:_SHOWN_ROWS], name, label)
    # subclasses such as np.str_; str(t) could run a __str__ that says something else
    return [str.__str__(value) for value in values]


def _raise_missing(count, rows, name, label):
    more = ", ..." if count > len(rows) else ""
    raise ValueError(
        f"{name} has {count} missing text{'s' * (count > 1)}{label}, at row"
        f"{'s' * (count > 1)} {', '.join(map(str, rows))}{more} (counted from 0). Drop "
        "these rows, or fill them, for example with ''."
    )


def _is_missing(value):
    """Whether a value is None, a NaN of any kind, pd.NA or NaT."""
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # arrays
        return False


def _is_utf8(text):
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates are all that UTF-8 has no code for
        return False
    return True


def _repair_surrogates(values):
    """Replace lone surrogates in place and return the rows that had any."""
    repaired = []
    for row, text in enumerate(values):
        if text.isascii() or _is_utf8(text):
            continue
        # two halves in the right order are one character; a single one becomes U+FFFD
        utf16 = text.encode("utf-16-le", "surrogatepass")
        values[row] = utf16.decode("utf-16-le", "replace")
        if values[row].count("\ufffd") > text.count("\ufffd"):
            repaired.append(row)
    return repaired
