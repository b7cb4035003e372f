"""Rivals of the study: what they return, what they read, and that they learn."""

import functools
import json
import logging
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets.utils import are_progress_bars_disabled
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import matthews_corrcoef
from tiny import LABELS, TEXTS

STUDY = Path(__file__).resolve().parents[1] / "examples" / "study"

NAMES = ("tfidf_lr", "embeddings_lr", "trainer", "setfit")
PACKAGES = {"trainer": "accelerate", "setfit": "setfit"}  # tests can do without them
# enough for the tiny encoder to learn something
QUICK = {
    "tfidf_lr": {"Cs": [1.0, 100.0]},
    "embeddings_lr": {"Cs": [0.1, 1.0]},
    "trainer": {"lr": 2e-3, "epochs": 10, "batch_size": 16},
    "setfit": {"lr": 3e-3, "num_iterations": 1},
}
KEYS = {"exits", "fit_seconds", "predict_seconds", "n_scored", "model_bytes"}


@pytest.fixture(scope="module")
def rivals(study):
    return study("rivals")


@pytest.fixture(scope="module")
def small_bert(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def data():
    """{kind: (train, test)}: texts of three classes; pairs, are both of one class?"""
    labels = np.array(LABELS)
    others = np.random.default_rng(0).permutation(len(TEXTS))
    pairs = [(TEXTS[i], TEXTS[j]) for i, j in enumerate(others)]
    same = np.where(labels == labels[others], "yes", "no")
    return {
        "single": ((TEXTS[:42], labels[:42]), (TEXTS[42:], labels[42:])),
        "pairs": ((pairs[:42], same[:42]), (pairs[42:], same[42:])),
        "trained": ((TEXTS[:42], labels[:42]), (TEXTS[:42], labels[:42])),
    }


@pytest.fixture(scope="module")
def run(rivals, small_bert):
    """Train a rival on quick settings; skip it where its package is absent."""

    def train(name, data, seed=0):
        skip_without_package(name)
        backbone = {} if name == "tfidf_lr" else {"backbone": small_bert}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a rival makes no noise
            return rivals.RIVALS[name](*data, seed=seed, params=QUICK[name] | backbone)

    return train


@pytest.fixture(scope="module")
def first_run(run, data):
    """Result of a rival on data of a kind, run once."""
    return functools.cache(lambda name, kind: run(name, data[kind]))


def skip_without_package(name):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], exc_type=ImportError)


# --- what all of them do -------------------------------------------------------------


def test_there_is_a_rival_for_every_name(rivals):
    assert tuple(rivals.RIVALS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["trained", "pairs"])
def test_result_is_complete(first_run, data, name, kind):
    result = first_run(name, kind)
    chosen = {"C"} if name.endswith("_lr") else set()
    matthews = {"matthews"} if kind == "pairs" else set()
    assert result.keys() == KEYS | chosen | matthews
    assert json.loads(json.dumps(result)) == result
    # a line of the results holds both; the run must be found again in it
    assert not result.keys() & {"kind", "task", "part", "n_train", "n_test", "seed"}
    for scores in ("exits", *matthews):
        assert len(result[scores]) == 1 and isinstance(result[scores][0], float)
    assert 0 <= result["exits"][0] <= 100
    assert result["n_scored"] == len(data[kind][1][1])
    assert result["fit_seconds"] > 0 and result["predict_seconds"] > 0
    assert result["model_bytes"] > 1000


@pytest.mark.parametrize("name", NAMES)
def test_training_texts_are_learnt(first_run, name):
    assert first_run(name, "trained")["exits"][0] > 50  # chance: 33


@pytest.mark.parametrize("name", NAMES)
def test_second_run_scores_the_same_and_leaves_nothing_behind(
    run, first_run, data, name, tmp_path, monkeypatch, capfd
):
    first = first_run(name, "trained")  # packages set themselves up when imported
    monkeypatch.chdir(tmp_path)
    before = process_state()
    capfd.readouterr()
    again = run(name, data["trained"])
    assert capfd.readouterr() == ("", "")
    assert process_state() == before
    assert not list(tmp_path.iterdir())
    for key in first.keys() - {"fit_seconds", "predict_seconds"}:
        assert again[key] == first[key]


def process_state():
    loggers = ("", "transformers", "sentence_transformers", "setfit", "datasets")
    return (
        dict(os.environ),
        torch.get_num_threads(),
        list(warnings.filters),
        [logging.getLogger(name).level for name in loggers],
        are_progress_bars_disabled(),
    )


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_impossible_params_are_refused(rivals, data, name):
    rival = rivals.RIVALS[name]
    with pytest.raises(ValueError, match="'n_layers', which this rival does not read"):
        rival(*data["single"], seed=0, params={"n_layers": 3})
    number, value = ("Cs", [0.0]) if name.endswith("_lr") else ("lr", 0.0)
    with pytest.raises(ValueError, match=rf"params\['{number}'\] must be positive"):
        rival(*data["single"], seed=0, params={number: value})


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_absent_is_named(rivals, data, name, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    message = (
        rf"This rival needs {PACKAGES[name]}, .* pip install .*sklearn_acl\[bench\]"
    )
    with pytest.raises(ImportError, match=message):
        rivals.RIVALS[name](*data["single"], seed=0, params={})


# --- TF-IDF --------------------------------------------------------------------------


def test_tfidf_equals_its_parts(run, data):
    (texts, labels), (test_texts, test_labels) = data["single"]
    result = run("tfidf_lr", data["single"])
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    head = LogisticRegression(C=result["C"], max_iter=2000)
    head.fit(vectorizer.fit_transform(texts), labels)
    score = head.score(vectorizer.transform(test_texts), test_labels)
    assert result["exits"] == [round(100 * score, 3)]


def test_sides_of_a_pair_are_told_apart(run):
    texts = [("red one", "blue two"), ("blue two", "red one")] * 12
    labels = np.array(["ahead", "behind"] * 12)  # the same words in both
    result = run("tfidf_lr", ((texts, labels), (texts, labels)))
    assert result["exits"] == [100.0] and result["matthews"] == [1.0]


def test_matthews_follows_from_the_predictions(rivals):
    labels = np.array(list("yynnyn"))
    predicted = np.array(list("ynnyyn"))
    result = rivals.report(
        lambda texts: predicted[: len(texts)],
        (list("abcdef"), labels),
        fit_seconds=1.0,
        model_bytes=1,
    )
    assert result["matthews"] == [round(matthews_corrcoef(labels, predicted), 4)]
    assert result["exits"] == [round(100 * 4 / 6, 3)]


def test_classes_of_few_texts(run, data):
    (texts, labels), test = data["single"]
    labels = np.concatenate([labels, ["music", "film", "film"]])
    texts = [*texts, "she sings an old song", "a film about rain", "the film was long"]
    for name in ("tfidf_lr", "embeddings_lr"):
        result = run(name, ((texts, labels), test))
        assert 0 <= result["exits"][0] <= 100


@pytest.mark.parametrize("seed", range(3))
def test_folds_train_on_rare_classes_and_score_the_others_once(rivals, seed):
    labels = np.random.default_rng(seed).permutation(list("aaaaaaabbbbbcccddef"))
    rare = set(np.flatnonzero(np.isin(labels, list("def"))))
    scored = []
    for train, score in rivals.folds(labels, seed):
        assert rare <= set(train) and not set(train) & set(score)
        assert sorted([*train, *score]) == list(range(len(labels)))
        assert set(labels[train]) == set("abcdef")
        assert set(labels[score]) == set("abc")
        scored.extend(score)
    assert sorted([*scored, *rare]) == list(range(len(labels)))


def test_choosing_takes_a_class_that_can_be_split(run, data):
    train = (TEXTS[:4], np.array(list("aabb")))
    with pytest.raises(
        ValueError, match="at least 3 training texts; the largest has 2"
    ):
        run("tfidf_lr", (train, data["single"][1]))


# --- encoders ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["single", "pairs"])
def test_embeddings_equal_those_of_a_text_alone(rivals, data, small_bert, kind):
    (texts, _), _ = data[kind]
    model, tokenizer = rivals.load_backbone(small_bert)
    embedded = rivals.run_encoder(model, tokenizer, texts, rivals.mean_pooled)
    for text, row in zip(texts, embedded, strict=True):
        sides = (text,) if isinstance(text, str) else text
        inputs = tokenizer(*sides, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state[0]
        np.testing.assert_allclose(row, hidden.mean(0), atol=1e-5)


@pytest.mark.parametrize("name", NAMES[1:])
def test_model_bytes_hold_the_encoder(first_run, small_bert, name):
    weights = Path(small_bert, "model.safetensors").stat().st_size
    assert 0.9 * weights < first_run(name, "trained")["model_bytes"] < 2 * weights


def test_joined_puts_a_separator_between_the_sides(rivals):
    assert rivals.joined(["a", "b"]) == ["a", "b"]
    assert rivals.joined([("a", "b"), ("c", "")]) == ["a [SEP] b", "c [SEP] "]
