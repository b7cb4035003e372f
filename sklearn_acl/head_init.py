"""Where the exits start: at random, or from one pass over the training texts.

With text embeddings ``r = tanh(pooled)`` (the dense matrix is the identity), every
start but the random one is a linear classifier of the frozen embeddings.
"""

import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from .frozen_embeddings import ExitTexts, embed_texts

_SHRINKAGE = 0.3
_FOLDS = 5
_PROBE_C = 0.1
_SMOOTHING = 0.01
# embeddings lie in [-1, 1]; what differs by less is rounding of single precision
_NOISE = 1e-6

Classifier = tuple[np.ndarray, np.ndarray]  # weight (C, D), bias (C,)


def initialize_heads(
    encoder, batches: Iterable, *, method="lda", seed=0, exits=None
) -> None:
    """Set the heads of an encoder, in place.

    Parameters
    ----------
    encoder : MultiExitEncoder
        Its heads are overwritten; nothing else changes, its train or eval mode and
        the global random generators included.
    batches : iterable of (inputs, labels, weights)
        Training texts: dicts of tensors, class codes (B,), and weights (B,) or None.
        Read once, without gradients or dropout; not read by "random".
    method : {"lda", "centroid", "linear_probe", "random"}, default="lda"
        - "centroid": label embeddings are class means, less the mean of all texts,
          times a scale: a nearest-centroid classifier with the classes' frequencies
          as priors.
        - "lda": the same with distances in the metric of the texts' covariance within
          classes, shrunk by 0.3 towards a multiple of the identity: linear
          discriminant analysis, with a cross-validated scale.
        - "linear_probe": a logistic regression (C = 0.1 on embeddings centred and
          divided by their overall standard deviation); linear probing before
          fine-tuning, Kumar et al. 2022, arXiv 2202.10054.
        - "random": normal with the standard deviation that the backbone's
          configuration names for new weights, biases zero.
    seed : int, default=0
        Seed of random weights and of the sample.
    exits : iterable of int, default=None
        Layers of the exits whose heads are set. None is all of them.

    Raises
    ------
    ValueError
        For an unknown method, no text of positive weight, or embeddings that are not
        finite.

    Notes
    -----
    Class means use all texts; the scale, the covariance and the probe a seeded sample
    of at most 4,000, in which each class keeps a quota and is weighted by its share of
    all texts. Texts of weight zero count as absent. The scale minimises the
    cross-entropy of sampled texts that had no part in what they are compared with.

    A class without texts gets a random row of the other rows' mean norm, and a bias
    that puts it below the likeliest class for every text of the sample.
    """
    if method not in _METHODS:
        raise ValueError(
            f"head_init must be one of {', '.join(map(repr, _METHODS))}; got "
            f"{method!r}."
        )
    std = getattr(encoder.backbone.config, "initializer_range", 0.02)
    if method == "random":
        _set_random_heads(_heads_of(encoder, exits), std, seed)
        return
    n_classes = encoder.heads[0].classifier.out_features
    embedded = embed_texts(encoder, batches, n_classes, seed)
    rng = np.random.default_rng([seed, 1])
    wanted = _heads_of(encoder, exits)
    for head, texts in zip(encoder.heads, embedded, strict=True):
        if head not in wanted:
            continue
        classifier = _METHODS[method](texts)
        weight, bias = _fill_empty_rows(*classifier, texts, std, rng)
        _set_head(head, weight, bias)


# --- linear classifiers of frozen embeddings ----------------------------------------


def centroid_classifier(texts: ExitTexts) -> Classifier:
    """Nearest class mean, as linear scores.

    Parameters
    ----------
    texts : ExitTexts
        One exit.

    Returns
    -------
    weight : ndarray of shape (C, D)
    bias : ndarray of shape (C,)
        Scores are ``log prior - scale / 2 * squared distance``, up to a term that is
        the same for all classes. Zero for classes without texts.
    """
    means = texts.means[texts.present] - texts.center  # (K, D)
    if np.abs(means).max() < _NOISE:
        return _prior_only(texts)
    scale = _leave_one_out_scale(means, texts)
    return _distance_scores(texts, means, means, scale)


def lda_classifier(texts: ExitTexts) -> Classifier:
    """Nearest class mean in the metric of the covariance within classes.

    The covariance is shrunk by 0.3 towards a multiple of the identity. The scale
    minimises the cross-entropy of texts that had no part in means and covariance (in
    five folds), so embeddings that say little of the classes start near the priors.
    """
    means = texts.means[texts.present] - texts.center  # (K, D)
    residuals = texts.embeddings - texts.means[texts.codes]
    if min(np.abs(residuals).max(), np.abs(means).max()) < _NOISE:
        return centroid_classifier(texts)
    scale = _held_out_scale(texts)
    if scale is None:
        return centroid_classifier(texts)
    mapped = _times_inverse_covariance(means, residuals, texts.shares)
    return _distance_scores(texts, means, mapped, scale)


def probe_classifier(texts: ExitTexts) -> Classifier:
    """Logistic regression; of two classes, each takes half of it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present, center = texts.present, texts.center
    weight, bias = np.zeros_like(texts.means), np.zeros(len(texts.mass))
    embeddings = texts.embeddings - center
    spread = np.sqrt(np.mean(embeddings**2))
    if len(present) < 2 or spread < _NOISE:
        return weight, bias
    probe = LogisticRegression(C=_PROBE_C, max_iter=100)
    with warnings.catch_warnings():
        # fine-tuning goes on from here: an optimum is not needed
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(
            (embeddings / spread).astype(np.float32),
            texts.codes,
            sample_weight=texts.shares,
        )
    rows, intercepts = probe.coef_ / spread, probe.intercept_
    if len(present) == 2:
        rows, intercepts = np.vstack([-rows, rows]) / 2, [-1, 1] * intercepts / 2
    weight[present] = rows
    bias[present] = intercepts - rows @ center
    return weight, bias


_METHODS: dict[str, Callable[[ExitTexts], Classifier] | None] = {
    "centroid": centroid_classifier,
    "lda": lda_classifier,
    "linear_probe": probe_classifier,
    "random": None,
}
HEAD_INITS = tuple(_METHODS)


def _times_inverse_covariance(rows, residuals, shares):
    """Rows (K, D) times the inverse of the shrunk covariance of residuals (n, D)."""
    covariance = (residuals * shares[:, None]).T @ residuals / shares.sum()
    variance = np.trace(covariance) / len(covariance)
    covariance *= 1 - _SHRINKAGE
    covariance[np.diag_indices_from(covariance)] += _SHRINKAGE * variance
    return cho_solve(cho_factor(covariance), rows.T).T


def _prior_only(texts):
    weight, bias = np.zeros_like(texts.means), np.zeros(len(texts.mass))
    bias[texts.present] = np.log(texts.mass[texts.present] / texts.mass.sum())
    return weight, bias


def _distance_scores(texts, means, mapped_means, scale):
    """Linear scores of ``log prior - scale / 2 * squared distance``.

    means (K, D), of the present classes, are relative to the center; mapped_means are
    the means times the matrix of the metric.
    """
    weight, bias = _prior_only(texts)
    rows = scale * mapped_means
    weight[texts.present] = rows
    bias[texts.present] -= (rows * means).sum(axis=1) / 2 + rows @ texts.center
    return weight, bias


def _held_out_scale(texts):
    """Scale of least cross-entropy on held-out folds; None if nothing can be held."""
    columns = np.searchsorted(texts.present, texts.codes)  # (n,)
    embeddings = texts.embeddings - texts.center
    folds = _rank_in_class(columns) % _FOLDS
    distances = np.full((len(columns), len(texts.present)), np.nan)
    for fold in range(_FOLDS):
        held, rest = folds == fold, folds != fold
        means, mass = _class_means(embeddings, columns, texts.weights * rest)
        held &= mass[columns] > 0  # a text alone in its class has no mean without it
        residuals = (embeddings - means[columns])[rest]
        if held.any() and np.abs(residuals).max() > _NOISE:
            mapped = _times_inverse_covariance(means, residuals, texts.shares[rest])
            distances[held] = _distances(embeddings[held], means, mapped)
            distances[np.ix_(held, mass == 0)] = np.inf
    kept = ~np.isnan(distances[:, 0])
    if not kept.any():
        return None
    log_prior = np.log(texts.mass[texts.present] / texts.mass.sum())
    smoothing = _SMOOTHING / 10  # held-out texts bound the scale by themselves
    return _fit_scale(
        distances[kept], columns[kept], log_prior, texts.shares[kept], smoothing
    )


def _rank_in_class(columns):
    """How many texts of its class come before each text."""
    order = np.argsort(columns, kind="stable")
    first = np.searchsorted(columns[order], columns[order])
    rank = np.empty(len(columns), np.int64)
    rank[order] = np.arange(len(columns)) - first
    return rank


def _class_means(embeddings, columns, weights):
    """Weighted means (K, D) and masses (K,) of the classes; 0 for one without texts."""
    n_present = columns.max() + 1
    mass = np.bincount(columns, weights, minlength=n_present)
    sums = np.zeros((n_present, embeddings.shape[1]))
    np.add.at(sums, columns, embeddings * weights[:, None])
    return sums / np.where(mass > 0, mass, 1)[:, None], mass


def _distances(embeddings, means, mapped):
    """Squared distances (n, K) in the metric of the mapped means, but a term per row"""
    return (mapped * means).sum(axis=1) - 2 * embeddings @ mapped.T


def _leave_one_out_scale(means, texts):
    """Scale of the squared distances to the means; each text is left out of its own.

    That multiplies its distance to its mean by n / (n - 1); without it, classes of few
    texts look easier than they are.
    """
    own = np.searchsorted(texts.present, texts.codes)  # (n,) columns
    rest = 1 - texts.weights / texts.mass[texts.codes]
    kept = rest > 1e-6  # a text alone in its class has no mean without it
    if not kept.any():
        # at its own class mean, a text then gets about half of the probability
        return np.log(len(means) + 1) / np.mean((means**2).sum(axis=1))
    own, rest = own[kept], rest[kept]
    embeddings = texts.embeddings[kept] - texts.center
    distances = _distances(embeddings, means, means)  # (n, K)
    distances += (embeddings**2).sum(axis=1, keepdims=True)
    distances[np.arange(len(own)), own] /= rest**2
    log_prior = np.log(texts.mass[texts.present] / texts.mass.sum())
    return _fit_scale(distances, own, log_prior, texts.shares[kept], _SMOOTHING)


def _fit_scale(distances, own, log_prior, shares, smoothing):
    """Scale of squared distances (n, K) that minimises cross-entropy."""
    rows = np.arange(len(own))
    # equal terms in a row change nothing but keep the numbers small
    distances = distances - distances.min(axis=1, keepdims=True)
    finite = np.isfinite(distances)
    n_finite = finite.sum(axis=1)
    typical = 1 / max(distances[finite].mean(), np.finfo(float).tiny)

    def cross_entropy(log_scale):
        scores = log_prior - np.exp(log_scale) / 2 * distances
        # without smoothing the scale of classes that separate has no bound
        mean = np.where(finite, scores, 0).sum(axis=1) / n_finite
        target = (1 - smoothing) * scores[rows, own] + smoothing * mean
        return np.average(logsumexp(scores, axis=1) - target, weights=shares)

    bounds = np.log(typical) + np.array([-9, 9])
    return np.exp(minimize_scalar(cross_entropy, bounds=bounds, method="bounded").x)


def _fill_empty_rows(weight, bias, texts, std, rng):
    """Random rows in place of zero ones, which no text could ever find or train."""
    weight, bias = weight.copy(), bias.copy()
    norms = np.linalg.norm(weight, axis=1)
    empty = norms == 0
    if not empty.any():
        return weight, bias
    n_features = weight.shape[1]
    directions = rng.standard_normal((empty.sum(), n_features))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    norm = std * np.sqrt(n_features) if empty.all() else norms[~empty].mean()
    weight[empty] = norm * directions
    # such a row must not change the score of the average text
    bias[empty] -= weight[empty] @ texts.center
    absent = np.flatnonzero(texts.mass == 0)
    if absent.size:
        scores = texts.embeddings @ weight.T + bias  # (n, C)
        best = scores[:, texts.present].max(axis=1, keepdims=True)
        lead = (scores[:, absent] - best).max(axis=0)
        # all absent classes together stay below the likeliest one
        bias[absent] -= lead + np.log1p(absent.size)
    return weight, bias


# --- heads --------------------------------------------------------------------------


def _heads_of(encoder, exits):
    if exits is None:
        return list(encoder.heads)
    numbered = zip(encoder.exit_layer_numbers, encoder.heads, strict=True)
    return [head for layer, head in numbered if layer in set(exits)]


@torch.no_grad()
def _set_random_heads(heads, std, seed):
    generator = torch.Generator().manual_seed(seed)
    for head in heads:
        for linear in (head.dense, head.classifier):
            weight = torch.empty(linear.weight.shape)
            linear.weight.copy_(weight.normal_(0.0, std, generator=generator))
            linear.bias.zero_()


@torch.no_grad()
def _set_head(head, weight, bias):
    torch.nn.init.eye_(head.dense.weight)
    head.dense.bias.zero_()
    head.classifier.weight.copy_(torch.from_numpy(weight))
    head.classifier.bias.copy_(torch.from_numpy(bias))
