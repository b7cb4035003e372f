"""Losses against double-loop references in float64, and the laws they promise."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sklearn_acl.criterion import ACLLoss, LossTerms
from sklearn_acl.losses import (
    acl_cl_loss,
    acl_embed_loss,
    cross_entropy,
    scl_loss,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On tiny tensors, threads would mostly wait for each other."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


class Outputs(NamedTuple):
    logits: torch.Tensor
    embeddings: torch.Tensor
    label_embeddings: torch.Tensor


def make_outputs(n_exits=3, n_texts=7, n_classes=4, n_dims=5, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (scale * values).requires_grad_()

    return Outputs(
        draw(n_exits, n_texts, n_classes),
        draw(n_exits, n_texts, n_dims),
        draw(n_exits, n_classes, n_dims),
    )


# class 3 has no text, class 2 a single one
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 1])
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 3.0, 0.0, 1.5, 0.25], dtype=torch.float64)


# --- references: one anchor and one positive at a time -------------------------------


def unit(vector):
    return np.asarray(vector) / np.linalg.norm(vector)


def reference_contrast(rows, row_labels, anchors, weights, temperature):
    """Weighted mean of the anchors' losses; `anchors` are positions in `rows`."""
    rows = [unit(row) for row in rows]
    total = total_weight = 0.0
    for anchor, weight in zip(anchors, weights, strict=True):
        others = [k for k in range(len(rows)) if k != anchor]
        positives = [k for k in others if row_labels[k] == row_labels[anchor]]
        if not positives:
            continue
        denominator = sum(
            math.exp(rows[anchor] @ rows[k] / temperature) for k in others
        )
        loss = 0.0
        for k in positives:
            share = math.exp(rows[anchor] @ rows[k] / temperature) / denominator
            loss -= math.log(share) / len(positives)
        total += weight * loss
        total_weight += weight
    return total / total_weight if total_weight else 0.0


def reference_scl(outputs, labels, temperature, weight):
    return [
        reference_contrast(rows, labels, range(len(labels)), weight, temperature)
        for rows in outputs.embeddings.detach().numpy()
    ]


def augmented(outputs, m, labels):
    texts = outputs.embeddings[m].detach().numpy()
    classes = outputs.label_embeddings[m].detach().numpy()
    return [*texts, *classes], [*labels, *range(len(classes))]


def augmented_anchors(n_rows, weight, anchors):
    weights = [*weight, *[1.0] * (n_rows - len(weight))]
    first = len(weight) if anchors == "labels" else 0
    return range(first, n_rows), weights[first:]


def reference_embed(outputs, labels, temperature, anchors, weight):
    losses = []
    for m in range(len(outputs.embeddings)):
        rows, row_labels = augmented(outputs, m, labels)
        chosen = augmented_anchors(len(rows), weight, anchors)
        losses.append(reference_contrast(rows, row_labels, *chosen, temperature))
    return losses


def reference_cl(outputs, labels, temperature, anchors, weight):
    teacher, _ = augmented(outputs, -1, labels)
    losses = []
    for m in range(len(outputs.embeddings) - 1):
        rows, row_labels = augmented(outputs, m, labels)
        chosen = augmented_anchors(len(rows), weight, anchors)
        losses.append(
            reference_contrast(rows + teacher, row_labels * 2, *chosen, temperature)
        )
    return losses


def reference_criterion(outputs, labels, weight, contrastive, anchors, distill):
    """Contrastive term of every exit, temperature 0.3."""
    if contrastive == "scl":
        return reference_scl(outputs, labels, 0.3, weight)
    own = reference_embed(outputs, labels, 0.3, anchors, weight)
    if contrastive == "acl_embed":
        return own
    distilled = reference_cl(outputs, labels, 0.3, anchors, weight)
    if distill == "add":
        distilled = [(a + b) / 2 for a, b in zip(own, distilled, strict=False)]
    return [*distilled, own[-1]]


def cl_of(outputs, labels, temperature, anchors="all", weight=None):
    """ACL-CL with the last exit as the teacher."""
    return acl_cl_loss(
        outputs.embeddings[:-1],
        outputs.label_embeddings[:-1],
        outputs.embeddings[-1],
        outputs.label_embeddings[-1],
        labels,
        temperature,
        anchors,
        weight,
    )


def embed_of(outputs, labels, temperature, anchors="all", weight=None):
    return acl_embed_loss(
        outputs.embeddings,
        outputs.label_embeddings,
        labels,
        temperature,
        anchors,
        weight,
    )


def scl_of(outputs, labels, temperature, anchors="all", weight=None):
    return scl_loss(outputs.embeddings, labels, temperature, weight)


def cross_entropy_of(outputs, labels, temperature, anchors="all", weight=None):
    return cross_entropy(outputs.logits, labels, weight)


EVERY_LOSS = [
    pytest.param(cross_entropy_of, "all", id="cross_entropy"),
    pytest.param(scl_of, "all", id="scl"),
    pytest.param(embed_of, "all", id="acl_embed-all"),
    pytest.param(embed_of, "labels", id="acl_embed-labels"),
    pytest.param(cl_of, "all", id="acl_cl-all"),
    pytest.param(cl_of, "labels", id="acl_cl-labels"),
]


def gradients(loss, outputs):
    """Gradients with respect to the outputs; zeros where there is no path."""
    return torch.autograd.grad(
        loss.sum(), outputs, allow_unused=True, materialize_grads=True
    )


def assert_equals_reference(actual, expected):
    torch.testing.assert_close(
        actual.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0
    )


# --- values --------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("n_exits", [1, 2, 3])
def test_cross_entropy_equals_a_loop_over_texts(n_exits, weight):
    logits = make_outputs(n_exits).logits
    w = np.ones(len(LABELS)) if weight is None else weight.numpy()
    expected = []
    for scores in logits.detach().numpy():
        terms = [
            -math.log(math.exp(row[y]) / sum(map(math.exp, row)))
            for row, y in zip(scores, LABELS.tolist(), strict=True)
        ]
        expected.append(np.dot(terms, w) / w.sum())
    assert_equals_reference(cross_entropy(logits, LABELS, weight), expected)


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("n_exits", [1, 2, 3])
def test_scl_equals_a_double_loop(n_exits, temperature, weight):
    outputs = make_outputs(n_exits)
    w = [1.0] * len(LABELS) if weight is None else weight.tolist()
    expected = reference_scl(outputs, LABELS.tolist(), temperature, w)
    assert_equals_reference(scl_of(outputs, LABELS, temperature, "", weight), expected)


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("temperature", [0.05, 0.3])
@pytest.mark.parametrize("anchors", ["all", "labels"])
@pytest.mark.parametrize("n_exits", [1, 2, 3])
def test_acl_embed_equals_a_double_loop(n_exits, anchors, temperature, weight):
    outputs = make_outputs(n_exits)
    w = [1.0] * len(LABELS) if weight is None else weight.tolist()
    expected = reference_embed(outputs, LABELS.tolist(), temperature, anchors, w)
    actual = embed_of(outputs, LABELS, temperature, anchors, weight)
    assert_equals_reference(actual, expected)


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("temperature", [0.05, 0.3])
@pytest.mark.parametrize("anchors", ["all", "labels"])
@pytest.mark.parametrize("n_exits", [2, 3])
def test_acl_cl_equals_a_double_loop(n_exits, anchors, temperature, weight):
    outputs = make_outputs(n_exits)
    w = [1.0] * len(LABELS) if weight is None else weight.tolist()
    expected = reference_cl(outputs, LABELS.tolist(), temperature, anchors, w)
    actual = cl_of(outputs, LABELS, temperature, anchors, weight)
    assert_equals_reference(actual, expected)


@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_gradients_are_those_of_the_formula(loss, anchors):
    """Numerical differentiation, of everything that gradients may reach."""
    outputs = make_outputs(2, 4, 3, 3)
    labels, weight = torch.tensor([0, 1, 0, 0]), torch.tensor([1.0, 2.0, 0.5, 1.0])

    if loss is cl_of:  # the teacher is held fixed, which differentiation cannot know
        teacher = [each[-1].detach().clone() for each in outputs[1:]]

        def function(*tensors):
            return acl_cl_loss(*tensors[1:], *teacher, labels, 0.5, anchors, weight)
    else:

        def function(*tensors):
            return loss(Outputs(*tensors), labels, 0.5, anchors, weight)

    assert torch.autograd.gradcheck(function, tuple(outputs))


# --- gradients flow where they should ------------------------------------------------


@pytest.mark.parametrize("anchors", ["all", "labels"])
def test_acl_cl_leaves_the_teacher_alone(anchors):
    outputs = make_outputs(3)
    _, texts, classes = gradients(cl_of(outputs, LABELS, 0.3, anchors), outputs)
    assert not texts[-1].any()
    assert not classes[-1].any()
    assert texts[:-1].abs().sum(-1).min() > 0
    assert classes[:-1].abs().sum(-1).min() > 0


@pytest.mark.parametrize("anchors", ["all", "labels"])
def test_acl_embed_moves_texts_and_label_embeddings(anchors):
    outputs = make_outputs(2)
    _, texts, classes = gradients(embed_of(outputs, LABELS, 0.3, anchors), outputs)
    assert texts.abs().sum(-1).min() > 0
    assert classes[:, :3].abs().sum(-1).min() > 0


def test_an_exit_loss_depends_on_no_other_exit():
    """Except ACL-CL on its teacher, through which no gradient flows."""
    outputs = make_outputs(3)
    for m in range(3):
        term = ACLLoss("acl_cl").terms(outputs, LABELS).contrastive[m]
        _, texts, classes = gradients(term, outputs)
        for tensor in (texts, classes):
            reached = tensor.abs().sum((1, 2)) > 0
            assert reached.tolist() == [k == m for k in range(3)]


# --- weights -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_weights_of_one_give_the_same_bits_as_none(loss, anchors, dtype):
    outputs = make_outputs()
    outputs = Outputs(*(t.detach().to(dtype).requires_grad_() for t in outputs))
    plain = loss(outputs, LABELS, 0.3, anchors)
    ones = loss(outputs, LABELS, 0.3, anchors, torch.ones(7, dtype=torch.float64))
    assert torch.equal(plain, ones)
    for a, b in zip(gradients(plain, outputs), gradients(ones, outputs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_a_batch_without_weight_gives_a_connected_zero(loss, anchors):
    outputs = make_outputs()
    value = loss(outputs, LABELS, 0.3, anchors, torch.zeros(7))
    assert value.requires_grad
    assert not value.any()
    for gradient in gradients(value, outputs):
        assert not gradient.any()


def test_only_label_anchors_have_a_weight_of_their_own():
    """Weights of texts are relative: in SCL, doubling them all changes nothing."""
    outputs = make_outputs()
    torch.testing.assert_close(
        scl_of(outputs, LABELS, 0.3, weight=2 * WEIGHTS),
        scl_of(outputs, LABELS, 0.3, weight=WEIGHTS),
    )
    # with ACL-Embed, label embeddings keep their weight of 1
    assert not torch.allclose(
        embed_of(outputs, LABELS, 0.3, weight=2 * WEIGHTS),
        embed_of(outputs, LABELS, 0.3, weight=WEIGHTS),
    )
    torch.testing.assert_close(
        embed_of(outputs, LABELS, 0.3, "labels", weight=2 * WEIGHTS),
        embed_of(outputs, LABELS, 0.3, "labels"),
    )


# --- degenerate batches and numbers --------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.01, 0.3])
@pytest.mark.parametrize(
    "labels",
    [[0], [2], [0, 1, 2, 3], [1, 1, 1, 1, 1]],
    ids=["one text", "one text, last class", "no two alike", "one class"],
)
@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_degenerate_batches_are_finite(loss, anchors, labels, temperature, dtype):
    outputs = make_outputs(n_texts=len(labels), scale=30.0)
    outputs = Outputs(*(t.detach().to(dtype).requires_grad_() for t in outputs))
    value = loss(outputs, torch.tensor(labels), temperature, anchors)
    assert value.dtype == torch.float32
    assert value.requires_grad
    assert value.isfinite().all()
    assert (value >= 0).all()
    for gradient in gradients(value, outputs):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[0], [0, 1, 2, 3]], ids=["one text", "no pair"])
def test_scl_without_any_positive_is_a_connected_zero(labels):
    outputs = make_outputs(n_texts=len(labels))
    value = scl_of(outputs, torch.tensor(labels), 0.3)
    assert value.shape == (3,)
    assert value.requires_grad
    assert not value.any()
    assert not gradients(value, outputs)[1].any()


def test_a_class_without_texts_has_a_positive_in_the_teacher_only():
    """Class 3: the label embedding of a student is pulled to the teacher's."""
    outputs = make_outputs(2)
    values = []
    for direction in (1.0, -1.0):
        with torch.no_grad():
            outputs.label_embeddings[0, 3] = direction * outputs.label_embeddings[1, 3]
        values.append(cl_of(outputs, LABELS, 0.3, "labels").item())
    assert values[0] < values[1]
    # ACL-Embed on texts of a single class: one anchor counts, the others only repel
    only = torch.zeros(7, dtype=torch.int64)
    expected = reference_embed(outputs, only.tolist(), 0.3, "labels", [1.0] * 7)
    assert_equals_reference(embed_of(outputs, only, 0.3, "labels"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS[1:])
def test_vectors_without_a_direction_are_finite_and_get_no_gradient(
    loss, anchors, dtype
):
    outputs = make_outputs()
    with torch.no_grad():
        outputs.embeddings[0, 2] = 0
        outputs.label_embeddings[0, 1] = 0
    outputs = Outputs(*(t.detach().to(dtype).requires_grad_() for t in outputs))
    value = loss(outputs, LABELS, 0.01, anchors)
    assert value.isfinite().all()
    _, texts, classes = gradients(value, outputs)
    assert texts.isfinite().all()
    assert classes.isfinite().all()
    assert not texts[0, 2].any()
    assert not classes[0, 1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_half_precision_is_only_that_of_the_inputs(loss, anchors, dtype):
    """Under autocast, too: the arithmetic is that of float32."""
    rounded = [t.detach().to(dtype) for t in make_outputs(scale=3.0)]
    exact = loss(Outputs(*(t.double() for t in rounded)), LABELS, 0.05, anchors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(Outputs(*rounded), LABELS, 0.05, anchors)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS[1:])
def test_contrastive_losses_ignore_the_length_of_vectors(loss, anchors):
    outputs = make_outputs()
    longer = outputs._replace(
        embeddings=outputs.embeddings * 17,
        label_embeddings=outputs.label_embeddings / 9,
    )
    torch.testing.assert_close(
        loss(longer, LABELS, 0.3, anchors), loss(outputs, LABELS, 0.3, anchors)
    )


@pytest.mark.parametrize(("loss", "anchors"), EVERY_LOSS)
def test_losses_ignore_the_order_of_texts(loss, anchors):
    outputs, order = make_outputs(), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    shuffled = outputs._replace(
        logits=outputs.logits[:, order], embeddings=outputs.embeddings[:, order]
    )
    torch.testing.assert_close(
        loss(shuffled, LABELS[order], 0.3, anchors, WEIGHTS[order]),
        loss(outputs, LABELS, 0.3, anchors, WEIGHTS),
    )


def test_losses_of_perfectly_separated_classes_are_small():
    axes = torch.eye(4)[None]  # (1, C, D)
    outputs = Outputs(20 * axes[:, LABELS], axes[:, LABELS], axes)
    assert cross_entropy(outputs.logits, LABELS).item() < 1e-6
    # every positive is at cosine 1, so the loss is the log of their number at most
    for labels_only in ("all", "labels"):
        value = embed_of(outputs, LABELS, 0.05, labels_only).item()
        assert 0 <= value <= math.log(3) + 1e-4


# --- the criterion -------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("distill", ["replace", "add"])
@pytest.mark.parametrize("anchors", ["all", "labels"])
@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl"])
@pytest.mark.parametrize("n_exits", [1, 2, 3])
def test_terms_of_every_setting(n_exits, contrastive, anchors, distill, weight):
    outputs = make_outputs(n_exits)
    criterion = ACLLoss(contrastive, anchors=anchors, distill=distill)
    terms = criterion.terms(outputs, LABELS, weight)
    w = [1.0] * 7 if weight is None else weight.tolist()
    expected = reference_criterion(
        outputs, LABELS.tolist(), w, contrastive, anchors, distill
    )
    assert_equals_reference(terms.contrastive, expected)
    assert torch.equal(
        terms.cross_entropy, cross_entropy(outputs.logits, LABELS, weight)
    )


@pytest.mark.parametrize(
    ("exit_weights", "shares"),
    [("uniform", [1 / 3, 1 / 3, 1 / 3]), ("linear", [1 / 6, 2 / 6, 3 / 6])],
)
@pytest.mark.parametrize("lam", [0.25, 1, 1.0])
def test_combine_is_the_weighted_mean_over_exits(lam, exit_weights, shares):
    criterion = ACLLoss(lam=lam, exit_weights=exit_weights)
    ce, contrastive = [1.0, 2.0, 4.0], [8.0, 16.0, 32.0]
    terms = LossTerms(torch.tensor(ce), torch.tensor(contrastive))
    both = [(1 - lam) * a + lam * b for a, b in zip(ce, contrastive, strict=True)]
    assert criterion.combine(terms).item() == pytest.approx(np.dot(shares, both))
    assert criterion.average(terms.cross_entropy).item() == pytest.approx(
        np.dot(shares, ce)
    )
    assert torch.equal(
        criterion.combine(terms, gated=True), criterion.average(terms.cross_entropy)
    )


@pytest.mark.parametrize("exit_weights", ["uniform", "linear"])
def test_forward_combines_the_terms(exit_weights):
    criterion, outputs = ACLLoss(exit_weights=exit_weights), make_outputs()
    terms = criterion.terms(outputs, LABELS, WEIGHTS)
    assert torch.equal(criterion(outputs, LABELS, WEIGHTS), criterion.combine(terms))
    assert torch.equal(
        criterion(outputs, LABELS), criterion(outputs, LABELS, torch.ones(7))
    )


@pytest.mark.parametrize("exit_weights", ["uniform", "linear"])
@pytest.mark.parametrize(
    "criterion",
    [{"lam": 0}, {"lam": 0.0, "contrastive": "scl"}, {"contrastive": None}],
)
def test_without_a_contrastive_term_the_loss_is_cross_entropy(criterion, exit_weights):
    """To the bit, gradients included, and embeddings are not even looked at."""
    outputs = make_outputs()
    criterion = ACLLoss(**criterion, exit_weights=exit_weights)
    assert not criterion.has_contrastive
    terms = criterion.terms(outputs._replace(embeddings=None), LABELS, WEIGHTS)
    assert terms.contrastive is None
    loss = criterion(outputs, LABELS, WEIGHTS)
    expected = criterion.average(cross_entropy(outputs.logits, LABELS, WEIGHTS))
    assert torch.equal(loss, expected)
    for a, b in zip(
        gradients(loss, outputs), gradients(expected, outputs), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize("distill", ["replace", "add"])
@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl", None])
def test_a_criterion_says_whether_its_last_exit_teaches_others(
    contrastive, distill, lam
):
    criterion = ACLLoss(contrastive=contrastive, lam=lam, distill=distill)
    outputs, others = make_outputs(), make_outputs(seed=1)
    mixed = Outputs(
        *(torch.cat([a[:-1], b[-1:]]) for a, b in zip(outputs, others, strict=True))
    )
    first = criterion.terms(outputs, LABELS, WEIGHTS)
    second = criterion.terms(mixed, LABELS, WEIGHTS)
    assert torch.equal(first.cross_entropy[:-1], second.cross_entropy[:-1])
    taught = first.contrastive is not None and not torch.equal(
        first.contrastive[:-1], second.contrastive[:-1]
    )
    assert criterion.has_teacher is taught


def test_unweighted_cross_entropy_is_that_of_torch():
    logits = make_outputs(1).logits
    torch.testing.assert_close(
        ACLLoss(None)(Outputs(logits, None, None), LABELS),
        F.cross_entropy(logits[0], LABELS),
    )


@pytest.mark.parametrize(
    ("parameter", "value", "error", "message"),
    [
        ("lam", 1.5, ValueError, r"criterion__lam=1\.5 must be in \[0, 1\]"),
        ("lam", -0.1, ValueError, r"criterion__lam=-0\.1 must be in \[0, 1\]"),
        ("lam", math.nan, ValueError, "criterion__lam=nan"),
        ("lam", True, TypeError, "criterion__lam=True must be a number"),
        ("lam", "0.5", TypeError, r"criterion__lam='0\.5' must be a number.*not str"),
        ("lam", None, TypeError, "criterion__lam=None"),
        ("temperature", 0, ValueError, "criterion__temperature=0 must be above 0"),
        ("temperature", math.inf, ValueError, "criterion__temperature=inf"),
        ("temperature", np.ones(1), TypeError, "criterion__temperature="),
        ("contrastive", "ACL", ValueError, "criterion__contrastive='ACL' .*'acl_cl'"),
        ("contrastive", False, ValueError, "criterion__contrastive=False"),
        ("anchors", "texts", ValueError, "criterion__anchors='texts' .*'labels'"),
        ("anchors", None, ValueError, "criterion__anchors=None"),
        ("distill", "mean", ValueError, "criterion__distill='mean' .*'add'"),
        ("exit_weights", [1, 2], ValueError, "criterion__exit_weights=.*'linear'"),
    ],
)
def test_bad_parameters_are_named(parameter, value, error, message):
    criterion = ACLLoss(**{parameter: value})  # the constructor only stores
    with pytest.raises(error, match=message):
        criterion.check()
    with pytest.raises(error, match=message):
        criterion(make_outputs(), LABELS)


@pytest.mark.parametrize("lam", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_numbers_of_any_kind_are_accepted(lam):
    criterion = ACLLoss(lam=lam)
    criterion.check()
    assert criterion(make_outputs(), LABELS).isfinite()


@pytest.mark.parametrize("loss", [embed_of, cl_of])
def test_functions_reject_unknown_anchors(loss):
    with pytest.raises(
        ValueError, match="anchors='text' must be one of 'all', 'labels'"
    ):
        loss(make_outputs(), LABELS, 0.3, "text")
