"""Displays: the numbers they draw, and that what they draw can be read."""

import ast
import importlib
import inspect
import re
import sys
import warnings
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score, log_loss, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier
from sklearn_acl.displays import (
    ExitTradeoffDisplay,
    GradientAngleDisplay,
    LayerScoreDisplay,
)
from sklearn_acl.exit_rules import normalized_entropy
from sklearn_acl.gradient_angle_display import running_percentiles
from sklearn_acl.shared_weights import sharing_weights
from sklearn_acl.tuning import TunedExitClassifierCV

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

DISPLAYS = (LayerScoreDisplay, ExitTradeoffDisplay, GradientAngleDisplay)
CLASSES = np.array(["food", "sport", "weather"])


@pytest.fixture(autouse=True)
def pyplot():
    """pyplot, without figures before and after a test."""
    import matplotlib.pyplot as plt

    plt.close("all")
    yield plt
    plt.close("all")


@pytest.fixture(scope="module")
def fitted(tiny_backbone):
    """A classifier of three exits, fitted on texts of three classes."""
    backbone = tiny_backbone("bert", num_hidden_layers=3)
    clf = ACLClassifier(
        backbone, max_epochs=2, batch_size=8, random_state=0, lr=1e-3, verbose=0
    )
    return clf.fit(TEXTS[:42], LABELS[:42])


class Exits:
    """What a display needs of a fitted classifier; counts its passes."""

    def __init__(self, proba, classes=CLASSES, layers=None, **parameters):
        self.proba = proba
        self.classes_ = classes
        self.exit_layer_numbers_ = layers or tuple(range(1, len(proba) + 1))
        self.n_passes = 0
        self.exit_layer = self.exit_threshold = None
        self.exit_rule, self.exit_patience = "confidence", 2
        vars(self).update(parameters)

    def predict_proba_exits(self, X):
        self.n_passes += 1
        return self.proba


def random_exits(n_exits=6, n_samples=90, seed=0, classes=CLASSES):
    """(labels, probabilities) whose later exits are better and surer."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(len(classes), size=n_samples)
    truth = np.eye(len(classes))[codes]
    noise = rng.gumbel(size=(n_exits, n_samples, len(classes)))
    logits = np.linspace(0.8, 4, n_exits)[:, None, None] * truth + noise
    odds = np.exp(logits)
    return classes[codes], odds / odds.sum(axis=-1, keepdims=True)


def data_points(ax):
    """Vertices of the curves and bands of axes, in pixels."""
    points = [line.get_xydata() for line in ax.lines if line.get_gid() == "curve"]
    points += [p.vertices for band in ax.collections for p in band.get_paths()]
    points = np.concatenate([np.asarray(p, dtype=float) for p in points])
    return ax.transData.transform(points[np.isfinite(points).all(axis=1)])


def assert_readable(figure):
    """All text lies in the figure, and legends do not hide data."""
    figure.canvas.draw()
    page = figure.bbox
    for ax in figure.axes:
        inside = ax.get_tightbbox()
        assert page.x0 <= inside.x0 and inside.x1 <= page.x1
        assert page.y0 <= inside.y0 and inside.y1 <= page.y1
        legend = ax.get_legend()
        if legend is not None:
            box = legend.get_window_extent()
            covered = [box.contains(*point) for point in data_points(ax)]
            assert not any(covered)


# --- LayerScoreDisplay --------------------------------------------------------------


def test_scores_are_those_of_every_exit(fitted):
    texts, labels = TEXTS[42:], LABELS[42:]
    display = LayerScoreDisplay.from_estimator(fitted, texts, labels)
    expected = [fitted.score(texts, labels, exit_layer=k) for k in (1, 2, 3)]
    (line,) = display.lines_
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), expected)
    assert display.bands_ == [None]
    assert display.ax_.get_ylabel() == "Accuracy"
    assert display.ax_.get_legend().get_texts()[0].get_text() == "ACLClassifier"
    assert_readable(display.figure_)


def scorer_of_mistakes(estimator, X, y):
    return -sum(estimator.predict(X) != y)


@pytest.mark.parametrize(
    ("scoring", "label", "expected"),
    [
        (
            "f1_macro",
            "F1 macro",
            lambda y, p: f1_score(y, CLASSES[p.argmax(1)], average="macro"),
        ),
        ("neg_log_loss", "Negative log loss", lambda y, p: -log_loss(y, p)),
        (
            "roc_auc_ovr",
            "Roc auc ovr",
            lambda y, p: roc_auc_score(y, p, multi_class="ovr"),
        ),
        (
            make_scorer(log_loss, response_method="predict_proba"),
            "Log loss",
            lambda y, p: log_loss(y, p),
        ),
        (
            scorer_of_mistakes,
            "Scorer of mistakes",
            lambda y, p: -(CLASSES[p.argmax(1)] != y).sum(),
        ),
    ],
)
def test_any_scorer(scoring, label, expected):
    y, proba = random_exits()
    clf = Exits(proba)
    display = LayerScoreDisplay.from_estimator(clf, ["text"] * 90, y, scoring=scoring)
    scores = [expected(y, of_exit) for of_exit in proba]
    np.testing.assert_allclose(display.lines_[0].get_ydata(), scores)
    assert display.ax_.get_ylabel() == label
    assert clf.n_passes == 1
    again = LayerScoreDisplay.from_predictions(
        y, proba, classes=CLASSES, scoring=scoring
    )
    np.testing.assert_allclose(again.lines_[0].get_ydata(), scores)


def test_two_classes_and_a_ranking_score():
    y, proba = random_exits(classes=np.array(["no", "yes"]))
    display = LayerScoreDisplay.from_predictions(y, proba, scoring="roc_auc")
    expected = [roc_auc_score(y == "yes", of_exit[:, 1]) for of_exit in proba]
    np.testing.assert_allclose(display.lines_[0].get_ydata(), expected)


@pytest.mark.parametrize(
    ("band", "words"),
    [
        ("range", "joint (mean of 3 fits, lowest to highest)"),
        ("std", "joint (mean of 3 fits ± 1 std)"),
        (None, "joint (mean of 3 fits)"),
    ],
)
def test_several_fits_of_a_method_are_a_mean_with_a_band(band, words):
    y, _ = random_exits()
    fits = [Exits(random_exits(seed=seed)[1]) for seed in (0, 1, 2)]
    one = Exits(random_exits(seed=3)[1])
    display = LayerScoreDisplay.from_estimator(
        [fits, one], y, y, name=["joint", "final"], band=band
    )
    scores = np.array(
        [[np.mean(CLASSES[p.argmax(1)] == y) for p in fit.proba] for fit in fits]
    )
    np.testing.assert_allclose(display.lines_[0].get_ydata(), scores.mean(axis=0))
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == [words, "final"]
    assert display.bands_[1] is None
    if band is None:
        assert display.bands_[0] is None
        return
    low, high = scores.min(axis=0), scores.max(axis=0)
    if band == "std":
        half = np.sqrt(((scores - scores.mean(axis=0)) ** 2).sum(axis=0) / 2)
        low, high = scores.mean(axis=0) - half, scores.mean(axis=0) + half
    vertices = display.bands_[0].get_paths()[0].vertices
    for layer, bottom, top in zip(range(1, 7), low, high, strict=True):
        heights = vertices[vertices[:, 0] == layer, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [bottom, top])
    assert_readable(display.figure_)


def test_classifiers_of_different_depth():
    y, proba = random_exits()
    shallow, final = Exits(proba[:3]), Exits(proba[-1:], layers=(6,))
    display = LayerScoreDisplay.from_estimator([Exits(proba), shallow, final], y, y)
    drawn = [line.get_xdata().tolist() for line in display.lines_]
    assert drawn == [[1, 2, 3, 4, 5, 6], [1, 2, 3], [6]]
    labels = [line.get_label() for line in display.lines_]
    assert labels == ["Exits 1", "Exits 2", "Exits 3"]
    with pytest.raises(ValueError, match=r"same layers, got \[\(1, 2, 3\), \(6,\)\]"):
        LayerScoreDisplay.from_estimator([[shallow, final]], y, y)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 6, 12, 24])
def test_ticks_are_whole_layers(n_layers):
    layers = np.arange(1, n_layers + 1)
    display = LayerScoreDisplay(layers=[layers], scores=[np.sqrt(layers)]).plot()
    display.figure_.canvas.draw()
    low, high = display.ax_.get_xlim()
    ticks = [tick for tick in display.ax_.get_xticks() if low <= tick <= high]
    assert all(tick == round(tick) for tick in ticks)
    assert set(ticks) <= set(layers) | {0, n_layers + 1}
    if n_layers <= 12:
        assert set(layers) <= set(ticks)
    assert_readable(display.figure_)


def test_curves_differ_without_colour():
    scores = np.linspace(0.5, 0.9, 6) + 0.01 * np.arange(7)[:, None]
    display = LayerScoreDisplay(
        layers=[range(1, 7)] * 7, scores=list(scores), names=list("abcdefg")
    ).plot()
    styles = {(line.get_marker(), line.get_linestyle()) for line in display.lines_}
    assert len(styles) == 7
    assert len({line.get_color() for line in display.lines_}) == 7


def test_a_second_display_in_the_same_axes(pyplot):
    y, proba = random_exits()
    first = LayerScoreDisplay.from_predictions(y, proba, name="a")
    second = LayerScoreDisplay.from_predictions(y, proba, name="b", ax=first.ax_)
    assert second.ax_ is first.ax_ and second.figure_ is first.figure_
    assert len(pyplot.get_fignums()) == 1
    colours = {line.get_color() for line in first.lines_ + second.lines_}
    assert len(colours) == 2
    labels = [text.get_text() for text in first.ax_.get_legend().get_texts()]
    assert labels == ["a", "b"]


def test_plotting_renders_nothing_and_leaves_the_limits_free(monkeypatch):
    from matplotlib.figure import Figure

    def fail(*args):
        raise AssertionError("a plot is not drawn before it is shown")

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "draw", fail)
        patch.setattr(Figure, "draw_without_rendering", fail)
        layers = range(1, 13)
        scores = [[0.2 + 0.6 * ((i + k) % 2) for i in layers] for k in (0, 1)]
        display = LayerScoreDisplay(
            layers=[layers] * 2, scores=scores, names=["a", "b"]
        ).plot()
        low, high = display.ax_.get_ylim()
        assert 0.1 < low < 0.2 and 0.8 < high < 0.9  # no more than the data need
        LayerScoreDisplay(layers=[layers], scores=[[2.0] * 12]).plot(ax=display.ax_)
    assert display.ax_.get_ylim()[1] > 2  # later curves are seen, too


def test_styles_of_the_user_go_first():
    y, proba = random_exits()
    display = LayerScoreDisplay.from_predictions(
        y, proba, name="a", c="red", ls="--", label="mine"
    )
    (line,) = display.lines_
    assert (line.get_color(), line.get_linestyle()) == ("red", "--")
    assert line.get_label() == "mine"
    again = display.plot(name="another")
    assert again is display
    assert display.lines_[0].get_label() == "another"
    assert display.ax_ is not line.axes


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda y, p: LayerScoreDisplay.from_estimator(object(), y, y),
            TypeError,
            "must be a fitted ACLClassifier, with predict_proba_exits, got object",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_estimator([[]], y, y),
            ValueError,
            "estimator must hold a fitted classifier for every curve",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_estimator(
                [Exits(p), Exits(p)], y, y, name="both"
            ),
            ValueError,
            "name='both' must hold one name for each of the 2 curves, got 1",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p[0]),
            ValueError,
            r"must have shape \(n_exits, n_samples, n_classes\).* got \(90, 3\)",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p, classes=["a"]),
            ValueError,
            "classes must name the 3 columns of proba_exits, got 1 labels",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p, layers=[1, 2]),
            ValueError,
            r"one layer for each of the 6 exits, got \[1, 2\]",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y[1:], p),
            ValueError,
            "inconsistent numbers of samples",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p, band="sem"),
            ValueError,
            "band='sem' must be 'range', 'std' or None",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p, scoring=f1_score),
            ValueError,
            "make_scorer",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p[:0]),
            ValueError,
            r"must have shape \(n_exits, n_samples, n_classes\).* got \(0, 90, 3\)",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, np.log(p)),
            ValueError,
            "must hold probabilities.* got values from -",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, 2 * p),
            ValueError,
            "must hold probabilities",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_predictions(y, p, scoring=["f1"]),
            ValueError,
            r"scoring=\['f1'\] must be the name of one scorer",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(
                y, p, thresholds={"entropy": [0.5]}
            ),
            ValueError,
            r"thresholds has 'entropy', which is not among .* \['confidence'\]",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_estimator(
                Exits(p), pd.DataFrame({"text": y}), "label"
            ),
            ValueError,
            r"y='label' is no column of X; there are \['text'\]",
        ),
        (
            lambda y, p: LayerScoreDisplay.from_estimator(
                GridSearchCV(ACLClassifier(), {}), y, y
            ),
            TypeError,
            "got GridSearchCV. Of a search, pass its best_estimator_",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, p[:1]),
            ValueError,
            "at least two exits; this model has one",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, p, rule="sure"),
            ValueError,
            "exit_rule='sure' must be one of 'confidence', 'entropy'",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, p, thresholds=0),
            ValueError,
            "thresholds=0 must be at least 1",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, p, thresholds=[2.0]),
            ValueError,
            "thresholds=.*2.0.* must be in",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_predictions(y, p, rule=has_gone_deep),
            ValueError,
            "thresholds=20 is a number, but the rule .*has_gone_deep.* is a function",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_estimator(Exits(p), y, y, cost="ms"),
            ValueError,
            "cost='ms' must be 'layers' or 'time'",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_tuned(Exits(p)),
            ValueError,
            "Exits has no cv_results_: fit it with store_cv_results=True",
        ),
        (
            lambda y, p: ExitTradeoffDisplay.from_tuned(Exits(p), quality="f1"),
            ValueError,
            "quality='f1' must be 'score' or 'risk'",
        ),
    ],
)
def test_what_cannot_be_drawn(call, error, message, pyplot):
    with pytest.raises(error, match=message):
        call(*random_exits())


@pytest.mark.parametrize(
    "container", [pd.DataFrame, datasets.Dataset.from_dict, pl.DataFrame]
)
@pytest.mark.parametrize("display", [LayerScoreDisplay, ExitTradeoffDisplay])
def test_labels_may_be_a_column_of_the_texts(fitted, display, container):
    data = container({"text": TEXTS[42:], "label": LABELS[42:]})
    of_column = sharing_weights(fitted)
    of_column.text_columns_ = ["text"]
    by_name = display.from_estimator(of_column, data, "label")
    plain = display.from_estimator(fitted, TEXTS[42:], LABELS[42:])
    np.testing.assert_array_equal(by_name.scores[0], plain.scores[0])


# --- ExitTradeoffDisplay ------------------------------------------------------------


def has_gone_deep(proba, threshold):
    return len(proba) > threshold


def slow_tradeoff(y, proba, rule, threshold, patience):
    """(average exit, accuracy) by a loop over texts and exits."""
    exits, right = [], []
    for row, label in enumerate(y):
        for passed in range(1, len(proba) + 1):
            history = proba[:passed, row]
            if rule == "confidence":
                done = history[-1].max() > threshold
            elif rule == "entropy":
                done = normalized_entropy(history[-1]) < threshold
            elif rule == "patience":
                last = history[-patience - 1 :].argmax(axis=1)
                steady = passed > patience and len(set(last.tolist())) == 1
                done = steady and history[-1].max() > threshold
            else:
                done = rule(history, threshold)
            if done:
                break
        exits.append(passed)
        right.append(CLASSES[history[-1].argmax()] == label)
    return np.mean(exits), np.mean(right)


@pytest.mark.parametrize("rule", ["confidence", "entropy", "patience", has_gone_deep])
def test_costs_and_scores_along_thresholds(rule):
    y, proba = random_exits()
    thresholds = {
        "confidence": [0.9, 0.6, 0.5, 0.1],  # the one that keeps texts longest first
        "entropy": [0.1, 0.5, 0.6, 0.9],
        "patience": [0.9, 0.6, 0.5, 0.1],
        has_gone_deep: [3.5, 1.5, 0.5],
    }[rule]
    display = ExitTradeoffDisplay.from_predictions(
        y, proba, rule=rule, patience=3, thresholds={rule: thresholds}
    )
    np.testing.assert_array_equal(display.thresholds, [thresholds])
    again = ExitTradeoffDisplay.from_predictions(
        *(y, proba),
        rule=rule,
        patience=3,
        thresholds=thresholds if callable(rule) else thresholds[::-1],
    )
    np.testing.assert_array_equal(again.costs, display.costs)
    expected = [slow_tradeoff(y, proba, rule, t, 3) for t in thresholds]
    (line,) = display.lines_
    np.testing.assert_allclose(line.get_xydata(), expected)
    name = "has_gone_deep" if callable(rule) else rule
    assert line.get_label() == name
    of_exits = [np.mean(CLASSES[p.argmax(1)] == y) for p in proba]
    np.testing.assert_allclose(display.exits_.get_ydata(), of_exits)
    np.testing.assert_array_equal(display.exits_.get_xdata(), range(1, 7))
    assert display.full_depth_.get_ydata()[0] == of_exits[-1]
    assert display.chosen_ is None and display.floor_ is None
    assert_readable(display.figure_)


@pytest.mark.parametrize("rule", ["confidence", "entropy"])
def test_default_thresholds_go_evenly_from_first_exit_to_full_depth(rule):
    y, proba = random_exits(n_samples=600)
    display = ExitTradeoffDisplay.from_predictions(y, proba, rule=rule)
    (costs,), (thresholds,) = display.costs, display.thresholds
    ends = [1, 0] if rule == "confidence" else [0, 1]
    np.testing.assert_array_equal(thresholds[[0, -1]], ends)
    np.testing.assert_array_equal(costs[[0, -1]], [6, 1])
    steps = np.diff(costs)
    assert (steps <= 0).all() and steps.min() > -1  # no gap along the curve
    assert 15 <= len(costs) <= 22


def test_layers_that_are_not_numbered_from_one():
    y, proba = random_exits(n_exits=3)
    display = ExitTradeoffDisplay.from_predictions(
        y, proba, layers=[2, 4, 6], thresholds=[0.0, 1.0]
    )
    np.testing.assert_array_equal(display.costs[0], [6, 2])


def test_several_rules_each_with_a_curve():
    y, proba = random_exits()
    rules = ["confidence", "patience"]
    display = ExitTradeoffDisplay.from_predictions(y, proba, rule=rules, thresholds=5)
    assert [line.get_label() for line in display.lines_] == rules
    assert len({line.get_color() for line in display.lines_}) == 2
    assert_readable(display.figure_)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            {"exit_threshold": 0.8},
            lambda y, p: slow_tradeoff(y, p, "confidence", 0.8, 2),
        ),
        (
            {"exit_threshold": 0.4, "exit_rule": "entropy", "exit_layer": 3},
            lambda y, p: slow_tradeoff(y, p[:3], "entropy", 0.4, 2),
        ),
        ({"exit_layer": 2}, lambda y, p: (2, np.mean(CLASSES[p[1].argmax(1)] == y))),
    ],
)
def test_the_setting_in_use_is_marked(parameters, expected):
    y, proba = random_exits()
    clf = Exits(proba, **parameters)
    display = ExitTradeoffDisplay.from_estimator(clf, y, y)
    np.testing.assert_allclose(display.chosen, expected(y, proba))
    np.testing.assert_allclose(display.chosen_.get_xydata(), [display.chosen])
    tuned = Exits(proba, estimator_=clf)
    again = ExitTradeoffDisplay.from_estimator(tuned, y, y)
    assert again.chosen == display.chosen
    assert (clf.n_passes, tuned.n_passes) == (2, 0)


@pytest.mark.parametrize("patience", [1, 3])
def test_rule_and_patience_are_those_of_the_classifier(patience):
    y, proba = random_exits()
    clf = Exits(proba, exit_rule="patience", exit_patience=patience)
    display = ExitTradeoffDisplay.from_estimator(clf, y, y, thresholds=[0.5])
    expected = slow_tradeoff(y, proba, "patience", 0.5, patience)
    assert display.lines_[0].get_label() == "patience"
    np.testing.assert_allclose(display.lines_[0].get_xydata(), [expected])
    other = ExitTradeoffDisplay.from_estimator(
        clf, y, y, rule="confidence", patience=2, thresholds=[0.5]
    )
    expected = slow_tradeoff(y, proba, "confidence", 0.5, 2)
    np.testing.assert_allclose(other.lines_[0].get_xydata(), [expected])
    with pytest.raises(ValueError, match="exit_patience=0 must be"):
        ExitTradeoffDisplay.from_estimator(clf, y, y, patience=0)


def test_measured_time(fitted):
    texts, labels = TEXTS[42:], LABELS[42:]
    before = dict(vars(fitted))
    display = ExitTradeoffDisplay.from_estimator(
        fitted, texts, labels, thresholds=[0.0, 1.0], cost="time"
    )
    layers = ExitTradeoffDisplay.from_estimator(
        fitted, texts, labels, thresholds=[0.0, 1.0]
    )
    np.testing.assert_array_equal(display.scores, layers.scores)
    assert display.costs[0].shape == (2,) and (display.costs[0] > 0).all()
    assert display.exit_costs.shape == (3,) and (display.exit_costs > 0).all()
    assert display.ax_.get_xlabel() == "Time per text (ms)"
    assert [text.get_text() for text in display.ax_.texts] == ["1", "2", "3"]
    assert vars(fitted) == before
    assert_readable(display.figure_)


def test_time_is_that_of_each_setting(monkeypatch):
    """With a clock that counts the exits and thresholds it meets."""
    from sklearn_acl import prediction_time

    y, proba = random_exits()
    seen = []

    class Timed(Exits):
        def set_params(self, **values):
            vars(self).update(values)
            return self

        def predict(self, X):
            warnings.warn("texts are long", UserWarning, stacklevel=2)
            seen.append((self.exit_layer, self.exit_rule, self.exit_threshold))

    # runs of a round take 1, 2, 3 ... seconds, in the second one 10 times as long
    took = np.arange(1.0, 12.0) * [[1], [10], [1]]
    now = np.cumsum(np.column_stack([np.zeros(33), took.ravel()]).ravel())
    now = iter(now)
    monkeypatch.setattr(prediction_time.time, "perf_counter", lambda: next(now))
    clf = Timed(proba, exit_layer=5)
    display = ExitTradeoffDisplay.from_estimator(
        clf, y, y, rule=["confidence", "entropy"], thresholds=[0.3, 0.7], cost="time"
    )
    rules = [
        ("confidence", 0.7),
        ("confidence", 0.3),
        ("entropy", 0.3),
        ("entropy", 0.7),
    ]
    adaptive = [(None, rule, t) for rule, t in rules]
    static = [(k, "confidence", None) for k in range(1, 7)]
    in_use = [(5, "confidence", None)]
    assert seen == adaptive[:1] + 3 * (adaptive + static + in_use)  # one to warm up
    ms = 1000 / 90
    np.testing.assert_allclose(display.costs, [[ms, 2 * ms], [3 * ms, 4 * ms]])
    np.testing.assert_allclose(display.exit_costs, np.arange(5, 11) * ms)
    assert display.chosen[0] == pytest.approx(11 * ms)


def tuned_results(**changes):
    """A stand-in for a fitted `TunedExitClassifierCV`."""
    results = {
        "rule": np.array([None, "confidence", "confidence", "entropy", None], object),
        "threshold": np.array([np.nan, 0.9, 0.99, 0.2, np.nan]),
        "exit_layer": np.array([6, 6, 6, 6, 2]),
        "mean_exit_layer": np.array([6.0, 3.0, 4.0, 3.5, 2.0]),
        "cost": np.array([0.012, 0.006, 0.008, 0.007, 0.004]),
        "score": np.array([0.90, 0.88, 0.90, 0.89, 0.80]),
        "risk": np.array([0.0, 0.04, 0.01, 0.03, 0.12]),
        "certified": np.array([True, False, True, True, False]),
    }
    values = {
        "cv_results_": results,
        "best_index_": 3,
        "full_depth_score_": 0.90,
        "max_drop": 0.05,
        "cost": "layers",
        "risk": "disagreement",
        "scoring": None,
        "rules": ["confidence", "entropy", None],
        "objective": "speed",
        "guaranteed_": True,
    }
    return SimpleNamespace(**(values | changes))


def test_tuning_with_its_choice_and_limit():
    display = ExitTradeoffDisplay.from_tuned(tuned_results())
    confidence, entropy = display.lines_
    np.testing.assert_allclose(confidence.get_xydata(), [[3, 0.88], [4, 0.90]])
    np.testing.assert_allclose(entropy.get_xydata(), [[3.5, 0.89]])
    np.testing.assert_allclose(display.exits_.get_xydata(), [[2, 0.80], [6, 0.90]])
    np.testing.assert_allclose(display.chosen_.get_xydata(), [[3.5, 0.89]])
    assert display.full_depth_.get_ydata()[0] == 0.90
    assert display.floor_.get_ydata()[0] == pytest.approx(0.85)
    assert display.floor_.get_label() == "limit, max_drop = 0.05"
    filled = [
        line.get_xydata().tolist()
        for line in display.ax_.lines
        if line.get_linestyle() == "None" and line.get_gid() == "certified"
    ]
    assert filled == [[[4, 0.90]], [[3.5, 0.89]]]
    assert_readable(display.figure_)


def test_tuning_by_its_risk_and_in_time():
    display = ExitTradeoffDisplay.from_tuned(
        tuned_results(cost="time"), quality="risk", name=["sure", "even"]
    )
    np.testing.assert_allclose(display.lines_[0].get_xydata(), [[6, 0.04], [8, 0.01]])
    assert [line.get_label() for line in display.lines_] == ["sure", "even"]
    assert display.full_depth_.get_ydata()[0] == 0
    assert display.floor_.get_ydata()[0] == 0.05
    assert display.ax_.get_xlabel() == "Time per text (ms)"
    assert display.ax_.get_ylabel() == "Risk: disagreement with full depth"
    assert [text.get_text() for text in display.ax_.texts] == ["2", "6"]
    assert_readable(display.figure_)


def test_tuning_without_labels_has_a_risk_only():
    tuner = tuned_results(full_depth_score_=np.nan)
    tuner.cv_results_["score"][:] = np.nan
    with pytest.raises(ValueError, match="had no labels. Pass quality='risk'"):
        ExitTradeoffDisplay.from_tuned(tuner)
    display = ExitTradeoffDisplay.from_tuned(tuner, quality="risk")
    np.testing.assert_allclose(display.lines_[0].get_xydata(), [[3, 0.04], [4, 0.01]])


def test_tuning_for_quality_has_neither_limit_nor_certificates():
    tuner = tuned_results(objective="quality", guaranteed_=False)
    display = ExitTradeoffDisplay.from_tuned(tuner)
    assert display.floor_ is None and display.certified is None
    labels = display.ax_.get_legend_handles_labels()[1]
    assert not any("certified" in label for label in labels)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"risk": "score"}, "Risk: right at full depth, wrong here"),
        ({"scoring": "f1_macro", "guaranteed_": False}, "Drop of F1 macro"),
    ],
)
def test_the_risk_is_named(changes, label):
    tuner = tuned_results(**changes)
    display = ExitTradeoffDisplay.from_tuned(tuner, quality="risk")
    assert display.ax_.get_ylabel() == label


def test_tuning_among_fixed_exits_only():
    tuner = tuned_results(rules=[None], best_index_=1)
    tuner.cv_results_ = {k: v[[0, 4]] for k, v in tuner.cv_results_.items()}
    display = ExitTradeoffDisplay.from_tuned(tuner)
    assert display.lines_ == []
    np.testing.assert_allclose(display.exits_.get_xdata(), [2, 6])
    assert display.chosen == (2.0, 0.80)


@pytest.mark.parametrize(
    ("cost", "label", "expected"),
    [
        ("flops", "FLOPs per text", [0.006, 0.008]),
        (lambda layer, X: layer, "Cost", [0.006, 0.008]),
        ("time", "Time per text (ms)", [6, 8]),
    ],
)
def test_costs_of_tuning_and_their_names(cost, label, expected):
    display = ExitTradeoffDisplay.from_tuned(tuned_results(cost=cost))
    np.testing.assert_allclose(display.lines_[0].get_xdata(), expected)
    assert display.ax_.get_xlabel() == label


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few texts certify little
def test_tuning_of_a_classifier(fitted):
    tuned = TunedExitClassifierCV(
        fitted, max_drop=0.4, cv="prefit", store_cv_results=True
    )
    tuned.fit(TEXTS[42:], LABELS[42:])
    display = ExitTradeoffDisplay.from_tuned(tuned)
    results = tuned.cv_results_
    of_rule = results["rule"] == "confidence"
    drawn = display.lines_[0].get_xydata()
    expected = np.column_stack([results["mean_exit_layer"], results["score"]])[of_rule]
    np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(expected, axis=0))
    np.testing.assert_allclose(display.chosen[0], tuned.cost_)
    assert_readable(display.figure_)
    # a tuned classifier is drawn as the one inside it
    of_both = [
        LayerScoreDisplay.from_estimator(clf, TEXTS[42:], LABELS[42:])
        for clf in (tuned, fitted)
    ]
    np.testing.assert_array_equal(*[display.scores for display in of_both])
    assert of_both[0].names == ["TunedExitClassifierCV"]
    assert GradientAngleDisplay.from_estimator(tuned).angles[0] is fitted.angles_


@pytest.mark.parametrize(
    "clf", [ACLClassifier(), TunedExitClassifierCV(ACLClassifier())]
)
@pytest.mark.parametrize("display", [LayerScoreDisplay, ExitTradeoffDisplay])
def test_classifiers_must_be_fitted(display, clf):
    with pytest.raises(NotFittedError):
        display.from_estimator(clf, TEXTS, LABELS)


# --- GradientAngleDisplay -----------------------------------------------------------


def test_angles_of_a_training(fitted):
    display = GradientAngleDisplay.from_estimator(fitted, name="joint")
    assert display.angles[0] is fitted.angles_
    n_steps = len(fitted.angles_)
    share = np.mean(fitted.history[:, "gated_share"])
    (line,) = display.lines_
    assert line.get_label() == f"joint: {share:.1%} of {n_steps} steps gated"
    (threshold,) = display.threshold_lines_
    assert threshold.get_ydata()[0] == 90
    assert threshold.get_label() == "threshold 90°"
    assert display.histogram_ax_ is not None
    assert_readable(display.figure_)


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_running_percentiles(window):
    rng = np.random.default_rng(0)
    values = rng.normal(70, 10, size=60)
    values[[3, 4, 5, 6, 30]] = np.nan
    places = np.array([0, 1, 5, 29, 30, 58, 59])
    found = running_percentiles(values, places, window, [10, 50, 90])
    for column, place in enumerate(places):
        before, after = (window - 1) // 2, window - 1 - (window - 1) // 2
        rows = [i for i in range(60) if place - before <= i <= place + after]
        finite = [values[i] for i in rows if not np.isnan(values[i])]
        expected = np.quantile(finite, [0.1, 0.5, 0.9]) if finite else [np.nan] * 3
        np.testing.assert_allclose(found[:, column], expected)


def test_the_band_and_the_median_drawn():
    angles = np.random.default_rng(1).normal(75, 9, size=1200)
    display = GradientAngleDisplay(angles=[angles]).plot(window=1200 * 2 + 1)
    np.testing.assert_allclose(display.lines_[0].get_ydata(), np.median(angles))
    heights = display.bands_[0].get_paths()[0].vertices[:, 1]
    expected = np.percentile(angles, [10, 90])
    np.testing.assert_allclose([heights.min(), heights.max()], expected)
    assert display.lines_[0].get_xdata()[[0, -1]].tolist() == [1, 1200]
    assert display.threshold_lines_ == []


def test_several_trainings_and_their_thresholds():
    rng = np.random.default_rng(2)
    angles = [rng.normal(75, 9, size=300), rng.normal(60, 5, size=200)]
    angles[1][:50] = np.nan
    display = GradientAngleDisplay(
        angles=angles, thresholds=[80.0, 80.0], names=["a", "b"]
    ).plot()
    shares = [np.mean(angles[0] > 80), np.mean(angles[1][50:] > 80) * 150 / 200]
    assert [line.get_label() for line in display.lines_] == [
        f"a: {shares[0]:.1%} of 300 steps gated",
        f"b: {shares[1]:.1%} of 200 steps gated, 50 without angle",
    ]
    assert len(display.threshold_lines_) == 1
    assert_readable(display.figure_)
    other = GradientAngleDisplay(angles=angles, thresholds=[80.0, 90.0]).plot()
    assert len(other.threshold_lines_) == 2


@pytest.mark.parametrize("n_steps", [1, 2, 7])
def test_hardly_any_steps(n_steps):
    angles = np.linspace(60, 70, n_steps).astype(np.float32)
    display = GradientAngleDisplay(angles=[angles], thresholds=[90.0]).plot()
    np.testing.assert_allclose(display.lines_[0].get_ydata(), angles)
    display.figure_.canvas.draw()
    low, high = display.ax_.get_xlim()
    ticks = [tick for tick in display.ax_.get_xticks() if low <= tick <= high]
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize(
    ("angles", "threshold"), [([np.nan, np.nan], None), ([np.nan], 90.0), ([], 90.0)]
)
def test_no_angle_at_all(angles, threshold):
    clf = SimpleNamespace(
        angles_=np.array(angles, dtype=np.float32), angle_threshold=threshold
    )
    with pytest.raises(ValueError, match="None of the .* steps has an angle") as caught:
        GradientAngleDisplay.from_estimator(clf)
    assert f"(here {threshold!r})" in str(caught.value)
    assert "angle_threshold=180 measures them" in str(caught.value)


def test_a_classifier_that_is_not_fitted():
    with pytest.raises(ValueError, match="ACLClassifier is not fitted"):
        GradientAngleDisplay.from_estimator(ACLClassifier())


def test_without_histogram(pyplot):
    _, ax = pyplot.subplots()
    display = GradientAngleDisplay(angles=[np.arange(60.0, 80.0)])
    display.plot(ax=ax, histogram=False)
    assert display.histogram_ax_ is None
    assert display.figure_.axes == [ax]
    with pytest.raises(ValueError, match="window=0 must be at least 1 step"):
        display.plot(window=0)


# --- matplotlib ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "call"),
    [
        (
            "LayerScoreDisplay.from_estimator",
            lambda: LayerScoreDisplay.from_estimator(None, None, None),
        ),
        (
            "LayerScoreDisplay.from_predictions",
            lambda: LayerScoreDisplay.from_predictions(None, None),
        ),
        (
            "LayerScoreDisplay.plot",
            lambda: LayerScoreDisplay(layers=[[1]], scores=[[1]]).plot(),
        ),
        (
            "ExitTradeoffDisplay.from_estimator",
            lambda: ExitTradeoffDisplay.from_estimator(None, None, None),
        ),
        (
            "ExitTradeoffDisplay.from_tuned",
            lambda: ExitTradeoffDisplay.from_tuned(None),
        ),
        (
            "GradientAngleDisplay.from_estimator",
            lambda: GradientAngleDisplay.from_estimator(None),
        ),
    ],
)
def test_without_matplotlib_the_error_comes_first(caller, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=f"{caller} requires matplotlib.*`plot` extra"
    ):
        call()


@pytest.mark.parametrize(
    "module",
    ["plotting", "exit_tradeoff", *(d.__module__.split(".")[1] for d in DISPLAYS)],
)
def test_matplotlib_is_imported_late(module):
    source = inspect.getsource(importlib.import_module(f"sklearn_acl.{module}"))
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = re.findall(r"(?:from|import) (\w+)", ast.unparse(node))
            assert not {"matplotlib", "mpl_toolkits"} & set(names)
