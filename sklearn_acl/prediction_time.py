"""How long `predict` takes, of several estimators side by side."""

import time
import warnings

import numpy as np
from sklearn.utils.validation import _num_samples


def prediction_times(estimators, X, *, repeats=3):
    """Seconds per text of `predict`, tokenising and all.

    Parameters
    ----------
    estimators : list
        Fitted; such as one classifier with several settings of its exits.
    X : array-like of n_samples texts
    repeats : int, default=3
        Runs of each, of which the median counts.

    Returns
    -------
    seconds : ndarray of shape (n_estimators,)
    """
    runs = np.empty((repeats, len(estimators)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the texts, given before
        estimators[0].predict(X)  # the first run is slower
        # round after round, so that a busy moment does not hit one of them alone
        for run in runs:
            for i, estimator in enumerate(estimators):
                start = time.perf_counter()
                estimator.predict(X)
                run[i] = time.perf_counter() - start
    return np.median(runs, axis=0) / _num_samples(X)
