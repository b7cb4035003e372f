"""What a frozen encoder makes of the training texts: class means and a sample."""

from collections.abc import Iterable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

_MAX_SAMPLE = 4000  # texts whose embeddings are held in memory


class ExitTexts(NamedTuple):
    """What the training texts look like at one exit.

    Attributes
    ----------
    mass : ndarray of shape (C,)
        Total weight of each class.
    means : ndarray of shape (C, D)
        Mean embedding of each class; zero for a class without texts.
    embeddings : ndarray of shape (n, D)
        Embeddings of the sampled texts.
    codes : ndarray of shape (n,)
        Their classes.
    weights : ndarray of shape (n,)
        Their own weights.
    shares : ndarray of shape (n,)
        Their weights, scaled per class so that each class has its share of `mass`;
        mean 1.
    """

    mass: np.ndarray
    means: np.ndarray
    embeddings: np.ndarray
    codes: np.ndarray
    weights: np.ndarray
    shares: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """Codes of the classes with texts, (K,)."""
        return np.flatnonzero(self.mass > 0)

    @property
    def center(self) -> np.ndarray:
        """Weighted mean embedding of all texts, (D,)."""
        return self.mass @ self.means / self.mass.sum()


def embed_texts(encoder, batches: Iterable, n_classes: int, seed: int):
    """Embed training texts at every exit, before its head: ``tanh(pooled)``.

    Parameters
    ----------
    encoder : MultiExitEncoder
        Runs in eval mode; every module gets its own mode back.
    batches : iterable of (inputs, labels, weights)
        Dicts of tensors, class codes (B,), and weights (B,) or None.
    n_classes : int
        Number of classes C.
    seed : int
        Seed of the sample.

    Returns
    -------
    exits : iterator of ExitTexts
        One per exit, which share `mass`, `codes`, `weights` and `shares`.

    Raises
    ------
    ValueError
        For no text of positive weight, or embeddings that are not finite.
    """
    device = next(encoder.parameters()).device
    n_features = encoder.heads[0].dense.in_features
    mass = torch.zeros(n_classes, dtype=torch.float64)
    sums = torch.zeros(len(encoder.heads), n_classes, n_features, dtype=torch.float64)
    sample = _Sample(n_classes, seed)
    with _evaluating(encoder):
        for inputs, labels, weights in batches:
            inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
            embeddings = torch.tanh(encoder.pooled(inputs).float()).cpu()  # (M, B, D)
            codes = labels.cpu().long()
            weights = torch.ones(len(codes)) if weights is None else weights.cpu()
            kept = weights > 0
            embeddings, codes, weights = embeddings[:, kept], codes[kept], weights[kept]
            if not embeddings.isfinite().all():
                raise ValueError(
                    "The backbone's hidden states are not finite; its weights may be "
                    "damaged or its precision too low."
                )
            # in double precision, which not every device has
            weights = weights.double()
            mass.index_add_(0, codes, weights)
            sums.index_add_(1, codes, embeddings.double() * weights[:, None])
            sample.add(embeddings.numpy(), codes.numpy(), weights.numpy())
    if not mass.any():
        raise ValueError("No training text has a positive weight.")
    means = sums / torch.where(mass > 0, mass, 1.0)[:, None]
    return sample.by_exit(mass.numpy(), means.numpy())


@contextmanager
def _evaluating(encoder):
    """Eval mode without gradients; every module gets its own mode back.

    Not inference mode: tensors that a backbone caches must serve in training later.
    """
    training = [module for module in encoder.modules() if module.training]
    encoder.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class _Sample:
    """A seeded sample of a stream of texts that does not depend on its batches.

    Every text draws a priority. Half of the places go to the first of each class, in
    equal parts, the rest to the first of all. A text that falls behind never returns,
    so places may be given out at any time.
    """

    def __init__(self, n_classes, seed):
        self.n_places = max(_MAX_SAMPLE, n_classes)
        self.quota = max(1, self.n_places // (2 * n_classes))
        self.rng = np.random.default_rng([seed, 0])
        self.parts = []  # tuples: embeddings (M, b, D), codes, weights, priorities
        self.n_stored = 0

    def add(self, embeddings, codes, weights):
        self.parts.append((embeddings, codes, weights, self.rng.random(len(codes))))
        self.n_stored += len(codes)
        if self.n_stored > 2 * self.n_places:
            self.prune()

    def prune(self):
        """Keep the texts that have a place, in the order of arrival."""
        embeddings, *others = zip(*self.parts, strict=True)
        codes, weights, priorities = map(np.concatenate, others)
        embeddings = np.concatenate(embeddings, axis=1)
        by_class = np.lexsort((priorities, codes))
        first = np.searchsorted(codes[by_class], codes[by_class])
        rank = np.empty(len(codes), np.int64)  # within the class
        rank[by_class] = np.arange(len(codes)) - first
        places = np.lexsort((priorities, rank >= self.quota))[: self.n_places]
        kept = np.sort(places)
        self.parts = [
            (embeddings[:, kept], codes[kept], weights[kept], priorities[kept])
        ]
        self.n_stored = len(kept)

    def by_exit(self, mass, means):
        """One `ExitTexts` per exit, with class masses (C,) and means (M, C, D)."""
        self.prune()
        ((embeddings, codes, weights, _),) = self.parts
        sampled = np.bincount(codes, weights, minlength=len(mass))
        shares = weights * (mass / np.where(sampled > 0, sampled, 1))[codes]
        shares /= shares.mean()
        return (
            ExitTexts(mass, means[m], rows.astype(np.float64), codes, weights, shares)
            for m, rows in enumerate(embeddings)
        )
