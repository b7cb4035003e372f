"""Which candidate `TunedExitClassifierCV` uses, and what it reports of it."""

import warnings
from typing import NamedTuple

import numpy as np

from .exit_rules import earliest_exit
from .exit_selection import Candidate, Evaluation, best, certify, cheapest
from .risk import binomial_upper_bound
from .tuning_checks import alpha_of_a_rule, asks_guarantee
from .user_code import stacklevel

#: What rounding may add to the difference of two scores: 0.90 - 0.88 is above 0.02.
_ROUNDING = 1e-12


class Choice(NamedTuple):
    """The candidates, what is known of each, and the one to use."""

    candidates: list[Candidate]
    layers: tuple[int, ...]  # of the exits that may answer
    evaluation: Evaluation
    risk: np.ndarray  # (n_candidates,), as the three below
    p_values: np.ndarray
    allowed: np.ndarray
    index: int

    @property
    def candidate(self):
        """The one to use."""
        return self.candidates[self.index]


def choose(tuner, candidates, layers, evaluation):
    """Choose a candidate; warn where none is within the ceilings.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    candidates : list of Candidate
        Full depth first.
    layers : tuple of int
        Layers of the exits that may answer.
    evaluation : Evaluation
        Of all calibration texts.

    Returns
    -------
    choice : Choice
    """
    if tuner.scoring is not None:
        risk = evaluation.score[0] - evaluation.score
    else:
        risk = evaluation.n_losses / evaluation.n_samples
    p_values = np.full(len(candidates), np.nan)
    if tuner.objective == "quality":
        allowed = _are_within_ceilings(tuner, evaluation)
        index = _best(tuner, evaluation, allowed)
    else:
        if asks_guarantee(tuner):
            p_values, allowed = certify(
                candidates,
                evaluation,
                level=tuner.max_drop,
                alpha=1 - float(tuner.confidence),
            )
        else:
            rounding = 0.0 if tuner.scoring is None else _ROUNDING
            allowed = risk <= float(tuner.max_drop) + rounding
        index = cheapest(evaluation.cost, allowed)
    return Choice(candidates, layers, evaluation, risk, p_values, allowed, index)


def _are_within_ceilings(tuner, evaluation):
    are_within = np.ones(len(evaluation.cost), dtype=bool)
    if tuner.max_layers is not None:
        are_within &= evaluation.mean_exit_layer <= tuner.max_layers
    if tuner.max_time is not None:
        are_within &= evaluation.cost <= tuner.max_time
    return are_within


def _best(tuner, evaluation, allowed):
    cost, mean_layer = evaluation.cost, evaluation.mean_exit_layer
    if allowed.any():
        return best(evaluation.score, cost, allowed)
    warnings.warn(
        f"No candidate is within max_layers={tuner.max_layers} and max_time="
        f"{tuner.max_time}: the least are {mean_layer.min():.3g} layers and a cost of "
        f"{cost.min():.3g}. The cheapest is in use; a fixed exit (None in rules) may "
        "be cheaper.",
        UserWarning,
        stacklevel=stacklevel(),
    )
    return cheapest(cost, ~allowed)


def warn_of_choice(tuner, choice, estimator, n_required):
    """Say why full depth stays in use, or that a rule cannot be of use.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    choice : Choice
    estimator : ACLClassifier
        Fitted.
    n_required : int or None
        Number of calibration texts that a guarantee takes.
    """
    # one message: the first names the rules of the second
    message = _why_full_depth(tuner, choice, estimator, n_required)
    message = message or _why_never(tuner, choice, estimator)
    if message is not None:
        warnings.warn(message, UserWarning, stacklevel=stacklevel())


def _why_full_depth(tuner, choice, estimator, n_required):
    """None where another candidate is in use, or the reason has been said."""
    n_calibration = choice.evaluation.n_samples
    if choice.index > 0 or tuner.objective == "quality":
        return None
    if len(choice.layers) == 1:
        return (
            f"The estimator has one exit in use, after layer {choice.layers[0]}: there "
            f"is nothing to choose. {_how_to_get_exits(estimator)}"
        )
    if n_required is not None and n_calibration < n_required:
        return None
    return (
        f"Full depth stays in use: on {n_calibration} calibration texts, no exit "
        f"rule within max_drop={tuner.max_drop} (confidence={tuner.confidence}) is "
        f"cheaper. {_how_to_be_cheaper(choice, estimator)}"
    )


def _why_never(tuner, choice, estimator):
    """None unless the patience of a rule is too high for it to fire before the end."""
    n_exits, patience = len(choice.layers), estimator.exit_patience
    idle = [r for r in tuner.rules if 0 < n_exits - 1 <= earliest_exit(r, patience)]
    if not idle:
        return None
    names = " and ".join(map(repr, idle))
    share = ", each of which takes its share of 1 - confidence"
    return (
        f"exit_patience={patience} is too high for {n_exits} exits in use: by {names}, "
        f"no text can leave before the last of them. Lower it, or leave {names} out of "
        f"rules{share if asks_guarantee(tuner) else ''}."
    )


def _how_to_get_exits(estimator):
    if len(estimator.exit_layer_numbers_) > 1:
        return f"Raise its exit_layer={estimator.exit_layer!r}, or set it to None."
    if getattr(estimator, "strategy", None) == "final":
        return "Fit it with strategy='joint'."
    return "Fit it with more layers (n_layers)."


def _how_to_be_cheaper(choice, estimator):
    deepest = choice.layers[-1]
    active = {
        candidate.rule
        for candidate, layer in zip(
            choice.candidates, choice.evaluation.mean_exit_layer, strict=True
        )
        if layer < deepest
    }
    idle = [c.rule for c in choice.candidates[1:] if c.rule not in active]
    if idle:
        names = ", ".join(map(repr, dict.fromkeys(idle)))
        return (
            f"No text leaves before layer {deepest} by {names} with these thresholds "
            f"and exit_patience={estimator.exit_patience}, of {len(choice.layers)} "
            "exits in use: change these, or try other rules."
        )
    return "Raise max_drop, calibrate on more texts, or try other rules."


def figures(tuner, choice, has_guarantee):
    """Attributes that tell what the chosen candidate does.

    Parameters
    ----------
    tuner : TunedExitClassifierCV
    choice : Choice
    has_guarantee : bool

    Returns
    -------
    attributes : dict
    """
    index, evaluation = choice.index, choice.evaluation
    bound = np.nan
    if has_guarantee and index == 0:
        bound = 0.0  # full depth does not differ from itself
    elif has_guarantee:
        bound = binomial_upper_bound(
            evaluation.n_losses[index], evaluation.n_samples, alpha_of_a_rule(tuner)
        )
    return {
        "risk_": float(choice.risk[index]),
        "risk_bound_": float(bound),
        "cost_": float(evaluation.cost[index]),
        "best_score_": float(evaluation.score[index]),
        "full_depth_score_": float(evaluation.score[0]),
    }


def results_of(choice, has_guarantee):
    """Columns of `cv_results_`; without a guarantee, nothing in them is certified.

    Parameters
    ----------
    choice : Choice
    has_guarantee : bool

    Returns
    -------
    results : dict of ndarray of shape (n_candidates,)
    """
    candidates, evaluation = choice.candidates, choice.evaluation
    rules = np.empty(len(candidates), dtype=object)
    rules[:] = [candidate.rule for candidate in candidates]
    thresholds = [candidate.threshold for candidate in candidates]
    unknown = np.full(len(candidates), np.nan)
    return {
        "rule": rules,
        "threshold": np.array(thresholds, dtype=float),
        "exit_layer": np.array([choice.layers[c.position] for c in candidates]),
        "mean_exit_layer": evaluation.mean_exit_layer,
        "cost": evaluation.cost,
        "score": evaluation.score,
        "risk": choice.risk,
        "p_value": choice.p_values if has_guarantee else unknown,
        "certified": choice.allowed & has_guarantee,
    }
