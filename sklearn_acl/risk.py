"""Tests of "the risk is above a level" whose errors are controlled for any sample size.

Learn then Test (Angelopoulos et al. 2025, Annals of Applied Statistics 19, arXiv
2110.01052): every setting of a model gets a p-value for the hypothesis that its risk is
above the level, and a procedure for several tests says which settings are safe.
"""

import numpy as np


def binomial_p_value(n_losses, n_samples, level):
    """Exact p-value of "the probability of a loss is above `level`".

    The probability that at most so many of the samples have a loss, were the
    probability of one just `level`: the lower tail of a binomial distribution.

    Parameters
    ----------
    n_losses : int or array-like of int
        Losses of 1 among the samples; the others are 0.
    n_samples : int
        Independent samples.
    level : float
        In (0, 1).

    Returns
    -------
    p_value : float or ndarray
        At most `alpha` with a probability of at most `alpha` if the hypothesis is true.
    """
    from scipy.special import bdtr

    # a NumPy scalar of lower precision would choose a loop that takes no counts
    return bdtr(n_losses, n_samples, float(level))


def hoeffding_bentkus_p_value(mean_loss, n_samples, level):
    """P-value of "the expected loss is above `level`", for losses in [0, 1].

    The smaller one of Hoeffding's and Bentkus's bounds (Bates et al. 2021, JACM 68;
    Angelopoulos et al. 2025, section 3.1). For losses of 0 and 1 use
    `binomial_p_value`, which is exact and smaller.

    Parameters
    ----------
    mean_loss : float or array-like of float
        Mean over the samples.
    n_samples : int
        Independent samples.
    level : float
        In (0, 1).

    Returns
    -------
    p_value : float or ndarray
    """
    from scipy.special import rel_entr

    mean_loss, level = np.asarray(mean_loss, dtype=float), float(level)
    low = np.minimum(mean_loss, level)
    divergence = rel_entr(low, level) + rel_entr(1 - low, 1 - level)
    hoeffding = np.exp(-n_samples * divergence)
    # the mean times n may miss the sum of losses by a rounding error
    total = np.ceil(np.round(n_samples * mean_loss, 9))
    bentkus = np.e * binomial_p_value(total, n_samples, level)
    return np.minimum(np.minimum(hoeffding, bentkus), 1.0)[()]


def fixed_sequence_test(p_values, alpha):
    """Hypotheses that are rejected when tested in order, up to the first that is not.

    The order must be fixed without a look at the samples of the test. Then the
    probability of any wrong rejection is at most `alpha`, however many hypotheses there
    are and however they depend on each other: the first true one ends the sequence
    unless its own test errs (Angelopoulos et al. 2025, section 4.1; Maurer et al.
    1995).

    Parameters
    ----------
    p_values : array-like of shape (n_hypotheses,)
        In the order of the tests.
    alpha : float
        In (0, 1).

    Returns
    -------
    rejected : ndarray of shape (n_hypotheses,), dtype bool
    """
    return np.logical_and.accumulate(np.asarray(p_values) <= alpha, dtype=bool)


def smallest_n(level, alpha):
    """Smallest number of samples without a loss that rejects "risk above `level`".

    Parameters
    ----------
    level, alpha : float
        In (0, 1).

    Returns
    -------
    n_samples : int
        The smallest n with ``(1 - level)**n <= alpha``.
    """
    level, alpha = float(level), float(alpha)
    n_samples = max(int(np.log(alpha) / np.log1p(-level)) - 1, 1)
    while binomial_p_value(0, n_samples, level) > alpha:
        n_samples += 1
    return n_samples


def binomial_upper_bound(n_losses, n_samples, alpha):
    """Upper confidence bound of the probability of a loss (Clopper and Pearson 1934).

    Parameters
    ----------
    n_losses : int or array-like of int
        Losses among the samples.
    n_samples : int
        Independent samples.
    alpha : float
        Probability, in (0, 1), with which the bound may be too low.

    Returns
    -------
    bound : float or ndarray
        The level at which `binomial_p_value` is `alpha`; 1 if every sample has a loss.
    """
    from scipy.special import betaincinv

    n_losses = np.asarray(n_losses)
    rest = np.maximum(n_samples - n_losses, 1)  # of no matter where all are losses
    bound = betaincinv(n_losses + 1, rest, 1 - float(alpha))
    return np.where(n_losses < n_samples, bound, 1.0)[()]
