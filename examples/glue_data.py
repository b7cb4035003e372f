"""GLUE's classification tasks: what is particular to each, and how they are read.

From the Hugging Face hub, or from files in either of two forms: GLUE's own, or tables
with the columns label, and text or text_a and text_b.
"""

import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Imports that take seconds stand in functions: what can't be had without a network is
# said before.

HUB_NAME = "nyu-mll/glue"
PROBE_SECONDS = 2.0
LAYOUT = (
    "It holds a folder per task (CoLA, SST-2, MRPC, QQP, MNLI, QNLI, RTE) with GLUE's "
    "own train.tsv and dev.tsv (MNLI: dev_matched.tsv, dev_mismatched.tsv), or tables "
    "of these names (also .gz) with columns label, and text or text_a and text_b."
)


@dataclass(frozen=True)
class Task:
    """What is particular to a task."""

    columns: tuple  # of the texts, on the hub
    labels: tuple  # names of the hub's labels 0, 1, ...
    metrics: tuple = ("accuracy",)
    positive: str | None = None  # the class that F1 is about
    file_columns: tuple | None = None  # of the texts in GLUE's files; None: as above
    file_label: str = "label"
    file_header: tuple | None = None  # of files that have none
    numbers: bool = False  # labels are 0 and 1 in GLUE's files
    broken_lines: bool = False  # GLUE's own files hold some, and readers drop them
    train_files: tuple = ("train.tsv", "train.tsv.gz")
    dev: tuple = ("",)  # development sets: validation_<name> on the hub, dev_<name>


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(
        columns=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews",),
        file_header=("source", "label", "star", "sentence"),
        numbers=True,
    ),
    "sst2": Task(columns=("sentence",), labels=("negative", "positive"), numbers=True),
    "mrpc": Task(
        columns=PAIR,
        labels=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        positive="equivalent",
        file_columns=("#1 String", "#2 String"),
        file_label="Quality",
        numbers=True,
        train_files=("train.tsv", "train.tsv.gz", "msr_paraphrase_train.txt"),
    ),
    "qqp": Task(
        columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        positive="duplicate",
        file_label="is_duplicate",
        numbers=True,
        broken_lines=True,
    ),
    "mnli": Task(
        columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        file_columns=PAIR,
        file_label="gold_label",
        dev=("matched", "mismatched"),
    ),
    "qnli": Task(columns=("question", "sentence"), labels=ENTAILMENT),
    "rte": Task(columns=PAIR, labels=ENTAILMENT),
}


class Data(NamedTuple):
    """Texts and label names: of the training set, and by name of the others."""

    train: tuple
    dev: dict


def joined(*words):
    """Words that are not empty, as a name: ("dev", "matched") is dev_matched."""
    return "_".join(filter(None, words))


def task_name(text):
    """Name of a task or of its folder in one form: SST-2 is sst2."""
    return text.lower().replace("-", "").replace("_", "")


# --- data from the hub --------------------------------------------------------------


def ask_hub():
    """Why the hub can't be asked, within seconds; None if it seems that it can.

    Left to itself `load_dataset` tries for minutes. The question is put in a thread of
    its own since a name look-up takes no time-out.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode

    if is_offline_mode():
        return "offline mode is switched on (HF_HUB_OFFLINE)"
    url = hf_hub_url(HUB_NAME, "README.md", repo_type="dataset")
    answer = [f"the Hugging Face hub did not answer within {PROBE_SECONDS:g} s"]

    def ask():
        try:
            get_hf_file_metadata(url, timeout=PROBE_SECONDS)
            answer[0] = None
        except Exception as error:
            reason = type(error).__name__
            answer[0] = f"the Hugging Face hub could not be reached ({reason})"

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answer[0]


def load_from_hub(names):
    """{task: its DatasetDict}, from the hub or from the cache of `datasets`."""
    import datasets

    problem = ask_hub()
    was_offline = datasets.config.HF_HUB_OFFLINE
    # offline, load_dataset looks in its cache only, and gives up at once
    datasets.config.HF_HUB_OFFLINE = was_offline or problem is not None
    try:
        return {name: load_dataset(name, problem) for name in names}
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def load_dataset(name, problem):
    import datasets

    try:
        return datasets.load_dataset(HUB_NAME, name)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        reason = f"could not be loaded ({type(error).__name__}: {first_line})"
        if problem:
            reason = f"is not in the cache of `datasets`, and {problem}"
        raise OSError(
            f"{name} of {HUB_NAME} {reason}. Without a network, pass --data-dir DIR. "
            f"{LAYOUT}"
        ) from error


def read_datasets(name, splits):
    """`Data` of a task's DatasetDict; the training texts stay a Dataset."""
    task = TASKS[name]
    dev = {}
    for part in task.dev:
        split = splits[joined("validation", part)]
        texts = [list(split[column]) for column in task.columns]
        texts = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
        dev[part] = texts, names_of_labels(split, task)
    train = splits["train"]
    return Data((train, names_of_labels(train, task)), dev)


def names_of_labels(split, task):
    feature = split.features["label"]
    if tuple(feature.names) != task.labels:
        raise ValueError(
            f"{HUB_NAME} has labels {feature.names} where {list(task.labels)} are "
            "expected: --data-dir reads files of another origin"
        )
    return np.array(feature.int2str(list(split["label"])))


# --- data from files ----------------------------------------------------------------


def find_files(data_dir, names):
    """{task: {part: path}}; what is missing raises before anything is read."""
    if not data_dir.is_dir():
        raise OSError(f"--data-dir {data_dir} is not a directory. {LAYOUT}")
    folders = sorted(path for path in data_dir.iterdir() if path.is_dir())
    return {name: find_parts(data_dir, folders, name) for name in names}


def find_parts(data_dir, folders, name):
    task = TASKS[name]
    found = [folder for folder in folders if task_name(folder.name) == name]
    if len(found) != 1:
        wrong = f"{len(found)} folders" if found else "no folder"
        there = ", ".join(folder.name for folder in found or folders) or "none"
        raise OSError(
            f"--data-dir {data_dir} has {wrong} for {name}: {there}. {LAYOUT}"
        )
    parts = {"train": find_file(found[0], task.train_files)}
    for part in task.dev:
        stem = joined("dev", part)
        parts[part] = find_file(found[0], (f"{stem}.tsv", f"{stem}.tsv.gz"))
    return parts


def find_file(folder, names):
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise OSError(f"{folder} has none of {', '.join(names)}. {LAYOUT}")


def read_files(name, parts):
    """`Data` of a task's files."""
    task = TASKS[name]
    dev = {part: read_file(parts[part], task) for part in task.dev}
    train = read_file(parts["train"], task)
    if parts["train"].name.startswith("msr_"):
        train = leave_out(train, *dev.values(), parts["train"])
    return Data(train, dev)


def read_file(path, task):
    """Texts and label names of a table in either form."""
    if path.suffix != ".gz" and not is_plain(path):
        return read_glue_file(path, task)
    from sklearn_acl.datasets import read_table

    text = "text" if len(task.columns) == 1 else ("text_a", "text_b")
    table = read_table(path, text=text)
    names = label_names(task)
    for row, label in enumerate(table.labels, 1):
        if label not in names:
            raise ValueError(
                f"{path}, row {row} below the header: {unknown(label, names)}"
            )
    return table.texts, np.array([names[label] for label in table.labels])


def is_plain(path):
    """Whether a file has the columns of this project's tables; GLUE's have others."""
    _, header = next(split_lines(path), (0, []))
    return "label" in header and not {"text", "text_a", "text_b"}.isdisjoint(header)


def read_glue_file(path, task):
    """Texts and label names of a file as GLUE ships it: a quote is a character."""
    lines = split_lines(path)
    header = task.file_header or next(lines, (0, []))[1]
    wanted = (*(task.file_columns or task.columns), task.file_label)
    for column in wanted:
        if column not in header:
            raise ValueError(
                f"{path}, line 1: no column {column!r}, there are {list(header)}. "
                f"GLUE's own file has {', '.join(wanted)}; a table of yours needs "
                "label, and text or text_a and text_b"
            )
    positions = [header.index(column) for column in wanted]
    names = label_names(task)
    texts, labels, broken = [], [], []
    for number, cells in lines:
        if len(cells) != len(header):
            broken.append(number)
            if task.broken_lines:
                continue
            raise ValueError(
                f"{path}, line {number}: {len(cells)} cells separated by tabs, "
                f"expected {len(header)}"
            )
        *row, label = (cells[i] for i in positions)
        if label not in names:
            raise ValueError(f"{path}, line {number}: {unknown(label, names)}")
        texts.append(row[0] if len(row) == 1 else tuple(row))
        labels.append(names[label])
    if not texts:
        raise ValueError(f"{path} has no rows")
    if broken:
        note(
            f"{path}: {len(broken)} lines without {len(header)} cells are left out, as "
            f"readers of this task do; the first is line {broken[0]}"
        )
    return texts, np.array(labels)


def split_lines(path):
    """Yield (number, cells) of every line of a TSV file that is not empty."""
    with path.open("rb") as file:  # decoded line by line: other breaks are characters
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                message = f"{path}, line {number}: not valid UTF-8"
                raise ValueError(message) from None
            text = text.removesuffix("\n").removesuffix("\r")
            if text:
                yield number, text.split("\t")


def label_names(task):
    """{label in a file: its name}."""
    names = {name: name for name in task.labels}
    if task.numbers:
        names |= {str(number): name for number, name in enumerate(task.labels)}
    return names


def unknown(label, names):
    return f"label {label!r} is none of {', '.join(names)}"


def leave_out(train, dev, path):
    """Training rows that are not in the development set as well.

    The file of MRPC that all rows come from holds both.
    """

    def keys(texts):
        return [tuple(text.strip() for text in pair) for pair in texts]

    texts, labels = train
    held_out = set(keys(dev[0]))
    rows = [i for i, key in enumerate(keys(texts)) if key not in held_out]
    note(
        f"{path}: {len(texts) - len(rows)} rows are in the development set and left "
        "out of training"
    )
    return [texts[i] for i in rows], labels[rows]


def note(message):
    print(f"note: {message}", file=sys.stderr)
