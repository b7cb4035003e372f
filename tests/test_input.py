"""Every container, label and odd text trains and predicts as a plain list does."""

import itertools
import re
import warnings

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.class_weight import compute_sample_weight
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier
from sklearn_acl.exit_costs import take_rows
from sklearn_acl.label_columns import reject_label_copy
from sklearn_acl.text import DatasetTexts, Texts, check_texts

X, Y = TEXTS[:9], LABELS[:9]
PAIRS = list(zip(X, X[::-1], strict=True))
SETTINGS = {
    "head_init": "random",
    "max_epochs": 1,
    "batch_size": 4,
    "verbose": 0,
    "random_state": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def make(tiny_backbone):
    backbone = tiny_backbone("bert", num_hidden_layers=2)
    return lambda **parameters: ACLClassifier(backbone, **(SETTINGS | parameters))


@pytest.fixture(scope="module")
def steady(tiny_backbone):
    """Without dropout, and with steps that are proportional to the gradient."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    backbone = tiny_backbone("bert", num_hidden_layers=2, **no_dropout)
    settings = SETTINGS | {
        "module__dropout": 0.0,
        "optimizer": torch.optim.SGD,
        "lr": 0.1,
        "batch_size": len(X),
    }
    return lambda **parameters: ACLClassifier(backbone, **(settings | parameters))


@pytest.fixture(scope="module")
def fitted(make):
    return make().fit(X, Y)


@pytest.fixture(scope="module")
def fitted_pairs(make):
    return make().fit(PAIRS, Y)


def assert_same_model(a, b):
    """Equal to the bit, in all weights."""
    state = b.module_.state_dict()
    for name, tensor in a.module_.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def objects(rows):
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


def dataset(**columns):
    return datasets.Dataset.from_dict(columns)


# -- containers of texts ---------------------------------------------------------------

CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "object array": objects,
    "U array": np.array,
    "(n, 1) array": lambda rows: np.array(rows)[:, None],
    "Series": lambda rows: pd.Series(rows, index=range(5, 5 + len(rows))),
    "reversed index": lambda rows: pd.Series(rows, index=range(len(rows))[::-1]),
    "object Series": lambda rows: pd.Series(rows, dtype=object),
    "string Series": lambda rows: pd.Series(rows, dtype="string"),
    "category Series": lambda rows: pd.Series(rows, dtype="category"),
    "Index": pd.Index,
    "DataFrame": lambda rows: pd.DataFrame({"text": rows}),
    "polars Series": pl.Series,
    "polars DataFrame": lambda rows: pl.DataFrame({"text": rows}),
    "pyarrow Array": pa.array,
    "pyarrow ChunkedArray": lambda rows: pa.chunked_array([rows[:2], rows[2:]]),
    "pyarrow Table": lambda rows: pa.table({"text": rows}),
    "Dataset": lambda rows: dataset(text=rows),
    "Dataset column": lambda rows: dataset(text=rows, other=rows)["text"],
    "shuffled Dataset": lambda rows: dataset(text=rows[::-1]).select(
        range(len(rows))[::-1]
    ),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_of_texts(make, fitted, container):
    assert_same_model(make().fit(container(X), Y), fitted)
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(container(X)), expected)
    assert fitted.predict(container(X)).tolist() == fitted.predict(X).tolist()


def frame_of_pairs(kind):
    def make(rows):
        first, second = map(list, zip(*rows, strict=True))
        return kind({"a": first, "b": second})

    return make


PAIR_CONTAINERS = {
    "tuple of tuples": tuple,
    "list of lists": lambda rows: [list(row) for row in rows],
    "U array": np.array,
    "object array": lambda rows: np.array(rows, dtype=object),
    "array of tuples": objects,
    "Series of tuples": lambda rows: pd.Series(rows, index=range(5, 5 + len(rows))),
    "DataFrame": frame_of_pairs(pd.DataFrame),
    "polars DataFrame": frame_of_pairs(pl.DataFrame),
    "pyarrow Table": frame_of_pairs(pa.table),
    "Dataset": frame_of_pairs(datasets.Dataset.from_dict),
}


@pytest.mark.parametrize("container", PAIR_CONTAINERS.values(), ids=PAIR_CONTAINERS)
def test_containers_of_pairs(make, fitted_pairs, container):
    assert_same_model(make().fit(container(PAIRS), Y), fitted_pairs)
    expected = fitted_pairs.predict_proba(PAIRS)
    actual = fitted_pairs.predict_proba(container(PAIRS))
    np.testing.assert_array_equal(actual, expected)


def test_the_order_within_a_pair_matters(fitted_pairs):
    swapped = [pair[::-1] for pair in PAIRS]
    expected = fitted_pairs.predict_proba(PAIRS)
    assert np.abs(fitted_pairs.predict_proba(swapped) - expected).max() > 1e-4


# -- texts and labels in one table -----------------------------------------------------

TABLES = {
    "DataFrame": lambda **columns: pd.DataFrame(columns, index=range(7, 7 + len(X))),
    "polars DataFrame": lambda **columns: pl.DataFrame(columns),
    "pyarrow Table": lambda **columns: pa.table(columns),
    "Dataset": dataset,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_labels_by_column_name(make, fitted, table):
    data = table(text=X, label=Y)
    classifier = make().fit(data, y="label")
    assert_same_model(classifier, fitted)
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(classifier.predict_proba(data), expected)
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)
    accuracy = np.mean(classifier.predict(X) == Y)
    assert classifier.score(data, y="label") == accuracy
    # a model that never saw a table takes the label column for what it is, too
    assert fitted.score(data, y="label") == accuracy


def label_column(data):
    return pl.Series("label", Y) if isinstance(data, pa.Table) else data["label"]


LABEL_COLUMNS = {
    "DataFrame": (TABLES["DataFrame"], label_column),
    "its frame of labels": (TABLES["DataFrame"], lambda data: data[["label"]]),
    "as categories": (TABLES["DataFrame"], lambda data: data.label.astype("category")),
    "with another index": (
        TABLES["DataFrame"],
        lambda data: data["label"].reset_index(drop=True),
    ),
    "polars DataFrame": (TABLES["polars DataFrame"], label_column),
    "polars and pandas": (
        TABLES["polars DataFrame"],
        lambda data: pd.Series(Y, name="label"),
    ),
    "pyarrow Table": (TABLES["pyarrow Table"], label_column),
    "Dataset": (dataset, label_column),
    "copy of a Dataset": (dataset, lambda data: data.select(range(len(X)))["label"]),
    "Dataset and pandas": (dataset, lambda data: pd.Series(Y, name="label")),
}


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize(("table", "take"), LABEL_COLUMNS.values(), ids=LABEL_COLUMNS)
def test_a_column_passed_as_labels_is_no_text(make, fitted, table, take):
    data = table(text=X, label=Y)
    classifier = make().fit(data, take(data), validation_data=(data, take(data)))
    assert_same_model(classifier, fitted)
    assert classifier.n_text_columns_ == 1
    assert classifier.text_columns_ == ("text",)
    accuracy = np.mean(classifier.predict(X) == Y)
    assert classifier.score(data, take(data)) == accuracy
    # also by a model that never saw a table
    assert fitted.score(data, take(data)) == accuracy
    classifier.partial_fit(data, take(data))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_other_labels_of_the_name_of_a_column_are_refused(make, fitted, table):
    data, pairs = table(text=X, label=Y), table(a=X, label=X[::-1])
    message = "y is named 'label' and so is a column of X, but their values differ"
    upper = pd.Series(Y, name="label").str.upper()
    for other in (upper, pl.from_pandas(upper), dataset(label=list(upper))["label"]):
        with pytest.raises(ValueError, match=message):
            make().fit(data, other)
        with pytest.raises(ValueError, match=message):
            fitted.score(data, other)
        with pytest.raises(ValueError, match=f"In validation_data: {message}"):
            make().fit(X, Y, validation_data=(data, other))
        renamed = make(text_columns="text").fit(data, other)
        assert renamed.classes_.tolist() == [label.upper() for label in SOME]
    named = make(text_columns=["a", "label"]).fit(pairs, pd.Series(Y, name="label"))
    assert named.n_text_columns_ == 2


def test_the_only_column_is_the_text_whatever_the_labels_are_called(make, fitted):
    for name, more in [("text", "text"), (0, 0)]:
        classifier = make().fit(pd.DataFrame({name: X}), pd.Series(Y, name=more))
        assert_same_model(classifier, fitted)


def test_missing_labels_of_a_column_are_said_to_be_missing(make):
    frame = pd.DataFrame({"text": X, "label": [None, np.nan, *Y[2:]]})
    for data in (frame, pl.from_pandas(frame)):
        with pytest.raises(ValueError, match="y has 2 missing labels"):
            make().fit(data, data["label"])
        with pytest.raises(ValueError, match="X and y differ in length"):
            make().fit(data, data["label"][2:])


# -- labels that are a column of the table and do not say so ---------------------------

CODES = LabelEncoder().fit_transform(Y)
NAMELESS = {
    "array": lambda: np.array(Y),
    "list": lambda: list(Y),
    "numbers": lambda: CODES,
    "floats": lambda: CODES + 1.0,
    "Series without a name": lambda: pd.Series(Y),
    "Series of another name": lambda: pd.Series(CODES, name="target"),
    "polars array": lambda: pl.Series(Y).to_numpy(),
    "Dataset rows": lambda: dataset(label=Y)["label"][:],
    "column of another Dataset": lambda: dataset(y=CODES)["y"],
    "pyarrow column": lambda: pa.table({"label": Y})["label"],
}
GIVEN_AWAY = "Column {!r} of {} tells the same as y in every row; as one text of each "
GIVEN_AWAY += "pair it would give the labels away. "
NAME_THEM = GIVEN_AWAY.format("label", "X") + (
    "Name the texts: text_columns=['text'] leaves it out, text_columns=['text', "
    "'label'] reads both. Or pass y='label' if it is the column of labels."
)


def raises(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("labels", NAMELESS.values(), ids=NAMELESS)
def test_a_column_that_tells_the_labels_is_refused(make, fitted, table, labels):
    data = table(text=X, label=Y)
    with raises(NAME_THEM):
        make().fit(data, labels())
    with raises(NAME_THEM):
        make().partial_fit(data, labels())
    named = make(text_columns="text").fit(data, labels())
    np.testing.assert_array_equal(named.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.filterwarnings("ignore:The held-out texts set no temperature")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_naming_both_columns_reads_both(make, table):
    data = table(text=X, label=Y)
    pairs = make().fit(list(zip(X, Y, strict=True)), CODES)
    named = make(text_columns=["text", "label"])
    assert_same_model(named.fit(data, CODES, validation_data=(data, CODES)), pairs)
    assert named.score(data, CODES) == pairs.score(list(zip(X, Y, strict=True)), CODES)
    named.partial_fit(data, CODES).calibrate_exits(data, CODES)


def test_columns_whose_names_are_numbers(make):
    frame = pd.DataFrame({0: X, 1: Y})
    advice = "Name the texts: text_columns=[0] leaves it out, text_columns=[0, 1] "
    with raises(GIVEN_AWAY.format(1, "X") + advice + "reads both."):
        make().fit(frame, CODES)
    assert make(text_columns=[0]).fit(frame, CODES).text_columns_ == (0,)
    assert make().fit(frame, frame[1]).text_columns_ == (0,)


def test_the_column_of_pyarrow_itself_is_not_read_as_a_text(make):
    for data in (pa.table, pa.record_batch):
        data = data({"text": X, "label": Y})
        with raises(NAME_THEM):
            make().fit(data, data.column("label"))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_second_column_of_labels_is_refused_too(make, table):
    data = table(text=X, label=Y, code=[f"class {code}" for code in CODES])
    with raises(NAME_THEM.replace("label'", "code'")):
        make().fit(data, "label")


NESTED = {
    "cross_val_predict": lambda classifier, texts, labels: cross_val_predict(
        classifier, texts, labels, cv=2, method="predict_proba"
    ),
    "VotingClassifier": lambda classifier, texts, labels: (
        VotingClassifier([("clf", classifier)], voting="soft")
        .fit(texts, labels)
        .predict_proba(texts)
    ),
    "StackingClassifier": lambda classifier, texts, labels: (
        StackingClassifier([("clf", classifier)], cv=2)
        .fit(texts, labels)
        .predict_proba(texts)
    ),
}


@pytest.mark.parametrize("predict", NESTED.values(), ids=NESTED)
def test_labels_that_scikit_learn_has_numbered(make, predict):
    frame = pd.DataFrame({"text": X, "label": Y})
    with raises(NAME_THEM):
        predict(make(n_layers=1), frame, frame["label"])
    named = predict(make(n_layers=1, text_columns="text"), frame, frame["label"])
    np.testing.assert_array_equal(named, predict(make(n_layers=1), X, Y))


def check_for_labels(columns, labels):
    classes, codes = np.unique(labels, return_inverse=True)
    reject_label_copy(Texts(*columns, ("a", "b")), codes, classes)


@pytest.mark.parametrize("chunk", [3, 10_000])
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
def test_columns_are_compared_with_every_row(n_rows, where, chunk, monkeypatch):
    monkeypatch.setattr("sklearn_acl.label_columns._CHUNK_ROWS", chunk)
    text, rows = [f"text {row}" for row in range(n_rows)], range(n_rows)
    outcomes = []
    for values in itertools.product("abc", repeat=min(n_rows, 4)):
        column = (list(values) * n_rows)[:n_rows]
        for label_of in ("xxy", "xyz", "aab", "abc", "acb"):
            labels = [label_of["abc".index(value)] for value in column]
            labels[-1] = label_of[0]
            # the slow reference: all pairs of rows
            is_renamed = all(
                (column[i] == column[j]) == (labels[i] == labels[j])
                for i, j in itertools.product(rows, rows)
            )
            tells = is_renamed and 1 < len(set(labels)) < n_rows
            expected = tells or column == labels
            columns = (column, text) if where == 0 else (text, column)
            try:
                check_for_labels(columns, labels)
                refused = False
            except ValueError as error:
                refused = f"Column {'ab'[where]!r} of X" in str(error)
            assert refused == expected, (column, labels)
            outcomes.append(refused)
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("row", [0, 99, 100, 299, 300, 449])
def test_one_row_that_differs_makes_a_text(row):
    labels, text = ["no", "yes", "maybe"] * 150, list(map(str, range(450)))
    copy = [label.upper() for label in labels]
    with pytest.raises(ValueError, match="^Column 'b' of X tells the same as y"):
        check_for_labels((text, copy), labels)
    for other in ("YES" if copy[row] != "YES" else "NO", "something else"):
        check_for_labels((text, [*copy[:row], other, *copy[row + 1 :]]), labels)


def test_rows_that_all_differ_are_no_evidence_unless_equal(make):
    frame = pd.DataFrame({"text": X[:3], "label": ["u", "v", "w"]})
    pairs = make().fit(frame, [5, 3, 4])
    assert pairs.n_text_columns_ == 2
    with raises(NAME_THEM):
        make().fit(frame, frame["label"].to_numpy())
    with raises(NAME_THEM):  # one class: in its values, a column of one value
        make(classes=["u", "v"]).fit(frame.assign(label="u"), ["u"] * 3)


def test_few_rows_tell_a_large_dataset_from_its_labels(monkeypatch):
    n_rows = 20_000
    data = dataset(a=list(map(str, range(n_rows))), b=["same"] * n_rows)
    texts, read = check_texts(data), []

    def spy(start, stop):
        read.append(stop - start)
        return DatasetTexts.slice(texts, start, stop)

    monkeypatch.setattr(texts, "slice", spy)
    reject_label_copy(texts, np.arange(n_rows) % 2, np.array(["no", "yes"]))
    assert sum(read) <= 100


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_held_out_labels_are_not_read_as_texts(make, fitted_pairs, table):
    data = table(text=X, label=Y)
    advice = "If both columns are texts, pass pairs as fit saw: list(zip(a, b))."
    message = GIVEN_AWAY.format("label", "{}") + advice
    with raises(message.format("validation_data[0]")):
        make().fit(PAIRS, Y, validation_data=(data, Y))
    with raises(message.format("(X, y)[0]")):
        fitted_pairs.calibrate_exits(data, Y)
    with raises(message.format("X")):
        make().fit(PAIRS, Y).partial_fit(data, Y)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_validation_data_from_a_table(make, table):
    data, more = table(text=X, label=Y), (TEXTS[9:13], LABELS[9:13])
    expected = make().fit(X, Y, validation_data=more).history[:, "valid_loss"]
    held_out = (
        table(text=more[0], label=more[1])
        if table is not TABLES["DataFrame"]
        else pd.DataFrame({"text": more[0], "label": more[1]})
    )
    classifier = make().fit(data, "label", validation_data=(held_out, "label"))
    assert classifier.history[:, "valid_loss"] == expected


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_pairs_by_column_names(make, fitted_pairs, table):
    first, second = map(list, zip(*PAIRS, strict=True))
    data = table(b=second, label=Y, a=first, more=first)
    classifier = make(text_columns=["a", "b"]).fit(data, "label")
    assert_same_model(classifier, fitted_pairs)
    expected = fitted_pairs.predict_proba(PAIRS)
    np.testing.assert_array_equal(classifier.predict_proba(data), expected)
    np.testing.assert_array_equal(classifier.predict_proba(PAIRS), expected)


def test_one_text_column_of_several(make, fitted):
    data = dataset(title=X[::-1], body=X, label=Y)
    classifier = make(text_columns="body").fit(data, "label")
    assert_same_model(classifier, fitted)
    assert classifier.score(data, "label") == fitted.score(X, Y)


def test_columns_are_found_by_name_when_predicting(make):
    first, second = map(list, zip(*PAIRS, strict=True))
    classifier = make().fit(pd.DataFrame({"a": first, "b": second}), Y)
    data = pd.DataFrame({"x": range(len(X)), "b": second, "a": first})
    expected = classifier.predict_proba(PAIRS)
    np.testing.assert_array_equal(classifier.predict_proba(data), expected)


# -- labels ----------------------------------------------------------------------------

SOME = ["food", "sport", "weather"]


def labelled(*classes):
    return [classes[SOME.index(label)] for label in Y]


LABEL_CASES = {
    "list": (Y, SOME, "U"),
    "tuple": (tuple(Y), SOME, "U"),
    "U array": (np.array(Y), SOME, "U"),
    "object array": (objects(Y), SOME, "O"),
    "Series": (pd.Series(Y, index=range(5, 5 + len(Y)), dtype=object), SOME, "O"),
    "str Series": (pd.Series(Y), SOME, "O"),
    "Categorical": (pd.Categorical(Y, categories=["unused", *SOME[::-1]]), SOME, "O"),
    "polars Series": (pl.Series(Y), SOME, "U"),
    "Dataset column": (dataset(y=Y)["y"], SOME, "U"),
    "np.str_": ([np.str_(label) for label in Y], SOME, "U"),
    "ints with gaps": (labelled(3, 5, 9), [3, 5, 9], "i"),
    "negative ints": (labelled(-1, 0, 1), [-1, 0, 1], "i"),
    "uint8": (np.array(labelled(3, 5, 9), dtype=np.uint8), [3, 5, 9], "u"),
    "np scalars": ([np.int16(i) for i in labelled(3, 5, 9)], [3, 5, 9], "i"),
    "nullable ints": (pd.Series(labelled(3, 5, 9), dtype="Int64"), [3, 5, 9], "i"),
    "floats": (np.array(labelled(3.0, 5.0, 9.0)), [3.0, 5.0, 9.0], "f"),
    "column of one": (np.array(Y, dtype=object)[:, None], SOME, "O"),
}


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize(
    ("y", "classes", "kind"), LABEL_CASES.values(), ids=LABEL_CASES
)
def test_labels(make, fitted, y, classes, kind):
    classifier = make().fit(X, y)
    assert_same_model(classifier, fitted)
    assert classifier.classes_.tolist() == classes
    assert classifier.classes_.dtype.kind == kind
    predicted, proba = classifier.predict(X), classifier.predict_proba(X)
    assert predicted.dtype == classifier.classes_.dtype
    assert (classifier.classes_[proba.argmax(axis=1)] == predicted).all()
    np.testing.assert_array_equal(proba, fitted.predict_proba(X))
    assert classifier.score(X, y) == fitted.score(X, Y)


def test_class_labels_of_a_dataset_are_its_integers(make):
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=SOME)}
    data = datasets.Dataset.from_dict(
        {"text": X, "label": labelled(0, 1, 2)}, features=datasets.Features(kinds)
    )
    for labels in ("label", data["label"], data["label"][:]):
        classifier = make(n_layers=1).fit(data, labels)
        assert classifier.classes_.tolist() == [0, 1, 2]
        assert classifier.text_columns_ == ("text",)


BOOLS = [label == "food" for label in Y]
BINARY = {
    "bools": (BOOLS, np.dtype(bool)),
    "bool array": (np.array(BOOLS), np.dtype(bool)),
    "nullable bools": (pd.Series(BOOLS, dtype="boolean"), np.dtype(bool)),
    "0 and 2": (np.where(BOOLS, 2, 0), np.dtype(int)),
}


@pytest.mark.parametrize(("y", "dtype"), BINARY.values(), ids=BINARY)
def test_two_classes(make, y, dtype):
    classifier = make().fit(X, y)
    assert classifier.classes_.tolist() == sorted(set(y))
    assert classifier.predict(X).dtype == classifier.classes_.dtype == dtype
    proba = classifier.predict_proba(X)
    assert proba.shape == (len(X), 2)
    assert (classifier.classes_[proba.argmax(axis=1)] == classifier.predict(X)).all()
    assert classifier.decision_function(X).shape == (len(X),)


@pytest.mark.parametrize("head_init", ["centroid", "lda", "linear_probe", "random"])
def test_an_absent_class_keeps_its_column(make, head_init):
    classes = ["weather", "art", "sport", "food"]
    classifier = make(classes=classes, head_init=head_init).fit(X, Y)
    assert classifier.classes_.tolist() == sorted(classes)
    proba = classifier.predict_proba(X)
    assert proba.shape == (len(X), 4)
    assert (proba > 0).all()
    assert np.isfinite(log_loss(Y, proba, labels=classifier.classes_))
    # the class may come later
    y = ["art"] + Y[1:]
    classifier.partial_fit(X, y)
    assert np.isfinite(classifier.predict_proba(X)).all()


def test_classes_may_leave_one_class_or_come_with_the_first_partial_fit(make):
    alone = make(classes=["a", "b"]).fit(X[:3], ["b"] * 3)
    assert alone.predict_proba(X).shape == (len(X), 2)
    grown = make().partial_fit(X[:3], ["b"] * 3, classes=["b", "a"])
    grown.partial_fit(X[3:6], ["a"] * 3, classes=["a", "b"])
    assert grown.classes_.tolist() == ["a", "b"]


# -- weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("head_init", ["lda", "random"])
def test_weights_of_one_change_nothing(make, head_init):
    plain = make(head_init=head_init).fit(X, Y)
    ones = make(head_init=head_init).fit(X, Y, sample_weight=np.ones(len(X), int))
    by_class = make(head_init=head_init, class_weight=dict.fromkeys(SOME, 1)).fit(X, Y)
    assert_same_model(ones, plain)
    assert_same_model(by_class, plain)


@pytest.mark.parametrize("head_init", ["lda", "random"])
def test_balanced_classes_are_sample_weights(make, head_init):
    y = ["food"] * 5 + ["sport"] * 3 + ["weather"]
    balanced = make(head_init=head_init, class_weight="balanced").fit(X, y)
    weight = compute_sample_weight("balanced", y)
    assert_same_model(
        balanced, make(head_init=head_init).fit(X, y, sample_weight=weight)
    )
    plain = make(head_init=head_init).fit(X, y)
    assert np.abs(plain.predict_proba(X) - balanced.predict_proba(X)).max() > 1e-5


def test_class_weights_multiply_sample_weights(make):
    weight = np.linspace(0.5, 2, len(X))
    by_class = {"food": 2, "sport": 0.5, "weather": 1}
    both = make(class_weight=by_class).fit(X, Y, sample_weight=weight)
    product = weight * [by_class[label] for label in Y]
    assert_same_model(both, make().fit(X, Y, sample_weight=product))


@pytest.mark.parametrize("head_init", ["lda", "random"])
def test_a_text_of_weight_zero_has_no_cross_entropy(steady, head_init):
    # a contrastive term still compares other texts with it
    settings = {"head_init": head_init, "criterion__contrastive": None}
    without = steady(**settings).fit(X[1:], Y[1:])
    weight = np.array([0] + [1] * (len(X) - 1))
    for text, label in [(X[0], Y[0]), ("an odd text", "food")]:
        classifier = steady(**settings)
        classifier.fit([text] + X[1:], [label] + Y[1:], sample_weight=weight)
        np.testing.assert_allclose(
            classifier.predict_proba_exits(TEXTS),
            without.predict_proba_exits(TEXTS),
            atol=1e-5,
        )


@pytest.mark.parametrize("constant", [0.1, 100])
def test_equal_weights_change_nothing(make, constant):
    by_sample = make().fit(X, Y, sample_weight=np.full(len(X), constant))
    by_class = make(class_weight=dict.fromkeys(SOME, constant)).fit(X, Y)
    plain = make().fit(X, Y)
    assert_same_model(by_sample, plain)
    assert_same_model(by_class, plain)


@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl", None])
def test_a_common_factor_of_the_weights_changes_nothing(steady, contrastive):
    weight = np.linspace(0, 2, len(X))
    settings = {"criterion__contrastive": contrastive, "head_init": "centroid"}
    classifier = steady(**settings).fit(X, Y, sample_weight=weight)
    scaled = steady(**settings).fit(X, Y, sample_weight=3 * weight)
    np.testing.assert_allclose(
        scaled.predict_proba_exits(TEXTS),
        classifier.predict_proba_exits(TEXTS),
        atol=1e-5,
    )


@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl", None])
def test_a_batch_without_weight_changes_nothing(steady, contrastive):
    settings = {"batch_size": 1, "lr_schedule": "constant", "classes": SOME}
    settings |= {"criterion__contrastive": contrastive}
    weight = [1, 0, 0, 0]
    classifier = steady(**settings).fit(X[:4], Y[:4], sample_weight=weight)
    alone = steady(**settings).fit(X[:1], Y[:1])
    np.testing.assert_allclose(
        classifier.predict_proba_exits(TEXTS),
        alone.predict_proba_exits(TEXTS),
        atol=1e-6,
    )


# -- sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], (), np.array([]), pd.Series([], dtype=object)])
def test_no_texts_to_predict(fitted, fitted_pairs, empty):
    for classifier in (fitted, fitted_pairs):
        assert classifier.predict(empty).shape == (0,)
        assert classifier.predict(empty).dtype == classifier.classes_.dtype
        assert classifier.predict_proba(empty).shape == (0, 3)
        assert classifier.predict_proba_exits(empty).shape == (2, 0, 3)
        assert classifier.decision_function(empty).shape == (0, 3)
        assert classifier.transform(empty).shape == (0, 32)
        assert classifier.forward(empty).shape == (0, 3)


def test_no_texts_to_predict_with_two_classes(make):
    assert make().fit(X, BOOLS).decision_function([]).shape == (0,)


def assert_finite(classifier):
    assert np.isfinite(classifier.history[:, "train_loss"]).all()
    assert all(torch.isfinite(p).all() for p in classifier.module_.parameters())
    assert np.isfinite(classifier.predict_proba_exits(TEXTS[:5])).all()


SIZES = {
    "last batch of one": (9, 4, 1),
    "batches of one": (3, 1, 1),
    "larger than the data": (6, 100, 1),
    "two texts": (2, 32, 1),
    "two batches of one": (2, 1, 1),
    "last micro-batch of one": (9, 2, 4),
}


@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl", None])
@pytest.mark.parametrize(("n", "batch_size", "steps"), SIZES.values(), ids=SIZES)
def test_sizes_of_batches(make, contrastive, n, batch_size, steps):
    classifier = make(
        batch_size=batch_size,
        gradient_accumulation_steps=steps,
        criterion__contrastive=contrastive,
        head_init="centroid" if contrastive == "acl_cl" else "random",
    ).fit(X[:n], Y[:n])
    assert len(classifier.angles_) == -(-n // (batch_size * steps))
    assert_finite(classifier)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_sizes_of_batches_in_prediction(fitted, n):
    expected = fitted.predict_proba(TEXTS)[:n]
    assert fitted.predict_proba(TEXTS[:n]) == pytest.approx(expected, abs=1e-5)


# -- odd texts -------------------------------------------------------------------------

ODD = [
    "",
    "   \t\n",
    "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}",
    "a\x00b",
    "\x00",
    "\u4e2d\u6587",
    "\u202eright to left",
    "[CLS] [SEP] [MASK]",
    "n\u0303o" * 3,
]


@pytest.mark.parametrize("pair", [False, True])
def test_odd_texts_train_and_predict(make, pair):
    texts = [(text, "") for text in ODD] if pair else ODD
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = make(head_init="centroid").fit(texts, Y)
        proba = classifier.predict_proba(texts)
    assert_finite_proba(proba)
    alone = [classifier.predict_proba([text])[0] for text in texts]
    np.testing.assert_allclose(alone, proba, atol=1e-5)


def assert_finite_proba(proba):
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(axis=-1), 1, atol=1e-12)


def caught(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


LONG = "the team won the game " * 100
TRUNCATED = (
    "{} texts ({}) are longer than max_length=64 tokens; what lies beyond is not read. "
    "Raise max_length if the model allows it, or shorten the texts."
)


def test_long_texts_are_cut_and_counted_once(make):
    texts = [LONG, *X[1:8], LONG]
    message = TRUNCATED.format("2 of 9", "22.2%")
    classifier = make()
    assert caught(lambda: classifier.fit(texts, Y)) == [message]
    for method in ("predict", "predict_proba", "transform", "forward"):
        assert caught(lambda: getattr(classifier, method)(texts)) == [message]  # noqa: B023
    cut = "the team won the game " * 12 + "the team"  # 62 words and 2 special tokens
    np.testing.assert_array_equal(
        classifier.predict_proba([LONG]), classifier.predict_proba([cut])
    )
    assert caught(lambda: classifier.predict([cut])) == []


def test_max_length_shortens_what_is_read(make):
    classifier = make(max_length=5)
    message = "{} of 9 texts ({:.1%}) are longer than max_length=5 tokens"
    n_long = sum(len(text.split()) > 3 for text in X)
    (warning,) = caught(lambda: classifier.fit(X, Y))
    assert warning.startswith(message.format(n_long, n_long / 9))
    short = [" ".join(text.split()[:3]) for text in X]
    assert_same_model(make(max_length=5).fit(short, Y), classifier)


def test_lone_surrogates_are_replaced_and_counted_once(make):
    message = (
        "2 of 9 rows of X held lone surrogates (halves of a character), which no "
        "tokenizer reads; each was replaced by U+FFFD."
    )
    broken = ["a \ud83d b", *X[1:8], "\ude00"]
    repaired = ["a \ufffd b", *X[1:8], "\ufffd"]
    classifier = make()
    assert caught(lambda: classifier.fit(broken, Y)) == [message]
    assert caught(lambda: classifier.predict(broken)) == [message]
    assert caught(lambda: classifier.forward(broken)) == [message]
    assert_same_model(classifier, make().fit(repaired, Y))


# -- more than fits in memory ----------------------------------------------------------


@pytest.fixture
def peak():
    tracemalloc = pytest.importorskip("tracemalloc")

    def peak(call):
        """Most bytes that Python and numpy held at a time, the result included."""
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return peak


def rows(n):
    return dataset(
        text=["goal", "cold rain", "fish soup"] * (n // 3),
        label=["sport", "weather", "food"] * (n // 3),
    )


def test_predicting_many_rows_takes_little_memory(make, peak, monkeypatch):
    monkeypatch.setattr("sklearn_acl.inference.CHUNK_ROWS", 600)
    few, many = rows(1200), rows(4800)
    classifier = make(n_layers=1, batch_size=300).fit(few, "label")
    small = peak(lambda: classifier.predict_proba(few))
    large = peak(lambda: classifier.predict_proba(many))
    # three probabilities take 24 bytes; a text as a Python string some 60
    assert (large - small) / 3600 < 24 + 40


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_labels_of_many_classes_take_little_memory(make, peak, monkeypatch, threshold):
    monkeypatch.setattr("sklearn_acl.inference.CHUNK_ROWS", 300)
    few, many = rows(600), rows(1800)
    names = ["food", "sport", "weather", *(f"class {i}" for i in range(97))]
    classifier = make(n_layers=2, batch_size=100, classes=names).fit(few, "label")
    classifier.set_params(exit_threshold=threshold)

    def per_row(method, **kwargs):
        small, large = (peak(lambda x=x: method(x, **kwargs)) for x in (few, many))
        return (large - small) / 1200

    # a hundred probabilities take 800 bytes
    assert per_row(classifier.predict, return_exit_layers=True) < 200
    assert per_row(classifier.exit_layers) < 100


def test_fitting_many_rows_takes_little_memory(make, peak, tmp_path, monkeypatch):
    monkeypatch.setattr("sklearn_acl.label_columns._CHUNK_ROWS", 500)

    def on_disk(n):
        labels = [label.ljust(48, "x") for label in SOME]
        data = dataset(
            text=["goal", "rain", "soup"] * (n // 3), label=labels * (n // 3)
        )
        data.save_to_disk(tmp_path / str(n))
        return datasets.load_from_disk(tmp_path / str(n))

    settings = {"n_layers": 1, "batch_size": 300, "criterion__contrastive": None}
    few, many = on_disk(1500), on_disk(6000)
    make(**settings).fit(few, "label")  # what is loaded once is not counted
    small = peak(lambda: make(**settings).fit(few, "label"))
    large = peak(lambda: make(**settings).fit(many, "label"))
    # a label as a Python string takes 97 bytes, in an array 192; its code takes 8
    assert (large - small) / 4500 < 80


@pytest.mark.parametrize(
    "container",
    [
        list,
        np.array,
        pd.Series,
        lambda values: pd.Series(values).values,  # strings of pandas' own
        lambda values: pd.Series(values, index=values).astype("category").values,
        pd.Index,
        pl.Series,
        lambda values: datasets.Dataset.from_dict({"a": values})["a"],
    ],
)
def test_rows_are_taken_by_position_from_any_container(container):
    values = ["d", "b", "c", "a"]
    part = take_rows(container(values), np.array([2, 0]))
    assert list(part) == ["c", "d"]
