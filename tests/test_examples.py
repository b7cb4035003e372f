"""The example scripts do what they say, on a tiny encoder."""

import contextlib
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier, datasets
from sklearn_acl.datasets import load_support_messages, read_table

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# the tiny encoder reads 64 tokens, and spells most words of the messages in letters
pytestmark = pytest.mark.filterwarnings("ignore:.* are longer than max_length=64")


@pytest.fixture(scope="module")
def example():
    """Import an example script by name, as if started from its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module


def run_main(module, *arguments):
    """Exit status of a script's main and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = module.main(list(map(str, arguments)))
    return status, printed.getvalue()


def exit_lines(printed):
    """{layer: numbers behind it} from the table of exits."""
    table = printed.split("\nexit   accuracy")[1].split("\n\n")[0]
    rows = [re.findall(r"-?\d+\.?\d*", line) for line in table.splitlines()[1:]]
    return {int(layer): [float(cell) for cell in cells] for layer, *cells in rows}


# --- quickstart -----------------------------------------------------------------


@pytest.fixture(scope="module")
def small_bert(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def quickstart(example, small_bert, tmp_path_factory):
    """(what quickstart prints, the folder it writes), run once."""
    output = tmp_path_factory.mktemp("quickstart") / "made" / "by it"
    status, printed = run_main(
        example("quickstart"),
        *("--backbone", small_bert, "--epochs", 1, "--output", output),
    )
    assert status == 0
    return printed, output


@pytest.fixture
def run_short_quickstart(example, small_bert, tmp_path, monkeypatch):
    """Run quickstart on the first few messages; return (status, what it prints)."""
    module = example("quickstart")

    def few_messages(subset, **kwargs):
        texts, labels = load_support_messages(subset, **kwargs)
        return texts[:30], labels[:30]

    monkeypatch.setattr(module, "load_support_messages", few_messages)
    arguments = ("--backbone", small_bert, "--epochs", 1, "--output", tmp_path)
    return lambda: run_main(module, *arguments)


def test_quickstart_prints_accuracy_and_time_of_every_exit(quickstart):
    printed, output = quickstart
    texts, labels = load_support_messages("test", return_X_y=True)
    clf = joblib.load(output / "model.joblib")
    rows = exit_lines(printed)
    assert list(rows) == [1, 2]
    for layer, (accuracy, ms) in rows.items():
        expected = 100 * clf.score(texts, labels, exit_layer=layer)
        assert accuracy == pytest.approx(expected, abs=0.051)
        assert ms > 0
    assert "450 training and 150 test messages" in printed
    assert "reloaded model gives equal probabilities: True" in printed
    assert re.search(r"^total time \d+\.\d s,", printed, re.M)


def test_quickstart_saves_a_picture(quickstart):
    from matplotlib.image import imread

    printed, output = quickstart
    assert f"saved {output / 'exits.png'}" in printed
    picture = imread(output / "exits.png")
    assert picture.shape[1] > 1000
    assert picture.std() > 0.01  # something is drawn


def test_quickstart_without_matplotlib(run_short_quickstart, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, printed = run_short_quickstart()
    assert status == 0
    assert "no picture: matplotlib is missing" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["model.joblib"]


def test_quickstart_fails_if_the_reloaded_model_differs(
    run_short_quickstart, quickstart, monkeypatch
):
    _, output = quickstart
    other = joblib.load(output / "model.joblib")
    monkeypatch.setattr(joblib, "load", lambda path: other)
    status, printed = run_short_quickstart()
    assert status == 1
    assert "reloaded model gives equal probabilities: False" in printed


# --- train_table ----------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Single texts of three classes as TSV, pairs of two classes as CSV."""
    folder = tmp_path_factory.mktemp("tables")
    for name, part in {"train": slice(0, 42), "test": slice(42, None)}.items():
        texts, labels = TEXTS[part], LABELS[part]
        rows = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]))
        rows = [  # neighbours three apart share their topic
            f"{text},{texts[i + 2 + i % 2]},{'yes' if i % 2 else 'no'}"
            for i, text in enumerate(texts[:-3])
        ]
        (folder / f"{name}.csv").write_text("\n".join(["left,right,same", *rows]))
    return folder


@pytest.fixture
def train_table(example, tables, tiny_bert):
    """Run `train_table.py` on the small tables; return what it prints."""

    def run(*arguments, suffix=".tsv"):
        files = (
            "--train",
            tables / f"train{suffix}",
            "--test",
            tables / f"test{suffix}",
        )
        quick = ("--backbone", tiny_bert, "--epochs", 1)
        status, printed = run_main(example("train_table"), *files, *quick, *arguments)
        assert status == 0
        return printed

    return run


def test_table_of_exits_matches_the_saved_model(train_table, tables, tmp_path):
    printed = train_table("--save", tmp_path / "model")
    texts, labels = read_table(tables / "test.tsv")
    clf = ACLClassifier.load(tmp_path / "model")
    assert "42 training and 18 test rows, 3 classes" in printed
    assert "\nexit 4\n" in printed  # the last one is reported on
    rows = exit_lines(printed)
    assert list(rows) == [1, 2, 3, 4]
    for layer, (accuracy, f1, _) in rows.items():
        predicted = clf.predict(texts, exit_layer=layer)
        assert accuracy == pytest.approx(100 * np.mean(predicted == labels), abs=0.051)
        expected = f1_score(labels, predicted, average="macro")
        assert f1 == pytest.approx(100 * expected, abs=0.051)


def test_pairs_of_two_classes_get_matthews(train_table, tables, tmp_path):
    columns = ("--text", "left", "right", "--label", "same")
    printed = train_table(
        *columns, "--exit-layer", 2, "--save", tmp_path / "model", suffix=".csv"
    )
    pairs, labels = read_table(
        tables / "test.csv", text=("left", "right"), label="same"
    )
    clf = ACLClassifier.load(tmp_path / "model")
    assert "\nexit 2\n" in printed
    for layer, (_, _, matthews, _) in exit_lines(printed).items():
        expected = matthews_corrcoef(labels, clf.predict(pairs, exit_layer=layer))
        assert matthews == pytest.approx(expected, abs=0.00051)


def test_confusion_matrix_counts_every_text(train_table):
    printed = train_table("--max-train", 12)
    assert "12 training and 18 test rows" in printed
    matrix = printed.split("rows: true label")[1].splitlines()[1:]
    counts = [list(map(int, re.findall(r"\d+", line))) for line in matrix]
    assert [sum(row) for row in counts] == [6, 6, 6]


def test_many_classes_get_their_commonest_confusions(example):
    labels = np.array([f"c{i}" for i in range(9)] + ["c1", "c1"])
    predicted = np.array([f"c{i}" for i in range(9)] + ["c2", "c2"])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        example("train_table").print_confusions(labels, predicted)
    lines = printed.getvalue().strip().splitlines()
    assert lines[1:] == ["    2  c1 -> c2"]


def test_grid_lists_every_candidate_and_uses_the_best(train_table, tmp_path):
    printed = train_table("--grid", "--exit-layer", 1, "--save", tmp_path / "model")
    lines = re.findall(r"^ *([\d.]+) % \+- *[\d.]+  (\{.*\})$", printed, re.M)
    means = [float(mean) for mean, _ in lines]
    candidates = [params for _, params in lines]
    assert means == sorted(means, reverse=True)
    assert len(set(candidates)) == 6
    for part in ("'criterion__lam': 0.0", "'exit_layer': 1", "'angle_threshold': None"):
        assert any(part in candidate for candidate in candidates)
    assert f"refitted with {candidates[0]}" in printed
    chosen = ACLClassifier.load(tmp_path / "model").exit_layer or 4
    assert f"\nexit {chosen}\n" in printed


def test_labels_that_only_the_test_file_has(example, tables, tiny_bert, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("text\tlabel\nthe team won the game\tsport\na b\tart\n")
    status, printed = run_main(
        example("train_table"),
        *("--train", tables / "train.tsv", "--test", path),
        *("--backbone", tiny_bert, "--epochs", 1),
    )
    assert status == 0
    assert "labels that only the test file has, never predicted: ['art']" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "{dir}/absent.tsv"], "No such file or directory: '{dir}/absent"),
        (["--text", "body"], "has no column 'body'. Its columns are ['text', 'label']"),
        (["--label", "topic"], "has no column 'topic'. Its columns are"),
        (["--sep", ","], "neither a column 'text' nor the pair 'text_a', 'text_b'"),
        (["--text", "a", "b", "c"], "--text takes one column, or two for pairs"),
        (["--max-train", "0"], "--max-train must be at least 1, got 0"),
    ],
)
def test_unfit_input_ends_with_status_2(example, tables, capsys, arguments, message):
    files = ["--train", str(tables / "train.tsv"), "--test", str(tables / "test.tsv")]
    arguments = [part.replace("{dir}", str(tables)) for part in arguments]
    with pytest.raises(SystemExit) as stopped:
        example("train_table").main(files + arguments)
    assert stopped.value.code == 2
    assert message.replace("{dir}", str(tables)) in capsys.readouterr().err


def test_scripts_start_from_another_folder(tmp_path):
    finished = subprocess.run(
        [
            *(sys.executable, str(EXAMPLES / "train_table.py")),
            *("--train", "absent.tsv", "--test", "absent.tsv"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: ")
    assert "absent.tsv" in finished.stderr
    assert "Traceback" not in finished.stderr


# --- gallery --------------------------------------------------------------------

GALLERY = sorted(path.stem for path in EXAMPLES.glob("plot_*.py"))


@pytest.fixture
def run_gallery(tiny_backbone, monkeypatch):
    """Run an example of the gallery, tiny; return its names and its figures."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def few_messages(subset="train", **kwargs):
        texts, labels = load_support_messages(subset, **kwargs)
        return texts[::6], labels[::6]

    backbone = tiny_backbone("bert", num_hidden_layers=6)
    init = ACLClassifier.__init__
    monkeypatch.setattr(datasets, "load_support_messages", few_messages)
    monkeypatch.setattr(init, "__defaults__", (str(backbone),))
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.close("all")
    yield lambda name: (
        runpy.run_path(str(EXAMPLES / f"{name}.py")),
        [plt.figure(number) for number in plt.get_fignums()],
    )
    plt.close("all")


def test_the_gallery_is_there():
    names = {"plot_layer_scores", "plot_exit_tradeoff", "plot_search_with_memory"}
    assert set(GALLERY) >= names


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few texts certify nothing
@pytest.mark.parametrize("name", sorted(set(GALLERY) - {"plot_search_with_memory"}))
def test_examples_of_the_gallery_draw(run_gallery, name):
    _, figures = run_gallery(name)
    check_figures(name, figures)


def check_figures(name, figures):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(figures) == source.count("plt.show()") > 0
    for figure in figures:
        figure.canvas.draw()
        assert all(ax.has_data() for ax in figure.axes)
        assert all(ax.get_xlabel() for ax in figure.axes)


@pytest.mark.parametrize("name", GALLERY)
def test_examples_of_the_gallery_have_its_form(name):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    match = re.match(r'"""\n(=+)\n(.+)\n(=+)\n\n\w', source)
    over, title, under = match.groups()
    assert over == under and len(over) == len(title)
    cells = source.split("\n# %%\n")[1:]
    assert len(cells) >= 3
    for cell in cells:  # text, then code
        assert re.match(r"(#( .*)?\n)+\n\S", cell)


def test_a_search_with_memory_trains_each_model_once(run_gallery, monkeypatch):
    trained = []
    run_training = ACLClassifier.run_training

    def counting(clf, *args):
        trained.append(clf.criterion__lam)
        return run_training(clf, *args)

    monkeypatch.setattr(ACLClassifier, "run_training", counting)
    names, figures = run_gallery("plot_search_with_memory")
    check_figures("plot_search_with_memory", figures)
    assert sorted(trained) == [0.0, 0.0, 0.5, 0.5]
    assert len(names["results"]["params"]) == 6
    assert not Path(names["folder"].name).exists()
