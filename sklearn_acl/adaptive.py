"""What a batch answers when each of its texts leaves at an exit of its own."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class AdaptiveOutputs(NamedTuple):
    """What a batch of B texts gives, each at the exit where it left.

    Attributes
    ----------
    logits : Tensor of shape (B, C)
        Class scores.
    embeddings : Tensor of shape (B, D)
        Text embeddings, what the classifiers multiply.
    exit_layers : Tensor of shape (B,), dtype int64
        Layer after which the exit sits, counted from 1; on the CPU.
    """

    logits: Tensor
    embeddings: Tensor
    exit_layers: Tensor


class Departures:
    """Which texts of a batch are still there, and the answers of the others.

    Parameters
    ----------
    n_rows : int
        Texts of the batch.
    leaves : callable
        ``leaves(logits) -> gone``, see `MultiExitEncoder.adaptive`.
    """

    def __init__(self, n_rows, leaves):
        self._leaves = leaves
        self._rows = np.arange(n_rows)  # those still there
        self._exit_layers = np.zeros(n_rows, dtype=np.int64)
        self._answers = None  # logits and embeddings, once a text has left

    def reach(self, layer, answers):
        """Let texts leave at an exit, given their logits and embeddings there.

        Returns
        -------
        staying : int64 Tensor or None
            Positions of the others among the texts that were there; None if nobody
            left.
        """
        gone = self._ask(answers[0])
        if not gone.any():
            return None
        staying, leaving = np.flatnonzero(~gone), np.flatnonzero(gone)
        device = answers[0].device
        if len(staying):
            positions = torch.from_numpy(leaving).to(device)
            answers = [part.index_select(0, positions) for part in answers]
        self._record(layer, leaving, answers)
        self._rows = self._rows[staying]
        return torch.from_numpy(staying).to(device)

    def finish(self, layer, answers):
        """Let the rest leave."""
        self._record(layer, np.arange(len(self._rows)), answers)

    def outputs(self):
        """`AdaptiveOutputs`, once all have left."""
        return AdaptiveOutputs(*self._answers, torch.from_numpy(self._exit_layers))

    def _ask(self, logits):
        gone = np.asarray(self._leaves(logits))
        if gone.dtype != bool or gone.shape != self._rows.shape:
            raise ValueError(
                f"leaves must return {len(self._rows)} booleans, one per row of the "
                f"logits; got {gone.dtype} of shape {gone.shape}."
            )
        return gone

    def _record(self, layer, positions, answers):
        rows = self._rows[positions]
        self._exit_layers[rows] = layer
        n_rows = len(self._exit_layers)
        if len(rows) == n_rows:  # all of them at once, and so in order
            self._answers = list(answers)
            return
        if self._answers is None:
            self._answers = [x.new_empty(n_rows, *x.shape[1:]) for x in answers]
        rows = torch.from_numpy(rows).to(answers[0].device)
        for whole, part in zip(self._answers, answers, strict=True):
            whole.index_copy_(0, rows, part)
