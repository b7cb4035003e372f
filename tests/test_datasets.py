"""The bundled messages are what they say they are; tables are read strictly."""

import csv
import gzip
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from sklearn_acl.datasets import Table, load_support_messages, read_table

CLASSES = [
    "account_access",
    "billing",
    "cancellation",
    "delivery",
    "returns",
    "technical_problem",
]
REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
REAL_FILES = [
    pytest.param(path, id=f"{path.parent.name}-{path.name.removesuffix('.tsv.gz')}")
    for path in sorted(REAL.glob("*/*.tsv.gz"))
] or [pytest.param(None, marks=pytest.mark.skip(reason="no tables in ../shared/data"))]


# --- the bundled messages -----------------------------------------------------


@pytest.mark.parametrize(("subset", "n"), [("train", 450), ("test", 150), ("all", 600)])
def test_subset_sizes_and_balance(subset, n):
    bunch = load_support_messages(subset)
    assert len(bunch.data) == n
    assert bunch.target.shape == (n,)
    assert bunch.target_names == CLASSES
    assert Counter(bunch.target.tolist()) == dict.fromkeys(CLASSES, n // 6)


def test_default_subset_is_train_and_all_is_train_then_test():
    train, test, both = map(load_support_messages, ["train", "test", "all"])
    assert load_support_messages().data == train.data
    assert both.data == train.data + test.data
    assert both.target.tolist() == train.target.tolist() + test.target.tolist()
    assert both.filenames == train.filenames + test.filenames


def test_messages_are_plain_text_of_3_to_40_words():
    texts = load_support_messages("all").data
    assert all(type(text) is str for text in texts)
    assert all(text == " ".join(text.split()) for text in texts)
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) == 3
    assert max(lengths) <= 40
    assert sum(length <= 5 for length in lengths) > 30
    assert sum(length >= 25 for length in lengths) > 15


def test_no_message_repeats_or_rewords_another():
    def words(text):
        return set(re.findall(r"[a-z0-9']+", text.lower()))

    bags = [words(text) for text in load_support_messages("all").data]
    overlaps = [
        len(a & b) / len(a | b)
        for i, (a, b) in enumerate(product(bags, bags))
        if i % len(bags) > i // len(bags)
    ]
    assert len(overlaps) == 600 * 599 / 2
    assert max(overlaps) < 0.5


def test_classes_are_not_ordered_in_the_files():
    for subset in ("train", "test"):
        target = load_support_messages(subset).target
        changes = np.count_nonzero(target[1:] != target[:-1])
        assert changes > 0.7 * len(target)  # a shuffled list has 5/6 on average


def test_description_states_licence_and_classes():
    descr = load_support_messages().DESCR
    assert "CC0 1.0 Universal" in descr
    assert "written by hand" in descr
    assert all(f"``{name}``" in descr for name in CLASSES)


def test_return_X_y():
    bunch = load_support_messages("test")
    texts, labels = load_support_messages("test", return_X_y=True)
    assert texts == bunch.data
    assert labels.tolist() == bunch.target.tolist()
    assert bunch.frame is None


def test_as_frame():
    pd = pytest.importorskip("pandas")
    plain = load_support_messages("test")
    bunch = load_support_messages("test", as_frame=True)
    expected = pd.DataFrame({"text": plain.data, "label": plain.target})
    pd.testing.assert_frame_equal(bunch.frame, expected)
    texts, labels = load_support_messages("test", return_X_y=True, as_frame=True)
    pd.testing.assert_series_equal(texts, expected["text"])
    pd.testing.assert_series_equal(labels, expected["label"])


@pytest.mark.parametrize("subset", ["dev", None, ["train"]])
def test_unknown_subset(subset):
    message = f"subset must be one of ['train', 'test', 'all'], got {subset!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_support_messages(subset)


# --- tables that are fine -----------------------------------------------------


@pytest.fixture
def write(tmp_path):
    """Write a file into a temporary folder; return its path."""

    def _write(content, name="table.tsv", encoding="utf-8"):
        raw = content if isinstance(content, bytes) else content.encode(encoding)
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return _write


@pytest.mark.parametrize("as_path", [str, Path])
@pytest.mark.parametrize("packed", ["", ".gz", ".GZ"])
@pytest.mark.parametrize(
    ("suffix", "sep"), [(".tsv", "\t"), (".tab", "\t"), (".csv", ","), (".CSV", ",")]
)
def test_separator_and_compression_go_by_the_name(write, suffix, sep, packed, as_path):
    content = f"text{sep}label\na b{sep}x\nc{sep}y\n"
    if packed == ".GZ":
        content = gzip.compress(content.encode())
    table = read_table(as_path(write(content, "my.table" + suffix + packed)))
    assert table == Table(["a b", "c"], ["x", "y"])


def test_sep_overrides_the_name(write):
    content = "text;label\na,b;x\n"
    assert read_table(write(content, "t.csv"), sep=";") == (["a,b"], ["x"])
    assert read_table(write(content, "t.data"), sep=";") == (["a,b"], ["x"])


@pytest.mark.parametrize("cell", ["NA", "nan", "null", "None", "N/A", "", " ", "01"])
def test_cells_stay_as_they_stand(write, cell):
    table = read_table(write(f"text\tlabel\n{cell}\tx\n"))
    assert table.texts == [cell]
    if cell.strip():
        assert read_table(write(f"text\tlabel\na\t{cell}\n")).labels == [cell]


def test_round_trip_of_awkward_texts(write, tmp_path):
    texts = ['say "hi"', "a\tb", "two\nlines", "crlf\r\n", '"', "", "é 🙂 \u2028 \x00"]
    path = tmp_path / "awkward.tsv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["text", "label"])
        writer.writerows((text, "x") for text in texts)
    assert read_table(path).texts == texts


def test_a_quote_inside_a_cell_needs_no_quoting(write):
    assert read_table(write('text\tlabel\n5" pipe\tx\n')).texts == ['5" pipe']


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "UTF8", "utf-16"])
def test_byte_order_mark_is_dropped(write, encoding):
    written_as = "utf-16" if encoding == "utf-16" else "utf-8-sig"
    path = write("text\tlabel\né\tx\n", encoding=written_as)
    assert read_table(path, encoding=encoding) == (["é"], ["x"])


def test_other_encoding(write):
    path = write("text\tlabel\ncafé\tx\n", encoding="cp1252")
    assert read_table(path, encoding="cp1252").texts == ["café"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_blank_lines_and_missing_last_line_end(write, newline):
    path = write(newline.join(["text\tlabel", "a\tx", "", "b\ty"]))
    assert read_table(path) == (["a", "b"], ["x", "y"])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["text", "q", "", "r"], ["q", "", "r"]),
        (["text", "q", "", "r", ""], ["q", "", "r"]),
        (["text", "q", "", "r", "", ""], ["q", "", "r"]),
        (["", "text", "", "", "r", '""'], ["", "", "r", ""]),
    ],
)
def test_an_empty_line_in_one_column_is_an_empty_text(write, lines, texts, newline):
    path = write(newline.join(lines))
    assert read_table(path, label=None) == (texts, None)


@pytest.mark.parametrize("limit", [10, 131_072, 500_000])
@pytest.mark.parametrize("good", [True, False])
def test_cells_of_any_length(write, limit, good):
    before = csv.field_size_limit(limit)
    try:
        path = write(f'text\tlabel\n"{"long " * 40_000}\n"\tx\n' + "b\n" * (not good))
        if good:
            assert read_table(path) == (["long " * 40_000 + "\n"], ["x"])
        else:
            with pytest.raises(ValueError, match="line 4: 1 cells"):
                read_table(path)
        assert csv.field_size_limit() == limit
    finally:
        csv.field_size_limit(before)


def test_long_cells_are_read_in_several_threads(write):
    paths = [write(f"text\tlabel\n{'ab' * 10**5}\tx\n", f"{i}.tsv") for i in range(8)]
    before = csv.field_size_limit()
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(read_table, paths * 4))
    assert {len(table.texts[0]) for table in tables} == {200_000}
    assert csv.field_size_limit() == before


HEADER = "id\ttext\ttext_a\ttext_b\tlabel\tintent\n1\tt\ta\tb\tl\ti\n"


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (None, ["t"]),
        ("text_b", ["b"]),
        (("text_a", "text_b"), [("a", "b")]),
        (["text_b", "id"], [("b", "1")]),
    ],
)
@pytest.mark.parametrize(
    ("label", "labels"), [("label", ["l"]), ("intent", ["i"]), (None, None)]
)
def test_choice_of_columns(write, text, texts, label, labels):
    assert read_table(write(HEADER), text=text, label=label) == (texts, labels)


def test_pairs_are_found_without_being_named(write):
    table = read_table(write("text_b\tlabel\ttext_a\nb\tx\ta\n"))
    assert table == ([("a", "b")], ["x"])
    assert type(table.texts[0]) is tuple


@pytest.mark.parametrize("path", REAL_FILES)
def test_real_tables_equal_pandas(path):
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    table = read_table(path)
    assert table.labels == frame["label"].tolist()
    if "text" in frame:
        assert table.texts == frame["text"].tolist()
    else:
        pairs = zip(frame["text_a"], frame["text_b"], strict=True)
        assert table.texts == list(pairs)


# --- tables that are not ------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "{path} is empty: a header with column names is needed."),
        ("\n\n", "{path} is empty: a header with column names is needed."),
        ("text\tlabel\n", "{path} has a header but no rows."),
        (
            "body\tlabel\na\tx\n",
            "{path} has neither a column 'text' nor the pair 'text_a', 'text_b'. Its "
            "columns are ['body', 'label']: pass text= one of them, or two for pairs.",
        ),
        (
            "text_a\tlabel\na\tx\n",
            "{path} has neither a column 'text' nor the pair 'text_a', 'text_b'. Its "
            "columns are ['text_a', 'label']: pass text= one of them, or two for "
            "pairs.",
        ),
        (
            "text\tLabel\na\tx\n",
            "{path} has no column 'label'. Its columns are ['text', 'Label']: pass "
            "label= one of them.",
        ),
        (
            "text\tlabel\ttext\na\tx\tb\n",
            "{path} has repeated column names ['text'] (columns: ['text', 'label', "
            "'text']). Is the first line a header, and is sep='\\t' right?",
        ),
        (
            "text\tlabel\na\tx\nb\n",
            "{path}, line 3: 1 cells, but the header has 2 columns. Does sep='\\t' "
            "fit, and are cells that hold it quoted?",
        ),
        (
            'text\tlabel\n"two\nlines"\tx\nb\ty\tz\n',
            "{path}, line 4: 3 cells, but the header has 2 columns. Does sep='\\t' "
            "fit, and are cells that hold it quoted?",
        ),
        (
            "text\tlabel\na\t\nb\ty\nc\t \n",
            "{path}: column 'label' is empty in 2 of 3 rows (lines 2, 4). Give these "
            "rows a label or remove them.",
        ),
        (
            "text\tlabel\nb\ty\n" + "a\t\n" * 7,
            "{path}: column 'label' is empty in 7 of 8 rows (lines 3, 4, 5, 6, 7, "
            "...). Give these rows a label or remove them.",
        ),
        (
            'text\tlabel\na\tx\n"b\ty\nc\tz\n',
            "{path}, line 3: unexpected end of data. A cell that begins with a double "
            "quote must end with one, and quotes inside it are doubled.",
        ),
        (
            'text\tlabel\na\tx\nb\ty\n"c" c\tz\n',
            "{path}, line 4: '\t' expected after '\"'. A cell that begins with a "
            "double quote must end with one, and quotes inside it are doubled.",
        ),
        (
            b"text\tlabel\na\tx\ncaf\xe9\ty\n",
            "{path}, line 3: byte 0xe9 is not valid utf-8. Pass the file's encoding=, "
            "for instance 'cp1252'.",
        ),
    ],
)
def test_unfit_table_says_what_is_wrong_and_where(write, content, message):
    path = write(content)
    with pytest.raises(ValueError) as error:
        read_table(path)
    assert str(error.value) == message.replace("{path}", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"text": "body"},
            "{path} has no column 'body'. Its columns are ['text', 'label', 'n']: pass "
            "text= one of them.",
        ),
        (
            {"text": ("text", "body")},
            "{path} has no column 'body'. Its columns are ['text', 'label', 'n']: pass "
            "text= one of them.",
        ),
        (
            {"text": "label"},
            "The columns must differ, got text='label' and label='label'.",
        ),
        (
            {"text": ["n", "n"]},
            "The columns must differ, got text=['n', 'n'] and label='label'.",
        ),
        ({"text": []}, "text must be a column name or two of them, got []."),
        ({"text": 0}, "text must be a column name or two of them, got 0."),
        (
            {"text": ("text", "label", "n")},
            "text must be a column name or two of them, got ('text', 'label', 'n').",
        ),
        ({"sep": ""}, "sep must be a single character, got ''."),
        ({"sep": "::"}, "sep must be a single character, got '::'."),
        ({"encoding": "utf-9"}, "encoding='utf-9' is not known to Python."),
    ],
)
def test_unfit_arguments(write, arguments, message):
    path = write("text\tlabel\tn\na\tx\t1\n")
    with pytest.raises(ValueError) as error:
        read_table(path, **arguments)
    assert str(error.value) == message.replace("{path}", str(path))


@pytest.mark.parametrize("name", ["table.txt", "table", "table.gz", "table.tsv.zip"])
def test_separator_that_cannot_be_told(write, name):
    path = write("text\tlabel\na\tx\n", name)
    with pytest.raises(ValueError) as error:
        read_table(path)
    assert str(error.value) == (
        f"The separator of {path} cannot be told from its name (known: .tsv, .tab, "
        ".csv, each also with .gz): pass sep=."
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"text\tlabel\na\tx\n",  # not packed at all
        lambda raw: raw[:-10],  # cut off
        lambda raw: raw[:12] + b"\xff" + raw[13:],  # a byte changed
    ],
)
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "table.tsv.gz"
    path.write_bytes(damage(gzip.compress(b"text\tlabel\n" + b"a\tx\n" * 50)))
    message = f"{path} is not a sound gzip file: "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}."):
        read_table(path)


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.tsv"):
        read_table(tmp_path / "absent.tsv")
