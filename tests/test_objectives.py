"""What the estimator minimises: which settings are equal, and that each one learns.

Without dropout and with plain gradient descent ("steady") equal objectives give equal
weights up to rounding; where the same numbers are computed, they are equal to the bit
with dropout, too.
"""

import itertools

import numpy as np
import pytest
import torch
from sklearn.base import clone
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

X, Y = TEXTS[:24], LABELS[:24]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SETTINGS = {
    "head_init": "random",
    "lr": 1e-3,
    "max_epochs": 2,
    "batch_size": 8,
    "verbose": 0,
    "random_state": 0,
    "device": "cpu",
}
CHEAP_SCOPES = ["ffn_output", "exit_dense"]


@pytest.fixture(scope="module")
def make(tiny_backbone):
    backbone = tiny_backbone("bert", num_hidden_layers=2)
    return lambda **parameters: ACLClassifier(backbone, **(SETTINGS | parameters))


@pytest.fixture(scope="module")
def steady(tiny_backbone):
    backbone = tiny_backbone("bert", num_hidden_layers=2, **NO_DROPOUT)
    settings = SETTINGS | {
        "module__dropout": 0.0,
        "optimizer": torch.optim.SGD,
        "lr": 0.05,
    }
    return lambda **parameters: ACLClassifier(backbone, **(settings | parameters))


@pytest.fixture(scope="module")
def ungated(make):
    return make(angle_threshold=None).fit(X, Y)


@pytest.fixture(scope="module")
def cross_entropy(make):
    return make(criterion__contrastive=None).fit(X, Y)


def assert_same_weights(a, b, **tolerance):
    """Equal to the bit, or within a tolerance."""
    expected = b.module_.state_dict()
    for name, tensor in a.module_.state_dict().items():
        if tolerance:
            torch.testing.assert_close(tensor, expected[name], **tolerance)
        else:
            assert torch.equal(tensor, expected[name]), name


def differ(a, b):
    expected = b.module_.state_dict()
    states = a.module_.state_dict().items()
    return any(not torch.equal(tensor, expected[name]) for name, tensor in states)


# -- the share of the contrastive term -------------------------------------------------


@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl"])
def test_lam_of_zero_is_cross_entropy(make, cross_entropy, contrastive):
    zero = make(criterion__contrastive=contrastive, criterion__lam=0.0).fit(X, Y)
    assert_same_weights(zero, cross_entropy)


def test_every_objective_trains_another_model(make):
    objectives = [
        {"criterion__contrastive": "acl_cl"},
        {"criterion__contrastive": "acl_cl", "criterion__anchors": "labels"},
        {"criterion__contrastive": "acl_cl", "criterion__distill": "add"},
        {"criterion__contrastive": "acl_embed"},
        {"criterion__contrastive": "acl_embed", "criterion__anchors": "labels"},
        {"criterion__contrastive": "scl"},
        {"criterion__contrastive": "scl", "criterion__temperature": 0.1},
        {"criterion__contrastive": "scl", "criterion__lam": 0.1},
        {"criterion__contrastive": None},
        {"criterion__contrastive": None, "criterion__exit_weights": "linear"},
    ]
    settings = {"angle_threshold": None, "max_epochs": 1}
    fitted = [make(**settings, **objective).fit(X, Y) for objective in objectives]
    for a, b in itertools.combinations(fitted, 2):
        assert differ(a, b), (a, b)


def test_anchors_do_not_matter_for_scl_nor_anything_for_cross_entropy(
    make, cross_entropy
):
    scl = [
        make(criterion__contrastive="scl", criterion__anchors=anchors).fit(X, Y)
        for anchors in ("all", "labels")
    ]
    assert_same_weights(*scl)
    other = {"criterion__anchors": "labels", "criterion__temperature": 9.0}
    plain = make(criterion__contrastive=None, criterion__lam=1.0, **other).fit(X, Y)
    assert_same_weights(plain, cross_entropy)


# -- one exit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one_exit", [{"strategy": "final"}, {"n_layers": 1}], ids=["final", "one layer"]
)
def test_with_one_exit_nothing_is_distilled(make, one_exit):
    embed = make(criterion__contrastive="acl_embed", **one_exit).fit(X, Y)
    for distill in ("replace", "add"):
        cl = make(
            criterion__contrastive="acl_cl", criterion__distill=distill, **one_exit
        ).fit(X, Y)
        assert_same_weights(cl, embed)


def test_exit_weights_of_one_exit_are_equal(make):
    uniform = make(strategy="final").fit(X, Y)
    linear = make(strategy="final", criterion__exit_weights="linear").fit(X, Y)
    assert_same_weights(linear, uniform)


def test_linear_exit_weights_favour_the_last_exit(steady):
    # without a shared layer below, the heads of a frozen encoder learn separately: a
    # step of plain gradient descent is proportional to the weight of the exit
    def head_changes(exit_weights):
        settings = {
            "criterion__contrastive": None,
            "criterion__exit_weights": exit_weights,
            "max_epochs": 1,
            "batch_size": len(X),
            "max_grad_norm": None,
            "lr_schedule": "constant",
        }
        start = steady(**settings | {"lr": 1e-30}).fit(X, Y).module_.heads
        end = steady(**settings).fit(X, Y).module_.heads
        pairs = zip(start, end, strict=True)
        return [b.classifier.weight - a.classifier.weight for a, b in pairs]

    uniform, linear = head_changes("uniform"), head_changes("linear")
    for change, reference, factor in zip(linear, uniform, (2 / 3, 4 / 3), strict=True):
        assert reference.abs().max() > 1e-4
        torch.testing.assert_close(change, factor * reference, rtol=1e-3, atol=1e-7)


# -- the gate --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", CHEAP_SCOPES)
def test_no_angle_exceeds_180_degrees(make, ungated, scope):
    never = make(angle_threshold=180, gate_scope=scope).fit(X, Y)
    assert_same_weights(never, ungated)


@pytest.mark.parametrize("scope", CHEAP_SCOPES)
def test_a_gate_that_always_shuts_leaves_cross_entropy(make, cross_entropy, scope):
    always = make(angle_threshold=0, gate_scope=scope).fit(X, Y)
    assert np.isfinite(always.angles_).all()
    assert always.history[:, "gated_share"] == [1.0, 1.0]
    assert_same_weights(always, cross_entropy)


@pytest.mark.parametrize("steps", [1, 2], ids=["whole", "accumulated"])
def test_the_gate_on_the_whole_encoder(steady, steps):
    # it adds two gradients where the others take one of the sum
    settings = {"batch_size": 8 // steps, "gradient_accumulation_steps": steps}
    close = {"rtol": 1e-5, "atol": 1e-6}
    never = steady(angle_threshold=180, gate_scope="encoder", **settings).fit(X, Y)
    assert_same_weights(
        never, steady(angle_threshold=None, **settings).fit(X, Y), **close
    )
    always = steady(angle_threshold=0, gate_scope="encoder", **settings).fit(X, Y)
    plain = steady(criterion__contrastive=None, **settings).fit(X, Y)
    assert_same_weights(always, plain, **close)


def test_the_gate_on_the_whole_encoder_draws_the_same_dropout(make, ungated):
    # so that the first losses agree; Adam's steps need not where gradients are noise
    never = make(angle_threshold=180, gate_scope="encoder").fit(X, Y)
    first = never.history[0, "batches", 0, "train_loss"]
    assert first == pytest.approx(ungated.history[0, "batches", 0, "train_loss"])
    np.testing.assert_allclose(
        never.history[:, "train_loss"], ungated.history[:, "train_loss"], rtol=1e-3
    )


@pytest.mark.parametrize("scope", ["encoder", *CHEAP_SCOPES])
def test_the_gate_decides_batch_by_batch(make, scope):
    # steps this small leave the weights, and so the angles, as they are
    settings = {"gate_scope": scope, "lr": 1e-30}
    angles = make(angle_threshold=180, **settings).fit(X, Y).angles_
    threshold = float(np.median(angles))
    some = make(angle_threshold=threshold, **settings).fit(X, Y)
    np.testing.assert_array_equal(some.angles_, angles)
    by_epoch = angles.reshape(2, 3)
    gated = some.history[:, "gated_share"]
    np.testing.assert_allclose(gated, (by_epoch > threshold).mean(axis=1))
    assert sum(gated) == pytest.approx(1)  # half of the batches
    means = some.history[:, "angle_mean"]
    np.testing.assert_allclose(means, by_epoch.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("scope", ["encoder", *CHEAP_SCOPES])
@pytest.mark.parametrize("steps", [1, 2])
def test_one_angle_per_step(make, scope, steps):
    settings = {"batch_size": 5, "gradient_accumulation_steps": steps}
    classifier = make(gate_scope=scope, **settings).fit(X, Y)
    n_steps = 2 * -(-len(X) // (5 * steps))
    assert classifier.angles_.shape == (n_steps,)
    assert classifier.angles_.dtype == np.float32
    assert ((classifier.angles_ > 0) & (classifier.angles_ < 180)).all()
    for epoch in classifier.history:
        assert 0 < epoch["angle_mean"] < 180
        assert 0 <= epoch["gated_share"] <= 1
        assert "angle_undefined" not in epoch


def test_scopes_measure_different_angles(make):
    angles = [
        make(gate_scope=scope, max_epochs=1).fit(X, Y).angles_[0]
        for scope in ("encoder", *CHEAP_SCOPES)
    ]
    for a, b in itertools.combinations(angles, 2):
        assert abs(a - b) > 0.1


@pytest.mark.parametrize(
    "off",
    [
        {"angle_threshold": None},
        {"criterion__contrastive": None},
        {"criterion__lam": 0},
    ],
    ids=["no gate", "no contrast", "no share"],
)
def test_without_a_gate_there_is_no_angle(make, off):
    classifier = make(**off).fit(X, Y)
    for epoch in classifier.history:
        assert not {"angle_mean", "gated_share", "angle_undefined"} & set(epoch)
    assert classifier.angles_.shape == (6,)
    assert classifier.angles_.dtype == np.float32
    assert np.isnan(classifier.angles_).all()


def test_steps_without_an_angle_are_counted(make):
    # no two texts of a class: SCL is zero, and so is its gradient
    classifier = make(criterion__contrastive="scl", batch_size=1, max_epochs=1)
    classifier.fit(X[:3], Y[:3])
    assert np.isnan(classifier.angles_).all()
    assert classifier.history[-1, "angle_undefined"] == 3
    assert np.isnan(classifier.history[-1, "angle_mean"])
    assert classifier.history[-1, "gated_share"] == 0


def test_angles_belong_to_the_latest_fit(make, cross_entropy):
    classifier = make().fit(X, Y)
    first = classifier.angles_
    classifier.set_params(max_epochs=1).fit(X, Y)
    assert classifier.angles_.shape == (3,)
    assert first.shape == (6,)
    assert clone(classifier).fit(X, Y).angles_.shape == (3,)


# -- every combination learns ----------------------------------------------------------

OBJECTIVES = [
    ("acl_cl", "all"),
    ("acl_cl", "labels"),
    ("acl_embed", "all"),
    ("acl_embed", "labels"),
    ("scl", "all"),
    (None, "all"),
]


@pytest.mark.parametrize("strategy", ["joint", "final"])
@pytest.mark.parametrize("head_init", ["centroid", "lda", "linear_probe", "random"])
@pytest.mark.parametrize(("contrastive", "anchors"), OBJECTIVES)
def test_training_lowers_its_loss(
    tiny_backbone, contrastive, anchors, head_init, strategy
):
    # full batches, small steps, no dropout, no gate: the loss of an epoch is that of
    # the same texts, one step later
    settings = SETTINGS | {
        "criterion__contrastive": contrastive,
        "criterion__anchors": anchors,
        "head_init": head_init,
        "strategy": strategy,
        "lr": 2e-5,
        "max_epochs": 4,
        "batch_size": len(X),
        "module__dropout": 0.0,
        "angle_threshold": None,
        "warmup": 0.0,
    }
    backbone = tiny_backbone("bert", num_hidden_layers=2, **NO_DROPOUT)
    classifier = ACLClassifier(backbone, **settings).fit(X, Y)
    losses = classifier.history[:, "train_loss"]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))


@pytest.mark.parametrize("contrastive", ["acl_cl", None])
def test_training_finds_the_classes(make, contrastive):
    classifier = make(
        criterion__contrastive=contrastive, head_init="lda", max_epochs=12
    ).fit(X, Y)
    assert classifier.score(X, Y) > 0.8


# -- gradient accumulation -------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [8, 4, 5, 1])
def test_micro_batches_add_up_for_cross_entropy(steady, weighted, size):
    # 24 texts in steps of 16: the last one is not full
    weight = np.linspace(0, 3, len(X)) if weighted else None
    settings = {"criterion__contrastive": None, "max_epochs": 2}
    whole = steady(**settings, batch_size=16).fit(X, Y, sample_weight=weight)
    steps = -(-16 // size)
    if size == 5:  # 15 + 9: another step size, so another reference
        whole = steady(**settings, batch_size=15).fit(X, Y, sample_weight=weight)
        steps = 3
    parts = steady(**settings, batch_size=size, gradient_accumulation_steps=steps)
    parts.fit(X, Y, sample_weight=weight)
    assert len(parts.angles_) == len(whole.angles_) == 4
    assert_same_weights(parts, whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        parts.history[:, "train_loss"], whole.history[:, "train_loss"], rtol=1e-5
    )


@pytest.mark.parametrize("scope", ["encoder", *CHEAP_SCOPES])
def test_micro_batches_with_a_gate_train(make, scope):
    settings = {"batch_size": 4, "gradient_accumulation_steps": 3, "max_epochs": 6}
    classifier = make(gate_scope=scope, head_init="lda", **settings).fit(X, Y)
    losses = classifier.history[:, "train_loss"]
    assert np.isfinite(losses).all()
    assert len(classifier.angles_) == 12


# -- mixed precision -------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["encoder", *CHEAP_SCOPES])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains(make, precision, scope):
    settings = {"gate_scope": scope, "head_init": "lda", "lr": 1e-4}
    start, single, mixed = (
        make(**settings | changes).fit(X, Y)
        for changes in (
            {"lr": 1e-30},
            {"mixed_precision": None},
            {"mixed_precision": precision},
        )
    )
    assert differ(mixed, single)
    assert differ(mixed, start)
    assert np.isfinite(mixed.history[:, "train_loss"]).all()
    assert all(torch.isfinite(p).all() for p in mixed.module_.parameters())
    assert all(p.dtype == torch.float32 for p in mixed.module_.parameters())
    first = mixed.history[0, "batches", 0, "train_loss"]
    expected = single.history[0, "batches", 0, "train_loss"]
    assert first == pytest.approx(expected, rel=0.02)
    if precision == "bf16":  # fp16 overflows at first, until its loss scale is found
        assert mixed.angles_[0] == pytest.approx(single.angles_[0], abs=3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_predictions_are_in_single_precision(make, precision):
    mixed = make(mixed_precision=precision, max_epochs=1).fit(X, Y)
    expected = mixed.decision_function(X)
    assert expected.dtype == np.float32
    mixed.set_params(mixed_precision=None)
    np.testing.assert_array_equal(mixed.decision_function(X), expected)
    assert mixed.forward(X).dtype == torch.float32
    assert mixed.transform(X).dtype == np.float32


def test_on_a_cpu_auto_is_single_precision(make, ungated):
    plain = make(angle_threshold=None, mixed_precision=None).fit(X, Y)
    assert_same_weights(plain, ungated)
