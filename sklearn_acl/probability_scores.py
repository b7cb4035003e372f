"""Scores of ready probabilities, by any of scikit-learn's scorers."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import check_scoring


class ReadyAnswers(ClassifierMixin, BaseEstimator):
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

    Raises
    ------
    ValueError
        For several scorers.
    """
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise ValueError(
            f"scoring={scoring!r} must be the name of one scorer, a callable or None."
        )
    scorer = check_scoring(scoring="accuracy" if scoring is None else scoring)
    classes = np.asarray(classes)
    return np.array(
        [scorer(ReadyAnswers(proba, classes), X, y_true) for proba in probas],
        dtype=float,
    )
