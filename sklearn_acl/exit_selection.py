"""Which exit rules may be used, and which of them is best: functions of arrays.

A candidate is a rule with a threshold, or a fixed exit. Candidates of one rule form a
sequence, from the one that keeps texts longest to the one that lets them go first; the
order is that of the thresholds and never looks at a calibration text.
"""

from itertools import groupby
from numbers import Integral, Real
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from .exit_rules import EXIT_RULES, first_exits_along, is_exit_rule
from .risk import binomial_p_value, fixed_sequence_test

RISKS = ("disagreement", "score")
#: Distance of the most conservative threshold from the one that never fires.
_CLOSEST = 1e-5


class Candidate(NamedTuple):
    """A way to leave; its number of sequence is 0 for full depth."""

    rule: object
    threshold: float | None
    position: int  # of the deepest exit that may answer
    sequence: int


class Evaluation(NamedTuple):
    """What candidates do on some texts; every array has the shape (n_candidates,)."""

    n_samples: int
    n_losses: np.ndarray
    mean_exit_layer: np.ndarray
    cost: np.ndarray
    score: np.ndarray


# -- candidates --------------------------------------------------------------


def check_rules(rules, thresholds):
    """Check rules and thresholds.

    Parameters
    ----------
    rules : list or tuple
        Names of built-in rules, functions, and None for fixed exits.
    thresholds : int, array-like, or dict of rule to either
        A number of thresholds, or the thresholds.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter, its value and what it may be.
    """
    if not isinstance(rules, (list, tuple)) or not rules:
        raise ValueError(
            f"rules={rules!r} must be a list of at least one exit rule, such as "
            "['confidence']; None in it stands for fixed exits."
        )
    for rule in rules:
        if rule is not None and not is_exit_rule(rule):
            names = ", ".join(map(repr, EXIT_RULES))
            raise ValueError(
                f"rules={rules!r:.200} has {rule!r}, but each must be one of {names}, "
                "a function rule(proba, threshold) that returns True or False for one "
                "text, or None for fixed exits."
            )
        _check_hashable(rule)
    if len(set(rules)) < len(rules):
        raise ValueError(f"rules={rules!r} names a rule twice.")
    if isinstance(thresholds, dict) and set(thresholds) - set(rules):
        unknown = next(rule for rule in thresholds if rule not in rules)
        raise ValueError(
            f"thresholds has {unknown!r} as a key, which is not one of rules={rules!r}."
        )
    for rule in rules:
        if rule is not None:
            ordered_thresholds(rule, thresholds)


def _check_hashable(rule):
    try:
        hash(rule)
    except TypeError as error:
        raise TypeError(
            f"rules has {rule!r}, which is unhashable and so cannot be told apart from "
            "other rules. Pass a function, or give its class a __hash__."
        ) from error


def ordered_thresholds(rule, thresholds):
    """Thresholds of a rule, the one that keeps texts longest first.

    A number of them is spaced geometrically from where the rule never fires, close to
    which the interesting ones of a well-trained classifier lie. Those of a function
    keep their order.

    Parameters
    ----------
    rule : str or callable
    thresholds
        As in `check_rules`.

    Returns
    -------
    thresholds : list of float

    Raises
    ------
    ValueError
        Naming `thresholds`, its value and what it may be.
    """
    if isinstance(thresholds, dict):
        if callable(rule) and rule not in thresholds:
            raise ValueError(
                f"thresholds={thresholds!r:.200} has no entry for the rule {rule!r}, "
                "which is a function: add {rule: [...]}, the one that keeps texts "
                "longest first."
            )
        thresholds = thresholds.get(rule, 100)
    if isinstance(thresholds, Integral) and not isinstance(thresholds, bool):
        if thresholds < 1:
            raise ValueError(f"thresholds={thresholds!r} must be at least 1.")
        if callable(rule):
            raise ValueError(
                f"thresholds={thresholds!r} is a number, but the rule {rule!r} is a "
                "function: pass thresholds={rule: [...]}, the one that keeps texts "
                "longest first."
            )
        distances = np.geomspace(_CLOSEST, 1.0, int(thresholds))
        values = 1.0 - distances if EXIT_RULES[rule].higher_is_later else distances
        return values.tolist()
    values = _as_numbers(thresholds)
    for value in values:
        # a rule of the user's own may compare with any number
        if not (np.isfinite(value) if callable(rule) else 0 <= value <= 1):
            wanted = "finite" if callable(rule) else "in [0, 1]"
            raise ValueError(
                f"thresholds={thresholds!r:.60} has {value!r}, but those of the rule "
                f"{rule!r} must be {wanted}."
            )
    if callable(rule):
        return values
    return sorted(values, reverse=EXIT_RULES[rule].higher_is_later)


def _as_numbers(thresholds):
    """Listed thresholds of one rule as floats."""
    values = np.asarray(thresholds, dtype=object)  # bools stay what they are
    are_numbers = all(
        isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
        for value in values.flat
    )
    if values.ndim != 1 or not values.size or not are_numbers:
        kind = " (a bool)" if isinstance(thresholds, (bool, np.bool_)) else ""
        raise ValueError(
            f"thresholds={thresholds!r:.60}{kind} must be an integer, a list of "
            "numbers, or a dict from rule to either."
        )
    return values.astype(float).tolist()


def make_candidates(rules, thresholds, n_exits):
    """All candidates: full depth, then the sequence of every rule.

    Parameters
    ----------
    rules, thresholds
        As in `check_rules`.
    n_exits : int
        Exits that there are, or those up to the deepest that may answer.

    Returns
    -------
    candidates : list of Candidate
    """
    last = n_exits - 1
    candidates = [Candidate(None, None, last, 0)]
    for sequence, rule in enumerate(rules, start=1):
        if rule is None:
            positions = range(last - 1, -1, -1)
            candidates += [Candidate(None, None, k, sequence) for k in positions]
        else:
            values = ordered_thresholds(rule, thresholds)
            candidates += [Candidate(rule, t, last, sequence) for t in values]
    return candidates


# -- what they do on texts ---------------------------------------------------


def evaluate(
    candidates, proba, layers, costs, *, codes=None, risk, patience=1, score=None
):
    """Losses, costs and scores of candidates on some texts.

    Parameters
    ----------
    candidates : list of Candidate
    proba : ndarray of shape (n_exits, n_samples, n_classes)
        Probabilities of the exits; the last is full depth.
    layers : sequence of int, of length n_exits
        Layers after which they sit.
    costs : ndarray of shape (n_exits, n_samples)
        Cost of taking each text to each exit.
    codes : ndarray of shape (n_samples,), default=None
        Columns that are right; -1 where none is.
    risk : {"disagreement", "score"}
        A text's loss is 1 if its exit predicts something else than full depth does, or
        if full depth is right and its exit is wrong. The mean of the latter is at least
        the drop in accuracy.
    patience : int, default=1
        As in `first_exits`.
    score : callable, default=None
        Score of probabilities (n_samples, n_classes); None is accuracy.

    Returns
    -------
    evaluation : Evaluation
    """
    predicted = proba.argmax(axis=-1)  # (n_exits, n_samples)
    rows = np.arange(proba.shape[1])
    layers = np.asarray(layers)
    n_losses = np.empty(len(candidates), dtype=np.int64)
    mean_layer, cost, scores = np.full((3, len(candidates)), np.nan)
    for i, exits in enumerate(_exits_of_each(candidates, proba, patience)):
        answers = predicted[exits, rows]
        n_losses[i] = np.count_nonzero(_losses(answers, predicted[-1], codes, risk))
        mean_layer[i] = layers[exits].mean()
        cost[i] = costs[exits, rows].mean()
        if score is not None:
            scores[i] = score(proba[exits, rows])
        elif codes is not None:
            scores[i] = np.mean(answers == codes)
    return Evaluation(
        n_samples=len(rows),
        n_losses=n_losses,
        mean_exit_layer=mean_layer,
        cost=cost,
        score=scores,
    )


def _exits_of_each(candidates, proba, patience):
    """Yield the exit of every text, for each candidate in turn."""
    for _, sequence in groupby(candidates, key=attrgetter("sequence")):
        sequence = list(sequence)
        rule = sequence[0].rule
        if rule is None:
            yield from (np.full(proba.shape[1], c.position) for c in sequence)
        else:
            thresholds = [c.threshold for c in sequence]
            yield from first_exits_along(proba, rule, thresholds, patience)


def _losses(answers, full_depth, codes, risk):
    if risk == "disagreement":
        return answers != full_depth
    return (full_depth == codes) & (answers != codes)


def pool(evaluations):
    """Evaluation of the texts of several evaluations of the same candidates."""
    n_samples = [evaluation.n_samples for evaluation in evaluations]

    def mean(name):
        values = [getattr(evaluation, name) for evaluation in evaluations]
        return np.average(values, axis=0, weights=n_samples)

    return Evaluation(
        n_samples=sum(n_samples),
        n_losses=sum(evaluation.n_losses for evaluation in evaluations),
        mean_exit_layer=mean("mean_exit_layer"),
        cost=mean("cost"),
        score=mean("score"),
    )


# -- which of them -----------------------------------------------------------


def certify(candidates, evaluation, *, level, alpha):
    """P-value of every candidate, and whether its risk is at most `level`.

    `alpha` is split over the sequences, and each is tested from its start up to the
    first candidate that fails.

    Parameters
    ----------
    candidates : list of Candidate
    evaluation : Evaluation
    level : float
        In (0, 1).
    alpha : float
        Largest probability that the risk of any certified candidate is above `level`.

    Returns
    -------
    p_values : ndarray of shape (n_candidates,)
        0 for full depth, which has no loss by definition.
    certified : ndarray of shape (n_candidates,), dtype bool
    """
    sequences = np.array([candidate.sequence for candidate in candidates])
    p_values = binomial_p_value(evaluation.n_losses, evaluation.n_samples, level)
    p_values = np.where(sequences == 0, 0.0, p_values)
    certified = sequences == 0
    for sequence in range(1, sequences.max() + 1):
        own = sequences == sequence
        share = alpha / sequences.max()
        certified[own] = fixed_sequence_test(p_values[own], share)
    return p_values, certified


def cheapest(cost, allowed):
    """Position of the lowest cost among the allowed ones; the first of equals."""
    return int(np.argmin(np.where(allowed, cost, np.inf)))


def best(score, cost, allowed):
    """Position of the highest score among the allowed ones; of equals, the cheapest."""
    positions = np.flatnonzero(allowed)
    order = np.lexsort((cost[positions], -score[positions]))
    return int(positions[order[0]])
