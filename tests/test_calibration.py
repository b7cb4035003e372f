"""Temperature scaling of the exits."""

import copy
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier
from sklearn_acl.calibration import expected_calibration_error, fit_temperature

CODES = np.unique(LABELS, return_inverse=True)[1]


def overconfident(n_samples=400, n_classes=4, factor=3.0, seed=0):
    """Logits whose softmax tells the truth once they are divided by `factor`."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n_samples, n_classes))
    odds = np.exp(logits)
    proba = odds / odds.sum(axis=1, keepdims=True)
    codes = np.array([rng.choice(n_classes, p=row) for row in proba])
    return factor * logits, codes


class Scores(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose scores are its input."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X

    def predict(self, X):
        return self.classes_[X.argmax(axis=1)]


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0, 10.0])
def test_temperature_is_that_of_scikit_learn(factor):
    logits, codes = overconfident(factor=factor)
    scores = FrozenEstimator(Scores().fit(logits, codes))
    reference = CalibratedClassifierCV(scores, method="temperature")
    expected = reference.fit(logits, codes).predict_proba(logits)
    odds = np.exp(logits / fit_temperature(logits, codes))
    found = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert fit_temperature(logits, codes) == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize(
    "codes",
    [
        pytest.param([0, 1, 2] * 10, id="all right"),
        pytest.param([1, 2, 0] * 10, id="all wrong"),
    ],
)
def test_texts_that_set_no_temperature(codes):
    logits = np.tile(np.eye(3), (10, 1))
    assert fit_temperature(logits, np.array(codes)) is None


@pytest.mark.parametrize("n_bins", [1, 5, 15])
def test_calibration_error_is_the_sum_over_bins(n_bins):
    logits, codes = overconfident()
    odds = np.exp(logits)
    proba = odds / odds.sum(axis=1, keepdims=True)
    expected = 0.0
    for number in range(n_bins):
        low, high = number / n_bins, (number + 1) / n_bins
        confidence = proba.max(axis=1)
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            accuracy = (proba.argmax(axis=1) == codes)[inside].mean()
            gap = abs(accuracy - confidence[inside].mean())
            expected += inside.mean() * gap
    assert expected_calibration_error(proba, codes, n_bins) == pytest.approx(expected)


def test_calibration_error_of_certainty():
    codes = np.array([0, 1, 1, 1])
    assert expected_calibration_error(np.eye(2)[codes], codes) == 0.0
    assert expected_calibration_error(np.eye(2)[1 - codes], codes) == 1.0


@pytest.fixture(scope="module")
def fitted(tiny_bert):
    clf = ACLClassifier(
        tiny_bert, max_epochs=3, lr=1e-3, random_state=0, verbose=0, device="cpu"
    )
    return clf.fit(TEXTS[:40], LABELS[:40])


@pytest.fixture
def calibrated(fitted):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return copy.deepcopy(fitted).calibrate_exits(TEXTS[30:], LABELS[30:])


def test_no_prediction_changes_and_the_likelihood_rises(fitted, calibrated):
    before = fitted.predict_proba_exits(TEXTS)
    after = calibrated.predict_proba_exits(TEXTS)
    np.testing.assert_array_equal(before.argmax(-1), after.argmax(-1))
    temperatures = calibrated.calibration_["temperature"]
    assert (temperatures != 1).any()
    assert (temperatures > 0).all()
    for position in range(fitted.n_exits_):
        losses = [
            log_loss(CODES[30:], proba[position, 30:]) for proba in (before, after)
        ]
        assert losses[1] <= losses[0] + 1e-9
        for name, loss in zip(("before", "after"), losses, strict=True):
            recorded = calibrated.calibration_[f"log_loss_{name}"][position]
            assert recorded == pytest.approx(loss, abs=1e-5)
        error = expected_calibration_error(after[position, 30:], CODES[30:])
        recorded = calibrated.calibration_["error_after"][position]
        assert recorded == pytest.approx(error, abs=1e-5)


def test_temperature_divides_the_scores_of_its_exit(fitted, calibrated):
    pairs = zip(
        fitted.exit_layer_numbers_, calibrated.calibration_["temperature"], strict=True
    )
    for layer, temperature in pairs:
        np.testing.assert_allclose(
            calibrated.decision_function(TEXTS, exit_layer=layer),
            fitted.decision_function(TEXTS, exit_layer=layer) / temperature,
            rtol=1e-5,
            atol=1e-6,
        )


def test_calibrating_again_starts_from_no_temperature(calibrated):
    first = {name: values.copy() for name, values in calibrated.calibration_.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        calibrated.calibrate_exits(TEXTS[30:], LABELS[30:])
    for name, values in calibrated.calibration_.items():
        np.testing.assert_allclose(values, first[name], atol=1e-4)


@pytest.mark.parametrize("how", ["pickle", "directory"])
def test_temperatures_are_stored(calibrated, tmp_path, how):
    if how == "pickle":
        joblib.dump(calibrated, tmp_path / "model.joblib")
        loaded = joblib.load(tmp_path / "model.joblib")
    else:
        calibrated.save(tmp_path / "model")
        loaded = ACLClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(
        loaded.predict_proba_exits(TEXTS), calibrated.predict_proba_exits(TEXTS)
    )
    for name, values in calibrated.calibration_.items():
        np.testing.assert_array_equal(loaded.calibration_[name], values)


@pytest.mark.parametrize("how", ["fit", "partial_fit", "warm_start"])
def test_training_takes_temperatures_away(fitted, calibrated, how):
    twin = copy.deepcopy(fitted)
    for clf in (twin, calibrated):
        if how == "warm_start":
            clf.set_params(warm_start=True)
        getattr(clf, how.replace("warm_start", "fit"))(TEXTS, LABELS)
    np.testing.assert_array_equal(
        calibrated.predict_proba_exits(TEXTS), twin.predict_proba_exits(TEXTS)
    )
    assert not hasattr(calibrated, "calibration_")


def test_open_temperatures_are_counted_once_and_stay_1(fitted):
    clf = copy.deepcopy(fitted)
    right = np.array(TEXTS)[clf.predict(TEXTS) == LABELS][:1]
    label = clf.predict(right)
    with pytest.warns(UserWarning, match="set no temperature for 4 of 4 exits") as seen:
        clf.calibrate_exits(right, label)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert (clf.calibration_["temperature"] == 1).all()
    np.testing.assert_array_equal(
        clf.predict_proba_exits(TEXTS), fitted.predict_proba_exits(TEXTS)
    )


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (TEXTS[:3], LABELS[:2], "2"),
        (TEXTS[:3], None, "requires y"),
        (TEXTS[:3], ["unheard of"] * 3, "unheard of"),
        ([], [], "0"),
        (["a", None, "b"], LABELS[:3], "missing text, at row 1"),
    ],
)
def test_bad_texts_and_labels_change_nothing(fitted, X, y, words):
    clf = copy.deepcopy(fitted)
    with pytest.raises((TypeError, ValueError), match=words):
        clf.calibrate_exits(X, y)
    assert not hasattr(clf, "calibration_")
    np.testing.assert_array_equal(
        clf.predict_proba_exits(TEXTS), fitted.predict_proba_exits(TEXTS)
    )


def test_needs_a_fitted_classifier(fitted):
    with pytest.raises(ValueError, match="not fitted"):
        clone(fitted).calibrate_exits(TEXTS, LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_exit_is_named_and_nothing_changes(fitted, value):
    clf = copy.deepcopy(fitted)
    with torch.no_grad():
        clf.module_.heads[1].classifier.weight.fill_(value)
    with pytest.raises(ValueError, match="after layers 2 give scores .* not finite"):
        clf.calibrate_exits(TEXTS, LABELS)
    assert not hasattr(clf, "calibration_")
    assert all(head.temperature == 1 for head in clf.module_.heads)
