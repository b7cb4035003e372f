"""`examples/glue.py` on tiny encoders, and on small tables in the form of GLUE's files.

The hub is played by `datasets.Dataset` objects, or by a port where nobody listens.
"""

import contextlib
import gzip
import importlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from tiny import TEXTS

from sklearn_acl import ACLClassifier

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"

pytestmark = pytest.mark.filterwarnings("ignore:.* are longer than max_length=64")

PAIRS = ("mrpc", "qqp", "mnli", "qnli", "rte")
NUMBERS = ("cola", "sst2", "mrpc", "qqp")  # labels are 0 and 1 in GLUE's files
LABELS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
}
HUB_COLUMNS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
}
FOLDERS = {task: task.upper() for task in LABELS} | {"cola": "CoLA", "sst2": "SST-2"}
HEADERS = {  # of GLUE's files; x is what nobody reads
    "cola": None,
    "sst2": "sentence\tlabel",
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
    "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
    "label1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
}
CELLS = {
    "cola": "x\t{y}\t\t{a}",
    "sst2": "{a}\t{y}",
    "mrpc": "{y}\t1\t2\t{a}\t{b}",
    "qqp": "1\t2\t3\t{a}\t{b}\t{y}",
    "mnli": "1\tx\tx\tx\t( x\tx )\t( x\tx )\t{a}\t{b}\tneutral\t{y}",
    "qnli": "1\t{a}\t{b}\t{y}",
    "rte": "1\t{a}\t{b}\t{y}",
}


@pytest.fixture(scope="module")
def glue():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        yield importlib.import_module("glue")


@pytest.fixture(scope="module")
def glue_data(glue):
    return importlib.import_module("glue_data")


@pytest.fixture(scope="module")
def small_bert(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


# --- rows, and the forms they come in -----------------------------------------------


def make_rows(task):
    """{part: (texts, label names)}; some texts are hard to read."""
    first = [*TEXTS[:30], '"the team won', "NA", "null ", *TEXTS[33:]]
    second = [*TEXTS[20:], 'a "cold night', *TEXTS[:19]]
    texts = list(zip(first, second, strict=True)) if task in PAIRS else first
    names = [LABELS[task][i // 2 % len(LABELS[task])] for i in range(len(texts))]
    parts = {"train": slice(0, 36), "dev": slice(36, None)}
    if task == "mnli":
        parts = {"train": slice(0, 36), "dev_matched": slice(36, 50)}
        parts["dev_mismatched"] = slice(50, None)
    return {part: (texts[rows], names[rows]) for part, rows in parts.items()}


def glue_lines(task, texts, names):
    """Lines of a file as GLUE ships it."""
    lines = [] if HEADERS[task] is None else [HEADERS[task]]
    for text, name in zip(texts, names, strict=True):
        a, b = text if task in PAIRS else (text, None)
        y = LABELS[task].index(name) if task in NUMBERS else name
        lines.append(CELLS[task].format(a=a, b=b, y=y))
    return lines


def write_lines(path, lines, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())


def write_glue(folder, task):
    for part, (texts, names) in make_rows(task).items():
        path = folder / FOLDERS[task] / f"{part}.tsv"
        write_lines(path, glue_lines(task, texts, names))


def write_tables(folder, task):
    """Tables of this project: quoted where need be, one of them packed."""
    import pandas as pd

    (folder / task.upper()).mkdir(parents=True)
    for part, (texts, names) in make_rows(task).items():
        columns = ["text_a", "text_b"] if task in PAIRS else ["text"]
        frame = pd.DataFrame(texts, columns=columns).assign(label=names)
        suffix = ".tsv.gz" if part == "train" else ".tsv"
        frame.to_csv(folder / task.upper() / f"{part}{suffix}", sep="\t", index=False)


def make_splits(task, label_names=None):
    """What `datasets.load_dataset` gives."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = {column: Value("string") for column in HUB_COLUMNS[task]}
    features |= {"label": ClassLabel(names=list(label_names or LABELS[task]))}
    features = Features(features | {"idx": Value("int32")})
    splits = {}
    for part, (texts, names) in make_rows(task).items():
        columns = list(zip(*texts, strict=True)) if task in PAIRS else [texts]
        table = dict(zip(HUB_COLUMNS[task], map(list, columns), strict=True))
        numbers = [LABELS[task].index(name) for name in names]
        table |= {"label": numbers, "idx": list(range(len(names)))}
        split = Dataset.from_dict(table, features)
        splits[part.replace("dev", "validation")] = split
    return DatasetDict(splits)


@pytest.fixture
def fake_hub(glue_data, monkeypatch):
    """The hub answers, and `datasets.load_dataset` makes its data; list of calls."""
    import datasets

    calls = []

    def load_dataset(*names):
        calls.append((*names, datasets.config.HF_HUB_OFFLINE))
        return make_splits(names[1])

    monkeypatch.setattr(glue_data, "ask_hub", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


@pytest.mark.parametrize("task", LABELS)
@pytest.mark.parametrize("write", [write_glue, write_tables])
def test_files_of_both_forms_are_read_as_they_stand(glue, tmp_path, task, write):
    write(tmp_path, task)
    data = glue.read_files(task, glue.find_files(tmp_path, [task])[task])
    check_data(data, task, list(data.train[0]))


@pytest.mark.parametrize("task", LABELS)
def test_data_of_the_hub_are_the_same_texts_and_names(glue, fake_hub, task):
    data = glue.read_datasets(task, glue.load_from_hub([task])[task])
    assert fake_hub == [("nyu-mll/glue", task, False)]
    columns = [list(data.train[0][column]) for column in HUB_COLUMNS[task]]
    texts = list(zip(*columns, strict=True)) if task in PAIRS else columns[0]
    check_data(data, task, texts)


def check_data(data, task, train_texts):
    expected = make_rows(task)
    assert (train_texts, data.train[1].tolist()) == expected.pop("train")
    assert len(data.dev) == len(expected) == (2 if task == "mnli" else 1)
    for part, (texts, names) in data.dev.items():
        key = f"dev_{part}" if part else "dev"
        assert (texts, names.tolist()) == expected[key]


def test_other_labels_on_the_hub_are_an_error(glue, monkeypatch, capsys, small_bert):
    splits = make_splits("mrpc", ["equivalent", "not_equivalent"])
    monkeypatch.setattr(glue, "load_from_hub", lambda names: {"mrpc": splits})
    message = stop(glue, capsys, "--task", "mrpc", "--backbone", small_bert)
    assert "['equivalent', 'not_equivalent'] where ['not_equ" in message


# --- runs ---------------------------------------------------------------------------


@pytest.fixture
def run(glue, monkeypatch, tmp_path):
    """Run main; returns what it prints, its lines of JSON and what was fitted."""
    fitted = []
    fit = ACLClassifier.fit

    def spying_fit(clf, X, y):
        fitted.append((fit(clf, X, y), X, y))
        return clf

    monkeypatch.setattr(ACLClassifier, "fit", spying_fit)

    def run_main(*arguments):
        fitted.clear()
        output = tmp_path / "made" / "glue.json"
        common = ("--epochs", "1", "--output", output)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = glue.main(list(map(str, (*arguments, *common))))
        assert status == 0
        lines = output.read_text().splitlines()
        return printed.getvalue(), list(map(json.loads, lines)), list(fitted)

    return run_main


def points(task, names, predicted):
    """The metrics of a task, by scikit-learn."""
    accuracy = 100 * accuracy_score(names, predicted)
    if task == "cola":
        return {"matthews": 100 * matthews_corrcoef(names, predicted)}
    if task not in ("mrpc", "qqp"):
        return {"accuracy": accuracy}
    f1 = f1_score(names, predicted, pos_label=LABELS[task][1], zero_division=0)
    return {"accuracy": accuracy, "f1": 100 * f1}


def expected_scores(task, predict):
    """Scores of a row, from a function that predicts texts."""
    scores = {}
    for part, (texts, names) in make_rows(task).items():
        suffix = part.removeprefix("dev")
        if part != "train":
            found = points(task, names, predict(texts))
            scores |= {key + suffix: value for key, value in found.items()}
    return scores


@pytest.mark.parametrize("task", LABELS)
def test_metrics_are_scikit_learns(glue, task):
    rng = np.random.default_rng(0)
    names, predicted = rng.choice(LABELS[task], size=(2, 40))
    expected = points(task, names, predicted)
    assert glue.score(glue.TASKS[task], names, predicted) == pytest.approx(expected)
    all_negative = np.full(40, LABELS[task][0])
    expected = points(task, names, all_negative)
    assert glue.score(glue.TASKS[task], names, all_negative) == pytest.approx(expected)


@pytest.mark.parametrize("task", LABELS)
def test_every_exit_is_scored_on_every_development_set(
    run, tiny_backbone, tmp_path, task
):
    family = "roberta" if task in ("sst2", "mnli", "rte") else "bert"
    backbone = tiny_backbone(family, num_hidden_layers=2)
    write_glue(tmp_path, task)
    printed, (record,), ((clf, texts, labels),) = run(
        *("--task", FOLDERS[task], "--data-dir", tmp_path, "--backbone", backbone),
        *("--contrastive", "acl_embed", "--threshold", 0.55),
    )
    assert (texts, labels.tolist()) == make_rows(task)["train"]
    assert [row["exit"] for row in record["exits"]] == [1, 2, "early"]
    assert (clf.exit_layer, clf.exit_threshold) == (2, 0.55)
    early = record["exits"].pop()
    assert early["scores"] == pytest.approx(expected_scores(task, clf.predict))
    layers = [
        clf.predict(texts, return_exit_layers=True)[1]
        for part, (texts, _) in make_rows(task).items()
        if part != "train"
    ]
    assert early["layers"] == pytest.approx(np.concatenate(layers).mean())
    clf.set_params(exit_threshold=None)
    for row in record["exits"]:
        scores = expected_scores(
            task, lambda texts, k=row["exit"]: clf.predict(texts, exit_layer=k)
        )
        assert row["scores"] == pytest.approx(scores)
        check_printed(printed, row)
    check_printed(printed, early)
    n_dev = {p: len(y) for p, (_, y) in make_rows(task).items() if p != "train"}
    assert (record["task"], record["n_train"], record["n_dev"]) == (task, 36, n_dev)
    assert record["data"] == "files"
    assert record["settings"]["backbone"] == backbone
    assert record["settings"]["criterion__contrastive"] == "acl_embed"
    assert {"datasets", "torch", "sklearn_acl"} <= set(record["versions"])


def check_printed(printed, row):
    """A line of the table holds exit, scores and time, under their names."""
    head, *lines = printed.split("\n exit")[1].splitlines()
    assert head.split() == [*row["scores"], "ms", "per", "text"]
    (cells,) = [line.split() for line in lines if line.split()[0] == str(row["exit"])]
    expected = [*row["scores"].values(), row["ms"]]
    for cell, value in zip(cells[1:], expected, strict=False):
        assert float(cell) == pytest.approx(value, abs=0.0501)


@pytest.mark.parametrize("task", ["cola", "mrpc"])
def test_a_run_from_the_hub_equals_one_from_files(
    run, fake_hub, small_bert, tmp_path, task
):
    from datasets import Dataset

    write_tables(tmp_path, task)
    arguments = ("--task", task, "--backbone", small_bert, "--max-train", 30)
    _, _, ((from_files, *_),) = run(*arguments, "--data-dir", tmp_path)
    _, lines, ((from_hub, texts, _),) = run(*arguments)
    assert isinstance(texts, Dataset) and len(texts) == 30
    assert from_hub.text_columns_ == HUB_COLUMNS[task]
    dev = make_rows(task)["dev"][0]
    assert np.array_equal(
        from_hub.predict_proba_exits(dev), from_files.predict_proba_exits(dev)
    )
    assert [line["data"] for line in lines] == ["files", "hub"]  # appended
    scores = [[row["scores"] for row in line["exits"]] for line in lines]
    assert scores[0] == scores[1]


def test_tasks_are_averaged_as_glue_does(run, small_bert, tmp_path):
    for task in ("mnli", "mrpc", "rte"):
        write_glue(tmp_path, task)
    printed, records, _ = run(
        *("--task", "mnli", "mrpc", "mnli", "--data-dir", tmp_path),
        *("--backbone", small_bert, "--exit-layer", 1, "--contrastive", "ce"),
    )
    assert [record["task"] for record in records] == ["mnli", "mrpc"]
    assert all(len(record["exits"]) == 1 for record in records)
    assert records[0]["settings"]["criterion__contrastive"] is None
    mnli, mrpc = (record["exits"][0]["scores"] for record in records)
    expected = mnli["accuracy_matched"] + mnli["accuracy_mismatched"]
    expected = (expected + mrpc["accuracy"] + mrpc["f1"]) / 4
    lines = printed.split("average of 2 tasks")[1].splitlines()[2:]
    (row,) = [list(map(float, line.split())) for line in lines]
    assert row == [1, pytest.approx(expected, abs=0.0501)]


def test_ordinary_fine_tuning_has_one_exit(run, small_bert, tmp_path):
    write_glue(tmp_path, "rte")
    arguments = ("--task", "rte", "--data-dir", tmp_path, "--backbone", small_bert)
    other = ("--lr", 1e-3, "--batch-size", 8, "--seed", 3, "--head-init", "random")
    _, (record,), ((clf, *_),) = run(*arguments, "--strategy", "final", *other)
    assert [row["exit"] for row in record["exits"]] == [2]
    assert (clf.lr, clf.batch_size, clf.random_state) == (1e-3, 8, 3)
    assert clf.head_init == "random"


def test_all_are_the_seven_tasks(glue):
    assert glue.parse_arguments(["--task", "all"]).task == list(LABELS)


# --- files that do not fit ----------------------------------------------------------


def stop(glue, capsys, *arguments):
    """The one line that a run ends with, before any training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ACLClassifier, "fit", lambda *_: pytest.fail("trained"))
        try:
            status = glue.main(list(map(str, arguments)))
        except SystemExit as stopped:  # argparse prints its usage as well
            status = stopped.code
    assert status == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert not usage or usage[0].startswith("usage: ")
    assert "error: " in line
    return line


@pytest.fixture
def stop_on(glue, capsys, small_bert, tmp_path):
    """Spoil a file of a good folder; the line that the run ends with."""

    def spoil(task, file, change, *arguments):
        write_glue(tmp_path, task)
        path = tmp_path / FOLDERS[task] / file
        change(path)
        line = stop(
            *(glue, capsys, "--task", task, "--data-dir", tmp_path),
            *("--backbone", small_bert, *arguments),
        )
        return line, path

    return spoil


def replaced(number, line):
    """Function that puts another line at a number, counted from 1."""

    def change(path):
        lines = path.read_bytes().split(b"\n")
        lines[number - 1] = line if isinstance(line, bytes) else line.encode()
        path.write_bytes(b"\n".join(lines))

    return change


@pytest.mark.parametrize(
    ("task", "file", "change", "message"),
    [
        ("rte", "train.tsv", replaced(3, "1\ta\tb"), "line 3: 3 cells separated by"),
        ("rte", "dev.tsv", replaced(4, "1\ta\tb\tentailment\t"), "line 4: 5 cells"),
        ("cola", "dev.tsv", replaced(1, "x\t1\ta"), "line 1: 3 cells separated by tab"),
        (
            *("qnli", "train.tsv", replaced(2, "1\ta\tb\tmaybe")),
            "line 2: label 'maybe' is none of entailment, not_entailment",
        ),
        (
            *("mnli", "dev_mismatched.tsv", replaced(2, "\t".join("abcdefghijk-"))),
            "line 2: label '-' is none of entailment, neutral, contradiction",
        ),
        ("sst2", "train.tsv", replaced(2, "a\t2"), "line 2: label '2' is none of neg"),
        ("sst2", "dev.tsv", replaced(5, b"caf\xe9\t1"), "line 5: not valid UTF-8"),
        (
            *("mrpc", "dev.tsv", replaced(1, "label\ta\tb")),
            "line 1: no column '#1 String', there are ['label', 'a', 'b']",
        ),
        ("qqp", "dev.tsv", lambda path: path.write_text(""), "line 1: no column"),
        ("cola", "dev.tsv", lambda path: path.write_text("\n"), " has no rows"),
        (
            *("rte", "dev.tsv", lambda path: path.write_text("text\tlabel\na\tb\n")),
            " has no column 'text_a'. Its columns are ['text', 'label']",
        ),
        (
            *("cola", "dev.tsv", lambda path: path.write_text("text\tlabel\na\tb\n")),
            "row 1 below the header: label 'b' is none of unacceptable, acceptable",
        ),
    ],
)
def test_rows_that_do_not_parse_are_named(stop_on, task, file, change, message):
    line, path = stop_on(task, file, change)
    assert f"{path}" in line and message in line


@pytest.mark.parametrize("file", ["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"])
def test_a_missing_file_is_named_with_the_layout(stop_on, file):
    line, path = stop_on("mnli", file, Path.unlink)
    assert f"{path.parent} has none of {file}, {file}.gz. It holds a folder" in line


def test_a_missing_folder_is_named_with_those_there_are(glue, capsys, tmp_path):
    (tmp_path / "WNLI").mkdir()
    arguments = ("--task", "rte", "--data-dir")
    line = stop(glue, capsys, *arguments, tmp_path)
    assert f"{tmp_path} has no folder for rte: WNLI. It holds a folder" in line
    line = stop(glue, capsys, *arguments, tmp_path / "absent")
    assert "absent is not a directory. It holds a folder" in line


def test_two_folders_of_a_task_are_an_error(stop_on):
    line, _ = stop_on("sst2", "", lambda path: (path.parent / "sst2").mkdir())
    assert "has 2 folders for sst2: SST-2, sst2." in line


def test_broken_lines_of_qqp_are_counted_and_empty_questions_kept(
    glue, glue_data, capsys, tmp_path
):
    lines = glue_lines("qqp", *make_rows("qqp")["train"])
    lines[4] = "1\t2\t3\t\ta b\t1"  # no first question
    lines[9:10] = ["1\t2\t3\tonce", "", "upon\ta time\t0"]  # a question of three lines
    path = tmp_path / "train.tsv"
    write_lines(path, lines)
    texts, labels = glue_data.read_file(path, glue.TASKS["qqp"])
    assert texts[3] == ("", "a b") and labels[3] == "duplicate"
    expected = make_rows("qqp")["train"][0]
    assert texts == [*expected[:3], ("", "a b"), *expected[4:8], *expected[9:]]
    assert capsys.readouterr().err == (
        f"note: {path}: 2 lines without 6 cells are left out, as readers of this task "
        "do; the first is line 10\n"
    )


def test_the_file_that_mrpc_comes_from_holds_the_development_set_too(
    glue, capsys, tmp_path
):
    write_glue(tmp_path, "mrpc")
    folder, rows = tmp_path / "MRPC", make_rows("mrpc")
    (folder / "train.tsv").unlink()
    lines = glue_lines("mrpc", *rows["train"]) + glue_lines("mrpc", *rows["dev"])[1:]
    path = folder / "msr_paraphrase_train.txt"
    write_lines(path, ["\ufeff" + lines[0], *lines[1:]], end="\r\n")
    data = glue.read_files("mrpc", glue.find_files(tmp_path, ["mrpc"])["mrpc"])
    check_data(data, "mrpc", data.train[0])
    n_dev = len(rows["dev"][0])
    assert f"{path}: {n_dev} rows are in the development" in capsys.readouterr().err


# --- settings that do not fit -------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--exit-layer", 3), "--exit-layer must be in 1..2, got 3: the encoder has 2"),
        (("--exit-layer", 1, "--strategy", "final"), "must be in 2..2, got 1"),
        (("--max-train", 1), "the 1 training rows of rte are all labelled '"),
        (("--backbone", "./absent"), "directory './absent' does not exist"),
        (("--task", "stsb"), "unknown task 'stsb'; there are: cola, sst2, mrpc, qqp,"),
        (("--lr", 0), "--lr must be above 0, got 0.0"),
        (("--batch-size", -1), "--batch-size must be above 0, got -1"),
        (("--threshold", 1.5), "--threshold must be between 0 and 1, got 1.5"),
        (("--strategy", "x"), "invalid choice: 'x'"),
        (("--output", "{dir}"), "Is a directory: '{dir}'"),
    ],
)
def test_unfit_settings_end_with_status_2(stop_on, tmp_path, arguments, message):
    arguments = [str(part).replace("{dir}", str(tmp_path)) for part in arguments]
    line, _ = stop_on("rte", "dev.tsv", lambda path: None, *arguments)
    assert message.replace("{dir}", str(tmp_path)) in line


# --- no network ---------------------------------------------------------------------


@pytest.fixture
def no_hub(monkeypatch, point_hub_to, tmp_path):
    """Empty caches; the hub is where `no_hub(port)` says, at first nowhere."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)

    def point_to(port):
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", point_hub_to(port))

    point_to(1)  # nobody listens there
    return point_to


def stop_soon(glue, capsys, *arguments):
    start = time.monotonic()
    line = stop(glue, capsys, *arguments)
    assert time.monotonic() - start < 15  # minutes where nothing is done about it
    return line


def test_no_network_ends_soon_and_names_the_way_out(glue, no_hub, capsys):
    import datasets

    line = stop_soon(glue, capsys, "--task", "mrpc", "rte")
    assert line.startswith("error: mrpc of nyu-mll/glue is not in the cache of `data")
    assert "the Hugging Face hub could not be reached" in line
    assert "pass --data-dir DIR. It holds a folder per task (CoLA, " in line
    assert datasets.config.HF_HUB_OFFLINE is False  # as before


def test_a_hub_that_never_answers_ends_soon(
    glue, glue_data, no_hub, capsys, monkeypatch
):
    monkeypatch.setattr(glue_data, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, says nothing
        no_hub(server.getsockname()[1])
        line = stop_soon(glue, capsys, "--task", "mrpc")
    assert "did not answer within 0.2 s" in line or "could not be reached" in line


def test_offline_mode_is_respected(glue, glue_data, no_hub, capsys, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        glue_data.threading, "Thread", lambda **_: pytest.fail("online")
    )
    line = stop_soon(glue, capsys, "--task", "mrpc")
    assert "offline mode is switched on (HF_HUB_OFFLINE)" in line


def test_without_a_network_the_cache_of_datasets_is_used(
    glue_data, fake_hub, monkeypatch, run, small_bert
):
    monkeypatch.setattr(glue_data, "ask_hub", lambda: "nobody is there")
    _, (record,), _ = run("--task", "rte", "--backbone", small_bert)
    assert fake_hub == [("nyu-mll/glue", "rte", True)]  # True: told to be offline
    assert record["data"] == "hub"


def test_a_download_that_fails_is_one_line(glue, fake_hub, monkeypatch, capsys):
    import datasets

    def fail(*names):
        raise RuntimeError("the line was cut\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    line = stop(glue, capsys, "--task", "cola")
    assert "could not be loaded (RuntimeError: the line was cut). Without" in line


def test_a_backbone_that_cannot_be_had_ends_soon(glue, no_hub, capsys, tmp_path):
    write_glue(tmp_path, "rte")
    arguments = ("--task", "rte", "--data-dir", tmp_path, "--backbone", "some/model")
    line = stop_soon(glue, capsys, *arguments)
    assert "Backbone 'some/model' is not a directory" in line


def test_the_script_ends_before_it_imports_what_takes_long(tmp_path):
    examples = str(ROOT / "examples")
    code = (
        f"import sys; sys.path.insert(0, {examples!r}); import glue; "
        "status = glue.main(['--task', 'rte']); "
        "print('torch' in sys.modules, 'transformers' in sys.modules); sys.exit(status)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "PYTHONPATH": str(ROOT),
    }
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert finished.returncode == 2
    assert finished.stdout == "False False\n"
    assert finished.stderr.startswith("error: rte of nyu-mll/glue ")
    assert len(finished.stderr.splitlines()) == 1


# --- real files ---------------------------------------------------------------------

SIZES = {  # training and development rows
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "qnli": (4370, 1093),
    "rte": (2490, 277),
}


@pytest.mark.parametrize("task", SIZES)
def test_real_tables_are_read(glue, task):
    if not (SHARED / task).is_dir():
        pytest.skip(f"no folder {task} beside the repository")
    data = glue.read_files(task, glue.find_files(SHARED, [task])[task])
    assert (len(data.train[0]), len(data.dev[""][0])) == SIZES[task]
    assert set(data.train[1].tolist()) == set(LABELS[task])


def test_a_run_on_a_real_table(run, small_bert):
    if not (SHARED / "rte").is_dir():
        pytest.skip("no folder rte beside the repository")
    arguments = ("--task", "rte", "--data-dir", SHARED, "--backbone", small_bert)
    printed, (record,), _ = run(*arguments, "--max-train", 40)
    assert "rte: 40 training rows, 277 dev" in printed
    for row in record["exits"]:
        assert 0 < row["scores"]["accuracy"] < 100


def test_packed_tables_of_glues_own_form_are_refused(glue, glue_data, capsys, tmp_path):
    """Only this project's tables are packed; the message says what is missing."""
    write_glue(tmp_path, "rte")
    path = tmp_path / "RTE" / "dev.tsv"
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    with pytest.raises(ValueError, match="has no column 'text_a'"):
        glue_data.read_file(Path(f"{path}.gz"), glue.TASKS["rte"])
