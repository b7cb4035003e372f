"""The arrays that predict methods return: how each is read off an encoder's outputs."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from .inference import class_probabilities


class ExitArray(NamedTuple):
    """One kind of array.

    Attributes
    ----------
    read : callable
        Takes `ExitOutputs` (n_exits, B, ...) or `AdaptiveOutputs` (B, ...); returns an
        ndarray of the same leading dimensions.
    width : callable or None
        Size of the last dimension for a `MultiExitEncoder`; None for one number per
        text.
    dtype : type
    """

    read: Callable
    width: Callable | None
    dtype: type

    def empty(self, encoder, *shape):
        """Array of the leading dimensions `shape`, to be filled."""
        width = () if self.width is None else (self.width(encoder),)
        return np.empty((*shape, *width), dtype=self.dtype)


def _n_classes(encoder):
    return encoder.heads[0].classifier.out_features


def _n_features(encoder):
    return encoder.heads[0].classifier.in_features


PROBABILITIES = ExitArray(
    lambda outputs: class_probabilities(outputs.logits), _n_classes, np.float64
)
LOG_PROBABILITIES = ExitArray(
    lambda outputs: torch.log_softmax(outputs.logits.double(), dim=-1).cpu().numpy(),
    _n_classes,
    np.float64,
)
#: Number of the class of highest probability; of many classes, none is kept but it.
CODES = ExitArray(
    lambda outputs: class_probabilities(outputs.logits).argmax(-1), None, np.int64
)
LOGITS = ExitArray(
    lambda outputs: outputs.logits.float().cpu().numpy(), _n_classes, np.float32
)
EMBEDDINGS = ExitArray(
    lambda outputs: outputs.embeddings.float().cpu().numpy(), _n_features, np.float32
)
