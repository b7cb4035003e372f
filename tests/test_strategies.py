"""What each strategy runs, trains and leaves alone, step by step."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss
from skorch.callbacks import Callback, Checkpoint, EarlyStopping, EpochScoring
from skorch.dataset import ValidSplit
from tiny import LABELS, TEXTS
from torch import nn

from sklearn_acl import ACLClassifier
from sklearn_acl.criterion import CONTRASTIVE, ACLLoss, LossTerms
from sklearn_acl.gradients import GATE_SCOPES
from sklearn_acl.head_init import initialize_heads
from sklearn_acl.strategies import STRATEGIES, Step, exits_of, stages_of

X, Y = TEXTS[:24], LABELS[:24]
X_VALID, Y_VALID = TEXTS[24:42], LABELS[24:42]
N_STEPS = 3  # of an epoch: 24 texts in batches of 8
SEVERAL = ("joint", "two_stage", "alternating")


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=3)


@pytest.fixture(scope="module")
def still_backbone(tiny_backbone):
    """A backbone without dropout, for steps that must be repeatable by hand."""
    return tiny_backbone(
        "bert",
        num_hidden_layers=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.fixture
def make(backbone):
    """Factory of quiet classifiers with exits after three layers."""

    def factory(strategy, **params):
        defaults = {
            "backbone": backbone,
            "head_init": "random",
            "batch_size": 8,
            "max_epochs": 1,
            "random_state": 0,
            "verbose": 0,
            "device": "cpu",
        }
        return ACLClassifier(strategy=strategy, **(defaults | params))

    return factory


def weights_of(net):
    return {k: v.detach().clone() for k, v in net.module_.state_dict().items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def assert_same_fit(first, second):
    assert not changed(weights_of(first), weights_of(second))
    np.testing.assert_array_equal(first.angles_, second.angles_)


def heads_in(names):
    """Numbers of the exits whose heads the names of weights belong to."""
    return {int(n.split(".")[1]) + 1 for n in names if n.startswith("heads.")}


def trains_encoder(names):
    return any(name.startswith("backbone.") for name in names)


class Steps(Callback):
    """Every step of a training, and the weights before the first and after each."""

    def __init__(self):
        self.weights, self.gradients, self.batches, self.rates = [], [], [], []
        self.starts, self.optimizers, self.losses = [], [], []

    def on_train_begin(self, net, **kwargs):
        self.starts.append(weights_of(net))
        self.weights.append(self.starts[-1])
        groups = net.optimizer_.param_groups
        held = {id(p) for group in groups for p in group["params"]}
        named = net.module_.named_parameters()
        self.optimizers.append({name for name, p in named if id(p) in held})

    def on_grad_computed(self, net, named_parameters, batch, **kwargs):
        self.gradients.append({n for n, p in named_parameters if p.grad is not None})
        self.batches.append(batch)
        self.rates.append([group["lr"] for group in net.optimizer_.param_groups])

    def on_batch_end(self, net, training, loss=None, **kwargs):
        if training:
            self.weights.append(weights_of(net))
            self.losses.append(float(loss))

    def changes(self):
        """Names of the weights that each step changed, stage after stage."""
        pairs = zip(self.weights[:-1], self.weights[1:], strict=True)
        names = [changed(*pair) for pair in pairs]
        between = len(self.weights) // len(self.starts)  # nothing happens there
        kept = [n for i, n in enumerate(names, 1) if i % between]
        assert all(not n for i, n in enumerate(names, 1) if i % between == 0)
        return kept


# -- the table ---------------------------------------------------------------


def test_stages_of_every_strategy():
    exits = (1, 2, 3)
    (joint,) = stages_of("joint", exits)
    assert joint.exits == exits and joint.steps == (Step(exits),)
    (final,) = stages_of("final", exits_of("final", 3))
    assert final.exits == (3,) and final.steps == (Step((3,)),)
    (alternating,) = stages_of("alternating", exits)
    assert alternating.exits == exits
    assert [alternating.step(i).exits for i in range(4)] == [(3,), exits] * 2
    first, second = stages_of("two_stage", exits)
    assert first.steps == (Step((3,)),) and second.exits == (1, 2)
    assert second.steps == (Step((1, 2), teacher=(3,), trains_encoder=False),)
    assert [stage.number for stage in (joint, first, second)] == [None, 1, 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exits_sit_after_every_layer_or_the_last(strategy):
    assert exits_of(strategy, 3) == ((3,) if strategy == "final" else (1, 2, 3))
    assert exits_of(strategy, 1) == (1,)


# -- what a step may change --------------------------------------------------


def allowed(strategy, step, n_steps):
    """Whether the encoder trains at a step, and the exits whose heads do."""
    if strategy == "joint":
        return True, {1, 2, 3}
    if strategy == "final":
        return True, {1}  # its only head
    if strategy == "alternating":
        return True, {3} if step % 2 == 0 else {1, 2, 3}
    return (True, {3}) if step < n_steps else (False, {1, 2})


@pytest.mark.parametrize(
    ("contrastive", "scope", "threshold"),
    [
        ("acl_cl", "encoder", 90.0),
        ("acl_cl", "exit_dense", 0.0),
        ("acl_embed", "ffn_output", None),
        (None, "encoder", 90.0),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_changes_what_it_trains_and_nothing_else(
    make, strategy, contrastive, scope, threshold
):
    steps = Steps()
    make(
        strategy,
        criterion__contrastive=contrastive,
        gate_scope=scope,
        angle_threshold=threshold,
        optimizer__weight_decay=0.5,
        max_grad_norm=0.1,
        callbacks=[steps],
    ).fit(X, Y)
    changes = steps.changes()
    assert len(changes) == N_STEPS * (2 if strategy == "two_stage" else 1)
    for i, (names, gradients) in enumerate(zip(changes, steps.gradients, strict=True)):
        encoder, heads = allowed(strategy, i, N_STEPS)
        assert trains_encoder(names) == trains_encoder(gradients) == encoder
        assert heads_in(names) == heads_in(gradients) == heads
        if encoder:
            layers = [f"backbone.encoder.layer.{k}." for k in range(3)]
            assert all(any(n.startswith(layer) for n in names) for layer in layers)
        # every matrix of a head that trains does so
        for head in heads:
            assert f"heads.{head - 1}.classifier.weight" in names
            assert f"heads.{head - 1}.dense.weight" in names


class Noise(Callback):
    """Changes every gradient that there is, as a user's callback may."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        for _, parameter in named_parameters:
            if parameter.grad is not None:
                parameter.grad.add_(1e-3)


@pytest.mark.parametrize("contrastive", CONTRASTIVE)
def test_stage_two_leaves_encoder_and_last_exit_untouched(make, contrastive, tmp_path):
    steps = Steps()
    clf = make(
        "two_stage",
        criterion__contrastive=contrastive,
        max_epochs=3,
        lr=1e-2,
        optimizer__weight_decay=0.5,
        train_split=ValidSplit(3, stratified=True),
        callbacks=[
            Noise(),
            Checkpoint(dirname=tmp_path, load_best=True, monitor="valid_loss_best"),
            EarlyStopping(patience=2, load_best=True),
            steps,
        ],
    ).fit(X, Y)
    first, second = steps.starts
    kept = {n for n in first if n.startswith(("backbone.", "heads.2."))}
    end = weights_of(clf)
    assert changed(first, second) <= kept and len(kept) < len(first)
    assert heads_in(changed(second, end)) == {1, 2}
    assert not changed(second, end) & kept
    assert all(p.requires_grad and p.grad is None for p in clf.module_.parameters())


@pytest.mark.parametrize("family", ["albert", "deberta-v2", "modernbert"])
def test_stage_two_freezes_every_kind_of_encoder(make, tiny_backbone, family):
    steps = Steps()
    directory = tiny_backbone(family, num_hidden_layers=2)
    make("two_stage", backbone=directory, callbacks=[steps]).fit(X, Y)
    for i, names in enumerate(steps.changes()):
        assert trains_encoder(names) == (i < N_STEPS)
        assert heads_in(names) == ({2} if i < N_STEPS else {1})


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_the_optimizer_of_a_stage_holds_what_the_stage_trains(make, optimizer):
    steps = Steps()
    make("two_stage", optimizer=optimizer, callbacks=[steps], warmup=0.0).fit(X, Y)
    first, second = steps.optimizers
    assert trains_encoder(first) and heads_in(first) == {3}
    assert not trains_encoder(second) and heads_in(second) == {1, 2}
    assert len(second) == 8  # two matrices and two biases each
    steps = Steps()
    make("alternating", optimizer=optimizer, callbacks=[steps]).fit(X, Y)
    assert heads_in(steps.optimizers[0]) == {1, 2, 3}


# -- what runs ---------------------------------------------------------------


class Calls(Callback):
    """Which modules run in training steps, in what mode, and with a graph or not."""

    def __init__(self):
        self.steps, self.calls = [], []

    def on_train_begin(self, net, **kwargs):
        encoder = net.module_
        modules = {f"layer {k}": m for k, m in enumerate(layers_of(encoder), 1)}
        modules |= {f"exit {k}": m for k, m in enumerate(encoder.heads, 1)}
        self.handles = [
            module.register_forward_hook(
                lambda module, args, output, name=name: self.calls.append(
                    (name, module.training, any(o.requires_grad for o in flat(output)))
                )
            )
            for name, module in modules.items()
        ]

    def on_batch_begin(self, net, **kwargs):
        self.calls.clear()

    def on_grad_computed(self, net, **kwargs):
        self.steps.append(sorted(self.calls))

    def on_train_end(self, net, **kwargs):
        for handle in self.handles:
            handle.remove()


def layers_of(encoder):
    return encoder.backbone.encoder.layer


def flat(output):
    return output if isinstance(output, tuple) else (output,)


def ran(names, training, graph):
    return sorted((name, training, graph) for name in names)


LAYERS = ["layer 1", "layer 2", "layer 3"]
HEADS = ["exit 1", "exit 2", "exit 3"]


@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed"])
@pytest.mark.parametrize("strategy", SEVERAL)
def test_no_head_runs_in_vain(make, strategy, contrastive):
    calls = Calls()
    make(strategy, criterion__contrastive=contrastive, callbacks=[calls]).fit(X, Y)
    last, every = ran(LAYERS + HEADS[2:], True, True), ran(LAYERS + HEADS, True, True)
    if strategy == "joint":
        assert calls.steps == [every] * N_STEPS
    elif strategy == "alternating":
        assert calls.steps == [last, every, last]
    else:
        # the teacher's layer and head run for a loss that has a teacher only
        frozen = LAYERS + HEADS[2:] if contrastive == "acl_cl" else LAYERS[:2]
        second = sorted(ran(frozen, False, False) + ran(HEADS[:2], True, True))
        assert calls.steps == [last] * N_STEPS + [second] * N_STEPS


def test_the_frozen_encoder_gives_the_heads_what_prediction_gives(make):
    """No dropout in stage two: equal texts have equal hidden states in every step."""
    seen = []

    class Pooled(Callback):
        def on_train_begin(self, net, **kwargs):
            dense = net.module_.heads[0].dropout
            self.handle = dense.register_forward_pre_hook(
                lambda module, args: seen.append(args[0].detach().clone())
            )

        def on_train_end(self, net, **kwargs):
            self.handle.remove()

    clf = make("two_stage", callbacks=[Pooled()], batch_size=24, max_epochs=2)
    clf.fit(X, Y)
    pooled = seen[::2]  # a head drops out before both of its layers
    assert len(pooled) == 2
    order = [rows.sum(1).argsort() for rows in pooled]
    first, second = (rows[o] for rows, o in zip(pooled, order, strict=True))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


# -- a slow loop in plain torch ----------------------------------------------


def slow_contrast(rows, labels, n_anchors, tau):
    """SCL over the first rows as anchors; those without a positive are left out."""
    rows = F.normalize(rows, dim=1)
    logits = rows @ rows.T / tau
    values = []
    for i in range(n_anchors):
        others = [a for a in range(len(rows)) if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if positives:
            log_sum = logits[i, others].logsumexp(0)
            values.append(log_sum - logits[i, positives].mean())
    return torch.stack(values).mean()


def slow_terms(kind, z, v, labels, exits, teacher, tau):
    """Cross-entropy-free part: the contrastive value of each of the exits."""
    classes = torch.arange(len(v[exits[0]]))
    values = []
    for m in exits:
        own, own_labels = torch.cat([z[m], v[m]]), torch.cat([labels, classes])
        if kind == "scl":
            values.append(slow_contrast(z[m], labels, len(labels), tau))
        elif kind == "acl_embed" or teacher in (None, m):
            values.append(slow_contrast(own, own_labels, len(own), tau))
        else:
            both = torch.cat([own, z[teacher].detach(), v[teacher].detach()])
            values.append(slow_contrast(both, own_labels.repeat(2), len(own), tau))
    return values


class SlowModel:
    """The encoder and its exits, from a state dict, through transformers alone."""

    def __init__(self, directory, state):
        from transformers import AutoModel

        self.bert = AutoModel.from_pretrained(directory, add_pooling_layer=False)
        prefix = "backbone."
        self.bert.load_state_dict(
            {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
        )
        self.heads = {}
        for m in (1, 2, 3):
            names = ("dense.weight", "dense.bias", "classifier.weight")
            names += ("classifier.bias",)
            self.heads[m] = [
                nn.Parameter(state[f"heads.{m - 1}.{name}"].clone()) for name in names
            ]

    def __call__(self, inputs):
        states = self.bert(**inputs, output_hidden_states=True).hidden_states
        mask = inputs["attention_mask"][:, :, None].float()
        logits, embeddings, labels = {}, {}, {}
        for m, (dense, shift, classifier, bias) in self.heads.items():
            pooled = (states[m] * mask).sum(1) / mask.sum(1)
            embeddings[m] = torch.tanh(pooled @ dense.T + shift)
            logits[m] = embeddings[m] @ classifier.T + bias
            labels[m] = classifier
        return logits, embeddings, labels

    def named(self):
        yield from ((f"backbone.{n}", p) for n, p in self.bert.named_parameters())
        names = ("dense.weight", "dense.bias", "classifier.weight", "classifier.bias")
        for m, head in self.heads.items():
            yield from zip(
                (f"heads.{m - 1}.{name}" for name in names), head, strict=True
            )

    def gate_parameters(self, scope, exits):
        layers = self.bert.encoder.layer
        if scope == "encoder":
            return [list(layers.parameters())]
        if scope == "exit_dense":
            return [[self.heads[m][0] for m in exits]]
        return [[layers[m - 1].output.dense.weight] for m in exits]


def slow_angle(model, scope, exits, ce, contrastive, share):
    """Angle of the averaged terms; "ffn_output" takes each exit's own terms."""
    vectors = [[], []]
    for vector, terms in zip(vectors, (ce, contrastive), strict=True):
        groups = model.gate_parameters(scope, exits)
        parts = [w * t for w, t in zip(share, terms, strict=True)]
        if scope != "ffn_output":
            parts = [sum(parts)]
        for part, parameters in zip(parts, groups, strict=True):
            gradients = torch.autograd.grad(
                part, parameters, retain_graph=True, allow_unused=True
            )
            vector += [
                (torch.zeros_like(p) if g is None else g).flatten().double()
                for p, g in zip(parameters, gradients, strict=True)
            ]
    a, b = (torch.cat(vector) for vector in vectors)
    return math.degrees(math.acos(float(a @ b / a.norm() / b.norm())))


def slow_stage(model, batches, trains, *, kind, scope, threshold, weights):
    """One stage by hand: SGD with momentum, decay and clipping, linear schedule.

    ``trains(i)`` is (exits, teacher, whether the encoder trains) of step i.
    """
    lam, tau, lr, warmup = 0.5, 0.3, 0.05, 0.5
    everything = {m for i in range(len(batches)) for m in trains(i)[0]}
    groups = []
    for prefix, rate in (("backbone.", lr), ("heads.", 2 * lr)):
        for decay, dims in ((0.1, (2,)), (0.0, (1,))):
            held = [
                p
                for name, p in model.named()
                if name.startswith(prefix)
                and p.ndim in dims
                and (trains(0)[2] if prefix == "backbone." else True)
                and (prefix == "backbone." or heads_in([name]) <= everything)
            ]
            if held:
                groups.append({"params": held, "lr": rate, "weight_decay": decay})
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    parameters = [p for group in groups for p in group["params"]]
    base = [group["lr"] for group in groups]
    n_warm = round(warmup * len(batches))
    angles, states, losses = [], [], []
    for i, (inputs, labels, _) in enumerate(batches):
        factor = (i + 1) / (n_warm + 1)
        if i >= n_warm:
            factor = (len(batches) - i) / max(1, len(batches) - n_warm)
        for group, rate in zip(groups, base, strict=True):
            group["lr"] = rate * factor
        for _, parameter in model.named():
            parameter.grad = None
        exits, teacher, _ = trains(i)
        logits, z, v = model(inputs)
        share = np.array([m if weights == "linear" else 1 for m in range(1, 4)])
        share = (share[: len(exits)] / share[: len(exits)].sum()).tolist()
        ce = [F.cross_entropy(logits[m], labels) for m in exits]
        loss = sum(w * t for w, t in zip(share, ce, strict=True))
        if kind is not None:
            contrastive = slow_terms(kind, z, v, labels, exits, teacher, tau)
            angle = slow_angle(model, scope, exits, ce, contrastive, share)
            angles.append(angle)
            if angle <= threshold:
                extra = sum(w * t for w, t in zip(share, contrastive, strict=True))
                loss = (1 - lam) * loss + lam * extra
        loss.backward(inputs=parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses.append(loss.item())
        states.append({name: p.detach().clone() for name, p in model.named()})
    return states, angles, losses


def slow_fit(strategy, model, batches, **settings):
    """All stages of a strategy by hand; every step's weights, angle and loss."""
    settings["scope"] = settings.pop("gate_scope")
    if strategy == "alternating":

        def trains(i):
            return ((1, 2, 3), 3, True) if i % 2 else ((3,), None, True)

        return slow_stage(model, batches, trains, **settings)
    half = len(batches) // 2
    one = slow_stage(model, batches[:half], lambda i: ((3,), None, True), **settings)
    settings["scope"] = "exit_dense"
    two = slow_stage(model, batches[half:], lambda i: ((1, 2), 3, False), **settings)
    return tuple(a + b for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("kind", "scope", "threshold", "weights"),
    [
        ("acl_cl", "ffn_output", 75.0, "linear"),
        ("acl_embed", "exit_dense", 75.0, "uniform"),
        ("scl", "encoder", 90.0, "uniform"),
        (None, "ffn_output", 90.0, "linear"),
    ],
)
@pytest.mark.parametrize("strategy", ["alternating", "two_stage"])
def test_a_fit_equals_a_slow_loop(
    make, still_backbone, strategy, kind, scope, threshold, weights
):
    steps = Steps()
    clf = make(
        strategy,
        backbone=still_backbone,
        criterion__contrastive=kind,
        criterion__exit_weights=weights,
        gate_scope=scope,
        angle_threshold=threshold,
        module__dropout=0.0,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        optimizer__weight_decay=0.1,
        lr=0.05,
        head_lr_factor=2.0,
        warmup=0.5,
        max_grad_norm=0.5,
        max_epochs=2,
        callbacks=[steps],
    ).fit(X, Y)
    model = SlowModel(still_backbone, steps.starts[0])
    states, angles, losses = slow_fit(
        strategy,
        model,
        steps.batches,
        kind=kind,
        gate_scope=scope,
        threshold=threshold,
        weights=weights,
    )
    stages = len(steps.starts)
    actual = [w for i, w in enumerate(steps.weights) if i % (2 * N_STEPS + 1)]
    assert len(actual) == len(states) == 2 * N_STEPS * stages
    for step, expected in zip(actual, states, strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(step[name], value, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(steps.losses, losses, rtol=1e-4)
    if kind is not None:
        np.testing.assert_allclose(clf.angles_, angles, atol=0.05)


# -- objectives --------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_weight_the_contrastive_term_is_not_there(make, strategy):
    plain = make(strategy, criterion__contrastive=None).fit(X, Y)
    assert_same_fit(make(strategy, criterion__lam=0).fit(X, Y), plain)
    assert np.isnan(plain.angles_).all()


def test_stage_one_knows_no_teacher(make):
    middle, end = [], []
    for kind in ("acl_cl", "acl_embed"):
        steps = Steps()
        clf = make("two_stage", criterion__contrastive=kind, callbacks=[steps])
        end.append(weights_of(clf.fit(X, Y)))
        middle.append(steps.starts[1])
    assert not changed(*middle)
    assert heads_in(changed(*end)) == {1, 2}


def test_stage_one_is_the_final_strategy(make, still_backbone):
    """Heads differ in number, so dropout would draw other masks."""
    common = {"backbone": still_backbone, "module__dropout": 0.0, "head_init": "lda"}
    steps = Steps()
    make("two_stage", callbacks=[steps], **common).fit(X, Y)
    final = weights_of(make("final", **common).fit(X, Y))
    for name, value in final.items():
        own = name.replace("heads.0.", "heads.2.")
        torch.testing.assert_close(steps.starts[1][own], value, rtol=0, atol=1e-6)


class UntaughtLoss(ACLLoss):
    """A criterion of the user's own that never reads the last exit."""

    has_teacher = False

    def terms(self, outputs, labels, weight=None):
        self.n_exits = len(outputs.logits)
        return super().terms(outputs, labels, weight)


class BareLoss:
    """A criterion that says nothing of a teacher: the last exit runs along."""

    has_contrastive = False

    def terms(self, outputs, labels, weight=None):
        self.n_exits = len(outputs.logits)
        values = [F.cross_entropy(logits, labels) for logits in outputs.logits]
        return LossTerms(torch.stack(values), None)

    def average(self, values):
        return values.mean()

    def combine(self, terms, gated=False):
        return terms.cross_entropy.mean()


def test_criteria_of_the_users_own_may_have_a_teacher(make):
    clf = make("two_stage", criterion=UntaughtLoss, criterion__contrastive="scl")
    assert clf.fit(X, Y).criterion_.n_exits == 2
    steps = Steps()
    clf = ACLClassifier(
        **{**make("two_stage").get_params(deep=False), "criterion": BareLoss}
    )
    for name in [n for n in clf.get_params(deep=False) if n.startswith("criterion__")]:
        delattr(clf, name)
    clf.callbacks = [steps]
    clf.fit(X, Y)
    assert clf.criterion_.n_exits == 3
    plain = Steps()
    make("two_stage", criterion__contrastive=None, callbacks=[plain]).fit(X, Y)
    np.testing.assert_allclose(steps.losses[3:4], plain.losses[3:4], rtol=1e-5)


def test_the_second_stage_measures_at_the_heads_whatever_the_scope(make):
    angles = []
    for scope in GATE_SCOPES:
        clf = make("two_stage", gate_scope=scope, angle_threshold=180.0).fit(X, Y)
        assert clf.angles_.dtype == np.float32 and len(clf.angles_) == 2 * N_STEPS
        assert np.isfinite(clf.angles_).all() and (clf.angles_ > 0).all()
        assert all("angle_mean" in epoch for epoch in clf.history)
        angles.append(clf.angles_)
    for other in angles[1:]:
        np.testing.assert_allclose(other[N_STEPS:], angles[0][N_STEPS:], atol=0.01)
        assert not np.allclose(other[:N_STEPS], angles[0][:N_STEPS], atol=0.01)


# -- a single exit -----------------------------------------------------------


@pytest.mark.parametrize("contrastive", ["acl_cl", None])
def test_with_one_layer_all_strategies_are_one(make, contrastive):
    fits = {}
    for strategy in STRATEGIES:
        clf = make(strategy, n_layers=1, criterion__contrastive=contrastive)
        fits[strategy] = clf.fit(X, Y)
        assert clf.exit_layer_numbers_ == (1,) and len(clf.angles_) == N_STEPS
        assert_same_fit(clf, fits["joint"])


# -- accumulation, weights, going on -----------------------------------------


@pytest.mark.parametrize("strategy", SEVERAL)
def test_turns_are_taken_by_optimizer_step(make, strategy):
    steps = Steps()
    make(
        strategy,
        batch_size=4,
        gradient_accumulation_steps=2,
        callbacks=[steps],
    ).fit(X, Y)
    changes = steps.changes()
    assert len(changes) == N_STEPS * len(steps.starts)
    for i, names in enumerate(changes):
        encoder, heads = allowed(strategy, i, N_STEPS)
        assert trains_encoder(names) == encoder and heads_in(names) == heads


def test_turns_go_on_through_the_epochs(make):
    steps = Steps()
    make("alternating", max_epochs=3, callbacks=[steps]).fit(X, Y)
    heads = [heads_in(names) for names in steps.changes()]
    assert heads == ([{3}, {1, 2, 3}] * 5)[: 3 * N_STEPS]


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_accumulation_takes_the_step_of_a_large_batch(make, still_backbone, strategy):
    """For cross-entropy; a contrastive term depends on what shares a mini-batch."""
    common = {
        "backbone": still_backbone,
        "module__dropout": 0.0,
        "criterion__contrastive": None,
        "optimizer": torch.optim.SGD,
        "lr": 0.05,
    }
    large = make(strategy, batch_size=8, **common).fit(X, Y)
    split = make(strategy, batch_size=4, gradient_accumulation_steps=2, **common)
    first, second = weights_of(large), weights_of(split.fit(X, Y))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_weights_of_one_are_none(make, strategy):
    plain = make(strategy).fit(X, Y)
    ones = make(strategy, class_weight=dict.fromkeys(set(Y), 1.0))
    assert_same_fit(ones.fit(X, Y, sample_weight=np.full(24, 2.0)), plain)
    other = make(strategy, class_weight={"sport": 5.0}).fit(X, Y)
    assert changed(weights_of(plain), weights_of(other))


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_weightless_texts_teach_no_exit_anything(make, still_backbone, strategy):
    common = {
        "backbone": still_backbone,
        "module__dropout": 0.0,
        "criterion__contrastive": None,
        "batch_size": 24,
    }
    weights = [1] * 12 + [0] * 12
    ends = []
    for label in ("sport", "food"):
        labels = Y[:12] + [label] * 12
        clf = make(strategy, **common).fit(X, labels, sample_weight=weights)
        ends.append(weights_of(clf))
    assert not changed(*ends)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_mixed_precision_trains_every_exit(make, strategy, precision):
    steps = Steps()
    clf = make(strategy, mixed_precision=precision, callbacks=[steps])
    clf.fit(X, Y)
    for i, names in enumerate(steps.changes()):
        encoder, heads = allowed(strategy, i, N_STEPS)
        # a step of fp16 may be skipped, but never goes where it must not
        assert encoder or not trains_encoder(names)
        assert heads_in(names) <= heads
    assert heads_in(changed(steps.starts[0], weights_of(clf))) == {1, 2, 3}


@pytest.fixture
def starts(monkeypatch):
    """Grows by one with every start of the heads."""
    from sklearn_acl import net

    calls, start = [], net.initialize_heads

    def spy(*args, **kwargs):
        calls.append(kwargs["method"])
        return start(*args, **kwargs)

    monkeypatch.setattr(net, "initialize_heads", spy)
    return calls


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_partial_fit_is_one_pass_of_the_strategy(make, starts, strategy):
    steps = Steps()
    clf = make(strategy, callbacks=[steps], max_epochs=5)
    clf.partial_fit(X, Y)
    clf.partial_fit(X, Y)
    n_stages = 2 if strategy == "two_stage" else 1
    assert len(steps.starts) == len(clf.history) == 2 * n_stages
    changes = steps.changes()
    assert len(changes) == 2 * n_stages * N_STEPS
    for i, names in enumerate(changes):
        # a second call begins as the first did
        encoder, heads = allowed(strategy, i % (n_stages * N_STEPS), N_STEPS)
        assert trains_encoder(names) == encoder and heads_in(names) == heads
    assert {rate for rates in steps.rates for rate in rates} <= {1e-4, 5e-4}
    assert starts == ["random"]


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_warm_start_goes_through_the_strategy_again(make, starts, strategy):
    steps = Steps()
    clf = make(strategy, callbacks=[steps], warm_start=True)
    end = weights_of(clf.fit(X, Y))
    n_stages = len(steps.starts)
    clf.fit(X_VALID, Y_VALID)
    assert not changed(steps.starts[n_stages], end)
    assert len(steps.starts) == 2 * n_stages and starts == ["random"]
    for i, names in enumerate(steps.changes()):
        encoder, heads = allowed(strategy, i % (n_stages * N_STEPS), N_STEPS)
        assert trains_encoder(names) == encoder and heads_in(names) == heads


@pytest.mark.parametrize("head_init", ["centroid", "linear_probe"])
def test_the_second_stage_starts_its_heads_on_the_encoder_that_it_reads(
    make, head_init
):
    steps = Steps()
    clf = make("two_stage", head_init=head_init, lr=1e-3, callbacks=[steps])
    clf.fit(X, Y)
    end_of_first, start_of_second = steps.weights[N_STEPS], steps.starts[1]
    assert heads_in(changed(end_of_first, start_of_second)) == {1, 2}
    assert not trains_encoder(changed(end_of_first, start_of_second))
    # as a new start on that encoder would set them
    twin = copy.deepcopy(clf)
    twin.module_.load_state_dict(end_of_first)
    tokens = twin.tokenizer_(X, padding=True, return_tensors="pt")
    codes = torch.from_numpy(np.searchsorted(clf.classes_, Y))
    initialize_heads(
        twin.module_, [(tokens, codes, None)], method=head_init, seed=clf.seed_
    )
    for name in changed(end_of_first, start_of_second):
        torch.testing.assert_close(
            start_of_second[name], weights_of(twin)[name], rtol=1e-3, atol=1e-4
        )


def test_heads_that_have_trained_are_not_started_again(make, starts):
    clf = make("two_stage", head_init="centroid")
    clf.fit(X, Y)
    assert starts == ["centroid"] * 2
    clf.set_params(warm_start=True).fit(X, Y)
    clf.partial_fit(X, Y)
    assert starts == ["centroid"] * 2


# -- schedule, history, validation, callbacks --------------------------------


def test_each_stage_has_a_schedule_of_its_own(make):
    steps = Steps()
    make("two_stage", max_epochs=2, warmup=0.5, lr=1e-3, callbacks=[steps]).fit(X, Y)
    rising = [1 / 4, 2 / 4, 3 / 4]
    falling = [3 / 3, 2 / 3, 1 / 3]
    factors = np.array(rising + falling)
    half = 2 * N_STEPS
    encoder_rates = [rates[0] for rates in steps.rates[:half]]
    np.testing.assert_allclose(encoder_rates, factors * 1e-3)
    for stage in (steps.rates[:half], steps.rates[half:]):
        np.testing.assert_allclose([rates[-1] for rates in stage], factors * 5e-3)
    assert [len(rates) for rates in steps.rates] == [4] * half + [2] * half


def test_history_counts_on_and_names_the_stage(make, capsys):
    clf = make("two_stage", max_epochs=2, verbose=1).fit(X, Y)
    assert clf.history[:, ("epoch", "stage")] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert capsys.readouterr().out.count("train_loss") == 1  # one table
    for strategy in ("joint", "alternating", "final"):
        assert "stage" not in make(strategy).fit(X, Y).history[-1]


def valid_loss(clf, exits):
    proba = clf.predict_proba_exits(X_VALID)
    losses = [log_loss(Y_VALID, proba[m - 1], labels=clf.classes_) for m in exits]
    return np.mean(losses)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("joint", [(1, 2, 3)]),
        ("alternating", [(1, 2, 3)]),
        ("final", [(1,)]),
        ("two_stage", [(3,), (1, 2)]),
    ],
)
def test_validation_monitors_what_the_stage_trains(make, strategy, expected):
    seen = []

    class Score(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(valid_loss(net, expected[len(seen)]))

    clf = make(strategy, callbacks=[Score()])
    clf.fit(X, Y, validation_data=(X_VALID, Y_VALID))
    np.testing.assert_allclose(clf.history[:, "valid_loss"], seen, rtol=1e-5)


class Scripted(Callback):
    """Overwrites what was monitored."""

    def __init__(self, name, values):
        self.name = name
        self.values = values

    def on_epoch_end(self, net, **kwargs):
        net.history.record(self.name, self.values[len(net.history) - 1])


def test_early_stopping_works_stage_by_stage(make):
    steps, ends = Steps(), []

    class Ends(Callback):
        def on_epoch_end(self, net, **kwargs):
            ends.append(weights_of(net))

    losses = [1.0, 2.0, 3.0] + [9.0, 8.0, 9.5, 9.6, 1.0]
    clf = make(
        "two_stage",
        max_epochs=8,
        callbacks=[
            steps,
            Ends(),
            Scripted("valid_loss", losses),
            EarlyStopping(patience=2, load_best=True),
        ],
        train_split=ValidSplit(3, stratified=True),
    ).fit(X, Y)
    assert clf.history[:, "stage"] == [1, 1, 1, 2, 2, 2, 2]
    assert not changed(steps.starts[1], ends[0])  # the best of the first stage
    assert not changed(weights_of(clf), ends[4])  # and of the second


@pytest.mark.parametrize("scoring", [None, "accuracy"])
def test_checkpoint_never_puts_the_first_stage_back(make, tmp_path, scoring):
    """Later scores are of other exits: they compete with each other only."""
    callbacks = [Checkpoint(monitor="valid_loss_best", dirname=tmp_path)]
    if scoring:
        score = EpochScoring(scoring, name="mine", lower_is_better=False)
        callbacks = [score, Checkpoint(monitor="mine_best", dirname=tmp_path)]
    callbacks[-1].load_best = True
    steps = Steps()
    clf = make(
        "two_stage",
        callbacks=[*callbacks, steps],
        train_split=ValidSplit(3, stratified=True),
    ).fit(X, Y)
    end = weights_of(clf)
    assert heads_in(changed(steps.starts[1], end)) == {1, 2}
    name = "mine_best" if scoring else "valid_loss_best"
    assert clf.history[:, name] == [True, True]


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


@pytest.mark.parametrize("after", [0, 2, 3, 5])
def test_interruption_ends_the_training_whatever_the_stage(make, after):
    steps = Steps()
    clf = make(
        "two_stage",
        criterion=InterruptedLoss,
        criterion__after=after,
        callbacks=[steps],
        warmup=0.0,
    )
    with pytest.warns(UserWarning, match="interrupted") as record:
        clf.fit(X, Y)
    assert len(record) == 1 and record[0].filename == __file__
    assert len(clf.angles_) == after
    in_first = after < N_STEPS
    assert len(steps.starts) == (1 if in_first else 2)
    assert ("Only the last exit" in str(record[0].message)) == in_first
    names = changed(steps.starts[0], weights_of(clf))
    assert trains_encoder(names) == (after > 0)
    assert heads_in(names) == ({3} if after else set()) | (
        {1, 2} if after > N_STEPS else set()
    )
    assert all(p.requires_grad for p in clf.module_.parameters())
    assert clf.predict_proba_exits(X).shape == (3, 24, 3)


# -- determinism, copies -----------------------------------------------------


@pytest.mark.parametrize("strategy", ["two_stage", "alternating"])
def test_two_fits_are_equal_to_the_bit(make, strategy):
    first, second = make(strategy).fit(X, Y), make(strategy).fit(X, Y)
    assert_same_fit(first, second)
    other = make(strategy, random_state=1).fit(X, Y)
    assert changed(weights_of(other), weights_of(first))


@pytest.mark.parametrize("copied", [copy.deepcopy, "pickle"])
def test_a_copy_made_in_the_second_stage_trains_from_the_first_on(make, copied):
    copies = []

    class Copy(Callback):
        def on_grad_computed(self, net, **kwargs):
            if net.history[-1, "stage"] == 2 and not copies:
                net.callbacks, callbacks = None, net.callbacks
                copies.append(
                    pickle.loads(pickle.dumps(net))
                    if copied == "pickle"
                    else copied(net)
                )
                net.callbacks = callbacks

    make("two_stage", callbacks=[Copy()]).fit(X, Y)
    (clf,) = copies
    assert all(p.requires_grad for p in clf.module_.parameters())
    steps = Steps()
    clf.set_params(callbacks=[steps]).partial_fit(X, Y)
    for i, names in enumerate(steps.changes()):
        encoder, heads = allowed("two_stage", i, N_STEPS)
        assert trains_encoder(names) == encoder and heads_in(names) == heads


def test_a_failing_second_stage_leaves_nothing_frozen(make):
    class Failing(Callback):
        def on_grad_computed(self, net, **kwargs):
            if net.history[-1, "stage"] == 2:
                raise RuntimeError("of the user's own")

    clf = make("two_stage", callbacks=[Failing()])
    with pytest.raises(RuntimeError, match="of the user's own"):
        clf.fit(X, Y)
    assert clf.optimizer_ is None and clf.stage_ is None
    assert all(p.requires_grad and p.grad is None for p in clf.module_.parameters())


def test_a_parameter_that_the_user_froze_stays_frozen(make):
    class Freeze(Callback):
        def on_train_begin(self, net, **kwargs):
            net.module_.backbone.embeddings.requires_grad_(False)

    clf = make("two_stage", callbacks=[Freeze()]).fit(X, Y)
    named = dict(clf.module_.backbone.named_parameters())
    assert {n for n, p in named.items() if not p.requires_grad} == {
        n for n in named if n.startswith("embeddings.")
    }


class TiedEncoder:
    """Stands for a user's module whose exits share a matrix."""

    def __init__(self):
        self.heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.heads[0].weight = self.heads[2].weight
        self.exit_layer_numbers = (1, 2, 3)


def test_a_shared_parameter_trains_with_any_of_its_exits():
    encoder = TiedEncoder()
    every = list(encoder.heads.parameters())
    trained = Step((3,)).parameters(encoder, every)
    assert set(map(id, trained)) == set(map(id, encoder.heads[2].parameters()))
