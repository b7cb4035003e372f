"""`exit_threshold`, `exit_rule` and `exit_patience` of the classifier."""

import copy
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier, TunedExitClassifierCV
from sklearn_acl.exit_rules import EXIT_RULES, first_exits, normalized_entropy
from sklearn_acl.shared_weights import sharing_weights

NEVER = {"confidence": 1.0, "entropy": 0.0, "patience": 1.0, "patience_entropy": 0.0}


def two_best_differ(proba, threshold):
    second, best = np.sort(proba[-1])[-2:]
    return bool(best - second > threshold)


def in_the_middle(proba, rule):
    """A threshold at which some texts leave and others stay."""
    if rule == "patience":
        return 0.0
    if rule is two_best_differ:
        second, best = np.moveaxis(np.sort(proba, axis=-1)[..., -2:], -1, 0)
        return float(np.median((best - second)[:2]))
    if "entropy" in rule:
        return float(np.median(normalized_entropy(proba[:2])))
    return float(np.median(proba[:2].max(axis=-1)))


def variant(classifier, **parameters):
    """The same fitted model, weights shared, with other parameters."""
    return sharing_weights(classifier).set_params(**parameters)


@pytest.fixture(scope="module")
def fitted(tiny_bert):
    """Four layers; tests must not change it."""
    clf = ACLClassifier(
        tiny_bert,
        head_init="centroid",
        lr=1e-3,
        max_epochs=2,
        batch_size=6,
        random_state=0,
        verbose=0,
        device="cpu",
    )
    return clf.fit(TEXTS[:30], LABELS[:30])


@pytest.mark.parametrize("exit_layer", [None, 3, 1])
@pytest.mark.parametrize("rule", [*EXIT_RULES, two_best_differ])
def test_answers_are_those_of_the_exit_that_the_rule_finds(fitted, rule, exit_layer):
    proba = fitted.predict_proba_exits(TEXTS)[:exit_layer]
    threshold = in_the_middle(proba, rule)
    clf = variant(fitted, exit_rule=rule, exit_threshold=threshold, exit_patience=1)
    positions = first_exits(proba, rule, threshold, 1)
    rows = np.arange(len(TEXTS))
    if exit_layer is None:
        assert 1 < len(set(positions))  # or the law says nothing
    np.testing.assert_allclose(
        clf.predict_proba(TEXTS, exit_layer), proba[positions, rows], rtol=0, atol=1e-5
    )
    labels, layers = clf.predict(TEXTS, exit_layer, return_exit_layers=True)
    np.testing.assert_array_equal(layers, positions + 1)
    np.testing.assert_array_equal(
        labels, fitted.classes_[proba[positions, rows].argmax(axis=1)]
    )
    np.testing.assert_array_equal(clf.exit_layers(TEXTS, exit_layer), layers)
    np.testing.assert_array_equal(clf.predict(TEXTS, exit_layer), labels)
    assert clf.score(TEXTS, LABELS, exit_layer=exit_layer) == np.mean(labels == LABELS)
    for method in ("transform", "decision_function"):
        every = [getattr(fitted, method)(TEXTS, exit_layer=k) for k in (1, 2, 3, 4)]
        np.testing.assert_allclose(
            getattr(clf, method)(TEXTS, exit_layer),
            np.stack(every)[positions, rows],
            rtol=0,
            atol=1e-5,
        )


@pytest.mark.parametrize("exit_layer", [None, 2])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_a_threshold_that_never_fires_is_full_depth_to_the_bit(
    fitted, rule, exit_layer
):
    clf = variant(fitted, exit_rule=rule, exit_threshold=NEVER[rule])
    for method in ("predict_proba", "decision_function", "transform", "exit_layers"):
        np.testing.assert_array_equal(
            getattr(clf, method)(TEXTS, exit_layer),
            getattr(fitted, method)(TEXTS, exit_layer),
        )


def test_all_exits_do_not_depend_on_the_threshold(fitted):
    np.testing.assert_array_equal(
        variant(fitted, exit_threshold=0.4).predict_proba_exits(TEXTS),
        fitted.predict_proba_exits(TEXTS),
    )


@pytest.mark.parametrize(("rule", "sign"), [("confidence", 1), ("entropy", -1)])
def test_average_exit_layer_is_monotone(fitted, rule, sign):
    means = [
        variant(fitted, exit_rule=rule, exit_threshold=t).exit_layers(TEXTS).mean()
        for t in np.linspace(0, 1, 6)[::sign]
    ]
    assert (np.diff(means) >= 0).all()
    assert means[0] == 1
    assert means[-1] == 4


def test_without_a_threshold_all_texts_use_one_layer(fitted):
    assert fitted.exit_layers(TEXTS).tolist() == [4] * len(TEXTS)
    labels, layers = fitted.predict(TEXTS, exit_layer=2, return_exit_layers=True)
    assert layers.tolist() == [2] * len(TEXTS)
    np.testing.assert_array_equal(labels, fitted.predict(TEXTS, exit_layer=2))


def test_layers_of_one_exit_are_told_without_running_any(fitted, monkeypatch):
    def forward(*_, **__):
        raise AssertionError("the encoder ran")

    clf = variant(fitted, exit_layer=2)
    monkeypatch.setattr(type(clf.module_), "forward", forward)
    monkeypatch.setattr(type(clf.module_.backbone), "forward", forward)
    assert clf.exit_layers(TEXTS).tolist() == [2] * len(TEXTS)
    assert clf.exit_layers(TEXTS, exit_layer=3).tolist() == [3] * len(TEXTS)
    assert clf.exit_layers([]).shape == (0,)
    with pytest.raises(AssertionError, match="the encoder ran"):
        clf.predict(TEXTS)
    with pytest.raises(ValueError, match="row"):
        clf.exit_layers(["a text", None])


def test_no_texts(fitted):
    clf = variant(fitted, exit_threshold=0.5)
    assert clf.predict_proba([]).shape == (0, 3)
    assert clf.exit_layers([]).shape == (0,)


def test_predicting_sets_no_attribute(fitted):
    clf = variant(fitted, exit_threshold=0.5)
    before = set(vars(clf))
    clf.predict(TEXTS, return_exit_layers=True)
    clf.exit_layers(TEXTS)
    assert set(vars(clf)) == before


@pytest.mark.parametrize("how", ["pickle", "directory"])
def test_the_rule_is_stored(fitted, tmp_path, how):
    proba = fitted.predict_proba_exits(TEXTS)
    rule = "patience_entropy" if how == "directory" else two_best_differ
    clf = variant(
        fitted,
        exit_rule=rule,
        exit_threshold=in_the_middle(proba, rule),
        exit_patience=1,
    )
    if how == "pickle":
        joblib.dump(clf, tmp_path / "model.joblib")
        loaded = joblib.load(tmp_path / "model.joblib")
    else:
        clf.save(tmp_path / "model")
        loaded = ACLClassifier.load(tmp_path / "model")
    layers = clf.exit_layers(TEXTS)
    assert len(set(layers)) > 1
    np.testing.assert_array_equal(loaded.exit_layers(TEXTS), layers)
    assert pickle.loads(pickle.dumps(two_best_differ)) is two_best_differ


def test_save_refuses_to_leave_out_a_rule_that_is_in_use(fitted, tmp_path):
    clf = variant(fitted, exit_rule=two_best_differ, exit_threshold=0.3)
    with pytest.raises(TypeError, match="exit_rule=.*two_best_differ.*exit_threshold"):
        clf.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    clf.set_params(exit_threshold=None)
    with pytest.warns(UserWarning, match="exit_rule"):
        clf.save(tmp_path / "model")
    loaded = ACLClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), clf.predict_proba(TEXTS))


class Stores(Callback):
    """Stores the classifier after an epoch, and looks at it as loggers do."""

    def __init__(self, path):
        self.path = path

    def on_epoch_end(self, net, **kwargs):
        joblib.dump(net, self.path)
        self.copied_ = copy.deepcopy(net)
        self.parameters_ = net.get_params(), clone(net).get_params()


def test_a_callback_sees_and_stores_the_parameters_of_prediction(fitted, tmp_path):
    given = {"exit_layer": 3, "exit_threshold": 0.5}
    stores = Stores(tmp_path / "model.joblib")
    clf = clone(fitted).set_params(callbacks=[("stores", stores)], max_epochs=1)
    clf.set_params(**given).fit(TEXTS, LABELS)
    (stores,) = [c for name, c in clf.callbacks_ if name == "stores"]
    for parameters in stores.parameters_:
        assert given.items() <= parameters.items()
    for stored in (joblib.load(stores.path), stores.copied_):
        np.testing.assert_array_equal(stored.exit_layers(TEXTS), clf.exit_layers(TEXTS))
        np.testing.assert_array_equal(
            stored.predict_proba(TEXTS), clf.predict_proba(TEXTS)
        )


class Tunes(Callback):
    """Tunes the classifier, and draws a twin of it, while it trains."""

    def on_epoch_end(self, net, **kwargs):
        self.twin_ = sharing_weights(net)
        tuner = TunedExitClassifierCV(net, max_drop=0.9, confidence=None, cv="prefit")
        self.tuned_ = tuner.fit(TEXTS, LABELS)


def test_what_a_callback_makes_of_the_classifier_has_exits_of_its_own(fitted):
    tunes = Tunes()
    clf = clone(fitted).set_params(callbacks=[tunes], max_epochs=1, exit_layer=1)
    clf.set_params(exit_layer=None).fit(TEXTS, LABELS)
    assert tunes.tuned_.cost_ < 4
    assert tunes.tuned_.exit_layers(TEXTS).mean() == tunes.tuned_.cost_
    tunes.twin_.set_params(exit_layer=2)
    assert set(tunes.twin_.exit_layers(TEXTS)) == {2}


class SetsExit(Callback):
    """Chooses an exit while the classifier trains."""

    def on_epoch_end(self, net, **kwargs):
        net.set_params(exit_layer=2)


def test_an_exit_that_a_callback_chooses_stays_chosen(fitted):
    clf = clone(fitted).set_params(callbacks=[SetsExit()], max_epochs=1)
    clf.fit(TEXTS, LABELS)
    assert clf.exit_layer == 2
    assert set(clf.exit_layers(TEXTS)) == {2}


class Predicts(Callback):
    """What the classifier predicts after an epoch, and by which layers."""

    def on_epoch_end(self, net, **kwargs):
        self.layers_ = net.exit_layers(TEXTS)
        self.parameters_ = net.exit_layer, net.exit_threshold


@pytest.mark.parametrize("parameters", [{"exit_layer": 1}, {"exit_threshold": 0.0}])
def test_parameters_of_prediction_have_no_part_in_training(fitted, parameters):
    watch = Predicts()
    clf = clone(fitted).set_params(callbacks=[watch], **parameters)
    clf.fit(TEXTS[:30], LABELS[:30])
    assert (watch.layers_ == 4).all()  # predicted at full depth
    assert watch.parameters_ == (clf.exit_layer, clf.exit_threshold)
    assert clf.get_params(deep=False).items() >= parameters.items()
    assert (clf.exit_layers(TEXTS) == 1).all()
    np.testing.assert_array_equal(
        clf.predict_proba_exits(TEXTS), fitted.predict_proba_exits(TEXTS)
    )


def test_grid_search_over_thresholds(fitted):
    grid = {"exit_threshold": [None, 0.4, 0.9], "exit_rule": ["confidence", "entropy"]}
    search = GridSearchCV(
        clone(fitted).set_params(max_epochs=1, n_layers=2), grid, cv=2
    ).fit(TEXTS[:12], LABELS[:12])
    assert len(set(search.cv_results_["params"][0])) == 2
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


BAD = [
    ({"exit_threshold": 1.5}, ValueError, "exit_threshold=1.5 must be in"),
    ({"exit_threshold": "0.5"}, TypeError, "exit_threshold='0.5' must be a number"),
    ({"exit_threshold": True}, TypeError, "exit_threshold=True must be a number"),
    ({"exit_rule": "margin"}, ValueError, "exit_rule='margin' must be one of"),
    ({"exit_patience": 0}, ValueError, "exit_patience=0 must be an integer"),
    (
        {"exit_threshold": 0.5, "exit_rule": lambda proba, threshold: None},
        TypeError,
        "must return True or False",
    ),
]


@pytest.mark.parametrize(("parameters", "error", "words"), BAD)
def test_bad_values_are_named_before_a_text_runs(fitted, parameters, error, words):
    clf = variant(fitted, **parameters)  # set_params checks nothing
    for method in ("predict", "predict_proba", "exit_layers", "transform"):
        with pytest.raises(error, match=words):
            getattr(clf, method)(TEXTS)


def test_a_single_exit_has_nothing_to_choose(tiny_bert):
    final = ACLClassifier(tiny_bert, strategy="final", max_epochs=1, verbose=0)
    words = "exit_threshold=0.5: this model has one exit"
    with pytest.raises(ValueError, match=words):
        clone(final).set_params(exit_threshold=0.5).fit(TEXTS, LABELS)
    final.fit(TEXTS, LABELS).set_params(exit_threshold=0.5)
    with pytest.raises(ValueError, match=words):
        final.predict(TEXTS)
    assert (final.set_params(exit_threshold=None).exit_layers(TEXTS) == 4).all()
