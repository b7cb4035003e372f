"""Laws of prediction: what a text gets depends on that text, its exit and the weights.

Tolerances: 1e-5 for probabilities where batches differ in shape, since single
precision then sums in another order; none where the same numbers are computed.
"""

import copy
import threading

import numpy as np
import pytest
import torch
from tiny import FAMILIES, LABELS, TEXTS

from sklearn_acl import ACLClassifier
from sklearn_acl.inference import iterate_outputs
from sklearn_acl.shared_weights import sharing_weights

X, Y = TEXTS[:12], LABELS[:12]
PAIRS = list(zip(X, X[::-1], strict=True))
LONG = " ".join(TEXTS[:8])  # fills the 64 tokens a tiny encoder reads
SETTINGS = {
    "head_init": "centroid",
    "lr": 1e-3,
    "max_epochs": 1,
    "batch_size": 6,
    "verbose": 0,
    "random_state": 0,
    "device": "cpu",
}


def variant(classifier, **parameters):
    """The same fitted model, weights shared, with other parameters."""
    return sharing_weights(classifier).set_params(**parameters)


@pytest.fixture(scope="module")
def make(tiny_bert):
    return lambda **parameters: ACLClassifier(tiny_bert, **(SETTINGS | parameters))


@pytest.fixture(scope="module")
def fitted(make):
    """Four layers; tests must not change it."""
    return make().fit(X, Y)


@pytest.fixture(scope="module")
def binary(make):
    return make(n_layers=2).fit(X, [label == "food" for label in Y])


# -- a text's neighbours ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*are longer than max_length")
@pytest.mark.parametrize("rows", [X, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_do_not_depend_on_the_batch(tiny_backbone, family, pooling, rows):
    backbone = tiny_backbone(family, num_hidden_layers=2)
    classifier = ACLClassifier(backbone, pooling=pooling, **SETTINGS).fit(rows, Y)
    expected = classifier.predict_proba_exits(rows)  # (n_exits, n, C)
    spread = np.ptp(expected, axis=1).max()
    assert spread > 1e-3  # texts differ by more than the tolerance
    alone = [classifier.predict_proba_exits([row])[:, 0] for row in rows]
    assert_close(np.stack(alone, axis=1), expected)
    assert_close(classifier.predict_proba_exits(rows[::-1])[:, ::-1], expected)
    for size in (1, 2, 100):  # up to 1, 8 and 400 texts in a batch
        resized = variant(classifier, batch_size=size)
        assert_close(resized.predict_proba_exits(rows), expected)
    long = LONG if isinstance(rows[0], str) else (LONG, LONG)
    assert_close(resized.predict_proba_exits([long, *rows])[:, 1:], expected)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_chunks_of_texts_keep_their_place(fitted, monkeypatch):
    expected = fitted.predict_proba(TEXTS)
    monkeypatch.setattr("sklearn_acl.inference.CHUNK_ROWS", 7)
    assert_close(fitted.predict_proba(TEXTS), expected)


def test_equal_calls_give_equal_bits(fitted):
    first = fitted.predict_proba_exits(TEXTS)
    np.testing.assert_array_equal(fitted.predict_proba_exits(TEXTS), first)


# -- exits -----------------------------------------------------------------------------


@pytest.mark.parametrize("exit_layer", [1, 2, 3, 4, None])
def test_the_keyword_equals_the_parameter(fitted, exit_layer):
    changed = variant(fitted, exit_layer=exit_layer)
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        by_keyword = getattr(fitted, method)(X, exit_layer=exit_layer)
        np.testing.assert_array_equal(getattr(changed, method)(X), by_keyword)
    assert changed.score(X, Y) == fitted.score(X, Y, exit_layer=exit_layer)
    # the keyword goes before the parameter, whatever that is
    for value in (1, 99):
        other = variant(fitted, exit_layer=value)
        if exit_layer is not None:
            np.testing.assert_array_equal(
                other.predict_proba(X, exit_layer), fitted.predict_proba(X, exit_layer)
            )


def test_all_exits_in_one_pass_equal_one_exit_at_a_time(fitted):
    proba = fitted.predict_proba_exits(TEXTS)
    assert proba.shape == (4, len(TEXTS), 3)
    for layer in (1, 2, 3, 4):
        np.testing.assert_array_equal(
            proba[layer - 1], fitted.predict_proba(TEXTS, exit_layer=layer)
        )
    np.testing.assert_array_equal(proba[-1], fitted.predict_proba(TEXTS))
    assert all(
        np.abs(a - b).max() > 1e-3 for a, b in zip(proba, proba[1:], strict=False)
    )


def test_setting_inference_parameters_never_touches_a_weight(fitted):
    before = {k: v.clone() for k, v in fitted.module_.state_dict().items()}
    module = fitted.module_
    changed = variant(fitted, exit_layer=2, batch_size=3, device=None, verbose=0)
    changed.set_params(module__dropout=0.5, criterion__lam=0.1)
    assert changed.module_ is module
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def count_layer_calls(classifier, call):
    calls = []
    encoder = classifier.module_
    handles = [
        layer.register_forward_hook(lambda *_: calls.append(1))
        for layer in encoder.family.layer_modules(encoder.backbone)
    ]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return len(calls)


@pytest.mark.parametrize("exit_layer", [1, 2, 3, 4])
def test_no_deeper_layer_runs(fitted, exit_layer):
    changed = variant(fitted, exit_layer=exit_layer, batch_size=len(X))
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        call = getattr(changed, method)
        assert count_layer_calls(changed, lambda: call(X)) == exit_layer  # noqa: B023
    assert count_layer_calls(changed, lambda: changed.forward(X)) == exit_layer
    assert count_layer_calls(changed, lambda: changed.score(X, Y)) == exit_layer
    batches = variant(changed, batch_size=1)
    n_calls = count_layer_calls(batches, lambda: batches.predict(X))
    assert n_calls == len(X) * exit_layer
    assert count_layer_calls(changed, lambda: changed.predict_proba_exits(X)) == 4


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@pytest.mark.parametrize("head_init", ["lda", "random"])
def test_a_shallower_model_equals_the_exit_at_the_start(
    tiny_backbone, family, head_init
):
    # steps this small leave every weight where it is
    settings = SETTINGS | {"lr": 1e-30, "head_init": head_init}
    backbone = tiny_backbone(family, num_hidden_layers=3)
    full = ACLClassifier(backbone, **settings).fit(X, Y)
    shallow = ACLClassifier(backbone, n_layers=2, **settings).fit(X, Y)
    assert shallow.exit_layer_numbers_ == (1, 2)
    np.testing.assert_allclose(
        shallow.predict_proba_exits(X), full.predict_proba_exits(X)[:2], atol=1e-6
    )


def test_threads_may_ask_for_different_exits(fitted):
    expected = fitted.predict_proba_exits(TEXTS)
    wrong, start = [], threading.Barrier(4)

    def ask(layer):
        start.wait()
        for _ in range(5):
            if not np.array_equal(
                fitted.predict_proba(TEXTS, exit_layer=layer), expected[layer - 1]
            ):
                wrong.append(layer)

    threads = [threading.Thread(target=ask, args=(layer,)) for layer in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- one exit --------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [None, 3])
def test_ordinary_fine_tuning_has_one_exit(make, n_layers):
    last = n_layers or 4
    final = make(strategy="final", n_layers=n_layers).fit(X, Y)
    assert final.n_exits_ == 1
    assert final.exit_layer_numbers_ == (last,)
    assert len(final.module_.heads) == 1
    proba = final.predict_proba(X)
    np.testing.assert_array_equal(final.predict_proba(X, exit_layer=last), proba)
    np.testing.assert_array_equal(final.predict_proba_exits(X), proba[None])
    assert make(strategy="final", exit_layer=last, n_layers=n_layers).fit(X, Y)


def test_exits_after_every_layer(fitted):
    assert fitted.n_exits_ == 4
    assert fitted.exit_layer_numbers_ == (1, 2, 3, 4)
    assert len(fitted.module_.heads) == 4


# -- what the methods return -----------------------------------------------------------


def test_probabilities_are_probabilities(fitted, binary):
    for classifier, n_classes in ((fitted, 3), (binary, 2)):
        proba = classifier.predict_proba_exits(TEXTS)
        assert proba.dtype == np.float64
        assert proba.shape[1:] == (len(TEXTS), n_classes)
        assert np.isfinite(proba).all()
        assert (proba > 0).all()
        np.testing.assert_allclose(proba.sum(axis=-1), 1, rtol=0, atol=1e-12)


def test_predictions_are_the_likeliest_classes(fitted, binary):
    for classifier in (fitted, binary):
        for layer in classifier.exit_layer_numbers_:
            best = classifier.predict_proba(TEXTS, layer).argmax(axis=1)
            predicted = classifier.predict(TEXTS, layer)
            assert (classifier.classes_[best] == predicted).all()


@pytest.mark.parametrize("threshold", [None, 0.4])
def test_logarithms_of_probabilities(fitted, threshold):
    clf = sharing_weights(fitted).set_params(exit_threshold=threshold)
    np.testing.assert_allclose(
        np.exp(clf.predict_log_proba(TEXTS)), clf.predict_proba(TEXTS), rtol=1e-12
    )
    np.testing.assert_array_equal(
        clf.predict_log_proba(TEXTS, exit_layer=1),
        clf.set_params(exit_layer=1).predict_log_proba(TEXTS),
    )


def test_logarithms_are_finite_where_probabilities_underflow(fitted):
    clf = copy.deepcopy(fitted)
    with torch.no_grad():
        clf.module_.heads[-1].classifier.bias[0] += 2000.0
    assert (clf.predict_proba(TEXTS)[:, 1:] == 0).all()
    log_proba = clf.predict_log_proba(TEXTS)
    assert np.isfinite(log_proba).all() and (log_proba[:, 1:] < -1000).all()


def test_scores_before_the_softmax(fitted):
    scores = fitted.decision_function(TEXTS, exit_layer=2)
    assert scores.shape == (len(TEXTS), 3)
    exps = np.exp(scores.astype(np.float64))
    proba = exps / exps.sum(axis=1, keepdims=True)
    expected = fitted.predict_proba(TEXTS, exit_layer=2)
    np.testing.assert_allclose(proba, expected, atol=1e-12)


def test_scores_of_two_classes(binary):
    scores = binary.decision_function(TEXTS)
    assert scores.shape == (len(TEXTS),)
    second = 1 / (1 + np.exp(-scores.astype(np.float64)))
    np.testing.assert_allclose(second, binary.predict_proba(TEXTS)[:, 1], atol=1e-6)
    assert ((scores > 0) == binary.predict(TEXTS)).all()


def test_embeddings_are_what_the_classifier_multiplies(fitted):
    for layer in (1, 4):
        embeddings = fitted.transform(TEXTS, exit_layer=layer)
        assert embeddings.shape == (len(TEXTS), 32)
        assert embeddings.dtype == np.float32
        classifier = fitted.module_.heads[layer - 1].classifier
        weight = classifier.weight.detach().numpy()
        scores = embeddings @ weight.T + classifier.bias.detach().numpy()
        expected = fitted.decision_function(TEXTS, exit_layer=layer)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_score_is_accuracy(fitted):
    right = fitted.predict(TEXTS) == LABELS
    assert fitted.score(TEXTS, LABELS) == right.mean()
    weight = np.arange(len(TEXTS))
    weighted = fitted.score(TEXTS, LABELS, sample_weight=weight)
    assert weighted == pytest.approx(np.average(right, weights=weight))


@pytest.mark.parametrize("exit_layer", [None, 2])
def test_forward_keeps_the_order(fitted, exit_layer):
    changed = variant(fitted, exit_layer=exit_layer, batch_size=7)
    expected = changed.decision_function(TEXTS)
    batches = list(changed.forward_iter(TEXTS))
    assert [len(batch) for batch in batches] == [7] * 8 + [4]
    np.testing.assert_array_equal(torch.cat(batches).numpy(), expected)
    logits = changed.forward(TEXTS)
    assert not logits.requires_grad
    np.testing.assert_array_equal(logits.numpy(), expected)


def test_prediction_leaves_the_mode_alone_and_builds_no_graph(fitted):
    outputs = iterate_outputs(
        fitted.module_,
        fitted._check_new_texts(X),
        fitted.tokenizer_,
        exits=(1,),
        batch_size=1,
        **fitted._limits,
    )
    enabled = []
    for _, output in outputs:
        enabled.append(
            torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        )
        assert not output.logits.requires_grad
    assert enabled == [True] * len(X)
    assert not fitted.module_.training


def test_predictions_are_in_single_precision_under_autocast(fitted):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fitted.predict_proba(X)
    np.testing.assert_array_equal(inside, fitted.predict_proba(X))


SMALL_MODELS = {
    "distilbert": ("distilbert", {"n_layers": 3}),
    "tinybert": (
        "bert",
        {
            "num_hidden_layers": 4,
            "hidden_size": 36,
            "num_attention_heads": 12,
            "intermediate_size": 140,
        },
    ),
}


@pytest.mark.parametrize("shape", SMALL_MODELS)
def test_a_small_model_trains_alone_as_a_rival_of_an_exit(tiny_backbone, shape):
    family, config = SMALL_MODELS[shape]
    settings = SETTINGS | {"lr": 3e-3, "max_epochs": 8, "head_init": "random"}
    rival = ACLClassifier(
        tiny_backbone(family, **config), strategy="final", **settings
    ).fit(X, Y)
    assert rival.n_exits_ == 1
    assert rival.history[-1, "train_loss"] < rival.history[0, "train_loss"]
    assert rival.score(X, Y) > 0.5
