"""scikit-learn's checks of an estimator, run on texts made of the checks' numbers.

`check_estimator` yields one check for estimators whose input is text. Here all of them
are listed as for a classifier of numbers; `OnNumbers` writes each row of numbers as a
text, so that the checks' own X and y reach the real classifier. What a check says about
X itself (NaN, complex numbers, `n_features_in_`) cannot be asked of texts: `EXCLUDED`
says so check by check.

`TunedExitClassifierCV` leaves X to its estimator. Around one that takes numbers it is
run through the checks as they are.
"""

import inspect
from functools import partial, wraps

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted
from tiny import LABELS, TEXTS, make_vocabulary

from sklearn_acl import ACLClassifier, TunedExitClassifierCV
from sklearn_acl.exit_rules import first_exits
from sklearn_acl.net import UNUSED_PARAMETERS

WORDS = [word for word in make_vocabulary() if word.isalpha() and len(word) > 1]
N_BINS = 24
NOWHERE = "no/such/backbone"


def as_texts(X):
    """Numbers as texts, a word a number; anything that is no table stays as it is.

    Two columns become pairs and any other count single texts, so that the checks that
    take columns away at prediction meet the same error that a user would.
    """
    if sparse.issparse(X):
        return X
    numbers = np.asarray(X)
    if numbers.ndim != 2 or (numbers.size and isinstance(numbers.flat[0], str)):
        return X
    bins = np.floor(2 * numbers.astype(float)).astype(int) % N_BINS
    shifted = bins + N_BINS * np.arange(numbers.shape[1])
    texts = np.array(WORDS, dtype=object)[shifted % len(WORDS)]
    if texts.shape[1] != 2:
        rows = [" ".join(row) for row in texts]
        texts = np.array(rows, dtype=object).reshape(-1, 1)
    if hasattr(X, "iloc"):
        return type(X)(texts, index=X.index, columns=["a", "b"][: texts.shape[1]])
    return texts


def on_texts(method):
    @wraps(method)
    def with_texts(self, X, *args, **kwargs):
        return method(self, as_texts(X), *args, **kwargs)

    return with_texts


class OnNumbers(ACLClassifier):
    """An `ACLClassifier` that reads tables of numbers, as the checks pass them."""

    fit = on_texts(ACLClassifier.fit)
    partial_fit = on_texts(ACLClassifier.partial_fit)
    predict = on_texts(ACLClassifier.predict)
    predict_proba = on_texts(ACLClassifier.predict_proba)
    predict_log_proba = on_texts(ACLClassifier.predict_log_proba)
    decision_function = on_texts(ACLClassifier.decision_function)
    transform = on_texts(ACLClassifier.transform)
    score = on_texts(ACLClassifier.score)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = False
        tags.input_tags.two_d_array = True
        return tags


#: Checks that `check_estimator` has for a classifier and that texts cannot undergo.
EXCLUDED = {
    "check_no_attributes_set_in_init": (
        "skorch's constructor also sets history_, initialized_ and virtual_params_, "
        "which it reads before fit; test_the_constructor_sets_parameters allows these "
        "three and no other"
    ),
    "check_n_features_in": (
        "wants n_features_in_, the number of numeric columns of X; texts have none"
    ),
    "check_n_features_in_after_fitting": (
        "wants the message about n_features_in_; that a switch between texts and pairs "
        "is an error is what check_classifiers_train, check_transformer_general and "
        "check_estimators_partial_fit_n_features find out here"
    ),
    "check_sample_weight_equivalence_on_dense_data": (
        "wants a fit on repeated rows to equal one on weights within 1e-7: batches and "
        "dropout differ, and repeated texts are positives of each other; "
        "test_weights_equal_repetitions has the case where both are one computation"
    ),
    "check_complex_data": (
        "wants the words 'Complex data not supported' about a table of complex "
        "numbers; test_tables_of_numbers_are_refused has our error"
    ),
    "check_estimators_empty_data_messages": (
        "wants an error for rows without features: these are empty texts, which must "
        "train; test_tables_of_numbers_are_refused has its other half, no rows"
    ),
    "check_estimators_nan_inf": (
        "wants the words NaN or inf about numbers in X; "
        "test_tables_of_numbers_are_refused has our error"
    ),
    "check_fit1d": "wants an error for a 1-d X, which is what a list of texts is",
    "check_fit2d_predict1d": (
        "wants the advice 'Reshape your data' for a 1-d X, which is what a list of "
        "texts is"
    ),
}

#: Checks that scikit-learn has for its own estimators only, run here as well.
ADDITIONAL = [
    "check_get_feature_names_out_error",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_inplace_ensure_writeable",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
]

_REGRESSORS = "for regressors"
_CLUSTERING = "for clusterers"
_OUTLIERS = "for outlier detectors"
_MULTI_OUTPUT = "for multi-label and multi-output classifiers; texts have one label"
_ARRAY_API = "for estimators of numeric arrays of the array API"
_HELPER = "called by checks that run here"
_FEATURE_NAMES = "compares names with feature_names_in_, the names of numeric columns"

#: Functions of scikit-learn's module that no classifier of this kind is asked to pass.
NOT_FOR_THIS_KIND = {
    "check_array_api_input_and_values": _ARRAY_API,
    "check_array_api_mixed_inputs": _ARRAY_API,
    "check_array_api_same_namespace": _ARRAY_API,
    "check_class_weight_balanced_classifiers": "takes data that no check passes to it",
    "check_class_weight_balanced_linear_classifier": "for linear classifiers",
    "check_classifier_multioutput": _MULTI_OUTPUT,
    "check_classifier_not_supporting_multiclass": "for purely binary classifiers",
    "check_classifiers_multilabel_output_format_decision_function": _MULTI_OUTPUT,
    "check_classifiers_multilabel_output_format_predict": _MULTI_OUTPUT,
    "check_classifiers_multilabel_output_format_predict_proba": _MULTI_OUTPUT,
    "check_classifiers_multilabel_representation_invariance": _MULTI_OUTPUT,
    "check_classifiers_predictions": _HELPER,
    "check_clusterer_compute_labels_predict": _CLUSTERING,
    "check_clustering": _CLUSTERING,
    "check_dataframe_column_names_consistency": _FEATURE_NAMES,
    "check_estimator": "runs the other checks",
    "check_estimators_data_not_an_array": _HELPER,
    "check_fit_non_negative": "for estimators of non-negative numbers",
    "check_nonsquare_error": "for estimators of pairwise distances",
    "check_outlier_contamination": _OUTLIERS,
    "check_outlier_corruption": _OUTLIERS,
    "check_outliers_fit_predict": _OUTLIERS,
    "check_outliers_train": _OUTLIERS,
    "check_param_validation": (
        "reads _parameter_constraints, which skorch overrides; test_parameters.py has "
        "the counterpart"
    ),
    "check_regressor_data_not_an_array": _REGRESSORS,
    "check_regressor_multioutput": _REGRESSORS,
    "check_regressors_int": _REGRESSORS,
    "check_regressors_no_decision_function": _REGRESSORS,
    "check_regressors_train": _REGRESSORS,
    "check_sample_weight_equivalence_on_sparse_data": "for estimators of sparse data",
    "check_sparsify_coefficients": "for estimators with a method sparsify",
    "check_transformer_get_feature_names_out": _FEATURE_NAMES,
    "check_transformer_get_feature_names_out_pandas": _FEATURE_NAMES,
    "check_transformer_preserve_dtypes": "for transformers that keep the dtype of X",
    "check_transformers_unfitted_stateless": "for transformers that need no fit",
}

#: Checks without X, or with one that must be refused as it is: run on the class itself.
ON_THE_CLASS_ITSELF = {
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_non_transformer_estimators_n_iter",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_transformer_n_iter",
    "check_valid_tag_types",
}

#: What a check needs to be learnt, where one pass at the default rate is too short.
SETTINGS = {
    "check_classifiers_train": {"head_init": "linear_probe"},
}

#: Checks at 1e-7 or closer: in single precision, other shapes round differently.
IN_SINGLE_PRECISION = {
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
}


def yielded_checks():
    yielded = estimator_checks.estimator_checks_generator(OnNumbers(NOWHERE))
    return [check for _, check in yielded]


def checks_to_run():
    checks = [check for check in yielded_checks() if name_of(check) not in EXCLUDED]
    extra = [getattr(estimator_checks, name) for name in ADDITIONAL]
    return checks + [partial(check, OnNumbers.__name__) for check in extra]


def name_of(check):
    while isinstance(check, partial):
        check = check.func
    return check.__name__


def id_of(check):
    settings = []
    name = name_of(check)
    while isinstance(check, partial):
        settings += [f"{key}={value}" for key, value in check.keywords.items()]
        check = check.func
    return ", ".join([name, *settings])


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.mark.parametrize("check", checks_to_run(), ids=id_of)
def test_scikit_learns_check_passes(check, backbone, monkeypatch):
    name = name_of(check)
    kind = ACLClassifier if name in ON_THE_CLASS_ITSELF else OnNumbers
    settings = {"max_epochs": 1, "verbose": 0, "random_state": 0}
    estimator = kind(backbone, **(settings | SETTINGS.get(name, {})))
    if name in IN_SINGLE_PRECISION:
        for function in ("assert_allclose", "assert_allclose_dense_sparse"):
            exact = getattr(estimator_checks, function)
            monkeypatch.setattr(estimator_checks, function, loosened(exact))
    # read by scikit-learn when a check switches array API dispatch on
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def loosened(assert_close):
    def assert_close_in_single_precision(actual, desired, err_msg="", **exact):
        assert exact.get("atol", 0) <= 1e-7  # else there is nothing to loosen
        assert_close(actual, desired, rtol=1e-5, atol=1e-5, err_msg=err_msg)

    return assert_close_in_single_precision


def test_every_check_runs_or_is_excluded_for_a_reason():
    defined = {
        name
        for name, value in vars(estimator_checks).items()
        if name.startswith("check_")
        and inspect.isfunction(inspect.unwrap(value))
        and value.__module__ == estimator_checks.__name__
    }
    run = {name_of(check) for check in checks_to_run()}
    lists = [run, EXCLUDED, NOT_FOR_THIS_KIND]
    assert set().union(*lists) == defined
    assert sum(map(len, lists)) == len(defined)


def test_only_checks_that_would_run_are_excluded():
    assert set(EXCLUDED) <= {name_of(check) for check in yielded_checks()}
    listed = ON_THE_CLASS_ITSELF | set(SETTINGS) | IN_SINGLE_PRECISION
    assert listed <= {name_of(check) for check in checks_to_run()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and complex as words
@pytest.mark.parametrize("name", sorted(EXCLUDED))
def test_an_excluded_check_would_fail(name, backbone):
    # so that no reason outlives what it says
    settings = {"max_epochs": 1, "verbose": 0, "random_state": 0}
    estimator = OnNumbers(backbone, **settings)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        getattr(estimator_checks, name)(OnNumbers.__name__, estimator)


# --- what stands in for excluded checks ---------------------------------------------


def test_the_constructor_sets_parameters_and_what_skorch_reads():
    clf = ACLClassifier(NOWHERE)
    public = {name for name in vars(clf) if not name.startswith("_")}
    unused = set(UNUSED_PARAMETERS)
    of_skorch = {"history_", "initialized_", "virtual_params_"}
    assert public - set(clf.get_params(deep=False)) == of_skorch | unused


@pytest.mark.parametrize(
    "X, error, match",
    [
        (np.zeros(4), TypeError, "must hold texts, but row 0 is of type float"),
        (np.zeros((4, 2)), TypeError, "must hold texts, but row 0"),
        (np.zeros((4, 3)), ValueError, r"\(4, 3\)"),
        (np.full(4, 1j), TypeError, "must hold texts, but row 0 is of type complex"),
        (np.full(4, np.inf), TypeError, "must hold texts, but row 0 is of type float"),
        (np.full(4, np.nan), ValueError, "4 missing texts, at rows 0, 1, 2, 3"),
        (np.empty((0, 1)), ValueError, "empty"),
        ([], ValueError, "empty"),
        (sparse.eye_array(4).todok(), ValueError, "sparse matrix"),
        (sparse.eye_array(4).tocsr(), ValueError, "sparse matrix"),
    ],
    ids=str,
)
def test_tables_of_numbers_are_refused_before_a_backbone_loads(X, error, match):
    clf = ACLClassifier(NOWHERE)
    y = ["a", "b"] * (X.shape[0] // 2 if sparse.issparse(X) else len(X) // 2)
    with pytest.raises(error, match=match):
        clf.fit(X, y)


def test_weights_equal_repetitions_where_nothing_else_tells_them_apart(tiny_backbone):
    # one batch, no dropout, cross-entropy from random heads: a weight of 2 is the text
    # twice. (Started heads leave a text out of its own class mean, once or twice.)
    backbone = tiny_backbone(
        "bert",
        num_hidden_layers=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    clf = ACLClassifier(
        backbone,
        head_init="random",
        criterion__contrastive=None,
        module__dropout=0.0,
        lr=1e-3,
        max_epochs=3,
        batch_size=64,
        random_state=0,
        verbose=0,
    )
    texts, labels = np.array(TEXTS[:24]), np.array(LABELS[:24])
    weights = np.random.default_rng(0).integers(0, 4, size=24)
    weighted = clone(clf).fit(texts, labels, sample_weight=weights)
    repeated = clone(clf).fit(texts.repeat(weights), labels.repeat(weights))
    unweighted = clone(clf).fit(texts, labels)
    expected = repeated.predict_proba_exits(texts)
    np.testing.assert_allclose(weighted.predict_proba_exits(texts), expected, atol=1e-5)
    assert abs(unweighted.predict_proba_exits(texts) - expected).max() > 1e-2


# --- the tuned exits ----------------------------------------------------------------


class NumericExits(ClassifierMixin, BaseEstimator):
    """Three logistic regressions on tables of numbers, ever less regularised."""

    exit_layer_numbers_ = (1, 2, 3)

    def __init__(
        self,
        exit_layer=None,
        exit_threshold=None,
        exit_rule="confidence",
        exit_patience=1,
    ):
        self.exit_layer = exit_layer
        self.exit_threshold = exit_threshold
        self.exit_rule = exit_rule
        self.exit_patience = exit_patience

    def fit(self, X, y):
        self.exits_ = [LogisticRegression(C=C).fit(X, y) for C in (0.01, 0.1, 1.0)]
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(self.exits_[0], name):
                setattr(self, name, getattr(self.exits_[0], name))
        return self

    def predict_proba_exits(self, X):
        check_is_fitted(self, "exits_")
        return np.array([clf.predict_proba(X) for clf in self.exits_])

    def predict_proba(self, X):
        proba = self.predict_proba_exits(X)[: self.exit_layer]
        if self.exit_threshold is None:
            return proba[-1]
        leaving = self.exit_rule, self.exit_threshold, self.exit_patience
        return proba[first_exits(proba, *leaving), np.arange(proba.shape[1])]

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


#: Checks that the tuned exits cannot undergo.
EXCLUDED_OF_TUNED = {
    "check_complex_data": (
        "wants the words 'Complex data not supported'; the labels, which are complex, "
        "too, are looked at first, and the error is about them"
    ),
}


def tuned_numbers():
    return TunedExitClassifierCV(
        NumericExits(), max_drop=0.5, thresholds=3, random_state=0
    )


def checks_of_tuned():
    yielded = estimator_checks.estimator_checks_generator(tuned_numbers())
    checks = [check for _, check in yielded]
    extra = partial(estimator_checks.check_param_validation, "TunedExitClassifierCV")
    return [check for check in checks if name_of(check) not in EXCLUDED_OF_TUNED] + [
        extra
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")  # too few rows for a guarantee
@pytest.mark.parametrize("check", checks_of_tuned(), ids=id_of)
def test_scikit_learns_check_passes_for_tuned_exits(check, monkeypatch):
    # read by scikit-learn when a check switches array API dispatch on
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(tuned_numbers())


def test_the_checks_of_tuned_exits_are_those_of_a_classifier():
    assert len(checks_of_tuned()) > 45
    names = {name_of(check) for check in checks_of_tuned()}
    assert {"check_classifiers_train", "check_n_features_in"} <= names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXCLUDED_OF_TUNED)
def test_an_excluded_check_of_tuned_exits_would_fail(name):
    with pytest.raises((AssertionError, TypeError, ValueError)):
        getattr(estimator_checks, name)("TunedExitClassifierCV", tuned_numbers())
