"""Temperature of every exit, and how far confidence is from accuracy.

Guo et al. (2017), "On Calibration of Modern Neural Networks".
"""

import warnings

import numpy as np
import torch

from .user_code import stacklevel

#: Range in which a temperature is looked for.
LOWEST, HIGHEST = 0.02, 50.0


def calibrate_heads(heads, logits, codes, exit_layer_numbers):
    """Give every head its temperature; warn once of those that the texts leave open.

    Parameters
    ----------
    heads : sequence of ExitHead
        Changed in place.
    logits : ndarray of shape (n_exits, n_samples, n_classes)
        Of held-out texts, by these heads and the temperatures they have.
    codes : ndarray of shape (n_samples,), dtype int64
        Columns of the true classes.
    exit_layer_numbers : sequence of int
        Layers of the exits, for the warning.

    Returns
    -------
    calibration : dict of ndarray of shape (n_exits,)
        See `ACLClassifier.calibration_`; "before" is without any temperature.
    """
    present = [head.temperature.item() for head in heads]
    raw = np.asarray(logits, np.float64) * np.reshape(present, (-1, 1, 1))
    finite = np.isfinite(raw).all(axis=(1, 2))
    if not finite.all():
        layers = [n for n, ok in zip(exit_layer_numbers, finite, strict=True) if not ok]
        raise ValueError(
            f"The exits after layers {', '.join(map(str, layers))} give scores that "
            "are not finite: the training diverged. Fit again with a lower lr."
        )
    found = [fit_temperature(of_exit, codes) for of_exit in raw]
    _warn_undetermined(found, exit_layer_numbers)
    temperatures = [1.0 if value is None else value for value in found]
    scaled = raw / np.reshape(temperatures, (-1, 1, 1))
    calibration = {"temperature": np.array(temperatures)}
    for name, values in (("before", raw), ("after", scaled)):
        errors = [_error_of(of_exit, codes) for of_exit in values]
        losses = [log_loss(of_exit, codes) for of_exit in values]
        calibration[f"error_{name}"] = np.array(errors)
        calibration[f"log_loss_{name}"] = np.array(losses)
    _set_temperatures(heads, temperatures)
    return calibration


def reset_heads(heads):
    """Take the temperatures away, as before any calibration.

    Parameters
    ----------
    heads : sequence of ExitHead
        Changed in place.
    """
    _set_temperatures(heads, [1.0] * len(heads))


def _warn_undetermined(temperatures, exit_layer_numbers):
    pairs = zip(exit_layer_numbers, temperatures, strict=True)
    layers = [str(layer) for layer, value in pairs if value is None]
    if layers:
        warnings.warn(
            f"The held-out texts set no temperature for {len(layers)} of "
            f"{len(temperatures)} exits (after layers {', '.join(layers)}), which "
            "answer all of these texts rightly, or no better than by chance: it stays "
            "1 there. Pass more texts.",
            UserWarning,
            stacklevel=stacklevel(),
        )


def _set_temperatures(heads, temperatures):
    with torch.no_grad():
        for head, temperature in zip(heads, temperatures, strict=True):
            head.temperature.fill_(temperature)


def _error_of(logits, codes):
    from scipy.special import softmax

    return expected_calibration_error(softmax(logits, axis=1), codes)


def fit_temperature(logits, codes):
    """Temperature that gives held-out texts the highest likelihood.

    Parameters
    ----------
    logits : ndarray of shape (n_samples, n_classes)
    codes : ndarray of shape (n_samples,), dtype int64
        Columns of the true classes.

    Returns
    -------
    temperature : float or None
        Logits are to be divided by it, which changes no prediction. None if the
        likelihood has no maximum in [0.02, 50]: all predictions are right, or the
        scores say nothing.
    """
    from scipy.optimize import minimize_scalar

    logits = np.asarray(logits, dtype=np.float64)
    own = logits[np.arange(len(codes)), codes]
    if (own == logits.max(axis=1)).all() or own.mean() <= logits.mean():
        return None  # the colder or the hotter, the better
    # convex in the inverse temperature, and so with one minimum in its logarithm, too
    found = minimize_scalar(
        lambda log_temperature: log_loss(logits / np.exp(log_temperature), codes),
        bounds=(np.log(LOWEST), np.log(HIGHEST)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    temperature = float(np.exp(found.x))
    return temperature if LOWEST * 1.01 < temperature < HIGHEST / 1.01 else None


def log_loss(logits, codes):
    """Mean negative log-probability of the true classes.

    Parameters
    ----------
    logits : ndarray of shape (n_samples, n_classes)
    codes : ndarray of shape (n_samples,), dtype int64

    Returns
    -------
    loss : float
        In nats.
    """
    from scipy.special import logsumexp

    own = logits[np.arange(len(codes)), codes]
    return float(np.mean(logsumexp(logits, axis=1) - own))


def expected_calibration_error(proba, codes, n_bins=15):
    """Mean distance of confidence from accuracy, over bins of confidence.

    Guo et al. (2017), eq. 3: bins of equal width, each weighted by its texts.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes)
    codes : ndarray of shape (n_samples,), dtype int64
        Columns of the true classes.
    n_bins : int, default=15

    Returns
    -------
    error : float
        In [0, 1].
    """
    confidence = proba.max(axis=1)
    is_right = proba.argmax(axis=1) == codes
    # bins (low, high], as in the paper
    bins = np.ceil(confidence * n_bins).astype(int).clip(1, n_bins) - 1
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=n_bins)
    return float(np.abs(gaps).sum() / len(codes))
