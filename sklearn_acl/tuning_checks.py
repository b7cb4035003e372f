"""What `TunedExitClassifierCV` checks and says before it fits anything."""

from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _num_samples, check_is_fitted

from .checked_data import take_labels
from .containers import reject_containers
from .exit_selection import check_rules
from .labels import decode_labels, encode_labels

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
    _check_estimator(tuner.estimator)
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
    asks_guarantee = tuner.objective == "speed" and tuner.confidence is not None
    if tuner.scoring is not None and asks_guarantee:
        raise ValueError(
            f"The drop of scoring={tuner.scoring!r} cannot be guaranteed. Set "
            "confidence=None to go by its estimate, or leave scoring=None."
        )
    if _is_prefit(tuner):
        if tuner.refit:
            raise ValueError("When cv='prefit', refit cannot be True.")
        try:
            check_is_fitted(tuner.estimator)
        except NotFittedError as error:
            raise NotFittedError(
                "When cv='prefit', the estimator must be fitted."
            ) from error


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


def _is_prefit(tuner):
    return isinstance(tuner.cv, str)


def check_labels(tuner, X, y):
    """Labels as an array, or None where none are given and none are needed.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    X, y
        As its `fit` takes them.

    Returns
    -------
    labels : ndarray of shape (n_samples,) or None
    """
    reject_containers(X, "X")
    if y is None:
        needs_none = tuner.risk == "disagreement" and tuner.scoring is None
        if _is_prefit(tuner) and tuner.objective == "speed" and needs_none:
            return None
        raise ValueError(
            "This method requires y to be passed, but the target y is None: only "
            "cv='prefit' with objective='speed', risk='disagreement' and "
            "scoring=None does without labels."
        )
    if isinstance(y, str):
        _, y, _ = take_labels(X, y, None)
    codes, classes = encode_labels(y, n_rows=_num_samples(X), require_two=False)
    return decode_labels(codes, classes)


def reservations(tuner, has_guarantee):
    """Yield messages for a user who asks for what the fit cannot give.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
        With its numbers of calibration texts, those there are and those it takes.
    has_guarantee : bool
        Whether its parameters allow one.
    """
    if tuner.confidence is None:
        return
    if tuner.objective == "quality":
        yield (
            "objective='quality' carries no guarantee; confidence=None says that "
            "none is wanted."
        )
        return
    if not has_guarantee:
        yield (
            f"No guarantee with cv={tuner.cv!r} and refit={tuner.refit!r}: it holds "
            "for the classifier that was calibrated, on texts that it has not "
            "seen. Use one split (cv=0.2) with refit=False, or cv='prefit'; "
            "confidence=None says that no guarantee is wanted."
        )
    if tuner.n_calibration_ < tuner.n_required_:
        n_rules = len(tuner.rules)
        yield (
            f"{tuner.n_calibration_} calibration texts are too few for max_drop="
            f"{tuner.max_drop} with confidence={tuner.confidence}: {n_rules} "
            f"rule{'s need' if n_rules > 1 else ' needs'} at least "
            f"{tuner.n_required_}, even if no text has a loss. Full depth stays in "
            "use. Calibrate on more texts, or raise max_drop."
        )
