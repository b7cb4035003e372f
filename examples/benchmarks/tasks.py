"""The tasks that the benchmarks read: a folder per task with TSV files."""

import json
import platform
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from train_table import draw_rows  # noqa: E402

DATA_DIR = ROOT.parent / "shared" / "data"
RESULTS = Path(__file__).resolve().parent / "results"

#: Part of each task that scores are read from: test, or dev where there is no test.
TASKS = {
    "rte": "dev",
    "mrpc": "test",
    "cola": "dev",
    "sst2": "test",
    "sst2_sentences": "test",
    "qnli": "dev",
    "qqp_sample": "dev",
    "trec": "test",
    "banking77": "test",
    "ag_news": "test",
}


def load_part(task, part, data_dir=DATA_DIR):
    """Texts (or pairs) and labels of one part of a task."""
    from sklearn_acl.datasets import read_table

    table = read_table(Path(data_dir) / task / f"{part}.tsv.gz")
    return table.texts, np.array(table.labels)


def cut_validation(texts, labels, n=None):
    """(rows to train on, rows to score) of a training part, the same for every seed.

    `n` rows are scored, by default a fifth of all, at most 2,000.
    """
    if n is None:
        n = min(len(texts) // 5, 2000)
    if not 0 < n < len(texts):
        raise ValueError(f"cannot cut {n} rows to score from {len(texts)}")
    order = np.random.default_rng(len(texts)).permutation(len(texts))
    return [([texts[i] for i in rows], labels[rows]) for rows in (order[n:], order[:n])]


def load_task(task, *, n_train, seed, n_test=None, data_dir=DATA_DIR, part="scored"):
    """(train texts, train labels, test texts, test labels) of a task.

    `part` is "scored" for the part in `TASKS`, or "validation" for rows cut from the
    training part: settings are chosen on the latter.
    """
    train, test = load_both(task, n_test=n_test, data_dir=data_dir, part=part)
    return *draw_rows(*train, n_train, seed), *test


def load_both(task, *, n_test=None, data_dir=DATA_DIR, part="scored"):
    """((texts, labels) of all training rows, (texts, labels) to score) of a task."""
    train = load_part(task, "train", data_dir)
    if part == "validation":
        return cut_validation(*train, n_test)
    return train, draw_rows(*load_part(task, TASKS[task], data_dir), n_test, 0)


def folder_bytes(folder):
    """Size of all files in a folder."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def append_line(path, record):
    """Append one finished run to a JSON-lines file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")


def read_lines(path):
    """Finished runs of a JSON-lines file; none if there is no file yet."""
    path = Path(path)
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def verdict(passed):
    """Word that a line on a target starts with."""
    return "PASS" if passed else "FAIL"


def versions():
    """Versions that results depend on."""
    import sklearn
    import torch
    import transformers

    import sklearn_acl

    return {
        "python": platform.python_version(),
        "scikit-learn": sklearn.__version__,
        "sklearn_acl": sklearn_acl.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
