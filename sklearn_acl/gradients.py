"""Angles between gradients, and the backward pass that drops the contrastive term.

ACL-Grad (Li & Zhu 2026, arXiv 2602.03563; our reading of the published description):
if the gradients of cross-entropy and of the contrastive term enclose more than a
threshold, the contrastive term is left out of this optimizer step (lam becomes 0).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

__all__ = [
    "MicroBatch",
    "StepGradient",
    "check_gate",
    "gated_backward",
    "gradient_angle",
]

GATE_SCOPES = ("encoder", "ffn_output", "exit_dense")


class MicroBatch(NamedTuple):
    """What the backward pass needs to know of one forward pass.

    Attributes
    ----------
    outputs : ExitOutputs
        Of the encoder, connected to the graph.
    terms : LossTerms
        ``criterion.terms(outputs, ...)``.
    share : float, default=1.0
        Weight of this micro-batch's texts over that of all texts of the step.
    """

    outputs: tuple
    terms: tuple
    share: float = 1.0


class StepGradient(NamedTuple):
    """Outcome of one optimizer step's backward pass.

    Attributes
    ----------
    loss : Tensor of shape ()
        The loss that the gradients belong to, detached and unscaled: cross-entropy
        alone if the step was gated.
    angle : float
        Between both terms' gradients, in degrees. NaN if it was not measured or if a
        gradient was zero or not finite.
    gated : bool
        Whether the contrastive term was left out.
    """

    loss: Tensor
    angle: float
    gated: bool


def gradient_angle(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    """Angle between two gradients.

    Parameters
    ----------
    a, b : sequences of Tensor or None
        One entry per parameter; each sequence is taken as one long vector, and None
        as zeros. Nothing is concatenated.

    Returns
    -------
    float
        Degrees in [0, 180]; NaN if either gradient is zero or not finite.
    """
    cosine = _cosine(a, b, torch.float32)
    if not abs(cosine) < 0.9995:  # acos is steep there, or float32 ran out of range
        cosine = _cosine(a, b, torch.float64)
    return math.degrees(math.acos(min(max(cosine, -1.0), 1.0)))


def check_gate(angle_threshold, gate_scope):
    """Check the parameters of the gate.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter, its value and what is allowed.
    """
    if not isinstance(gate_scope, str) or gate_scope not in GATE_SCOPES:
        choices = ", ".join(map(repr, GATE_SCOPES))
        raise ValueError(f"gate_scope={gate_scope!r} must be one of {choices}.")
    if angle_threshold is None:
        return
    if isinstance(angle_threshold, bool) or not isinstance(angle_threshold, Real):
        raise TypeError(
            f"angle_threshold={angle_threshold!r} must be a number of degrees in "
            f"[0, 180] or None, not {type(angle_threshold).__name__}."
        )
    if not 0 <= angle_threshold <= 180:
        raise ValueError(
            f"angle_threshold={angle_threshold!r} must be in [0, 180] degrees; "
            "None switches the gate off."
        )


def gated_backward(
    encoder,
    parameters: Iterable[torch.nn.Parameter],
    micro_batches: Sequence[MicroBatch | Callable[[], MicroBatch]],
    criterion,
    *,
    angle_threshold: float | None = 90.0,
    gate_scope: str = "encoder",
    exits: Sequence[int] | None = None,
    scale: float = 1.0,
) -> StepGradient:
    """Set the gradients of one optimizer step, with or without the contrastive term.

    The contrastive term is left out if the angle between the gradients of both terms,
    averaged over exits, exceeds `angle_threshold`: one decision for the whole step. A
    zero or non-finite gradient has no angle, and the step keeps both terms.

    Parameters
    ----------
    encoder : MultiExitEncoder
    parameters : iterable of Parameter
        Those that the step may change. Their ``grad`` is replaced; a parameter that
        is frozen, or that the losses do not depend on, keeps None.
    micro_batches : sequence of MicroBatch, or of functions without arguments
        The forward passes of the step. Each function is called when its turn comes
        and returns a MicroBatch, so that one graph is alive at a time.
    criterion : ACLLoss
    angle_threshold : float or None, default=90.0
        Degrees. None measures nothing and keeps both terms.
    gate_scope : {"encoder", "ffn_output", "exit_dense"}, default="encoder"
        Which gradients enclose the angle:

        - "encoder": those of all encoder layers, embedding tables left out. The step
          takes two backward passes.
        - "ffn_output": for each exit, the gradient of its own terms with respect to
          the output matrix of the feed-forward block under it; one backward pass and
          a short one per exit and term (long where layers share their matrices).
        - "exit_dense": the dense matrices of the exits, a proxy that costs nearly
          nothing.

        With several micro-batches every scope takes two backward passes.
    exits : sequence of int, default=None
        Numbers of the layers (from 1) whose exits are in the outputs, ascending; None
        for all exits of the encoder. Read by "ffn_output" only.
    scale : float, default=1.0
        Factor of a loss scaler; multiplies the gradients.

    Returns
    -------
    StepGradient

    Raises
    ------
    ValueError
        If no parameter of the gate's scope can be trained, or a parameter is outside
        its range.
    """
    check_gate(angle_threshold, gate_scope)
    parameters = [p for p in parameters if p.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    if angle_threshold is None or not criterion.has_contrastive:
        return _plain(parameters, micro_batches, criterion, scale)
    weights = _gate_weights(encoder, gate_scope, exits, parameters)
    gate = _Gate(angle_threshold, gate_scope, weights)
    if gate_scope != "encoder" and len(micro_batches) == 1:
        return _angle_first(gate, parameters, micro_batches[0], criterion, scale)
    return _angle_last(gate, parameters, micro_batches, criterion, scale)


class _Gate(NamedTuple):
    threshold: float
    scope: str
    weights: list  # one per exit if scope is "ffn_output"; None where frozen


def _plain(parameters, micro_batches, criterion, scale):
    loss = 0.0
    for micro_batch in micro_batches:
        loss = loss + _descend(parameters, _forwarded(micro_batch), criterion, scale)
    return StepGradient(loss, math.nan, False)


def _descend(parameters, batch, criterion, scale, gated=False):
    """Backward pass of the combined loss; returns its value."""
    loss = criterion.combine(batch.terms, gated) * batch.share
    (loss * scale).backward(inputs=parameters)
    return loss.detach()


def _angle_first(gate, parameters, micro_batch, criterion, scale):
    """Measure a cheap scope, then take one backward pass of the chosen loss."""
    batch = _forwarded(micro_batch)
    losses = _both_losses(batch, criterion, scale)
    if gate.scope == "ffn_output":
        own = _ffn_gradients(gate.weights, batch.outputs, losses)
    else:
        own = [_gradients(loss, gate.weights) for loss in losses]
    angle = gradient_angle(*own)
    gated = angle > gate.threshold
    loss = _descend(parameters, batch, criterion, scale, gated)
    return StepGradient(loss, angle, gated)


def _angle_last(gate, parameters, micro_batches, criterion, scale):
    """Take a backward pass per term; the step's gradient is a sum of both."""
    totals = [[None] * len(parameters)] * 2
    own = [[None] * len(gate.weights)] * 2
    values = 0.0
    for micro_batch in micro_batches:
        # nothing in this loop may hold a graph while the next forward pass runs
        totals, parts, value = _both_passes(
            gate, parameters, totals, _forwarded(micro_batch), criterion, scale
        )
        own = [list(map(_sum, *pair)) for pair in zip(own, parts, strict=True)]
        values = values + value
    if gate.scope != "ffn_output":
        own = [_of(gate.weights, parameters, total) for total in totals]
    angle = gradient_angle(*own)
    gated = angle > gate.threshold
    for parameter, ce, contrastive in zip(parameters, *totals, strict=True):
        parameter.grad = ce if gated else _mixed(ce, contrastive, criterion.lam)
    return StepGradient(values[int(gated)], angle, gated)


def _both_passes(gate, parameters, totals, batch, criterion, scale):
    """Totals plus this batch's gradients, exits' own ones, losses by whether gated."""
    losses = _both_losses(batch, criterion, scale)
    own = [[None] * len(gate.weights)] * 2
    if gate.scope == "ffn_output":
        own = _ffn_gradients(gate.weights, batch.outputs, losses)
    totals = [
        _accumulate(parameters, total, loss, retain_graph=loss is losses[0])
        for total, loss in zip(totals, losses, strict=True)
    ]
    values = [criterion.combine(batch.terms, gated) for gated in (False, True)]
    return totals, own, torch.stack(values).detach() * batch.share


def _forwarded(micro_batch):
    return micro_batch() if callable(micro_batch) else micro_batch


def _both_losses(batch, criterion, scale):
    """Exit-averaged cross-entropy and contrastive term, as the step counts them."""
    return [criterion.average(values) * batch.share * scale for values in batch.terms]


def _gate_weights(encoder, scope, exits, parameters):
    if scope == "encoder":
        weights = encoder.layer_parameters()
    elif scope == "exit_dense":
        weights = [head.dense.weight for head in encoder.heads]
    else:
        exits = encoder.exit_layer_numbers if exits is None else exits
        weights = [encoder.ffn_output_weight(layer) for layer in exits]
    trained = set(map(id, parameters))
    weights = [weight if id(weight) in trained else None for weight in weights]
    if all(weight is None for weight in weights):
        raise ValueError(
            f"gate_scope={scope!r} has no parameter that this step trains; use "
            "gate_scope='exit_dense', or angle_threshold=None for no gate."
        )
    if scope == "ffn_output":
        return weights
    return [weight for weight in weights if weight is not None]


def _ffn_gradients(weights, outputs, losses):
    """Gradient of each exit's own terms with respect to that exit's one weight.

    Both losses are first taken back to the outputs, for all exits at once. From there
    each exit's own piece of the graph is short; the stacked outputs would lead through
    the layers of every deeper exit.
    """
    if len(weights) != len(outputs.logits):
        raise ValueError(
            f"exits must name the layers of the {len(outputs.logits)} exits in the "
            f"outputs, got {len(weights)}."
        )
    gradients = []
    starts = outputs.logits, outputs.embeddings  # where the terms read the encoder
    for loss, output in zip(losses, starts, strict=True):
        (at_output,) = _gradients(loss, [output])  # (n_exits, B, C or D)
        pieces = zip(_pieces(output), weights, at_output, strict=True)
        gradients.append([_gradient_of_piece(*piece) for piece in pieces])
    return gradients


def _gradient_of_piece(piece, weight, at_exit):
    frozen = weight is None or isinstance(piece, GradientEdge) and piece.node is None
    return None if frozen else _gradients(piece, [weight], at_exit)[0]


def _pieces(stacked):
    """What was stacked along the first dimension, as ends of the autograd graph."""
    node = stacked.grad_fn
    if node.name().startswith("StackBackward") and len(stacked) == len(
        node.next_functions
    ):
        return [GradientEdge(*edge) for edge in node.next_functions]
    return stacked.unbind()  # correct, but as long as the whole backward pass


def _gradients(output, weights, grad_output=None):
    return torch.autograd.grad(
        output, weights, grad_output, retain_graph=True, allow_unused=True
    )


def _accumulate(parameters, total, loss, retain_graph):
    """Add the gradients of a loss to those in ``total``; leaves `.grad` empty.

    Through ``.grad`` rather than ``torch.autograd.grad``: it gives each parameter a
    gradient of its own memory and layout, which may be changed in place.
    """
    for parameter, gradient in zip(parameters, total, strict=True):
        parameter.grad = gradient
    loss.backward(inputs=parameters, retain_graph=retain_graph)
    total = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return total


def _of(weights, parameters, gradients):
    wanted = set(map(id, weights))
    return [
        gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if id(parameter) in wanted
    ]


def _mixed(ce, contrastive, lam):
    """(1 - lam) * ce + lam * contrastive, in the memory of one of them."""
    if contrastive is None:
        return None if ce is None else ce.mul_(1 - lam)
    if ce is None:
        return contrastive.mul_(lam)
    return ce.lerp_(contrastive, lam)


def _sum(x, y):
    if x is None or y is None:
        return y if x is None else x
    return x + y


def _cosine(a, b, dtype):
    """Cosine of two lists of tensors, NaN if it has none."""
    products = [
        _products(x, y, dtype)
        for x, y in zip(a, b, strict=True)
        if x is not None or y is not None
    ]
    if not products:
        return math.nan
    # one transfer from the device for all parameters
    ab, aa, bb = torch.stack(products).cpu().double().sum(dim=0).tolist()
    if not (0 < aa < math.inf and 0 < bb < math.inf):
        return math.nan
    return ab / math.sqrt(aa) / math.sqrt(bb)


def _products(x, y, dtype):
    """Dot products x.y, x.x and y.y; None counts as zeros."""
    present = y if x is None else x
    if present.device.type == "mps":  # has no float64
        dtype = torch.float32
    zero = present.new_zeros((), dtype=dtype)
    x, y = (None if g is None else g.detach().to(dtype).reshape(-1) for g in (x, y))
    return torch.stack(
        [
            zero if x is None or y is None else torch.dot(x, y),
            zero if x is None else torch.dot(x, x),
            zero if y is None else torch.dot(y, y),
        ]
    )
