"""Tokenising equals the tokenizer's own output; batches are padded exactly."""

import gc
import logging
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
import tracemalloc

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import TEXTS, make_tokenizer
from transformers import PreTrainedTokenizer

from sklearn_acl import tokens as tokens_module
from sklearn_acl.text import Texts, check_texts
from sklearn_acl.tokens import Tokens, tokenize

ALL_KEYS = ("input_ids", "attention_mask", "token_type_ids")
ODD = ["", "   ", "\0", "zzz \u4e2d\U0001f600", "the [SEP] won [PAD]", "goal " * 50]
FIRST = [*TEXTS, *ODD]
SECOND = [*TEXTS[10:], *ODD, *TEXTS[:10]]


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python that splits at blanks."""

    model_input_names = list(ALL_KEYS)

    def __init__(self, **kwargs):
        words = sorted({word for text in TEXTS for word in text.split()})
        self.words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
        self.ids = {word: i for i, word in enumerate(self.words)}
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        super().__init__(**names, special_tokens_pattern="cls_sep", **kwargs)

    @property
    def vocab_size(self):
        return len(self.words)

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.ids.get(token, 1)

    def _convert_id_to_token(self, index):
        return self.words[index]


def segmenting_tokenizer():
    """Fast, gives token_type_ids, and pads both with other values than 0."""
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = list(ALL_KEYS)
    tokenizer.pad_token = "[MASK]"
    tokenizer._pad_token_type_id = 3
    return tokenizer


def left_tokenizer():
    tokenizer = segmenting_tokenizer()
    tokenizer.truncation_side = tokenizer.padding_side = "left"
    return tokenizer


def bare_tokenizer():
    """Fast, without special tokens around a text."""
    from tokenizers import processors

    tokenizer = make_tokenizer()
    nothing = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    tokenizer.backend_tokenizer.post_processor = nothing
    return tokenizer


TOKENIZERS = {
    "fast": make_tokenizer,
    "segments": segmenting_tokenizer,
    "left": left_tokenizer,
    "slow": SlowTokenizer,
}


@pytest.fixture(params=TOKENIZERS.values(), ids=TOKENIZERS)
def tokenizer(request):
    return request.param()


@pytest.fixture
def tokenizer_quiet():
    return make_tokenizer()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Directory that takes the place of the system's for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("sklearn_acl.tokens._CHUNK_ROWS", 7)


def own(tokenizer, first, second=None):
    """What the tokenizer itself gives, row by row."""
    columns = [column for column in (first, second) if column is not None]
    # a batch of one: called without a list it takes a pair with "" for a single text
    rows = [tokenizer(*([t] for t in row)) for row in zip(*columns, strict=True)]
    return [{key: row[key][0] for key in row} for row in rows]


# -- equality with the tokenizer -------------------------------------------------------


@pytest.mark.parametrize("second", [None, SECOND], ids=["single", "pairs"])
@pytest.mark.parametrize("storage", ["memory", "arrow"])
def test_rows_equal_the_tokenizers_own_in_order(
    tokenizer, second, storage, small_chunks
):
    tokens = tokenize(
        Texts(FIRST, second),
        tokenizer,
        max_length=200,
        accepted=ALL_KEYS,
        storage=storage,
    )
    expected = own(tokenizer, FIRST, second)
    assert len(tokens) == len(FIRST)
    assert tokens.n_truncated == 0
    assert tokens.lengths.dtype == np.int32
    assert tokens.lengths.tolist() == [len(row["input_ids"]) for row in expected]
    rows = tokens.rows(range(len(FIRST)))
    assert [r.tolist() for r in rows] == [row["input_ids"] for row in expected]
    has_types = "token_type_ids" in expected[0]
    for i, row in enumerate(expected):
        assert ("token_type_ids" in tokens[i]) == has_types
        if has_types:
            assert tokens[i]["token_type_ids"].tolist() == row["token_type_ids"]


@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
def test_truncation_equals_the_tokenizers_own(tokenizer, pairs):
    # all combinations of lengths around the limit, odd and even, equal and not
    word = "goal rain soup the won team match bread wind snow".split()
    texts = [" ".join(word[:n]) for n in range(11)]
    first = [a for a in texts for _ in texts]
    second = texts * len(texts) if pairs else None
    columns = [column for column in (first, second) if column is not None]
    full = tokenizer(*columns, verbose=False)["input_ids"]
    for max_length in (5, 6, 9, 10, 15, 20, 23):
        tokens = tokenize(
            Texts(*columns), tokenizer, max_length=max_length, accepted=ALL_KEYS
        )
        expected = tokenizer(*columns, truncation=True, max_length=max_length)
        rows = tokens.rows(range(len(first)))
        assert [r.tolist() for r in rows] == expected["input_ids"]
        assert tokens.lengths.max() <= max_length
        assert tokens.n_truncated == sum(len(ids) > max_length for ids in full)
        if "token_type_ids" in expected:
            types = [tokens[i]["token_type_ids"].tolist() for i in range(len(first))]
            assert types == expected["token_type_ids"]


def test_truncation_is_counted_per_text_not_per_token():
    texts = ["goal", "goal goal", "goal goal goal", "goal " * 40]
    arguments = {"accepted": ALL_KEYS}
    counts = [
        tokenize(Texts(texts), make_tokenizer(), max_length=n, **arguments).n_truncated
        for n in (3, 4, 5, 42, 100)
    ]
    assert counts == [3, 2, 1, 0, 0]


def test_a_pair_of_long_documents_costs_no_more_than_its_text():
    # the tokenizer's own truncation needs seconds and a gigabyte for one such pair
    long = "goal " * 6000
    start = time.perf_counter()
    tokens = tokenize(
        Texts([long], [long]), make_tokenizer(), max_length=64, accepted=ALL_KEYS
    )
    assert time.perf_counter() - start < 3
    assert tokens.lengths.tolist() == [64]


@pytest.mark.parametrize("characters", [1, 30, 200])
def test_rows_do_not_depend_on_how_many_texts_go_in_one_call(monkeypatch, characters):
    arguments = {"max_length": 20, "accepted": ALL_KEYS}
    texts = Texts(FIRST, SECOND)
    once = tokenize(texts, make_tokenizer(), **arguments)
    monkeypatch.setattr("sklearn_acl.tokens._CALL_CHARACTERS", characters)
    parts = tokenize(texts, make_tokenizer(), **arguments)
    assert parts.n_truncated == once.n_truncated
    for a, b in zip(once.rows(range(66)), parts.rows(range(66)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_dataset_is_tokenised_like_the_list(small_chunks):
    data = datasets.Dataset.from_dict({"q": FIRST[::-1], "p": SECOND[::-1]})
    data = data.select(range(len(FIRST))[::-1])
    arguments = {"max_length": 20, "accepted": ALL_KEYS}
    from_dataset = tokenize(check_texts(data), make_tokenizer(), **arguments)
    from_list = tokenize(Texts(FIRST, SECOND), make_tokenizer(), **arguments)
    everything = range(len(FIRST))
    for a, b in zip(
        from_dataset.rows(everything), from_list.rows(everything), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("second", [None, ["", "goal", ""]], ids=["single", "pairs"])
def test_an_empty_text_without_special_tokens_gets_one_token(second):
    texts = Texts(["", "goal", "  "], second)
    tokenizer = bare_tokenizer()
    tokens = tokenize(texts, tokenizer, max_length=8, accepted=ALL_KEYS)
    assert tokens.lengths.tolist() == [1, 1 if second is None else 2, 1]
    assert tokens.rows([0])[0].tolist() == [tokenizer.unk_token_id]
    assert tokens.collate([0, 2])["attention_mask"].tolist() == [[1], [1]]


def test_no_rows_give_no_tokens():
    for storage in ("memory", "arrow"):
        tokens = tokenize(
            Texts([]),
            make_tokenizer(),
            max_length=8,
            accepted=ALL_KEYS,
            storage=storage,
        )
        assert len(tokens) == 0
        assert tokens.lengths.dtype == np.int32
        assert tokens.rows([]) == []
        assert tokens.collate([])["input_ids"].shape == (0, 0)


def test_storage_is_checked():
    with pytest.raises(ValueError, match=r"storage='disk' must be one of \['arrow'"):
        tokenize(
            Texts(["a"]),
            make_tokenizer(),
            max_length=8,
            accepted=ALL_KEYS,
            storage="disk",
        )


# -- batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "arrow"])
@pytest.mark.parametrize(
    "indices",
    [[0], [5, 1, 60, 5], list(range(66))[::-1], np.array([65, 64]), range(3, 30), [-1]],
    ids=str,
)
def test_batches_equal_the_tokenizers_own_padding(
    tokenizer, indices, storage, small_chunks
):
    tokens = tokenize(
        Texts(FIRST, SECOND),
        tokenizer,
        max_length=64,
        accepted=ALL_KEYS,
        storage=storage,
    )
    batch = tokens.collate(indices)
    tokenizer.padding_side = "right"
    chosen = [(FIRST[i], SECOND[i]) for i in indices]
    expected = tokenizer(
        *map(list, zip(*chosen, strict=True)),
        truncation=True,
        max_length=64,
        padding=True,
        return_tensors="pt",
    )
    assert set(batch) == set(expected)
    for key, tensor in batch.items():
        assert tensor.dtype == torch.int64
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=0)


@pytest.mark.parametrize(
    "accepted",
    [ALL_KEYS, ("input_ids", "attention_mask"), ["input_ids"], ("input_ids", "labels")],
)
def test_only_accepted_keys_are_in_a_batch(accepted):
    tokens = tokenize(
        Texts(TEXTS), segmenting_tokenizer(), max_length=64, accepted=accepted
    )
    assert set(tokens.collate([0, 1])) == set(accepted) & set(ALL_KEYS)


def test_segments_are_left_to_a_tokenizer_that_knows_none():
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokens = tokenize(Texts(TEXTS, TEXTS), tokenizer, max_length=64, accepted=ALL_KEYS)
    assert "token_type_ids" not in tokens.collate([0, 1])


def test_a_batch_is_as_long_as_its_longest_row():
    tokens = tokenize(Texts(TEXTS), make_tokenizer(), max_length=64, accepted=ALL_KEYS)
    for rows in np.array_split(np.random.default_rng(0).permutation(60), 9):
        batch = tokens.collate(rows)
        assert batch["input_ids"].shape == (len(rows), tokens.lengths[rows].max())
        assert batch["attention_mask"].sum(1).tolist() == tokens.lengths[rows].tolist()


def test_changing_a_batch_does_not_change_the_tokens():
    tokens = tokenize(Texts(TEXTS), make_tokenizer(), max_length=64, accepted=ALL_KEYS)
    before = tokens.rows([0])[0].copy()
    tokens.collate([0])["input_ids"].zero_()
    np.testing.assert_array_equal(tokens.rows([0])[0], before)


@pytest.mark.parametrize("indices", [[60], [0, -61], [0.5]])
def test_rows_that_do_not_exist_raise(indices):
    tokens = tokenize(Texts(TEXTS), make_tokenizer(), max_length=64, accepted=ALL_KEYS)
    for read in (tokens.rows, tokens.collate):
        with pytest.raises(IndexError):
            read(indices)
    with pytest.raises(IndexError):
        tokens[60]


# -- the tokenizer is left as it was ---------------------------------------------------


def test_settings_of_the_tokenizer_are_restored():
    tokenizer = make_tokenizer()
    backend = tokenizer.backend_tokenizer
    # as in files of sentence encoders: cut to a length, and padded to it
    backend.enable_truncation(max_length=12, stride=2)
    backend.enable_padding(length=12, pad_id=4, pad_token="[MASK]")
    before = backend.to_str()
    tokens = tokenize(Texts(TEXTS), tokenizer, max_length=64, accepted=ALL_KEYS)
    assert backend.to_str() == before
    assert tokens.lengths.min() < 12 < tokens.lengths.max()
    plain = tokenize(Texts(TEXTS), make_tokenizer(), max_length=64, accepted=ALL_KEYS)
    assert tokens.lengths.tolist() == plain.lengths.tolist()


def test_threads_that_share_a_tokenizer_take_turns(monkeypatch):
    # else one restores the padding while another encodes, and padding counts as text
    plain = tokenize(Texts(TEXTS), make_tokenizer(), max_length=64, accepted=ALL_KEYS)
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_padding()
    encode, settings = tokens_module._encode, []

    def watched(*arguments):
        rows = encode(*arguments)
        time.sleep(0.1)  # others would come in meanwhile
        settings.append(tokenizer.backend_tokenizer.padding)
        return rows

    monkeypatch.setattr(tokens_module, "_encode", watched)
    found = []

    def work():
        tokens = tokenize(Texts(TEXTS), tokenizer, max_length=64, accepted=ALL_KEYS)
        found.append(tokens.lengths.tolist())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [plain.lengths.tolist()] * 3
    assert settings == [None] * 3
    assert tokenizer.backend_tokenizer.padding is not None


def test_settings_are_restored_after_an_error():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(max_length=12)
    with pytest.raises(TypeError, match="must be"):
        tokenize(Texts(["a", b"b"]), tokenizer, max_length=64, accepted=ALL_KEYS)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 12


@pytest.fixture
def records():
    """What transformers logs."""

    class Collect(logging.Handler):
        def emit(self, record):
            kept.append(record.getMessage())

    kept, handler = [], Collect()
    logging.getLogger("transformers").addHandler(handler)
    yield kept
    logging.getLogger("transformers").removeHandler(handler)


@pytest.mark.parametrize("storage", ["memory", "arrow"])
@pytest.mark.parametrize("second", [None, SECOND], ids=["single", "pairs"])
@pytest.mark.parametrize("make", [make_tokenizer, SlowTokenizer])
@pytest.mark.filterwarnings("error")
def test_nothing_is_printed_or_logged(make, second, storage, capfd, records):
    tokenizer = make()
    tokenizer.model_max_length = 8
    arguments = {"max_length": 9, "accepted": ALL_KEYS, "storage": storage}
    assert tokenize(Texts(FIRST, second), tokenizer, **arguments).n_truncated
    assert records == []
    assert capfd.readouterr() == ("", "")
    # what the tokenizer says when others call it is still said
    tokenizer("goal " * 50)
    assert "longer than the specified maximum" in records[0]
    if make is SlowTokenizer:
        tokenizer("goal " * 50, "goal", truncation=True, max_length=9)
        assert "overflowing tokens are not returned" in records[1]


# -- files -----------------------------------------------------------------------------


def arrow_tokens(**kwargs):
    arguments = {"max_length": 64, "accepted": ALL_KEYS, "storage": "arrow", **kwargs}
    return tokenize(Texts(TEXTS), make_tokenizer(), **arguments)


def test_ids_lie_in_one_temporary_directory_that_goes_with_the_tokens(temporary):
    first, second = arrow_tokens(), arrow_tokens()
    assert len(list(temporary.iterdir())) == 2
    del first
    gc.collect()
    assert len(list(temporary.iterdir())) == 1
    second.close()
    assert list(temporary.iterdir()) == []
    assert len(second) == 0
    second.close()  # twice does no harm
    arrow_tokens(storage="memory")
    assert list(temporary.iterdir()) == []


def test_an_interrupted_call_leaves_no_file(temporary, small_chunks):
    texts = Texts([*TEXTS, b"fails in the last chunk"])
    with pytest.raises(TypeError, match="must be"):
        tokenize(
            texts, make_tokenizer(), max_length=9, accepted=ALL_KEYS, storage="arrow"
        )
    assert list(temporary.iterdir()) == []


def test_a_pickled_copy_outlives_the_file(temporary):
    tokens = arrow_tokens()
    expected = tokens.collate(range(60))
    copy = pickle.loads(pickle.dumps(tokens))
    tokens.close()
    assert isinstance(copy, Tokens)
    assert list(temporary.iterdir()) == []
    for key, tensor in copy.collate(range(60)).items():
        assert torch.equal(tensor, expected[key])
    assert copy.n_truncated == tokens.n_truncated


def _drop(tokens):
    # as when a worker ends: the object goes, and with it the right to delete
    finalizer = tokens._delete
    os._exit(0 if finalizer() is None else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_worker_does_not_delete_the_file(temporary):
    tokens = arrow_tokens()
    worker = multiprocessing.get_context("fork").Process(target=_drop, args=(tokens,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert len(list(temporary.iterdir())) == 1


def retained_bytes(make):
    """What an object keeps allocated by Python, numpy and Arrow, and the object."""
    gc.collect()
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    result = make()
    gc.collect()
    python_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return python_bytes + pa.total_allocated_bytes() - before, result


def test_a_row_on_disk_costs_a_few_bytes_of_memory(tmp_path, temporary):
    n_rows = 3_000
    data = datasets.Dataset.from_dict({"text": TEXTS * (n_rows // 60)})
    data.save_to_disk(tmp_path / "data")
    texts = check_texts(datasets.load_from_disk(tmp_path / "data"))
    arguments = {"max_length": 64, "accepted": ALL_KEYS}
    tokenizer = make_tokenizer()

    def run(storage):
        return tokenize(texts, tokenizer, storage=storage, **arguments)

    run("arrow").close()  # imports
    in_memory, _ = retained_bytes(lambda: run("memory"))
    on_disk, tokens = retained_bytes(lambda: run("arrow"))
    assert len(tokens) == len(texts)
    assert in_memory / n_rows > 40  # so the measure sees the ids
    assert on_disk / n_rows < 30
