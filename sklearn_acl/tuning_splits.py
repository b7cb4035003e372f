"""Which texts `TunedExitClassifierCV` fits on, and which it calibrates on."""

import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit, check_cv
from sklearn.utils.validation import _num_samples

from .randomness import draw_seed
from .tuning_checks import alpha_of_a_rule, is_prefit
from .user_code import stacklevel

#: Highest probability of an error at which a binomial test is valid for the number of
#: losses among texts stratified by label (Hoeffding 1956): where it rejects at most so
#: often, it does so at least one loss below the mean.
_HIGHEST_ALPHA_OF_STRATA = 0.25


def calibration_splits(tuner, X, labels, split_params):
    """Rows to fit on and rows to calibrate on.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    X : array-like of n_samples texts
    labels : ndarray of shape (n_samples,) or None
        None is possible with ``cv="prefit"`` only.
    split_params : dict
        Metadata of the splitter.

    Returns
    -------
    splits : list of (ndarray of int, ndarray of int)
        The first is None where nothing is to be fitted.

    Raises
    ------
    ValueError
        Naming `cv`: if there are several splits and no refit, or if calibration texts
        are repeated or fitted on.
    """
    n_samples = _num_samples(X)
    if is_prefit(tuner):
        return [(None, np.arange(n_samples))]
    if _is_share(tuner.cv):
        return [_hold_out(tuner.cv, labels, draw_seed(tuner.random_state))]
    cv = check_cv(tuner.cv, y=labels, classifier=True)
    splits = [
        [_checked_rows(tuner.cv, rows, n_samples) for rows in split]
        for split in cv.split(X, labels, **split_params)
    ]
    if len(splits) != 1 and not tuner.refit:
        raise ValueError(
            f"cv={tuner.cv!r:.60} has {len(splits)} folds, so refit cannot be False: "
            "set refit=True, which gives up the guarantee, or hold out one share with "
            "cv=0.2."
        )
    if not splits:
        raise ValueError(f"cv={tuner.cv!r:.60} has no split.")
    for train, held_out in splits:
        _check_held_out(tuner.cv, train, held_out)
    return splits


def obstacle(tuner, n_splits):
    """Why a tuner that asks for a guarantee cannot give one, and what to do.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
        Asks for a guarantee.
    n_splits : int

    Returns
    -------
    message : str or None
        None where nothing stands in the way.
    """
    if tuner.refit or not _is_random_draw(tuner.cv, n_splits):
        return (
            f"No guarantee with cv={tuner.cv!r:.60} and refit={tuner.refit!r}: it "
            "holds for the classifier that was calibrated, on texts drawn at random "
            "that it has not seen. Use cv=0.2, ShuffleSplit(n_splits=1), a list of one "
            "pair (train, test) that you drew at random, or cv='prefit', each with "
            "refit=False; confidence=None says that no guarantee is wanted."
        )
    is_stratified = _is_share(tuner.cv) or type(tuner.cv) is StratifiedShuffleSplit
    if is_stratified and alpha_of_a_rule(tuner) > _HIGHEST_ALPHA_OF_STRATA:
        n_rules = len(tuner.rules)
        lowest = 1 - _HIGHEST_ALPHA_OF_STRATA * n_rules
        return (
            f"No guarantee with cv={tuner.cv!r:.60} and confidence={tuner.confidence} "
            f"for {n_rules} rule{'s' if n_rules > 1 else ''}: on texts stratified by "
            "label, the tests hold for 1 - confidence up to a quarter per rule. Use "
            f"confidence={lowest:g} or higher, or a split that is not stratified, "
            "cv=ShuffleSplit(n_splits=1, test_size=0.2); confidence=None says that no "
            "guarantee is wanted."
        )
    return None


def _is_random_draw(cv, n_splits):
    """Whether the calibration texts are texts drawn at random, as far as one can see.

    Of a single split that the user lists it is taken to be so, as the documentation
    says. A splitter by groups, by time or of a kind that is not known holds out texts
    that differ from the others, and folds are several splits.
    """
    if n_splits != 1:
        return False
    if isinstance(cv, str) or not hasattr(cv, "split"):
        return True
    return type(cv) in (ShuffleSplit, StratifiedShuffleSplit)


def _is_share(cv):
    return isinstance(cv, Real) and not isinstance(cv, Integral)


def _hold_out(share, labels, seed):
    """A share of the texts, stratified by label where that is possible.

    The only text of a class is never held out, or the class would not be learnt.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    is_only_one = counts[codes] == 1
    if is_only_one.all():  # no class to keep whole
        is_only_one[:] = False
    only_ones, others = np.flatnonzero(is_only_one), np.flatnonzero(~is_only_one)
    if only_ones.size:
        warnings.warn(
            f"{only_ones.size} classes have a single text, such as "
            f"{labels[only_ones[0]]!r}: these texts are fitted on, and what is found "
            "says nothing of these classes.",
            UserWarning,
            stacklevel=stacklevel(),
        )
    train, held_out = _split_by_label(share, labels[others], seed)
    return np.concatenate([others[train], only_ones]), others[held_out]


def _split_by_label(share, labels, seed):
    settings = {"n_splits": 1, "test_size": share, "random_state": seed}
    try:
        return next(StratifiedShuffleSplit(**settings).split(labels, labels))
    except ValueError as error:
        reason = error
    try:
        split = next(ShuffleSplit(**settings).split(labels))
    except ValueError as error:
        raise ValueError(f"cv={share!r} cannot be held out: {error}") from error
    warnings.warn(
        f"The split is not stratified by label. {reason}",
        UserWarning,
        stacklevel=stacklevel(),
    )
    return split


def _checked_rows(cv, rows, n_samples):
    """Rows of one part of a split as positions, whatever names them."""
    rows = np.asarray(rows)
    if rows.ndim != 1:
        raise ValueError(
            f"cv={cv!r:.60} must give pairs (train, test), each a list of row numbers."
        )
    if not rows.size:
        raise ValueError(f"cv={cv!r:.60} has a split of which one part is empty.")
    try:
        return np.arange(n_samples)[rows]
    except IndexError as error:
        raise ValueError(
            f"cv={cv!r:.60} does not split {n_samples} texts: {error}."
        ) from error


def _check_held_out(cv, train, held_out):
    """Raise where a calibration text was fitted on, or would count twice."""
    both = np.intersect1d(train, held_out)
    if both.size:
        raise ValueError(
            f"cv={cv!r:.60} has {both.size} rows in both parts of a split, such as row "
            f"{both[0]}: texts to calibrate on must not be fitted on."
        )
    rows, counts = np.unique(held_out, return_counts=True)
    if counts.max() > 1:
        raise ValueError(
            f"cv={cv!r:.60} holds out {np.count_nonzero(counts > 1)} rows more than "
            f"once, such as row {rows[counts > 1][0]}: each text counts once."
        )
