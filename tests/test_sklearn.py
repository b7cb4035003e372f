"""The classifier inside scikit-learn: clone, searches, pipelines, scorers, routing."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from joblib import parallel_config
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    f1_score,
    get_scorer,
    log_loss,
    make_scorer,
    roc_auc_score,
)
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_html_repr
from skorch.callbacks import EarlyStopping
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

N = 24
X = np.array(TEXTS[:N], dtype=object)
Y = np.array(LABELS[:N])
IS_FOOD = Y == "food"
NEW = TEXTS[N : N + 12]
NOWHERE = "no/such/backbone"
CV = StratifiedKFold(2, shuffle=True, random_state=0)

# the same three classes under other names
LABEL_KINDS = {
    "str": Y,
    "object": Y.astype(object),
    "int32 with gaps": np.array([{"food": 3, "sport": 5}.get(y, 90) for y in Y], "i4"),
    "bool": IS_FOOD,
}


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def make(backbone):
    """Factory of unfitted classifiers that train in a fraction of a second."""

    def factory(**parameters):
        settings = {"head_init": "linear_probe", "max_epochs": 1}
        settings |= {"random_state": 0, "verbose": 0} | parameters
        return ACLClassifier(backbone, **settings)

    return factory


@pytest.fixture(scope="module")
def fitted(make):
    """A fitted classifier of three classes; tests change no more than parameters."""
    return make().fit(X, Y)


@pytest.fixture
def borrowed(fitted):
    """`fitted`, with its parameters put back after the test."""
    before = fitted.get_params(deep=False)
    yield fitted
    for name in set(vars(fitted)) - set(before):
        if "__" in name:
            delattr(fitted, name)
    fitted.set_params(**before)


@pytest.fixture(scope="module")
def fitted_binary(make):
    return make().fit(X, IS_FOOD)


def weights_of(clf):
    return {name: w.clone() for name, w in clf.module_.state_dict().items()}


def assert_same_weights(actual, expected):
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight), name


# --- clone and parameters -----------------------------------------------------------


def test_clone_keeps_every_parameter(make):
    clf = make(
        n_layers=2,
        criterion__lam=0.25,
        class_weight={"food": 2.0},
        classes=["food", "sport", "weather"],
        exit_layer=1,
        callbacks=[("stop", EarlyStopping(patience=3))],
        callbacks__stop__patience=7,
        callbacks__print_log=None,
        optimizer__weight_decay=0.1,
        module__dropout=0.0,
        iterator_train__num_workers=0,
    )
    copy = clone(clf)
    before, after = clf.get_params(deep=False), copy.get_params(deep=False)
    assert before.keys() == after.keys()
    differ = {name for name in before if before[name] != after[name]}
    assert differ == {"callbacks"}  # copied, since callbacks have a state
    (name, callback), (copied_name, copied) = before["callbacks"] + after["callbacks"]
    assert copied_name == name
    assert copied is not callback and copied.patience == 3
    for name in ("module__dropout", "optimizer__weight_decay", "callbacks__print_log"):
        assert name in after


def test_the_parameters_of_callbacks_reach_the_callbacks(make):
    clf = make(
        callbacks=[("stop", EarlyStopping(patience=3, monitor="train_loss"))],
        callbacks__stop__patience=7,
        callbacks__print_log=None,
    )
    copy = clone(clf).fit(X, Y)
    callbacks = dict(copy.callbacks_)
    assert callbacks["stop"].patience == 7
    assert "print_log" not in callbacks  # None is skorch's way to switch one off


def test_a_clone_has_no_fitted_state(fitted, make):
    copy = clone(fitted)
    assert vars(copy).keys() == vars(make()).keys()
    for name in ("classes_", "n_exits_", "exit_layer_numbers_", "angles_", "module_"):
        assert hasattr(fitted, name) and not hasattr(copy, name)
    with pytest.raises(NotFittedError):
        copy.predict(NEW)


def test_a_clone_of_a_fitted_classifier_starts_from_pretrained_weights(fitted):
    again = clone(fitted).fit(X, Y)
    assert_same_weights(weights_of(again), weights_of(fitted))


def test_get_params_has_no_private_or_fitted_name(fitted):
    for deep in (False, True):
        names = fitted.get_params(deep=deep)
        assert not [name for name in names if name[0] == "_" or name[-1] == "_"]
    unused = {"compile", "dataset", "predict_nonlinearity", "torch_load_kwargs"}
    assert not unused & set(names)


def test_a_metadata_request_is_no_parameter_but_survives_clone(make):
    with config_context(enable_metadata_routing=True):
        clf = make().set_fit_request(sample_weight=True)
        copy = clone(clf)
        assert copy.get_params(deep=False) == clf.get_params(deep=False)
        assert copy.get_metadata_routing().fit.requests["sample_weight"] is True


def test_deep_parameters_include_the_callbacks(make):
    params = make(max_grad_norm=0.5).get_params()
    assert params["callbacks__gradient_clipping__gradient_clip_value"] == 0.5


@pytest.mark.parametrize(
    "parameters",
    [
        {"batch_size": 5},
        {"device": "cpu"},
        {"criterion__lam": 0.1},
        {"criterion__contrastive": None},
        {"module__dropout": 0.5},
        {"optimizer__weight_decay": 0.3},
        {"lr": 1.0, "max_epochs": 9, "angle_threshold": None},
        {"callbacks": [("stop", EarlyStopping())], "callbacks__print_log": None},
        {"head_init": "random", "pooling": "cls", "n_layers": 1, "strategy": "final"},
        {"random_state": 1, "backbone": NOWHERE, "classes": ["a", "b"]},
    ],
    ids=lambda parameters: ", ".join(parameters),
)
def test_set_params_after_fit_changes_no_weight_and_no_prediction(borrowed, parameters):
    before, addresses = weights_of(borrowed), _addresses(borrowed)
    proba = borrowed.predict_proba(NEW)
    assert borrowed.set_params(**parameters) is borrowed
    np.testing.assert_allclose(borrowed.predict_proba(NEW), proba, atol=1e-5)
    assert_same_weights(weights_of(borrowed), before)
    assert _addresses(borrowed) == addresses


def _addresses(clf):
    return [weight.data_ptr() for weight in clf.module_.parameters()]


def test_set_params_of_the_exit_layer_chooses_the_exit(borrowed):
    exits = borrowed.predict_proba_exits(NEW)
    before = weights_of(borrowed)
    for layer in (1, 2, np.int64(1)):
        proba = borrowed.set_params(exit_layer=layer).predict_proba(NEW)
        np.testing.assert_allclose(proba, exits[layer - 1], atol=1e-5)
    assert abs(exits[0] - exits[1]).max() > 1e-3
    assert_same_weights(weights_of(borrowed), before)


@pytest.mark.parametrize("fit_first", [False, True])
def test_set_params_never_checks(fit_first, make, borrowed):
    clf = borrowed if fit_first else make()
    nonsense = {
        "lr": "fast",
        "batch_size": -1,
        "exit_layer": 99,
        "device": "abacus",
        "criterion__lam": 7,
        "callbacks": 3,
        "module": None,
        "random_state": "x",
    }
    assert clf.set_params(**nonsense) is clf
    params = clf.get_params(deep=False)
    assert {name: params[name] for name in nonsense} == nonsense


@pytest.mark.parametrize("name", ["lamda", "compile", "_params_to_validate", "module_"])
def test_unknown_parameters_raise(name, make):
    with pytest.raises(ValueError, match=f"Invalid parameter '{name}' for estimator"):
        make().set_params(**{name: 1})
    with pytest.raises(TypeError, match=f"has no parameter '{name}'"):
        make(**{name: 1}).fit(X, Y)


# --- what X may be ------------------------------------------------------------------

SINGLE_TEXTS = {
    "list": list(X),
    "tuple": tuple(X),
    "str array": X.astype(str),
    "object array": X,
    "column": X.reshape(-1, 1),
    "Series": pd.Series(X, index=np.arange(N)[::-1] + 100),
    "string Series": pd.Series(X, index=list("abcdefghijklmnopqrstuvwx"), dtype="str"),
    "DataFrame": pd.DataFrame({"text": X}, index=np.arange(N) * 3),
    "polars Series": pl.Series(list(X)),
    "polars DataFrame": pl.DataFrame({"text": list(X)}),
}


@pytest.fixture(scope="module")
def cross_validated(make):
    return cross_val_predict(make(), list(X), Y, cv=CV, method="predict_proba")


@pytest.mark.parametrize("kind", SINGLE_TEXTS)
def test_cross_val_predict_of_every_container(kind, make, cross_validated):
    proba = cross_val_predict(
        make(), SINGLE_TEXTS[kind], Y, cv=CV, method="predict_proba"
    )
    np.testing.assert_array_equal(proba, cross_validated)


OTHER = np.roll(X, 1)
PAIRS = {
    "list of tuples": list(zip(X, OTHER, strict=True)),
    "list of lists": [list(pair) for pair in zip(X, OTHER, strict=True)],
    "array": np.column_stack([X, OTHER]),
    "DataFrame": pd.DataFrame({"a": X, "b": OTHER}, index=np.arange(N)[::-1]),
    "polars DataFrame": pl.DataFrame({"a": list(X), "b": list(OTHER)}),
}


@pytest.fixture(scope="module")
def cross_validated_pairs(make):
    pairs = PAIRS["list of tuples"]
    return cross_val_predict(make(), pairs, Y, cv=CV, method="predict_proba")


@pytest.mark.parametrize("kind", PAIRS)
def test_cross_val_predict_of_pairs(kind, make, cross_validated, cross_validated_pairs):
    proba = cross_val_predict(make(), PAIRS[kind], Y, cv=CV, method="predict_proba")
    np.testing.assert_array_equal(proba, cross_validated_pairs)
    assert abs(proba - cross_validated).max() > 1e-3  # the second text was read


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_cross_val_predict_is_a_loop_over_folds(method, make):
    result = cross_val_predict(make(), X, Y, cv=CV, method=method)
    for train, test in CV.split(X, Y):
        clf = make().fit(X[train], Y[train])
        np.testing.assert_array_equal(result[test], getattr(clf, method)(X[test]))


def test_cross_val_predict_of_two_classes_has_one_score_a_text(make):
    scores = cross_val_predict(make(), X, IS_FOOD, cv=CV, method="decision_function")
    labels = cross_val_predict(make(), X, IS_FOOD, cv=CV)
    assert scores.shape == (N,)
    np.testing.assert_array_equal(scores > 0, labels)


# --- labels -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_labels_keep_their_values_and_dtype(kind, make):
    y = LABEL_KINDS[kind]
    clf = make()
    grid = {"exit_layer": [1, 2]}
    predicted = {
        "fit": clone(clf).fit(X, y).predict(NEW),
        "cross_val_predict": cross_val_predict(clf, X, y, cv=CV),
        "GridSearchCV": GridSearchCV(clf, grid, cv=CV).fit(X, y).predict(NEW),
        "Pipeline": make_pipeline(FunctionTransformer(), clf).fit(X, y).predict(NEW),
        "CalibratedClassifierCV": (
            CalibratedClassifierCV(clf, cv=CV).fit(X, y).predict(NEW)
        ),
        "VotingClassifier": (
            VotingClassifier([("a", clf)], voting="soft").fit(X, y).predict(NEW)
        ),
    }
    for where, labels in predicted.items():
        assert labels.dtype == y.dtype, where
        assert set(labels) <= set(y), where
    np.testing.assert_array_equal(predicted["Pipeline"], predicted["fit"])
    np.testing.assert_array_equal(predicted["VotingClassifier"], predicted["fit"])


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_columns_follow_the_sorted_classes(kind, make):
    y = LABEL_KINDS[kind]
    clf = make().fit(X, y)
    np.testing.assert_array_equal(clf.classes_, np.unique(y))
    best = clf.predict_proba(NEW).argmax(axis=1)
    np.testing.assert_array_equal(clf.classes_[best], clf.predict(NEW))


# --- searches -----------------------------------------------------------------------

GRID = {
    "criterion__lam": [0.0, 0.5],
    "angle_threshold": [90.0, None],
    "exit_layer": [1, 2],
}


@pytest.fixture(scope="module")
def search(make):
    return GridSearchCV(make(), GRID, cv=CV, scoring="neg_log_loss").fit(X, Y)


def test_grid_search_tells_the_settings_apart(search):
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    by_setting = dict(zip(map(repr, search.cv_results_["params"]), scores, strict=True))
    assert len(by_setting) == 8
    # another exit or another loss is another score; without a contrastive term there
    # is no gate
    for setting, score in by_setting.items():
        other = setting.replace("'exit_layer': 1", "'exit_layer': 2")
        assert other == setting or score != by_setting[other]
        other = setting.replace("'criterion__lam': 0.0", "'criterion__lam': 0.5")
        assert other == setting or score != by_setting[other]
        if "'criterion__lam': 0.0" in setting:
            gated = setting.replace("threshold': None", "threshold': 90.0")
            assert score == by_setting[gated]


def test_the_best_estimator_of_a_grid_search_predicts(search, make):
    best = search.best_estimator_
    for name, value in search.best_params_.items():
        assert best.get_params()[name] == value
    alone = make(**search.best_params_).fit(X, Y)
    np.testing.assert_array_equal(search.predict(NEW), alone.predict(NEW))
    np.testing.assert_array_equal(search.predict_proba(NEW), alone.predict_proba(NEW))
    np.testing.assert_array_equal(search.transform(NEW), alone.transform(NEW))
    assert search.score(X, Y) == pytest.approx(-log_loss(Y, search.predict_proba(X)))
    np.testing.assert_array_equal(search.classes_, ["food", "sport", "weather"])


def test_two_processes_search_like_one(search, make):
    # to the bit, as long as both compute with the same number of threads
    parallel = GridSearchCV(make(), GRID, cv=CV, scoring="neg_log_loss", n_jobs=2)
    threads = torch.get_num_threads()
    with parallel_config(backend="loky", inner_max_num_threads=threads):
        parallel.fit(X, Y)
    actual, expected = parallel.cv_results_, search.cv_results_
    assert actual["params"] == expected["params"]
    for fold in ("split0_test_score", "split1_test_score"):
        np.testing.assert_array_equal(actual[fold], expected[fold])
    np.testing.assert_array_equal(
        parallel.predict_proba(NEW), search.predict_proba(NEW)
    )


def test_grid_search_inside_a_pipeline(make):
    pipeline = make_pipeline(FunctionTransformer(np.char.upper), make())
    grid = {
        "aclclassifier__exit_layer": [1, 2],
        "aclclassifier__criterion__lam": [0.1],
        "aclclassifier__module__dropout": [0.0],
    }
    search = GridSearchCV(pipeline, grid, cv=CV).fit(X.astype(str), Y)
    best = search.best_estimator_[-1]
    assert best.module__dropout == 0.0 and best.criterion__lam == 0.1
    assert search.predict(np.array(NEW)).shape == (len(NEW),)


def test_grid_search_over_the_parameters_of_a_callback(make):
    clf = make(callbacks=[("stop", EarlyStopping(monitor="train_loss"))])
    grid = {"callbacks__stop__patience": [1, 2], "optimizer__weight_decay": [0.0]}
    search = GridSearchCV(clf, grid, cv=CV).fit(X, Y)
    patience = search.best_params_["callbacks__stop__patience"]
    assert dict(search.best_estimator_.callbacks_)["stop"].patience == patience


def test_a_setting_that_cannot_be_scores_nan_and_says_why():
    # no backbone is found, so the error can only come from the check of parameters
    clf = ACLClassifier(NOWHERE)
    search = GridSearchCV(clf, {"criterion__lam": [2, 3]}, cv=CV)
    with pytest.raises(ValueError, match="criterion__lam=2"):
        search.fit(X, Y)
    search.set_params(error_score="raise")
    with pytest.raises(ValueError, match=r"criterion__lam=2 must be in \[0, 1\]"):
        search.fit(X, Y)


def test_a_setting_that_can_be_wins_over_one_that_cannot(make):
    search = GridSearchCV(make(), {"criterion__lam": [2, 0.5]}, cv=CV)
    with pytest.warns((FitFailedWarning, UserWarning)):
        search.fit(X, Y)
    assert search.best_params_ == {"criterion__lam": 0.5}
    assert np.isnan(search.cv_results_["mean_test_score"][0])


@pytest.mark.parametrize(
    "resource",
    [
        {"resource": "n_samples", "min_resources": 12},
        {"resource": "max_epochs", "max_resources": 2},
    ],
    ids=lambda resource: resource["resource"],
)
def test_halving_grid_search(resource, make):
    clf = make()
    search = HalvingGridSearchCV(
        clf,
        {"criterion__lam": [0.0, 0.5], "exit_layer": [1]},
        factor=2,
        cv=CV,
        random_state=0,
        **resource,
    )
    search.fit(X, Y)
    assert search.n_iterations_ == 2
    assert search.n_candidates_ == [2, 1]
    assert search.best_estimator_.exit_layer == 1
    assert search.predict(NEW).shape == (len(NEW),)
    if resource["resource"] == "max_epochs":
        assert len(search.best_estimator_.history) == 2


# --- ensembles and calibration ------------------------------------------------------


def test_calibration_by_cross_validation(make):
    calibrated = CalibratedClassifierCV(make(), cv=CV).fit(X, Y)
    proba = calibrated.predict_proba(NEW)
    assert proba.shape == (len(NEW), 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    for (train, _), part in zip(
        CV.split(X, Y), calibrated.calibrated_classifiers_, strict=True
    ):
        alone = make().fit(X[train], Y[train])
        assert_same_weights(weights_of(part.estimator), weights_of(alone))


def test_calibration_of_a_fitted_classifier_does_not_train_it(fitted):
    before = weights_of(fitted)
    calibrated = CalibratedClassifierCV(FrozenEstimator(fitted)).fit(TEXTS, LABELS)
    proba = calibrated.predict_proba(NEW)
    assert log_loss(LABELS, calibrated.predict_proba(TEXTS)) < np.log(3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert_same_weights(weights_of(fitted), before)


def test_a_frozen_classifier_is_not_fitted_again(fitted):
    before = weights_of(fitted)
    frozen = FrozenEstimator(fitted).fit(X, Y[::-1])
    assert clone(frozen) is frozen
    np.testing.assert_array_equal(frozen.predict(NEW), fitted.predict(NEW))
    assert_same_weights(weights_of(fitted), before)


def test_soft_voting_averages_probabilities(make):
    members = [("joint", make()), ("final", make(strategy="final", random_state=1))]
    voting = VotingClassifier(members, voting="soft").fit(X, Y)
    expected = np.mean([clf.predict_proba(NEW) for clf in voting.estimators_], axis=0)
    np.testing.assert_allclose(voting.predict_proba(NEW), expected)
    best = np.unique(Y)[expected.argmax(axis=1)]
    np.testing.assert_array_equal(voting.predict(NEW), best)


def test_hard_voting_and_stacking(make):
    voting = VotingClassifier([("a", make()), ("b", make(exit_layer=1))]).fit(X, Y)
    assert set(voting.predict(NEW)) <= set(Y)
    stacking = StackingClassifier([("a", make())], LogisticRegression(), cv=CV)
    stacking.fit(X, Y)
    assert set(stacking.predict(NEW)) <= set(Y)


def test_a_tuned_threshold(fitted_binary):
    tuned = TunedThresholdClassifierCV(
        FrozenEstimator(fitted_binary), scoring="f1", cv="prefit", refit=False
    ).fit(X, IS_FOOD)
    threshold = tuned.best_threshold_
    proba = fitted_binary.predict_proba(NEW)[:, 1]
    np.testing.assert_array_equal(tuned.predict(NEW), proba >= threshold)


# --- scorers ------------------------------------------------------------------------


def test_it_is_a_classifier(make):
    assert is_classifier(make())


@pytest.mark.parametrize(
    "name, expected",
    [
        ("accuracy", lambda clf: np.mean(clf.predict(X) == Y)),
        ("f1_macro", lambda clf: f1_score(Y, clf.predict(X), average="macro")),
        ("neg_log_loss", lambda clf: -log_loss(Y, clf.predict_proba(X))),
        (
            "roc_auc_ovr",
            lambda clf: roc_auc_score(Y, clf.predict_proba(X), multi_class="ovr"),
        ),
        (
            "roc_auc_ovo_weighted",
            lambda clf: roc_auc_score(
                Y, clf.predict_proba(X), multi_class="ovo", average="weighted"
            ),
        ),
    ],
)
def test_scorers(name, expected, fitted):
    assert get_scorer(name)(fitted, X, Y) == pytest.approx(expected(fitted))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("roc_auc", lambda clf: roc_auc_score(IS_FOOD, clf.predict_proba(X)[:, 1])),
        ("roc_auc", lambda clf: roc_auc_score(IS_FOOD, clf.decision_function(X))),
        ("f1", lambda clf: f1_score(IS_FOOD, clf.predict(X))),
        (
            "neg_brier_score",
            lambda clf: -np.mean((clf.predict_proba(X)[:, 1] - IS_FOOD) ** 2),
        ),
    ],
)
def test_scorers_of_two_classes(name, expected, fitted_binary):
    assert get_scorer(name)(fitted_binary, X, IS_FOOD) == pytest.approx(
        expected(fitted_binary)
    )


def test_several_scorers_at_once(make):
    scoring = ["neg_log_loss", "f1_macro", "roc_auc_ovr"]
    scores = cross_validate(make(), X, Y, cv=CV, scoring=scoring, return_estimator=True)
    for name in scoring:
        for fold, (_, test) in enumerate(CV.split(X, Y)):
            score = get_scorer(name)(scores["estimator"][fold], X[test], Y[test])
            assert scores[f"test_{name}"][fold] == pytest.approx(score)


def test_a_class_absent_from_a_fold_keeps_its_column(make):
    # "rain" occurs in the second half only, so that one of the folds trains without it
    y = Y.copy()
    y[-2:] = "rain"
    classes = np.unique(y)
    cv = KFold(2)
    scorer = make_scorer(
        log_loss,
        greater_is_better=False,
        response_method="predict_proba",
        labels=classes,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        without = cross_val_score(make(), X, y, cv=cv, scoring=scorer)
    assert np.isnan(without[1])  # trained on the first half of the classes
    clf = make(classes=classes)
    scores = cross_val_score(clf, X, y, cv=cv, scoring=scorer, error_score="raise")
    assert np.isfinite(scores).all()


def test_cross_val_predict_of_probabilities_numbers_the_labels(make):
    # scikit-learn does so before it fits, hence classes=range(4)
    y = Y.copy()
    y[-2:] = "rain"
    clf = make(classes=range(4))
    settings = {"cv": KFold(2), "method": "predict_proba"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proba = cross_val_predict(clf, X, y, **settings)
    assert proba.shape == (N, 4)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba > 0).all()
    with pytest.raises(TypeError, match=r"pass classes=range\(4\)"):
        cross_val_predict(make(classes=np.unique(y)), X, y, **settings)


def test_the_plain_log_loss_of_a_fold_that_trains_without_a_class(make):
    # all four classes are in the fold that is scored, three in the one that trains
    y = Y.copy()
    y[-1] = "rain"
    folds = [(np.arange(12), np.arange(12, N))]
    clf = make(classes=np.unique(y))
    scores = cross_val_score(
        clf, X, y, cv=folds, scoring="neg_log_loss", error_score="raise"
    )
    assert np.isfinite(scores).all()


# --- pipelines and transform --------------------------------------------------------


def test_embeddings_feed_another_classifier(make):
    pipeline = make_pipeline(make(), LogisticRegression()).fit(X, Y)
    embeddings = make().fit(X, Y).transform(X)
    alone = LogisticRegression().fit(embeddings, Y)
    np.testing.assert_array_equal(pipeline.predict(X), alone.predict(embeddings))
    assert pipeline.predict_proba(NEW).shape == (len(NEW), 3)
    assert pipeline[:-1].transform(NEW).shape == (len(NEW), 32)


def test_embeddings_depend_on_the_exit(make):
    grid = {"aclclassifier__exit_layer": [1, 2]}
    pipeline = make_pipeline(make(), LogisticRegression())
    search = GridSearchCV(pipeline, grid, cv=CV, scoring="neg_log_loss").fit(X, Y)
    first, second = search.cv_results_["mean_test_score"]
    assert first != second


def test_fit_transform_is_fit_then_transform(make, fitted):
    embeddings = make().fit_transform(X, Y)
    assert embeddings.dtype == np.float32
    np.testing.assert_array_equal(embeddings, fitted.transform(X))


@pytest.mark.parametrize("kind", ["Series", "DataFrame", "list"])
def test_embeddings_as_a_data_frame(kind, make):
    clf = make().set_output(transform="pandas")
    frame = clf.fit(SINGLE_TEXTS[kind], Y).transform(SINGLE_TEXTS[kind])
    names = [f"aclclassifier{i}" for i in range(32)]
    assert list(frame.columns) == names == list(clf.get_feature_names_out())
    index = getattr(SINGLE_TEXTS[kind], "index", None)
    expected = range(N) if kind == "list" else index
    assert list(frame.index) == list(expected)
    copy = clone(clf).fit(X, Y)
    np.testing.assert_array_equal(copy.transform(X), frame)
    assert isinstance(copy.transform(list(X)), pd.DataFrame)


def test_a_pipeline_hands_data_frames_on(make):
    pipeline = make_pipeline(make(), LogisticRegression())
    pipeline.set_output(transform="pandas").fit(X, Y)
    names = pipeline[-1].feature_names_in_
    np.testing.assert_array_equal(names, pipeline[:-1].get_feature_names_out())


def test_a_text_column_next_to_a_numeric_one(make):
    frame = pd.DataFrame({"text": X, "length": [len(text) for text in X]})
    columns = ColumnTransformer(
        [("text", make(), "text"), ("rest", "passthrough", ["length"])]
    )
    table = columns.fit_transform(frame, Y)
    assert table.shape == (N, 33)
    np.testing.assert_array_equal(table[:, -1], frame["length"])
    assert list(columns.get_feature_names_out())[-2:] == [
        "text__aclclassifier31",
        "rest__length",
    ]


def test_a_pipeline_passes_the_exit_on(make, fitted):
    pipeline = make_pipeline(FunctionTransformer(), make()).fit(X, Y)
    for layer in (1, 2):
        np.testing.assert_array_equal(
            pipeline.predict_proba(NEW, exit_layer=layer),
            fitted.predict_proba(NEW, exit_layer=layer),
        )


def test_a_pipeline_passes_weights_on(make):
    weights = np.linspace(0, 2, N)
    pipeline = make_pipeline(FunctionTransformer(), make())
    pipeline.fit(X, Y, aclclassifier__sample_weight=weights)
    alone = make().fit(X, Y, sample_weight=weights)
    assert_same_weights(weights_of(pipeline[-1]), weights_of(alone))


# --- metadata routing ---------------------------------------------------------------


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def test_weights_are_routed_through_a_search(routing, make):
    weights = np.linspace(0, 2, N)
    clf = make().set_fit_request(sample_weight=True)
    clf.set_score_request(sample_weight=True)
    search = GridSearchCV(clf, {"exit_layer": [1, 2]}, cv=CV)
    search.fit(X, Y, sample_weight=weights)
    alone = make().fit(X, Y, sample_weight=weights)
    assert_same_weights(weights_of(search.best_estimator_), weights_of(alone))
    for fold, (train, test) in enumerate(CV.split(X, Y)):
        part = make().fit(X[train], Y[train], sample_weight=weights[train])
        for i, layer in enumerate([1, 2]):
            score = part.score(
                X[test], Y[test], sample_weight=weights[test], exit_layer=layer
            )
            found = search.cv_results_[f"split{fold}_test_score"][i]
            assert found == pytest.approx(score)


def test_weights_are_routed_through_a_pipeline(routing, make):
    weights = np.linspace(0, 2, N)
    clf = make().set_fit_request(sample_weight=True)
    pipeline = make_pipeline(FunctionTransformer(), clf)
    pipeline.fit(X, Y, sample_weight=weights)
    alone = make().fit(X, Y, sample_weight=weights)
    assert_same_weights(weights_of(pipeline[-1]), weights_of(alone))


def test_weights_without_a_request_raise(routing, make):
    pipeline = make_pipeline(FunctionTransformer(), make())
    with pytest.raises(ValueError, match="sample_weight"):
        pipeline.fit(X, Y, sample_weight=np.ones(N))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_the_exit_is_routed_through_a_pipeline(routing, method, make, fitted):
    clf = make()
    getattr(clf, f"set_{method}_request")(exit_layer=True)
    pipeline = make_pipeline(FunctionTransformer(), clf).fit(X, Y)
    for layer in (1, 2):
        np.testing.assert_array_equal(
            getattr(pipeline, method)(NEW, exit_layer=layer),
            getattr(fitted, method)(NEW, exit_layer=layer),
        )


def test_the_exit_is_routed_to_a_transformer(routing, make, fitted):
    clf = make().set_transform_request(exit_layer=True)
    pipeline = make_pipeline(clf, FunctionTransformer()).fit(X, Y)
    for layer in (1, 2):
        np.testing.assert_array_equal(
            pipeline.transform(NEW, exit_layer=layer),
            fitted.transform(NEW, exit_layer=layer),
        )


# --- representations ----------------------------------------------------------------


def test_the_text_representation_shows_what_was_changed(make):
    assert repr(ACLClassifier()) == "ACLClassifier()"
    text = repr(make(criterion__lam=0.25, module__dropout=0.0))
    assert "criterion__lam=0.25" in text and "max_epochs=1" in text
    assert "temperature" not in text


@pytest.mark.parametrize("state", ["unfitted", "fitted", "pipeline", "search"])
def test_the_html_representation(state, make, fitted):
    estimator = {
        "unfitted": make(),
        "fitted": fitted,
        "pipeline": make_pipeline(make(), LogisticRegression()),
        "search": GridSearchCV(make(criterion__lam=0.25), {"exit_layer": [1, 2]}),
    }[state]
    html = estimator_html_repr(estimator)
    assert html == estimator._repr_html_() or "sk-container-id" in html
    for word in ("ACLClassifier", "criterion__temperature", "exit_layer"):
        assert word in html
    status = "Fitted" if state == "fitted" else "Not fitted"
    assert f"<span>{status}</span>" in html
    assert "text/html" in estimator._repr_mimebundle_()
