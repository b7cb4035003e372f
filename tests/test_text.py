"""What counts as texts, what is refused and how, and reading rows by position."""

import collections
import decimal
import sys
import time

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from sklearn_acl.text import Texts, as_positions, check_texts

TEXTS = ["zero", "", "two \u00e9", "  \t", "four \U0001f468\u200d\U0001f469", "nul \0"]
OTHERS = ["a", "b", "c \u4e2d", "", "e", "f"]
PAIRS = list(zip(TEXTS, OTHERS, strict=True))
N = len(TEXTS)
ODD_INDEX = [7, 7, 3, -1, 0, 12]


def dataset(**columns):
    return datasets.Dataset.from_dict(columns)


def string_dtype(values, **kwargs):
    return np.array(values, dtype=np.dtypes.StringDType(**kwargs))


def objects(rows):
    """One-dimensional object array, whatever the rows are."""
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


SINGLES = {
    "list": lambda t: list(t),
    "tuple": lambda t: tuple(t),
    "deque": lambda t: collections.deque(t),
    "list of np.str_": lambda t: [np.str_(x) for x in t],
    "object array": lambda t: np.array(t, dtype=object),
    "U array": lambda t: np.array([x.replace("\0", "0") for x in t]),
    "StringDType array": lambda t: string_dtype(t),
    "object (n, 1)": lambda t: np.array(t, dtype=object)[:, None],
    "StringDType (n, 1)": lambda t: string_dtype(t)[:, None],
    "masked array": lambda t: np.ma.array(np.array(t, dtype=object)),
    "strided array": lambda t: np.array([x for x in t for _ in range(2)], object)[::2],
    "Series": lambda t: pd.Series(t, index=ODD_INDEX),
    "Series object": lambda t: pd.Series(t, index=ODD_INDEX, dtype=object),
    "Series string": lambda t: pd.Series(t, index=list("uvwxyz"), dtype="string"),
    "Series pyarrow": lambda t: pd.Series(t, dtype="string[pyarrow]"),
    "Series ArrowDtype": lambda t: pd.Series(t, dtype=pd.ArrowDtype(pa.string())),
    "Series category": lambda t: pd.Series(t, index=ODD_INDEX, dtype="category"),
    "Index": lambda t: pd.Index(t),
    "ExtensionArray": lambda t: pd.array(t, dtype="string"),
    "DataFrame": lambda t: pd.DataFrame({"text": t}, index=ODD_INDEX),
    "polars Series": lambda t: pl.Series(t),
    "polars Categorical": lambda t: pl.Series(t, dtype=pl.Categorical),
    "polars DataFrame": lambda t: pl.DataFrame({"text": t}),
    "pyarrow Array": lambda t: pa.array(t),
    "pyarrow dictionary": lambda t: pa.array(t).dictionary_encode(),
    "pyarrow ChunkedArray": lambda t: pa.chunked_array([t[:2], t[2:]]),
    "pyarrow Table": lambda t: pa.table({"text": t}),
    "Dataset": lambda t: dataset(text=t),
    "Dataset column": lambda t: dataset(label=range(N), text=t, more=t)["text"],
    "Dataset formatted": lambda t: dataset(text=t).with_format("numpy"),
    "Dataset formatted column": lambda t: dataset(text=t).with_format("torch")["text"],
    "Dataset selected": lambda t: dataset(text=["no", *t, "no"]).select(
        range(1, N + 1)
    ),
    "Dataset reordered": lambda t: dataset(text=t[::-1]).select(range(N)[::-1]),
    "Dataset reordered column": lambda t: dataset(text=t[::-1]).select(range(N)[::-1])[
        "text"
    ],
    "Texts": lambda t: Texts(list(t)),
}

PAIR_CONTAINERS = {
    "list of tuples": lambda a, b: list(zip(a, b, strict=True)),
    "tuple of tuples": lambda a, b: tuple(zip(a, b, strict=True)),
    "list of lists": lambda a, b: [list(p) for p in zip(a, b, strict=True)],
    "list of arrays": lambda a, b: list(np.array([a, b], dtype=object).T),
    "tuples and lists": lambda a, b: (
        [(a[0], b[0])] + [list(p) for p in zip(a[1:], b[1:], strict=True)]
    ),
    "object array": lambda a, b: np.array([a, b], dtype=object).T,
    "StringDType array": lambda a, b: string_dtype([a, b]).T,
    "array of tuples": lambda a, b: objects(list(zip(a, b, strict=True))),
    "Series of tuples": lambda a, b: pd.Series(
        list(zip(a, b, strict=True)), index=ODD_INDEX
    ),
    "DataFrame": lambda a, b: pd.DataFrame({"q": a, "p": b}, index=ODD_INDEX),
    "DataFrame, two dtypes": lambda a, b: pd.DataFrame(
        {0: pd.Series(a, dtype="category"), 1: pd.Series(b, dtype="string[pyarrow]")}
    ),
    "polars DataFrame": lambda a, b: pl.DataFrame({"q": a, "p": b}),
    "pyarrow Table": lambda a, b: pa.table({"q": a, "p": b}),
    "pyarrow RecordBatch": lambda a, b: pa.RecordBatch.from_pydict({"q": a, "p": b}),
    "Dataset": lambda a, b: dataset(q=a, label=list(range(N)), p=b),
    "Texts": lambda a, b: Texts(list(a), list(b)),
}


@pytest.mark.parametrize("make", SINGLES.values(), ids=SINGLES)
def test_every_container_of_texts_equals_the_list(make):
    expected = TEXTS
    if make is SINGLES["U array"]:  # numpy cuts a trailing NUL
        expected = [t.replace("\0", "0") for t in TEXTS]
    texts = check_texts(make(TEXTS))
    assert len(texts) == N
    assert texts.n_columns == 1
    assert texts.slice(0, N) == (expected, None)
    assert {type(t) for t in texts.slice(0, N)[0]} == {str}


@pytest.mark.parametrize("make", PAIR_CONTAINERS.values(), ids=PAIR_CONTAINERS)
def test_every_container_of_pairs_equals_the_list(make):
    texts = check_texts(make(TEXTS, OTHERS))
    assert len(texts) == N
    assert texts.n_columns == 2
    assert texts.slice(0, N) == (TEXTS, OTHERS)
    assert texts.rows(range(N)) == PAIRS


def test_one_pair_is_not_two_texts():
    assert check_texts([("a", "b")]).rows([0]) == [("a", "b")]
    assert check_texts([["a", "b"]]).rows([0]) == [("a", "b")]
    assert check_texts(("a", "b")).rows([0, 1]) == ["a", "b"]
    assert check_texts(["a", "b"]).rows([0, 1]) == ["a", "b"]


def test_the_input_is_not_changed_by_repairs_or_later_changes():
    values = ["a", "b \ud83d"]
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        texts = check_texts(values)
    assert values == ["a", "b \ud83d"]
    values[0] = "changed"
    assert texts.rows([0, 1]) == ["a", "b \ufffd"]


def test_a_str_subclass_keeps_its_content_not_its_display():
    class Name(str):
        def __str__(self):
            return "display"

    assert check_texts([Name("content")]).rows([0]) == ["content"]


# -- columns ---------------------------------------------------------------------------

FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "datasets": datasets.Dataset.from_dict,
}


@pytest.fixture(params=FRAMES.values(), ids=FRAMES)
def frame(request):
    return request.param({"q": TEXTS, "n": list(range(N)), "p": OTHERS})


@pytest.mark.parametrize(
    "columns, expected",
    [
        ("q", (TEXTS, None)),
        (["p"], (OTHERS, None)),
        (["q", "p"], (TEXTS, OTHERS)),
        (("p", "q"), (OTHERS, TEXTS)),
    ],
)
def test_columns_are_chosen_by_name_and_order(frame, columns, expected):
    texts = check_texts(frame, columns=columns)
    assert texts.slice(0, N) == expected
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    assert texts.column_names == names


@pytest.mark.parametrize("exclude, expected", [("p", "q"), (["q"], "p")])
def test_excluded_columns_are_not_read(frame, exclude, expected):
    frame = frame.drop_columns("n") if hasattr(frame, "drop_columns") else frame
    exclude = [*([exclude] if isinstance(exclude, str) else exclude), "n", "absent"]
    assert check_texts(frame, exclude=exclude).column_names == (expected,)


def test_excluded_column_may_still_be_named(frame):
    assert check_texts(frame, columns="q", exclude="q").column_names == ("q",)


def test_containers_without_columns_ignore_column_names():
    texts = check_texts(TEXTS, columns=["q", "p"], exclude="q")
    assert texts.rows([0]) == ["zero"]
    assert texts.column_names is None


def test_missing_columns_are_listed_with_those_there_are(frame):
    message = r"X has no column \['r'\]; its columns are \['q', 'n', 'p'\]\."
    with pytest.raises(ValueError, match=message):
        check_texts(frame, columns=["q", "r"])


@pytest.mark.parametrize("columns", [["q", "n", "p"], ["q", "q"], []])
def test_neither_one_nor_two_columns(frame, columns):
    message = r"X must have one column of texts, or two of pairs.* of \['q', 'n', 'p'\]"
    with pytest.raises(ValueError, match=message):
        check_texts(frame, columns=columns)


def test_duplicate_column_names_are_listed():
    frame = pd.DataFrame([["a", "b", "c"]], columns=["q", "p", "q"])
    message = r"duplicate column names: \['q'\], of \['q', 'p', 'q'\]"
    for columns in (None, "p", ["q"]):
        with pytest.raises(ValueError, match=message):
            check_texts(frame, columns=columns)


def test_a_message_does_not_list_thousands_of_columns():
    with pytest.raises(ValueError, match="but these are 5000") as error:
        check_texts(pd.DataFrame(np.zeros((2, 5000))))
    assert len(str(error.value)) < 600


def test_columns_of_a_dataset_are_its_strings():
    data = dataset(label=[1, 2], text=["a", "b"], tags=[["x"], ["y"]])
    assert check_texts(data).column_names == ("text",)
    three = dataset(a=["1"], b=["2"], c=["3"], n=[1])
    message = r"these are 3: \['a', 'b', 'c'\].*of \['a', 'b', 'c', 'n'\]"
    with pytest.raises(ValueError, match=message):
        check_texts(three)
    assert check_texts(three, exclude="c").column_names == ("a", "b")
    with pytest.raises(ValueError, match=r"these are 0: \[\].*of \['n'\]"):
        check_texts(dataset(n=[1]))
    with pytest.raises(TypeError, match="Column 'n' of X holds int64, not text"):
        check_texts(three, columns=["a", "n"])
    with pytest.raises(TypeError, match="Column 'tags' of X holds List, not text"):
        check_texts(data, columns="tags")
    with pytest.raises(TypeError, match="Column 'label' of X holds int64, not text"):
        check_texts(data["label"])


def test_a_dataset_with_a_transform_is_refused_and_its_column_is_read_through_it():
    data = dataset(text=["a", "b"]).with_transform(
        lambda batch: {"text": [t.upper() for t in batch["text"]]}
    )
    with pytest.raises(ValueError, match=r"Dataset with a transform.*map\(\)"):
        check_texts(data)
    assert check_texts(data["text"]).rows([0, 1]) == ["A", "B"]


# -- missing and other elements --------------------------------------------------------

MISSING = {
    "None": None,
    "nan": float("nan"),
    "np.nan": np.float32("nan"),
    "pd.NA": pd.NA,
    "pd.NaT": pd.NaT,
    "NaT": np.datetime64("NaT"),
    "Decimal": decimal.Decimal("nan"),
}


@pytest.mark.parametrize("value", MISSING.values(), ids=MISSING)
@pytest.mark.parametrize(
    "make", [list, tuple, objects, lambda v: pd.Series(objects(v), index=[5, 5, 5])]
)
def test_a_missing_text_is_named_by_position(make, value):
    message = r"X has 1 missing text, at row 1 \(counted from 0\)"
    with pytest.raises(ValueError, match=message):
        check_texts(make(["a", value, "c"]))


@pytest.mark.parametrize("value", MISSING.values(), ids=MISSING)
def test_a_missing_second_text_is_an_error_not_a_single_text(value):
    message = "X has 2 missing texts in the second text, at rows 0, 2 "
    with pytest.raises(ValueError, match=message):
        check_texts([("a", value), ("b", "b"), ("c", value)])


HALF_EMPTY = {
    "category": lambda v: pd.Series(v, dtype="category"),
    "str": lambda v: pd.Series(v, dtype="str"),
    "string": lambda v: pd.Series(v, dtype="string"),
    "pyarrow": lambda v: pd.Series(v, dtype="string[pyarrow]"),
    "StringDType": lambda v: string_dtype(v, na_object=None),
    "masked": lambda v: np.ma.array([t or "?" for t in v], mask=[t is None for t in v]),
    "polars": pl.Series,
    "pyarrow Array": pa.array,
    "Dataset column": lambda v: dataset(text=v)["text"],
}


@pytest.mark.parametrize("make", HALF_EMPTY.values(), ids=HALF_EMPTY)
def test_missing_texts_are_counted_and_the_first_rows_named(make):
    message = r"X has 7 missing texts.* at rows 0, 2, 4, 6, 8, \.\.\. \(counted"
    with pytest.raises(ValueError, match=message):
        check_texts(make([None, "a"] * 7))


def test_missing_texts_name_their_column(frame):
    data = {"q": ["a", "b"], "p": ["a", None]}
    kind = next(k for k in FRAMES.values() if isinstance(frame, type(k({"q": ["a"]}))))
    with pytest.raises(ValueError, match="1 missing text in column 'p', at row 1 "):
        check_texts(kind(data))


def test_missing_rows_of_a_dataset_count_only_if_selected(monkeypatch):
    monkeypatch.setattr("sklearn_acl.text._SCAN_ROWS", 4)
    values = [None if i in (3, 8, 9) else str(i) for i in range(12)]
    data = dataset(text=values)
    good = [11, 0, 5, 10, 1, 2, 4, 6, 7]
    assert check_texts(data.select(good)).rows(range(9)) == [str(i) for i in good]
    with pytest.raises(ValueError, match=r"3 missing texts.*at rows 3, 8, 9 \("):
        check_texts(data)
    with pytest.raises(ValueError, match=r"2 missing texts.*at rows 1, 5 \("):
        check_texts(data.select([0, 3, 1, 2, 5, 9]))


@pytest.mark.parametrize(
    "value, kind",
    [
        (b"bytes", "bytes"),
        (3, "int"),
        (np.int64(3), "int64"),
        (2.5, "float"),
        (True, "bool"),
        ({"text": "a"}, "dict"),
        (pd.Series(["a"]), "Series"),
    ],
)
def test_an_element_that_is_no_text_is_named(value, kind):
    with pytest.raises(TypeError, match=rf"(?s)row 2 is of type {kind}: .* Convert"):
        check_texts(["a", "b", value, value])
    with pytest.raises(TypeError, match=rf"row 0 in the second text is of type {kind}"):
        check_texts([("a", value)])


@pytest.mark.parametrize(
    "X, kind, hint",
    [
        (np.array([b"a"]), "bytes", r"t\.decode\(\)"),
        (np.array([1, 2]), "int", r"str\(t\)"),
        (np.array([[1.5, 2.0]]), "float", r"str\(t\)"),
        (pd.Series([True, False]), "bool", r"str\(t\)"),
        (pl.Series([1, 2]), "int", r"str\(t\)"),
        (range(3), "int", r"str\(t\)"),
        ([bytearray(b"a")], "bytearray", r"t\.decode\(\)"),
    ],
)
def test_containers_of_other_elements_say_how_to_convert(X, kind, hint):
    with pytest.raises(TypeError, match=rf"row 0.* is of type {kind}:.*{hint}"):
        check_texts(X)


# -- shapes and containers that are refused --------------------------------------------


def texts_generator():
    yield "a"


REFUSED = {
    "str": ("a text", ValueError, r"X is a single str.*\[X\]"),
    "np.str_": (np.str_("a text"), ValueError, r"X is a single str.*\[X\]"),
    "bytes": (b"a text", TypeError, "X must be a sequence of texts, got bytes"),
    "None": (None, TypeError, "X must be a sequence of texts, got NoneType"),
    "int": (3, TypeError, "X must be a sequence of texts, got int"),
    "object": (object(), TypeError, "X must be a sequence of texts.*got object"),
    "generator": (texts_generator(), ValueError, r"X is an iterator.*list\(X\)"),
    "map": (map(str, [1]), ValueError, r"X is an iterator \(map\).*list\(X\)"),
    "dict": ({"a": "b"}, ValueError, r"X is a dict.*list\(X\.values\(\)\)"),
    "dict values": ({"a": "b"}.values(), ValueError, r"dict_values.*list\(X\)"),
    "set": ({"a", "b"}, ValueError, r"X is a set, which has no positions.*list\(X\)"),
    "frozenset": (frozenset("ab"), ValueError, r"X is a frozenset.*list\(X\)"),
    "sparse": (sp.eye(3).tocsr(), ValueError, "sparse matrix; pass the raw texts"),
    "sparse array": (sp.csr_array((2, 2)), ValueError, "sparse matrix.*raw texts"),
    "0-d": (np.array("a", dtype=object), ValueError, r"array of shape \(\)"),
    "3-d": (np.full((2, 2, 2), "a"), ValueError, r"array of shape \(2, 2, 2\)"),
    "wide": (np.full((4, 3), "a"), ValueError, r"array of shape \(4, 3\)"),
    "structured": (
        np.array([("a", "b")], dtype=[("q", "U1"), ("p", "U1")]),
        TypeError,
        r"structured array with fields \('q', 'p'\)",
    ),
    "two lists": (
        (["a", "b", "c"], ["d", "e", "f"]),
        ValueError,
        r"tuple of two columns.*list\(zip\(a, b\)\)",
    ),
    "two short lists": (
        (["a", "b"], ["d", "e"]),
        ValueError,
        r"tuple of two columns.*list\(zip\(a, b\)\)",
    ),
    "two tuples": (
        (("a", "b", "c"), ("d", "e", "f")),
        ValueError,
        r"tuple of two columns.*list\(zip\(a, b\)\)",
    ),
    "two Series": (
        (pd.Series(["a"]), pd.Series(["b"])),
        ValueError,
        r"tuple of two columns.*list\(zip\(a, b\)\)",
    ),
    "two arrays": (
        (np.array(["a", "b"]), np.array(["a", "b"])),
        ValueError,
        r"tuple of two columns.*list\(zip\(a, b\)\)",
    ),
    "list of two columns": (
        [["a", "b", "c"], ["d", "e", "f"]],
        ValueError,
        r"Row 0 of X is a list of length 3.*list\(zip\(a, b\)\)",
    ),
    "triple": (
        [("a", "b"), ("a", "b"), ("a", "b", "c")],
        ValueError,
        "Row 2 of X is a tuple of length 3; pass texts, or pairs",
    ),
    "single": ([("a", "b"), ("a",)], ValueError, "Row 1 of X is a tuple of length 1"),
    "texts, then a pair": (
        ["a", "b", ("c", "d")],
        ValueError,
        "X mixes pairs and single values: row 0 is 'a', row 2 is a tuple",
    ),
    "pairs, then a text": (
        [("a", "b"), ["a", "b"], "ab"],
        ValueError,
        "X mixes pairs and single values: row 2 is 'ab', row 0 is a tuple",
    ),
    "pairs, then None": (
        [("a", "b"), None],
        ValueError,
        "X mixes pairs and single values: row 1 is None, row 0 is a tuple",
    ),
    "pairs, then 0-d": (
        [("a", "b"), np.array("a")],
        ValueError,
        "X mixes pairs and single values: row 1 is array",
    ),
    "MultiIndex": (
        pd.MultiIndex.from_tuples([("a", "b", "c")]),
        ValueError,
        "Row 0 of X is a tuple of length 3",
    ),
    "LazyFrame": (pl.LazyFrame({"a": ["b"]}), ValueError, r"X\.collect\(\)"),
    "IterableDataset": (
        dataset(text=["a"]).to_iterable_dataset(),
        ValueError,
        "X is an IterableDataset, which streams",
    ),
    "IterableColumn": (
        dataset(text=["a"]).to_iterable_dataset()["text"],
        ValueError,
        "X is an IterableColumn, which streams",
    ),
    "DatasetDict": (
        datasets.DatasetDict({"train": dataset(text=["a"])}),
        ValueError,
        r"X is a DatasetDict of splits \['train'\]",
    ),
}


@pytest.mark.parametrize("X, error, message", REFUSED.values(), ids=REFUSED)
def test_what_holds_no_rows_of_text_is_refused(X, error, message):
    with pytest.raises(error, match=message):
        check_texts(X)


def test_messages_carry_the_name():
    with pytest.raises(ValueError, match=r"^validation_data\[0\] is a single str"):
        check_texts("a", name="validation_data[0]")
    with pytest.raises(TypeError, match=r"^texts must hold texts, but row 0"):
        check_texts([1], name="texts")


# -- empty input and what fit saw ------------------------------------------------------

EMPTY = {
    "list": [],
    "tuple": (),
    "float array": np.array([]),
    "(0, 1)": np.empty((0, 1), dtype=object),
    "Series": pd.Series([], dtype=object),
    "DataFrame": pd.DataFrame({"text": []}),
    "polars Series": pl.Series([], dtype=pl.String),
    "Dataset": dataset(text=["a"]).select([]),
    "Texts": Texts([]),
}


@pytest.mark.parametrize("X", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("n_columns", [None, 1, 2])
def test_empty_input_is_refused_unless_allowed(X, n_columns):
    with pytest.raises(ValueError, match="X is empty; it must hold at least one text"):
        check_texts(X, n_columns=n_columns)
    texts = check_texts(X, n_columns=n_columns, allow_empty=True)
    assert len(texts) == 0
    assert texts.n_columns == (n_columns or 1)
    assert texts.slice(0, 5) == ([], [] if n_columns == 2 else None)
    assert texts.rows([]) == []
    assert len(texts.take([])) == 0


@pytest.mark.parametrize("pairs", [np.empty((0, 2)), Texts([], [])])
def test_empty_pairs_are_pairs(pairs):
    assert check_texts(pairs, allow_empty=True).n_columns == 2


@pytest.mark.parametrize("make", [lambda v: v, lambda v: pd.DataFrame(v)])
def test_single_texts_where_fit_saw_pairs_and_the_reverse(make):
    message = "X holds single texts, but fit saw pairs of texts; pass pairs of texts"
    with pytest.raises(ValueError, match=message):
        check_texts(make(TEXTS), n_columns=2)
    message = "X holds pairs of texts, but fit saw single texts; pass single texts"
    with pytest.raises(ValueError, match=message):
        check_texts(make(PAIRS), n_columns=1)
    assert check_texts(make(TEXTS), n_columns=1).n_columns == 1
    assert check_texts(make(PAIRS), n_columns=2).n_columns == 2


# -- surrogates ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("\ud83d", "\ufffd"),
        ("a\ud83db", "a\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ufeff\u4e2d\udc00\U0001f600", "\ufeff\u4e2d\ufffd\U0001f600"),
        ("\ufffd\ud800", "\ufffd\ufffd"),
    ],
)
def test_lone_surrogates_are_replaced_one_by_one(text, expected):
    with pytest.warns(UserWarning, match="1 of 2 rows of X held lone surrogates"):
        assert check_texts(["a", text]).rows([1]) == [expected]
    with pytest.warns(UserWarning, match="1 of 1 rows of X held lone surrogates"):
        assert check_texts([(text, text)]).rows([0]) == [(expected, expected)]


@pytest.mark.filterwarnings("error")
def test_both_halves_of_a_character_are_joined_without_a_warning():
    assert check_texts(["a \ud83d\ude00"]).rows([0]) == ["a \U0001f600"]


def test_surrogates_warn_once_with_the_number_of_rows():
    X = [("a", "\ud83d"), ("\ud83d", "\ud83d"), ("a", "b"), ("\ud83d", "b")]
    with pytest.warns(UserWarning, match="3 of 4 rows of X") as caught:
        check_texts(X)
    assert len(caught) == 1


# -- reading rows ----------------------------------------------------------------------


@pytest.fixture(
    params=["list", "pairs", "dataset", "dataset pairs", "shuffled"], scope="module"
)
def numbered(request):
    """Texts of 23 rows and the rows they should give."""
    numbers = [str(i) for i in range(23)]
    if request.param == "list":
        return check_texts(numbers), numbers
    if request.param == "dataset":
        return check_texts(dataset(text=numbers)), numbers
    if request.param == "shuffled":
        data = dataset(text=numbers * 2).shuffle(seed=0).select(range(5, 28))
        return check_texts(data), list(data["text"])
    pairs = [(t, f"{t}!") for t in numbers]
    if request.param == "pairs":
        return check_texts(pairs), pairs
    data = dataset(text=numbers, other=[p[1] for p in pairs])
    return check_texts(data), pairs


INDICES = [
    [3],
    [3, 0, 22, 3],
    [-1, -23],
    np.array([5, 4], dtype=np.int32),
    np.array([], dtype=np.intp),
    [],
    range(4, 9),
    range(0),
    range(20, 3, -5),
    np.arange(23) % 3 == 0,
]


@pytest.mark.parametrize("indices", INDICES, ids=str)
def test_rows_and_take_agree_with_python(numbered, indices):
    texts, expected = numbered
    positions = np.arange(23)[np.asarray(indices, None if len(indices) else int)]
    expected = [expected[i] for i in positions]
    assert texts.rows(indices) == expected
    taken = texts.take(indices)
    assert type(taken) is type(texts)
    assert len(taken) == len(expected)
    assert taken.n_columns == texts.n_columns
    assert taken.column_names == texts.column_names
    assert taken.rows(range(len(taken))) == expected


@pytest.mark.parametrize("start, stop", [(0, 23), (4, 9), (20, 99), (9, 4), (23, 30)])
def test_slices_agree_with_python(numbered, start, stop):
    texts, expected = numbered
    first, second = texts.slice(start, stop)
    rows = first if second is None else list(zip(first, second, strict=True))
    assert rows == expected[start:stop]
    assert (second is None) == (texts.n_columns == 1)


@pytest.mark.parametrize(
    "indices, message",
    [
        ([23], "Row 23 is not one of 23 rows"),
        ([0, -24], "Row -24 is not one of 23 rows"),
        (range(20, 25), "Row 23 is not one of 23 rows"),
        ([True, False], "mask of shape"),
        ([0.0], "array of integers.* float64"),
        ([[0, 1]], "one-dimensional"),
    ],
)
def test_rows_that_do_not_exist_raise(numbered, indices, message):
    texts, _ = numbered
    for read in (texts.rows, texts.take):
        with pytest.raises(IndexError, match=message):
            read(indices)


def test_positions_do_not_change_their_input():
    indices = np.array([-1, 0])
    assert as_positions(indices, 5).tolist() == [4, 0]
    assert indices.tolist() == [-1, 0]


# -- cost ------------------------------------------------------------------------------


def test_a_dataset_stays_on_disk(tmp_path):
    dataset(text=[f"row {i}" for i in range(1000)]).save_to_disk(tmp_path / "data")
    stored = datasets.load_from_disk(tmp_path / "data")
    for data in (stored, stored.shuffle(seed=0), stored["text"]):
        texts = check_texts(data)
        assert texts.is_memory_mapped
        assert texts.take([3, 1]).is_memory_mapped
        expected = data["text"] if isinstance(data, datasets.Dataset) else data
        assert texts.rows(range(1000)) == list(expected)
    assert not check_texts(dataset(text=["a"])).is_memory_mapped
    assert not check_texts(["a"]).is_memory_mapped


@pytest.mark.parametrize("tail", ["", " \u00e9\u4e2d"])
def test_a_hundred_thousand_texts_are_checked_quickly(tail):
    X = [f"{i} some words of a short text{tail}" for i in range(100_000)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        check_texts(X)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.2


def test_no_data_library_is_imported_for_the_check(monkeypatch):
    libraries = {"pandas", "polars", "pyarrow", "datasets", "scipy.sparse"}
    for library in libraries:
        monkeypatch.delitem(sys.modules, library)
    assert check_texts(["a"]).rows([0]) == ["a"]
    assert check_texts(np.array([["a", "b"]])).rows([0]) == [("a", "b")]
    with pytest.raises(ValueError, match="X is a dict"):
        check_texts({"a": 1})
    assert not libraries & set(sys.modules)
