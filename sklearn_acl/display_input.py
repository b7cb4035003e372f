"""What displays are given: fitted classifiers with exits, probabilities of exits."""

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length

from .checked_data import take_labels


def classifier_with_exits(estimator):
    """The fitted classifier that answers for every exit.

    Parameters
    ----------
    estimator : ACLClassifier or TunedExitClassifierCV
        Of the latter, the classifier inside.

    Returns
    -------
    clf : ACLClassifier

    Raises
    ------
    TypeError
        For anything else.
    sklearn.exceptions.NotFittedError
        Before it is fitted.
    """
    if not hasattr(estimator, "predict_proba_exits"):
        raise TypeError(
            "estimator must be a fitted ACLClassifier, with predict_proba_exits, got "
            f"{type(estimator).__name__}. Of a search, pass its best_estimator_; of a "
            "pipeline, the last step and what the steps before it make of the texts."
        )
    clf = getattr(estimator, "estimator_", estimator)
    if not hasattr(clf, "exit_layer_numbers_"):
        raise NotFittedError(
            f"This {type(estimator).__name__} has no exits yet: call fit first."
        )
    return clf


def labels_of(X, y):
    """Labels as given, or those of a column of X if `y` is its name.

    Parameters
    ----------
    X : array-like, DataFrame or datasets.Dataset
    y : array-like of shape (n_samples,) or str

    Returns
    -------
    y : array-like of shape (n_samples,)

    Raises
    ------
    ValueError
        If X has no such column.
    """
    return np.array(list(take_labels(X, y, None)[1])) if isinstance(y, str) else y


def check_layers(proba, layers):
    """Layers of the exits, counted from 1 where none are given.

    Parameters
    ----------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    layers : array-like of shape (n_exits,) or None

    Returns
    -------
    layers : ndarray of shape (n_exits,)

    Raises
    ------
    ValueError
        If there is not one for each exit.
    """
    layers = np.arange(1, len(proba) + 1) if layers is None else np.asarray(layers)
    if layers.shape != proba.shape[:1]:
        raise ValueError(
            f"layers must name one layer for each of the {len(proba)} exits, got "
            f"{layers.tolist()}."
        )
    return layers


def check_exit_probabilities(proba, y_true, classes):
    """Probabilities of exits as an array, and the labels of their columns.

    Parameters
    ----------
    proba : array-like of shape (n_exits, n_samples, n_classes)
    y_true : array-like of shape (n_samples,)
    classes : array-like of shape (n_classes,) or None
        None takes the sorted labels of `y_true`.

    Returns
    -------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    ValueError
        If shapes do not belong together.
    """
    proba = np.asarray(proba, dtype=float)
    if proba.ndim != 3 or not len(proba):
        raise ValueError(
            "proba_exits must have shape (n_exits, n_samples, n_classes), as "
            f"predict_proba_exits returns it, got {proba.shape}."
        )
    if not (proba >= 0).all() or not np.allclose(proba.sum(axis=-1), 1, atol=1e-3):
        raise ValueError(
            "proba_exits must hold probabilities, which are not negative and sum to 1 "
            "over the classes, as predict_proba_exits returns them; got values from "
            f"{proba.min():g} to {proba.max():g}."
        )
    check_consistent_length(proba[0], y_true)
    classes = np.unique(y_true) if classes is None else np.asarray(classes)
    if len(classes) != proba.shape[2]:
        raise ValueError(
            f"classes must name the {proba.shape[2]} columns of proba_exits, got "
            f"{len(classes)} labels. Pass the classifier's classes_."
        )
    return proba, classes
