import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from tiny import FAMILIES, LABELS, TEXTS, make_tiny_model, make_tokenizer
from torch import nn

from sklearn_acl import frozen_embeddings
from sklearn_acl.encoder import ExitHead, MultiExitEncoder
from sklearn_acl.head_init import initialize_heads

FROZEN = ("centroid", "lda", "linear_probe")
METHODS = (*FROZEN, "random")
N_EXITS, N_TEXTS, N_FEATURES = 2, 90, 12


class TableEncoder(nn.Module):
    """Stands in for `MultiExitEncoder`: pooled states (M, N, D) are looked up."""

    def __init__(self, pooled, n_classes, std=0.02):
        super().__init__()
        self.table = nn.Parameter(pooled)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.backbone = SimpleNamespace(
            config=SimpleNamespace(initializer_range=std),
        )
        self.heads = nn.ModuleList(
            ExitHead(pooled.shape[2], n_classes) for _ in range(len(pooled))
        )

    def pooled(self, inputs):
        return self.dropout(self.table[:, inputs["rows"]])


def make_task(n_classes=3, seed=0, n_texts=N_TEXTS):
    """Pooled states of overlapping classes of unequal size, and class codes."""
    rng = np.random.default_rng(seed)
    frequencies = np.arange(1, n_classes + 1) / np.arange(1, n_classes + 1).sum()
    codes = rng.choice(n_classes, n_texts, p=frequencies)
    codes[: 2 * n_classes] = np.repeat(np.arange(n_classes), 2)
    directions = rng.normal(size=(N_EXITS, n_classes, N_FEATURES))
    mixing = rng.normal(size=(N_FEATURES, N_FEATURES)) / 4
    noise = rng.normal(size=(N_EXITS, n_texts, N_FEATURES)) @ mixing
    pooled = 0.3 * directions[:, codes] + noise + 0.4
    return torch.tensor(pooled, dtype=torch.float32), codes


def make_batches(codes, weights=None, rows=None, batch_size=16):
    rows = np.arange(len(codes)) if rows is None else np.asarray(rows)
    for start in range(0, len(rows), batch_size):
        batch = torch.from_numpy(rows[start : start + batch_size])
        labels = torch.from_numpy(codes)[batch]
        yield (
            {"rows": batch},
            labels,
            None if weights is None else torch.tensor(weights)[batch],
        )


def start(pooled, codes, method, *, n_classes=None, seed=0, **kwargs):
    """Weights (M, C, D) and biases (M, C) of started heads, as numpy arrays."""
    n_classes = codes.max() + 1 if n_classes is None else n_classes
    encoder = TableEncoder(pooled, n_classes)
    initialize_heads(encoder, make_batches(codes, **kwargs), method=method, seed=seed)
    weights = torch.stack([head.classifier.weight for head in encoder.heads])
    biases = torch.stack([head.classifier.bias for head in encoder.heads])
    return weights.detach().double().numpy(), biases.detach().double().numpy()


def embed(pooled):
    return np.tanh(pooled.double().numpy())


def mean_by_loop(rows, weights=None):
    total, mass = 0.0, 0.0
    for i, row in enumerate(rows):
        weight = 1.0 if weights is None else weights[i]
        total, mass = total + weight * row, mass + weight
    return total / mass


def close(a, b, tolerance=1e-5):
    return np.allclose(a, b, rtol=tolerance, atol=tolerance)


def scale_of(weight, means, center):
    """The factor between label embeddings and centred class means."""
    return np.linalg.norm(weight) / np.linalg.norm(means - center)


# --- what each start is -------------------------------------------------------------


@pytest.mark.parametrize("method", FROZEN)
def test_the_dense_layer_is_the_identity(method):
    pooled, codes = make_task()
    encoder = TableEncoder(pooled, 3)
    initialize_heads(encoder, make_batches(codes), method=method)
    for head in encoder.heads:
        assert torch.equal(head.dense.weight, torch.eye(N_FEATURES))
        assert not head.dense.bias.any()


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_centroid_rows_are_scaled_class_means(n_classes, weighted):
    pooled, codes = make_task(n_classes)
    weights = np.random.default_rng(1).uniform(0.1, 3, N_TEXTS) if weighted else None
    started, _ = start(pooled, codes, "centroid", weights=weights)
    for weight, rows in zip(started, embed(pooled), strict=True):
        center = mean_by_loop(rows, weights)
        means = np.array(
            [
                mean_by_loop(
                    rows[codes == c], None if weights is None else weights[codes == c]
                )
                for c in range(n_classes)
            ]
        )
        scale = scale_of(weight, means, center)
        assert scale > 0
        assert close(weight, scale * (means - center))


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_centroid_scores_are_distances_and_priors(n_classes):
    pooled, codes = make_task(n_classes)
    started = zip(*start(pooled, codes, "centroid"), embed(pooled), strict=True)
    for weight, bias, rows in started:
        center = rows.mean(axis=0)
        means = np.array([rows[codes == c].mean(axis=0) for c in range(n_classes)])
        scale = scale_of(weight, means, center)
        expected = np.empty((N_TEXTS, n_classes))
        for i in range(N_TEXTS):
            for c in range(n_classes):
                distance = ((rows[i] - means[c]) ** 2).sum()
                expected[i, c] = np.log(np.mean(codes == c)) - scale / 2 * distance
        scores = rows @ weight.T + bias
        assert close(log_softmax(scores, axis=1), log_softmax(expected, axis=1), 1e-4)


def leave_one_out_loss(rows, codes, scale, smoothing=0.01):
    """Smoothed cross-entropy of nearest class means that never saw the text."""
    n_classes = codes.max() + 1
    losses = []
    for i in range(len(rows)):
        scores = np.empty(n_classes)
        for c in range(n_classes):
            others = (codes == c) & (np.arange(len(rows)) != i)
            distance = ((rows[i] - rows[others].mean(axis=0)) ** 2).sum()
            scores[c] = np.log(np.mean(codes == c)) - scale / 2 * distance
        target = np.full(n_classes, smoothing / n_classes)
        target[codes[i]] += 1 - smoothing
        losses.append(logsumexp(scores) - target @ scores)
    return np.mean(losses)


def test_the_scale_minimises_the_leave_one_out_loss():
    pooled, codes = make_task()
    started, _ = start(pooled, codes, "centroid")
    for weight, rows in zip(started, embed(pooled), strict=True):
        means = np.array([rows[codes == c].mean(axis=0) for c in range(3)])
        scale = scale_of(weight, means, rows.mean(axis=0))
        best = leave_one_out_loss(rows, codes, scale)
        for factor in (0.2, 0.9, 0.98, 1.02, 1.1, 5):
            assert leave_one_out_loss(rows, codes, factor * scale) > best


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_lda_rows_are_those_of_scikit_learn(n_classes):
    pooled, codes = make_task(n_classes)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)
    started = zip(*start(pooled, codes, "lda"), embed(pooled), strict=True)
    for weight, bias, rows in started:
        reference.fit(rows, codes)
        rows_apart = np.diff(weight, axis=0)
        # scikit-learn keeps a single row, the difference, of two classes
        expected = (
            np.diff(reference.coef_, axis=0) if n_classes > 2 else (reference.coef_)
        )
        scale = np.linalg.norm(rows_apart) / np.linalg.norm(expected)
        assert close(rows_apart / scale, expected, 1e-4)
        priors = np.log(np.bincount(codes) / N_TEXTS)
        intercepts = reference.intercept_ if n_classes > 2 else None
        if intercepts is not None:
            likelihoods = (rows @ weight.T + bias - priors) / scale
            shown = rows @ reference.coef_.T + intercepts - priors
            assert close(np.diff(likelihoods), np.diff(shown), 1e-3)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_probe_equals_logistic_regression(n_classes, weighted):
    pooled, codes = make_task(n_classes)
    weights = np.random.default_rng(1).uniform(0.1, 3, N_TEXTS) if weighted else None
    started = zip(
        *start(pooled, codes, "linear_probe", weights=weights),
        embed(pooled),
        strict=True,
    )
    for weight, bias, rows in started:
        centered = rows - mean_by_loop(rows, weights)
        scaled = centered / np.sqrt((centered**2).mean())
        relative = None if weights is None else weights / weights.mean()
        reference = LogisticRegression(C=0.1, tol=1e-8, max_iter=1000)
        reference.fit(scaled, codes, sample_weight=relative)
        scores = rows @ weight.T + bias
        expected = reference.predict_log_proba(scaled)
        assert close(log_softmax(scores, axis=1), expected, 3e-3)
        clear = np.abs(np.diff(np.sort(expected, axis=1)[:, -2:])).ravel() > 0.01
        assert clear.mean() > 0.9
        predicted = scores.argmax(axis=1)
        assert np.array_equal(predicted[clear], reference.predict(scaled)[clear])


def test_a_binary_probe_is_split_in_halves():
    pooled, codes = make_task(2)
    weight, bias = start(pooled, codes, "linear_probe")
    assert np.array_equal(weight[:, 0], -weight[:, 1])
    center = embed(pooled).mean(axis=1)
    at_center = np.einsum("mcd,md->mc", weight, center) + bias
    assert close(at_center[:, 0], -at_center[:, 1])


@pytest.mark.parametrize("method", FROZEN)
def test_starts_know_more_than_chance(method):
    pooled, codes = make_task()
    started = zip(*start(pooled, codes, method), embed(pooled), strict=True)
    for weight, bias, rows in started:
        accuracy = np.mean((rows @ weight.T + bias).argmax(axis=1) == codes)
        assert accuracy > np.bincount(codes).max() / N_TEXTS + 0.1


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_random_heads_have_the_published_form(std):
    encoder = TableEncoder(torch.zeros(3, 1, 64), 64, std)
    initialize_heads(encoder, iter(()), method="random", seed=1)
    drawn = []
    for head in encoder.heads:
        for linear in (head.dense, head.classifier):
            assert not linear.bias.any()
            assert linear.weight.std().item() == pytest.approx(std, rel=0.05)
            assert abs(linear.weight.mean().item()) < std / 10
            drawn.append(linear.weight.detach())
    for i, weight in enumerate(drawn):
        for other in drawn[:i]:
            assert not torch.equal(weight, other)


# --- absent classes and degenerate tasks --------------------------------------------


@pytest.mark.parametrize("method", FROZEN)
def test_absent_classes_get_rows_that_never_win(method):
    pooled, codes = make_task(3)
    wide = np.array([1, 2, 4])[codes]  # of six classes, 0, 3 and 5 are absent
    absent, present = [0, 3, 5], [1, 2, 4]
    weight, bias = start(pooled, wide, method, n_classes=6)
    alone, alone_bias = start(pooled, codes, method)
    assert close(weight[:, present], alone)
    assert close(bias[:, present], alone_bias)
    norms = np.linalg.norm(weight, axis=2)
    typical = norms[:, present].mean(axis=1, keepdims=True)
    assert close(norms[:, absent], np.broadcast_to(typical, (N_EXITS, 3)))
    scores = np.einsum("mnd,mcd->mnc", embed(pooled), weight) + bias[:, None]
    probabilities = np.exp(log_softmax(scores, axis=2))
    of_absent = probabilities[:, :, absent].sum(axis=2)
    assert (of_absent < probabilities[:, :, present].max(axis=2)).all()
    similarity = weight[:, absent] @ weight[:, absent].transpose(0, 2, 1)
    cosine = similarity / norms[:, absent, None] / norms[:, None, absent]
    assert np.abs(cosine[:, ~np.eye(3, dtype=bool)]).max() < 0.95


@pytest.mark.parametrize("method", FROZEN)
def test_a_class_without_weight_is_absent(method):
    pooled, codes = make_task(3)
    weights = np.where(codes == 1, 0.0, 1.0)
    kept = np.flatnonzero(codes != 1)
    zero = start(pooled, codes, method, weights=weights)
    absent = start(pooled, codes, method, rows=kept, n_classes=3)
    assert close(zero[0], absent[0])
    assert close(zero[1], absent[1])
    assert (np.linalg.norm(zero[0], axis=2) > 0).all()


@pytest.mark.parametrize("method", FROZEN)
@pytest.mark.parametrize("case", ["one text per class", "one class", "equal texts"])
def test_degenerate_tasks_start_finite_and_nonzero(method, case):
    pooled, _ = make_task(3)
    codes = np.zeros(6, dtype=np.int64) if case == "one class" else np.arange(6) % 3
    if case == "one text per class":
        codes = codes[:3]
    pooled = pooled[:, : len(codes)]
    if case == "equal texts":
        pooled = pooled[:, :1].expand(-1, len(codes), -1).contiguous()
    weight, bias = start(pooled, codes, method, n_classes=3)
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()
    norms = np.linalg.norm(weight, axis=2)
    assert (norms > 0).all()
    assert norms.max() < 1000
    scores = np.einsum("mnd,mcd->mnc", embed(pooled), weight) + bias[:, None]
    if case == "equal texts":
        assert close(scores, scores[:, :1, :1], 1e-4)
    else:
        assert np.array_equal(scores.argmax(axis=2), np.tile(codes, (N_EXITS, 1)))


def test_separate_classes_get_a_bounded_scale():
    pooled, codes = make_task(3)
    pooled = torch.full_like(pooled, -1.0)
    pooled[:, np.arange(N_TEXTS), codes] = 1.0
    weight, bias = start(pooled, codes, "centroid")
    scores = np.einsum("mnd,mcd->mnc", embed(pooled), weight) + bias[:, None]
    confidence = np.exp(log_softmax(scores, axis=2)).max(axis=2)
    assert (confidence > 0.95).all()
    assert (confidence < 0.999).all()


# --- weights ------------------------------------------------------------------------


@pytest.mark.parametrize("method", FROZEN)
def test_weight_zero_is_the_text_left_out(method):
    pooled, codes = make_task()
    kept = np.flatnonzero(np.arange(N_TEXTS) % 4)
    weights = (np.arange(N_TEXTS) % 4 > 0).astype(float)
    weighted = start(pooled, codes, method, weights=weights)
    left_out = start(pooled, codes, method, rows=kept)
    assert close(weighted[0], left_out[0])
    assert close(weighted[1], left_out[1])


@pytest.mark.parametrize("method", FROZEN)
def test_weight_two_is_the_text_twice(method):
    pooled, codes = make_task()
    weights = np.where(np.arange(N_TEXTS) % 4, 1.0, 2.0)
    twice = np.repeat(np.arange(N_TEXTS), weights.astype(int))
    weighted, _ = start(pooled, codes, method, weights=weights)
    repeated, _ = start(pooled, codes, method, rows=twice)
    plain, _ = start(pooled, codes, method)
    for a, b, c in zip(weighted, repeated, plain, strict=True):
        # lengths differ a little: a copy stays when the other is left out of its mean
        # or held out with its fold, and the probe's C counts rows
        tolerance = 1.0 if method == "lda" else 0.2
        assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=tolerance)
        a, b, c = (rows / np.linalg.norm(rows) for rows in (a, b, c))
        tolerance = 0.03 if method == "linear_probe" else 1e-5
        assert np.abs(a - b).max() < tolerance < np.abs(b - c).max()


@pytest.mark.parametrize("method", FROZEN)
def test_equal_weights_change_nothing(method):
    pooled, codes = make_task()
    plain = start(pooled, codes, method)
    for value in (1.0, 7.0, 1e-3):
        weighted = start(pooled, codes, method, weights=np.full(N_TEXTS, value))
        tolerance = 2e-3 if method == "linear_probe" else 1e-5
        assert close(weighted[0], plain[0], tolerance)
        assert close(weighted[1], plain[1], tolerance)


# --- sampling, batches and seeds ----------------------------------------------------


@pytest.mark.parametrize("limit", [4000, 20])
@pytest.mark.parametrize("method", FROZEN)
def test_the_partition_into_batches_does_not_matter(method, limit, monkeypatch):
    monkeypatch.setattr(frozen_embeddings, "_MAX_SAMPLE", limit)
    pooled, codes = make_task()
    whole = start(pooled, codes, method, batch_size=N_TEXTS)
    for batch_size in (1, 7):
        parts = start(pooled, codes, method, batch_size=batch_size)
        assert close(whole[0], parts[0])
        assert close(whole[1], parts[1])


def collect(codes, n_classes, *, seed=0, batch_size=11, weights=None):
    """The texts at the only exit; a text's embedding is its row number."""
    pooled = torch.atanh(torch.arange(len(codes)) / 1000.0)[None, :, None]
    encoder = TableEncoder(pooled, n_classes)
    batches = make_batches(codes, weights, batch_size=batch_size)
    (texts,) = frozen_embeddings.embed_texts(encoder, batches, n_classes, seed)
    return texts, np.rint(texts.embeddings[:, 0] * 1000).astype(int)


def test_the_sample_has_a_quota_for_each_class(monkeypatch):
    monkeypatch.setattr(frozen_embeddings, "_MAX_SAMPLE", 40)
    codes = np.random.default_rng(0).permutation(np.repeat([0, 1, 3], [280, 15, 2]))
    texts, rows = collect(codes, 4)
    assert len(rows) == 40
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(texts.codes, codes[rows])
    # half of the places, in four equal parts; a small class needs less than its own
    counts = np.bincount(texts.codes, minlength=4)
    assert counts[3] == 2
    assert counts[1] >= 5
    priorities = np.random.default_rng([0, 0]).random(len(codes))
    guaranteed = []
    for c in range(4):
        members = sorted(np.flatnonzero(codes == c), key=priorities.__getitem__)
        guaranteed += members[:5]
    others = sorted(set(range(len(codes))) - set(guaranteed), key=priorities.take)
    expected = sorted(guaranteed + others[: 40 - len(guaranteed)])
    assert rows.tolist() == expected


def test_shares_restore_the_weight_of_each_class(monkeypatch):
    monkeypatch.setattr(frozen_embeddings, "_MAX_SAMPLE", 40)
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat([0, 1, 2], [280, 15, 4]))
    weights = rng.uniform(0, 2, len(codes))
    texts, rows = collect(codes, 3, weights=weights)
    mass = np.bincount(codes, weights)
    assert close(texts.mass, mass)
    assert close(texts.weights, weights[rows])
    sampled = np.bincount(texts.codes, texts.shares)
    assert close(sampled / sampled.sum(), mass / mass.sum())
    assert texts.shares.mean() == pytest.approx(1)
    for c in range(3):
        ratio = texts.shares[texts.codes == c] / texts.weights[texts.codes == c]
        assert np.ptp(ratio) < 1e-9 * ratio.max()


def test_more_classes_than_places(monkeypatch):
    monkeypatch.setattr(frozen_embeddings, "_MAX_SAMPLE", 5)
    texts, rows = collect(np.arange(60) % 20, 20)
    assert sorted(texts.codes) == list(range(20))
    assert len(rows) == 20


def test_the_sample_follows_the_seed(monkeypatch):
    monkeypatch.setattr(frozen_embeddings, "_MAX_SAMPLE", 10)
    codes = np.arange(200) % 2
    samples = [collect(codes, 2, seed=seed)[1].tolist() for seed in (0, 0, 1)]
    assert samples[0] == samples[1]
    assert samples[0] != samples[2]


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_equal_heads(method):
    pooled, codes = make_task()
    first, again, other = (
        start(pooled, codes, method, n_classes=5, seed=seed) for seed in (3, 3, 4)
    )
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    # classes 3 and 4 are absent: their rows are random
    assert not close(first[0][:, 3:], other[0][:, 3:])


# --- what is left alone -------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_global_random_generators_are_left_alone(method):
    pooled, codes = make_task()
    encoder = TableEncoder(pooled, 5)
    batches = list(make_batches(codes))
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    initialize_heads(encoder, batches, method=method, seed=3)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_only_the_heads_change(method, training):
    pooled, codes = make_task()
    encoder = TableEncoder(pooled, 3).train(training)
    encoder.frozen.eval()
    modes = [module.training for module in encoder.modules()]
    table = encoder.table.detach().clone()
    parameters = list(encoder.parameters())
    initialize_heads(encoder, make_batches(codes), method=method)
    assert [module.training for module in encoder.modules()] == modes
    assert torch.equal(encoder.table, table)
    for before, after in zip(parameters, encoder.parameters(), strict=True):
        assert after is before
        assert after.requires_grad
        assert after.grad is None
        assert after.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_modes_come_back_after_an_error(training):
    pooled, codes = make_task()
    encoder = TableEncoder(pooled.fill_(float("nan")), 3).train(training)
    with pytest.raises(ValueError, match="not finite"):
        initialize_heads(encoder, make_batches(codes))
    assert encoder.training is encoder.dropout.training is training


@pytest.mark.parametrize("method", FROZEN)
def test_dropout_is_off(method):
    pooled, codes = make_task()
    calm, noisy = TableEncoder(pooled, 3).eval(), TableEncoder(pooled, 3).train()
    for encoder in (calm, noisy):
        initialize_heads(encoder, make_batches(codes), method=method)
    for a, b in zip(calm.heads, noisy.heads, strict=True):
        assert torch.equal(a.classifier.weight, b.classifier.weight)


@pytest.mark.parametrize("method", METHODS)
def test_heads_keep_a_lower_precision(method):
    pooled, codes = make_task()
    encoder = TableEncoder(pooled, 3).to(torch.bfloat16)
    initialize_heads(encoder, make_batches(codes), method=method)
    weight, _ = start(pooled, codes, method)
    for head, expected in zip(encoder.heads, weight, strict=True):
        assert head.classifier.weight.dtype == torch.bfloat16
        found = head.classifier.weight.detach().double().numpy()
        assert close(found, expected, 0.05 * np.abs(expected).max())


# --- errors -------------------------------------------------------------------------


def message(text):
    return f"^{re.escape(text)}$"


def test_unknown_method():
    pooled, codes = make_task()
    text = (
        "head_init must be one of 'centroid', 'lda', 'linear_probe', 'random'; got "
        "'zeros'."
    )
    with pytest.raises(ValueError, match=message(text)):
        initialize_heads(TableEncoder(pooled, 3), make_batches(codes), method="zeros")


@pytest.mark.parametrize("method", FROZEN)
@pytest.mark.parametrize("weights", [None, np.zeros(N_TEXTS)])
def test_no_text_of_positive_weight(method, weights):
    pooled, codes = make_task()
    rows = [] if weights is None else None
    batches = make_batches(codes, weights, rows)
    with pytest.raises(ValueError, match="^No training text has a positive weight.$"):
        initialize_heads(TableEncoder(pooled, 3), batches, method=method)


def test_embeddings_of_weightless_texts_may_be_anything():
    pooled, codes = make_task()
    weights = np.ones(N_TEXTS)
    weights[5], pooled[:, 5] = 0, float("nan")
    weight, _ = start(pooled, codes, "centroid", weights=weights)
    assert np.isfinite(weight).all()


# --- the real encoder ---------------------------------------------------------------


def real_batches(batch_size=16):
    tokenizer = make_tokenizer()
    _, codes = np.unique(LABELS, return_inverse=True)
    batches = []
    for i in range(0, len(TEXTS), batch_size):
        inputs = tokenizer(TEXTS[i : i + batch_size], padding=True, return_tensors="pt")
        labels = torch.from_numpy(codes[i : i + batch_size])
        batches.append((dict(inputs), labels, None))
    return batches


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_pooling(family, pooling):
    backbone = make_tiny_model(family, num_hidden_layers=2)
    encoder = MultiExitEncoder(backbone, 3, pooling=pooling)
    batches = real_batches()
    codes = torch.cat([labels for _, labels, _ in batches])
    initialize_heads(encoder, batches, method="lda")

    encoder.eval()
    with torch.no_grad():
        outputs = [encoder(inputs) for inputs, _, _ in batches]
        pooled = [encoder.pooled(inputs) for inputs, _, _ in batches]
    logits = torch.cat([output.logits for output in outputs], dim=1)
    embeddings = torch.tanh(torch.cat(pooled, dim=1))
    found = torch.cat([output.embeddings for output in outputs], dim=1)
    assert torch.allclose(found, embeddings, atol=1e-6)
    # three classes, so a third by chance
    assert (logits.argmax(dim=2) == codes).float().mean(dim=1).min() > 0.5

    reference = copy.deepcopy(encoder)
    initialize_heads(reference, real_batches(batch_size=7), method="centroid")
    with torch.no_grad():
        logits = torch.cat([reference(inputs).logits for inputs, _, _ in batches], 1)
    for scores, rows, head in zip(logits, embeddings, reference.heads, strict=True):
        means = torch.stack([rows[codes == c].mean(dim=0) for c in range(3)])
        # classes of equal size, so the nearest mean decides
        distances = torch.cdist(rows, means)
        nearest, second = distances.sort(dim=1).values[:, :2].T
        clear = second - nearest > 1e-4 * second
        assert clear.float().mean() > 0.9
        decided = scores.argmax(dim=1)[clear]
        assert torch.equal(decided, distances.argmin(dim=1)[clear])
        assert torch.allclose(
            torch.nn.functional.cosine_similarity(
                head.classifier.weight, means - rows.mean(dim=0)
            ),
            torch.ones(3),
            atol=1e-3,
        )


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_training_goes_on_after_the_start(family):
    encoder = MultiExitEncoder(make_tiny_model(family), 3).train()
    batches = real_batches()
    initialize_heads(encoder, batches)
    inputs, labels, _ = batches[0]
    logits = encoder(inputs).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)))
    loss.backward()
    assert all(parameter.grad is not None for parameter in encoder.heads.parameters())
    assert all(
        parameter.grad.isfinite().all() for parameter in encoder.layer_parameters()
    )
