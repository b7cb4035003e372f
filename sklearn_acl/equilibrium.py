"""Gradient equilibrium: what comes back from several exits does not add up.

Li et al. (2019), "Improved Techniques for Training Adaptive Deep Networks", section
3.1; ElasticBERT (Liu et al. 2022) is trained with it.
"""

import torch


class _ScaledGradient(torch.autograd.Function):
    """The identity, which multiplies the gradient on its way back."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class GradientEquilibrium:
    """A fork of `run_until` that weighs an exit's gradient against those from deeper.

    With exits 1..n, below exit i the gradient of exit i counts 1 / (n - i + 1) and what
    comes from the layers above (n - i) / (n - i + 1). The layers between exits i - 1
    and i so get the mean of the gradients of exits i..n.

    That is for a sum of the exits' losses. The criterion averages them, so what leaves
    an exit is multiplied by n first (`undo_average`): all layers then train at one
    pace, whether one exit runs or many. Values, and gradients inside an exit, stay as
    they are.

    Parameters
    ----------
    exits : tuple of int
        Layers of the exits that run, ascending.
    """

    def __init__(self, exits):
        self.exits = exits

    def undo_average(self, pooled):
        """Pooled hidden states of an exit, for its head."""
        if not pooled.requires_grad:
            return pooled
        return _ScaledGradient.apply(pooled, len(self.exits))

    def __call__(self, layer, hidden):
        """Hidden states for the exit after a layer, and for the next layer."""
        if not hidden.requires_grad:
            return hidden, hidden
        n_deeper = len(self.exits) - 1 - self.exits.index(layer)
        share = 1 / (n_deeper + 1)
        scale = _ScaledGradient.apply
        return scale(hidden, share), scale(hidden, n_deeper * share)
