"""The tuned exits: what is guaranteed, what is chosen, and how it behaves elsewhere."""

import pickle
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from scipy.stats import binom
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, f1_score, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    GroupShuffleSplit,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
    StratifiedShuffleSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted
from tiny import LABELS, TEXTS
from torch.utils.flop_counter import FlopCounterMode

from sklearn_acl import ACLClassifier, exit_costs, prediction_time
from sklearn_acl.exit_rules import first_exits
from sklearn_acl.exit_selection import (
    Candidate,
    Evaluation,
    certify,
    cheapest,
    evaluate,
    make_candidates,
)
from sklearn_acl.risk import binomial_p_value, binomial_upper_bound, smallest_n
from sklearn_acl.shared_weights import sharing_encoder
from sklearn_acl.tuning import TunedExitClassifierCV
from sklearn_acl.tuning_checks import columns_of


class Exits(ClassifierMixin, BaseEstimator):
    """Looks answers up: a text is its row in `proba` (n_exits, n_texts, n_classes)."""

    def __init__(
        self,
        proba,
        exit_layer=None,
        exit_threshold=None,
        exit_rule="confidence",
        exit_patience=1,
    ):
        self.proba = proba
        self.exit_layer = exit_layer
        self.exit_threshold = exit_threshold
        self.exit_rule = exit_rule
        self.exit_patience = exit_patience

    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.arange(self.proba.shape[2])
        self.rows_ = list(X)
        self.weights_ = sample_weight
        return self

    @property
    def exit_layer_numbers_(self):
        return tuple(range(1, len(self.proba) + 1))

    def predict_proba_exits(self, X):
        return self.proba[:, np.asarray(X)]

    def exit_layers(self, X):
        proba = self.predict_proba_exits(X)[: self.exit_layer]
        if self.exit_threshold is None:
            return np.full(proba.shape[1], len(proba))
        rule, threshold = self.exit_rule, self.exit_threshold
        return 1 + first_exits(proba, rule, threshold, self.exit_patience)

    def predict_proba(self, X):
        rows = np.arange(len(X))
        return self.predict_proba_exits(X)[self.exit_layers(X) - 1, rows]

    def predict(self, X, return_exit_layers=False):
        labels = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return (labels, self.exit_layers(X)) if return_exit_layers else labels


# --- populations: tables of answers whose risks are known ---------------------------

POPULATION = 4000


def table(answers, confidences):
    """Probabilities (n_exits, n, 2) of predicted classes and their confidences."""
    second = np.where(np.array(answers) == 1, confidences, 1 - np.array(confidences))
    return np.stack([1 - second, second], axis=-1)


@cache
def easy_population():
    """Six exits, ever surer and more often right; and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, POPULATION)
    ease = 0.5 + rng.exponential(1.0, POPULATION)
    logits = np.cumsum(rng.normal(size=(6, POPULATION, 3)), axis=0)
    logits[:, np.arange(POPULATION), labels] += np.arange(2, 8)[:, None] * ease
    exps = np.exp(logits)
    return exps / exps.sum(axis=-1, keepdims=True), labels


def three_exits():
    """The first, third and last of `easy_population`."""
    proba, labels = easy_population()
    return proba[[0, 2, 5]], labels


@cache
def zigzag_population(share=0.023):
    """Three exits: a lower threshold brings losses, and a still lower one undoes them.

    Of `share` of the texts, exit 2 is wrong and more confident than exit 1, which is
    right.
    """
    answers = np.zeros((3, POPULATION), dtype=int)
    confidences = np.full((3, POPULATION), 0.99)
    confidences[0] = 0.75
    odd = np.arange(POPULATION) < share * POPULATION
    answers[1, odd], confidences[1, odd] = 1, 0.9
    confidences[0, odd] = 0.7
    late = np.arange(POPULATION) >= 0.9 * POPULATION
    answers[0, late], confidences[0, late] = 1, 0.6
    return table(answers, confidences), np.zeros(POPULATION, dtype=int)


@cache
def uneven_population():
    """Two exits and two classes; the first exit is wrong for a part of one class."""
    labels = (np.arange(POPULATION) % 10 == 0).astype(int)
    wrong = np.arange(POPULATION) % 50 == 0  # 2 % of all texts, 20 % of class 1
    wrong |= np.arange(POPULATION) % 400 == 10
    answers = np.stack([np.where(wrong, 0, labels), labels])
    return table(answers, np.full((2, POPULATION), 0.8)), labels


def true_losses(population, rule, thresholds, risk):
    """Loss of every text in a population under every threshold, text by text."""
    proba, labels = population
    losses = []
    for threshold in thresholds:
        of_threshold = []
        for text in range(POPULATION):
            exits = proba[:, text]
            position = next(
                i
                for i in range(len(exits))
                if i == len(exits) - 1 or exits[i].max() > threshold
            )
            answer, full = exits[position].argmax(), exits[-1].argmax()
            is_right = full == labels[text]
            wrong = answer != (full if risk == "disagreement" else labels[text])
            of_threshold.append(wrong and (risk == "disagreement" or is_right))
        losses.append(of_threshold)
    return np.array(losses)


# --- the guarantee ------------------------------------------------------------------

DRAWS = 1000
THRESHOLDS = [0.95, 0.85, 0.8, 0.72, 0.65, 0.5]
# levels just below the risk of a candidate, where tests err most
SETTINGS = {
    "easy": (three_exits, "disagreement", 0.018),
    "easy, accuracy": (three_exits, "score", 0.017),
    "risk not monotone": (zigzag_population, "disagreement", 0.02),
}


CANDIDATES = len(THRESHOLDS) + 1  # and full depth


def certified_by(
    population,
    rows,
    level,
    risk="disagreement",
    rules=("confidence",),
    thresholds=THRESHOLDS,
):
    """Evaluation of the candidates on rows of a population, and which are certified."""
    proba, labels = population
    candidates = make_candidates(rules, thresholds, len(proba))
    layers = np.arange(1, len(proba) + 1)
    evaluation = evaluate(
        candidates,
        proba[:, rows],
        layers,
        np.broadcast_to(layers[:, None], (len(layers), len(rows))),
        codes=labels[rows],
        risk=risk,
    )
    _, certified = certify(candidates, evaluation, level=level, alpha=0.05)
    return evaluation, certified


def are_too_risky(population, level, risk="disagreement"):
    """Candidates whose risk in the population is above the level."""
    risks = true_losses(population, "confidence", THRESHOLDS, risk).mean(axis=1)
    too_risky = np.concatenate([[False], risks > level])
    assert too_risky.any() and not too_risky[1:].all()
    return too_risky


def tolerated(probability):
    """Most errors in all draws that chance explains, but for one time in a thousand."""
    return binom.ppf(0.999, DRAWS, probability)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_risk_is_too_high_no_more_often_than_the_confidence_allows(setting):
    make, risk, level = SETTINGS[setting]
    population = make()
    too_risky = are_too_risky(population, level, risk)
    rng = np.random.default_rng(0)
    n_certified = np.zeros(CANDIDATES)
    any_too_risky = chosen_too_risky = 0
    for _ in range(DRAWS):
        rows = rng.integers(0, POPULATION, 400)
        evaluation, certified = certified_by(population, rows, level, risk)
        n_certified += certified
        # the stronger statement: none of all certified candidates is too risky
        any_too_risky += certified[too_risky].any()
        chosen_too_risky += too_risky[cheapest(evaluation.cost, certified)]
    assert chosen_too_risky <= any_too_risky <= tolerated(0.05)
    # and it is no empty statement: some that are not too risky pass, some that are
    assert n_certified[1] > DRAWS / 2
    assert any_too_risky > 0


def test_the_confidence_is_split_over_rules():
    settings = {
        "rules": ["confidence", "entropy", None],
        "thresholds": {"confidence": [0.95, 0.8], "entropy": [0.3, 0.53]},
    }
    level = 0.018
    everybody, _ = certified_by(three_exits(), range(POPULATION), level, **settings)
    too_risky = everybody.n_losses > level * POPULATION
    assert too_risky.any() and not too_risky.all()
    rng = np.random.default_rng(0)
    errors = 0
    for _ in range(DRAWS):
        rows = rng.integers(0, POPULATION, 400)
        _, certified = certified_by(three_exits(), rows, level, **settings)
        errors += certified[too_risky].any()
    assert 0 < errors <= tolerated(0.05)


def test_a_split_confidence_holds_for_rules_that_err_independently():
    """Four sequences, each with a risk that is just too high in the second place."""
    n, level = 400, 0.05
    risks = np.array([0.0] + [0.01, 0.0501, 0.2] * 4)
    places = [(None, 0)] + [(k // 3, 1 + k // 3) for k in range(12)]
    candidates = [Candidate(rule, 0.5, 1, sequence) for rule, sequence in places]
    unknown = np.full(len(risks), np.nan)
    rng = np.random.default_rng(0)
    errors = errors_unsplit = 0
    for _ in range(DRAWS):
        evaluation = Evaluation(n, rng.binomial(n, risks), unknown, unknown, unknown)
        for alpha in (0.05, 0.2):  # the latter: 0.05 for each, split over nothing
            _, certified = certify(candidates, evaluation, level=level, alpha=alpha)
            is_wrong = certified[risks > level].any()
            errors += is_wrong and alpha == 0.05
            errors_unsplit += is_wrong and alpha == 0.2
    assert 0 < errors <= tolerated(0.05)
    assert errors_unsplit > tolerated(0.05)


@pytest.mark.parametrize("risk", ["disagreement", "score"])
@pytest.mark.parametrize("rules", [("confidence",), ("confidence", "entropy", None)])
def test_the_tuner_chooses_what_the_simulation_does(risk, rules):
    rng = np.random.default_rng(0)
    tuner = prefit(
        three_exits, thresholds=THRESHOLDS, max_drop=0.03, risk=risk, rules=rules
    )
    chosen = []
    for _ in range(5):
        rows = rng.choice(POPULATION, 400, replace=False)
        evaluation, certified = certified_by(three_exits(), rows, 0.03, risk, rules)
        tuned = tuner.fit(rows, three_exits()[1][rows])
        assert (tuned.cv_results_["certified"] == certified).all()
        assert tuned.best_index_ == cheapest(evaluation.cost, certified)
        chosen.append(tuned.best_index_)
    assert len(set(chosen)) > 1


def test_one_of_the_risks_is_not_monotone():
    losses = true_losses(zigzag_population(), "confidence", THRESHOLDS, "disagreement")
    steps = np.diff(losses.mean(axis=1))
    assert (steps > 0).any() and (steps < 0).any()


def test_the_plain_estimate_would_choose_what_is_too_risky():
    population = uneven_population()
    too_risky = are_too_risky(population, 0.02)
    rng = np.random.default_rng(0)
    errors = 0
    for _ in range(200):
        rows = rng.integers(0, POPULATION, 300)
        evaluation, _ = certified_by(population, rows, 0.02)
        within = evaluation.n_losses / 300 <= 0.02
        errors += too_risky[cheapest(evaluation.cost, within)]
    assert errors > 40  # of 200


def test_the_guarantee_holds_for_a_stratified_share():
    population = uneven_population()
    too_risky = are_too_risky(population, 0.02)
    rng = np.random.default_rng(0)
    errors = 0
    for seed in range(DRAWS):
        drawn = rng.integers(0, POPULATION, 600)
        split = StratifiedShuffleSplit(1, test_size=0.5, random_state=seed)
        _, held_out = next(split.split(drawn, population[1][drawn]))
        _, certified = certified_by(population, drawn[held_out], 0.02)
        errors += certified[too_risky].any()
    assert 0 < errors <= tolerated(0.05)


@pytest.mark.parametrize("risk", ["disagreement", "score"])
def test_on_an_easy_problem_a_third_of_the_layers_is_saved(risk):
    proba, labels = easy_population()
    calibration, new = np.arange(600), np.arange(600, POPULATION)
    tuned = TunedExitClassifierCV(
        Exits(proba).fit([0], [0]), max_drop=0.05, risk=risk, cv="prefit"
    )
    tuned.fit(calibration, labels[calibration])
    assert tuned.guaranteed_
    assert tuned.exit_rule_ == "confidence"
    assert tuned.exit_layers(new).mean() <= 0.7 * 6
    full_depth = proba[-1, new].argmax(axis=1)
    assert np.mean(tuned.predict(new) != full_depth) <= 0.05
    drop = np.mean(full_depth == labels[new]) - tuned.score(new, labels[new])
    assert drop <= 0.05


# --- the choice, recomputed ---------------------------------------------------------


def prefit(population=easy_population, exit_layer=None, **parameters):
    """Unfitted tuner around a fitted table of answers."""
    estimator = Exits(population()[0], exit_layer=exit_layer).fit([0], [0])
    settings = {"cv": "prefit", "store_cv_results": True, "max_drop": 0.05}
    settings |= {"thresholds": 40}
    return TunedExitClassifierCV(estimator, **settings | parameters)


def fit(tuner, n=500, population=easy_population):
    return tuner.fit(np.arange(n), population()[1][:n])


def positions_of(row, proba):
    """Exit at which each text leaves, for a row of `cv_results_`."""
    if row["rule"] is None:
        return np.full(proba.shape[1], row["exit_layer"] - 1)
    return first_exits(proba, row["rule"], row["threshold"], 1)


def rows_of(results):
    columns = zip(*results.values(), strict=True)
    return [dict(zip(results, row, strict=True)) for row in columns]


@pytest.mark.parametrize("risk", ["disagreement", "score"])
@pytest.mark.parametrize("exit_layer", [None, 4])
def test_results_of_every_candidate(risk, exit_layer):
    n, rules = 500, ["confidence", None, "entropy"]
    tuned = fit(prefit(risk=risk, rules=rules, exit_layer=exit_layer, thresholds=7))
    proba, labels = easy_population()
    proba, labels = proba[:exit_layer, :n], labels[:n]
    full_depth = proba[-1].argmax(axis=1)
    for row in rows_of(tuned.cv_results_):
        positions = positions_of(row, proba)
        answers = proba[positions, np.arange(n)].argmax(axis=1)
        lost = answers != full_depth
        if risk == "score":
            lost = (full_depth == labels) & (answers != labels)
        assert row["risk"] == pytest.approx(lost.mean())
        assert row["mean_exit_layer"] == row["cost"] == (1 + positions).mean()
        assert row["score"] == accuracy_score(labels, answers)
        if row["rule"] is None and row["exit_layer"] == len(proba):
            assert row["p_value"] == 0 and row["certified"]
        else:
            p_value = binomial_p_value(lost.sum(), n, 0.05)
            assert row["p_value"] == pytest.approx(p_value)
    assert len(tuned.cv_results_["risk"]) == 1 + 7 + (len(proba) - 1) + 7
    assert tuned.full_depth_score_ == np.mean(full_depth == labels)


def test_the_cheapest_certified_candidate_is_chosen():
    tuned = fit(prefit(rules=["confidence", None, "entropy"]))
    results = pd.DataFrame(tuned.cv_results_)
    keys = results["rule"].map(str) + (results.index == 0).astype(str)
    for _, sequence in results[1:].groupby(keys[1:], sort=False):
        passed = (sequence["p_value"] <= 0.05 / 3).cumprod().astype(bool)
        assert (sequence["certified"] == passed).all()
        assert passed.any() and not passed.all()
    certified = results[results["certified"]]
    assert tuned.best_index_ == certified["cost"].idxmin()
    row = results.loc[tuned.best_index_]
    assert (tuned.exit_rule_, tuned.exit_threshold_) == (row["rule"], row["threshold"])
    assert (tuned.cost_, tuned.risk_) == (row["cost"], row["risk"])
    assert tuned.best_score_ == row["score"]
    n_losses = round(tuned.risk_ * 500)
    bound = binomial_upper_bound(n_losses, 500, 0.05 / 3)
    assert tuned.risk_bound_ == pytest.approx(bound)
    assert tuned.risk_ < tuned.risk_bound_ <= 0.05


def test_a_later_candidate_is_not_reached_past_one_that_fails():
    tuner = prefit(zigzag_population, thresholds=THRESHOLDS)
    with pytest.warns(UserWarning, match="Full depth stays in use"):
        tuned = fit(tuner, 92, zigzag_population)
    results = tuned.cv_results_  # of the odd texts only
    assert results["risk"].tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert results["certified"].tolist() == [True, True] + [False] * 5
    assert tuned.exit_threshold_ is None  # nothing is gained at 0.95


RULES = {
    "confidence": [0.9, 0.6, 0.3],
    "patience": [0.9, 0.6, 0.3],
    "entropy": [0.1, 0.5, 0.8],
    "patience_entropy": [0.1, 0.5, 0.8],
}


@pytest.mark.parametrize("rule", RULES)
def test_candidates_go_from_late_to_early_whatever_the_order_given(rule):
    proba = easy_population()[0][:, :300]
    for thresholds in (RULES[rule], RULES[rule][::-1], 12):
        candidates = make_candidates([rule], thresholds, 6)[1:]
        layers = [first_exits(proba, rule, c.threshold, 2) for c in candidates]
        assert (np.diff(layers, axis=0) <= 0).all()
        assert (layers[0] > layers[-1]).any()
    assert len(candidates) == 12


def test_fixed_exits_go_from_deep_to_shallow():
    positions = [c.position for c in make_candidates([None], 100, 5)]
    assert positions == [4, 3, 2, 1, 0]  # full depth, then the others


def is_sure(proba, threshold):
    return bool(proba[-1].max() > threshold)


def test_a_function_is_a_rule_whose_thresholds_keep_their_order():
    thresholds = [0.9, 0.99, 0.4]
    ours = fit(prefit(rules=[is_sure], thresholds={is_sure: thresholds}))
    theirs = fit(prefit(rules=["confidence"], thresholds=thresholds))
    assert ours.cv_results_["threshold"][1:].tolist() == thresholds
    assert theirs.cv_results_["threshold"][1:].tolist() == [0.99, 0.9, 0.4]
    by_threshold = np.argsort(thresholds)[::-1]
    ours_ordered = ours.cv_results_["risk"][1:][by_threshold]
    assert ours_ordered.tolist() == theirs.cv_results_["risk"][1:].tolist()


def test_thresholds_by_rule():
    tuned = fit(
        prefit(rules=["confidence", "entropy"], thresholds={"confidence": [0.5, 0.9]})
    )
    counts = pd.Series(tuned.cv_results_["rule"]).value_counts()
    assert counts.to_dict() == {"confidence": 2, "entropy": 100}


def test_a_fixed_exit_is_put_in_use():
    tuned = fit(prefit(rules=[None], max_drop=0.2))
    assert tuned.exit_rule_ is None and tuned.exit_threshold_ is None
    assert tuned.exit_layer_ < 6
    assert tuned.best_params_ == {
        "exit_layer": tuned.exit_layer_,
        "exit_threshold": None,
    }
    assert (tuned.exit_layers(np.arange(9)) == tuned.exit_layer_).all()


def test_the_patience_of_the_estimator_is_used():
    estimator = Exits(easy_population()[0], exit_patience=3).fit([0], [0])
    tuner = prefit(rules=["patience"], max_drop=0.2).set_params(estimator=estimator)
    tuned = fit(tuner)
    assert tuned.exit_patience_ == tuned.estimator_.exit_patience == 3
    assert tuned.exit_rule_ == "patience"
    assert tuned.exit_layers(np.arange(500)).min() == 4


# --- full depth stays ---------------------------------------------------------------


def assert_full_depth(tuned):
    n_exits = len(tuned.estimator_.proba)
    assert tuned.exit_layer_ == n_exits
    assert tuned.exit_rule_ is tuned.exit_threshold_ is None
    assert (tuned.exit_layers(np.arange(50)) == n_exits).all()
    assert tuned.risk_ == tuned.risk_bound_ == 0
    assert tuned.best_score_ == tuned.full_depth_score_


@pytest.mark.parametrize("rules", [["confidence"], ["confidence", "entropy", None]])
def test_the_smallest_number_of_texts_that_certifies(rules):
    """All texts agree at every exit: one text less, and nothing can be certified."""
    proba = np.repeat(easy_population()[0][-1:], 4, axis=0)
    estimator = Exits(proba).fit([0], [0])
    tuner = TunedExitClassifierCV(estimator, max_drop=0.03, cv="prefit", rules=rules)
    needed = smallest_n(0.03, 0.05 / len(rules))
    tuned = fit(tuner, needed)
    assert tuned.n_calibration_ == tuned.n_required_ == needed
    assert tuned.exit_layers(np.arange(50)).mean() == 1

    message = f"{needed - 1} calibration texts are too few.* at least {needed},"
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = fit(tuner, needed - 1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert_full_depth(tuned)


def test_too_few_texts_are_reported_before_the_fit():
    class Untrainable(Exits):
        def fit(self, X, y):
            raise AssertionError

    tuner = TunedExitClassifierCV(Untrainable(easy_population()[0]), random_state=0)
    with pytest.warns(UserWarning, match="200 calibration texts are too few"):
        with pytest.raises(AssertionError):
            fit(tuner, 1000)
    with pytest.raises(NotFittedError):
        check_is_fitted(tuner)


def test_nothing_within_the_floor():
    proba = easy_population()[0].copy()
    proba[:-1] = proba[:-1, :, ::-1]  # wrong and sure of it
    tuner = prefit(max_drop=0.05).set_params(estimator=Exits(proba).fit([0], [0]))
    with pytest.warns(UserWarning, match="no exit rule within max_drop=0.05") as got:
        tuned = fit(tuner)
    assert len(got) == 1 and got[0].filename == __file__
    assert_full_depth(tuned)
    assert tuned.best_index_ == 0


def test_a_single_exit():
    with pytest.warns(UserWarning, match="one exit in use, after layer 1") as caught:
        tuned = fit(prefit(exit_layer=1))
    assert len(caught) == 1
    assert tuned.exit_layer_ == 1 and tuned.exit_threshold_ is None


def one_exit_of(exit_layer=None, n_exits=6, **attributes):
    estimator = Exits(easy_population()[0][:n_exits], exit_layer=exit_layer)
    vars(estimator).update(attributes)
    return estimator.fit([0], [0])


@pytest.mark.parametrize(
    "estimator, advice",
    [
        (one_exit_of(exit_layer=1), "Raise its exit_layer=1, or set it to None"),
        (one_exit_of(n_exits=1, strategy="final"), "Fit it with strategy='joint'"),
        (one_exit_of(n_exits=1, strategy="joint"), r"with more layers \(n_layers\)"),
    ],
    ids=["exit_layer", "strategy", "n_layers"],
)
def test_how_to_get_more_exits(estimator, advice):
    with pytest.warns(UserWarning, match=f"one exit in use.*{advice}"):
        fit(prefit().set_params(estimator=estimator))


@pytest.mark.parametrize(
    "rule, patience", [("patience", 1), ("patience_entropy", 2), ("confidence", 1)]
)
def test_a_rule_that_cannot_fire(rule, patience):
    estimator = Exits(easy_population()[0], exit_layer=2, exit_patience=patience)
    tuner = prefit(rules=[rule], thresholds=[1.0 if rule == "confidence" else 0.5])
    tuner.set_params(estimator=estimator.fit([0], [0]))
    message = f"No text leaves before layer 2 by '{rule}' .*exit_patience={patience}"
    with pytest.warns(UserWarning, match=message):
        fit(tuner)


IDLE = [
    (["confidence", "patience"], 5, "'patience'"),
    (["confidence", "patience_entropy"], 6, "'patience_entropy'"),
    (["confidence", "patience", "patience_entropy"], 5, "'patience'"),
    (
        ["patience", "confidence", "patience_entropy"],
        9,
        "'patience' and 'patience_entropy'",
    ),
]


@pytest.mark.parametrize("parameters", [{}, {"confidence": None}])
@pytest.mark.parametrize("rules, patience, idle", IDLE)
def test_a_rule_that_can_never_fire_is_named_though_others_do(
    rules, patience, idle, parameters
):
    tuner = prefit(rules=rules, max_drop=0.2, **parameters)
    tuner.set_params(estimator__exit_patience=patience)
    share = "" if parameters else ", each of which takes its share of 1 - confidence"
    message = (
        f"^exit_patience={patience} is too high for 6 exits in use: by {idle}, no text "
        f"can leave .* or leave {idle} out of rules{share}.$"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = fit(tuner)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert tuned.exit_threshold_ is not None
    never = np.isin(tuned.cv_results_["rule"].astype(str), idle.split("'")[1::2])
    assert (tuned.cv_results_["mean_exit_layer"][never] == 6).all()


@pytest.mark.parametrize("rule, patience", [("patience", 4), ("patience_entropy", 5)])
def test_a_rule_that_fires_at_the_last_but_one_exit_is_not_named(
    rule, patience, recwarn
):
    tuner = prefit(rules=[rule], max_drop=0.2)
    tuner.set_params(estimator__exit_patience=patience)
    assert fit(tuner).exit_layers(np.arange(500)).min() == 5
    assert not recwarn.list


def test_a_rule_that_can_never_fire_is_named_once():
    """Where full depth stays, the message about that says it."""
    tuner = prefit(rules=["patience"]).set_params(estimator__exit_patience=7)
    message = "no exit rule.*by 'patience' .*exit_patience=7"
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = fit(tuner)
    assert len(caught) == 1
    assert_full_depth(tuned)


def test_too_few_texts_and_a_rule_that_can_never_fire():
    tuner = prefit(rules=["confidence", "patience"])
    tuner.set_params(estimator__exit_patience=7)
    with pytest.warns(UserWarning) as caught:
        fit(tuner, 30)
    few, never = [str(warning.message) for warning in caught]
    assert "30 calibration texts are too few" in few
    assert never.startswith("exit_patience=7 is too high")


def test_a_guarantee_that_was_kept_says_nothing(recwarn):
    tuned = fit(prefit())
    assert not recwarn.list
    assert tuned.guaranteed_


# --- splits -------------------------------------------------------------------------

N = 500


@pytest.fixture
def labels():
    return easy_population()[1][:N]


@pytest.fixture
def make():
    """Tuner around an unfitted table of answers."""

    def factory(**parameters):
        settings = {"max_drop": 0.05, "random_state": 0, "store_cv_results": True}
        settings |= {"thresholds": 40}
        return TunedExitClassifierCV(
            Exits(easy_population()[0]), **settings | parameters
        )

    return factory


def test_a_share_is_held_out_by_default(make, labels):
    tuned = make().fit(np.arange(N), labels)
    fitted_on = tuned.estimator_.rows_
    assert len(fitted_on) == 400 and tuned.n_calibration_ == 100
    held_out = np.setdiff1d(np.arange(N), fitted_on)
    shares = np.bincount(labels[held_out]) / np.bincount(labels)
    assert shares == pytest.approx(0.2, abs=0.01)
    # the figures are those of the held-out texts
    assert tuned.full_depth_score_ == np.mean(
        easy_population()[0][-1, held_out].argmax(axis=1) == labels[held_out]
    )
    assert tuned.guaranteed_


def test_the_seed_decides_the_split(make, labels):
    def rows(random_state):
        return (
            make(random_state=random_state).fit(np.arange(N), labels).estimator_.rows_
        )

    assert rows(1) == rows(1) == rows(1)
    assert rows(1) != rows(2)
    state = np.random.RandomState(0)
    assert rows(state) != rows(state)
    before = np.random.get_state()[1].tolist()
    assert rows(None) != rows(None)
    assert np.random.get_state()[1].tolist() == before


def mask(*rows):
    is_in = np.zeros(N, dtype=bool)
    is_in[slice(*rows)] = True
    return is_in


@pytest.mark.parametrize(
    "cv",
    [
        [(np.arange(100, 500), np.arange(100))],
        [(mask(100, 500), mask(0, 100))],
        [([*range(100, 500), 100, 101], range(-500, -400))],  # a bootstrap sample
        iter([(np.arange(100, 500), np.arange(100))]),
        ShuffleSplit(1, test_size=100, random_state=0),
        StratifiedShuffleSplit(1, test_size=100, random_state=0),
    ],
    ids=["iterable", "masks", "repeated", "generator", "shuffle", "stratified"],
)
def test_a_splitter_with_one_split(make, labels, cv, recwarn):
    tuned = make(cv=cv).fit(np.arange(N), labels)
    assert tuned.guaranteed_ and tuned.n_calibration_ == 100
    assert set(range(N)) - set(tuned.estimator_.rows_) == (
        set(range(100)) if isinstance(cv, list) else set(held_out_of(tuned))
    )
    assert not recwarn.list


def held_out_of(tuned):
    held_out = set(range(N)) - set(tuned.estimator_.rows_)
    assert len(held_out) == 100
    return held_out


class EverySecond(ShuffleSplit):
    """A splitter that is not known, though it derives from one that is."""

    def split(self, X, y=None, groups=None):
        yield np.arange(1, len(X), 2), np.arange(0, len(X), 2)


@pytest.mark.parametrize(
    "cv, metadata",
    [
        (PredefinedSplit([0] * 100 + [-1] * 400), {}),
        (GroupShuffleSplit(1, random_state=0), {"groups": np.arange(N) // 50}),
        (EverySecond(1), {}),
    ],
    ids=["predefined", "groups", "subclass"],
)
def test_splits_that_are_no_random_draw_guarantee_nothing(make, labels, cv, metadata):
    with config_context(enable_metadata_routing=True):
        with pytest.warns(UserWarning, match="No guarantee with cv=") as caught:
            tuned = make(cv=cv).fit(np.arange(N), labels, **metadata)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert tuned.guaranteed_ is False
    assert_nothing_certified(tuned)
    assert tuned.exit_threshold_ is not None  # the tests decide nevertheless


def assert_nothing_certified(tuned):
    results = tuned.cv_results_
    assert np.isnan(results["p_value"]).all() and not results["certified"].any()
    assert results["certified"].dtype == bool
    assert np.isnan(tuned.risk_bound_)


STRATIFIED = {"share": 0.2, "splitter": StratifiedShuffleSplit(1, random_state=0)}
OTHERS = {
    "shuffle": ShuffleSplit(1, test_size=0.2, random_state=0),
    "pair": [(np.arange(100, N), np.arange(100))],
}


@pytest.mark.parametrize("rules", [["confidence"], ["confidence", None]])
@pytest.mark.parametrize("cv", STRATIFIED)
def test_a_stratified_split_guarantees_up_to_a_quarter_per_rule(
    make, labels, cv, rules, recwarn
):
    lowest = 1 - len(rules) / 4
    tuner = make(cv=STRATIFIED[cv], rules=rules, confidence=lowest)
    assert tuner.fit(np.arange(N), labels).guaranteed_
    assert not recwarn.list
    tuner.set_params(confidence=lowest - 0.01)
    message = f"^No guarantee with cv=.* Use confidence={lowest} or higher, or a split"
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = tuner.fit(np.arange(N), labels)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert tuned.guaranteed_ is False
    assert_nothing_certified(tuned)
    # a refit is in the way before that, and one reason is enough
    with pytest.warns(UserWarning, match="refit=True: it holds for the") as caught:
        tuner.set_params(refit=True).fit(np.arange(N), labels)
    assert len(caught) == 1


@pytest.mark.parametrize("cv", [*OTHERS, "prefit"])
def test_other_splits_guarantee_with_any_confidence(make, labels, cv, recwarn):
    tuner = prefit() if cv == "prefit" else make(cv=OTHERS[cv])
    tuned = tuner.set_params(confidence=0.1).fit(np.arange(N), labels)
    assert tuned.guaranteed_
    assert not recwarn.list


def test_without_confidence_a_stratified_split_is_no_surprise(make, labels, recwarn):
    make(confidence=None).fit(np.arange(N), labels)
    assert not recwarn.list


@pytest.mark.parametrize(
    "train, held_out, message",
    [
        (range(100, 500), [*range(101)], "1 rows in both parts of a split.* row 100:"),
        (range(100, 500), [5, *range(100)], "out 1 rows more than once.* row 5:"),
        (range(100, 500), [], "has a split of which one part is empty"),
        ([], range(100), "has a split of which one part is empty"),
        (range(100, 501), range(100), "does not split 500 texts"),
        (range(100, 500), 7, "must give pairs .train, test., each a list of row"),
    ],
)
@pytest.mark.parametrize("refit", [True, False])
def test_splits_that_cannot_be(make, labels, train, held_out, message, refit):
    tuner = make(cv=[(train, held_out)], refit=refit, confidence=None)
    with pytest.raises(ValueError, match=f"^cv=.*{message}"):
        tuner.fit(np.arange(N), labels)


def test_no_split(make, labels):
    with pytest.raises(ValueError, match=r"cv=\[\] has no split"):
        make(cv=[], refit=True).fit(np.arange(N), labels)


@pytest.mark.parametrize("cv", [3, KFold(4), None, StratifiedKFold(2)])
def test_folds_are_pooled_and_guarantee_nothing(make, labels, cv):
    with pytest.warns(UserWarning, match="No guarantee with cv=") as caught:
        tuned = make(cv=cv, refit=True).fit(np.arange(N), labels)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert not tuned.guaranteed_
    assert_nothing_certified(tuned)
    assert tuned.n_calibration_ == N == len(tuned.estimator_.rows_)
    # tables of answers learn nothing: folds together are all texts
    expected = fit(prefit(), N)
    assert tuned.best_params_ == expected.best_params_
    for name in ("risk", "cost", "score", "mean_exit_layer"):
        ours, theirs = tuned.cv_results_[name], expected.cv_results_[name]
        assert ours == pytest.approx(theirs)


def test_folds_need_a_refit(make, labels):
    with pytest.raises(ValueError, match="has 3 folds, so refit cannot be False"):
        make(cv=3).fit(np.arange(N), labels)


def test_a_refit_on_all_texts_gives_up_the_guarantee(make, labels):
    with pytest.warns(UserWarning, match="refit=True: it holds for the classifier"):
        tuned = make(refit=True).fit(np.arange(N), labels)
    assert not tuned.guaranteed_
    assert_nothing_certified(tuned)
    assert len(tuned.estimator_.rows_) == N
    assert tuned.best_params_ == make().fit(np.arange(N), labels).best_params_


@pytest.mark.parametrize("parameters", [{"cv": 3}, {"cv": 0.2}])
def test_without_confidence_a_refit_is_no_surprise(make, labels, recwarn, parameters):
    tuned = make(refit=True, confidence=None, **parameters).fit(np.arange(N), labels)
    assert not recwarn.list
    assert not tuned.guaranteed_
    assert tuned.n_required_ is None and np.isnan(tuned.risk_bound_)


class Learner(Exits):
    """Knows the classes that it was fitted on."""

    def fit(self, X, y, sample_weight=None):
        super().fit(X, y, sample_weight)
        self.classes_, self.labels_ = np.unique(y), y
        return self


@pytest.fixture
def make_learner(make):
    """Tuner around a classifier of the classes that it sees."""

    def factory(n_classes=3, **parameters):
        proba = easy_population()[0]
        more = np.zeros((*proba.shape[:2], n_classes - 3))
        learner = Learner(np.concatenate([proba, more], axis=2))
        return make(max_drop=0.1, **parameters).set_params(estimator=learner)

    return factory


@pytest.mark.parametrize("seed", range(3))
def test_the_only_text_of_a_class_is_fitted_on(make_learner, labels, seed):
    labels = labels.copy()
    labels[[7, 8]] = 3, 4
    message = "2 classes have a single text, such as .*3.*: these texts are fitted on"
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = make_learner(5, random_state=seed).fit(np.arange(N), labels)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert tuned.n_calibration_ == 100 and tuned.guaranteed_
    assert tuned.classes_.tolist() == [0, 1, 2, 3, 4]
    shares = np.bincount(tuned.estimator_.labels_)[:3] / np.bincount(labels)[:3]
    assert shares == pytest.approx(0.8, abs=0.01)


def test_more_classes_than_texts_to_hold_out(make_learner):
    y = np.repeat(np.arange(60), 3)
    with pytest.warns(UserWarning, match="not stratified by label.* 60") as caught:
        tuned = make_learner(60).fit(np.arange(180), y)
    assert caught[0].filename == __file__
    assert tuned.n_calibration_ == 36
    with pytest.warns(UserWarning, match="not stratified by label"):
        tuned = make_learner(180).set_params(cv=0.5)
        with pytest.raises(ValueError, match="None of the labels of the 90 calibr"):
            tuned.fit(np.arange(180), np.arange(180))


def test_labels_in_a_column_warn_once(make_learner, labels):
    column = labels[:, None]
    for y in (column, column.tolist()):
        with pytest.warns(DataConversionWarning, match="column-vector") as caught:
            tuned = make_learner().fit(np.arange(N), y)
        assert len(caught) == 1
        assert tuned.estimator_.labels_.ndim == 1
    frame = pd.DataFrame({"kind": labels})
    with pytest.warns(DataConversionWarning, match="column-vector") as caught:
        tuned = make_learner().fit(np.arange(N), frame)
    assert len(caught) == 1
    assert tuned.estimator_.labels_.name == "kind"


def test_a_label_that_the_fit_did_not_see_is_never_right():
    labels, classes = np.array(["b", "z", "a"]), np.array(["a", "b"])
    assert columns_of(labels, classes).tolist() == [1, -1, 0]


@pytest.mark.parametrize("risk", ["disagreement", "score"])
@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda y: y + 10, ValueError, "3 labels that are not in classes: 10, 11, 12"),
        (lambda y: np.where(np.arange(N) == 7, 9, y), ValueError, "9 at position 7"),
        (lambda y: y.astype(str), TypeError, "labels of type str .* convert one"),
        (lambda y: y == 1, TypeError, "labels of type bool"),
    ],
    ids=["others", "one", "str", "bool"],
)
def test_labels_that_a_fitted_estimator_does_not_know(
    labels, risk, change, error, message
):
    """Else full depth would never be right, and every exit be certified."""
    with pytest.raises(error, match=message):
        prefit(risk=risk).fit(np.arange(N), change(labels))


def test_held_out_labels_that_the_fit_did_not_see(make_learner, labels):
    """One such class is never right; if there is no other, something is wrong."""

    split = [(np.arange(100, N), np.arange(100))]
    tuner = make_learner(cv=split, risk="score")
    one_unseen = labels.copy()
    one_unseen[7] = 99
    tuned = tuner.fit(np.arange(N), one_unseen)
    others = np.delete(np.arange(100), 7)
    answers = easy_population()[0][-1, others].argmax(axis=1)
    assert tuned.full_depth_score_ == np.sum(answers == labels[others]) / 100
    unseen = np.where(np.arange(N) < 100, labels + 10, labels)
    message = "None of the labels of the 100 calibration texts, .* fitted on, 0, 1, 2"
    with pytest.raises(ValueError, match=message):
        tuner.fit(np.arange(N), unseen)


def test_prefit_leaves_the_given_estimator_alone():
    tuner = prefit()
    estimator = tuner.estimator
    before = estimator.get_params()
    tuned = fit(tuner)
    assert estimator.get_params() == before
    assert tuned.estimator is estimator
    assert tuned.estimator_ is not estimator
    assert tuned.estimator_.proba is estimator.proba
    assert tuned.estimator_.exit_threshold == tuned.exit_threshold_ is not None


def test_prefit_needs_a_fitted_estimator_and_no_refit(make, labels):
    message = "cv='prefit', the estimator must be fitted.* pass sklearn.frozen.Frozen"
    with pytest.raises(NotFittedError, match=message):
        make(cv="prefit").fit(np.arange(N), labels)
    with pytest.raises(ValueError, match="cv='prefit', refit cannot be True"):
        fit(prefit(refit=True))


def test_a_frozen_estimator_outlives_a_search(labels):
    tuner = prefit()
    frozen = FrozenEstimator(tuner.estimator)
    frozen_tuner = clone(tuner).set_params(estimator=frozen)
    tuned = frozen_tuner.fit(np.arange(N), labels)
    assert type(tuned.estimator_) is Exits and tuned.guaranteed_
    assert tuned.best_params_ == fit(prefit(), N).best_params_
    assert not hasattr(frozen_tuner, "transform")
    assert tuner.estimator.exit_threshold is None
    search = GridSearchCV(frozen_tuner, {"max_drop": [0.05, 0.1]}, cv=2)
    assert search.fit(np.arange(N), labels).best_score_ > 0.7
    with pytest.raises(ValueError, match="cv=0.2 fits the estimator, which a Frozen"):
        clone(frozen_tuner).set_params(cv=0.2).fit(np.arange(N), labels)


@pytest.mark.parametrize("patience", [2.0, "2", None, 0])
def test_the_patience_of_the_estimator_is_checked(patience):
    tuner = prefit(rules=["patience"]).set_params(estimator__exit_patience=patience)
    with pytest.raises(ValueError, match=f"exit_patience={patience!r} must be an int"):
        fit(tuner)


def test_calibration_without_labels(labels):
    tuned = prefit().fit(np.arange(N))
    expected = prefit().fit(np.arange(N), labels)
    assert tuned.best_params_ == expected.best_params_
    assert tuned.guaranteed_
    assert np.isnan(tuned.best_score_) and np.isnan(tuned.full_depth_score_)


def test_calibration_without_texts():
    with pytest.raises(ValueError, match="X is empty"):
        prefit().fit([])


@pytest.mark.parametrize(
    "parameters",
    [
        {"risk": "score"},
        {"scoring": "f1_macro", "confidence": None},
        {"objective": "quality", "max_layers": 3},
        {"cv": 0.2},
    ],
)
def test_labels_that_are_needed(parameters):
    with pytest.raises(ValueError, match="requires y to be passed"):
        prefit(**parameters).fit(np.arange(N))


# --- cost, score and ceilings -------------------------------------------------------


def test_a_cost_of_ones_own():
    def cost(layer, X):
        assert (X == np.arange(N)).all()
        return layer**2 * (1 + (X % 2))

    tuned = fit(prefit(cost=cost), N)
    layers = tuned.exit_layers(np.arange(N))
    assert tuned.cost_ == pytest.approx(np.mean(layers**2 * (1 + np.arange(N) % 2)))
    assert tuned.cv_results_["cost"][0] == pytest.approx(36 * 1.5)
    with pytest.warns(UserWarning, match="Full depth stays in use"):
        flat = fit(prefit(cost=lambda layer, X: 7), N)
    assert flat.exit_threshold_ is None  # nothing to gain
    # which are certified does not depend on the cost
    for other in (flat, fit(prefit(), N)):
        assert (other.cv_results_["certified"] == tuned.cv_results_["certified"]).all()


@pytest.mark.parametrize("value", [np.nan, "x", None, [1.0, 2.0]])
def test_a_cost_that_is_none(value):
    with pytest.raises(ValueError, match=r"cost\(layer=1, X\) must return a finite"):
        fit(prefit(cost=lambda layer, X: value))


def test_measured_time(monkeypatch):
    """A clock that goes on by one second per layer and text that runs."""
    clock = [0.0]
    monkeypatch.setattr(prediction_time.time, "perf_counter", lambda: clock[0])

    class Slow(Exits):
        def predict(self, X):
            clock[0] += self.exit_layers(X).sum()
            if self.exit_threshold is not None:
                clock[0] += 0.5 * len(X)  # the time that deciding takes
            return super().predict(X)

    estimator = Slow(easy_population()[0], exit_threshold=0.9).fit([0], [0])
    n = 128  # as many as are timed
    tuned = fit(prefit(cost="time").set_params(estimator=estimator), n)
    by_layers = fit(prefit(), n)
    assert tuned.cv_results_["cost"] == pytest.approx(by_layers.cv_results_["cost"])
    assert (estimator.exit_layer, estimator.exit_threshold) == (None, 0.9)
    assert tuned.exit_threshold_ is not None
    assert tuned.measured_time_ == pytest.approx(tuned.cost_ + 0.5)
    assert not hasattr(by_layers, "measured_time_")

    ceiling = {"objective": "quality", "cost": "time", "confidence": None}
    tuner = prefit(max_time=3.0, **ceiling).set_params(estimator=estimator)
    message = "takes .* seconds per text, above max_time=3.0: the estimate leaves out"
    with pytest.warns(UserWarning, match=message) as caught:
        tuned = fit(tuner, n)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert tuned.cost_ <= 3 < tuned.measured_time_


def test_flops_need_a_network():
    with pytest.raises(ValueError, match="cost='flops' reads the layers of an ACLClas"):
        fit(prefit(cost="flops"))


def test_another_score_ranks_without_a_guarantee(labels):
    tuner = prefit(scoring="f1_macro", confidence=None, max_drop=0.02, thresholds=30)
    tuned = tuner.fit(np.arange(N), labels)
    assert not tuned.guaranteed_
    proba = easy_population()[0][:, :N]
    full_depth = f1_score(labels, proba[-1].argmax(axis=1), average="macro")
    assert tuned.full_depth_score_ == pytest.approx(full_depth)
    for row in rows_of(tuned.cv_results_)[::10]:
        answers = proba[positions_of(row, proba), np.arange(N)].argmax(axis=1)
        score = f1_score(labels, answers, average="macro")
        assert row["score"] == pytest.approx(score)
        assert row["risk"] == pytest.approx(full_depth - score)
    results = tuned.cv_results_
    allowed = results["risk"] <= 0.02
    assert tuned.cost_ == results["cost"][allowed].min()
    assert_nothing_certified(tuned)


@pytest.mark.parametrize("scoring", ["neg_log_loss", "roc_auc_ovr"])
def test_scores_of_probabilities(labels, scoring):
    tuner = prefit(scoring=scoring, confidence=None, thresholds=5)
    tuned = tuner.fit(np.arange(N), labels)
    assert np.isfinite(tuned.cv_results_["score"]).all()


def test_a_drop_is_in_units_of_the_score(labels):
    """Logarithmic losses differ by more than 1."""
    settings = {"scoring": "neg_log_loss", "confidence": None, "thresholds": 20}
    chosen = [
        prefit(max_drop=max_drop, **settings).fit(np.arange(N), labels)
        for max_drop in (0, 0.05, 2.0)
    ]
    assert chosen[0].cost_ > chosen[1].cost_ > chosen[2].cost_
    assert chosen[0].risk_ <= 0 < chosen[1].risk_ <= 0.05 < chosen[2].risk_ <= 2


@pytest.mark.parametrize("more, is_chosen", [(0.0, True), (-1e-9, False)])
def test_a_drop_of_just_max_drop_is_within_it(labels, more, is_chosen):
    """In spite of rounding: 0.90 - 0.88 is above 0.02."""
    assert 0.90 - 0.88 > 0.02

    def scorer(estimator, X, y):
        of_full_depth = estimator.predict_proba(X) == easy_population()[0][-1, X]
        return 0.90 if of_full_depth.all() else 0.88

    tuner = prefit(scoring=scorer, confidence=None, max_drop=0.02 + more)
    if is_chosen:
        tuned = tuner.fit(np.arange(N), labels)
    else:
        with pytest.warns(UserWarning, match="Full depth stays"):
            tuned = tuner.fit(np.arange(N), labels)
    assert (tuned.exit_threshold_ is not None) == is_chosen


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("confidence", [0.95, None])
def test_parameters_of_any_precision(labels, dtype, confidence, recwarn):
    settings = {"max_drop": dtype(0.05), "confidence": confidence}
    if confidence is not None:
        settings["confidence"] = dtype(confidence)
    tuned = prefit(**settings).fit(np.arange(N), labels)
    assert not recwarn.list
    plain = {name: value and float(value) for name, value in settings.items()}
    expected = prefit(**plain).fit(np.arange(N), labels)
    assert tuned.best_params_ == expected.best_params_
    assert tuned.n_required_ == expected.n_required_
    np.testing.assert_equal(tuned.risk_bound_, expected.risk_bound_)


def test_no_drop_at_all_by_the_estimate(labels):
    tuned = prefit(max_drop=0, confidence=None).fit(np.arange(N), labels)
    assert tuned.risk_ == 0 and tuned.cost_ < 6


def test_the_drop_is_no_matter_under_a_ceiling(labels):
    tuner = prefit(objective="quality", max_layers=3, max_drop=0, confidence=None)
    assert tuner.fit(np.arange(N), labels).cost_ <= 3


def test_a_scorer_of_ones_own(labels):
    def scorer(estimator, X, y):
        assert estimator.predict_proba(X).shape == (len(X), 3)
        return np.mean(estimator.predict(X) == y)

    tuned = prefit(scoring=scorer, confidence=None).fit(np.arange(N), labels)
    accuracy = prefit(confidence=None).fit(np.arange(N), labels)
    assert (tuned.cv_results_["score"] == accuracy.cv_results_["score"]).all()


def wants_decisions(estimator, X, y):
    return estimator.decision_function(X).mean()


@pytest.mark.parametrize(
    "scoring",
    [wants_decisions, make_scorer(accuracy_score, response_method="decision_function")],
    ids=["function", "scorer"],
)
def test_a_scorer_that_asks_for_a_model(labels, scoring):
    message = "^scoring=.* must go by predict, predict_proba and classes_"
    with pytest.raises(ValueError, match=message):
        prefit(scoring=scoring, confidence=None).fit(np.arange(N), labels)


def test_an_error_of_a_scorer_stays(labels):
    def scorer(estimator, X, y):
        return X.no_such_attribute

    with pytest.raises(AttributeError, match="no_such_attribute"):
        prefit(scoring=scorer, confidence=None).fit(np.arange(N), labels)


def test_the_drop_of_another_score_cannot_be_guaranteed():
    with pytest.raises(ValueError, match="'f1_macro' cannot be guaranteed. Set conf"):
        fit(prefit(scoring="f1_macro"))


@pytest.mark.parametrize("scoring", [None, "f1_macro"])
def test_the_best_under_a_ceiling(labels, scoring):
    tuner = prefit(objective="quality", max_layers=3.0, scoring=scoring, thresholds=20)
    with pytest.warns(UserWarning, match="'quality' carries no guarantee") as caught:
        tuned = tuner.fit(np.arange(N), labels)
    assert len(caught) == 1
    assert not tuned.guaranteed_ and tuned.n_required_ is None
    assert_nothing_certified(tuned)
    results = pd.DataFrame(tuned.cv_results_)
    within = results[results["mean_exit_layer"] <= 3]
    assert 0 < len(within) < len(results)
    top = within[within["score"] == within["score"].max()]
    assert tuned.best_index_ == top["cost"].idxmin()
    assert tuned.exit_layers(np.arange(N)).mean() <= 3


def test_the_best_within_a_time(labels, monkeypatch):
    monkeypatch.setattr(
        exit_costs, "_seconds", lambda estimator, X, layers: np.array(layers) * 1e-3
    )
    parameters = {"objective": "quality", "confidence": None}
    by_time = fit(prefit(cost="time", max_time=3e-3, **parameters))
    by_layers = fit(prefit(max_layers=3, **parameters))
    both = fit(prefit(cost="time", max_time=3e-3, max_layers=2, **parameters))
    assert by_time.best_index_ == by_layers.best_index_
    assert both.best_index_ == fit(prefit(max_layers=2, **parameters)).best_index_
    assert both.best_index_ != by_time.best_index_


def test_a_ceiling_below_everything():
    tuner = prefit(
        objective="quality", confidence=None, max_layers=1.5, thresholds=[0.99]
    )
    with pytest.warns(UserWarning, match="No candidate is within max_layers=1.5"):
        tuned = fit(tuner)
    assert tuned.exit_threshold_ == 0.99


# --- scikit-learn -------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"max_drop": -0.01}, "'max_drop' parameter"),
        ({"max_drop": 0.0}, "max_drop=0.0 must be above 0 and below 1"),
        ({"max_drop": 1}, "max_drop=1 must be above 0 and below 1"),
        ({"max_drop": 1, "confidence": None}, "max_drop=1 is a share of texts and"),
        ({"confidence": 95}, "'confidence' parameter"),
        ({"objective": "cheap"}, "'objective' parameter"),
        ({"risk": "accuracy"}, "'risk' parameter"),
        ({"rules": "confidence"}, "rules='confidence' must be a list"),
        ({"rules": []}, r"rules=\[\] must be a list"),
        ({"rules": ["sure"]}, r"^rules=\['sure'\] has 'sure', but each must be one"),
        ({"rules": ("Confidence",)}, r"^rules=\('Confidence',\) has 'Confidence', but"),
        ({"rules": [["entropy"]]}, r"^rules=\[\['entropy'\]\] has \['entropy'\], but"),
        ({"rules": ["entropy", "entropy"]}, "names a rule twice"),
        ({"thresholds": 0}, "thresholds=0 must be at least 1"),
        (
            {"thresholds": [0.5, 1.5]},
            r"^thresholds=\[0.5, 1.5\] has 1.5, but .* must be in \[0, 1\]",
        ),
        ({"thresholds": {"confidence": [-0.5]}}, r"^thresholds=\[-0.5\] has -0.5"),
        (
            {"thresholds": True},
            r"^thresholds=True \(a bool\) must be an integer, a list",
        ),
        ({"thresholds": np.True_}, r"\(a bool\) must be an integer, a list"),
        ({"thresholds": {"confidence": False}}, r"^thresholds=False \(a bool\) must"),
        ({"thresholds": []}, "must be an integer, a list"),
        ({"thresholds": "abc"}, "thresholds='abc' must be an integer, a list"),
        ({"thresholds": {"confidence": "x"}}, "thresholds='x' must be an integer"),
        ({"thresholds": 100.0}, "thresholds=100.0 must be an integer"),
        ({"thresholds": [0.5, None]}, r"thresholds=\[0.5, None\] must be an integer"),
        ({"thresholds": [True]}, r"thresholds=\[True\] must be an integer"),
        ({"thresholds": [[0.5]]}, r"thresholds=\[\[0.5\]\] must be an integer"),
        (
            {"rules": [is_sure], "thresholds": [np.nan]},
            r"^thresholds=\[nan\] has nan, but .* must be finite",
        ),
        ({"thresholds": {"entropy": [0.5]}}, "has 'entropy' as a key"),
        ({"rules": [is_sure]}, "^thresholds=40 is a number, but the rule"),
        (
            {
                "rules": ["confidence", is_sure],
                "thresholds": {"confidence": [0.5]},
            },
            r"^thresholds=\{'confidence': \[0.5\]\} has no entry for the rule <func",
        ),
        (
            {"rules": [is_sure], "thresholds": {is_sure: 100}},
            "^thresholds=100 is a number, but the rule",
        ),
        ({"max_layers": 3}, "objective='speed' takes none"),
        ({"objective": "quality"}, "needs one of these ceilings"),
        ({"objective": "quality", "max_layers": 0.5}, "'max_layers' parameter"),
        ({"objective": "quality", "max_time": 1.0}, "set cost='time' instead"),
        ({"cost": "money"}, "'cost' parameter"),
        ({"scoring": "nice"}, "'scoring' parameter"),
        ({"cv": "fit"}, "'cv' parameter"),
        ({"cv": 1.5}, "'cv' parameter"),
        ({"cv": 0.9999}, "cv=0.9999 cannot be held out: .* train set will be empty"),
        ({"refit": "yes"}, "'refit' parameter"),
        ({"random_state": "x"}, "'random_state' parameter"),
    ],
)
def test_bad_parameters(make, labels, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**parameters).fit(np.arange(N), labels)


def test_a_rule_that_cannot_be_told_apart(make, labels):
    class Rule:
        __call__ = staticmethod(is_sure)

        def __eq__(self, other):
            return type(other) is Rule

    tuner = make(rules=[Rule()], thresholds=[0.9])
    with pytest.raises(TypeError, match="rules has .*Rule object.* is unhashable"):
        tuner.fit(np.arange(N), labels)


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(FunctionTransformer(), Exits(np.ones((1, 1, 1)))),
        Exits,
        "confidence",
        FunctionTransformer(),
    ],
    ids=["pipeline", "class", "str", "transformer"],
)
def test_an_estimator_without_exits(estimator, labels):
    tuner = TunedExitClassifierCV(estimator)
    with pytest.raises(TypeError, match="must be an ACLClassifier, or .* last step"):
        tuner.fit(np.arange(N), labels)


@pytest.mark.parametrize(
    "X, y, message",
    [
        ("a text", ["a"], "X is a single str"),
        ([], [], "X is empty"),
        (["a", "b"], ["a"], "1 label"),
        (["a", "b"], ["a", None], "missing"),
    ],
)
def test_bad_input(make, X, y, message):
    with pytest.raises(ValueError, match=message):
        make().fit(X, y)


def test_clone_and_parameters(make):
    tuner = make(rules=["entropy"], max_drop=0.1)
    copy = clone(tuner)
    assert copy.get_params(deep=False).keys() == tuner.get_params(deep=False).keys()
    assert copy.rules == ["entropy"] and copy.max_drop == 0.1
    assert copy.set_params(estimator__exit_layer=3).estimator.exit_layer == 3
    assert tuner.estimator.exit_layer is None


def test_it_is_not_fitted_before_fit(make):
    tuner = make()
    for name in ("classes_", "exit_layer_numbers_", "n_exits_"):
        assert not hasattr(tuner, name)
    for method in (tuner.predict, tuner.exit_layers, tuner.predict_proba_exits):
        with pytest.raises(NotFittedError):
            method(np.arange(3))
    # what the estimator lacks
    assert not hasattr(tuner, "transform") and not hasattr(tuner, "decision_function")


def test_cross_validation_and_pickle(make, labels):
    scores = cross_val_score(make(), np.arange(N), labels, cv=3)
    assert (scores > 0.7).all()
    tuned = make().fit(np.arange(N), labels)
    restored = pickle.loads(pickle.dumps(tuned))
    assert restored.best_params_ == tuned.best_params_
    assert (restored.predict(np.arange(N)) == tuned.predict(np.arange(N))).all()


def test_prediction_is_that_of_the_estimator(make, labels):
    tuned = make().fit(np.arange(N), labels)
    rows = np.arange(N, N + 100)
    by_hand = Exits(easy_population()[0], **tuned.best_params_).fit([0], [0])
    assert (tuned.predict(rows) == by_hand.predict(rows)).all()
    assert (tuned.predict_proba(rows) == by_hand.predict_proba(rows)).all()
    assert (tuned.exit_layers(rows) == by_hand.exit_layers(rows)).all()
    assert tuned.predict_proba_exits(rows).shape == (6, 100, 3)
    assert tuned.classes_.tolist() == [0, 1, 2]
    assert tuned.exit_layer_numbers_ == (1, 2, 3, 4, 5, 6) and tuned.n_exits_ == 6
    predicted, layers = tuned.predict(rows, return_exit_layers=True)
    assert (predicted == by_hand.predict(rows)).all()
    assert (layers == by_hand.exit_layers(rows)).all()


def test_results_are_kept_on_request_only(make, labels):
    tuned = make(store_cv_results=False).fit(np.arange(N), labels)
    assert not hasattr(tuned, "cv_results_") and not hasattr(tuned, "best_index_")


def fitted_attributes(tuned):
    return {name: value for name, value in vars(tuned).items() if name.endswith("_")}


class Untrainable(Exits):
    def fit(self, X, y, sample_weight=None):
        raise AssertionError


class Unreadable(Exits):
    def predict_proba_exits(self, X):
        raise AssertionError


class Untunable(Exits):
    def set_params(self, **params):
        assert "exit_layer" not in params
        return super().set_params(**params)


@pytest.mark.filterwarnings("ignore:Full depth stays")  # whatever the time is
@pytest.mark.parametrize("kind", [Untrainable, Unreadable, Untunable])
@pytest.mark.parametrize("cost", ["layers", "time"])
def test_a_fit_that_fails_leaves_the_earlier_one(make, labels, kind, cost):
    tuned = make(cost=cost).fit(np.arange(N), labels)
    before = fitted_attributes(tuned)
    assert len(before) > 10
    tuned.set_params(estimator=kind(three_exits()[0]), cv=0.4)
    with pytest.raises(AssertionError):
        tuned.fit(np.arange(400), labels[:400])
    assert fitted_attributes(tuned).keys() == before.keys()
    assert all(getattr(tuned, name) is value for name, value in before.items())


@pytest.mark.filterwarnings("ignore:Full depth stays")
def test_a_fit_leaves_nothing_of_the_earlier_one(make, labels):
    tuned = make(cost="time").fit(np.arange(N), labels)
    assert {"measured_time_", "cv_results_", "best_index_"} <= vars(tuned).keys()
    tuned.set_params(cost="layers", store_cv_results=False)
    tuned.fit(np.arange(N), labels)
    fresh = make(store_cv_results=False).fit(np.arange(N), labels)
    assert vars(tuned).keys() == vars(fresh).keys()


def test_metadata_needs_routing(make, labels):
    with pytest.raises(ValueError, match="enable_metadata_routing=True"):
        make().fit(np.arange(N), labels, sample_weight=np.ones(N))


def test_metadata_reaches_estimator_splitter_and_scorer(make, labels):
    weights = np.arange(N, dtype=float)
    groups = np.arange(N) // 100
    seen = []

    class Groups(KFold):
        def split(self, X, y=None, groups=None):
            seen.append(groups)
            yield from super().split(X, y)

        __metadata_request__split = {"groups": True}

    def metric(y_true, y_pred, heavy):
        seen.append(heavy)
        return accuracy_score(y_true, y_pred)

    with config_context(enable_metadata_routing=True):
        estimator = Exits(easy_population()[0]).set_fit_request(sample_weight=True)
        scorer = make_scorer(metric).set_score_request(heavy=True)
        tuner = make(
            cv=Groups(2), refit=True, scoring=scorer, confidence=None, thresholds=[0.9]
        ).set_params(estimator=estimator)
        tuned = tuner.fit(
            np.arange(N), labels, sample_weight=weights, groups=groups, heavy=weights
        )
    assert seen[0] is groups
    halves = np.split(weights, 2)
    assert [half.tolist() for half in seen[1::2]] == [half.tolist() for half in halves]
    assert tuned.estimator_.weights_.tolist() == weights.tolist()


def test_weights_count_in_the_training_only(make, labels):
    weights = np.linspace(0, 1, N)
    plain = make().fit(np.arange(N), labels)
    with config_context(enable_metadata_routing=True):
        estimator = Exits(easy_population()[0]).set_fit_request(sample_weight=True)
        tuner = make().set_params(estimator=estimator)
        tuned = tuner.fit(np.arange(N), labels, sample_weight=weights)
    assert (
        tuned.estimator_.weights_.tolist() == weights[tuned.estimator_.rows_].tolist()
    )
    assert tuned.best_params_ == plain.best_params_ and tuned.guaranteed_


# --- the classifier itself ----------------------------------------------------------

X = np.array(TEXTS, dtype=object)
Y = np.array(LABELS)


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=3)


@pytest.fixture(scope="module")
def classifier(backbone):
    """Unfitted; its exits are worth something after one epoch."""
    return ACLClassifier(backbone, max_epochs=1, verbose=0, random_state=0)


@pytest.fixture(scope="module")
def tuned(classifier):
    """Tuned on half of the texts; a floor so low that texts leave early."""
    tuner = TunedExitClassifierCV(classifier, max_drop=0.5, cv=0.5, random_state=0)
    return tuner.fit(X, Y)


def test_the_exits_of_a_classifier_are_tuned(tuned):
    assert tuned.guaranteed_ and tuned.n_calibration_ == 30
    assert tuned.exit_rule_ == "confidence" and tuned.risk_bound_ <= 0.5
    layers = tuned.exit_layers(X)
    assert layers.mean() < 3
    proba = tuned.predict_proba_exits(X)
    assert layers.tolist() == (1 + first_exits(proba, **_rule(tuned))).tolist()
    chosen = proba[layers - 1, np.arange(len(X))]
    assert np.abs(tuned.predict_proba(X) - chosen).max() <= 1e-5
    assert (tuned.predict(X) == tuned.classes_[chosen.argmax(axis=1)]).all()
    assert tuned.score(X, Y) == np.mean(tuned.predict(X) == Y)
    labels_of, layers_of = tuned.predict(X, return_exit_layers=True)
    assert (labels_of == tuned.predict(X)).all() and (layers_of == layers).all()
    assert tuned.exit_layer_numbers_ == (1, 2, 3) and tuned.n_exits_ == 3
    assert tuned.transform(X).shape == (60, 32)
    assert tuned.decision_function(X).shape == (60, 3)


def _rule(tuned):
    return {"rule": tuned.exit_rule_, "threshold": tuned.exit_threshold_}


@pytest.fixture
def fitted(tuned):
    """A fitted classifier of its own for each test, at full depth."""
    copy = pickle.loads(pickle.dumps(tuned.estimator_))
    return copy.set_params(exit_threshold=None, exit_layer=None)


def tune_fitted(fitted, **parameters):
    settings = {"max_drop": 0.5, "cv": "prefit"} | parameters
    return TunedExitClassifierCV(fitted, **settings).fit(X, Y)


def test_a_fitted_classifier_shares_its_encoder_and_stays_as_it_is(fitted):
    before, params = fitted.predict_proba(X), fitted.get_params(deep=False)
    again = tune_fitted(fitted)
    assert again.estimator_.module_.backbone is fitted.module_.backbone
    assert again.exit_layers(X).mean() < 3
    assert (fitted.predict_proba(X) == before).all()
    assert fitted.get_params(deep=False) == params
    assert (fitted.exit_layers(X) == 3).all()
    assert again.estimator_.exit_threshold == again.exit_threshold_
    timed = tune_fitted(fitted, cost="time")
    assert timed.cost_ > 0 and timed.measured_time_ > 0
    assert fitted.get_params(deep=False) == params


def test_temperatures_that_come_later_do_not_reach_the_tuned_classifier(fitted):
    tuned = tune_fitted(fitted)
    before = tuned.predict_proba_exits(X)
    layers = tuned.exit_layers(X)
    of_fitted = fitted.predict_proba_exits(X)
    fitted.calibrate_exits(X, Y)
    assert abs(fitted.predict_proba_exits(X) - of_fitted).max() > 0.01
    assert (tuned.predict_proba_exits(X) == before).all()
    assert (tuned.exit_layers(X) == layers).all()
    assert not hasattr(tuned.estimator_, "calibration_")
    # nor the other way round
    of_fitted = fitted.predict_proba_exits(X)
    tuned.estimator_.module_.heads[0].temperature.fill_(3.0)
    assert (fitted.predict_proba_exits(X) == of_fitted).all()


def test_the_tuned_classifier_has_the_temperatures_there_were(fitted):
    fitted.calibrate_exits(X, Y)
    tuned = tune_fitted(fitted)
    assert (tuned.predict_proba_exits(X) == fitted.predict_proba_exits(X)).all()
    assert tuned.estimator_.calibration_ is fitted.calibration_


def test_a_new_fit_of_the_given_classifier_does_not_reach_the_tuned_one(fitted):
    tuned = tune_fitted(fitted)
    before = tuned.predict_proba_exits(X)
    fitted.set_params(random_state=1).fit(X[:30], Y[:30])
    assert (tuned.predict_proba_exits(X) == before).all()


@pytest.mark.parametrize("store", ["pickle", "directory"])
def test_a_classifier_with_exits_of_its_own_can_be_kept(fitted, store, tmp_path):
    tuned = tune_fitted(fitted)
    fitted.calibrate_exits(X, Y)  # the exits are no longer equal
    for clf in (tuned.estimator_, fitted):
        if store == "pickle":
            restored = pickle.loads(pickle.dumps(clf))
        else:
            clf.save(tmp_path / "saved")
            restored = ACLClassifier.load(tmp_path / "saved")
        restored_proba = restored.predict_proba_exits(X)
        assert (restored_proba == clf.predict_proba_exits(X)).all()
        assert (restored.exit_layers(X) == clf.exit_layers(X)).all()


def test_both_classifiers_go_to_a_device(fitted):
    """The encoder goes there once, exits with the classifier that is used there."""
    own, given = tune_fitted(fitted).estimator_.module_, fitted.module_
    own.to("meta")
    assert devices(own) == {"meta"} and devices(given.heads) == {"cpu"}
    given.to("meta")
    assert devices(given) == {"meta"}
    assert [name for name, _ in own.named_parameters()] == [
        name for name, _ in given.named_parameters()
    ]


def devices(module):
    tensors = [*module.parameters(), *module.buffers()]
    return {tensor.device.type for tensor in tensors}


def test_exits_made_in_inference_mode_can_be_trained(fitted):
    with torch.inference_mode():
        tuned = tune_fitted(fitted)
    heads = tuned.estimator_.module_.heads
    assert not any(tensor.is_inference() for tensor in heads.parameters())
    tuned.estimator_.partial_fit(X[:8], Y[:8])


def test_a_module_without_exits_of_that_name_is_shared():
    estimator = Exits(easy_population()[0]).fit([0], [0])
    estimator.module_ = torch.nn.Linear(1, 1)
    assert sharing_encoder(estimator).module_ is estimator.module_


@pytest.mark.parametrize("container", ["list", "Series", "DataFrame", "named", "Data"])
def test_texts_and_labels_in_any_container(tuned, classifier, container):
    frame = pd.DataFrame({"text": X, "kind": Y}, index=np.arange(60)[::-1] + 100)
    dataset = Dataset.from_dict({"text": TEXTS, "kind": LABELS})
    data = {
        "list": (TEXTS, LABELS),
        "Series": (frame["text"], frame["kind"]),
        "DataFrame": (frame, frame["kind"]),
        "named": (frame, "kind"),
        "Data": (dataset, "kind"),
    }[container]
    again = clone(tuned).fit(*data)
    assert again.best_params_ == tuned.best_params_
    assert (again.predict_proba(X) == tuned.predict_proba(X)).all()
    assert again.score(*data) == tuned.score(X, Y)


def test_columns_of_a_dataset(tuned):
    dataset = Dataset.from_dict({"text": TEXTS, "kind": LABELS})
    again = clone(tuned).fit(dataset["text"], dataset["kind"])
    assert again.best_params_ == tuned.best_params_


def test_pairs_of_texts(classifier):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    tuner = TunedExitClassifierCV(classifier, max_drop=0.5, cv=0.5, random_state=0)
    assert tuner.fit(pairs, LABELS).predict(pairs[:3]).shape == (3,)


def test_a_tuned_classifier_survives_pickle(tuned):
    restored = pickle.loads(pickle.dumps(tuned))
    assert (restored.predict_proba(X) == tuned.predict_proba(X)).all()
    assert (restored.exit_layers(X) == tuned.exit_layers(X)).all()


def test_a_tuned_classifier_is_cross_validated_and_searched(tuned):
    assert cross_val_score(clone(tuned), X, Y, cv=2).shape == (2,)
    search = GridSearchCV(clone(tuned), {"max_drop": [0.4, 0.6]}, cv=2).fit(X, Y)
    assert (search.predict(X) == search.best_estimator_.predict(X)).all()
    pipeline = make_pipeline(FunctionTransformer(), clone(tuned)).fit(X, Y)
    assert (pipeline.predict(X) == tuned.predict(X)).all()


def test_a_classifier_with_one_exit_keeps_it(classifier):
    final = clone(classifier).set_params(strategy="final")
    tuner = TunedExitClassifierCV(final, max_drop=0.5, cv=0.5, random_state=0)
    with pytest.warns(UserWarning, match="one exit in use, after layer 3.*'joint'"):
        tuner.fit(X, Y)
    assert (tuner.exit_layers(X) == 3).all()


def test_the_threshold_of_the_estimator_is_no_matter(classifier, tuned):
    """It is replaced, even where the exits would not allow it."""
    final = clone(classifier).set_params(strategy="final", exit_threshold=0.9)
    tuner = TunedExitClassifierCV(final, max_drop=0.5, cv=0.5, random_state=0)
    with pytest.warns(UserWarning, match="one exit in use"):
        tuner.fit(X[:30], Y[:30])
    assert tuner.estimator_.exit_threshold is None and final.exit_threshold == 0.9


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "modernbert"])
def test_flops_are_those_that_torch_counts(tiny_backbone, family):
    backbone = tiny_backbone(family, num_hidden_layers=3)
    classifier = ACLClassifier(backbone, head_init="random", max_epochs=1, verbose=0)
    classifier.fit(X[:12], Y[:12])
    costs = exit_costs.exit_costs("flops", classifier, X[:12], (1, 2, 3))
    assert costs.shape == (3, 12)
    # other kernels for attention are not counted
    classifier.module_.backbone.set_attn_implementation("eager")
    for text in (0, 3):
        counted = []
        for layer in (1, 2, 3):
            with FlopCounterMode(display=False) as counter:
                classifier.predict(X[[text]], exit_layer=layer)
            counted.append(counter.get_total_flops())
        assert np.diff(costs[:, text]).tolist() == np.diff(counted).tolist()
        assert costs[0, text] == costs[1, text] - costs[0, text]


def test_the_table_of_the_guide_is_right():
    guide = Path(__file__).parents[1] / "docs" / "user_guide" / "tuning.rst"
    pattern = r"^(0\.\d+) +(\d+) +(\d+) +(\d+)$"
    rows = re.findall(pattern, guide.read_text("utf-8"), re.MULTILINE)
    assert len(rows) >= 4
    for level, *counts in rows:
        expected = [smallest_n(float(level), 0.05 / k) for k in (1, 2, 3)]
        assert list(map(int, counts)) == expected
