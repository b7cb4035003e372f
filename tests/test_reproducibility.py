"""One seed, one model; and a fit leaves no trace but the fitted classifier."""

import contextlib
import copy
import functools
import gc
import os
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch.callbacks import Callback
from skorch.dataset import ValidSplit
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

X, Y = TEXTS[:12], LABELS[:12]
SETTINGS = {
    "head_init": "random",
    "lr": 1e-3,
    "max_epochs": 2,
    "batch_size": 4,
    "verbose": 0,
    "random_state": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def make(tiny_backbone):
    backbone = tiny_backbone("bert", num_hidden_layers=2)
    return lambda **parameters: ACLClassifier(backbone, **(SETTINGS | parameters))


@pytest.fixture(scope="module")
def fitted(make):
    return make().fit(X, Y)


def same(a, b):
    """Whether two fitted classifiers are equal to the bit, history included."""
    expected = b.module_.state_dict()
    states = a.module_.state_dict().items()
    return (
        all(torch.equal(tensor, expected[name]) for name, tensor in states)
        and np.array_equal(a.angles_, b.angles_, equal_nan=True)
        and a.history[:, "train_loss"] == b.history[:, "train_loss"]
    )


@contextlib.contextmanager
def generators_put_back():
    """Let a test seed the global generators."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


# -- an integer ------------------------------------------------------------------------

KINDS = {
    "plain": {},
    "lda": {"head_init": "lda"},
    "centroid": {"head_init": "centroid"},
    "probe": {"head_init": "linear_probe"},
    "absent class": {"head_init": "lda", "classes": ["art", *sorted(set(Y))]},
    "encoder gate": {"gate_scope": "encoder"},
    "accumulated": {"gradient_accumulation_steps": 2},
    "final": {"strategy": "final"},
    "split": {"train_split": ValidSplit(3, stratified=True)},
    "bf16": {"mixed_precision": "bf16"},
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_seed_gives_equal_bits_whatever_the_global_state(make, settings):
    first = make(**settings).fit(X, Y)
    with generators_put_back():
        torch.manual_seed(123)
        np.random.seed(123)
        random.seed(123)
        second = make(**settings).fit(X, Y)
    assert same(first, second)


def test_the_seed_may_be_an_integer_of_numpy(make, fitted):
    assert same(make(random_state=np.int64(0)).fit(X, Y), fitted)


def test_the_largest_seed_works(make):
    seed = 2**32 - 1
    split = {"train_split": ValidSplit(0.3), "head_init": "lda"}
    a, b = (make(random_state=seed, **split).fit(X, Y) for _ in range(2))
    assert same(a, b)


def test_seeds_differ(make, fitted):
    other = make(random_state=1).fit(X, Y)
    assert not same(other, fitted)


@pytest.mark.parametrize("head_init", ["centroid", "lda", "linear_probe"])
def test_seeds_differ_in_order_and_dropout_if_heads_do_not(make, head_init):
    a, b = (make(random_state=seed, head_init=head_init).fit(X, Y) for seed in (0, 1))
    assert not same(a, b)


def test_a_clone_fits_the_same(fitted):
    assert same(clone(fitted).fit(X, Y), fitted)


def test_verbosity_does_not_matter(make, fitted, capsys):
    assert same(make(verbose=1).fit(X, Y), fitted)
    assert "train_loss" in capsys.readouterr().out


def test_monitoring_does_not_change_the_training(make, fitted):
    monitored = make().fit(X, Y, validation_data=(TEXTS[12:20], LABELS[12:20]))
    assert same(monitored, fitted)
    assert np.isfinite(monitored.history[:, "valid_loss"]).all()


# -- none and RandomState --------------------------------------------------------------


def test_without_a_seed_fits_differ_and_leave_the_generators_alone(make):
    with generators_put_back():
        np.random.seed(0)
        expected = np.random.get_state()
        a = make(random_state=None).fit(X, Y)
        b = make(random_state=None).fit(X, Y)
        assert np.random.get_state()[1].tolist() == expected[1].tolist()
    assert a.seed_ != b.seed_
    assert not same(a, b)


def test_without_a_seed_seeding_numpy_and_torch_seeds_nothing(make):
    seeds = set()
    with generators_put_back():
        for _ in range(2):
            np.random.seed(0)
            torch.manual_seed(0)
            random.seed(0)
            seeds.add(make(random_state=None).fit(X, Y).seed_)
    assert len(seeds) == 2


def test_a_random_state_advances(make, fitted):
    generator = np.random.RandomState(7)
    classifier = make(random_state=generator)
    first = classifier.fit(X, Y).seed_
    second = classifier.fit(X, Y).seed_
    assert first != second
    same_start = make(random_state=np.random.RandomState(7)).fit(X, Y)
    assert same_start.seed_ == first
    assert same(make(random_state=first).fit(X, Y), same_start)
    # one draw a fit, no more
    expected = np.random.RandomState(7)
    expected.randint(2**31 - 1, size=2)
    assert generator.randint(1000) == expected.randint(1000)


# -- the caller's process --------------------------------------------------------------


def process_state():
    """What a library must leave as it is."""
    numpy_state = np.random.get_state()
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (numpy_state[1].tolist(), *numpy_state[2:]),
        "random": random.getstate(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "environment": dict(os.environ),
        "errors": np.geterr(),
        "filters": list(warnings.filters),
    }


CALLS = {
    "fit": lambda clf: clone(clf).fit(X, Y),
    "fit, unseeded": lambda clf: clone(clf).set_params(random_state=None).fit(X, Y),
    "fit, lda": lambda clf: clone(clf).set_params(head_init="lda").fit(X, Y),
    "fit, probe": lambda clf: clone(clf).set_params(head_init="linear_probe").fit(X, Y),
    "fit, split": lambda clf: (
        clone(clf).set_params(train_split=ValidSplit(3)).fit(X, Y)
    ),
    "fit, bf16": lambda clf: clone(clf).set_params(mixed_precision="bf16").fit(X, Y),
    "partial_fit": lambda clf: clone(clf).partial_fit(X, Y),
    "predict": lambda clf: clf.predict(X),
    "forward": lambda clf: clf.forward(X),
    "score": lambda clf: clf.score(X, Y),
    "pickle": lambda clf: pickle.loads(pickle.dumps(clf)).predict(X),
    "copy": lambda clf: copy.deepcopy(clf).predict(X),
    "failing fit": lambda clf: fails(lambda: clone(clf).fit(X, Y[:3])),
    "failing late": lambda clf: fails(
        lambda: clone(clf).set_params(exit_layer=9).fit(X, Y)
    ),
}


def fails(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_process_stays_as_it_is(fitted, call):
    before = process_state()
    call(fitted)
    after = process_state()
    for name, value in before.items():
        assert after[name] == value, name


def test_save_and_load_leave_the_process_as_it_is(fitted, tmp_path):
    before = process_state()
    fitted.save(tmp_path / "model")
    ACLClassifier.load(tmp_path / "model").predict(X)
    assert process_state() == before


# -- fitting again ---------------------------------------------------------------------


def test_fitting_again_starts_anew(make, fitted):
    classifier = make().fit(TEXTS[12:24], LABELS[12:24])
    assert not same(classifier, fitted)
    assert same(classifier.fit(X, Y), fitted)
    assert len(classifier.history) == 2


def test_fitting_again_may_change_everything(make, fitted):
    pairs = list(zip(X, X, strict=True))
    binary = [label == "food" for label in Y]
    classifier = make(n_layers=1, strategy="final", pooling="cls", max_length=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # truncated texts
        classifier.fit(pairs, binary)
    classifier.set_params(n_layers=None, strategy="joint", pooling="mean")
    classifier.set_params(max_length=None).fit(X, Y)
    assert same(classifier, fitted)
    np.testing.assert_array_equal(classifier.predict(X), fitted.predict(X))


def test_fit_after_partial_fit_starts_anew(make, fitted):
    classifier = make().partial_fit(X[:6], Y[:6]).partial_fit(X[6:], Y[6:])
    assert not same(classifier, fitted)
    assert same(classifier.fit(X, Y), fitted)


def test_partial_fits_repeat(make):
    def train():
        classifier = make()
        for start in (0, 6):
            part = slice(start, start + 6)
            classifier.partial_fit(X[part], Y[part])
        return classifier

    assert same(train(), train())


def test_predictions_do_not_advance_anything(make):
    def train(predict):
        classifier = make().partial_fit(X, Y)
        if predict:
            classifier.predict(TEXTS)
            classifier.score(TEXTS, LABELS)
        return classifier.partial_fit(X, Y)

    assert same(train(predict=True), train(predict=False))


def test_the_backbone_on_disk_stays_as_it_is(make):
    classifier = make()

    def content():
        directory = classifier.backbone
        return {
            name: open(os.path.join(directory, name), "rb").read()
            for name in sorted(os.listdir(directory))
        }

    before = content()
    classifier.fit(X, Y)
    assert content() == before


# -- memory ----------------------------------------------------------------------------


def alive():
    """Objects of a training that the garbage collector still finds."""
    gc.collect()
    # by type: isinstance() would ask lazy objects for their class
    optimizers, tensors = 0, []
    for thing in gc.get_objects():
        kind = _kind(type(thing))
        if kind == "optimizer":
            optimizers += 1
        elif kind == "tensor":
            tensors.append(thing)
    return {
        "optimizers": optimizers,
        "graphs": sum(t.grad_fn is not None for t in tensors),
        "gradients": sum(t.is_leaf and t.grad is not None for t in tensors),
        "tensors": len(tensors),
    }


@functools.cache
def _kind(cls):
    if issubclass(cls, torch.optim.Optimizer):
        return "optimizer"
    return "tensor" if issubclass(cls, torch.Tensor) else None


def fit_once(make, kind):
    settings = {
        "encoder": {"gate_scope": "encoder", "gradient_accumulation_steps": 2},
        "split": {"train_split": ValidSplit(3), "head_init": "lda"},
    }[kind]
    return make(**settings).fit(X, Y)


@pytest.mark.parametrize("kind", ["encoder", "split"])
def test_nothing_of_a_training_survives(make, kind):
    before = alive()
    classifier = fit_once(make, kind)
    classifier.predict(X)
    after = alive()
    assert after["optimizers"] == before["optimizers"]
    assert after["graphs"] == before["graphs"]
    assert after["gradients"] == before["gradients"]
    held = sum(1 for _ in classifier.module_.state_dict())
    # the weights, and a few buffers that are no part of the state; no batch
    assert held <= after["tensors"] - before["tensors"] <= held + 5


def test_fits_in_a_row_take_no_more_memory(make):
    classifier, tensors, things = make(), [], []
    for _ in range(4):
        classifier.fit(X, Y)
        tensors.append(alive()["tensors"])
        things.append(len(gc.get_objects()))
    assert len(set(tensors)) == 1
    assert abs(things[-1] - things[1]) < 50  # of some ten thousand a fit


class StopHere(Callback):
    def on_grad_computed(self, net, **kwargs):
        raise RuntimeError("stop here")


def test_a_training_that_fails_holds_nothing(make):
    before = alive()
    classifier = make(callbacks=[StopHere()])
    with pytest.raises(RuntimeError, match="stop here"):
        classifier.fit(X, Y)
    after = alive()
    for name in ("optimizers", "graphs", "gradients"):
        assert after[name] == before[name], name
