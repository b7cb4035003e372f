"""Labels to class codes and back."""

import numbers
import warnings
from collections.abc import Mapping

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import DataConversionWarning
from sklearn.preprocessing import LabelEncoder

from .label_columns import factorize_column
from .user_code import stacklevel

_N_NAMED = 5  # how many offending labels a message lists


def encode_labels(y, *, classes=None, n_rows=None, require_two=True, name="y"):
    """Replace labels by their positions in the sorted classes.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Strings, integers, bools or floats of integral value: a list, tuple, numpy
        array, pandas or polars Series, `datasets` column and the like. A column
        vector is raveled with a warning, as in scikit-learn.
    classes : array-like of shape (n_classes,), default=None
        All labels there are, in any order. None takes the labels that occur; so it is
        for a pandas Categorical, whose unused categories are not classes.
    n_rows : int, default=None
        Number of texts, to be compared with the number of labels.
    require_two : bool, default=True
        Whether fewer than two classes are an error.
    name : str, default="y"
        How to call the labels in an error.

    Returns
    -------
    codes : ndarray of shape (n_samples,), dtype int64
        Positions in `classes`.
    classes : ndarray of shape (n_classes,)
        Sorted labels, of the dtype that ``np.unique`` gives for `classes` or `y`.

    Raises
    ------
    ValueError
        For missing, continuous, infinite or unknown labels, several labels per text,
        a single class, or a length other than `n_rows`.
    TypeError
        For labels of mixed or unsupported types.
    """
    column = factorize_column(y)
    if column is not None and n_rows in (None, len(column[1])):
        values, positions = column
        try:
            codes, classes = _encode(values, classes, None, require_two, name)
        except (TypeError, ValueError):
            pass  # all labels, below, tell which rows are wrong
        else:
            return codes[positions], classes
    return _encode(y, classes, n_rows, require_two, name)


def _encode(y, classes, n_rows, require_two, name):
    y, kind = _check_labels(y, name, n_rows)
    if classes is not None:
        classes, expected = _check_classes(classes)
        if kind not in (None, expected):
            raise TypeError(
                f"y holds labels of type {kind} ({_at(y, 0)}) but classes holds labels "
                f"of type {expected}; convert one of them.{_hint(y, kind, classes)}"
            )
    encoder = LabelEncoder()
    codes = encoder.fit_transform(y).astype(np.int64)
    present = encoder.classes_
    if classes is not None:
        return _recode(codes, present, classes), classes
    if require_two and len(present) < 2:
        found = f"y holds one class only, {listed(present)}" if len(y) else "y is empty"
        raise ValueError(
            f"{found}: training needs at least two classes. Pass texts of other "
            "classes too, or name all classes with classes=."
        )
    return codes, present


def decode_labels(codes, classes):
    """Labels of class codes.

    Parameters
    ----------
    codes : array-like of int
        Positions in `classes`, in an array of any shape.
    classes : array-like of shape (n_classes,)
        Labels in sorted order.

    Returns
    -------
    labels : ndarray of the shape of `codes`
        Of the dtype of `classes`.
    """
    return np.asarray(classes)[np.asarray(codes, dtype=np.int64)]


class DecodedLabels:
    """Labels of class codes, decoded when they are read: an array-like of them.

    Parameters
    ----------
    codes : ndarray of shape (n_samples,), dtype int64
        Positions in `classes`.
    classes : ndarray of shape (n_classes,)
        Labels in sorted order.
    """

    ndim = 1
    # skorch makes an array of what has the attributes of its SliceDataset
    dataset = indices = idx = None

    def __init__(self, codes, classes):
        self._codes = codes
        self._classes = np.asarray(classes)

    @property
    def dtype(self):
        return self._classes.dtype

    @property
    def shape(self):
        return self._codes.shape

    def __len__(self):
        return len(self._codes)

    def __getitem__(self, rows):
        return decode_labels(self._codes[rows], self._classes)

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError(
                "Labels are decoded into a new array: copy=False cannot be."
            )
        labels = decode_labels(self._codes, self._classes)
        return labels if dtype is None else labels.astype(dtype, copy=False)


# --- classes ------------------------------------------------------------------------


def _check_classes(classes):
    if np.ndim(classes) > 1:
        raise ValueError(f"classes must be 1-d; got {np.ndim(classes)} dimensions.")
    classes, kind = _check_labels(classes, "classes")
    ordered, counts = np.unique(classes, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"classes must be unique; repeated: {listed(ordered[counts > 1])}."
        )
    if len(ordered) < 2:
        raise ValueError(
            f"classes must hold at least two labels; got {listed(ordered)}."
        )
    return ordered, kind


def _hint(y, kind, classes):
    """Advice for labels that look like positions in the classes."""
    if kind != "number" or y.min() != 0 or y.max() >= len(classes):
        return ""
    return (
        " Where scikit-learn numbers the labels before it fits (cross_val_predict of "
        "probabilities, VotingClassifier, StackingClassifier), pass "
        f"classes=range({len(classes)})."
    )


def _recode(codes, present, classes):
    """Positions in `classes` of codes that are positions in `present`."""
    position = {label: i for i, label in enumerate(classes.tolist())}
    table = np.array([position.get(label, -1) for label in present.tolist()], np.int64)
    unknown = table < 0
    if unknown.any():
        row = np.flatnonzero(unknown[codes])[0]
        raise ValueError(
            f"y holds {unknown.sum()} labels that are not in classes: "
            f"{listed(present[unknown])}; the first is {_shown(present[codes[row]])} "
            f"at position {row}. The classes are {listed(classes)}."
        )
    return table[codes]


# --- checks of a label array --------------------------------------------------------


def _check_labels(values, name, n_rows=None):
    """Checked 1-d array of labels and their kind: str, bool, number or None (empty)."""
    array = _to_one_dimension(_to_array(values, name), name)
    if n_rows is not None and len(array) != n_rows:
        raise ValueError(
            f"X and y differ in length: {n_rows} texts but {len(array)} labels."
        )
    _reject_missing(array, name)
    kind = _kind_of(array, name)
    # string arrays of dtype object keep it, as in np.unique; lists get a plain dtype
    if array.dtype == object and not (kind == "str" and hasattr(values, "__array__")):
        array = _to_plain_dtype(array, kind)
    if array.dtype.kind == "f":
        _reject_continuous(array, name)
    return array, kind


def _to_array(values, name):
    if values is None:
        raise ValueError(
            f"fit requires {name} to be passed, but the target {name} is None; pass "
            "one label per text."
        )
    if issparse(values):
        raise ValueError(_several_labels(name, "is a sparse matrix"))
    if np.ma.is_masked(values):
        mask, values = np.ma.getmaskarray(values), values.data.astype(object)
        values[mask] = None
    # np.ndim is not for all that np.asarray reads
    if hasattr(values, "__array__") and np.asarray(values).ndim > 0:
        array = np.asarray(values)
        # kind T: numpy's own strings of variable width
        return array.astype(object) if array.dtype.kind == "T" else array
    is_sequence = hasattr(values, "__getitem__") and hasattr(values, "__len__")
    is_scalar = hasattr(values, "__array__") or isinstance(values, (str, bytes))
    if not is_sequence or is_scalar or isinstance(values, Mapping):
        raise ValueError(
            f"{name} should be a 1d array-like of labels such as a list, an array or a "
            f"Series; got {type(values).__name__}."
        )
    # with another dtype [1, 'a'] would become strings, and ['a', nan] hold 'nan'
    return np.array(list(values), dtype=object)


def _to_one_dimension(array, name):
    if array.ndim == 1:
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        warnings.warn(  # in scikit-learn's words, which its checks look for
            "A column-vector y was passed when a 1d array was expected. Pass "
            "y.ravel() instead.",
            DataConversionWarning,
            stacklevel=stacklevel(),
        )
        return array.ravel()
    raise ValueError(_several_labels(name, f"has shape {array.shape}"))


def _several_labels(name, finding):
    return (
        f"{name} {finding}: multi-label and multi-output targets are out of scope; "
        "pass one label per text."
    )


def _reject_missing(array, name):
    if array.dtype == object:
        missing = [row for row, label in enumerate(array) if _is_missing(label)]
    elif array.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(array))
    else:
        return
    if len(missing):
        raise ValueError(
            f"{name} has {len(missing)} missing labels (None, NaN or NA), the first at "
            f"position {missing[0]}; drop these texts or give them a label."
        )


def _is_missing(label):
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, (float, np.floating)) and label != label


def _kind_of(array, name):
    """Kind of all labels; mixed and unsupported types are errors."""
    types = [array.dtype.type] if array.dtype != object else list(map(type, array))
    kinds = {}
    for python_type in dict.fromkeys(types if len(array) else []):
        row = types.index(python_type)
        kind = _kind_of_type(python_type)
        if issubclass(python_type, (list, tuple, set, np.ndarray)):
            raise ValueError(_several_labels(name, f"holds {_at(array, row)}"))
        if kind is None:
            raise TypeError(
                f"{name} holds labels of type {python_type.__name__}, such as "
                f"{array[row]!r} at position {row}; labels must be strings, integers "
                "or bools."
            )
        kinds.setdefault(kind, f"{python_type.__name__} ({_at(array, row)})")
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        raise TypeError(
            f"{name} mixes labels of type {first} and of type {second}; convert them "
            "to one type."
        )
    return next(iter(kinds), None)


def _kind_of_type(python_type):
    if issubclass(python_type, str):
        return "str"
    if issubclass(python_type, (bool, np.bool_)):
        return "bool"
    if issubclass(python_type, (numbers.Integral, float, np.floating)):
        return "number"
    return None


def _to_plain_dtype(array, kind):
    if kind == "str":
        # members of a string Enum count as their values
        array = np.array([str.__str__(label) for label in array], dtype=object)
        plain = array.astype(str)  # would cut NUL characters off the end
        return plain if (plain == array).all() else array
    plain = np.array(array.tolist())
    # integers beyond 64 bits stay Python objects: as floats they would run together
    return plain if (plain == array).all() else array


def _reject_continuous(array, name):
    infinite = np.flatnonzero(np.isinf(array))
    if infinite.size:
        raise ValueError(
            f"Input {name} contains infinity, {infinite.size} times, the first at "
            f"position {infinite[0]}."
        )
    fractional = np.flatnonzero(array != np.trunc(array))
    if fractional.size:
        raise ValueError(
            f"Unknown label type: continuous. {name} holds {_at(array, fractional[0])};"
            " regression targets are out of scope: pass classes."
        )


def _at(array, row):
    return f"{_shown(array[row])} at position {row}"


def _shown(label):
    return repr(label.item() if isinstance(label, np.generic) else label)


def listed(labels):
    """The first few labels, as a message shows them."""
    shown = [_shown(label) for label in labels[:_N_NAMED]]
    return ", ".join(shown + ["..."] * (len(labels) > _N_NAMED)) or "none"
