"""`memory=`: fits that differ in parameters of prediction only are trained once."""

import hashlib
import importlib
import io
import linecache
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import Memory, Parallel, delayed, parallel_config
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
)
from skorch.callbacks import Callback, EarlyStopping
from tiny import LABELS, TEXTS, make_tiny_backbone

import sklearn_acl
from sklearn_acl import ACLClassifier, code_hash, fit_key, memory_store

N = 24
X, Y, NEW = TEXTS[:N], LABELS[:N], TEXTS[N : N + 12]


class Note(Callback):
    """Appends a line to a file for every training, in whatever process it runs."""

    def __init__(self, path, seconds=0.0):
        self.path = path
        self.seconds = seconds

    def on_train_begin(self, net, **kwargs):
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(self.seconds)

    def count(self):
        """Trainings so far."""
        path = Path(self.path)
        return len(path.read_text().splitlines()) if path.exists() else 0


class Fails(Callback):
    """Ends the training with an error."""

    def on_epoch_end(self, net, **kwargs):
        raise RuntimeError("out of order")


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture
def note(tmp_path):
    return Note(str(tmp_path / "trainings"))


@pytest.fixture
def make(backbone, note, tmp_path):
    """Factory of unfitted classifiers that share a memory and note each training."""

    def factory(**parameters):
        settings = {
            "backbone": backbone,
            "head_init": "random",
            "max_epochs": 1,
            "batch_size": 12,
            "random_state": 0,
            "verbose": 0,
            "callbacks": [note],
            "memory": str(tmp_path / "memory"),
        }
        return ACLClassifier(**(settings | parameters))

    return factory


def entries(folder):
    """Files of the entries under a memory's location."""
    return sorted(Path(folder).glob("joblib/sklearn_acl/*/output.pkl"))


@pytest.fixture
def entry(make, tmp_path):
    """Path of the only entry, just written."""
    make().fit(X, Y)
    (path,) = entries(tmp_path / "memory")
    return path


def assert_same(a, b):
    """Two fitted classifiers are equal to the bit."""
    expected = b.module_.state_dict()
    assert a.module_.state_dict().keys() == expected.keys()
    for name, tensor in a.module_.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    np.testing.assert_array_equal(a.angles_, b.angles_)
    np.testing.assert_array_equal(a.classes_, b.classes_)
    assert a.classes_.dtype == b.classes_.dtype
    np.testing.assert_array_equal(
        a.predict_proba_exits(NEW), b.predict_proba_exits(NEW)
    )
    np.testing.assert_array_equal(a.predict(NEW), b.predict(NEW))


# -- a loaded fit ----------------------------------------------------------------------


@pytest.mark.parametrize("head_init", ["random", "lda"])
def test_a_loaded_fit_equals_the_trained_one_and_one_without_memory(
    make, note, head_init
):
    """To the bit, with everything that the training left in the classifier."""
    settings = {"head_init": head_init, "max_epochs": 2, "optimizer__weight_decay": 0.1}
    trained = make(**settings).fit(X, Y, validation_data=(NEW, LABELS[:12]))
    loaded = make(**settings).fit(X, Y, validation_data=(NEW, LABELS[:12]))
    assert note.count() == 1
    plain = make(**settings, memory=None).fit(X, Y, validation_data=(NEW, LABELS[:12]))
    assert note.count() == 2
    assert_same(loaded, trained)
    assert_same(loaded, plain)
    assert vars(loaded).keys() == vars(trained).keys()
    assert loaded.history == trained.history
    assert loaded.history[:, "batches"] == trained.history[:, "batches"]
    assert loaded.history[:, "valid_loss"] == plain.history[:, "valid_loss"]
    assert loaded.seed_ == plain.seed_ and loaded.max_length_ == plain.max_length_
    assert not any(p.grad is not None for p in loaded.module_.parameters())
    assert not loaded.module_.training


def test_a_loaded_classifier_trains_on(make, note):
    for clf in (make(), make()):
        clf.fit(X, Y).partial_fit(X, Y)
    assert note.count() == 3
    other = make(memory=None).fit(X, Y).partial_fit(X, Y)
    assert_same(clf, other)


@pytest.mark.parametrize(
    "parameters",
    [{"exit_layer": 1}, {"verbose": 1}, {"memory": "elsewhere"}],
    ids=lambda parameters: next(iter(parameters)),
)
def test_parameters_stay_those_of_the_estimator_that_loads(
    make, note, tmp_path, parameters
):
    make().fit(X, Y)
    if "memory" in parameters:
        shutil.copytree(tmp_path / "memory", tmp_path / "elsewhere")
        parameters = {"memory": str(tmp_path / "elsewhere")}
    clf = make(**parameters)
    before = clf.get_params(deep=False)
    assert clf.fit(X, Y).get_params(deep=False) == before
    assert note.count() == 1
    assert clf.get_params(deep=False)["callbacks"][0] is note


def test_the_exit_of_the_loading_estimator_answers(make, note):
    deep = make().fit(X, Y)
    shallow = make(exit_layer=1).fit(X, Y)
    assert note.count() == 1
    expected = deep.predict_proba(NEW, exit_layer=1)
    np.testing.assert_array_equal(shallow.predict_proba(NEW), expected)


def test_nothing_of_an_earlier_fit_remains(make, note):
    make().fit(X, Y)
    clf = make(random_state=1, max_epochs=2).fit(X, [y == "food" for y in Y])
    clf.of_that_fit_ = 1
    clf.set_params(random_state=0, max_epochs=1).fit(X, Y)
    assert note.count() == 2
    assert not hasattr(clf, "of_that_fit_")
    assert_same(clf, make(memory=None).fit(X, Y))
    assert len(clf.history) == 1


def test_names_of_columns_and_the_type_of_labels_are_those_of_this_fit(make, note):
    make().fit(X, Y)
    frame = pd.DataFrame({"line": X, "kind": pd.Series(Y, dtype=object)})
    loaded = make().fit(frame, "kind")
    plain = make(memory=None).fit(frame, "kind")
    assert note.count() == 2
    assert loaded.text_columns_ == plain.text_columns_ == ("line",)
    assert loaded.classes_.dtype == plain.classes_.dtype
    loaded.predict(frame[["line"]])


def test_an_exit_that_is_not_there_is_an_error_with_or_without_an_entry(make, note):
    clf = make(exit_layer=3)
    with pytest.raises(ValueError) as expected:
        clf.fit(X, Y)
    make().fit(X, Y)
    with pytest.raises(ValueError, match="exit_layer=3") as found:
        clf.fit(X, Y)
    assert str(found.value) == str(expected.value)
    assert not clf.__sklearn_is_fitted__()
    assert note.count() == 1


def test_one_line_says_that_a_fit_was_loaded(make, capsys, tmp_path):
    make().fit(X, Y)
    make().fit(X, Y)
    assert capsys.readouterr().out == ""
    make(verbose=1).fit(X, Y)
    (line,) = capsys.readouterr().out.splitlines()
    (path,) = entries(tmp_path / "memory")
    assert re.match(r"Loaded the fit of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)
    assert line.endswith(str(path))


def test_loading_leaves_the_generators_alone(make, note):
    make().fit(X, Y)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    make().fit(X, Y)
    assert note.count() == 1
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])


# -- what makes fits the same ----------------------------------------------------------


def as_dataset(texts):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"text": texts})


CONTAINERS = {
    "tuple": tuple,
    "object array": lambda texts: np.array(texts, dtype=object),
    "column vector": lambda texts: np.array(texts).reshape(-1, 1),
    "Series": lambda texts: pd.Series(texts, index=range(7, 7 + len(texts))),
    "DataFrame": lambda texts: pd.DataFrame({"text": texts}),
    "Dataset": as_dataset,
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_it_does_not_matter_what_holds_the_texts(make, note, kind):
    make().fit(X, Y)
    make().fit(CONTAINERS[kind](X), np.array(Y))
    assert note.count() == 1


def test_a_memory_mapped_dataset_has_the_hash_of_a_list(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    as_dataset(X).save_to_disk(tmp_path / "texts")
    mapped = sklearn_acl.text.check_texts(datasets.load_from_disk(tmp_path / "texts"))
    assert mapped.is_memory_mapped
    texts = sklearn_acl.text.check_texts(X)
    assert fit_key.texts_hash(mapped) == fit_key.texts_hash(texts)
    monkeypatch.setattr(fit_key, "_ROWS_AT_A_TIME", 7)  # several chunks
    assert fit_key.texts_hash(mapped) == fit_key.texts_hash(texts)


@pytest.mark.parametrize(
    "other",
    [
        ["ab", "c", "d"],
        ["a", "bc", "e"],
        ["a", "bc"],
        ["a", "bc", "d", ""],
        ["", "abc", "d"],
        ["bc", "a", "d"],
        ["A", "bc", "d"],
        ["a", "bc", "\u0434"],
        [("a", "b"), ("b", "c"), ("c", "d")],
    ],
    ids=ascii,
)
def test_texts_that_differ_have_another_hash(other):
    texts_hash, check_texts = fit_key.texts_hash, sklearn_acl.text.check_texts
    assert texts_hash(check_texts(other)) != texts_hash(check_texts(["a", "bc", "d"]))
    assert texts_hash(check_texts(other)) == texts_hash(check_texts(list(other)))


SAME = {
    "device": {"device": "cpu"},
    "random_state": {"random_state": np.random.RandomState(5)},
    "classes": {"classes": ["weather", "food", "sport"]},
    "text_columns": {"text_columns": "text"},
    "prediction": {"exit_layer": np.int64(2), "verbose": 1},
    "warm_start": {"warm_start": True},
    "memory": {"memory": Memory(None)},
}


@pytest.fixture
def key_of(make):
    """The key of a fit with some parameters, the seed aside."""

    def key(**parameters):
        clf = make(**parameters)
        clf.seed_ = 0
        data = clf._check_training_data(X, Y, None, clf.classes, warm=False)
        return fit_key.fit_key(clf, data, None)

    return key


@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_words_has_the_same_key(key_of, name):
    assert re.fullmatch("[0-9a-f]{32}", key_of())
    assert key_of(**SAME[name]) == key_of()


def test_callbacks_are_known_by_how_they_were_made(make, key_of):
    used = EarlyStopping("train_loss")
    make(callbacks=[used], memory=None).fit(X, Y)
    assert vars(used).keys() > vars(EarlyStopping()).keys()  # it remembers the fit
    new = EarlyStopping("train_loss")
    assert key_of(callbacks=[used]) == key_of(callbacks=[new])
    assert key_of(callbacks=[("a", used)]) == key_of(callbacks=[("a", new)])
    patient = EarlyStopping("train_loss", patience=2)
    for others in ([patient], [("a", used)], [used, used], None):
        assert key_of(callbacks=others) != key_of(callbacks=[used])


OTHER = {
    "seed": {"random_state": 1},
    "max_epochs": {"max_epochs": 2},
    "batch_size": {"batch_size": 8},
    "lam": {"criterion__lam": 0.25},
    "gate": {"angle_threshold": None},
    "heads": {"head_init": "centroid"},
    "dropout": {"module__dropout": 0.5},
    "optimizer": {"optimizer__weight_decay": 0.25},
    "optimizer class": {"optimizer": torch.optim.SGD},
    "n_layers": {"n_layers": 1},
    "max_length": {"max_length": 5},
    "class_weight": {"class_weight": "balanced"},
    "classes": {"classes": ["art", "food", "sport", "weather"]},
}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.filterwarnings("ignore:.* are longer than max_length")
def test_other_training_parameters_train(make, note, name):
    make().fit(X, Y)
    make(**OTHER[name]).fit(X, Y)
    assert note.count() == 2
    make(**OTHER[name]).fit(X, Y)
    assert note.count() == 2


CHANGED = {
    "text": lambda: ([*X[:-1], "other"], Y),
    "order": lambda: (X[::-1], Y[::-1]),
    "fewer": lambda: (X[:-1], Y[:-1]),
    "label": lambda: (X, [*Y[:-1], Y[0]]),
    "class names": lambda: (X, [{"food": "f"}.get(y, y) for y in Y]),
    "weights": lambda: (X, Y, np.linspace(0.5, 1.5, N)),
    "validation": lambda: (X, Y, None, (NEW, LABELS[:12])),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_data_train(make, note, name):
    make().fit(X, Y)
    make().fit(*CHANGED[name]())
    assert note.count() == 2
    make().fit(*CHANGED[name]())
    assert note.count() == 2


def test_other_validation_data_train(make, note):
    for texts, labels in [
        (NEW, LABELS[:12]),
        (NEW, LABELS[1:13]),
        (NEW[1:], LABELS[:11]),
    ]:
        make().fit(X, Y, validation_data=(texts, labels))
    assert note.count() == 3


ENVIRONMENTS = {
    "version": lambda patch: patch.setattr(sklearn_acl, "__version__", "0.0.1"),
    "format": lambda patch: patch.setattr(fit_key, "ENTRY_FORMAT", 2),
    "library": lambda patch: patch.setattr(fit_key, "library_version", str.upper),
    "python": lambda patch: patch.setattr("platform.python_version", lambda: "3.0"),
    "code": lambda patch: patch.setattr(fit_key, "_SOURCE_HASH", "0"),
    "threads": lambda patch: patch.setattr(torch, "get_num_threads", lambda: 64),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_other_versions_and_numbers_of_threads_train(make, note, name, monkeypatch):
    make().fit(X, Y)
    with monkeypatch.context() as patch:
        ENVIRONMENTS[name](patch)
        make().fit(X, Y)
        assert note.count() == 2
    make().fit(X, Y)
    assert note.count() == 2


class Child(ACLClassifier):
    """Another class with the same parameters, whose training may be another."""


def test_another_class_trains(make, note):
    clf = make().fit(X, Y)
    Child(**clf.get_params(deep=False)).fit(X, Y)
    assert note.count() == 2


def test_a_backbone_is_known_by_the_content_of_its_files(make, note, tmp_path):
    first = make_tiny_backbone(tmp_path / "a", num_hidden_layers=1)
    shutil.copytree(first, tmp_path / "b")
    make(backbone=first).fit(X, Y)
    make(backbone=tmp_path / "b").fit(X, Y)
    assert note.count() == 1
    # other weights at the same place, of the same size
    size = Path(first, "model.safetensors").stat().st_size
    make_tiny_backbone(first, num_hidden_layers=1, seed=1)
    assert Path(first, "model.safetensors").stat().st_size == size
    changed = make(backbone=first).fit(X, Y)
    assert note.count() == 2
    assert_same(changed, make(backbone=first, memory=None).fit(X, Y))
    for name in ("tokenizer.json", "config.json"):
        path = Path(first, name)
        path.write_text(path.read_text("utf-8") + "\n", "utf-8")
        make(backbone=first).fit(X, Y)
    assert note.count() == 5  # one of them without memory
    Path(first, "README.md").write_text("not read")
    make(backbone=first).fit(X, Y)
    assert note.count() == 5


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    os.utime(path, ns=(1, 1))
    status = path.stat()
    later = max(status.st_mtime_ns, status.st_ctime_ns) + fit_key._CLOCK_GRAIN_NS + 1
    monkeypatch.setattr(fit_key.time, "time_ns", lambda: later)
    expected = hashlib.sha256(b"old").hexdigest()
    assert fit_key.file_hash(path) == expected
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert fit_key.file_hash(path) == expected
    path.write_bytes(b"new")
    os.utime(path, ns=(1, 1))  # the time of modification can be set back
    assert fit_key.file_hash(path) == hashlib.sha256(b"new").hexdigest()


def test_a_file_written_just_now_is_not_trusted_to_stay(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    fit_key.file_hash(path)
    assert str(path) not in {state[0] for state in fit_key._file_hashes}


def not_a_lambda(rows, y):
    return rows, None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_split", lambda rows, y: (rows, None)),
        ("callbacks", [Note(io.TextIOWrapper(io.BytesIO()))]),
        ("callbacks", [("local", type("Local", (Callback,), {})())]),
    ],
    ids=["lambda", "file", "local class"],
)
def test_what_cannot_be_hashed_is_an_error_before_anything_is_loaded(make, name, value):
    clf = make(backbone="no/such/backbone", **{name: value})
    with pytest.raises(TypeError, match=f"The parameter '{name}' cannot be hashed"):
        clf.fit(X, Y)


def test_functions_and_classes_of_a_module_are_known_by_name(make, note):
    for _ in range(2):
        make(train_split=not_a_lambda).fit(X, Y)
    assert note.count() == 1


# -- what others keep in a classifier --------------------------------------------------


class Subclass(ACLClassifier):
    """With something private that its constructor sets."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._own = object()


def test_a_loaded_fit_leaves_alone_what_it_does_not_set(make, note, tmp_path):
    """Output containers, metadata requests and a subclass's private attributes."""
    clf = make()
    writer = Subclass(**clf.get_params(deep=False)).set_output(transform="pandas")
    writer.fit(X, Y)
    for container in ("default", "pandas"):
        reader = Subclass(**clf.get_params(deep=False)).set_output(transform=container)
        own = reader._own
        with config_context(enable_metadata_routing=True):
            reader.set_fit_request(sample_weight=True)
            reader.fit(X, Y)
            request = reader.get_metadata_routing().fit.requests
        assert request["sample_weight"] is True
        assert reader._own is own
        is_frame = isinstance(reader.transform(NEW), pd.DataFrame)
        assert is_frame == (container == "pandas")
    assert note.count() == 1


@pytest.mark.parametrize("first", ["fit", "search"])
def test_a_search_and_a_fit_share_entries(make, note, first):
    """scikit-learn keeps what it needs for callbacks in the estimator that it fits."""
    clf = make()
    search = GridSearchCV(clone(clf), {"exit_layer": [1, 2]}, cv=2)
    for step in (first, "search" if first == "fit" else "fit"):
        if step == "fit":
            clf.fit(X, Y)
        else:
            search.fit(X, Y)
    assert note.count() == 3
    assert_same(search.best_estimator_, clf)
    plain = make(memory=None).fit(X, Y)
    assert vars(clf).keys() == vars(plain).keys()


def test_a_diverged_fit_is_told_again(make):
    for _ in range(2):
        with pytest.warns(ConvergenceWarning, match="diverged"):
            make(lr=1e30, max_grad_norm=None, max_epochs=2).fit(X, Y)


OWN_CALLBACK = """
from skorch.callbacks import Callback

class Own(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.history.record("own", {number})
"""


def test_changed_code_of_the_users_own_trains_anew(make, note, tmp_path, monkeypatch):
    """A name stays the same when the code behind it changes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for number, trainings in ((1, 1), (1, 1), (2, 2), (1, 2)):
        (tmp_path / "own_callback.py").write_text(
            OWN_CALLBACK.replace("{number}", str(number))
        )
        sys.modules.pop("own_callback", None)
        importlib.invalidate_caches()
        linecache.checkcache()
        own = importlib.import_module("own_callback").Own()
        clf = make(callbacks=[note, own]).fit(X, Y)
        assert note.count() == trainings
        assert clf.history[-1, "own"] == number
    sys.modules.pop("own_callback")


TYPED = """
import sys
import joblib, torch
from skorch.callbacks import Callback
from sklearn_acl.criterion import ACLLoss
torch.set_num_threads(1)
clf, X, Y = joblib.load({job!r})
def fit(**parameters):
    clf.set_params(**parameters).fit(X, Y)
    print("fitted", *parameters, *(clf.history[-1].get(name) for name in ["own"]))
"""

TYPED_CALLBACK = """
class Own(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.history.record("own", {number})

fit(callbacks=[Own()])
"""

TYPED_CRITERION = """
class Loss(ACLLoss):
    def average(self, values):
        return {number} * super().average(values)

fit(callbacks=[], criterion=Loss)
"""


def test_what_is_typed_at_a_prompt_is_known_by_what_it_does(make, tmp_path):
    """As in a notebook: classes of `__main__`, which has no file."""
    joblib.dump((make(callbacks=[], verbose=1), X, Y), tmp_path / "job")
    script = TYPED.format(job=str(tmp_path / "job"))
    for source in (TYPED_CALLBACK, TYPED_CRITERION):
        script += "".join(source.format(number=number) for number in (1, 2, 1))
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    paths.append(os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line[:1] in "fL"]
    fitted = [line for line in lines if line.startswith("fitted")]
    assert fitted[:3] == [f"fitted callbacks {number}" for number in (1, 2, 1)]
    loaded = [i for i, line in enumerate(lines) if line.startswith("Loaded the fit")]
    assert loaded == [2, 6]  # before the third of each kind
    assert len(entries(tmp_path / "memory")) == 4


# -- what is never kept ----------------------------------------------------------------


def test_a_fit_without_a_seed_is_neither_kept_nor_loaded(make, note, tmp_path):
    for _ in range(2):
        make(random_state=None).fit(X, Y)
    assert note.count() == 2
    assert not entries(tmp_path / "memory")


def test_a_random_state_is_known_by_the_seed_drawn(make, note):
    states = [np.random.RandomState(3), np.random.RandomState(3)]
    for state in states:
        make(random_state=state).fit(X, Y)
    assert note.count() == 1
    make(random_state=states[0]).fit(X, Y)  # it has been advanced, loaded or not
    assert note.count() == 2
    make(random_state=states[1]).fit(X, Y)
    assert note.count() == 2


def test_training_on_is_neither_kept_nor_loaded(make, note, tmp_path):
    clf = make(warm_start=True).fit(X, Y)
    clf.fit(X, Y)
    assert note.count() == 2
    clf.partial_fit(X, Y)
    make().partial_fit(X, Y)
    assert note.count() == 4
    assert len(entries(tmp_path / "memory")) == 1
    plain = make(memory=None).fit(X, Y)
    assert_same(make().fit(X, Y), plain)


def test_a_failed_training_is_not_kept(make, note, tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of order"):
            make(callbacks=[note, Fails()]).fit(X, Y)
    assert note.count() == 2
    assert not entries(tmp_path / "memory")


def test_an_interrupted_training_is_not_kept(make, note, tmp_path, monkeypatch):
    def interrupted_step(net, batch, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ACLClassifier, "train_step", interrupted_step)
        with pytest.warns(UserWarning, match="interrupted"):
            clf = make().fit(X, Y)
    assert clf.__sklearn_is_fitted__()
    assert not entries(tmp_path / "memory")
    clf.fit(X, Y)
    assert note.count() == 2
    assert len(entries(tmp_path / "memory")) == 1


def test_a_training_that_a_callback_stops_is_kept(make, note, tmp_path):
    stop = EarlyStopping("train_loss", patience=1, threshold=1e6, threshold_mode="abs")
    for _ in range(2):
        clf = make(callbacks=[note, clone(stop)], max_epochs=9).fit(X, Y)
        assert len(clf.history) < 9
    assert note.count() == 1


# -- where entries are -----------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [str, Path, lambda path: Memory(str(path), verbose=0)],
    ids=["str", "path", "Memory"],
)
def test_one_place_named_in_three_ways(make, note, tmp_path, wrap):
    make().fit(X, Y)
    clf = make(memory=wrap(tmp_path / "memory")).fit(X, Y)
    assert note.count() == 1
    joblib.dump(clf, tmp_path / "model")
    stored = joblib.load(tmp_path / "model")
    assert_same(stored, clf)
    stored.fit(X, Y)
    clone(stored).fit(X, Y)
    assert note.count() == 1


def test_joblib_clears_and_limits_the_memory(make, note, tmp_path):
    memory = Memory(str(tmp_path / "memory"), verbose=0)
    for seed in (0, 1, 2):
        make(memory=memory, random_state=seed).fit(X, Y)
    assert len(entries(tmp_path / "memory")) == 3
    memory.reduce_size(items_limit=1)
    assert len(entries(tmp_path / "memory")) == 1
    memory.clear(warn=False)
    assert not entries(tmp_path / "memory")
    make(memory=memory).fit(X, Y)
    assert note.count() == 4


def test_memory_without_a_location_keeps_nothing(make, note):
    for _ in range(2):
        make(memory=Memory(None)).fit(X, Y)
    assert note.count() == 2


class Rules(dict):
    """Has no place for files."""


@pytest.mark.parametrize("memory", [3, True, b"here", Rules(), ["here"]], ids=repr)
def test_memory_of_another_type_is_an_error(make, memory):
    with pytest.raises((TypeError, ValueError), match="'memory' parameter"):
        make(memory=memory, backbone="no/such/backbone").fit(X, Y)
    with pytest.raises(TypeError, match="'memory' parameter .* joblib.Memory or None"):
        memory_store.store_folder(memory)


def test_memory_that_is_a_file_is_an_error(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="memory=.*file' cannot be used"):
        make(memory=tmp_path / "file", backbone="no/such/backbone").fit(X, Y)


# -- damage ----------------------------------------------------------------------------


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def write_with_digest(path, content):
    path.write_bytes(hashlib.sha256(content).digest() + content)


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a bit": flip,
    "empty": lambda path: path.write_bytes(b""),
    "digest only": lambda path: path.write_bytes(path.read_bytes()[:32]),
    "foreign": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "no pickle": lambda path: write_with_digest(path, b"\x80nothing"),
    "another object": lambda path: write_with_digest(path, pickle.dumps([1])),
    "no state": lambda path: write_with_digest(
        path, pickle.dumps({"fitted_parts_": 1})
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_trained_again_with_one_warning(make, note, entry, damage):
    DAMAGES[damage](entry)
    with pytest.warns(UserWarning) as caught:
        clf = make().fit(X, Y)
    (warning,) = caught
    assert "is damaged; the fit is repeated" in str(warning.message)
    assert str(entry) in str(warning.message)
    assert warning.filename == __file__
    assert note.count() == 2
    assert_same(clf, make(memory=None).fit(X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().fit(X, Y)
    assert note.count() == 3  # one of them without memory


def test_a_damaged_entry_leaves_no_trace_on_a_fitted_classifier(make, entry):
    clf = make().fit(X, Y)
    entry.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        clf.fit(X, Y)
    assert vars(clf).keys() == vars(make(memory=None).fit(X, Y)).keys()


@pytest.mark.parametrize("call", ["os.fsync", "os.replace", "joblib.dump"])
def test_a_full_disk_does_not_cost_the_fit(make, note, tmp_path, monkeypatch, call):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        with pytest.warns(UserWarning) as caught:
            clf = make().fit(X, Y)
    (warning,) = caught
    assert "could not be written" in str(warning.message)
    assert "No space left on device" in str(warning.message)
    assert warning.filename == __file__
    assert_same(clf, make(memory=None).fit(X, Y))
    folder = tmp_path / "memory" / "joblib" / "sklearn_acl"
    assert {path.name for path in folder.glob("*/*")} == {"lock"}
    make().fit(X, Y)
    assert note.count() == 3
    assert len(entries(tmp_path / "memory")) == 1


def test_a_memory_that_cannot_be_locked_does_not_cost_the_fit(make, note, tmp_path):
    memory = Memory(str(tmp_path / "memory"), verbose=0)
    # as in a read-only folder, also for the superuser
    (tmp_path / "memory" / "joblib" / "sklearn_acl").write_text("")
    with pytest.warns(UserWarning) as caught:
        clf = make(memory=memory).fit(X, Y)
    (warning,) = caught
    assert "cannot be locked; this fit is not kept" in str(warning.message)
    assert warning.filename == __file__
    assert_same(clf, make(memory=None).fit(X, Y))


def test_an_entry_is_read_where_nothing_can_be_written(make, note, entry, monkeypatch):
    monkeypatch.setattr(memory_store.Entry, "lock", None)
    monkeypatch.setattr(memory_store.Entry, "write", None)
    make().fit(X, Y)
    assert note.count() == 1


def test_warnings_of_the_training_point_to_the_same_line(make):
    places = []
    for memory in ({}, {"memory": None}):
        with pytest.warns(UserWarning) as caught:
            make(max_length=3, **memory).fit(X, Y)
        places.append([(str(w.message), w.filename, w.lineno) for w in caught])
    assert places[0] == places[1]
    assert any("longer than max_length" in text for text, *_ in places[0])


# -- processes -------------------------------------------------------------------------


@pytest.fixture
def one_thread_each():
    """Processes that compute as this one does; all tests share them."""
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield


def fit_together(clf, folder, i):
    """Fit at the same time as another process."""
    (folder / f"ready-{i}").touch()
    give_up = time.monotonic() + 60
    while len(list(folder.glob("ready-*"))) < 2 and time.monotonic() < give_up:
        time.sleep(0.01)
    return os.getpid(), clf.fit(X, Y).predict_proba(NEW)


def test_two_processes_that_want_one_fit_train_it_once(
    make, note, tmp_path, one_thread_each
):
    clf = make(callbacks=[Note(note.path, seconds=0.5)])
    jobs = [delayed(fit_together)(clf, tmp_path, i) for i in range(2)]
    (first, a), (second, b) = Parallel(n_jobs=2)(jobs)
    assert first != second
    assert note.count() == 1
    np.testing.assert_array_equal(a, b)
    assert len(entries(tmp_path / "memory")) == 1


def test_threads_that_want_one_fit_train_it_once(make, note):
    clf = make(callbacks=[Note(note.path, seconds=0.2)])
    jobs = [delayed(clone(clf).fit)(X, Y) for _ in range(3)]
    a, *others = Parallel(n_jobs=3, backend="threading")(jobs)
    assert note.count() == 1
    for other in others:
        assert_same(a, other)


KILLED = """
import os, signal, sys
import joblib, torch
from sklearn_acl import fit_key
torch.set_num_threads(1)  # as in this process: the same entry
clf, X, Y, fit_key._SOURCE_HASH = joblib.load(sys.argv[1])
os.replace = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
clf.fit(X, Y)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_killed_process_leaves_neither_an_entry_nor_a_lock(make, note, tmp_path):
    """It dies with the lock in its hands and an entry that lacks its name."""
    # somebody may edit the package while its tests run
    joblib.dump((make(), X, Y, fit_key._SOURCE_HASH), tmp_path / "job")
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    paths.append(os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "job")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "memory" / "joblib" / "sklearn_acl"
    assert sorted(path.suffix for path in folder.glob("*/*")) == ["", ".tmp"]
    make().fit(X, Y)
    assert note.count() == 2
    assert {path.name for path in folder.glob("*/*")} == {"lock", "output.pkl"}


# -- searches --------------------------------------------------------------------------

GRID = {
    "criterion__lam": [0.0, 0.5],
    "angle_threshold": [60.0, None],
    "exit_layer": [1, 2, 3, 4, 5, 6],
}


def scores_of(search):
    """Scores of every candidate and fold, in the order of their parameters."""
    names = sorted(k for k in search.cv_results_ if k.startswith("split"))
    names = [name for name in names if name.endswith("test_score")]
    assert names
    return np.array([search.cv_results_[name] for name in names])


@pytest.mark.parametrize(
    ("n_jobs", "refit", "trained"), [(1, True, 13), (2, False, 12)]
)
def test_a_grid_trains_what_differs_in_training(
    tiny_backbone, make, note, one_thread_each, n_jobs, refit, trained
):
    """2 lambdas x 2 angles x 3 folds, for 6 exits each, and one more for the refit."""
    six = tiny_backbone("bert", num_hidden_layers=6, hidden_size=16)
    search = GridSearchCV(make(backbone=six), GRID, cv=3, refit=refit, n_jobs=n_jobs)
    search.fit(X, Y)
    assert len(search.cv_results_["params"]) == 24
    assert note.count() == trained
    if refit:
        alone = make(backbone=six, memory=None, **search.best_params_).fit(X, Y)
        assert_same(search.best_estimator_, alone)


SMALL = {"criterion__lam": [0.0, 0.5], "exit_layer": [1, 2]}
FOLDS = 2


def halve(clf, **options):
    """12 texts for each of 4 candidates, then 24 for 2, which may share a training."""
    limits = {"min_resources": 12, "max_resources": 24, "factor": 2}
    return HalvingGridSearchCV(clf, SMALL, random_state=0, **limits, **options)


SEARCHES = {
    "grid": partial(GridSearchCV, param_grid=SMALL),
    "random": partial(
        RandomizedSearchCV, param_distributions=SMALL, n_iter=4, random_state=0
    ),
    "halving": halve,
}


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("kind", SEARCHES)
def test_searches_score_as_without_memory_to_the_bit(
    make, note, one_thread_each, kind, n_jobs
):
    options = {"cv": FOLDS, "scoring": "neg_log_loss", "refit": False}
    options |= {"n_jobs": n_jobs, "error_score": "raise"}
    remembered = SEARCHES[kind](make(), **options).fit(X, Y)
    n_trained = note.count()
    plain = SEARCHES[kind](make(memory=None), **options).fit(X, Y)
    np.testing.assert_array_equal(scores_of(remembered), scores_of(plain))
    results = plain.cv_results_
    n_fits = FOLDS * len(results["params"])
    assert note.count() - n_trained == n_fits
    rounds = results.get("iter", np.zeros(len(results["params"])))
    trainings = set(zip(rounds, results["param_criterion__lam"], strict=True))
    assert n_trained == FOLDS * len(trainings) < n_fits


def test_trials_that_set_parameters_train_each_combination_once(make, note):
    """As in an Optuna study: one estimator, parameters drawn anew for every trial."""
    clf = make()
    found = {}
    for lam, layer in [(0.5, 2), (0.0, 1), (0.5, 1), (0.0, 2), (0.5, 2), (0.0, 1)]:
        clf.set_params(criterion__lam=lam, exit_layer=layer).fit(X, Y)
        proba = clf.predict_proba(NEW)
        np.testing.assert_array_equal(proba, found.setdefault((lam, layer), proba))
    assert note.count() == 2
    assert len(found) == 4


def test_an_optuna_study_trains_each_combination_once(make, note):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial):
        clf = make(
            criterion__lam=trial.suggest_categorical("lam", [0.0, 0.5]),
            exit_layer=trial.suggest_int("layer", 1, 2),
        )
        return clf.fit(X, Y).score(NEW, LABELS[:12])

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=10)
    assert note.count() == len({trial.params["lam"] for trial in study.trials})


@pytest.mark.parametrize("net", [ACLClassifier(), ACLClassifier(callbacks=[])])
def test_files_of_the_package_may_change_while_it_runs(net, monkeypatch):
    # the code that runs is the one that was imported, whose hash is in every key
    def changed(code):
        raise AssertionError(f"the source of {code} was read")

    before = fit_key._parameter_hashes(net), fit_key._hash(type(net), "")
    monkeypatch.setattr(code_hash.inspect, "getsource", changed)
    assert (fit_key._parameter_hashes(net), fit_key._hash(type(net), "")) == before
