"""The weight of each text: its sample weight times the weight of its class."""

import numbers
from collections.abc import Mapping

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_class_weight

from .labels import listed


def check_weights(sample_weight, n_rows):
    """Check the weights of texts.

    Parameters
    ----------
    sample_weight : array-like of shape (n_rows,) or None
        Finite weights, none negative, not all zero.
    n_rows : int
        Number of texts.

    Returns
    -------
    weights : ndarray of shape (n_rows,), dtype float64, or None

    Raises
    ------
    ValueError
        If they are anything else.
    """
    if sample_weight is None:
        return None
    if np.ma.is_masked(sample_weight):
        raise ValueError("sample_weight has masked entries; give every text a weight.")
    try:
        weights = check_array(
            sample_weight,
            dtype=np.float64,
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            ensure_min_samples=0,
            input_name="sample_weight",
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be numbers: {error}") from error
    if weights.shape != (n_rows,):
        raise ValueError(
            "sample_weight must hold one number per text, of shape "
            f"({n_rows},); got shape {weights.shape}."
        )
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        first = wrong[0]
        raise ValueError(
            f"sample_weight must be finite and not negative; {wrong.size} of {n_rows} "
            f"are not, the first is {weights[first]} at position {first}."
        )
    if n_rows and not weights.any():
        raise ValueError("sample_weight is zero for every text; nothing would train.")
    return weights


def training_weights(codes, classes, class_weight=None, sample_weight=None):
    """Weight of each text: its sample weight times the weight of its class.

    Parameters
    ----------
    codes : ndarray of shape (n_samples,), dtype int64
        Positions in `classes`.
    classes : ndarray of shape (n_classes,)
        Sorted labels.
    class_weight : dict, "balanced" or None, default=None
        Weight by label, with scikit-learn's rules: a class without a key weighs 1,
        unless some key is no class. "balanced" gives all classes that occur the same
        total weight, sample weights taken into account.
    sample_weight : array-like of shape (n_samples,), default=None
        See `check_weights`.

    Returns
    -------
    weights : ndarray of shape (n_samples,), dtype float32, or None
        Divided by the mean over the texts of positive weight, so that weights all
        equal are weights of 1. None if neither kind of weight is given.

    Raises
    ------
    ValueError
        If a weight is negative or not finite, if all are zero, or if `class_weight`
        does not fit the classes.
    """
    weights = check_weights(sample_weight, len(codes))
    if class_weight is None and weights is None:
        return None
    if weights is None:
        weights = np.ones(len(codes))
    by_class = _class_weights(class_weight, codes, classes, weights)
    with np.errstate(over="ignore", under="ignore"):
        weights = weights * by_class[codes]
    if not np.isfinite(weights).all():
        raise ValueError(
            "class_weight times sample_weight is too large for double precision; "
            "divide the weights by a common factor."
        )
    if not weights.any():
        if not len(weights):
            return weights.astype(np.float32)
        raise ValueError(
            "class_weight and sample_weight leave no text a weight above zero; "
            "nothing would train."
        )
    return _of_mean_one(weights)


def _of_mean_one(weights):
    """Weights over their mean, zeros left out of it, in single precision.

    Label embeddings weigh 1 as anchors of the contrastive term, whatever the texts do:
    only of a mean of 1 do weights not depend on their unit.
    """
    weights = weights / weights.max()  # the sum of the largest numbers would overflow
    with np.errstate(under="ignore"):
        return (weights / weights[weights > 0].mean()).astype(np.float32)


def _class_weights(class_weight, codes, classes, sample_weight):
    """Weight per class, in the order of `classes`; absent classes weigh 1."""
    by_class = np.ones(len(classes))
    if class_weight is None:
        return by_class
    if isinstance(class_weight, Mapping):
        return _class_weights_from_dict(class_weight, classes)
    if not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise ValueError(
            "class_weight must be None, 'balanced' or a dict from label to weight; "
            f"got {class_weight!r}."
        )
    # a text of weight zero is as good as absent, and so is a class of such texts
    kept = sample_weight > 0
    present = np.unique(codes[kept])
    by_class[present] = compute_class_weight(
        "balanced", classes=present, y=codes[kept], sample_weight=sample_weight[kept]
    )
    return by_class


def _class_weights_from_dict(class_weight, classes):
    # scikit-learn looks '1' up as the integer 1, hence the lookup of our own
    labels = classes.tolist()
    missing = [label for label in labels if label not in class_weight]
    known = set(labels)
    unknown = [label for label in class_weight if label not in known]
    if missing and unknown:
        raise ValueError(
            f"class_weight has no weight for the classes {listed(missing)} and keys "
            f"that are no class: {listed(unknown)}."
        )
    for label in labels:
        weight = class_weight.get(label, 1.0)
        is_number = isinstance(weight, numbers.Real)
        if not is_number or not np.isfinite(weight) or weight < 0:
            raise ValueError(
                "class_weight must be finite and not negative; the class "
                f"{label!r} has {weight!r}."
            )
    return np.array([class_weight.get(label, 1.0) for label in labels], np.float64)
