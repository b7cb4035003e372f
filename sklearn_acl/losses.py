"""Losses of the exits: cross-entropy, SCL, ACL-Embed, ACL-CL.

The functions take tensors whose first dimension is the exit and return one value per
exit. Symbols: M exits, B texts, C classes, D dimensions of an embedding, tau the
temperature. All of them

- normalise, compare and sum exponentials in float32 or better, whatever the dtype of
  the inputs and whether or not autocast is on;
- average over the *valid* anchors, those that have a positive, and return a 0 that is
  connected to the graph (gradients of zero) if there is none;
- multiply the terms of a text by its weight and divide by the sum of the weights used.
  Label embeddings weigh 1, but a batch in which every text weighs 0 gives 0.

References
----------
- SCL: Gunel et al. (2021), "Supervised Contrastive Learning for Pre-trained Language
  Model Fine-tuning", after Khosla et al. (2020), "Supervised Contrastive Learning".
- ACL-Embed and ACL-CL: Li & Zhu (2026), arXiv 2602.03563; our reading of the published
  description.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "acl_cl_loss",
    "acl_embed_loss",
    "cross_entropy",
    "scl_loss",
]

ANCHORS = ("all", "labels")

# A shorter vector has no direction: it counts as zero and gets no gradient, where
# dividing by its length would multiply the gradient without bound.
SHORTEST = 1e-8


def cross_entropy(
    logits: Tensor, labels: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Weighted mean cross-entropy of every exit.

    ``sum_i w_i * -log softmax(logits[m, i])[y_i] / sum_i w_i``

    Parameters
    ----------
    logits : Tensor of shape (M, B, C)
    labels : int64 Tensor of shape (B,)
        Class positions in ``0..C-1``.
    weight : Tensor of shape (B,), default=None
        Non-negative; None is the same as ones, to the bit.

    Returns
    -------
    Tensor of shape (M,)
        0, connected to the graph, if every weight is 0.
    """
    n_exits, n_texts, n_classes = logits.shape
    with _full_precision(logits):
        logits = _at_least_float32(logits)
        weight = _text_weights(weight, logits, n_texts)
        values = F.cross_entropy(
            logits.reshape(-1, n_classes), labels.repeat(n_exits), reduction="none"
        )
        return _weighted_mean(values.view(n_exits, n_texts), weight)


def scl_loss(
    embeddings: Tensor,
    labels: Tensor,
    temperature: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Supervised contrastive loss (SCL) of every exit.

    With z the L2-normalised embeddings and P(i) the other texts of i's class::

        mean_i -1/|P(i)| sum_{p in P(i)} log(
            exp(z_i . z_p / tau) / sum_{a != i} exp(z_i . z_a / tau))

    over the anchors i whose P(i) is not empty (Gunel et al. 2021; Khosla et al. 2020).

    Parameters
    ----------
    embeddings : Tensor of shape (M, B, D)
    labels : int64 Tensor of shape (B,)
    temperature : float
        tau, above 0.
    weight : Tensor of shape (B,), default=None
        Non-negative weight of each text as an anchor; None is the same as ones.

    Returns
    -------
    Tensor of shape (M,)
    """
    with _full_precision(embeddings):
        rows = _directions(embeddings)  # (M, B, D)
        weight = _text_weights(weight, rows, len(labels))
        return _contrast(rows, rows, labels, labels, 0, weight, temperature)


def acl_embed_loss(
    embeddings: Tensor,
    label_embeddings: Tensor,
    labels: Tensor,
    temperature: float,
    anchors: str = "all",
    weight: Tensor | None = None,
) -> Tensor:
    """Aligned contrastive loss with label embeddings (ACL-Embed) of every exit.

    SCL on the augmented batch of B + C rows in which the C label embeddings are extra
    samples of their own class. Gradients reach texts and label embeddings (Li & Zhu
    2026, arXiv 2602.03563; our reading of the published description).

    Parameters
    ----------
    embeddings : Tensor of shape (M, B, D)
    label_embeddings : Tensor of shape (M, C, D)
        Row c is the classifier's weight of class c.
    labels : int64 Tensor of shape (B,)
    temperature : float
        tau, above 0.
    anchors : {"all", "labels"}, default="all"
        With "all" every row is an anchor, so that each text has a positive; with
        "labels" only label embeddings are. A label embedding whose class has no text
        in the batch has no positive and is left out of the mean.
    weight : Tensor of shape (B,), default=None
        Non-negative weight of each text as an anchor; None is the same as ones.

    Returns
    -------
    Tensor of shape (M,)
    """
    with _full_precision(embeddings):
        rows = _augmented(embeddings, label_embeddings)  # (M, B + C, D)
        row_labels, first, weight = _augmented_anchors(labels, rows, anchors, weight)
        return _contrast(
            rows[:, first:],
            rows,
            row_labels[first:],
            row_labels,
            first,
            weight[first:],
            temperature,
        )


def acl_cl_loss(
    embeddings: Tensor,
    label_embeddings: Tensor,
    teacher_embeddings: Tensor,
    teacher_label_embeddings: Tensor,
    labels: Tensor,
    temperature: float,
    anchors: str = "all",
    weight: Tensor | None = None,
) -> Tensor:
    """Aligned contrastive loss against a deeper exit (ACL-CL) of every student exit.

    SCL on the augmented batch of 2 (B + C) rows ``{z, v, z_teacher, v_teacher}`` of
    normalised text and label embeddings. Only the student's rows are anchors; their
    positives are all other rows of their class, the teacher's included. The teacher is
    detached: gradients reach the student only (Li & Zhu 2026, arXiv 2602.03563; our
    reading of the published description).

    Parameters
    ----------
    embeddings : Tensor of shape (M, B, D)
        Of the students.
    label_embeddings : Tensor of shape (M, C, D)
        Of the students.
    teacher_embeddings : Tensor of shape (B, D)
    teacher_label_embeddings : Tensor of shape (C, D)
    labels : int64 Tensor of shape (B,)
    temperature : float
        tau, above 0.
    anchors : {"all", "labels"}, default="all"
        Which of the student's rows are anchors. Every one has a positive, since the
        teacher has a label embedding of each class.
    weight : Tensor of shape (B,), default=None
        Non-negative weight of each text as an anchor; None is the same as ones.

    Returns
    -------
    Tensor of shape (M,)
    """
    with _full_precision(embeddings):
        student = _augmented(embeddings, label_embeddings)  # (M, B + C, D)
        teacher = _augmented(
            teacher_embeddings.detach(), teacher_label_embeddings.detach()
        )
        rows = torch.cat([student, teacher.expand_as(student)], dim=1)
        row_labels, first, weight = _augmented_anchors(labels, student, anchors, weight)
        return _contrast(
            student[:, first:],
            rows,
            row_labels[first:],
            row_labels.repeat(2),
            first,
            weight[first:],
            temperature,
        )


def _contrast(
    anchors: Tensor,
    rows: Tensor,
    anchor_labels: Tensor,
    row_labels: Tensor,
    first: int,
    weight: Tensor,
    temperature: float,
) -> Tensor:
    """Weighted mean over anchors of -mean log-probability of the anchor's positives.

    anchors (M, A, D) and rows (M, K, D) are normalised, and ``anchors`` are the rows
    ``first .. first + A - 1``; weight (A,). Returns (M,).
    """
    n_anchors, n_rows = anchors.shape[1], rows.shape[1]
    if n_rows < 2:  # nothing to compare with
        return rows.sum(dim=(1, 2)) * 0.0
    similarity = anchors @ rows.transpose(1, 2) / temperature  # (M, A, K)
    own = torch.zeros(n_anchors, n_rows, dtype=torch.bool, device=rows.device)
    own.diagonal(first).fill_(True)
    positive = (anchor_labels[:, None] == row_labels) & ~own  # (A, K)
    n_positives = positive.sum(dim=1)
    share = positive.to(rows.dtype) / n_positives.clamp_min(1)[:, None]
    # -1/|P| sum_p (s_p - log sum_a exp s_a) = log sum_a exp s_a - mean_p s_p
    attraction = (similarity * share).sum(dim=2)  # (M, A)
    # masked before logsumexp looks for the maximum: at a small temperature the anchor's
    # similarity to itself would push all the others below the smallest float
    normaliser = similarity.masked_fill(own, -math.inf).logsumexp(dim=2)
    return _weighted_mean(normaliser - attraction, weight * (n_positives > 0))


def _augmented(embeddings: Tensor, label_embeddings: Tensor) -> Tensor:
    """Directions of texts and label embeddings as one batch: (..., B + C, D)."""
    return torch.cat([_directions(embeddings), _directions(label_embeddings)], dim=-2)


def _augmented_anchors(
    labels: Tensor, rows: Tensor, anchors: str, weight: Tensor | None
) -> tuple[Tensor, int, Tensor]:
    """Labels of the B + C rows, position of the first anchor, weights of the rows."""
    check_choice("anchors", anchors, ANCHORS)
    n_texts, n_classes = len(labels), rows.shape[1] - len(labels)
    classes = torch.arange(n_classes, device=labels.device)
    text_weights = _text_weights(weight, rows, n_texts)
    # label embeddings weigh 1, unless no text counts
    label_weights = (text_weights > 0).any().to(rows.dtype).expand(n_classes)
    return (
        torch.cat([labels, classes]),
        n_texts if anchors == "labels" else 0,
        torch.cat([text_weights, label_weights]),
    )


def _directions(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension; those without a direction are 0."""
    vectors = _at_least_float32(vectors)
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    unit = vectors / length.clamp_min(SHORTEST)
    return unit.masked_fill(length < SHORTEST, 0.0)


def _weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean over the last dimension; 0 with gradients of 0 if all weights are 0."""
    total = weight.sum()
    return (values * weight).sum(dim=-1) / torch.where(total > 0, total, 1.0)


def _text_weights(weight: Tensor | None, like: Tensor, n_texts: int) -> Tensor:
    if weight is None:
        return like.new_ones(n_texts)
    return weight.to(device=like.device, dtype=like.dtype)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _full_precision(tensor: Tensor) -> torch.autocast:
    return torch.autocast(tensor.device.type, enabled=False)


def check_choice(name, value, allowed):
    """Check a parameter of the criterion that has a few values.

    Parameters
    ----------
    name : str
        Without the prefix ``criterion__``.
    value : object
    allowed : tuple of str or None

    Raises
    ------
    ValueError
        Naming the parameter, its value and what is allowed.
    """
    # not `in`: arrays compare by element, and 0 == False
    if not (value is None or isinstance(value, str)) or value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise ValueError(f"criterion__{name}={value!r} must be one of {choices}.")
