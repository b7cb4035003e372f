"""The parameter check: every bad value is refused before a backbone is looked for."""

import inspect
import math
import re
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch.callbacks import Callback, EarlyStopping, PrintLog
from skorch.dataset import ValidSplit
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier
from sklearn_acl.parameters import check_parameters, resolve_device

# looking for it would raise another error than those below
NOWHERE = "no/such/backbone"

INF, NAN = math.inf, math.nan
NOT_NUMBERS = [True, np.bool_(False), "0.5", [0.5], NAN]
NOT_COUNTS = [*NOT_NUMBERS, 1.0, np.float64(2), 0, -1, INF]
CRITERION = "criterion__"

#: Parameter -> what its message calls the range -> values outside of it.
BAD_VALUES = {
    "n_layers": ("[1, inf)", NOT_COUNTS),
    "pooling": ("'cls', 'mean'", ["max", "Mean", "", None, 0, ["mean"]]),
    "head_init": (
        "'centroid', 'lda', 'linear_probe', 'random'",
        ["zeros", "Random", None, 1],
    ),
    "max_length": ("[1, inf)", NOT_COUNTS),
    "strategy": (
        "'alternating', 'final', 'joint', 'two_stage'",
        ["two stage", "Joint", None, 1],
    ),
    "angle_threshold": ("[0.0, 180.0]", [*NOT_NUMBERS, -1e-9, -1, 180.1, INF, -INF]),
    "gate_scope": (
        "'encoder', 'exit_dense', 'ffn_output'",
        ["ffn", "Encoder", None, 3],
    ),
    "lr": ("(0.0, inf)", [*NOT_NUMBERS, 0, 0.0, -1e-4, None, INF, -INF]),
    "head_lr_factor": ("(0.0, inf)", [*NOT_NUMBERS, 0, -5.0, None, INF, -INF]),
    "warmup": ("[0.0, 1.0]", [*NOT_NUMBERS, -0.1, 1.1, None, INF]),
    "lr_schedule": ("'constant', 'linear'", ["cosine", "Linear", None, 1]),
    "max_epochs": ("[1, inf)", [*NOT_COUNTS, None]),
    "batch_size": ("[1, inf)", [*NOT_COUNTS, None]),
    "gradient_accumulation_steps": ("[1, inf)", [*NOT_COUNTS, None]),
    "max_grad_norm": ("(0.0, inf)", [*NOT_NUMBERS, 0, -1.0, INF, -INF]),
    "mixed_precision": ("'auto', 'bf16', 'fp16'", ["fp32", "BF16", True, 16]),
    "class_weight": ("'balanced'", ["uniform", 2.0, [1.0, 2.0, 3.0]]),
    "classes": ("array-like", [3, True]),
    "random_state": ("RandomState", [1.5, "0", -1, [0]]),
    "train_split": ("callable", [0.2, 5, "stratified"]),
    "callbacks": ("'list'", [3, "enable", (EarlyStopping(),), EarlyStopping()]),
    "warm_start": ("bool", ["yes", None, 2.5]),
    "verbose": ("int", ["loud", None, -1, 0.5]),
}


def named(values):
    return [pytest.param(name, value, id=id_of(name, value)) for name, value in values]


def id_of(name, value):
    return re.sub(" at 0x[0-9A-Fa-f]+", "", f"{name}={value!r}")  # alike in every run


def fit(**parameters):
    parameters.setdefault("backbone", NOWHERE)
    return ACLClassifier(**parameters).fit(TEXTS, LABELS)


@pytest.mark.parametrize(
    "name, value",
    named((name, value) for name, (_, bad) in BAD_VALUES.items() for value in bad),
)
def test_a_bad_value_is_named_with_what_may_be(name, value):
    with pytest.raises((TypeError, ValueError)) as raised:
        fit(**{name: value})
    message = str(raised.value)
    assert f"{name!r} parameter of ACLClassifier" in message
    assert repr(value) in message or "NaN" in message or str(value) in message
    is_bool = isinstance(value, (bool, np.bool_))
    if "must be a number" in message:
        assert is_bool
    else:
        allowed = BAD_VALUES[name][0]
        # choices stand in no order
        allowed = allowed.split(", ") if "'" in allowed else [allowed]
        assert all(choice in message for choice in allowed)


BAD_PARTS = {
    "criterion__lam": ("in [0, 1]", [*NOT_NUMBERS, -0.1, 1.5, None, INF]),
    "criterion__temperature": (
        "above 0 and finite",
        [*NOT_NUMBERS, 0, -0.3, None, INF],
    ),
    "criterion__contrastive": ("'acl_cl', 'acl_embed', 'scl', None", ["simclr", 1]),
    "criterion__anchors": ("'all', 'labels'", ["texts", None, 1]),
    "criterion__distill": ("'replace', 'add'", ["both", None]),
    "criterion__exit_weights": ("'uniform', 'linear'", ["quadratic", None, [1, 2]]),
    "module__dropout": ("[0, 1)", [*NOT_NUMBERS, -0.1, 1, 1.5, None]),
    "module__gradient_equilibrium": ("True or False", [1, 0.0, None, "yes"]),
    "exit_threshold": ("[0, 1]", [*NOT_NUMBERS, -0.1, 1.1, INF]),
    "exit_rule": (
        "'confidence', 'entropy', 'patience', 'patience_entropy'",
        ["margin", "Entropy", None, 1],
    ),
    "exit_patience": ("integer of at least 1", [*NOT_COUNTS, None]),
}


@pytest.mark.parametrize(
    "name, value",
    named((name, value) for name, (_, bad) in BAD_PARTS.items() for value in bad),
)
def test_a_bad_value_of_a_part_is_named_with_what_may_be(name, value):
    with pytest.raises((TypeError, ValueError)) as raised:
        fit(**{name: value})
    message = str(raised.value)
    assert message.startswith(f"{name}={value!r} must be ")
    assert BAD_PARTS[name][0] in message or "number" in message


def test_every_parameter_has_a_bad_value_in_these_tests():
    tested = set(BAD_VALUES) | set(BAD_PARTS)
    tested |= {"backbone", "text_columns", "device", "exit_layer", "memory"}  # below
    tested |= {"criterion", "module", "optimizer", "iterator_train", "iterator_valid"}
    signature = inspect.signature(ACLClassifier).parameters
    assert {name for name in tested if "module__" not in name} == set(signature) - {
        "kwargs"
    }


# --- names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, hint",
    [
        ("criterion__lamda", "contrastive"),
        ("criterion__tau", "temperature"),
        ("module__foo", "dropout"),
        ("optimizer__foo", "weight_decay"),
        ("iterator_train__foo", "num_workers"),
        ("iterator_valid__foo", "num_workers"),
    ],
)
def test_a_misspelt_parameter_of_a_part_is_answered_with_the_list(name, hint):
    part = name.partition("__")[0]
    with pytest.raises(ValueError) as raised:
        fit(**{name: 0.5})
    message = str(raised.value)
    assert message.startswith(f"Unknown parameter {name}; {part}__ takes: ")
    assert hint in message


@pytest.mark.parametrize(
    "name",
    [
        "module__backbone",
        "module__n_classes",
        "module__exit_layers",
        "module__pooling",
        "optimizer__params",
        "iterator_train__shuffle",
        "iterator_train__sampler",
        "iterator_train__batch_sampler",
        "iterator_train__collate_fn",
        "iterator_valid__dataset",
    ],
)
def test_what_the_classifier_sets_itself_is_no_parameter(name):
    with pytest.raises(ValueError) as raised:
        fit(**{name: 1})
    unknown, known = str(raised.value).split(" takes: ")
    assert unknown.startswith(f"Unknown parameter {name};")
    assert name.partition("__")[2] not in known.rstrip(".").split(", ")


@pytest.mark.parametrize(
    "name, hint",
    [
        ("learning_rate", None),
        ("max_epoch", "max_epochs"),
        ("criterion_lam", "criterion__lam"),
        ("angle_treshold", "angle_threshold"),
        ("exitlayer", "exit_layer"),
        ("loss__lam", None),
    ],
)
def test_a_misspelt_parameter_is_answered_with_the_closest(name, hint):
    with pytest.raises(TypeError) as raised:
        fit(**{name: 1})
    message = str(raised.value)
    assert message.startswith(f"ACLClassifier has no parameter {name!r}.")
    assert f"Did you mean {hint!r}?" in message if hint else "Did you" not in message
    for prefix in ("criterion__", "module__", "optimizer__", "callbacks__"):
        assert prefix in message


@pytest.mark.parametrize(
    "name", ["compile", "dataset", "predict_nonlinearity", "torch_load_kwargs", "lr_"]
)
def test_skorchs_parameters_without_a_meaning_here_are_refused(name):
    with pytest.raises(TypeError, match=f"has no parameter '{name}'"):
        ACLClassifier(**{name: None})


def test_a_callback_that_is_not_there_is_named():
    message = "callbacks__stop__patience: there is no callback 'stop'; there are: "
    with pytest.raises(ValueError, match=message + ".*print_log"):
        fit(callbacks__stop__patience=3)


def test_two_callbacks_of_a_name():
    with pytest.raises(ValueError, match="stop"):
        fit(callbacks=[("stop", EarlyStopping()), ("stop", EarlyStopping())])


# --- values with a check of their own -----------------------------------------------


@pytest.mark.parametrize("backbone", [None, 3, torch.nn.Linear(2, 2), b"name", [""]])
def test_a_backbone_is_a_name_or_a_directory(backbone):
    with pytest.raises(TypeError, match="'backbone' parameter must be a name or a dir"):
        fit(backbone=backbone)


def test_a_backbone_has_a_name():
    with pytest.raises(ValueError, match="'backbone' parameter is an empty string"):
        fit(backbone="")


@pytest.mark.parametrize("columns", [3, [], ["a", "b", "c"], {"a"}, True])
def test_text_columns_are_one_or_two_names(columns):
    with pytest.raises(ValueError, match="text_columns=.* must be a column name"):
        fit(text_columns=columns)


@pytest.mark.parametrize("device", ["abacus", "cuda:-1", 2.5, "", [0]])
def test_a_device_that_torch_does_not_know(device):
    with pytest.raises(ValueError, match="device=.* is no device that torch knows"):
        fit(device=device)


def test_a_device_that_is_not_there():
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"torch sees {count} CUDA devices"):
        fit(device=f"cuda:{count}")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_device_that_is_there(device):
    assert resolve_device(device) == torch.device("cpu")


def test_no_device_is_the_best_there_is():
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device(None).type == kind


@pytest.mark.parametrize("part", ["criterion", "module", "optimizer", "iterator_train"])
@pytest.mark.parametrize("value", [None, "name", 3])
def test_a_part_is_a_class(part, value):
    with pytest.raises(TypeError, match=f"'{part}' parameter must be a class"):
        fit(**{part: value})


def test_a_criterion_has_terms():
    with pytest.raises(TypeError, match="'criterion' .* with a method 'terms'"):
        fit(criterion=torch.nn.CrossEntropyLoss)


@pytest.mark.parametrize("memory", [1, True, ["folder"], object()])
def test_a_memory_is_a_folder_or_one_of_joblib(memory):
    with pytest.raises(TypeError, match="'memory' parameter must be"):
        fit(memory=memory)


def test_an_empty_folder_name_is_no_memory():
    with pytest.raises(ValueError, match="'memory' parameter is an empty string"):
        fit(memory="")


@pytest.mark.parametrize("strategy", ["final", "two_stage"])
def test_an_equilibrium_needs_exits_that_train_at_once(strategy):
    with pytest.raises(ValueError, match=f"strategy='{strategy}' trains the encoder"):
        fit(strategy=strategy, module__gradient_equilibrium=True)


@pytest.mark.parametrize("exit_layer", [5, 0, -1, True, 1.0, "1"])
def test_an_exit_layer_is_checked_before_training(exit_layer, tiny_bert):
    # only the backbone knows its number of layers
    clf = ACLClassifier(tiny_bert, exit_layer=exit_layer, callbacks=[Untrained()])
    with pytest.raises((TypeError, ValueError), match=r"exit_layer.* 1\.\.4"):
        clf.fit(TEXTS, LABELS)


class Untrained(Callback):
    def on_train_begin(self, net, **kwargs):
        raise AssertionError("training has begun")


# --- what may be --------------------------------------------------------------------

GOOD_VALUES = {
    "n_layers": [None, 1, np.int64(3)],
    "pooling": ["mean", "cls"],
    "head_init": ["centroid", "lda", "linear_probe", "random"],
    "text_columns": [None, "a", ["a"], ("a", "b")],
    "max_length": [None, 16, np.int32(16)],
    "strategy": ["joint", "two_stage", "alternating", "final"],
    "criterion__contrastive": ["acl_cl", "acl_embed", "scl", None],
    "criterion__lam": [0, 0.0, 1, np.float32(0.5)],
    "criterion__temperature": [1e-3, 1, np.float64(0.1)],
    "angle_threshold": [None, 0, 90, 180.0, np.float32(45)],
    "gate_scope": ["encoder", "ffn_output", "exit_dense"],
    "lr": [1e-9, 1, np.float32(0.1)],
    "warmup": [0, 0.5, 1],
    "lr_schedule": ["linear", "constant"],
    "batch_size": [1, np.int64(8)],
    "max_grad_norm": [None, 1, 0.1],
    "mixed_precision": ["auto", "bf16", "fp16", None],
    "class_weight": [None, "balanced", {"food": 2}],
    "classes": [None, ["a", "b"], np.array([1, 2])],
    "exit_layer": [None, 1, np.int64(7)],
    "exit_threshold": [None, 0, 0.5, 1.0, np.float32(0.9)],
    "exit_rule": ["confidence", "entropy", "patience", "patience_entropy", any],
    "exit_patience": [1, np.int64(3)],
    "random_state": [None, 0, np.int64(1), np.random.RandomState(0)],
    "memory": [None, "folder", Path("folder"), joblib.Memory(None)],
    "module__gradient_equilibrium": [True, False],
    "module__dropout": [0, 0.0, 0.5, np.float32(0.1)],
    "optimizer": [
        torch.optim.SGD,
        torch.optim.Adafactor,
        partial(torch.optim.AdamW, weight_decay=0.1),
    ],
    "optimizer__lr": [0.1, torch.tensor(0.1)],
    "optimizer__weight_decay": [0.0, 0.1],
    "optimizer__betas": [(0.8, 0.9)],
    "optimizer__fused": [True, False],
    "optimizer__param_groups": [
        [],
        [("heads.*", {"lr": 0.1})],
        (["*", {}], ["none", {"weight_decay": 0}]),
    ],
    "iterator_train__num_workers": [0],
    "callbacks__print_log": [None, PrintLog, PrintLog()],
    "callbacks__gradient_clipping__gradient_clip_value": [2.0],
    "train_split": [None, ValidSplit(3)],
    "callbacks": [
        None,
        [],
        [EarlyStopping()],
        [EarlyStopping],
        [("stop", EarlyStopping())],
        [["stop", EarlyStopping]],
        [("stop", None)],
        "disable",
    ],
    "verbose": [0, 1, True],
    "backbone": ["name"],
}


@pytest.mark.parametrize(
    "name, value",
    named((name, value) for name, good in GOOD_VALUES.items() for value in good),
)
def test_what_may_be_passes(name, value):
    check_parameters(ACLClassifier(**{name: value}))


def test_the_defaults_pass():
    check_parameters(ACLClassifier())


def test_partial_fit_checks_too():
    with pytest.raises(ValueError, match="'lr' parameter of ACLClassifier"):
        ACLClassifier(NOWHERE, lr=-1).partial_fit(TEXTS, LABELS)


def test_a_subclass_with_parameters_of_its_own_is_checked_by_its_name():
    class Mine(ACLClassifier):
        def __init__(self, backbone=NOWHERE, *, mine=1, **parameters):
            super().__init__(backbone, **parameters)
            self.mine = mine

    clf = clone(Mine(mine=2, max_epochs=3))
    check_parameters(clf)
    assert clf.mine == 2
    with pytest.raises(ValueError, match="'max_epochs' parameter of Mine"):
        clf.set_params(max_epochs=0).fit(TEXTS, LABELS)
