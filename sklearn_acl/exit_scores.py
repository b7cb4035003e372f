"""Scores of exits from probabilities, by any of scikit-learn's scorers."""

import time
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import check_scoring
from sklearn.utils import check_consistent_length

from .exit_costs import sharing_weights
from .exit_rules import check_exit_rule, first_exits, normalized_entropy
from .inference import resolve_exit_layer


class Answers(ClassifierMixin, BaseEstimator):
    """A classifier that gives ready answers, so that scorers need no model.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes)
    classes : ndarray of shape (n_classes,)
    """

    def __init__(self, proba, classes):
        self.proba = proba
        self.classes = classes

    @property
    def classes_(self):
        """Labels, in the order of the columns."""
        return self.classes

    def predict_proba(self, X):
        """The probabilities, whatever X is."""
        return self.proba

    def predict(self, X):
        """The labels of highest probability."""
        return self.classes[self.proba.argmax(axis=1)]


def score_probabilities(y_true, probas, classes, scoring=None, X=None):
    """Score of each of several predictions for the same texts.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels.
    probas : iterable of ndarray of shape (n_samples, n_classes)
        Probabilities, such as those of every exit.
    classes : array-like of shape (n_classes,)
        Labels, in the order of the columns.
    scoring : str, callable or None, default=None
        As in `sklearn.metrics.check_scoring`; None is accuracy. A callable
        ``scorer(estimator, X, y)`` sees an estimator with `predict`, `predict_proba`
        and `classes_`.
    X : array-like, default=None
        What a scorer gets as X.

    Returns
    -------
    scores : ndarray of shape (n_predictions,)
    """
    scorer = check_scoring(scoring="accuracy" if scoring is None else scoring)
    classes = np.asarray(classes)
    return np.array(
        [scorer(Answers(proba, classes), X, y_true) for proba in probas], dtype=float
    )


def check_has_exits(estimator):
    """The estimator itself, if it answers for every exit.

    Raises
    ------
    TypeError
        Otherwise.
    """
    if not hasattr(estimator, "predict_proba_exits"):
        raise TypeError(
            "estimator must be a fitted ACLClassifier, with predict_proba_exits, got "
            f"{type(estimator).__name__}. Of a pipeline, pass the last step and what "
            "the steps before it make of the texts."
        )
    return estimator


def check_layers(proba, layers):
    """Layers of the exits, counted from 1 where none are given.

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

    Raises
    ------
    ValueError
        If shapes do not belong together.
    """
    proba = np.asarray(proba, dtype=float)
    if proba.ndim != 3:
        raise ValueError(
            "proba_exits must have shape (n_exits, n_samples, n_classes), as "
            f"predict_proba_exits returns it, got {proba.shape}."
        )
    check_consistent_length(proba[0], y_true)
    classes = np.unique(y_true) if classes is None else np.asarray(classes)
    if len(classes) != proba.shape[2]:
        raise ValueError(
            f"classes must name the {proba.shape[2]} columns of proba_exits, got "
            f"{len(classes)} labels. Pass the classifier's classes_."
        )
    return proba, classes


def spread_thresholds(proba, rule, n_thresholds):
    """Thresholds at which about equal shares of texts change their exit.

    Quantiles of the value that a built-in rule compares, over all exits but the last,
    and the ends 0 and 1.

    Raises
    ------
    ValueError
        For a rule of the user's own, whose values are not known.
    """
    if callable(rule):
        raise ValueError(
            f"thresholds must be given as an array for a rule of your own, {rule!r}."
        )
    early = proba[:-1]
    by_entropy = rule in ("entropy", "patience_entropy")
    values = normalized_entropy(early) if by_entropy else early.max(axis=-1)
    quantiles = np.quantile(values, np.linspace(0, 1, n_thresholds))
    return np.unique(np.concatenate([[0.0], quantiles, [1.0]]))


def thresholds_along(proba, rule, patience, thresholds):
    """Ascending thresholds of a rule: those given, or a number of them spread.

    Raises
    ------
    ValueError, TypeError
        For a rule, patience or threshold that cannot be used.
    """
    check_exit_rule(rule, None, patience)
    if thresholds is None:
        thresholds = 20
    if isinstance(thresholds, Integral) and not isinstance(thresholds, bool):
        if thresholds < 1:
            raise ValueError(f"thresholds={thresholds!r} must be at least 1.")
        return spread_thresholds(proba, rule, thresholds)
    thresholds = np.unique(np.asarray(thresholds, dtype=float))
    for threshold in thresholds:
        check_exit_rule(rule, threshold, patience)
    return thresholds


def adaptive_exits(proba, rule, thresholds, patience):
    """Exits along thresholds: (positions, probabilities there), each per threshold.

    Returns
    -------
    positions : list of ndarray of shape (n_samples,)
        Of exits, counted from 0.
    answers : list of ndarray of shape (n_samples, n_classes)
    """
    rows = np.arange(proba.shape[1])
    positions = [first_exits(proba, rule, t, patience) for t in thresholds]
    return positions, [proba[at, rows] for at in positions]


def time_settings(estimator, X, settings, repeats=3):
    """Time per text of `predict` with each of several inference settings.

    Parameters
    ----------
    estimator : ACLClassifier
        Fitted; not changed.
    X : array-like
        Texts.
    settings : list of dict
        Values of inference parameters, such as ``{"exit_layer": 3}``.
    repeats : int, default=3
        The fastest of so many runs counts.

    Returns
    -------
    ms : ndarray of shape (n_settings,)
        Milliseconds per text, tokenising and all.
    """
    runs = np.empty((repeats, len(settings)))
    for run in runs:  # settings in turn: a busy moment hits all of them
        for i, values in enumerate(settings):
            twin = sharing_weights(estimator).set_params(**values)
            start = time.perf_counter()
            twin.predict(X)
            run[i] = time.perf_counter() - start
    return 1000 * runs.min(axis=0) / len(X)


def positions_in_use(clf, proba):
    """Exit of each text under the classifier's own parameters; None at full depth."""
    threshold = getattr(clf, "exit_threshold", None)
    deepest = resolve_exit_layer(clf.exit_layer, clf.exit_layer_numbers_)
    if threshold is None and deepest == clf.exit_layer_numbers_[-1]:
        return None
    n_passed = clf.exit_layer_numbers_.index(deepest) + 1
    if threshold is None:
        return np.full(proba.shape[1], n_passed - 1)
    return first_exits(proba[:n_passed], clf.exit_rule, threshold, clf.exit_patience)
