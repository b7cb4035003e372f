"""The numbers of `ExitTradeoffDisplay`: score and cost along the thresholds of rules.

Functions return arguments of the display by name. Nothing here draws, and nothing
chooses a setting, which `exit_selection` does.
"""

from numbers import Integral

import numpy as np

from .exit_costs import seconds_per_text
from .exit_rules import EXIT_RULES, check_exit_rule, first_exits, first_exits_along
from .exit_selection import ordered_thresholds
from .inference import resolve_exit_layer
from .plotting import score_label
from .probability_scores import score_probabilities

#: Axis labels of the costs that have a name.
COST_LABELS = {
    "layers": "Average exit layer",
    "time": "Time per text (ms)",
    "flops": "FLOPs per text",
}
_RISK_LABELS = {
    "disagreement": "Risk: disagreement with full depth",
    "score": "Risk: right at full depth, wrong here",
}


# -- along thresholds --------------------------------------------------------


def tradeoff_of_rules(
    y, proba, classes, layers, *, rules, patience, thresholds, scoring, X=None
):
    """Average exit layer and score along the thresholds of each rule.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    classes : ndarray of shape (n_classes,)
    layers : array-like of shape (n_exits,)
    rules : list of str or callable
    patience : int
    thresholds : int, array-like, dict of rule to either, or None
        See `thresholds_along`.
    scoring, X
        As in `score_probabilities`.

    Returns
    -------
    arguments : dict
        Of `ExitTradeoffDisplay`.

    Raises
    ------
    TypeError, ValueError
        For a single exit, and for rules or thresholds that cannot be used.
    """
    if len(proba) < 2:
        raise ValueError(
            "A trade-off needs at least two exits; this model has one. Fit with "
            "strategy='joint'."
        )
    if isinstance(thresholds, dict) and (others := set(thresholds) - set(rules)):
        raise ValueError(
            f"thresholds has {min(map(rule_name, others))!r}, which is not among the "
            f"rules to draw: {[rule_name(rule) for rule in rules]}."
        )
    layers, rows = np.asarray(layers), np.arange(proba.shape[1])
    used, costs, scores = [], [], []
    for rule in rules:
        along = thresholds_along(proba, rule, patience, thresholds)
        positions = list(first_exits_along(proba, rule, along, patience))
        answers = [proba[at, rows] for at in positions]
        used.append(along)
        costs.append(np.array([layers[at].mean() for at in positions]))
        scores.append(score_probabilities(y, answers, classes, scoring, X))
    exit_scores = score_probabilities(y, proba, classes, scoring, X)
    return {
        "costs": costs,
        "scores": scores,
        "thresholds": used,
        "names": [rule_name(rule) for rule in rules],
        "exit_costs": layers,
        "exit_scores": exit_scores,
        "full_depth": float(exit_scores[-1]),
        "score_name": score_label(scoring),
    }


def rule_name(rule):
    """How a legend names a rule."""
    return str(getattr(rule, "__name__", rule))


def thresholds_along(proba, rule, patience, thresholds):
    """Thresholds of a rule, the one that keeps texts longest first.

    Parameters
    ----------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    rule : str or callable
    patience : int
    thresholds : int, array-like, dict of rule to either, or None
        Those given, or a number of them (None: 20) spread over the values in `proba`.

    Returns
    -------
    thresholds : ndarray of shape (n_thresholds,)

    Raises
    ------
    TypeError, ValueError
        For a rule, patience or threshold that cannot be used.
    """
    check_exit_rule(rule, None, patience)
    if isinstance(thresholds, dict) and not callable(rule):
        thresholds = thresholds.get(rule)
    if thresholds is None:
        thresholds = 20
    ordered = ordered_thresholds(rule, thresholds)  # which checks them, too
    if isinstance(thresholds, Integral):
        return spread_thresholds(proba, rule, int(thresholds))
    return np.array(ordered)


def spread_thresholds(proba, rule, n_thresholds):
    """Thresholds at which about equal shares of texts change their exit.

    Quantiles of the value that a built-in rule compares, over all exits but the last,
    and the ends 0 and 1. They make an even curve, and are no candidates for tuning,
    which must not look at the texts before it tests.

    Parameters
    ----------
    proba : ndarray of shape (n_exits, n_samples, n_classes)
    rule : str
    n_thresholds : int

    Returns
    -------
    thresholds : ndarray
        The one that keeps texts longest first.
    """
    values = EXIT_RULES[rule].value(proba[:-1])
    quantiles = np.quantile(values, np.linspace(0, 1, n_thresholds))
    ascending = np.unique(np.concatenate([[0.0], quantiles, [1.0]]))
    return ascending[::-1] if EXIT_RULES[rule].higher_is_later else ascending


# -- the classifier's own setting, and measured time -------------------------


def setting_in_use(clf, y, proba, scoring, X):
    """Average exit layer and score under the classifier's own exit parameters.

    Parameters
    ----------
    clf : ACLClassifier
        Fitted.
    y, proba, scoring, X
        As in `tradeoff_of_rules`.

    Returns
    -------
    chosen : tuple of (float, float) or None
        None at full depth.
    """
    positions = positions_in_use(clf, proba)
    if positions is None:
        return None
    answers = proba[positions, np.arange(len(positions))]
    (score,) = score_probabilities(y, [answers], clf.classes_, scoring, X)
    layers = np.array(clf.exit_layer_numbers_)
    return float(layers[positions].mean()), float(score)


def positions_in_use(clf, proba):
    """Exit of each text under the classifier's own parameters; None at full depth."""
    deepest = resolve_exit_layer(clf.exit_layer, clf.exit_layer_numbers_)
    if clf.exit_threshold is None and deepest == clf.exit_layer_numbers_[-1]:
        return None
    n_passed = clf.exit_layer_numbers_.index(deepest) + 1
    if clf.exit_threshold is None:
        return np.full(proba.shape[1], n_passed - 1)
    return first_exits(
        proba[:n_passed], clf.exit_rule, clf.exit_threshold, clf.exit_patience
    )


def with_measured_times(arguments, clf, X, rules, patience):
    """The same trade-off with the time of `predict` in the place of exit layers.

    Parameters
    ----------
    arguments : dict
        From `tradeoff_of_rules`, with ``chosen`` from `setting_in_use`.
    clf : ACLClassifier
        Fitted; not changed.
    X : array-like
        Texts, of which up to 128 are predicted.
    rules : list of str or callable
    patience : int

    Returns
    -------
    arguments : dict
        Times in milliseconds per text.
    """
    settings = [
        {"exit_layer": None, "exit_rule": rule, "exit_threshold": float(threshold)}
        | {"exit_patience": patience}
        for rule, along in zip(rules, arguments["thresholds"], strict=True)
        for threshold in along
    ]
    layers = arguments["exit_costs"]
    settings += [{"exit_layer": int(k), "exit_threshold": None} for k in layers]
    settings += [{}]  # the one in use
    ms = 1000 * seconds_per_text(clf, X, settings)
    ends = np.cumsum([len(along) for along in arguments["thresholds"]])
    *costs, rest = np.split(ms, ends)
    chosen = arguments["chosen"]
    return arguments | {
        "costs": costs,
        "exit_costs": rest[:-1],
        "exit_layers": layers,
        "chosen": None if chosen is None else (float(rest[-1]), chosen[1]),
        "cost_name": COST_LABELS["time"],
    }


# -- what tuning saw ---------------------------------------------------------


def tradeoff_of_tuner(tuner, quality):
    """Cost and score, or risk, of the candidates of a tuning.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
        Fitted with ``store_cv_results=True``.
    quality : {"score", "risk"}

    Returns
    -------
    arguments : dict
        Of `ExitTradeoffDisplay`.

    Raises
    ------
    ValueError
        If it has no ``cv_results_``, or no scores where they are to be drawn.
    """
    if not hasattr(tuner, "cv_results_"):
        raise ValueError(
            f"{type(tuner).__name__} has no cv_results_: fit it with "
            "store_cv_results=True."
        )
    results = {k: np.asarray(v) for k, v in tuner.cv_results_.items()}
    x = _cost_of_candidates(tuner, results)
    y, full_depth, limit = _quality_of_candidates(tuner, results, quality)
    rules = [rule for rule in tuner.rules if rule is not None]
    fixed, *curves = [_rows_of(rule, results["rule"], x) for rule in [None, *rules]]
    best = tuner.best_index_
    arguments = {
        "costs": [x[rows] for rows in curves],
        "scores": [y[rows] for rows in curves],
        "thresholds": [results["threshold"][rows] for rows in curves],
        "names": [rule_name(rule) for rule in rules],
        "chosen": (float(x[best]), float(y[best])),
        "full_depth": full_depth,
        "cost_name": "Cost" if callable(tuner.cost) else COST_LABELS[tuner.cost],
        "score_name": _quality_label(tuner, quality),
    }
    if len(fixed) > 1:  # a lone one is full depth, which has its line
        arguments |= {"exit_costs": x[fixed], "exit_scores": y[fixed]}
        if tuner.cost != "layers":
            arguments["exit_layers"] = results["mean_exit_layer"][fixed]
    if tuner.guaranteed_:
        certified = results["certified"]
        arguments["certified"] = [certified[rows] for rows in curves]
    if tuner.objective == "speed":  # what "quality" takes may lie below
        floor_name = f"limit, max_drop = {tuner.max_drop:g}"
        arguments |= {"floor": limit, "floor_name": floor_name}
    return arguments


def _cost_of_candidates(tuner, results):
    if tuner.cost == "layers":
        return results["mean_exit_layer"]
    if tuner.cost == "time":
        return 1000 * results["cost"]  # seconds
    return results["cost"]


def _quality_of_candidates(tuner, results, quality):
    """Values of the y axis, that of full depth, and the limit."""
    if quality == "risk":
        return results["risk"], 0.0, tuner.max_drop
    if np.isnan(results["score"]).all():
        raise ValueError(
            "quality='score' cannot be drawn: the calibration texts had no labels. "
            "Pass quality='risk'."
        )
    full_depth = tuner.full_depth_score_
    return results["score"], full_depth, full_depth - tuner.max_drop


def _rows_of(rule, rules, x):
    """Candidates of a rule by ascending x; those of None are fixed exits."""
    rows = [i for i, other in enumerate(rules.tolist()) if other == rule]
    return np.array(sorted(rows, key=lambda i: x[i]))


def _quality_label(tuner, quality):
    if quality == "score":
        return score_label(tuner.scoring)
    if tuner.scoring is not None:
        return f"Drop of {score_label(tuner.scoring)}"
    return _RISK_LABELS[tuner.risk]
