"""When a text may leave before the deepest exit: confidence, entropy, patience.

A rule looks at the probabilities of the exits that a text has passed, and at nothing
else: what a text gets does not depend on the texts around it.
"""

from collections.abc import Callable
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def normalized_entropy(proba):
    """Entropy of class probabilities over that of the uniform distribution.

    Parameters
    ----------
    proba : ndarray of shape (..., n_classes)
        At least two classes.

    Returns
    -------
    entropy : ndarray of shape (...)
        In [0, 1], whatever the number of classes.
    """
    from scipy.special import entr

    # how a sum is rounded depends on the layout in memory: let it be one and the same
    proba = np.ascontiguousarray(proba)
    return np.clip(entr(proba).sum(axis=-1) / np.log(proba.shape[-1]), 0.0, 1.0)


def highest_probability(proba):
    """Probability of the class that is predicted: "confidence".

    Parameters
    ----------
    proba : ndarray of shape (..., n_classes)

    Returns
    -------
    confidence : ndarray of shape (...)
    """
    return proba.max(axis=-1)


def _is_confident(proba, threshold, patience):
    """The highest probability of the last exit is above the threshold."""
    return highest_probability(proba[-1]) > threshold


def _has_low_entropy(proba, threshold, patience):
    """The normalised entropy of the last exit is below the threshold.

    After DeeBERT (Xin et al. 2020) and FastBERT (Liu et al. 2020), which normalises.
    """
    return normalized_entropy(proba[-1]) < threshold


def _predicts_steadily(proba, threshold, patience):
    """The last `patience` exits each predict what the exit before them predicts.

    PABEE (Zhou et al. 2020), and the highest probability of the last exit is above the
    threshold: 0 is PABEE itself. Leaves at exit number ``patience + 1`` at the
    earliest.
    """
    if len(proba) <= patience:
        return np.zeros(proba.shape[1], dtype=bool)
    predicted = proba[-patience - 1 :].argmax(axis=-1)  # (patience + 1, n_samples)
    return (predicted == predicted[-1]).all(axis=0) & _is_confident(proba, threshold, 0)


def _has_low_entropy_steadily(proba, threshold, patience):
    """Each of the last `patience` exits has a normalised entropy below the threshold.

    PCEE-BERT (Zhang et al. 2022). Leaves at exit number `patience` at the earliest.
    """
    if len(proba) < patience:
        return np.zeros(proba.shape[1], dtype=bool)
    return (normalized_entropy(proba[-patience:]) < threshold).all(axis=0)


def _confidence_at_exits(proba, patience):
    return highest_probability(proba)


def _entropy_at_exits(proba, patience):
    return normalized_entropy(proba)


def _steady_confidence_at_exits(proba, patience):
    predicted = proba.argmax(axis=-1)
    has_changed = np.ones(predicted.shape, dtype=bool)  # the first has none before it
    has_changed[1:] = predicted[1:] != predicted[:-1]
    is_unsteady = _highest_of_last(has_changed, patience, before=True)
    return np.where(is_unsteady, -np.inf, highest_probability(proba))


def _steady_entropy_at_exits(proba, patience):
    return _highest_of_last(normalized_entropy(proba), patience, before=np.inf)


def _highest_of_last(values, length, before):
    """Highest of each `length` exits in a row; `before` where there are fewer."""
    highest = np.full_like(values, before)
    if len(values) >= length:
        windows = sliding_window_view(values, length, axis=0)
        highest[length - 1 :] = windows.max(axis=-1)
    return highest


class ExitRule(NamedTuple):
    """A built-in rule, and what is known about its threshold.

    Attributes
    ----------
    fires : callable
        ``fires(proba, threshold, patience)`` says which texts leave; `proba` has shape
        (n_exits, n_samples, n_classes).
    value : callable
        ``value(proba)`` is what the threshold is compared with: (..., n_classes) to
        (...), in [0, 1].
    higher_is_later : bool
        Whether a higher threshold keeps texts longer.
    at_exits : callable
        ``at_exits(proba, patience)`` is what decides at every exit whether texts leave:
        `value`, as the exits before it and patience change it; of shape (n_exits,
        n_samples), infinite where no threshold lets a text leave.
    """

    fires: Callable
    value: Callable
    higher_is_later: bool
    at_exits: Callable


#: Built-in rules by name. Comparisons are strict: a confidence of 1 and an entropy of 0
#: as the threshold never let a text leave early.
EXIT_RULES = {
    "confidence": ExitRule(
        _is_confident, highest_probability, True, _confidence_at_exits
    ),
    "entropy": ExitRule(_has_low_entropy, normalized_entropy, False, _entropy_at_exits),
    "patience": ExitRule(
        _predicts_steadily, highest_probability, True, _steady_confidence_at_exits
    ),
    "patience_entropy": ExitRule(
        _has_low_entropy_steadily, normalized_entropy, False, _steady_entropy_at_exits
    ),
}


def leaves(proba, rule, threshold, patience=1):
    """Whether each text leaves at the last of the exits it has passed.

    Parameters
    ----------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
        Probabilities of the exits passed so far, in ascending order.
    rule : str or callable
        A name in `EXIT_RULES`, or ``rule(proba, threshold) -> bool`` for one text,
        with `proba` of shape (n_exits, n_classes).
    threshold : float
        What the rule compares with.
    patience : int, default=1
        Number of exits in a row, for the rules that count them.

    Returns
    -------
    leaves : ndarray of shape (n_samples,), dtype bool

    Raises
    ------
    TypeError
        If a rule of the user's own answers something else than True or False.
    """
    if not callable(rule):
        return EXIT_RULES[rule].fires(proba, threshold, patience)
    shown = proba.view()
    shown.flags.writeable = False  # it is the history that the next exits add to
    answers = [rule(shown[:, row], threshold) for row in range(proba.shape[1])]
    for answer in answers:
        if not isinstance(answer, (bool, np.bool_)):
            raise TypeError(
                f"exit_rule={rule!r} must return True or False for the probabilities "
                f"(n_exits, n_classes) of one text, got {answer!r}."
            )
    return np.array(answers, dtype=bool)


def first_exits(proba, rule, threshold, patience=1):
    """Exit at which each text leaves, from the probabilities of all exits.

    Parameters
    ----------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    rule, threshold, patience
        As in `leaves`.

    Returns
    -------
    positions : ndarray of shape (n_samples,), dtype int64
        Position of the exit, counted from 0; the last one where the rule never fires.
    """
    n_exits, n_samples = proba.shape[:2]
    positions = np.full(n_samples, n_exits - 1)
    rest = np.arange(n_samples)
    for position in range(n_exits - 1):
        gone = leaves(proba[: position + 1, rest], rule, threshold, patience)
        positions[rest[gone]] = position
        rest = rest[~gone]
    return positions


def first_exits_along(proba, rule, thresholds, patience=1):
    """`first_exits` for many thresholds of one rule.

    What a built-in rule compares with them is computed once, for all exits.

    Parameters
    ----------
    proba, rule
        As in `first_exits`.
    thresholds : iterable of float
    patience : int, default=1
        As in `first_exits`.

    Yields
    ------
    positions : ndarray of shape (n_samples,), dtype int64
        Of each threshold in turn.
    """
    if callable(rule):
        for threshold in thresholds:
            yield first_exits(proba, rule, threshold, patience)
        return
    values = EXIT_RULES[rule].at_exits(proba[:-1], patience)
    # the furthest so far: once past a threshold, past it at all later exits. fmax and
    # fmin pass over exits without numbers, which let no text leave.
    higher_is_later = EXIT_RULES[rule].higher_is_later
    furthest = (np.fmax if higher_is_later else np.fmin).accumulate(values)
    for threshold in thresholds:
        is_past = furthest > threshold if higher_is_later else furthest < threshold
        yield len(values) - np.count_nonzero(is_past, axis=0)


def earliest_exit(rule, patience):
    """Position of the first exit at which a rule can let a text leave, from 0.

    Parameters
    ----------
    rule : str or callable
    patience : int

    Returns
    -------
    position : int
    """
    return {"patience": patience, "patience_entropy": patience - 1}.get(rule, 0)


def is_exit_rule(rule):
    """Whether something can be an exit rule: the name of one, or a function.

    Parameters
    ----------
    rule : object

    Returns
    -------
    bool
    """
    return callable(rule) or (isinstance(rule, str) and rule in EXIT_RULES)


def check_exit_rule(rule, threshold, patience):
    """Check the parameters of the adaptive exit.

    Parameters
    ----------
    rule : str or callable
        `exit_rule`.
    threshold : float or None
        `exit_threshold`.
    patience : int
        `exit_patience`.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter, its value and what it may be.
    """
    if not is_exit_rule(rule):
        names = ", ".join(map(repr, EXIT_RULES))
        raise ValueError(
            f"exit_rule={rule!r} must be one of {names}, or a function "
            "rule(proba, threshold) that returns True or False for one text."
        )
    is_count = isinstance(patience, Integral) and not isinstance(patience, bool)
    if not is_count or patience < 1:
        raise ValueError(
            f"exit_patience={patience!r} must be an integer of at least 1."
        )
    if threshold is None:
        return
    if isinstance(threshold, (bool, np.bool_)) or not isinstance(threshold, Real):
        raise TypeError(
            f"exit_threshold={threshold!r} must be a number or None, not "
            f"{type(threshold).__name__}."
        )
    # a rule of the user's own may compare with any number
    allowed = np.isfinite(threshold) if callable(rule) else 0 <= threshold <= 1
    if not allowed:
        wanted = "finite" if callable(rule) else f"in [0, 1] for exit_rule={rule!r}"
        raise ValueError(
            f"exit_threshold={threshold!r} must be {wanted}; None is full depth."
        )
