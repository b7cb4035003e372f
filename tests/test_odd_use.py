"""Odd settings of torch and of the process, odd places to save, late changes."""

import copy
import enum
import os
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import learning_curve
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from skorch.callbacks import Callback, Checkpoint, EarlyStopping
from skorch.dataset import ValidSplit
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

X, Y = TEXTS[:24], LABELS[:24]


@pytest.fixture(scope="module")
def make(tiny_backbone):
    """Factory of quick classifiers."""
    backbone = tiny_backbone("bert", num_hidden_layers=2)
    defaults = {"max_epochs": 1, "batch_size": 8, "random_state": 0, "verbose": 0}

    def factory(**parameters):
        values = {"backbone": backbone, "device": "cpu", **defaults, **parameters}
        return ACLClassifier(**values)

    return factory


@pytest.fixture(scope="module")
def fitted(make):
    """A fitted classifier. Tests must not change it."""
    return make().fit(X, Y)


@pytest.fixture
def own(fitted):
    """A fitted classifier of the test's own."""
    return copy.deepcopy(fitted)


def distance(clf, other):
    return np.abs(clf.predict_proba(X) - other.predict_proba(X)).max()


# --- settings of torch and of the process -------------------------------------------


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64),
    "errstate": lambda: np.errstate(all="raise"),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_fit_is_the_same_under_any_setting_of_torch(make, fitted, setting):
    with setting():
        clf = make().fit(X, Y)
    # with another default dtype the dropout is another one
    assert distance(clf, fitted) < (0.1 if setting is SETTINGS["float64"] else 1e-5)
    assert {p.dtype for p in clf.module_.parameters()} == {torch.float32}
    clf.partial_fit(X, Y)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("how", ["pickle", "directory"])
def test_a_reload_is_the_same_under_any_setting_of_torch(
    fitted, tmp_path, setting, how
):
    fitted.save(tmp_path / "m")
    data = pickle.dumps(fitted)
    with setting():
        pickled = how == "pickle"
        clf = pickle.loads(data) if pickled else ACLClassifier.load(tmp_path / "m")
    assert distance(clf, fitted) == 0
    clf.partial_fit(X, Y)


class Bare:
    """A stream that knows how to write and nothing else."""

    def write(self, text):
        pass

    def flush(self):
        pass


@pytest.mark.parametrize("verbose", [0, 1])
@pytest.mark.parametrize("stderr", [None, Bare()])
def test_a_process_without_a_console_trains(make, monkeypatch, stderr, verbose):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", stderr)
    make(verbose=verbose).fit(X, Y)


def test_threads_that_fit_at_once_do_not_share_random_numbers(make):
    state, filters = torch.get_rng_state(), list(warnings.filters)
    with ThreadPoolExecutor(3) as pool:
        fits = [pool.submit(make().fit, X, Y) for _ in range(3)]
        clfs = [fit.result() for fit in fits]
    assert distance(clfs[0], clfs[1]) == distance(clfs[0], clfs[2]) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert warnings.filters == filters


def test_threads_may_predict_at_once(fitted):
    expected = [fitted.predict_proba(X, exit_layer) for exit_layer in (1, 2)]
    start = threading.Barrier(4)

    def work(i):
        start.wait(10)
        return [fitted.predict_proba(X, 1 + (i + j) % 2) for j in range(4)]

    with ThreadPoolExecutor(4) as pool:
        for i, probas in enumerate(pool.map(work, range(4))):
            for j, proba in enumerate(probas):
                np.testing.assert_array_equal(proba, expected[(i + j) % 2])


# --- parameters that change late ----------------------------------------------------


@pytest.mark.parametrize("batch_size", [-1, 0, 2.5, "8", None, True])
def test_a_batch_size_set_after_fit_is_checked(own, batch_size):
    own.set_params(batch_size=batch_size)
    for read in (own.predict, own.transform, own.predict_proba_exits, own.forward):
        with pytest.raises(ValueError, match=r"batch_size=.* integer of at least 1"):
            read(X)


@pytest.mark.parametrize("part", ["iterator_train", "iterator_valid"])
@pytest.mark.parametrize("batch_size", [-1, 0, 2.5, None])
def test_the_batch_size_of_a_loader_is_checked(make, part, batch_size):
    with pytest.raises(ValueError, match=f"{part}__batch_size=.* at least 1"):
        make(**{f"{part}__batch_size": batch_size}).fit(X, Y)


class Rates(Callback):
    """Learning rate of every step, and the texts of it."""

    def on_train_begin(self, net, **kwargs):
        self.rates, self.sizes = [], []

    def on_grad_computed(self, net, batch=None, **kwargs):
        self.rates.append(net.optimizer_.param_groups[0]["lr"])
        self.sizes.append(len(batch[1]))


@pytest.mark.parametrize("steps", [1, 2])
def test_the_loaders_own_batch_size_is_that_of_the_training(make, steps):
    common = {"gradient_accumulation_steps": steps}
    loose, plain = Rates(), Rates()
    sized = make(iterator_train__batch_size=4, callbacks=[loose], **common).fit(X, Y)
    other = make(batch_size=4, callbacks=[plain], **common).fit(X, Y)
    assert loose.sizes == [4 * steps] * (6 // steps)
    assert loose.rates == plain.rates and min(loose.rates) > 0
    # the heads start from batches of another size, which differ by rounding
    assert distance(sized, other) < 1e-4


@pytest.mark.parametrize("device", ["meta", "mps", "xpu", "hpu", "privateuseone"])
def test_a_device_that_is_not_there_harms_no_weight(make, own, fitted, device):
    if device in ("mps", "xpu") and getattr(torch, device).is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ValueError, match=f"device='{device}'"):
        make(device=device, backbone="/nowhere").fit(X, Y)
    own.set_params(device=device)
    with pytest.raises(ValueError, match=f"device='{device}'"):
        own.predict(X)
    with pytest.warns(UserWarning, match="now has device=None"):
        copied = pickle.loads(pickle.dumps(own))
    assert copied.device is None
    own.set_params(device="cpu")
    assert distance(own, fitted) == distance(copied, fitted) == 0


def test_trimming_for_prediction_takes_nothing_away(own, fitted, tmp_path):
    own.callbacks = callbacks = [EarlyStopping(monitor="train_loss")]
    own.trim_for_prediction()
    assert len(callbacks) == 1
    own.callbacks = None
    own.save(tmp_path / "m")
    for clf in (
        own,
        pickle.loads(pickle.dumps(own)),
        ACLClassifier.load(tmp_path / "m"),
    ):
        assert distance(clf, fitted) == 0
        clf.partial_fit(X, Y)


# --- trainings that go wrong --------------------------------------------------------


@pytest.mark.parametrize(
    "callback",
    [
        EarlyStopping(),
        EarlyStopping,
        ("stop", EarlyStopping),
        EarlyStopping(monitor="valid_acc", lower_is_better=False),
        Checkpoint(),
    ],
)
def test_monitoring_a_validation_that_is_not_there(make, callback):
    clf = make(callbacks=[callback])
    with pytest.raises(ValueError, match=r"monitors 'valid_.*nothing is validated.*"):
        clf.fit(X, Y)
    assert not clf.__sklearn_is_fitted__()


def test_monitoring_a_validation_that_is_there(make):
    clf = make(callbacks=[EarlyStopping()], train_split=ValidSplit(3)).fit(X, Y)
    with pytest.raises(ValueError, match="partial_fit never validates"):
        clf.partial_fit(X, Y)
    clf.predict(X)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_training_that_diverges_warns(make):
    with pytest.warns(ConvergenceWarning, match="no longer finite") as caught:
        make(lr=1e30, max_grad_norm=None).fit(X, Y)
    assert len(caught) == 1 and caught[0].filename == __file__


class Trap(Callback):
    """Raise at a chosen moment of the training."""

    def __init__(self, moment, error):
        def spring(*args, **kwargs):
            raise error("sprung")

        setattr(self, moment, spring)


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("on_train_begin", RuntimeError),
        ("on_batch_begin", SystemExit),
        ("on_grad_computed", StopIteration),
        ("on_train_end", RuntimeError),
    ],
)
def test_after_an_error_in_a_callback_a_fit_is_as_good_as_ever(
    make, fitted, moment, error
):
    clf, state = make(callbacks=[Trap(moment, error)]), torch.get_rng_state()
    with pytest.raises((error, RuntimeError)):
        clf.fit(X, Y)
    assert torch.equal(torch.get_rng_state(), state)
    assert distance(clf.set_params(callbacks=None).fit(X, Y), fitted) == 0


class Copies(Callback):
    """Copies of the classifier from the middle of a training."""

    def initialize(self):
        self.copies = []
        return self

    def on_batch_end(self, net, training=False, **kwargs):
        if training and not self.copies:
            net.set_params(callbacks=None)
            net.save(self.directory)
            loaded = ACLClassifier.load(self.directory)
            pickled = pickle.loads(pickle.dumps(net))
            self.copies = [loaded, pickled, copy.copy(net), copy.deepcopy(net)]
            net.score(X, Y)


def test_copies_from_the_middle_of_a_training_predict_and_train(make, fitted, tmp_path):
    callback = Copies()
    callback.directory = tmp_path / "m"
    clf = make(callbacks=[callback]).fit(X, Y)
    assert distance(clf, fitted) == 0
    loaded, *others = callback.copies
    assert [distance(loaded, other) for other in others] == [0, 0, 0]
    for one in callback.copies:
        one.partial_fit(X, Y)
    assert distance(clf, fitted) == 0


# --- labels and weights -------------------------------------------------------------


class Topic(str, enum.Enum):  # noqa: UP042 (a StrEnum prints its values)
    A, B, C = "sport", "food", "weather"


def test_members_of_a_string_enum_name_the_classes_again(make):
    labels = [Topic(label) for label in Y]
    clf = make().partial_fit(X, labels, classes=list(Topic))
    clf.partial_fit(X, labels, classes=list(Topic))
    assert clf.classes_.tolist() == ["food", "sport", "weather"]


def test_labels_that_differ_in_a_trailing_nul_stay_apart(make, tmp_path):
    labels = [f"a{chr(0) * (label == 'food')}" for label in Y]
    clf = make().fit(X, labels)
    clf.save(tmp_path / "m")
    for one in (clf, ACLClassifier.load(tmp_path / "m")):
        assert one.classes_.tolist() == ["a", "a\0"]


@pytest.mark.parametrize("labels", [np.array(Y), np.arange(24) % 3])
def test_masked_labels_are_missing(make, labels):
    masked = np.ma.array(labels, mask=[False, True] + [False] * 22)
    with pytest.raises(ValueError, match="1 missing labels .* position 1"):
        make(backbone="/nowhere").fit(X, masked)


def test_masked_weights_are_no_weights(make):
    masked = np.ma.array(np.ones(24), mask=[True] + [False] * 23)
    with pytest.raises(ValueError, match="sample_weight has masked entries"):
        make(backbone="/nowhere").fit(X, Y, sample_weight=masked)


# --- odd places ---------------------------------------------------------------------

PLACES = {
    "cwd": lambda monkeypatch, directory: monkeypatch.chdir(directory),
    "mount": lambda monkeypatch, directory: monkeypatch.setattr(
        os.path, "ismount", lambda path: str(path) == str(directory)
    ),
    "locked parent": lambda monkeypatch, directory: monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) != str(directory.parent)
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_directory_that_must_stay_is_filled_in_place(
    own, fitted, tmp_path, monkeypatch, place
):
    directory = tmp_path / "mit Leerzeichen und ß"
    directory.mkdir()
    inode = directory.stat().st_ino
    place(monkeypatch, directory)
    target = "." if os.getcwd() == str(directory) else directory
    own.save(target)
    assert distance(ACLClassifier.load(target), fitted) == 0
    files = sorted(os.listdir(directory))
    own.partial_fit(X, Y).save(target)
    assert distance(ACLClassifier.load(target), own) == 0
    # a move that fails puts everything back
    before = {path: path.read_bytes() for path in directory.rglob("*.*")}
    monkeypatch.setattr(os, "replace", fail_after(5))
    with pytest.raises(OSError, match="disk"):
        fitted.save(target)
    assert sorted(os.listdir(directory)) == files
    assert {path: path.read_bytes() for path in directory.rglob("*.*")} == before
    assert directory.stat().st_ino == inode and os.getcwd()


def fail_after(n_calls):
    calls, replace = [], os.replace

    def replace_or_fail(source, target):
        calls.append(source)
        if len(calls) == n_calls:
            raise OSError("the disk is full")
        replace(source, target)

    return replace_or_fail


@pytest.mark.filterwarnings("error")
def test_a_memory_mapped_classifier_saves_and_trains(fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "m.joblib")
    clf = joblib.load(tmp_path / "m.joblib", mmap_mode="r")
    clf.save(tmp_path / "m")
    assert distance(clf, fitted) == 0
    clf.partial_fit(X, Y)


def test_a_column_name_that_cannot_be_saved_is_named(make, tmp_path):
    clf = make().fit(pd.DataFrame({pd.Timestamp(2026, 1, 1): X}), Y)
    with pytest.raises(TypeError, match=r"save\(\) .*Timestamp\('2026-01-01"):
        clf.save(tmp_path / "m")
    assert os.listdir(tmp_path) == []


# --- meta-estimators that are rarely used -------------------------------------------

COLUMN = np.array(X, dtype=object).reshape(-1, 1)
TWO_TARGETS = np.array([[label == "food", label == "sport"] for label in Y])

META = {
    "one against rest": (OneVsRestClassifier, {}, X, Y),
    "bagging": (BaggingClassifier, {"n_estimators": 2}, COLUMN, Y),
    "several targets": (MultiOutputClassifier, {}, X, TWO_TARGETS),
}


@pytest.mark.parametrize(
    ("kind", "settings", "texts", "labels"), META.values(), ids=META
)
def test_meta_estimators_hand_texts_on(make, kind, settings, texts, labels):
    meta = kind(make(), **settings).fit(texts, labels)
    assert meta.predict(texts).shape == np.shape(labels)


def test_a_learning_curve_of_partial_fits(make):
    sizes, train, test = learning_curve(
        make(),
        X,
        Y,
        cv=2,
        train_sizes=[0.5, 1.0],
        exploit_incremental_learning=True,
        error_score="raise",
    )
    assert np.isfinite(train).all() and np.isfinite(test).all()
