"""Texts, labels and weights of a fit, checked together before a model loads."""

from typing import NamedTuple

import numpy as np

from .containers import reject_containers
from .label_columns import label_column_of, reject_label_copy
from .labels import encode_labels
from .text import Texts, check_texts
from .weights import training_weights


class CheckedData(NamedTuple):
    """What passed every check.

    Attributes
    ----------
    texts : Texts
    codes : ndarray of shape (n_samples,), dtype int64
        Positions in `classes`.
    classes : ndarray of shape (n_classes,)
    weights : ndarray of shape (n_samples,) or None
        Sample weight times class weight; None where nothing is trained.
    """

    texts: Texts
    codes: np.ndarray
    classes: np.ndarray
    weights: np.ndarray | None


def check_training_data(
    X, y, sample_weight, *, columns, n_columns, classes, class_weight
):
    """Check what a fit trains on.

    Parameters
    ----------
    X, y, sample_weight
        As `ACLClassifier.fit` takes them.
    columns : str, list of str or None
        Names of the text columns.
    n_columns : int or None
        Number of text columns, where an earlier fit decided it.
    classes : array-like or None
        All labels there are.
    class_weight : dict, "balanced" or None

    Returns
    -------
    data : CheckedData
    """
    X, y, label_column = take_labels(X, y, columns)
    texts = check_texts(X, columns=columns, n_columns=n_columns, exclude=label_column)
    codes, classes = encode_labels(y, classes=classes, n_rows=len(texts))
    if columns is None:
        reject_label_copy(texts, codes, classes, n_columns=n_columns)
    weights = training_weights(codes, classes, class_weight, sample_weight)
    return CheckedData(texts, codes, classes, weights)


def check_held_out(held_out, *, columns, n_columns, classes, name="validation_data"):
    """Check texts and labels that nothing is trained on.

    Parameters
    ----------
    held_out : tuple (X, y)
    columns : list of str or None
    n_columns : int
    classes : ndarray of shape (n_classes,)
        Labels of the fit: no other may occur.
    name : str, default="validation_data"
        Of the parameter, for messages.

    Returns
    -------
    data : CheckedData
        Without weights.
    """
    if not isinstance(held_out, (tuple, list)) or len(held_out) != 2:
        is_sized = hasattr(held_out, "__len__")
        size = f" of length {len(held_out)}" if is_sized else ""
        raise ValueError(
            f"{name} must be a tuple (X, y), got {type(held_out).__name__}{size}."
        )
    try:
        X, y, label_column = take_labels(*held_out, columns)
    except (TypeError, ValueError) as error:
        raise type(error)(f"In {name}: {error}") from error
    texts = check_texts(
        X,
        columns=columns,
        n_columns=n_columns,
        exclude=label_column,
        name=f"{name}[0]",
    )
    try:
        codes, _ = encode_labels(y, classes=classes, n_rows=len(texts))
    except (TypeError, ValueError) as error:
        raise type(error)(f"In {name}: {error}") from error
    if columns is None:
        reject_label_copy(texts, codes, classes, n_columns=n_columns, name=f"{name}[0]")
    return CheckedData(texts, codes, classes, None)


def take_labels(X, y, columns):
    """Labels, and the column of X that they are.

    Parameters
    ----------
    X : array-like, DataFrame or datasets.Dataset
    y : array-like or str
        Labels, or the name of a column of X.
    columns : str, list of str or None
        Names of the text columns, where they are known.

    Returns
    -------
    X : object
        As given.
    labels : array-like
    label_column : str or None
        Its name; None if the labels are no column of X.
    """
    if y is None:
        raise ValueError(
            "This method requires y to be passed, but the target y is None: pass the "
            "labels or, for a datasets.Dataset or a DataFrame, the name of the label "
            "column, as in fit(X, y='label')."
        )
    if not isinstance(y, str):
        return X, y, label_column_of(X, y, columns)
    reject_containers(X, "X")
    names = getattr(X, "column_names", None)
    if names is None:
        names = getattr(X, "columns", None)
    if names is None:
        raise ValueError(
            f"y={y!r} names a column, but X is a {type(X).__name__}, which has none; "
            "pass one label per text."
        )
    if y not in list(names):
        raise ValueError(f"y={y!r} is no column of X; there are {list(names)}.")
    return X, X[y], y
