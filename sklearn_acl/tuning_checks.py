"""What `TunedExitClassifierCV` checks and says before it fits anything."""

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import _num_samples, check_is_fitted

from .checked_data import take_labels
from .containers import is_from, reject_containers
from .exit_costs import take_rows
from .exit_rules import check_exit_rule
from .exit_selection import check_rules
from .labels import decode_labels, encode_labels, listed
from .risk import smallest_n

_EXIT_PARAMETERS = ("exit_layer", "exit_threshold", "exit_rule", "exit_patience")


def check_request(tuner):
    """Raise for an estimator without exits, and for parameters in conflict.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
        Each of its parameters has passed its own constraint.

    Raises
    ------
    TypeError, ValueError, sklearn.exceptions.NotFittedError
        Naming the parameters, their values, and what to change.
    """
    _check_estimator(estimator_of(tuner))
    check_exit_rule("confidence", None, estimator_of(tuner).exit_patience)
    check_rules(tuner.rules, tuner.thresholds)
    has_ceiling = tuner.max_layers is not None or tuner.max_time is not None
    if has_ceiling != (tuner.objective == "quality"):
        raise ValueError(
            f"objective={tuner.objective!r} with max_layers={tuner.max_layers!r} and "
            f"max_time={tuner.max_time!r}: objective='quality' needs one of these "
            "ceilings, objective='speed' takes none."
        )
    if tuner.max_time is not None and tuner.cost != "time":
        raise ValueError(
            f"max_time={tuner.max_time!r} is a ceiling on measured time: set "
            f"cost='time' instead of {tuner.cost!r}."
        )
    if tuner.scoring is not None and asks_guarantee(tuner):
        raise ValueError(
            f"The drop of scoring={tuner.scoring!r} cannot be guaranteed. Set "
            "confidence=None to go by its estimate, or leave scoring=None."
        )
    _check_max_drop(tuner)
    if isinstance(tuner.estimator, FrozenEstimator) and not is_prefit(tuner):
        raise ValueError(
            f"cv={tuner.cv!r:.60} fits the estimator, which a FrozenEstimator forbids: "
            "set cv='prefit', or pass the estimator itself."
        )
    if is_prefit(tuner):
        if tuner.refit:
            raise ValueError("When cv='prefit', refit cannot be True.")
        try:
            check_is_fitted(estimator_of(tuner))
        except NotFittedError as error:
            raise NotFittedError(
                "When cv='prefit', the estimator must be fitted. Cross-validation and "
                "searches clone it, which gives an unfitted one: pass "
                "sklearn.frozen.FrozenEstimator(estimator), which they leave alone."
            ) from error


def estimator_of(tuner):
    """The estimator that was given, out of a FrozenEstimator around it."""
    if isinstance(tuner.estimator, FrozenEstimator):
        return tuner.estimator.estimator
    return tuner.estimator


def _check_estimator(estimator):
    """Raise TypeError for an estimator that has no exits to tune."""
    get_params = getattr(estimator, "get_params", None)
    if isinstance(estimator, type) or get_params is None:
        parameters = {}
    else:
        parameters = get_params(deep=False)
    lacking = [name for name in _EXIT_PARAMETERS if name not in parameters]
    lacking += [
        name for name in ("fit", "predict_proba_exits") if not hasattr(estimator, name)
    ]
    if lacking:
        raise TypeError(
            f"estimator={estimator!r:.60} must be an ACLClassifier, or have what it "
            f"lacks: {', '.join(lacking)}. For a pipeline, make TunedExitClassifierCV "
            "its last step."
        )


def _check_max_drop(tuner):
    """Raise for a drop that no estimate can exceed, or no test can keep."""
    if tuner.objective == "quality":
        return
    if asks_guarantee(tuner) and not 0 < tuner.max_drop < 1:
        raise ValueError(
            f"max_drop={tuner.max_drop!r} must be above 0 and below 1 to be guaranteed "
            "with confidence; confidence=None goes by the estimate, of which 0 can be "
            "asked."
        )
    if tuner.scoring is None and tuner.max_drop >= 1:
        raise ValueError(
            f"max_drop={tuner.max_drop!r} is a share of texts and must be below 1; "
            "only the drop of a score (scoring=) can be larger."
        )


def is_prefit(tuner):
    """Whether the estimator comes fitted."""
    return isinstance(tuner.cv, str)


def asks_guarantee(tuner):
    """Whether the parameters ask for a guarantee; they may not allow it."""
    return tuner.objective == "speed" and tuner.confidence is not None


def alpha_of_a_rule(tuner):
    """Probability of an error that each rule's sequence of tests is allowed."""
    return (1 - float(tuner.confidence)) / len(tuner.rules)


def smallest_calibration(tuner):
    """Smallest number of calibration texts that could certify anything.

    Returns
    -------
    n_samples : int or None
        None where no guarantee is asked for.
    """
    if not asks_guarantee(tuner):
        return None
    return smallest_n(tuner.max_drop, alpha_of_a_rule(tuner))


def check_labels(tuner, X, y):
    """Labels as an array, or None where none are given and none are needed.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
        Its request has been checked.
    X, y
        As its `fit` takes them.

    Returns
    -------
    labels : ndarray of shape (n_samples,) or None

    Raises
    ------
    ValueError, TypeError
        For labels that cannot be used; of a fitted estimator, also for those that are
        none of its classes.
    """
    reject_containers(X, "X")
    if not _num_samples(X):
        raise ValueError("X is empty; pass at least one text.")
    if y is None:
        needs_none = tuner.risk == "disagreement" and tuner.scoring is None
        if is_prefit(tuner) and tuner.objective == "speed" and needs_none:
            return None
        raise ValueError(
            "This method requires y to be passed, but the target y is None: only "
            "cv='prefit' with objective='speed', risk='disagreement' and "
            "scoring=None does without labels."
        )
    if isinstance(y, str):
        _, y, _ = take_labels(X, y, None)
    codes, classes = encode_labels(
        y,
        classes=estimator_of(tuner).classes_ if is_prefit(tuner) else None,
        n_rows=_num_samples(X),
        require_two=False,
    )
    return decode_labels(codes, classes)


def flat_labels(y, labels):
    """Labels as the estimator is to get them: `y`, or a column vector in one dimension.

    A column of a table stays one, by which the estimator tells labels from texts.

    Parameters
    ----------
    y : array-like, str or None
        As `fit` takes them.
    labels : ndarray of shape (n_samples,) or None
        What they are.
    """
    if y is None or isinstance(y, str):
        return y
    if is_from(y, "pandas", "DataFrame"):
        return y.iloc[:, 0]
    if is_from(y, "polars", "DataFrame"):
        return y.to_series(0)
    return labels if np.ndim(take_rows(y, np.arange(1))) == 2 else y


def columns_of(labels, classes):
    """Position of each label among the classes; -1 for one that is none of them.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,)
        Of held-out texts.
    classes : ndarray of shape (n_classes,)
        Of the estimator that was fitted on the others.

    Returns
    -------
    codes : ndarray of shape (n_samples,), dtype int64

    Raises
    ------
    ValueError
        If every label is none of the classes: nothing would ever be right, and
        nothing lost by leaving early.
    """
    positions = {label: i for i, label in enumerate(classes.tolist())}
    codes = np.array([positions.get(label, -1) for label in labels.tolist()], np.int64)
    if (codes < 0).all():
        raise ValueError(
            f"None of the labels of the {len(labels)} calibration texts, such as "
            f"{labels[0]!r}, is among the classes that the estimator was fitted on, "
            f"{listed(classes)}. Hold out texts of the same classes."
        )
    return codes


def reservations(tuner, obstacle, n_calibration, n_required):
    """Yield messages for a user who asks for what the fit cannot give.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    obstacle : str or None
        Why its parameters allow no guarantee, if it asks for one.
    n_calibration, n_required : int
        Numbers of calibration texts, those there are and those it takes.
    """
    if tuner.confidence is None:
        return
    if tuner.objective == "quality":
        yield (
            "objective='quality' carries no guarantee; confidence=None says that "
            "none is wanted."
        )
        return
    if obstacle is not None:
        yield obstacle
    if n_calibration < n_required:
        n_rules = len(tuner.rules)
        yield (
            f"{n_calibration} calibration texts are too few for max_drop="
            f"{tuner.max_drop} with confidence={tuner.confidence}: {n_rules} "
            f"rule{'s need' if n_rules > 1 else ' needs'} at least "
            f"{n_required}, even if no text has a loss. Full depth stays in use. "
            "Calibrate on more texts, or raise max_drop."
        )
