"""How a fit trains: optimizer, schedule, callbacks, validation part, and its traces."""

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss
from skorch.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LRScheduler,
)
from skorch.dataset import ValidSplit
from tiny import LABELS, TEXTS
from torch.utils.data import Subset

from sklearn_acl import ACLClassifier
from sklearn_acl.callbacks import WarmupDecay
from sklearn_acl.criterion import ACLLoss, LossTerms
from sklearn_acl.encoder import MultiExitEncoder
from sklearn_acl.optimization import autocast_dtype, parameter_groups
from sklearn_acl.training_data import TrainingRows, split_rows

X, Y = TEXTS[:24], LABELS[:24]
X_VALID, Y_VALID = TEXTS[24:42], LABELS[24:42]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def still_backbone(tiny_backbone):
    """A backbone without dropout, for steps that must be repeatable by hand."""
    return tiny_backbone(
        "bert",
        num_hidden_layers=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.fixture
def make(backbone):
    """Factory of quiet classifiers: one epoch of three steps over `X`."""

    def factory(**params):
        defaults = {
            "backbone": backbone,
            "batch_size": 8,
            "max_epochs": 1,
            "random_state": 0,
            "verbose": 0,
            "device": "cpu",
        }
        return ACLClassifier(**(defaults | params))

    return factory


class Recorder(Callback):
    """What the optimizer sees at every step, and the weights after every epoch."""

    def initialize(self):
        self.rates, self.norms, self.gradients, self.weights = [], [], [], []
        self.batches, self.optimizer, self.start = [], None, None
        return self

    def on_train_begin(self, net, **kwargs):
        self.start = copy_of_weights(net)
        groups = net.optimizer_.param_groups
        self.optimizer = {
            "type": type(net.optimizer_),
            "defaults": dict(net.optimizer_.defaults),
            "groups": [{k: v for k, v in g.items() if k != "params"} for g in groups],
            "sizes": [len(group["params"]) for group in groups],
        }

    def on_grad_computed(self, net, named_parameters, batch, **kwargs):
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in named_parameters
            if parameter.grad is not None
        }
        parts = [gradient.norm() for gradient in gradients.values()]
        self.rates.append([group["lr"] for group in net.optimizer_.param_groups])
        self.norms.append(float(torch.stack(parts).norm()))
        self.gradients.append(gradients)
        self.batches.append(batch)

    def on_epoch_end(self, net, **kwargs):
        self.weights.append(copy_of_weights(net))


def copy_of_weights(net):
    return {k: v.clone() for k, v in net.module_.state_dict().items()}


def assert_same_weights(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def differ(first, second, prefix=""):
    """Names of the weights that are not equal to the bit."""
    names = [name for name in first if name.startswith(prefix)]
    return [name for name in names if not torch.equal(first[name], second[name])]


# -- optimizer ---------------------------------------------------------------


def named_shapes(groups, named):
    names = {id(parameter): name for name, parameter in named}
    return [[names[id(p)] for p in group["params"]] for group in groups]


@pytest.fixture(scope="module")
def encoder(backbone):
    from sklearn_acl.backbones import load_backbone

    return MultiExitEncoder(load_backbone(backbone)[0], 3)


def test_every_parameter_is_in_one_group(encoder):
    named = list(encoder.named_parameters())
    groups = parameter_groups(named, lr=1e-3, head_lr_factor=5.0)
    names = sum(named_shapes(groups, named), [])
    assert sorted(names) == sorted(name for name, _ in named)


def test_biases_and_norms_are_not_decayed_and_heads_learn_faster(encoder):
    named = list(encoder.named_parameters())
    groups = parameter_groups(named, lr=1e-3, head_lr_factor=5.0)
    seen = set()
    for group, names in zip(groups, named_shapes(groups, named), strict=True):
        for name in names:
            spared = name.endswith("bias") or "LayerNorm" in name
            assert (group.get("weight_decay") == 0.0) == spared, name
            in_head = name.startswith("heads.")
            assert group["lr"] == pytest.approx(5e-3 if in_head else 1e-3), name
            seen.add((spared, in_head))
    assert len(seen) == 4


def test_user_groups_take_precedence_and_frozen_parameters_are_left_out(encoder):
    named = [(name, torch.nn.Parameter(p)) for name, p in encoder.named_parameters()]
    for name, parameter in named:
        parameter.requires_grad = "embeddings" not in name
    groups = parameter_groups(
        named,
        lr=1e-3,
        head_lr_factor=2.0,
        user_groups=[("heads.1.*", {"lr": 0.5}), ("heads.*", {"weight_decay": 0.3})],
    )
    names = named_shapes(groups, named)
    assert all(name.startswith("heads.1.") for name in names[0])
    assert groups[0]["lr"] == 0.5 and len(names[0]) == 4
    assert all(name.startswith("heads.0.") for name in names[1])
    assert groups[1]["weight_decay"] == 0.3 and len(names[1]) == 4
    rest = sum(names[2:], [])
    assert rest and not any("embeddings" in n or n.startswith("heads") for n in rest)
    assert all(len(group["params"]) for group in groups)


def test_default_optimizer_is_fused_adamw(make):
    recorder = Recorder()
    make(callbacks=[recorder]).fit(X, Y)
    assert recorder.optimizer["type"] is torch.optim.AdamW
    assert recorder.optimizer["defaults"]["fused"] is True
    assert make().get_params()["optimizer"] is torch.optim.AdamW


def test_another_kernel_of_adamw_can_be_chosen(make):
    recorder = Recorder()
    make(callbacks=[recorder], optimizer__foreach=True).fit(X, Y)
    assert recorder.optimizer["defaults"]["foreach"] is True
    assert not recorder.optimizer["defaults"]["fused"]


def test_optimizer_parameters_reach_the_optimizer(make):
    recorder = Recorder()
    clf = make(
        callbacks=[recorder],
        lr=0.7,
        optimizer__lr=1e-3,
        optimizer__weight_decay=0.25,
        optimizer__fused=False,
        head_lr_factor=3.0,
        lr_schedule="constant",
        warmup=0.0,
    )
    clf.fit(X, Y)
    groups = recorder.optimizer["groups"]
    assert {group["weight_decay"] for group in groups} == {0.25, 0.0}
    assert recorder.optimizer["defaults"]["fused"] is False
    assert {round(rate, 9) for rate in recorder.rates[0]} == {1e-3, 3e-3}


def test_lr_zero_group_of_the_user_stays_as_pretrained(make):
    recorder = Recorder()
    groups = [("backbone.embeddings.*", {"lr": 0.0})]
    make(callbacks=[recorder], optimizer__param_groups=groups).fit(X, Y)
    end = recorder.weights[-1]
    assert differ(recorder.start, end, "backbone.embeddings.") == []
    assert differ(recorder.start, end, "backbone.encoder.")


def test_other_optimizer_takes_the_step_it_should(make):
    """One SGD step is weight - rate * (gradient + decay * weight)."""
    recorder = Recorder()
    clf = make(
        callbacks=[recorder],
        optimizer=torch.optim.SGD,
        optimizer__weight_decay=0.1,
        lr=1e-2,
        head_lr_factor=4.0,
        batch_size=24,
        warmup=0.0,
    )
    clf.fit(X, Y)
    assert recorder.optimizer["type"] is torch.optim.SGD
    (gradients,) = recorder.gradients
    for name, parameter in clf.module_.named_parameters():
        before = recorder.start[name]
        rate = 4e-2 if name.startswith("heads.") else 1e-2
        decay = 0.1 if before.ndim > 1 else 0.0
        gradient = gradients.get(name)
        step = 0.0 if gradient is None else rate * (gradient + decay * before)
        torch.testing.assert_close(parameter.data, before - step)


# -- learning rate -----------------------------------------------------------


def slow_rates(n_steps, warmup):
    """Shares of the learning rate, from the corners of the schedule."""
    n_warmup = round(warmup * n_steps)
    corners = [-1, n_warmup, n_steps] if n_warmup else [0, n_steps]
    heights = [0.0, 1.0, 0.0] if n_warmup else [1.0, 0.0]
    return np.interp(np.arange(n_steps), corners, heights)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("n_steps", [1, 2, 3, 10, 41])
def test_linear_decay_rises_then_falls_and_never_stops(n_steps, warmup):
    factor = WarmupDecay(n_steps, warmup, "linear")
    rates = [factor(step) for step in range(n_steps)]
    np.testing.assert_allclose(rates, slow_rates(n_steps, warmup), rtol=1e-12)
    assert 0 < min(rates) and max(rates) <= 1
    assert factor(n_steps) == 0.0


@pytest.mark.parametrize("warmup", [0.0, 0.4])
def test_rates_of_a_fit_follow_the_schedule(make, warmup):
    recorder = Recorder()
    make(callbacks=[recorder], max_epochs=3, lr=1e-3, warmup=warmup).fit(X, Y)
    expected = slow_rates(9, warmup)[:, None] * [1e-3, 1e-3, 5e-3, 5e-3]
    np.testing.assert_allclose(recorder.rates, expected, rtol=1e-9)


def test_schedule_spans_all_steps_with_a_short_last_batch_and_accumulation(make):
    recorder = Recorder()
    clf = make(callbacks=[recorder], max_epochs=2, gradient_accumulation_steps=2)
    clf.fit(X[:20], Y[:20])  # 16 + 4 rows: two steps an epoch
    shares = np.array(recorder.rates)[:, 0] / 1e-4
    np.testing.assert_allclose(shares, slow_rates(4, 0.1))


def test_schedule_counts_the_training_part_only(make):
    recorder = Recorder()
    clf = make(callbacks=[recorder], train_split=ValidSplit(3), warmup=0.0)
    clf.fit(X, Y)  # 16 of 24 rows train
    np.testing.assert_allclose(np.array(recorder.rates)[:, 0], [1e-4, 0.5e-4])


def test_constant_schedule_warms_up_and_keeps_the_rate(make):
    recorder = Recorder()
    clf = make(callbacks=[recorder], lr_schedule="constant", max_epochs=2, warmup=0.5)
    clf.fit(X, Y)  # 6 steps, of which 3 warm up
    factors = np.array([0.25, 0.5, 0.75, 1, 1, 1])
    expected = factors[:, None] * [1e-4, 1e-4, 5e-4, 5e-4]
    np.testing.assert_allclose(np.array(recorder.rates), expected)


@pytest.mark.parametrize(
    "change",
    [{"n_layers": 1}, {"pooling": "cls"}, {"strategy": "final"}, {"max_length": 9}],
)
def test_going_on_needs_the_same_network(make, change):
    """Neither partial_fit nor a warm start silently ignores another structure."""
    (name,) = change
    clf = make().fit(X, Y).set_params(**change)
    with pytest.raises(ValueError, match=f"{name}=.* differs from the fitted"):
        clf.partial_fit(X, Y)
    with pytest.raises(ValueError, match=f"{name}=.* differs from the fitted"):
        clf.set_params(warm_start=True).fit(X, Y)


def test_going_on_checks_the_exit(make):
    clf = make().fit(X, Y).set_params(exit_layer=99)
    with pytest.raises(ValueError, match="exit_layer=99 is out of range"):
        clf.partial_fit(X, Y)


def test_user_scheduler_replaces_the_default_one(make):
    recorder = Recorder()
    scheduler = LRScheduler(
        "StepLR", step_size=1, gamma=0.5, step_every="batch", event_name=None
    )
    clf = make(callbacks=[recorder, scheduler], callbacks__lr_scheduler=None)
    clf.fit(X, Y)
    np.testing.assert_allclose(np.array(recorder.rates)[:, 0], [1e-4, 5e-5, 2.5e-5])
    assert scheduler.lr_scheduler_ is None  # it would keep the optimizer alive


# -- clipping ----------------------------------------------------------------


def test_clipping_bounds_the_norm_and_keeps_the_direction(make, still_backbone):
    free, clipped = Recorder(), Recorder()
    params = {"backbone": still_backbone, "module__dropout": 0.0}
    make(callbacks=[free], max_grad_norm=None, **params).fit(X, Y)
    make(callbacks=[clipped], max_grad_norm=0.05, **params).fit(X, Y)
    assert min(free.norms) > 0.05
    np.testing.assert_allclose(clipped.norms, 0.05, rtol=1e-3)
    scale = 0.05 / free.norms[0]
    for name, gradient in free.gradients[0].items():
        torch.testing.assert_close(
            clipped.gradients[0][name], gradient * scale, rtol=1e-3, atol=1e-8
        )


def test_small_gradients_are_not_scaled_up(make):
    free, clipped = Recorder(), Recorder()
    make(callbacks=[free], max_grad_norm=None).fit(X, Y)
    make(callbacks=[clipped], max_grad_norm=1e6).fit(X, Y)
    np.testing.assert_allclose(clipped.norms, free.norms, rtol=1e-5)


# -- callbacks of skorch -----------------------------------------------------


def mean_log_loss(clf, texts, labels):
    """What `valid_loss` should be, from probabilities alone."""
    exits = clf.predict_proba_exits(texts)
    return np.mean([log_loss(labels, p, labels=clf.classes_) for p in exits])


class Scripted(Callback):
    """Records a score that is best in the second epoch."""

    def on_epoch_end(self, net, **kwargs):
        net.history.record("scripted", [3.0, 1.0, 2.0, 2.0, 2.0][len(net.history) - 1])


def test_early_stopping_ends_the_training_and_restores_the_best_weights(make):
    recorder = Recorder()
    stopping = EarlyStopping("scripted", patience=2, load_best=True)
    clf = make(callbacks=[recorder, Scripted(), stopping], max_epochs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # stopping early is no interruption
        clf.fit(X, Y)
    assert len(clf.history) == len(recorder.weights) == 4
    assert_same_weights(copy_of_weights(clf), recorder.weights[1])
    assert differ(recorder.weights[1], recorder.weights[3])
    assert stopping.best_model_weights_ is None  # a second copy in memory


@pytest.mark.parametrize("how", ["split", "validation_data"])
def test_early_stopping_watches_the_validation_part(make, how):
    """Whenever it is best, the epoch of lowest loss is the one that is kept."""
    recorder = Recorder()
    stopping = EarlyStopping(patience=2, load_best=True, threshold=0)
    split = ValidSplit(0.25, stratified=True) if how == "split" else None
    clf = make(callbacks=[recorder, stopping], train_split=split)
    clf.set_params(lr=0.02, lr_schedule="constant", warmup=0.0, max_epochs=6)
    valid = (X_VALID, Y_VALID) if how == "validation_data" else None
    clf.fit(X, Y, validation_data=valid)
    losses = np.array(clf.history[:, "valid_loss"])
    best = int(losses.argmin())
    assert len(losses) == min(best + 3, 6)
    assert_same_weights(copy_of_weights(clf), recorder.weights[best])
    if valid is not None:
        assert mean_log_loss(clf, *valid) == pytest.approx(losses[best], abs=1e-5)


def test_validation_loss_and_accuracy_are_means_over_exits(make):
    clf = make(batch_size=5)  # 18 rows: batches of unequal size
    clf.fit(X, Y, validation_data=(X_VALID, Y_VALID))
    assert clf.history[-1, "valid_loss"] == pytest.approx(
        mean_log_loss(clf, X_VALID, Y_VALID), abs=1e-5
    )
    hits = [
        clf.classes_[p.argmax(1)] == np.array(Y_VALID)
        for p in clf.predict_proba_exits(X_VALID)
    ]
    assert clf.history[-1, "valid_acc"] == pytest.approx(np.mean(hits))


def test_epoch_scoring_reads_pairs_and_columns(make):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X, "b": X[::-1], "y": np.resize([5, 2], 24)})
    split = ValidSplit(0.25, stratified=True)
    scores = [
        EpochScoring("accuracy", name="train", on_train=True),
        EpochScoring("accuracy", name="valid"),
        EpochScoring("neg_log_loss", name="log_loss"),
    ]
    clf = make(callbacks=scores, train_split=split).fit(frame, "y")
    last = clf.history[-1]
    accuracy = clf.score(frame, "y")
    assert (18 * last["train"] + 6 * last["valid"]) / 24 == pytest.approx(accuracy)
    assert last["log_loss"] < 0


@pytest.mark.parametrize("how", ["split", "validation_data"])
def test_epoch_scoring_agrees_with_sklearn_on_predictions(make, how):
    rows = {}

    class Rows(Callback):
        def on_train_begin(self, net, X, **kwargs):
            rows["valid"] = X.valid

    scoring = EpochScoring("f1_macro", lower_is_better=False)
    split = ValidSplit(0.25, stratified=True) if how == "split" else None
    clf = make(callbacks=[scoring, Rows()], train_split=split, max_epochs=2)
    if how == "split":
        clf.fit(X, Y)
        held_out = rows["valid"].indices
        texts, labels = [X[i] for i in held_out], [Y[i] for i in held_out]
    else:
        texts, labels = X_VALID, Y_VALID
        clf.fit(X, Y, validation_data=(texts, labels))
    expected = f1_score(labels, clf.predict(texts), average="macro")
    assert clf.history[-1, "f1_macro"] == pytest.approx(expected)
    assert len(clf.history[:, "f1_macro"]) == 2


def accuracy_of_exit_1(net, X, y):
    return net.score(X, y, exit_layer=1)


def test_epoch_scoring_on_training_texts_and_at_an_exit(make):
    whole = EpochScoring("accuracy", lower_is_better=False, on_train=True)
    first = EpochScoring(accuracy_of_exit_1, name="first", on_train=True)
    clf = make(callbacks=[whole, first], exit_layer=1)
    clf.fit(X, Y)
    # the parameter has no part in training
    assert clf.history[-1, "accuracy"] == pytest.approx(clf.score(X, Y, exit_layer=2))
    assert clf.history[-1, "first"] == pytest.approx(clf.score(X, Y))


def test_scoring_between_epochs_does_not_change_the_training(make):
    """A callback that predicts must not leave the module out of training mode."""
    plain = make(max_epochs=2).fit(X, Y)
    scoring = EpochScoring("accuracy", on_train=True)
    scored = make(max_epochs=2, callbacks=[scoring]).fit(X, Y)
    assert_same_weights(copy_of_weights(plain), copy_of_weights(scored))


def in_second_epoch(net):
    return len(net.history) == 2


def test_checkpoint_writes_and_restores_the_best_epoch(make, tmp_path):
    recorder, best = Recorder(), 1
    checkpoint = Checkpoint(
        monitor=in_second_epoch,
        dirname=str(tmp_path / "cp"),
        f_pickle="net.pickle",
        load_best=True,
    )
    clf = make(callbacks=[recorder, checkpoint], max_epochs=3)
    clf.fit(X, Y)
    saved = torch.load(tmp_path / "cp" / "params.pt", weights_only=True)
    assert_same_weights(saved, recorder.weights[best])
    assert_same_weights(copy_of_weights(clf), recorder.weights[best])
    assert (tmp_path / "cp" / "optimizer.pt").stat().st_size > 0
    assert (tmp_path / "cp" / "history.json").stat().st_size > 0
    with open(tmp_path / "cp" / "net.pickle", "rb") as file:
        loaded = pickle.load(file)  # made in the middle of a training
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
    loaded.set_params(lr=1e-3, callbacks=None).partial_fit(X, Y)


def test_callback_parameters_are_reached_by_prefix(make):
    lines = []
    clf = make(verbose=1, callbacks__print_log__sink=lines.append, max_epochs=2)
    clf.fit(X, Y)
    assert len(lines) == 4  # two of the header, one an epoch


def test_default_callback_can_be_switched_off(make, capsys):
    make(verbose=1, callbacks__print_log=None).fit(X, Y)
    assert capsys.readouterr() == ("", "")


class Terminal:
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def __init__(self, is_terminal):
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(
    ("verbose", "is_terminal", "shown"),
    [(1, True, True), (1, False, False), (0, True, False)],
)
def test_progress_bar_shows_in_a_terminal_only(
    make, monkeypatch, verbose, is_terminal, shown
):
    stream = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    make(verbose=verbose).fit(X, Y)
    assert ("%|" in stream.text) == shown
    assert shown or not stream.text


def test_verbose_prints_a_line_per_epoch(make, capsys):
    clf = make(verbose=1, max_epochs=3)
    clf.fit(X, Y, validation_data=(X_VALID, Y_VALID))
    out, err = capsys.readouterr()
    header, rule, *lines = out.splitlines()
    assert len(lines) == 3 and err == ""
    for name in ("epoch", "train_loss", "valid_loss", "valid_acc", "dur"):
        assert name in header
    clf.partial_fit(X, Y)
    out, err = capsys.readouterr()
    assert "Re-initializing" not in out and err == ""
    clf.predict(X)
    assert capsys.readouterr() == ("", "")


QUIET = """
import json, os, sys

def state():
    import torch
    threads = torch.get_num_threads(), torch.get_num_interop_threads()
    return dict(os.environ), threads, torch.get_rng_state().tolist()

before = state()
from sklearn_acl import ACLClassifier

backbone, folder, texts, labels = json.loads(sys.argv[1])
clf = ACLClassifier(backbone, verbose=0, max_epochs=2, device="cpu")
clf.fit(texts, labels, validation_data=(texts, labels))
clf.predict(texts)
clf.partial_fit(texts, labels)
clf.save(folder)
ACLClassifier.load(folder).predict(texts)
assert state() == before
print("from here on", flush=True)
clf.set_params(verbose=1).fit(texts, labels)
"""


def test_new_process_is_silent_and_left_as_it_was(backbone, tmp_path):
    """With verbose=0 not even transformers says a word, and nothing is set."""
    arguments = json.dumps([backbone, str(tmp_path / "saved"), X, Y])
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "always::UserWarning", "-c", QUIET, arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, *lines = done.stdout.splitlines()
    assert first == "from here on"
    assert len(lines) == 4  # two of the header, one an epoch


# -- interruption ------------------------------------------------------------


class InterruptedLoss(ACLLoss):
    """Raises what Ctrl-C raises in the step after `after` others."""

    def __init__(self, after=0, **kwargs):
        super().__init__(**kwargs)
        self.after = after
        self.n_calls = 0

    def terms(self, *args):
        self.n_calls += 1
        if self.n_calls > self.after:
            raise KeyboardInterrupt
        return super().terms(*args)


@pytest.mark.parametrize("after", [0, 2, 4])
def test_interruption_keeps_the_model_and_warns(make, after, tmp_path):
    clf = make(criterion=InterruptedLoss, criterion__after=after, max_epochs=3)
    with pytest.warns(UserWarning, match="interrupted") as record:
        clf.fit(X, Y)
    assert len(record) == 1 and record[0].filename == __file__
    assert len(clf.angles_) == after
    assert clf.optimizer_ is None
    assert clf.predict(X).shape == (24,)
    # whatever comes next works, though the history ends in the middle of an epoch
    clf.set_params(criterion=ACLLoss)
    del clf.criterion__after
    clf.save(tmp_path / "model")
    clf.partial_fit(X, Y)
    assert "train_loss" in clf.history[-1]


# -- validation part ---------------------------------------------------------


def rows_of(counts):
    """Training rows of classes of the given sizes, shuffled; there are no texts."""
    codes = np.repeat(np.arange(len(counts)), counts)
    codes = np.random.default_rng(0).permutation(codes)
    return TrainingRows(None, None, codes.astype(str), codes)


def split_of(counts, split, seed=0):
    """Row numbers of both parts, their rows, and the messages of warnings."""
    rows = rows_of(counts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train, valid = split_rows(rows, split, seed)
    return rows, train, valid, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cv", [0.25, 4, 2, 0.5])
@pytest.mark.parametrize("counts", [[20, 30], [8, 9, 10, 40], [12] * 5])
def test_stratified_split_is_a_partition_with_equal_shares(counts, cv, seed):
    share = cv if cv < 1 else 1 / cv
    split = ValidSplit(cv, stratified=True)
    rows, train, valid, messages = split_of(counts, split, seed)
    assert messages == []
    both = np.concatenate([train.indices, valid.indices])
    assert sorted(both) == list(range(len(rows)))
    held_out = np.bincount(rows.codes[valid.indices], minlength=len(counts))
    np.testing.assert_allclose(held_out, share * np.array(counts), atol=1.0)


@pytest.mark.parametrize("cv", [0.25, 4, 5])
def test_rare_classes_stay_in_the_training_part(cv):
    counts = [30, 1, 30, 1]
    rows, train, valid, messages = split_of(counts, ValidSplit(cv, stratified=True))
    both = np.concatenate([train.indices, valid.indices])
    assert sorted(both) == list(range(62))
    assert set(rows.codes[valid.indices]) == {0, 2}
    assert np.bincount(rows.codes[train.indices])[[1, 3]].tolist() == [1, 1]
    (message,) = messages
    assert message.startswith("2 rows of classes with fewer than")


@pytest.mark.parametrize(
    ("counts", "cv"), [([1] * 12, 0.25), ([3] * 5, 5), ([2] * 10, 0.25), ([10, 1], 0.2)]
)
def test_impossible_stratification_falls_back_with_one_warning(counts, cv):
    split = ValidSplit(cv, stratified=True)
    rows, train, valid, messages = split_of(counts, split)
    (message,) = messages
    assert message.startswith("The validation split is not stratified")
    assert len(train) + len(valid) == len(rows)
    assert 0 < len(valid) < len(train)
    assert split.stratified is True and split.random_state is None


@pytest.mark.parametrize("counts", [[1, 1], [2, 1]])
@pytest.mark.parametrize("cv", [0.25, 5])
@pytest.mark.parametrize("stratified", [True, False])
def test_tiny_data_trains_without_a_split(counts, cv, stratified):
    split = ValidSplit(cv, stratified=stratified)
    rows, train, valid, messages = split_of(counts, split)
    assert train is rows and valid is None
    (message,) = messages
    assert "too few" in message


def test_split_follows_the_seed_of_the_fit_unless_it_has_its_own():
    def held_out(split, seed):
        return split_of([20, 20], split, seed)[2].indices.tolist()

    free, fixed = ValidSplit(0.25), ValidSplit(0.25, random_state=7)
    assert held_out(free, 0) == held_out(free, 0) != held_out(free, 1)
    assert held_out(fixed, 0) == held_out(fixed, 1)


def test_split_of_any_callable_is_taken_as_it_is():
    def first_rows(dataset, y):
        assert len(dataset) == len(y) == 20
        return Subset(dataset, range(5, 20)), Subset(dataset, range(5))

    _, train, valid, messages = split_of([10, 10], first_rows)
    assert list(train.indices) == list(range(5, 20))
    assert list(valid.indices) == list(range(5)) and messages == []


def test_fit_with_a_split_holds_its_rows_out_of_training(make):
    """Texts of the validation part must not reach a training batch."""
    seen = []

    class Batches(Callback):
        def on_batch_begin(self, net, batch, training, **kwargs):
            if training:
                rows = batch[0]["input_ids"]
                seen.extend(tuple(row[row > 0].tolist()) for row in rows)

    split = ValidSplit(0.25, stratified=True)
    clf = make(train_split=split, callbacks=[Batches()])
    clf.fit(X, Y)
    everything = clf.tokenizer_(X)["input_ids"]
    assert len(seen) == len(set(seen)) == 18
    assert set(seen) < set(map(tuple, everything))
    assert len(clf.history[:, "valid_loss"]) == 1


def test_fit_warns_once_about_its_split_and_points_at_the_call(make):
    with pytest.warns(UserWarning, match="too few") as record:
        make(train_split=ValidSplit(5)).fit(X[:3], Y[:3])
    assert len(record) == 1 and record[0].filename == __file__
    with pytest.warns(UserWarning, match="not stratified") as record:
        make(train_split=ValidSplit(5, stratified=True)).fit(X[:9], Y[:9])
    assert len(record) == 1 and record[0].filename == __file__
    labels = ["a", "b"] * 7 + ["c"]
    with pytest.warns(UserWarning, match="1 rows of classes") as record:
        make(train_split=ValidSplit(3, stratified=True)).fit(X[:15], labels)
    assert len(record) == 1 and record[0].filename == __file__


# -- partial_fit and warm_start ----------------------------------------------


@pytest.fixture
def starts(monkeypatch):
    """Number of texts of every call that starts heads."""
    from sklearn_acl import net

    calls = []

    def spy(encoder, batches, **kwargs):
        batches = list(batches)
        calls.append(sum(len(labels) for _, labels, _ in batches))
        return start(encoder, batches, **kwargs)

    start = net.initialize_heads
    monkeypatch.setattr(net, "initialize_heads", spy)
    return calls


def test_partial_fit_starts_once_and_goes_on_at_a_constant_rate(make, starts):
    recorder = Recorder()
    clf = make(callbacks=[recorder], lr=1e-3, warmup=0.5, max_epochs=5)
    assert clf.partial_fit(X, Y) is clf
    assert starts == [24] and len(clf.history) == 1 and len(clf.angles_) == 3
    module, after_first = clf.module_, copy_of_weights(clf)
    clf.partial_fit(X[:16], Y[:16])
    assert starts == [24] and len(clf.history) == 2 and len(clf.angles_) == 2
    assert clf.module_ is module
    assert_same_weights(recorder.start, after_first)
    assert differ(after_first, copy_of_weights(clf), "backbone.encoder.")
    np.testing.assert_allclose(recorder.rates, [[1e-3, 1e-3, 5e-3, 5e-3]] * 2)
    clf.fit(X, Y)
    assert starts == [24, 24] and len(clf.history) == 5


@pytest.mark.parametrize(
    "changed",
    [
        {"module__dropout": 0.5},
        {"module__gradient_equilibrium": True},
        {"backbone": "another/encoder"},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.parametrize("how", ["partial_fit", "warm_start"])
def test_going_on_with_another_network_is_refused(make, changed, how):
    clf = make().fit(X, Y)
    clf.set_params(warm_start=how == "warm_start", **changed)
    before = copy_of_weights(clf)
    name = next(iter(changed))
    with pytest.raises(ValueError, match=f"{name}=.* differs from the fitted model's"):
        clf.fit(X, Y) if how == "warm_start" else clf.partial_fit(X, Y)
    assert_same_weights(copy_of_weights(clf), before)


def test_partial_fit_fixes_the_classes_at_the_first_call(make):
    clf = make()
    clf.partial_fit(X[:8], ["a", "b"] * 4, classes=["c", "b", "a"])
    assert clf.classes_.tolist() == ["a", "b", "c"]
    assert clf.predict_proba(X).shape == (24, 3)
    clf.partial_fit(X[:8], ["c"] * 8)  # one class is enough later
    clf.partial_fit(X[:8], ["c"] * 8, classes=["a", "c", "b"])
    before = copy_of_weights(clf)
    with pytest.raises(ValueError, match="not in classes.*'d'"):
        clf.partial_fit(X[:8], ["d"] * 8)
    with pytest.raises(ValueError, match="classes=.*differs from the classes"):
        clf.partial_fit(X[:8], ["a", "b"] * 4, classes=["a", "b"])
    assert_same_weights(before, copy_of_weights(clf))


def test_warm_start_goes_on_from_the_fitted_model(make, starts):
    recorder = Recorder()
    clf = make(callbacks=[recorder], warm_start=True, max_epochs=2)
    clf.fit(X, Y)
    module, end = clf.module_, copy_of_weights(clf)
    clf.fit(X_VALID, Y_VALID)
    assert clf.module_ is module and starts == [24]
    assert_same_weights(recorder.start, end)
    assert differ(end, copy_of_weights(clf), "backbone.encoder.")
    assert clf.history[:, "epoch"] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="not in classes"):
        clf.fit(X, ["new", "label"] * 12)


def test_fit_starts_over_without_warm_start(make):
    clf = make()
    first = copy_of_weights(clf.fit(X, Y))
    second = copy_of_weights(clf.fit(X, Y))
    assert_same_weights(first, second)
    assert len(clf.history) == 1
    clf.fit(X, ["x", "y"] * 12)
    assert clf.classes_.tolist() == ["x", "y"]


def test_refused_fit_leaves_the_fitted_model_alone(make):
    clf = make().fit(X, Y)
    before = clf.predict_proba(X)
    for params, texts, labels in [
        ({"lr": -1.0}, X, Y),
        ({}, X, Y[:-1]),
        ({}, [None] * 24, Y),
    ]:
        old = clf.get_params()
        with pytest.raises((ValueError, TypeError)):
            clf.set_params(**params).fit(texts, labels)
        clf.set_params(**{name: old[name] for name in params})
        np.testing.assert_array_equal(clf.predict_proba(X), before)


# -- steps -------------------------------------------------------------------


def test_accumulation_takes_the_same_step_as_a_large_batch(make, still_backbone):
    """Cross-entropy is a mean over texts, so cutting a batch changes nothing."""
    whole, parts = Recorder(), Recorder()
    params = {
        "backbone": still_backbone,
        "module__dropout": 0.0,
        "criterion__contrastive": None,
        "optimizer": torch.optim.SGD,
        "max_grad_norm": None,
        "lr": 1e-2,
    }
    weight = np.linspace(0.5, 2.0, 22)
    one = make(callbacks=[whole], batch_size=8, **params)
    one.fit(X[:22], Y[:22], sample_weight=weight)
    params |= {"batch_size": 4, "gradient_accumulation_steps": 2}
    two = make(callbacks=[parts], **params)
    two.fit(X[:22], Y[:22], sample_weight=weight)
    assert len(whole.rates) == len(parts.rates) == len(two.angles_) == 3
    for mine, other in zip(whole.gradients, parts.gradients, strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], other[name], rtol=1e-3, atol=1e-6)
    assert one.history[-1, "train_loss"] == pytest.approx(
        two.history[-1, "train_loss"], rel=1e-5
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 24])
def test_accumulation_counts_steps(make, steps):
    clf = make(batch_size=4, gradient_accumulation_steps=steps)
    clf.fit(X[:22], Y[:22])
    n_steps = -(-22 // (4 * steps))
    assert len(clf.angles_) == n_steps
    assert clf.history[-1, "train_batch_count"] == n_steps


def test_angles_are_kept_in_single_precision_and_summarised(make):
    clf = make(max_epochs=2).fit(X, Y)
    assert clf.angles_.dtype == np.float32 and clf.angles_.shape == (6,)
    assert clf.history[1, "angle_mean"] == pytest.approx(clf.angles_[3:].mean())
    assert clf.history[1, "gated_share"] == np.mean(clf.angles_[3:] > 90)
    clf = make(angle_threshold=None).fit(X, Y)
    assert np.isnan(clf.angles_).all() and "angle_mean" not in clf.history[-1]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_steps_like_full_precision(make, still_backbone, precision):
    """Gradients are unscaled before anyone reads them, and parameters stay fp32."""
    full, mixed = Recorder(), Recorder()
    params = {"backbone": still_backbone, "module__dropout": 0.0, "batch_size": 24}
    params |= {"max_grad_norm": None}
    exact = make(callbacks=[full], mixed_precision=None, **params).fit(X, Y)
    clf = make(callbacks=[mixed], mixed_precision=precision, **params).fit(X, Y)
    # a norm that is still scaled would be 65,536 times as large
    assert mixed.norms[0] == pytest.approx(full.norms[0], rel=0.2)
    np.testing.assert_allclose(clf.angles_, exact.angles_, atol=5)
    assert {p.dtype for p in clf.module_.parameters()} == {torch.float32}
    assert differ(mixed.start, copy_of_weights(clf), "backbone.encoder.")
    assert clf.scaler_ is None
    assert clf.predict_proba(X).dtype == np.float64


def test_fp16_overflow_skips_the_step_and_lowers_the_scale(make):
    """A gradient that isn't finite must not reach the weights."""

    class Overflowing(ACLLoss):
        def terms(self, outputs, labels, weight=None):
            terms = super().terms(outputs, labels, weight)
            return LossTerms(terms.cross_entropy * 1e36, terms.contrastive)

    recorder = Recorder()
    clf = make(
        callbacks=[recorder],
        mixed_precision="fp16",
        criterion=Overflowing,
        criterion__contrastive=None,
    )
    clf.fit(X, Y)
    assert not all(np.isfinite(recorder.norms))
    assert all(torch.isfinite(p).all() for p in clf.module_.parameters())


@pytest.mark.parametrize(
    ("value", "device", "dtype"),
    [
        ("auto", "cpu", None),
        (None, "cpu", None),
        (None, "cuda", None),
        ("bf16", "cpu", torch.bfloat16),
        ("fp16", "cpu", torch.float16),
    ],
)
def test_autocast_type_by_device(value, device, dtype):
    assert autocast_dtype(value, torch.device(device)) is dtype


def test_batch_whose_texts_all_weigh_nothing_trains_nothing(make):
    """Short texts weigh zero and share a batch, since batches sort by length."""
    recorder = Recorder()
    order = sorted(range(24), key=lambda i: len(X[i].split()))
    texts, labels = [X[i] for i in order], [Y[i] for i in order]
    weight = np.repeat([0.0, 1.0], [16, 8])
    clf = make(callbacks=[recorder], batch_size=4, optimizer=torch.optim.SGD)
    clf.fit(texts, labels, sample_weight=weight)
    zero = [i for i, batch in enumerate(recorder.batches) if not batch[2].any()]
    assert 0 < len(zero) < len(recorder.batches)
    for i in zero:
        assert recorder.norms[i] == 0
        assert clf.history[0, "batches", i, "train_loss"] == 0
        assert np.isnan(clf.angles_[i])
    assert all(torch.isfinite(p).all() for p in clf.module_.parameters())
    assert clf.history[-1, "angle_undefined"] == len(zero)


def test_texts_of_weight_zero_have_no_influence_on_cross_entropy(make):
    """Other words of the same number in their place give the same model."""
    other = [" ".join(reversed(text.split())) for text in X[:8]]
    weight = np.repeat([0.0, 1.0], [8, 16])
    params = {"criterion__contrastive": None, "optimizer": torch.optim.SGD}
    first = make(**params).fit(X, Y, sample_weight=weight)
    second = make(**params).fit(other + X[8:], Y, sample_weight=weight)
    for name, value in copy_of_weights(first).items():
        torch.testing.assert_close(value, copy_of_weights(second)[name])


# -- parts of the user's own -------------------------------------------------


class HalvedEncoder(MultiExitEncoder):
    """Divides the hidden states that heads read."""

    def __init__(self, *args, divisor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.divisor = divisor

    def pooled(self, inputs, exits=None):
        return super().pooled(inputs, exits) / self.divisor


class SmoothedLoss(ACLLoss):
    """Cross-entropy mixed with the mean over classes."""

    def __init__(self, smoothing=0.0, **kwargs):
        super().__init__(**kwargs)
        self.smoothing = smoothing

    def terms(self, outputs, labels, weight=None):
        terms = super().terms(outputs, labels, weight)
        uniform = -torch.log_softmax(outputs.logits, -1).mean(-1)
        uniform = (uniform * weight).sum(-1) / weight.sum()
        mixed = torch.lerp(terms.cross_entropy, uniform, self.smoothing)
        return LossTerms(mixed, terms.contrastive)


def test_module_of_the_users_own(make):
    clf = make(module=HalvedEncoder, module__divisor=2.0, module__dropout=0.3)
    clf.fit(X, Y)
    assert type(clf.module_) is HalvedEncoder and clf.module_.divisor == 2.0
    assert clf.module_.heads[0].dropout.p == 0.3
    assert differ(copy_of_weights(clf), copy_of_weights(make().fit(X, Y)))
    assert clf.transform(X).shape == (24, 32)


def test_criterion_of_the_users_own(make):
    plain = make().fit(X, Y)
    same = make(criterion=SmoothedLoss, criterion__smoothing=0.0).fit(X, Y)
    other = make(criterion=SmoothedLoss, criterion__smoothing=0.5).fit(X, Y)
    np.testing.assert_allclose(same.predict_proba(X), plain.predict_proba(X), atol=1e-6)
    assert abs(other.predict_proba(X) - plain.predict_proba(X)).max() > 1e-4
    with pytest.raises((TypeError, ValueError), match="smothing"):
        make(criterion=SmoothedLoss, criterion__smothing=0.5).fit(X, Y)


def test_final_strategy_trains_one_exit(make):
    clf = make(strategy="final").fit(X, Y)
    assert clf.n_exits_ == 1 and clf.exit_layer_numbers_ == (2,)
    assert clf.predict_proba_exits(X).shape == (1, 24, 3)
    np.testing.assert_array_equal(clf.predict_proba_exits(X)[0], clf.predict_proba(X))
    with pytest.raises(ValueError, match="one exit, after layer 2"):
        clf.predict(X, exit_layer=1)


# -- traces of a fit ---------------------------------------------------------


def n_live_tensors():
    gc.collect()
    # not isinstance(): it would ask lazy objects for their class
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def test_fit_leaves_no_optimizer_gradient_or_batch_behind(make):
    stopping = EarlyStopping(load_best=True, patience=50)
    scoring = EpochScoring("accuracy", use_caching=True)
    clf = make(callbacks=[stopping, scoring], mixed_precision="fp16", max_epochs=2)
    valid = (X_VALID, Y_VALID)
    clf.fit(X, Y, validation_data=valid)
    n_parts = len(list(clf.module_.parameters())) + len(list(clf.module_.buffers()))
    counts = [n_live_tensors()]
    for _ in range(2):
        clf.fit(X, Y, validation_data=valid)
        counts.append(n_live_tensors())
    assert counts[1] == counts[2] == counts[0]
    del clf, stopping, scoring
    assert counts[0] - n_live_tensors() <= n_parts  # nothing but the weights


class FailingLoss(ACLLoss):
    """Raises in the second step."""

    def terms(self, *args):
        self.n_calls = getattr(self, "n_calls", 0) + 1
        if self.n_calls == 2:
            raise FloatingPointError("on purpose")
        return super().terms(*args)


@pytest.mark.parametrize("criterion", [ACLLoss, FailingLoss])
def test_tokens_of_a_mapped_dataset_lie_in_a_file_while_training(
    make, monkeypatch, tmp_path, criterion
):
    from datasets import Dataset, load_from_disk

    seen, tmp_path = [], tmp_path / "temporary"
    tmp_path.mkdir()

    class Files(Callback):
        def on_batch_end(self, net, **kwargs):
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            seen.append([path.stat().st_size for path in files])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = Dataset.from_dict({"text": X, "label": Y})
    data.save_to_disk(tmp_path.with_name("data"))
    data = load_from_disk(tmp_path.with_name("data"))
    clf = make(callbacks=[Files()], criterion=criterion)
    if criterion is FailingLoss:
        with pytest.raises(FloatingPointError):
            clf.fit(data, "label")
    else:
        clf.fit(data, "label")
    assert seen and all(len(sizes) == 1 and sizes[0] > 0 for sizes in seen)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_failed_training_leaves_no_optimizer_behind(make):
    clf = make(criterion=FailingLoss)
    with pytest.raises(FloatingPointError):
        clf.fit(X, Y)
    assert clf.optimizer_ is None and clf.step_angles_ == []
    assert all(p.grad is None for p in clf.module_.parameters())


def test_fit_and_predict_leave_the_process_as_they_found_it(make):
    import random

    def state():
        return (
            dict(os.environ),
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            list(warnings.filters),
            Path.cwd(),
        )

    before = state()
    clf = make(random_state=None, max_epochs=2)
    clf.fit(X, Y, validation_data=(X_VALID, Y_VALID))
    clf.predict(X)
    clf.partial_fit(X, Y)
    copy.deepcopy(clf).predict(X)
    after = state()
    for old, new in zip(before, after, strict=True):
        assert old == new
