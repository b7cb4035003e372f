"""Read the columns of text out of whatever container a user passes.

Classes of other libraries are recognised only once their module has been imported by
somebody else: an object of theirs cannot exist before that.
"""

import sys
from collections.abc import ItemsView, KeysView, Mapping, Sequence, Set, ValuesView

import numpy as np

_PAIR_TYPES = (tuple, list, np.ndarray)
_STRING_DTYPES = ("string", "large_string", "string_view")
# Column names shown in a message; a frame of features may have thousands.
_SHOWN_COLUMNS = 20


def is_from(X, module, *classes):
    """Whether X is of one of the classes of a module, which is not imported for it."""
    module = sys.modules.get(module)
    return isinstance(X, tuple(getattr(module, c, ()) for c in classes))


def reject_containers(X, name):
    """Raise for what holds no rows of text, and say what to pass instead.

    Raises
    ------
    TypeError
        For a scalar or None.
    ValueError
        For a str, iterator, mapping, set, sparse matrix, streamed or lazy data, and a
        tuple of two columns.
    """
    kind = type(X).__name__
    if isinstance(X, str):
        raise ValueError(f"{name} is a single str; pass a list of texts: [{name}].")
    if X is None or isinstance(X, (bytes, bytearray, int, float, np.generic)):
        raise TypeError(f"{name} must be a sequence of texts, got {kind}: {X!r:.60}.")
    if hasattr(X, "__next__"):
        raise ValueError(
            f"{name} is an iterator ({kind}), which can be read only once; pass "
            f"list({name})."
        )
    if is_from(X, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise ValueError(f"{name} is a {kind} of splits {list(X)}; pass one of them.")
    # before mappings: some sparse matrices are dicts
    if is_from(X, "scipy.sparse", "spmatrix", "sparray"):
        raise ValueError(
            f"{name} is a sparse matrix; pass the raw texts, not features made of them."
        )
    if isinstance(X, Mapping):
        raise ValueError(
            f"{name} is a {kind}; pass a list of texts or a DataFrame, for example "
            f"list({name}.values())."
        )
    if isinstance(X, (Set, KeysView, ValuesView, ItemsView)):
        raise ValueError(
            f"{name} is a {kind}, which has no positions; pass a list: list({name})."
        )
    if is_from(X, "datasets", "IterableDataset", "IterableColumn"):
        raise ValueError(
            f"{name} is an {kind}, which streams; load it with streaming=False, or "
            "pass a list of texts."
        )
    if is_from(X, "polars", "LazyFrame"):
        raise ValueError(f"{name} is a LazyFrame; pass {name}.collect().")
    if isinstance(X, tuple) and len(X) == 2 and all(map(_looks_like_column, X)):
        raise ValueError(
            f"{name} is a tuple of two columns; for pairs of texts pass a list of "
            "2-tuples: list(zip(a, b))."
        )


def _looks_like_column(part):
    """Whether half of a tuple is a column of texts rather than a row."""
    if isinstance(part, tuple):
        return len(part) != 2
    return not isinstance(part, (str, bytes)) and hasattr(part, "__len__")


def read_columns(X, columns, exclude, name):
    """Read one or two columns, with no check of what they hold.

    Parameters
    ----------
    X : object
        What `reject_containers` let pass, other than a Dataset.
    columns, exclude : str, list of names, or None
        See `check_texts`.
    name : str
        Name of `X` in messages.

    Returns
    -------
    lists : list of one or two lists
        New lists: changing them does not change `X`.
    names : tuple or None
        Column names, where X has any.
    """
    if is_from(X, "pandas", "DataFrame"):
        chosen = choose_columns(list(X.columns), columns, exclude, name)
        return [X.iloc[:, i].tolist() for i in chosen], tuple(X.columns[chosen])
    if is_from(X, "polars", "DataFrame"):
        chosen = choose_columns(X.columns, columns, exclude, name)
        lists = [X.to_series(i).to_list() for i in chosen]
        return lists, tuple(X.columns[i] for i in chosen)
    if is_from(X, "pyarrow", "Table", "RecordBatch"):
        available = X.schema.names
        chosen = choose_columns(available, columns, exclude, name)
        lists = [X.column(i).to_pylist() for i in chosen]
        return lists, tuple(available[i] for i in chosen)
    if isinstance(X, np.ndarray):
        return _read_array(X, name), None
    return _split_pairs(_read_list(X, name), name), None


def _read_list(X, name):
    if is_from(X, "pandas", "Series", "Index"):
        return X.tolist()
    if is_from(X, "pandas.api.extensions", "ExtensionArray"):
        return X.tolist()
    if is_from(X, "polars", "Series"):
        return X.to_list()
    if is_from(X, "pyarrow", "Array", "ChunkedArray"):
        return X.to_pylist()
    if isinstance(X, Sequence):
        return list(X)
    raise TypeError(
        f"{name} must be a sequence of texts (list, array, Series, DataFrame, "
        f"Dataset), got {type(X).__name__}."
    )


def _read_array(X, name):
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[1] not in (1, 2)):
        raise ValueError(
            f"{name} is an array of shape {X.shape}; pass an array of texts of shape "
            "(n,) or (n, 1), or of pairs of shape (n, 2)."
        )
    if X.dtype.names:
        raise TypeError(
            f"{name} is a structured array with fields {X.dtype.names}; pass one field "
            "or an array of shape (n, 2)."
        )
    if isinstance(X, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(X)
        X = X.data.astype(object)
        X[masked] = None
    if X.ndim == 1:
        return _split_pairs(X.tolist(), name)
    return [column.tolist() for column in np.asarray(X).T]


def _split_pairs(values, name):
    """One list of single values, or two lists if every value is a pair."""
    if not any(issubclass(kind, _PAIR_TYPES) for kind in set(map(type, values))):
        return [values]
    for row, value in enumerate(values):
        if not isinstance(value, _PAIR_TYPES) or getattr(value, "ndim", 1) != 1:
            pair = next(i for i, v in enumerate(values) if isinstance(v, _PAIR_TYPES))
            raise ValueError(
                f"{name} mixes pairs and single values: row {row} is {value!r:.60}, "
                f"row {pair} is a {type(values[pair]).__name__}. Pass only texts, or "
                "only pairs as tuples of two."
            )
        if len(value) != 2:
            hint = "; for two columns pass list(zip(a, b))" if len(values) == 2 else ""
            raise ValueError(
                f"Row {row} of {name} is a {type(value).__name__} of length "
                f"{len(value)}; pass texts, or pairs as tuples of two{hint}."
            )
    return [[row[0] for row in values], [row[1] for row in values]]


def choose_columns(available, columns, exclude, name):
    """Positions of the one or two columns to read.

    Raises
    ------
    ValueError
        If names are duplicated or missing, or there are not one or two columns.
    """
    if len(set(available)) < len(available):
        duplicates = [c for c in dict.fromkeys(available) if available.count(c) > 1]
        raise ValueError(
            f"{name} has duplicate column names: {_shown(duplicates)}, of "
            f"{_shown(available)}. Rename them."
        )
    if columns is None:
        chosen = [c for c in available if c not in as_names(exclude)]
    else:
        chosen = as_names(columns)
    missing = [c for c in chosen if c not in available]
    if missing:
        raise ValueError(
            f"{name} has no column {_shown(missing)}; its columns are "
            f"{_shown(available)}."
        )
    if len(chosen) not in (1, 2) or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"{name} must have one column of texts, or two of pairs, but these are "
            f"{len(chosen)}: {_shown(chosen)}. Choose one or two of "
            f"{_shown(available)}, by selecting them or with text_columns."
        )
    return [available.index(c) for c in chosen]


def as_names(columns):
    """A list of column names from a name, a list of them, or None."""
    if columns is None:
        return []
    return list(columns) if isinstance(columns, (list, tuple)) else [columns]


def _shown(columns):
    more = ", ..." if len(columns) > _SHOWN_COLUMNS else ""
    return "[" + ", ".join(map(repr, columns[:_SHOWN_COLUMNS])) + more + "]"


def dataset_of(X, columns):
    """The `datasets.Dataset` behind X and the columns to read.

    A column of a Dataset (``ds["text"]``) is that Dataset with one column.

    Returns
    -------
    dataset, columns : Dataset or None, `columns` or a list of one name
    """
    if is_from(X, "datasets", "Dataset"):
        return X, columns
    if is_from(X, "datasets", "Column") and is_from(X.source, "datasets", "Dataset"):
        # a transform makes the values of its column; they are read through it
        if X.source.format["type"] != "custom":
            return X.source, [X.column_name]
    return None, columns


def choose_dataset_columns(dataset, columns, exclude, name):
    """Names of the one or two string columns of a Dataset to read.

    Raises
    ------
    TypeError
        If a column in `columns` holds no strings.
    ValueError
        As `choose_columns`, or if the Dataset has a transform.
    """
    if dataset.format["type"] == "custom":
        raise ValueError(
            f"{name} is a Dataset with a transform, which would be left out; apply it "
            "with map(), or remove it with reset_format()."
        )
    value = sys.modules["datasets"].Value
    kinds = {
        column: feature.dtype if isinstance(feature, value) else type(feature).__name__
        for column, feature in dataset.features.items()
    }
    if columns is None:
        excluded = as_names(exclude)
        strings = [c for c in kinds if kinds[c] in _STRING_DTYPES]
        columns = [c for c in strings if c not in excluded]
    available = list(kinds)
    chosen = [available[i] for i in choose_columns(available, columns, None, name)]
    for column in chosen:
        if kinds[column] not in _STRING_DTYPES:
            raise TypeError(
                f"Column {column!r} of {name} holds {kinds[column]}, not text; choose "
                "a column of strings."
            )
    return tuple(chosen)
