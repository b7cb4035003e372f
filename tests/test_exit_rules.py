"""Rules of the adaptive exit, against a loop over texts and exits."""

import math
import pickle
import types

import numpy as np
import pytest

from sklearn_acl.exit_rules import (
    EXIT_RULES,
    check_exit_rule,
    earliest_exit,
    first_exits,
    first_exits_along,
    leaves,
    normalized_entropy,
)


def random_proba(n_exits=6, n_samples=200, n_classes=3, sharpness=2.0, seed=0):
    logits = np.random.default_rng(seed).normal(size=(n_exits, n_samples, n_classes))
    odds = np.exp(sharpness * np.arange(1, n_exits + 1)[:, None, None] * logits)
    return odds / odds.sum(axis=-1, keepdims=True)


def entropy_of(row):
    return -sum(p * math.log(p) for p in row if p > 0) / math.log(len(row))


def slow_exit(history, rule, threshold, patience):
    """Exit of one text, by counters as the papers describe them."""
    counter, previous = 0, None
    for position, row in enumerate(history[:-1]):
        predicted = int(np.argmax(row))
        if rule == "confidence":
            done = max(row) > threshold
        elif rule == "entropy":
            done = entropy_of(row) < threshold
        elif rule == "patience":
            counter = counter + 1 if predicted == previous else 0
            done = counter >= patience and max(row) > threshold
        else:
            counter = counter + 1 if entropy_of(row) < threshold else 0
            done = counter >= patience
        if done:
            return position
        previous = predicted
    return len(history) - 1


@pytest.mark.parametrize("patience", [1, 2, 3, 9])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_equals_counters_of_the_papers(rule, threshold, patience):
    proba = random_proba()
    expected = [
        slow_exit(proba[:, row], rule, threshold, patience)
        for row in range(proba.shape[1])
    ]
    found = first_exits(proba, rule, threshold, patience)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("rule", "never"),
    [("confidence", 1.0), ("patience", 1.0), ("entropy", 0.0), ("patience_entropy", 0)],
)
def test_strict_end_of_the_scale_never_fires(rule, never):
    certain = np.zeros((4, 5, 3))
    certain[..., 1] = 1.0  # as sure as can be
    assert (first_exits(certain, rule, never) == 3).all()
    inside = 1e-9 if never == 0 else 1 - 1e-9
    assert (first_exits(certain, rule, inside) < 3).all()


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_depth_of_every_text_grows_with_the_threshold_as_the_table_says(rule, patience):
    proba = random_proba()
    sign = 1 if EXIT_RULES[rule].higher_is_later else -1
    thresholds = np.linspace(0, 1, 41)[::sign]
    depths = np.array([first_exits(proba, rule, t, patience) for t in thresholds])
    assert (np.diff(depths, axis=0) >= 0).all()
    assert depths[0].mean() < depths[-1].mean()  # or the law says nothing


@pytest.mark.parametrize("rule", EXIT_RULES)
def test_a_rule_fires_where_the_threshold_passes_its_value(rule):
    proba = np.repeat(random_proba(1, 40), 3, axis=0)  # steady: nothing else counts
    for text in range(40):
        value = EXIT_RULES[rule].value(proba[-1, text])
        step = 1e-9 if EXIT_RULES[rule].higher_is_later else -1e-9
        (just_before,) = leaves(proba[:, [text]], rule, value - step)
        (at,) = leaves(proba[:, [text]], rule, value)
        assert just_before and not at


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "earliest"), [("patience", 1), ("patience_entropy", 0)]
)
def test_earliest_exit_of_patience(rule, earliest, patience):
    steady = np.repeat(random_proba(1, 50), 6, axis=0)
    threshold = 0.0 if rule == "patience" else 1.0
    # counted from 0: exit number patience + 1, or exit number patience
    expected = earliest + patience - 1
    assert (first_exits(steady, rule, threshold, patience) == expected).all()


@pytest.mark.parametrize("n_classes", [2, 3, 77])
def test_entropy_is_normalised_by_the_number_of_classes(n_classes):
    uniform = np.full(n_classes, 1 / n_classes)
    assert normalized_entropy(uniform) == pytest.approx(1.0)
    assert normalized_entropy(np.eye(n_classes)[0]) == 0.0
    proba = random_proba(1, 20, n_classes)[0]
    expected = [entropy_of(row) for row in proba]
    np.testing.assert_allclose(normalized_entropy(proba), expected, atol=1e-12)


def proba_of(kind):
    """Probabilities that may trip up a shortcut."""
    proba = random_proba()
    if kind == "one exit":
        return proba[:1]
    if kind == "two exits":
        return proba[:2]
    if kind == "ties":  # of values, of classes and with the thresholds
        return np.round(proba * 4) / 4
    if kind == "float32":
        return proba.astype(np.float32)
    if kind == "many classes":
        return random_proba(n_classes=77, n_samples=50)
    if kind == "certain":
        return np.eye(3)[proba.argmax(axis=-1)]
    if kind == "no numbers":
        proba[::2, ::3] = np.nan
    if kind == "no texts":
        return proba[:, :0]
    if kind == "Fortran":
        return np.asfortranarray(random_proba(n_classes=20))
    return proba


KINDS = ["plain", "one exit", "two exits", "ties", "float32", "many classes"]
KINDS += ["certain", "no numbers", "no texts", "Fortran"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("patience", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_many_thresholds_are_those_one_by_one(rule, patience, kind):
    proba = proba_of(kind)
    thresholds = [0, 0.25, 0.3, 0.5, 0.75, 0.9, 1 - 1e-5, 1.0]
    # values that occur: strictness, to the last digit
    thresholds += EXIT_RULES[rule].value(proba[:, :3]).ravel().tolist()
    thresholds += [np.float32(0.9), np.float64(0.9)]  # compared in other precisions
    expected = [first_exits(proba, rule, t, patience) for t in thresholds]
    found = list(first_exits_along(proba, rule, thresholds, patience))
    np.testing.assert_array_equal(found, expected)
    assert {positions.dtype for positions in found} == {np.dtype(np.int64)}


def test_many_thresholds_of_a_function_are_those_one_by_one():
    proba, thresholds = random_proba(n_samples=40), [0.9, 0.2, 0.5, 2.0]
    expected = [first_exits(proba, margin, t) for t in thresholds]
    found = list(first_exits_along(proba, margin, thresholds))
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 2


def test_values_are_computed_once_for_all_thresholds(monkeypatch):
    calls = []
    rule = EXIT_RULES["entropy"]
    counted = rule._replace(
        at_exits=lambda *args: calls.append(1) or rule.at_exits(*args)
    )
    monkeypatch.setitem(EXIT_RULES, "entropy", counted)
    along = first_exits_along(random_proba(), "entropy", np.linspace(0, 1, 30))
    assert isinstance(along, types.GeneratorType)  # one answer at a time in memory
    assert len(list(along)) == 30 and len(calls) == 1


@pytest.mark.parametrize("patience", [1, 2, 4])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_earliest_exit_of_a_rule(rule, patience):
    steady = np.repeat(random_proba(1, 50), 7, axis=0)
    eager = 0.0 if EXIT_RULES[rule].higher_is_later else 1.0
    found = first_exits(steady, rule, eager, patience)
    assert (found == earliest_exit(rule, patience)).all()


def test_earliest_exit_of_a_function():
    assert earliest_exit(margin, 3) == 0


def margin(proba, threshold):
    """A rule of a user's own: the two best classes are far apart."""
    second, best = np.sort(proba[-1])[-2:]
    return bool(best - second > threshold)


def test_rule_of_the_user_sees_the_exits_that_one_text_has_passed():
    proba = random_proba()
    seen = []

    def rule(history, threshold):
        seen.append((history.shape, threshold))
        return margin(history, threshold)

    found = first_exits(proba, rule, 0.9)
    two_best = np.sort(proba, axis=-1)
    fired = two_best[..., -1] - two_best[..., -2] > 0.9  # (n_exits, n_samples)
    fired[-1] = True
    np.testing.assert_array_equal(found, fired.argmax(axis=0))
    assert {shape for shape, _ in seen} == {(k, 3) for k in range(1, 6)}
    assert {threshold for _, threshold in seen} == {0.9}
    assert pickle.loads(pickle.dumps(margin)) is margin


@pytest.mark.parametrize("answer", [None, 1, 0.5, "yes", np.array([True])])
def test_rule_of_the_user_must_answer_true_or_false(answer):
    with pytest.raises(TypeError, match="must return True or False"):
        leaves(random_proba(1, 2), lambda proba, threshold: answer, 0.5)


@pytest.mark.parametrize("rule", EXIT_RULES)
def test_texts_without_numbers_run_to_the_end(rule):
    proba = np.full((4, 3, 2), np.nan)
    assert (first_exits(proba, rule, 0.5) == 3).all()


@pytest.mark.parametrize("rule", EXIT_RULES)
def test_no_texts(rule):
    assert first_exits(np.empty((4, 0, 2)), rule, 0.5).shape == (0,)


@pytest.mark.parametrize(
    ("rule", "threshold", "patience", "error", "words"),
    [
        (
            "margin",
            0.5,
            1,
            ValueError,
            "exit_rule='margin' must be one of 'confidence'",
        ),
        (None, 0.5, 1, ValueError, "exit_rule=None"),
        ("confidence", 1.5, 1, ValueError, r"exit_threshold=1.5 must be in \[0, 1\]"),
        ("entropy", -0.1, 1, ValueError, "exit_threshold=-0.1"),
        ("confidence", math.nan, 1, ValueError, "exit_threshold=nan"),
        (margin, math.inf, 1, ValueError, "exit_threshold=inf must be finite"),
        ("confidence", True, 1, TypeError, "exit_threshold=True must be a number"),
        ("confidence", "0.5", 1, TypeError, "exit_threshold='0.5'"),
        ("patience", 0.5, 0, ValueError, "exit_patience=0 must be an integer"),
        ("patience", 0.5, 1.0, ValueError, "exit_patience=1.0"),
        ("patience", None, True, ValueError, "exit_patience=True"),
    ],
)
def test_bad_parameters_are_named(rule, threshold, patience, error, words):
    with pytest.raises(error, match=words):
        check_exit_rule(rule, threshold, patience)


@pytest.mark.parametrize("threshold", [None, 0, 1, 0.5, np.float32(0.5), np.int64(1)])
@pytest.mark.parametrize("rule", [*EXIT_RULES, margin])
def test_good_parameters_pass(rule, threshold):
    check_exit_rule(rule, threshold, np.int64(3))


def test_rule_of_the_user_cannot_change_the_history():
    def rule(history, threshold):
        history.sort()
        return True

    proba = random_proba(2, 3)
    with pytest.raises(ValueError, match="read-only"):
        leaves(proba, rule, 0.5)
    assert proba.flags.writeable
