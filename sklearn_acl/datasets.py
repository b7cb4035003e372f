"""The bundled support messages, and a strict reader for tables of labelled texts."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.utils import Bunch

__all__ = ["Table", "load_support_messages", "read_table"]

_DATA = Path(__file__).parent / "data"
_SUBSETS = {"train": ("train",), "test": ("test",), "all": ("train", "test")}
_SEPARATORS = {".tsv": "\t", ".tab": "\t", ".csv": ","}
_SHOWN = 5  # offending lines named in a message
_FIELD_LIMIT_LOCK = threading.Lock()


class Table(NamedTuple):
    """Texts and labels of a table, in the order of its rows.

    Attributes
    ----------
    texts : list of str, or list of (str, str)
        One text per row, or one pair where two text columns were read.
    labels : list of str or None
        One label per row; None where no label column was asked for.
    """

    texts: list[str] | list[tuple[str, str]]
    labels: list[str] | None


def load_support_messages(
    subset: str = "train", *, return_X_y: bool = False, as_frame: bool = False
):
    """Load the bundled support messages (classification, 6 classes).

    Short English messages to a shop with a subscription service, labelled with the
    team that would have to act on them. They were written for this library and are
    in the public domain (CC0 1.0); ``DESCR`` says more. Nothing is downloaded.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 450 training messages, the 150 held-out ones, or both (training messages
        first).
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.
    as_frame : bool, default=False
        ``data`` and ``target`` are pandas Series named ``"text"`` and ``"label"``,
        and the Bunch holds both in ``frame``.

    Returns
    -------
    bunch : :class:`~sklearn.utils.Bunch`
        ``data`` (list of n str), ``target`` (ndarray of n str), ``target_names``
        (the 6 class names, sorted), ``frame`` (DataFrame, or None unless
        ``as_frame=True``), ``DESCR`` (what the messages are, and their licence) and
        ``filenames`` (list of the paths that were read).
    (data, target) : tuple
        If ``return_X_y=True``.

    Raises
    ------
    ValueError
        If `subset` is none of the three.

    Examples
    --------
    >>> from sklearn_acl.datasets import load_support_messages
    >>> texts, labels = load_support_messages(return_X_y=True)
    >>> len(texts), labels.shape
    (450, (450,))
    >>> load_support_messages("test").target_names[:3]
    ['account_access', 'billing', 'cancellation']
    """
    if not isinstance(subset, str) or subset not in _SUBSETS:
        raise ValueError(f"subset must be one of {list(_SUBSETS)}, got {subset!r}.")
    paths = [_DATA / f"support_messages_{part}.tsv" for part in _SUBSETS[subset]]
    tables = [read_table(path) for path in paths]
    data = [text for table in tables for text in table.texts]
    target = np.array([label for table in tables for label in table.labels])
    target_names = sorted(set(target.tolist()))

    frame = None
    if as_frame:
        import pandas as pd

        frame = pd.DataFrame({"text": data, "label": target})
        data, target = frame["text"], frame["label"]
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        target_names=target_names,
        frame=frame,
        DESCR=(_DATA / "support_messages.rst").read_text(encoding="utf-8"),
        filenames=[str(path) for path in paths],
    )


def read_table(
    path: str | os.PathLike,
    *,
    text: str | Sequence[str] | None = None,
    label: str | None = "label",
    sep: str | None = None,
    encoding: str = "utf-8",
) -> Table:
    r"""Read texts and labels from a TSV or CSV file with a header.

    Every cell is taken as it stands: ``NA``, ``null`` or ``nan`` is a text like any
    other, a label ``01`` stays ``"01"``, blanks around a text stay. A table that does
    not fit together raises instead of being repaired.

    Parameters
    ----------
    path : str or path-like
        The file; one ending in ``.gz`` is unpacked. The first line names the columns.
        A cell with separators, quotes or line breaks stands in double quotes, with
        quotes inside doubled (``csv.QUOTE_MINIMAL``). Empty lines are skipped, but in a
        table of one column an empty line between others is an empty text.
    text : str or two str, default=None
        Name of the text column, or names of two for pairs of texts. None takes
        ``"text"`` if there is such a column, else ``("text_a", "text_b")``.
    label : str or None, default="label"
        Name of the label column. None reads no labels.
    sep : str, default=None
        The separator, one character. None goes by the name of the file: a tab for
        ``.tsv`` and ``.tab``, a comma for ``.csv``, each with or without ``.gz``.
    encoding : str, default="utf-8"
        Encoding of the file. A byte order mark is dropped.

    Returns
    -------
    table : Table
        ``texts`` (list of n str, or of n 2-tuples for pairs) and ``labels`` (list of
        n str, or None).

    Raises
    ------
    ValueError
        If the separator cannot be told from the name; if a column is missing (the
        message lists those there are) or occurs twice; if a row has more or fewer
        cells than the header, a quote is not closed, or a label is empty (with the
        number of the line); if the bytes do not fit `encoding`; if there are no rows.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> from sklearn_acl.datasets import load_support_messages, read_table
    >>> path = load_support_messages("test").filenames[0]
    >>> table = read_table(path, text="text", label="label")
    >>> len(table.texts), table.labels[0]
    (150, 'delivery')
    """
    path = Path(path)
    sep = _separator(path) if sep is None else sep
    if not isinstance(sep, str) or len(sep) != 1:
        raise ValueError(f"sep must be a single character, got {sep!r}.")
    content = _content(path, encoding)
    with _cells_of_any_length(content):
        return _table(path, _rows(path, content, sep), text, label, sep)


def _table(path, rows, text, label, sep) -> Table:
    _, header = next(rows, (0, None))
    if header is None:
        raise ValueError(f"{path} is empty: a header with column names is needed.")
    _check_header(path, header, sep)
    text_at, label_at = _columns(path, header, text, label)

    texts, labels, unlabelled = [], [], []
    for line, cells in rows:
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cells, but the header has "
                f"{len(header)} columns. Does sep={sep!r} fit, and are cells that "
                "hold it quoted?"
            )
        row = tuple(cells[i] for i in text_at)
        texts.append(row if len(row) == 2 else row[0])
        if label_at is not None:
            labels.append(cells[label_at])
            if not cells[label_at].strip():
                unlabelled.append(line)
    if not texts:
        raise ValueError(f"{path} has a header but no rows.")
    if unlabelled:
        raise ValueError(
            f"{path}: column {label!r} is empty in {len(unlabelled)} of {len(texts)} "
            f"rows ({_lines(unlabelled)}). Give these rows a label or remove them."
        )
    return Table(texts, labels if label_at is not None else None)


def _separator(path: Path) -> str:
    """Separator that the name of the file stands for."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _SEPARATORS:
        known = ", ".join(_SEPARATORS)
        raise ValueError(
            f"The separator of {path} cannot be told from its name (known: {known}, "
            "each also with .gz): pass sep=."
        )
    return _SEPARATORS[suffix]


def _content(path: Path, encoding: str) -> str:
    """Text of the file, unpacked, decoded as a whole and without a BOM."""
    raw = path.read_bytes()
    if path.suffix.lower() == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a sound gzip file: {error}") from error
    try:
        return raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not valid "
            f"{encoding}. Pass the file's encoding=, for instance 'cp1252'."
        ) from error
    except LookupError as error:
        raise ValueError(f"encoding={encoding!r} is not known to Python.") from error


def _rows(path: Path, content: str, sep: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the row's first line, its cells) for rows that are not empty.

    In a table of one column an empty line that others follow is a row.
    """
    n_columns, empty = None, []
    # strict: without it an unclosed quote would swallow the rest of the file unseen
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=sep, strict=True)
    while True:
        line = reader.line_num + 1  # a quoted cell may span several lines
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {line}: {error}. A cell that begins with a double quote "
                "must end with one, and quotes inside it are doubled."
            ) from error
        if cells:
            n_columns = n_columns or len(cells)
            yield from ((number, [""]) for number in empty)
            empty.clear()
            yield line, cells
        elif n_columns == 1:
            empty.append(line)


@contextlib.contextmanager
def _cells_of_any_length(content: str):
    """Lift the limit of the csv module, which holds for a process, and put it back."""
    with _FIELD_LIMIT_LOCK:
        limit = csv.field_size_limit()
        # a C long, of 32 bits on Windows
        csv.field_size_limit(max(limit, min(len(content) + 1, 2**31 - 1)))
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def _check_header(path: Path, header: list[str], sep: str) -> None:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{path} has repeated column names {repeated} (columns: {header}). Is the "
            f"first line a header, and is sep={sep!r} right?"
        )


def _columns(
    path: Path, header: list[str], text: str | Sequence[str] | None, label: str | None
) -> tuple[list[int], int | None]:
    """Positions of the text column(s) and of the label column."""
    names = _text_names(path, header, text)
    wanted = names if label is None else [*names, label]
    for name in wanted:
        if name not in header:
            parameter = "label" if name == label else "text"
            raise ValueError(
                f"{path} has no column {name!r}. Its columns are {header}: pass "
                f"{parameter}= one of them."
            )
    if len(set(wanted)) < len(wanted):
        raise ValueError(
            f"The columns must differ, got text={text!r} and label={label!r}."
        )
    positions = [header.index(name) for name in names]
    return positions, None if label is None else header.index(label)


def _text_names(
    path: Path, header: list[str], text: str | Sequence[str] | None
) -> list[str]:
    if text is None:
        for names in (["text"], ["text_a", "text_b"]):
            if set(names) <= set(header):
                return names
        raise ValueError(
            f"{path} has neither a column 'text' nor the pair 'text_a', 'text_b'. Its "
            f"columns are {header}: pass text= one of them, or two for pairs."
        )
    if isinstance(text, str):
        return [text]
    if not isinstance(text, (list, tuple)) or [type(t) for t in text] != [str, str]:
        raise ValueError(f"text must be a column name or two of them, got {text!r}.")
    return list(text)


def _lines(numbers: list[int]) -> str:
    """Name the first few lines: ``line 3``; ``lines 3, 7, 9, ...``."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = ", ..." if len(numbers) > _SHOWN else ""
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{more}"
