"""The arrays that predict methods return: how each is read off an encoder's outputs."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .inference import class_probabilities


class ExitArray(NamedTuple):
    """One kind of array.

    Attributes
    ----------
    read : callable
        Takes `ExitOutputs` (n_exits, B, ...) or `AdaptiveOutputs` (B, ...); returns an
        ndarray of the same leading dimensions.
    width : callable
        Size of the last dimension for a `MultiExitEncoder`.
    dtype : type
    """

    read: Callable
    width: Callable
    dtype: type


def _n_classes(encoder):
    return encoder.heads[0].classifier.out_features


def _n_features(encoder):
    return encoder.heads[0].classifier.in_features


PROBABILITIES = ExitArray(
    lambda outputs: class_probabilities(outputs.logits), _n_classes, np.float64
)
LOGITS = ExitArray(
    lambda outputs: outputs.logits.float().cpu().numpy(), _n_classes, np.float32
)
EMBEDDINGS = ExitArray(
    lambda outputs: outputs.embeddings.float().cpu().numpy(), _n_features, np.float32
)
