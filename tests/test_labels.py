import enum
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from datasets import Dataset
from scipy.sparse import csr_array
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.class_weight import compute_sample_weight
from skorch.utils import data_from_dataset, to_numpy
from torch.utils.data import Subset

from sklearn_acl.label_columns import factorize_column
from sklearn_acl.labels import (
    DecodedLabels,
    decode_labels,
    encode_labels,
)
from sklearn_acl.text import Texts
from sklearn_acl.training_data import TrainingRows
from sklearn_acl.weights import check_weights, training_weights

WORDS = ["up", "down", "up", "left"]
NUMBERS = [5, 3, 5, 9]
SWITCHES = [True, False, True, True]


class Direction(str, enum.Enum):  # noqa: UP042 (Python 3.10)
    UP = "up"
    DOWN = "down"
    LEFT = "left"


class Level(enum.IntEnum):
    LOW = 3
    MIDDLE = 5
    HIGH = 9


def message(text):
    """Pattern of exactly this message."""
    return f"^{re.escape(text)}$"


# --- encoding -----------------------------------------------------------------------

OF_WORDS = {
    "list": WORDS,
    "tuple": tuple(WORDS),
    "numpy str": np.array(WORDS),
    "numpy object": np.array(WORDS, dtype=object),
    "numpy variable width": np.array(WORDS, dtype=np.dtypes.StringDType()),
    "list of numpy str": list(np.array(WORDS)),
    "Series, other index": pd.Series(WORDS, index=[7, 0, 3, 1]),
    "Series, string": pd.Series(WORDS, dtype="string"),
    "Series, object": pd.Series(WORDS, dtype=object),
    "Index": pd.Index(WORDS),
    "Series, category": pd.Series(WORDS, dtype="category"),
    "Categorical, unused and unsorted": pd.Categorical(
        WORDS, categories=["up", "right", "left", "down"]
    ),
    "polars": pl.Series(WORDS),
    "polars categorical": pl.Series(WORDS, dtype=pl.Categorical),
    "datasets column": Dataset.from_dict({"y": WORDS})["y"],
    "string enum": [Direction(word) for word in WORDS],
}
OF_NUMBERS = {
    "list": NUMBERS,
    "int32": np.array(NUMBERS, dtype=np.int32),
    "uint8": np.array(NUMBERS, dtype=np.uint8),
    "numpy object": np.array(NUMBERS, dtype=object),
    "list of numpy scalars": [np.int64(5), np.int32(3), 5, np.int8(9)],
    "floats": np.array(NUMBERS, dtype=float),
    "ints and floats": [5, 3.0, 5, 9.0],
    "Series": pd.Series(NUMBERS, index=[7, 0, 3, 1]),
    "Series, Int64": pd.Series(NUMBERS, dtype="Int64"),
    "Series, category": pd.Series(NUMBERS, dtype="category"),
    "polars": pl.Series(NUMBERS),
    "datasets column": Dataset.from_dict({"y": NUMBERS})["y"],
    "integer enum": [Level(number) for number in NUMBERS],
}
OF_SWITCHES = {
    "list": SWITCHES,
    "numpy": np.array(SWITCHES),
    "numpy object": np.array(SWITCHES, dtype=object),
    "numpy scalars": [np.True_, False, True, np.True_],
    "Series": pd.Series(SWITCHES),
    "Series, boolean": pd.Series(SWITCHES, dtype="boolean"),
    "polars": pl.Series(SWITCHES),
}


def cases(table):
    return pytest.mark.parametrize("y", list(table.values()), ids=list(table))


@cases(OF_WORDS)
def test_containers_of_strings(y):
    codes, classes = encode_labels(y, n_rows=4)
    assert codes.dtype == np.int64
    assert codes.tolist() == [2, 0, 2, 1]
    assert classes.tolist() == ["down", "left", "up"]


@cases(OF_NUMBERS)
def test_containers_of_numbers(y):
    codes, classes = encode_labels(y, n_rows=4)
    assert codes.dtype == np.int64
    assert codes.tolist() == [1, 0, 1, 2]
    assert classes.tolist() == [3, 5, 9]


@cases(OF_SWITCHES)
def test_containers_of_bools(y):
    codes, classes = encode_labels(y)
    assert codes.tolist() == [1, 0, 1, 1]
    assert classes.dtype == bool
    assert classes.tolist() == [False, True]


@pytest.mark.parametrize(
    "y",
    [
        WORDS,
        np.array(WORDS, dtype=object),
        NUMBERS,
        np.array(NUMBERS, dtype=np.int8),
        np.array(NUMBERS, dtype=np.float32),
        SWITCHES,
    ],
)
def test_classes_have_the_dtype_that_scikit_learn_gives(y):
    codes, classes = encode_labels(y)
    expected = LabelEncoder().fit(y)
    assert classes.dtype == expected.classes_.dtype
    assert np.array_equal(classes, expected.classes_)
    assert np.array_equal(codes, expected.transform(y))


@cases({**OF_WORDS, **OF_SWITCHES})
def test_decoding_undoes_encoding(y):
    codes, classes = encode_labels(y)
    assert decode_labels(codes, classes).tolist() == list(y)


def test_decoding_keeps_shape_and_dtype():
    classes = np.array([3, 5, 9], dtype=np.int32)
    decoded = decode_labels([[0, 2], [1, 1]], classes)
    assert decoded.dtype == np.int32
    assert decoded.tolist() == [[3, 9], [5, 5]]
    assert decode_labels([], classes).shape == (0,)


@pytest.mark.parametrize(
    "y",
    [
        np.array(WORDS)[:, None],
        np.array(NUMBERS)[:, None],
        [[word] for word in WORDS],
        pd.DataFrame({"y": WORDS}),
    ],
)
def test_column_vector_is_raveled_with_a_warning(y):
    message = "A column-vector y was passed"
    with pytest.warns(DataConversionWarning, match=message) as seen:
        codes, classes = encode_labels(y, n_rows=4)
    assert [warning.filename for warning in seen] == [__file__]
    assert codes.shape == (4,)
    assert len(classes) == 3


def test_good_labels_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for y in [*OF_WORDS.values(), *OF_NUMBERS.values(), *OF_SWITCHES.values()]:
            encode_labels(y)


def test_integers_beyond_64_bits_stay_apart():
    y = [2**70, 2**70 + 1, 2**70]
    codes, classes = encode_labels(y)
    assert codes.tolist() == [0, 1, 0]
    assert decode_labels(codes, classes).tolist() == y


def test_numeric_strings_are_strings():
    codes, classes = encode_labels(["10", "9", "10"])
    assert classes.tolist() == ["10", "9"]
    assert codes.tolist() == [0, 1, 0]


MISSING = (
    "y has {} missing labels (None, NaN or NA), the first at position {}; drop these "
    "texts or give them a label."
)


@pytest.mark.parametrize(
    ("y", "count", "first"),
    [
        (["a", None, "b", None], 2, 1),
        (["a", "b", float("nan")], 1, 2),
        ([1, 2, None], 1, 2),
        ([1, np.nan, 2], 1, 1),
        ([np.float32("nan"), 1], 1, 0),
        ([True, pd.NA], 1, 1),
        ([1, pd.NaT, 2], 1, 1),
        ([1, "a", None], 1, 2),
        (np.array([1.0, 2.0, np.nan]), 1, 2),
        (np.array(["a", np.nan, None], dtype=object), 2, 1),
        (pd.Series(["a", None, "b"], index=[5, 6, 7]), 1, 1),
        (pd.Series([1, None, 2], dtype="Int64"), 1, 1),
        (pd.Series([True, None], dtype="boolean"), 1, 1),
        (pd.Categorical(["a", None, "b"]), 1, 1),
        (pl.Series(["a", None]), 1, 1),
        (pl.Series([1, None]), 1, 1),
        (Dataset.from_dict({"y": [3, None, 4]})["y"], 1, 1),
    ],
)
def test_missing_labels(y, count, first):
    with pytest.raises(ValueError, match=message(MISSING.format(count, first))):
        encode_labels(y)


MIXED = "y mixes labels of type {} and of type {}; convert them to one type."
UNSUPPORTED = (
    "y holds labels of type {}, such as {} at position {}; labels must be strings, "
    "integers or bools."
)


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (
            [1, "a"],
            MIXED.format("int (1 at position 0)", "str ('a' at position 1)"),
        ),
        (
            ["a", "b", 1.0],
            MIXED.format("str ('a' at position 0)", "float (1.0 at position 2)"),
        ),
        (
            [True, False, 1],
            MIXED.format("bool (True at position 0)", "int (1 at position 2)"),
        ),
        (
            np.array([np.int32(4), "a"], dtype=object),
            MIXED.format("int32 (4 at position 0)", "str ('a' at position 1)"),
        ),
        (["a", b"b"], UNSUPPORTED.format("bytes", "b'b'", 1)),
        ([1, 2, 1j], UNSUPPORTED.format("complex", "1j", 2)),
        ([{"a": 1}, {"b": 1}], UNSUPPORTED.format("dict", "{'a': 1}", 0)),
        (np.array([1j, 2]), UNSUPPORTED.format("complex128", "np.complex128(1j)", 0)),
    ],
)
def test_types_that_are_no_labels(y, text):
    with pytest.raises(TypeError, match=message(text)):
        encode_labels(y)


SEVERAL = (
    "y {}: multi-label and multi-output targets are out of scope; pass one label per "
    "text."
)
NO_ARRAY = (
    "y should be a 1d array-like of labels such as a list, an array or a Series; got "
    "{}."
)


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (np.eye(3, dtype=int), SEVERAL.format("has shape (3, 3)")),
        ([[1, 0], [0, 1], [1, 1]], SEVERAL.format("has shape (3, 2)")),
        (
            pd.DataFrame({"a": WORDS, "b": NUMBERS}),
            SEVERAL.format("has shape (4, 2)"),
        ),
        (np.zeros((2, 2, 2)), SEVERAL.format("has shape (2, 2, 2)")),
        ([["a", "b"], ["a"]], SEVERAL.format("holds ['a', 'b'] at position 0")),
        (["a", {"b"}], SEVERAL.format("holds {'b'} at position 1")),
        (csr_array(np.eye(2)), SEVERAL.format("is a sparse matrix")),
        ("abc", NO_ARRAY.format("str")),
        (b"abc", NO_ARRAY.format("bytes")),
        ({"a": 1}, NO_ARRAY.format("dict")),
        ({"a", "b"}, NO_ARRAY.format("set")),
        ((word for word in WORDS), NO_ARRAY.format("generator")),
        (3, NO_ARRAY.format("int")),
        (np.array(3), NO_ARRAY.format("ndarray")),
        (
            None,
            "fit requires y to be passed, but the target y is None; pass one label per "
            "text.",
        ),
        (
            [1.0, 2.5, 0.1],
            "Unknown label type: continuous. y holds 2.5 at position 1; regression "
            "targets are out of scope: pass classes.",
        ),
        (
            np.array([0, np.inf, 1, -np.inf]),
            "Input y contains infinity, 2 times, the first at position 1.",
        ),
        (
            ["a", "a"],
            "y holds one class only, 'a': training needs at least two classes. Pass "
            "texts of other classes too, or name all classes with classes=.",
        ),
        (
            [],
            "y is empty: training needs at least two classes. Pass texts of other "
            "classes too, or name all classes with classes=.",
        ),
    ],
)
def test_targets_that_are_no_classes(y, text):
    with pytest.raises(ValueError, match=message(text)):
        encode_labels(y)


@pytest.mark.parametrize("n_rows", [0, 3, 5])
def test_length_differs_from_the_texts(n_rows):
    text = f"X and y differ in length: {n_rows} texts but 4 labels."
    with pytest.raises(ValueError, match=message(text)):
        encode_labels(WORDS, n_rows=n_rows)


def test_one_class_can_be_allowed():
    codes, classes = encode_labels(["a", "a"], require_two=False)
    assert codes.tolist() == [0, 0]
    assert classes.tolist() == ["a"]


# --- a fixed universe of classes ----------------------------------------------------


@pytest.mark.parametrize(
    "classes",
    [
        ["up", "right", "left", "down"],
        ("down", "left", "right", "up"),
        np.array(["up", "right", "left", "down"], dtype=object),
        pd.Series(["up", "right", "left", "down"], index=[3, 2, 1, 0]),
    ],
)
@cases(OF_WORDS)
def test_absent_classes_keep_their_place(y, classes):
    codes, found = encode_labels(y, classes=classes)
    assert codes.tolist() == [3, 0, 3, 1]
    assert found.tolist() == ["down", "left", "right", "up"]


@cases(OF_NUMBERS)
def test_numbers_of_any_dtype_find_their_class(y):
    codes, classes = encode_labels(y, classes=np.array([9, 4, 3, 5], dtype=np.int16))
    assert codes.tolist() == [2, 0, 2, 3]
    assert classes.dtype == np.int16


@pytest.mark.parametrize("y", [["a", "a"], []])
def test_one_class_or_none_may_occur(y):
    codes, classes = encode_labels(y, classes=["b", "a"])
    assert codes.dtype == np.int64
    assert codes.tolist() == [0] * len(y)
    assert classes.tolist() == ["a", "b"]


def test_encoding_with_its_own_classes_changes_nothing():
    codes, classes = encode_labels(WORDS)
    again, same = encode_labels(WORDS, classes=classes)
    assert np.array_equal(codes, again)
    assert np.array_equal(classes, same)


def test_labels_outside_classes():
    text = (
        "y holds 2 labels that are not in classes: 'left', 'up'; the first is 'up' at "
        "position 0. The classes are 'down', 'right'."
    )
    with pytest.raises(ValueError, match=message(text)):
        encode_labels(WORDS, classes=["right", "down"])


def test_long_lists_of_labels_are_cut():
    text = (
        "y holds 10 labels that are not in classes: 0, 1, 2, 3, 4, ...; the first is 0 "
        "at position 0. The classes are 10, 11, 12, 13, 14, ...."
    )
    with pytest.raises(ValueError, match=message(text)):
        encode_labels(np.arange(10), classes=np.arange(10, 20))


@pytest.mark.parametrize(
    ("classes", "error", "text"),
    [
        (["a", "b", "a"], ValueError, "classes must be unique; repeated: 'a'."),
        (["a"], ValueError, "classes must hold at least two labels; got 'a'."),
        ([], ValueError, "classes must hold at least two labels; got none."),
        ([["a"], ["b"]], ValueError, "classes must be 1-d; got 2 dimensions."),
        (
            ["a", None],
            ValueError,
            MISSING.format(1, 1).replace("y has", "classes has"),
        ),
        (
            "ab",
            ValueError,
            NO_ARRAY.format("str").replace("y should", "classes should"),
        ),
        (
            [1, 0],
            TypeError,
            "y holds labels of type str ('a' at position 0) but classes holds labels of"
            " type number; convert one of them.",
        ),
    ],
)
def test_classes_that_cannot_be(classes, error, text):
    with pytest.raises(error, match=message(text)):
        encode_labels(["a", "b"], classes=classes)


def test_bools_are_not_numbers():
    with pytest.raises(TypeError, match="labels of type bool"):
        encode_labels([True, False], classes=[0, 1])


# --- columns of a Dataset -----------------------------------------------------------

COLUMNS = {
    "strings": ["down", "up", "left", "up", "down"],
    "numeric strings": ["10", "9", "10", "", "9"],
    "ints": [5, -3, 9, 5, 5],
    "bools": [True, False, True, True, False],
    "floats": [2.0, -1.0, 0.0, -0.0, 2.0],
}


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("sklearn_acl.label_columns._CHUNK_ROWS", 2)


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("kind", ["plain", "numpy", "torch", "shuffled", "ClassLabel"])
def test_a_column_in_parts_equals_its_list(values, kind, small_chunks):
    data = Dataset.from_dict({"y": values, "more": values})
    if kind == "ClassLabel":
        data = data.class_encode_column("y")
        values = list(data["y"])
    elif kind == "shuffled":
        data, values = data.select([3, 0, 4, 1]), [values[i] for i in (3, 0, 4, 1)]
    elif kind != "plain":
        data = data.with_format(kind)
    assert factorize_column(data["y"]) is not None
    codes, classes = encode_labels(data["y"], n_rows=len(values))
    expected_codes, expected_classes = encode_labels(values)
    assert codes.dtype == np.int64
    assert codes.tolist() == expected_codes.tolist()
    assert classes.tolist() == expected_classes.tolist()
    assert classes.dtype == expected_classes.dtype
    reversed_classes = sorted({*values})[::-1]
    by_name, _ = encode_labels(data["y"], classes=reversed_classes)
    assert by_name.tolist() == expected_codes.tolist()


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        (["a", "b", None, "a", None], {}),
        ([1.0, 2.0, 1.0, float("nan"), 2.0], {}),
        ([1.0, 2.0, 1.0, 2.5, 2.0], {}),
        ([1.0, 2.0, 1.0, float("inf"), 2.0], {}),
        (["a"] * 5, {}),
        ([], {}),
        ([["a", "b"], ["b", "c"]] * 2, {}),
        (["a", "a", "a", "x", "y"], {"classes": ["a", "b"]}),
        ([1, 2, 2, 2], {"classes": ["a", "b"]}),
        (["a", "b", "a"], {"n_rows": 4}),
    ],
)
def test_a_bad_column_is_refused_as_its_list_is(values, parameters, small_chunks):
    with pytest.raises((TypeError, ValueError)) as expected:
        encode_labels(values, **parameters)
    column = Dataset.from_dict({"y": values})["y"]
    with pytest.raises(expected.type, match=message(str(expected.value)) + "$"):
        encode_labels(column, **parameters)


@pytest.mark.parametrize("y", [["b", "a", "c", "a"], [5, 3, 9, 3], [True, False] * 2])
def test_labels_decoded_when_read_are_an_array_of_them(y):
    codes, classes = encode_labels(y)
    labels, expected = DecodedLabels(codes, classes), np.array(y)
    assert len(labels) == 4 and labels.shape == (4,) and labels.ndim == 1
    assert labels.dtype == expected.dtype
    assert list(labels) == y
    for rows in [slice(1, 3), [2, 0], np.array([3, -1]), expected == y[1]]:
        np.testing.assert_array_equal(labels[rows], expected[rows])
    np.testing.assert_array_equal(np.asarray(labels), expected)
    assert np.asarray(labels, dtype=object).dtype == object
    assert accuracy_score(labels, expected) == 1
    np.testing.assert_array_equal(to_numpy(labels), expected)
    texts = Texts(["w", "x", "y", "z"])
    part = Subset(TrainingRows(texts, None, labels, codes), np.array([3, 0]))
    np.testing.assert_array_equal(data_from_dataset(part)[1], expected[[3, 0]])


# --- weights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        [1, 0, 2.5],
        (1, 0, 2.5),
        np.array([1, 0, 2.5], dtype=np.float32),
        pd.Series([1, 0, 2.5], index=[2, 1, 0]),
        pl.Series([1.0, 0.0, 2.5]),
    ],
)
def test_good_weights(weights):
    checked = check_weights(weights, 3)
    assert checked.dtype == np.float64
    assert checked.tolist() == [1, 0, 2.5]


def test_no_weights():
    assert check_weights(None, 3) is None


SHAPE = "sample_weight must hold one number per text, of shape (3,); got shape {}."
RANGE = (
    "sample_weight must be finite and not negative; {} of 3 are not, the first is {} "
    "at position {}."
)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, 2], SHAPE.format("(2,)")),
        ([[1], [2], [3]], SHAPE.format("(3, 1)")),
        (1.0, SHAPE.format("()")),
        ([1, -1, -2], RANGE.format(2, -1.0, 1)),
        ([1, 2, np.nan], RANGE.format(1, "nan", 2)),
        ([np.inf, 2, -1], RANGE.format(2, "inf", 0)),
        ([1, 2, None], RANGE.format(1, "nan", 2)),
        ([0, 0, 0], "sample_weight is zero for every text; nothing would train."),
    ],
)
def test_bad_weights(weights, text):
    with pytest.raises(ValueError, match=message(text)):
        check_weights(weights, 3)


@pytest.mark.parametrize("weights", [["a", "b", "c"], [1j, 2, 3]])
def test_weights_that_are_no_numbers(weights):
    with pytest.raises(ValueError, match="^sample_weight must be numbers: "):
        check_weights(weights, 3)


Y = ["a", "b", "a", "c", "a", "b"]
CODES, CLASSES = encode_labels(Y)
SAMPLE_WEIGHT = [1, 2, 0.5, 0, 3, 1]


def of_mean_one(weights):
    weights = np.array(weights, dtype=float)
    return weights * np.count_nonzero(weights) / weights.sum()


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 2, "c": 0.25}])
@pytest.mark.parametrize("factor", [1e-300, 0.1, 3, 100, 1e300])
def test_weights_have_no_unit(factor, class_weight):
    scaled = factor * np.array(SAMPLE_WEIGHT)
    weights = training_weights(CODES, CLASSES, class_weight, scaled)
    expected = training_weights(CODES, CLASSES, class_weight, SAMPLE_WEIGHT)
    assert weights == pytest.approx(expected, rel=1e-6)
    assert weights[weights > 0].mean() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("constant", [1e-300, 0.1, 1, 3, 100, 1e300])
def test_equal_weights_are_ones_to_the_bit(constant):
    n = 1001
    codes = np.arange(n) % 2
    weights = training_weights(codes, np.array(["a", "b"]), None, np.full(n, constant))
    assert (weights == 1).all()
    weights = training_weights(codes, np.array(["a", "b"]), {"a": constant}, codes == 0)
    assert (weights == (codes == 0)).all()


def test_no_weights_at_all():
    assert training_weights(CODES, CLASSES, None, None) is None


@pytest.mark.parametrize(
    "class_weight",
    ["balanced", {"a": 2, "b": 0.5, "c": 3}, {"b": 4}, {"a": 1, "b": 2, "c": 0}],
)
def test_class_weights_equal_those_of_scikit_learn(class_weight):
    weights = training_weights(CODES, CLASSES, class_weight)
    assert weights.dtype == np.float32
    expected = of_mean_one(compute_sample_weight(class_weight, Y))
    assert weights == pytest.approx(expected, rel=1e-6)


def test_both_kinds_of_weight_are_multiplied():
    weights = training_weights(CODES, CLASSES, {"a": 2}, SAMPLE_WEIGHT)
    assert weights == pytest.approx(of_mean_one([2, 2, 1, 0, 6, 1]), rel=1e-6)


def test_sample_weights_alone():
    weights = training_weights(CODES, CLASSES, None, SAMPLE_WEIGHT)
    assert weights.dtype == np.float32
    assert weights == pytest.approx(of_mean_one(SAMPLE_WEIGHT), rel=1e-6)


def test_balanced_classes_have_the_same_total_weight():
    sample_weight = np.array([1, 2, 0.5, 4, 3, 1])
    weights = training_weights(CODES, CLASSES, "balanced", sample_weight)
    totals = np.bincount(CODES, weights)
    assert totals == pytest.approx(np.full(3, len(Y) / 3), rel=1e-6)


def test_balanced_treats_weight_two_as_the_text_twice():
    weighted = training_weights(CODES, CLASSES, "balanced", [2, 1, 1, 1, 1, 1])
    codes, _ = encode_labels(["a", *Y])
    repeated = training_weights(codes, CLASSES, "balanced")
    summed = [repeated[0] + repeated[1], *repeated[2:]]
    assert weighted == pytest.approx(of_mean_one(summed), rel=1e-6)


@pytest.mark.parametrize("sample_weight", [None, [1, 1, 1, 0, 1, 1]])
def test_balanced_leaves_out_classes_without_texts(sample_weight):
    y = ["a", "b", "a", "d" if sample_weight is None else "c", "a", "b"]
    codes, classes = encode_labels(y, classes=["a", "b", "c", "d", "e"])
    weights = training_weights(codes, classes, "balanced", sample_weight)
    kept = np.flatnonzero(weights)
    assert len(kept) == (6 if sample_weight is None else 5)
    expected = compute_sample_weight("balanced", [y[row] for row in kept])
    assert weights[kept] == pytest.approx(of_mean_one(expected), rel=1e-6)


def test_numeric_strings_find_their_class_weight():
    codes, classes = encode_labels(["1", "2", "1"])
    weights = training_weights(codes, classes, {"1": 3})
    assert weights == pytest.approx(of_mean_one([3, 1, 3]), rel=1e-6)


@pytest.mark.parametrize("y", [[5, 3, 9], np.array([5, 3, 9.0])])
def test_class_weight_keys_of_any_number_type(y):
    codes, classes = encode_labels(y)
    class_weight = {np.int32(3): 2, 5: 4.0, np.int64(9): 1}
    weights = training_weights(codes, classes, class_weight)
    assert weights == pytest.approx(of_mean_one([4, 2, 1]), rel=1e-6)


def test_keys_of_absent_classes_are_fine():
    codes, classes = encode_labels(["a", "b"], classes=["a", "b", "c"])
    weights = training_weights(codes, classes, {"a": 2, "b": 3, "c": 4})
    assert weights == pytest.approx(of_mean_one([2, 3]), rel=1e-6)


@pytest.mark.parametrize(
    ("class_weight", "sample_weight", "text"),
    [
        (
            {"a": 1, "x": 2, "y": 3},
            None,
            "class_weight has no weight for the classes 'b', 'c' and keys that are no "
            "class: 'x', 'y'.",
        ),
        (
            {"a": -1},
            None,
            "class_weight must be finite and not negative; the class 'a' has -1.",
        ),
        (
            {"b": float("nan")},
            None,
            "class_weight must be finite and not negative; the class 'b' has nan.",
        ),
        (
            {"b": "2"},
            None,
            "class_weight must be finite and not negative; the class 'b' has '2'.",
        ),
        (
            "auto",
            None,
            "class_weight must be None, 'balanced' or a dict from label to weight; got "
            "'auto'.",
        ),
        (
            {"a": 0, "b": 0, "c": 0},
            None,
            "class_weight and sample_weight leave no text a weight above zero; nothing "
            "would train.",
        ),
        (
            {"a": 1e200},
            [1e200] * 6,
            "class_weight times sample_weight is too large for double precision; "
            "divide the weights by a common factor.",
        ),
        (
            "balanced",
            [1, 1, 1, 1, 1, -1],
            "sample_weight must be finite and not negative; 1 of 6 are not, the first "
            "is -1.0 at position 5.",
        ),
    ],
)
def test_weights_that_cannot_be(class_weight, sample_weight, text):
    with pytest.raises(ValueError, match=message(text)):
        training_weights(CODES, CLASSES, class_weight, sample_weight)
