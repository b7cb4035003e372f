"""The criterion: cross-entropy and a contrastive term at every exit, as one loss."""

import math
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .losses import (
    ANCHORS,
    acl_cl_loss,
    acl_embed_loss,
    check_choice,
    cross_entropy,
    scl_loss,
)

__all__ = ["ACLLoss", "LossTerms"]

CONTRASTIVE = ("acl_cl", "acl_embed", "scl", None)
DISTILL = ("replace", "add")
EXIT_WEIGHTS = ("uniform", "linear")


class LossTerms(NamedTuple):
    """The two terms of each exit's loss.

    Attributes
    ----------
    cross_entropy : Tensor of shape (n_exits,)
    contrastive : Tensor of shape (n_exits,) or None
        None where the criterion computes no contrastive term.
    """

    cross_entropy: Tensor
    contrastive: Tensor | None


class ACLLoss(nn.Module):
    """Loss of a multi-exit classifier: cross-entropy and a contrastive term.

    The loss of exit m is ``(1 - lam) * cross_entropy + lam * contrastive``, the total a
    weighted mean over exits. With ``lam=0`` or ``contrastive=None`` no contrastive term
    is computed and the loss is the exits' cross-entropy.

    The constructor stores its arguments; they are checked by `check`, and by every use.

    Parameters
    ----------
    contrastive : {"acl_cl", "acl_embed", "scl", None}, default="acl_cl"
        The contrastive term. "acl_cl" is ACL-CL with the last exit as the teacher of
        the others, and ACL-Embed at the last exit (see `acl_cl_loss`,
        `acl_embed_loss`, `scl_loss`).
    lam : float, default=0.5
        Share of the contrastive term, in [0, 1].
    temperature : float, default=0.3
        Divides the cosine similarities; above 0.
    anchors : {"all", "labels"}, default="all"
        Rows that act as anchors; not used by "scl", whose anchors are the texts.
    distill : {"replace", "add"}, default="replace"
        With "acl_cl", whether ACL-CL stands in for ACL-Embed at the exits before the
        last, or the mean of both is used there.
    exit_weights : {"uniform", "linear"}, default="uniform"
        Weights of the exits, which sum to 1: equal, or proportional to the exit's
        position 1..n_exits.
    """

    def __init__(
        self,
        contrastive="acl_cl",
        lam=0.5,
        temperature=0.3,
        anchors="all",
        distill="replace",
        exit_weights="uniform",
    ):
        super().__init__()
        self.contrastive = contrastive
        self.lam = lam
        self.temperature = temperature
        self.anchors = anchors
        self.distill = distill
        self.exit_weights = exit_weights

    def check(self):
        """Check the parameters.

        Raises
        ------
        TypeError, ValueError
            Naming the parameter as the estimator spells it, its value and what is
            allowed, as in ``criterion__lam=1.5``.
        """
        check_choice("contrastive", self.contrastive, CONTRASTIVE)
        check_choice("anchors", self.anchors, ANCHORS)
        check_choice("distill", self.distill, DISTILL)
        check_choice("exit_weights", self.exit_weights, EXIT_WEIGHTS)
        _check_number("lam", self.lam, "in [0, 1]", lambda value: 0 <= value <= 1)
        _check_number(
            "temperature",
            self.temperature,
            "above 0 and finite",
            lambda value: 0 < value < math.inf,
        )

    @property
    def has_contrastive(self):
        """Whether a contrastive term is computed at all."""
        return self.contrastive is not None and self.lam != 0

    @property
    def has_teacher(self):
        """Whether the losses of the other exits read the last exit's outputs.

        Only then does the last exit run along where it does not train.
        """
        return self.has_contrastive and self.contrastive == "acl_cl"

    def terms(self, outputs, labels, weight=None):
        """Both terms of every exit.

        Parameters
        ----------
        outputs : ExitOutputs
            Or any object with attributes ``logits`` (n_exits, B, C), ``embeddings``
            (n_exits, B, D) and ``label_embeddings`` (n_exits, C, D), in ascending
            order of depth.
        labels : int64 Tensor of shape (B,)
        weight : Tensor of shape (B,), default=None
            Non-negative weights of the texts; None is the same as ones, to the bit.

        Returns
        -------
        LossTerms
        """
        self.check()
        return LossTerms(
            cross_entropy(outputs.logits, labels, weight),
            self._contrastive(outputs, labels, weight),
        )

    def average(self, values):
        """Weighted mean over exits.

        Parameters
        ----------
        values : Tensor of shape (n_exits,)

        Returns
        -------
        Tensor of shape ()
        """
        check_choice("exit_weights", self.exit_weights, EXIT_WEIGHTS)
        if self.exit_weights == "uniform":
            return values.mean()
        position = torch.arange(1, len(values) + 1, device=values.device)
        share = position.to(values.dtype)
        return (values * (share / share.sum())).sum()

    def combine(self, terms, gated=False):
        """Total loss: both terms of every exit, averaged over exits.

        Parameters
        ----------
        terms : LossTerms
        gated : bool, default=False
            Leave the contrastive term out (lam becomes 0).

        Returns
        -------
        Tensor of shape ()
        """
        if gated or terms.contrastive is None:
            return self.average(terms.cross_entropy)
        return self.average(
            (1 - self.lam) * terms.cross_entropy + self.lam * terms.contrastive
        )

    def forward(self, outputs, labels, weight=None):
        """Total loss of a batch; parameters as in `terms`, a Tensor of shape ()."""
        return self.combine(self.terms(outputs, labels, weight))

    def _contrastive(self, outputs, labels, weight):
        if not self.has_contrastive:
            return None
        embeddings, label_embeddings = outputs.embeddings, outputs.label_embeddings
        if self.contrastive == "scl":
            return scl_loss(embeddings, labels, self.temperature, weight)
        settings = (labels, self.temperature, self.anchors, weight)
        if self.contrastive == "acl_embed" or len(embeddings) == 1:
            return acl_embed_loss(embeddings, label_embeddings, *settings)
        distilled = acl_cl_loss(
            embeddings[:-1],
            label_embeddings[:-1],
            embeddings[-1],
            label_embeddings[-1],
            *settings,
        )
        if self.distill == "add":
            own = acl_embed_loss(embeddings, label_embeddings, *settings)
            return torch.cat([(own[:-1] + distilled) / 2, own[-1:]])
        last = acl_embed_loss(embeddings[-1:], label_embeddings[-1:], *settings)
        return torch.cat([distilled, last])


def _check_number(name, value, wanted, holds):
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"criterion__{name}={value!r} must be a number {wanted}, "
            f"not {type(value).__name__}."
        )
    if not holds(value):
        raise ValueError(f"criterion__{name}={value!r} must be {wanted}.")
