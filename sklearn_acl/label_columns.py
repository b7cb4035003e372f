"""Labels that are a column of a table: read in parts, and told from its texts."""

import numpy as np

from .containers import dataset_of, is_from, read_columns

# Rows of a Dataset read at a time.
_CHUNK_ROWS = 10_000
# Rows compared with the labels first: nearly always enough to see a text differ.
_FIRST_ROWS = 100
_STRINGS = ("string", "large_string")
_PLAIN = (*_STRINGS, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16")
_PLAIN += ("uint32", "uint64", "float32", "float64")


def factorize_column(y):
    """Read a column of a `datasets.Dataset` without decoding every row at once.

    Parameters
    ----------
    y : object
        Labels in any container.

    Returns
    -------
    (values, positions) or None
        The distinct values, a list in the order of their first rows, and for every
        row its position among them, an ndarray of dtype int64. None if `y` is no such
        column, if a value is missing, or if they are neither strings, numbers nor
        bools.
    """
    dataset, names = dataset_of(y, None) if _is_column(y) else (None, None)
    if dataset is None or _dtype(dataset, names[0]) not in _PLAIN:
        return None
    read = _arrow_reader(dataset, names[0])
    known = {}
    positions = np.empty(len(dataset), np.int64)
    for start in range(0, len(dataset), _CHUNK_ROWS):
        chunk = read(start, start + _CHUNK_ROWS)
        if chunk.null_count:
            return None
        distinct = chunk.unique().to_pylist()
        table = [known.setdefault(value, len(known)) for value in distinct]
        codes = chunk.combine_chunks().dictionary_encode().indices.to_numpy()
        positions[start : start + len(codes)] = np.array(table, np.int64)[codes]
    return list(known), positions


def label_column_of(X, y, columns):
    """Name of the column of X that y is, which is then no text.

    Parameters
    ----------
    X : object
        A DataFrame, pyarrow table or `datasets.Dataset`; others have no columns.
    y : object
        A Series, a column of a Dataset or a DataFrame of one column; others have no
        name.
    columns : list of names or None
        The columns that are texts, where the caller named them.

    Returns
    -------
    name : str or None
        None if `columns` says what the texts are, or if y has no name in common with
        the columns that could be.

    Raises
    ------
    ValueError
        If y has the name of such a column but other values.
    """
    name, column = _named_column(y)
    candidates = [] if columns is not None or name is None else _text_columns(X)
    # the only column there is must be the text
    if len(candidates) < 2 or name not in candidates:
        return None
    # texts and labels of different number are reported by the check of labels
    if len(X) != len(column) or _is_same_column(X, name, column):
        return name
    raise ValueError(
        f"y is named {name!r} and so is a column of X, but their values differ: is "
        "that column a text? Name the texts with text_columns=, or pass X without it."
    )


def reject_label_copy(texts, codes, classes, *, n_columns=None, name="X"):
    """Raise if one of two columns that nobody named as texts tells what y tells.

    Labels without a name, such as ``df["label"].values`` or those that scikit-learn
    has numbered, are not recognised as a column of X, which would then be read as a
    text and give them away. An equal column may yet be a text: the caller decides.

    Parameters
    ----------
    texts : Texts
    codes : ndarray of shape (n_samples,), dtype int64
        Positions of the labels in `classes`.
    classes : ndarray of shape (n_classes,)
    n_columns : int, default=None
        Number of text columns, where an earlier fit decided it.
    name : str, default="X"
        What `texts` were read from, for messages.

    Raises
    ------
    ValueError
        If the labels are a one-to-one renaming of a column. One without any repeated
        value, or with a single one, always is: then only equal values count.
    """
    if texts.n_columns < 2 or texts.column_names is None:
        return
    copies = _label_copies(texts, codes, classes)
    if not copies:
        return
    names = list(texts.column_names)
    label = copies[-1]  # of two, more often the last
    (other,) = [column for column in names if column != label]
    if n_columns is None:
        advice = (
            f"Name the texts: text_columns={[other]!r} leaves it out, "
            f"text_columns={names!r} reads both."
        )
        if isinstance(label, str):  # y=0 would be no name
            advice += f" Or pass y={label!r} if it is the column of labels."
    else:  # of a fit on pairs without names: no parameter chooses columns any more
        advice = "If both columns are texts, pass pairs as fit saw: list(zip(a, b))."
    raise ValueError(
        f"Column {label!r} of {name} tells the same as y in every row; as one text of "
        f"each pair it would give the labels away. {advice}"
    )


def _label_copies(texts, codes, classes):
    """Names of the columns that y equals or, if there is none, renames."""
    pairs = {name: set() for name in texts.column_names}
    for start, stop in _growing_chunks(len(codes)):
        columns = zip(texts.column_names, texts.slice(start, stop), strict=True)
        for name, values in columns:
            if name in pairs:
                pairs[name].update(zip(values, codes[start:stop].tolist(), strict=True))
                if not _is_one_to_one(pairs[name]):
                    del pairs[name]
        if not pairs:
            return []
    equal = [
        name
        for name, found in pairs.items()
        if all(value == str(classes[code]) for value, code in found)
    ]
    return equal or [name for name in pairs if 1 < len(pairs[name]) < len(codes)]


def _growing_chunks(n_rows):
    start, size = 0, min(_FIRST_ROWS, _CHUNK_ROWS)
    while start < n_rows:
        yield start, start + size
        start, size = start + size, min(2 * size, _CHUNK_ROWS)


def _is_one_to_one(pairs):
    values, codes = map(set, zip(*pairs, strict=True))
    return len(values) == len(codes) == len(pairs)


def _is_column(y):
    return is_from(y, "datasets", "Column")


def _dtype(dataset, name):
    return getattr(dataset.features[name], "dtype", None)


def _text_columns(X):
    """Columns of X that are texts unless something else is said."""
    if is_from(X, "datasets", "Dataset"):
        # as in choose_dataset_columns, which refuses a transform
        is_read = X.format["type"] != "custom"
        names = X.column_names if is_read else []
        return [name for name in names if "string" in str(_dtype(X, name))]
    if is_from(X, "pandas", "DataFrame") or is_from(X, "polars", "DataFrame"):
        return list(X.columns)
    if is_from(X, "pyarrow", "Table", "RecordBatch"):
        return X.schema.names
    return []


def _named_column(y):
    """Name and column that labels come with, or twice None."""
    if _is_column(y):
        return y.column_name, y
    if is_from(y, "pandas", "Series") or is_from(y, "polars", "Series"):
        return y.name, y
    if is_from(y, "pandas", "DataFrame") and y.shape[1] == 1:
        return y.columns[0], y.iloc[:, 0]
    if is_from(y, "polars", "DataFrame") and y.shape[1] == 1:
        return y.columns[0], y.to_series(0)
    return None, None


def _is_same_column(X, name, column):
    if _is_column(column) and column.source is X:
        return True
    left, right = _reader(X, name), _column_reader(column)
    starts = range(0, len(column), _CHUNK_ROWS)
    chunks = [(start, start + _CHUNK_ROWS) for start in starts]
    return all(_same_values(left(*chunk), right(*chunk)) for chunk in chunks)


def _arrow_reader(dataset, name):
    table = dataset.with_format("arrow", columns=[name])
    return lambda start, stop: table[start:stop].column(name)


def _reader(X, name):
    """Function of two row numbers that lists the values of a column between them."""
    if is_from(X, "datasets", "Dataset"):
        read = _arrow_reader(X, name)
        return lambda start, stop: read(start, stop).to_pylist()
    (values,), _ = read_columns(X, [name], None, "X")
    return lambda start, stop: values[start:stop]


def _column_reader(column):
    dataset, names = dataset_of(column, None)
    if dataset is not None:
        return _reader(dataset, names[0])
    if _is_column(column):  # one that a transform makes
        return lambda start, stop: list(column[start:stop])
    values = column.to_list()
    return lambda start, stop: values[start:stop]


def _same_values(left, right):
    try:
        if left == right:
            return True
    except (TypeError, ValueError):  # values whose comparison is no bool
        pass
    pairs = zip(left, right, strict=True)
    return all(
        a is b or _equal(a, b) or (_is_missing(a) and _is_missing(b)) for a, b in pairs
    )


def _equal(a, b):
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return False


def _is_missing(value):
    """Whether a value is missing: None, NA, or a NaN, which is not equal to itself."""
    return value is None or not _equal(value, value)
