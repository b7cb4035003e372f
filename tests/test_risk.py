"""P-values, sequences of tests and bounds, against sums over all outcomes."""

from math import ceil, comb, e, exp, log

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from sklearn_acl.risk import (
    binomial_p_value,
    binomial_upper_bound,
    fixed_sequence_test,
    hoeffding_bentkus_p_value,
    smallest_n,
)

CASES = [(0, 1, 0.5), (0, 299, 0.01), (3, 50, 0.1), (50, 50, 0.3), (7, 200, 0.05)]


def tail(n_losses, n, level):
    """P(Binomial(n, level) <= n_losses), summed."""
    terms = (
        comb(n, k) * level**k * (1 - level) ** (n - k) for k in range(n_losses + 1)
    )
    return sum(terms)


@pytest.mark.parametrize("n_losses, n, level", CASES)
def test_binomial_p_value_is_the_lower_tail(n_losses, n, level):
    assert binomial_p_value(n_losses, n, level) == pytest.approx(
        tail(n_losses, n, level)
    )


def test_binomial_p_values_of_several_counts():
    p_values = binomial_p_value([0, 2, 5], 40, 0.1)
    assert p_values == pytest.approx([tail(k, 40, 0.1) for k in (0, 2, 5)])


@pytest.mark.parametrize("level", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_p_value_is_valid_at_the_level_itself(level, alpha):
    n = 120
    counts = np.arange(n + 1)
    probability = binom.pmf(counts, n, level)
    rejected = binomial_p_value(counts, n, level) <= alpha
    assert probability[rejected].sum() <= alpha
    # exact: one loss more would reject too often
    more = counts <= counts[rejected].max(initial=-1) + 1
    assert probability[more].sum() > alpha


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_losses", [3, np.int64(3), np.array([0, 3])])
def test_levels_of_any_precision(dtype, n_losses, recwarn):
    level, alpha = dtype(0.1), dtype(0.05)
    expected = binomial_p_value(n_losses, 50, float(level))
    found = binomial_p_value(n_losses, 50, level)
    np.testing.assert_array_equal(found, expected)
    assert smallest_n(level, alpha) == smallest_n(float(level), float(alpha))
    np.testing.assert_array_equal(
        binomial_upper_bound(n_losses, 50, alpha),
        binomial_upper_bound(n_losses, 50, float(alpha)),
    )
    np.testing.assert_array_equal(
        hoeffding_bentkus_p_value(0.02, 50, level),
        hoeffding_bentkus_p_value(0.02, 50, float(level)),
    )
    assert not recwarn.list


def highest_error_of_strata(alpha):
    """Most that the test errs on independent losses of unequal probabilities.

    Their mean is just the level. The worst are 1 for some, 0 for some and equal for the
    rest (Hoeffding 1956).
    """
    errors = [0.0]
    for n in (5, 10, 20, 40):
        for level in np.linspace(0.02, 0.6, 30):
            counts = np.arange(n + 1)
            rejected = counts[binomial_p_value(counts, n, level) <= alpha]
            if not rejected.size:
                continue
            ones, others = np.meshgrid(np.arange(int(n * level) + 1), counts[1:])
            rest = (n * level - ones) / others
            possible = (ones + others <= n) & (rest >= 0) & (rest <= 1)
            ones, others, rest = ones[possible], others[possible], rest[possible]
            errors.append(binom.cdf(rejected[-1] - ones, others, rest).max())
    return max(errors)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.25])
def test_the_binomial_test_holds_for_strata_up_to_a_quarter(alpha):
    assert 0.8 * alpha < highest_error_of_strata(alpha) <= alpha + 1e-12


def test_the_binomial_test_does_not_hold_for_strata_at_a_half():
    assert highest_error_of_strata(0.5) > 0.55


@pytest.mark.parametrize("n_losses, n, level", CASES)
def test_hoeffding_bentkus_is_the_smaller_bound(n_losses, n, level):
    mean = n_losses / n
    a = min(mean, level)
    divergence = 0.0 if a == 0 else a * log(a / level)
    divergence += 0.0 if a == 1 else (1 - a) * log((1 - a) / (1 - level))
    bounds = exp(-n * divergence), e * tail(ceil(n_losses), n, level), 1.0
    found = hoeffding_bentkus_p_value(mean, n, level)
    assert found == pytest.approx(min(bounds))
    assert found >= binomial_p_value(n_losses, n, level) * (1 - 1e-12)


def test_hoeffding_bentkus_counts_the_losses_in_spite_of_rounding():
    assert 0.07 * 100 > 7
    bentkus = np.e * binom.cdf(7, 100, 0.3)
    assert hoeffding_bentkus_p_value(0.07, 100, 0.3) == pytest.approx(bentkus)


def test_hoeffding_bentkus_is_valid_for_fractional_losses():
    rng = np.random.default_rng(0)
    losses = rng.beta(0.2, 1.8, size=(4000, 60))  # mean 0.1
    p_values = hoeffding_bentkus_p_value(losses.mean(axis=1), 60, 0.1)
    for alpha in (0.02, 0.1, 0.3):
        assert np.mean(p_values <= alpha) <= alpha
    assert (p_values <= 0.3).any()


@pytest.mark.parametrize(
    "p_values, expected",
    [
        ([0.01, 0.05, 0.2, 0.01], [1, 1, 0, 0]),
        ([0.06, 0.0], [0, 0]),
        ([0.05], [1]),
        ([0.01, np.nan, 0.01], [1, 0, 0]),
        ([], []),
    ],
)
def test_a_sequence_ends_at_the_first_hypothesis_that_stands(p_values, expected):
    rejected = fixed_sequence_test(p_values, 0.05)
    assert rejected.dtype == bool
    assert rejected.tolist() == [bool(value) for value in expected]


def test_a_sequence_errs_no_more_often_than_its_first_true_hypothesis():
    rng = np.random.default_rng(1)
    # 10 hypotheses, all true but the first two; tests that share nothing but the order
    p_values = rng.uniform(size=(20_000, 10))
    p_values[:, :2] *= 1e-3
    rejected = np.array([fixed_sequence_test(row, 0.05) for row in p_values])
    errors = rejected[:, 2:].any(axis=1).sum()
    assert binomtest(errors, 20_000, 0.05).pvalue > 1e-3
    assert rejected[:, :2].all()


@pytest.mark.parametrize("level", [0.001, 0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.5, 0.99])
def test_smallest_n_can_certify_and_one_less_cannot(level, alpha):
    n = smallest_n(level, alpha)
    assert (1 - level) ** n <= alpha
    assert n == 1 or (1 - level) ** (n - 1) > alpha


@pytest.mark.parametrize("level, n", [(0.01, 299), (0.05, 59)])
def test_smallest_n_of_common_levels(level, n):
    assert smallest_n(level, 0.05) == smallest_n(level, 1 - 0.95) == n


@pytest.mark.parametrize("n_losses, n", [(0, 30), (1, 30), (12, 30), (29, 30)])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_the_upper_bound_is_the_level_where_the_p_value_is_alpha(n_losses, n, alpha):
    bound = binomial_upper_bound(n_losses, n, alpha)
    assert tail(n_losses, n, bound) == pytest.approx(alpha)
    interval = binomtest(n_losses, n).proportion_ci(1 - 2 * alpha)  # Clopper-Pearson
    assert bound == pytest.approx(interval.high)


def test_where_all_samples_have_a_loss_the_upper_bound_is_one():
    assert binomial_upper_bound([30, 0], 30, 0.05).tolist() == [
        1.0,
        pytest.approx(1 - 0.05 ** (1 / 30)),
    ]
