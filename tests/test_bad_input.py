"""What cannot be used is refused with a message that says what to do.

One table: what a person does wrong, and the error. Cases of the first part name a
backbone that does not exist, so they pass only if nothing is loaded before the check.
"""

import json
import re
import shutil

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError
from skorch.callbacks import EarlyStopping
from skorch.dataset import ValidSplit
from skorch.helper import predefined_split
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

NO_BACKBONE = "./no-such-backbone"
X, Y = TEXTS[:6], LABELS[:6]
PAIRS = list(zip(X, X[::-1], strict=True))
FRAME = pd.DataFrame({"a": X, "b": X, "label": Y})
DATASET = datasets.Dataset.from_dict({"text": X, "label": Y, "n": [1] * 6})

Y_MISSING = (
    "This method requires y to be passed, but the target y is None: pass the labels "
    "or, for a datasets.Dataset or a DataFrame, the name of the label column, as in "
    "fit(X, y='label')."
)
UNFITTED = "This ACLClassifier instance is not fitted yet."
PREFIXES = (
    "Parameters of its parts have the prefixes criterion__, optimizer__, module__, "
    "callbacks__, iterator_train__, iterator_valid__."
)
ITERATOR = (
    "batch_size, in_order, multiprocessing_context, num_workers, persistent_workers, "
    "pin_memory, pin_memory_device, prefetch_factor, timeout, worker_init_fn."
)
LIVE_MODEL = (
    "The 'backbone' parameter must be a name or a directory, got {}: every fit starts "
    "from pretrained weights that it loads itself, so a live model cannot be passed."
)
SHAPE = (
    "X is an array of shape {}; pass an array of texts of shape (n,) or (n, 1), or of "
    "pairs of shape (n, 2)."
)
MISSING = (
    "X has 1 missing text{}, at row {} (counted from 0). Drop these rows, or fill "
    "them, for example with ''."
)


class Start(str):
    """A message that goes on after this."""


def case(name, error, message, *values):
    return pytest.param(*values, error, message, id=name)


def variant(classifier, **parameters):
    """The same fitted model, weights shared, with other parameters."""
    other = ACLClassifier.__new__(ACLClassifier)
    vars(other).update(vars(classifier))
    return other.set_params(**parameters)


def check(call, error, message):
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    if isinstance(message, re.Pattern):
        assert message.search(text), text
    elif isinstance(message, Start):
        assert text.startswith(message)
    else:
        assert text == message


# -- data: refused before anything loads -----------------------------------------------

TEXT_CASES = [
    case("str", ValueError, "X is a single str; pass a list of texts: [X].", "a text"),
    case("none", TypeError, "X must be a sequence of texts, got NoneType: None.", None),
    case("empty", ValueError, "X is empty; it must hold at least one text.", []),
    case(
        "generator",
        ValueError,
        "X is an iterator (generator), which can be read only once; pass list(X).",
        (text for text in X),
    ),
    case(
        "dict",
        ValueError,
        "X is a dict; pass a list of texts or a DataFrame, for example "
        "list(X.values()).",
        dict(zip(X, Y, strict=True)),
    ),
    case(
        "set",
        ValueError,
        "X is a set, which has no positions; pass a list: list(X).",
        set(X),
    ),
    case(
        "sparse features",
        ValueError,
        "X is a sparse matrix; pass the raw texts, not features made of them.",
        sp.eye(6).tocsr(),
    ),
    case("features", ValueError, SHAPE.format("(6, 3)"), np.zeros((6, 3))),
    case("3-d", ValueError, SHAPE.format("(2, 2, 2)"), np.full((2, 2, 2), "a")),
    case(
        "number",
        TypeError,
        "X must hold texts, but row 1 is of type int: 1. Convert such values, for "
        "example with str(t).",
        [X[0], 1] + X[2:],
    ),
    case(
        "bytes",
        TypeError,
        "X must hold texts, but row 0 is of type bytes: b'a'. Convert such values, for "
        "example with t.decode().",
        [b"a"] + X[1:],
    ),
    case("missing", ValueError, MISSING.format("", 0), [None] + X[1:]),
    case("nan", ValueError, MISSING.format("", 1), [X[0], np.nan] + X[2:]),
    case("NA", ValueError, MISSING.format("", 5), pd.Series(X[:5] + [pd.NA])),
    case(
        "two columns",
        ValueError,
        "X is a tuple of two columns; for pairs of texts pass a list of 2-tuples: "
        "list(zip(a, b)).",
        (X, X),
    ),
    case(
        "missing second",
        ValueError,
        MISSING.format(" in the second text", 0),
        [("a", None)] + PAIRS[1:],
    ),
    case(
        "missing second of a frame",
        ValueError,
        MISSING.format(" in column 'b'", 5),
        pd.DataFrame({"a": X, "b": X[:5] + [None]}),
    ),
    case(
        "triples",
        ValueError,
        "Row 0 of X is a tuple of length 3; pass texts, or pairs as tuples of two.",
        [("a", "b", "c")] * 6,
    ),
    case(
        "pairs and texts",
        ValueError,
        "X mixes pairs and single values: row 5 is 'a', row 0 is a tuple. Pass only "
        "texts, or only pairs as tuples of two.",
        PAIRS[:5] + ["a"],
    ),
    case(
        "three columns",
        ValueError,
        "X must have one column of texts, or two of pairs, but these are 3: ['a', 'b', "
        "'label']. Choose one or two of ['a', 'b', 'label'], by selecting them or with "
        "text_columns.",
        FRAME,
    ),
]


@pytest.mark.parametrize(("texts", "error", "message"), TEXT_CASES)
def test_texts(texts, error, message):
    check(lambda: ACLClassifier(NO_BACKBONE).fit(texts, Y), error, message)


LABEL_CASES = [
    case("none", ValueError, Y_MISSING, None),
    case(
        "short",
        ValueError,
        "X and y differ in length: 6 texts but 5 labels.",
        Y[:5],
    ),
    case(
        "one class",
        ValueError,
        "y holds one class only, 'a': training needs at least two classes. Pass texts "
        "of other classes too, or name all classes with classes=.",
        ["a"] * 6,
    ),
    case(
        "mixed",
        TypeError,
        "y mixes labels of type str ('a' at position 0) and of type int (1 at position "
        "1); convert them to one type.",
        ["a", 1] * 3,
    ),
    case(
        "missing",
        ValueError,
        "y has 1 missing labels (None, NaN or NA), the first at position 5; drop these "
        "texts or give them a label.",
        Y[:5] + [None],
    ),
    case(
        "continuous",
        ValueError,
        "Unknown label type: continuous. y holds 0.5 at position 0; regression targets "
        "are out of scope: pass classes.",
        [0.5, 1, 2, 3, 4, 5],
    ),
    case(
        "infinite",
        ValueError,
        "Input y contains infinity, 1 times, the first at position 0.",
        [np.inf, 1, 1, 1, 1, 1],
    ),
    case(
        "several a text",
        ValueError,
        "y has shape (6, 3): multi-label and multi-output targets are out of scope; "
        "pass one label per text.",
        np.eye(6, 3, dtype=int),
    ),
    case(
        "set",
        ValueError,
        "y should be a 1d array-like of labels such as a list, an array or a Series; "
        "got set.",
        set(range(6)),
    ),
    case(
        "column of a list",
        ValueError,
        "y='label' names a column, but X is a list, which has none; pass one label per "
        "text.",
        "label",
    ),
]


@pytest.mark.parametrize(("labels", "error", "message"), LABEL_CASES)
def test_labels(labels, error, message):
    check(lambda: ACLClassifier(NO_BACKBONE).fit(X, labels), error, message)


COLUMN_CASES = [
    case(
        "unknown label column",
        ValueError,
        "y='lable' is no column of X; there are ['a', 'b', 'label'].",
        FRAME,
        "lable",
        None,
    ),
    case(
        "unknown text column",
        ValueError,
        "X has no column ['c']; its columns are ['a', 'b', 'label'].",
        FRAME,
        "label",
        ["a", "c"],
    ),
    case(
        "column of numbers",
        TypeError,
        "Column 'n' of X holds int64, not text; choose a column of strings.",
        DATASET,
        "label",
        "n",
    ),
    case(
        "three text_columns",
        ValueError,
        "text_columns=['a', 'b', 'c'] must be a column name, a list of one or two "
        "names, or None.",
        FRAME,
        "label",
        ["a", "b", "c"],
    ),
    case(
        "no text_columns",
        ValueError,
        "text_columns=[] must be a column name, a list of one or two names, or None.",
        FRAME,
        "label",
        [],
    ),
    case(
        "text_columns by number",
        ValueError,
        "text_columns=3 must be a column name, a list of one or two names, or None.",
        FRAME,
        "label",
        3,
    ),
    case(
        "splits",
        ValueError,
        "X is a DatasetDict of splits ['train']; pass one of them.",
        datasets.DatasetDict(train=DATASET),
        "label",
        None,
    ),
    case(
        "stream",
        ValueError,
        "X is an IterableDataset, which streams; load it with streaming=False, or pass "
        "a list of texts.",
        DATASET.to_iterable_dataset(),
        "label",
        None,
    ),
    case(
        "lazy frame",
        ValueError,
        "X is a LazyFrame; pass X.collect().",
        pl.LazyFrame({"text": X, "label": Y}),
        "label",
        None,
    ),
    case(
        "dict of columns",
        ValueError,
        "X is a dict; pass a list of texts or a DataFrame, for example "
        "list(X.values()).",
        {"text": X, "label": Y},
        "label",
        None,
    ),
]


@pytest.mark.parametrize(("frame", "y", "columns", "error", "message"), COLUMN_CASES)
def test_columns(frame, y, columns, error, message):
    classifier = ACLClassifier(NO_BACKBONE, text_columns=columns)
    check(lambda: classifier.fit(frame, y), error, message)


RANGE = (
    "sample_weight must be finite and not negative; 1 of 6 are not, the first is {} at "
    "position 5."
)
WEIGHT_CASES = [
    case("negative", ValueError, RANGE.format(-1.0), [1, 1, 1, 1, 1, -1]),
    case("nan", ValueError, RANGE.format("nan"), [1, 1, 1, 1, 1, np.nan]),
    case("inf", ValueError, RANGE.format("inf"), [1, 1, 1, 1, 1, np.inf]),
    case(
        "short",
        ValueError,
        "sample_weight must hold one number per text, of shape (6,); got shape (1,).",
        [1],
    ),
    case(
        "zero",
        ValueError,
        "sample_weight is zero for every text; nothing would train.",
        [0] * 6,
    ),
    case("words", ValueError, Start("sample_weight must be numbers: "), list("abcdef")),
]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("weight", "error", "message"), WEIGHT_CASES)
def test_sample_weight(method, weight, error, message):
    train = getattr(ACLClassifier(NO_BACKBONE), method)
    check(lambda: train(X, Y, sample_weight=weight), error, message)


VALIDATION_CASES = [
    case(
        "texts alone",
        ValueError,
        "validation_data must be a tuple (X, y), got list of length 6.",
        X,
    ),
    case(
        "tuple of one",
        ValueError,
        "validation_data must be a tuple (X, y), got tuple of length 1.",
        (X,),
    ),
    case(
        "a Dataset",
        ValueError,
        "validation_data must be a tuple (X, y), got Dataset of length 6.",
        DATASET,
    ),
    case(
        "a number",
        ValueError,
        "validation_data must be a tuple (X, y), got float.",
        0.2,
    ),
    case(
        "empty",
        ValueError,
        "validation_data[0] is empty; it must hold at least one text.",
        ([], []),
    ),
    case(
        "pairs",
        ValueError,
        "validation_data[0] holds pairs of texts, but fit saw single texts; pass "
        "single texts.",
        (PAIRS, Y),
    ),
    case(
        "missing text",
        ValueError,
        MISSING.format("", 0).replace("X", "validation_data[0]"),
        ([None] + X[1:], Y),
    ),
    case("no labels", ValueError, f"In validation_data: {Y_MISSING}", (X, None)),
    case(
        "short",
        ValueError,
        "In validation_data: X and y differ in length: 6 texts but 2 labels.",
        (X, Y[:2]),
    ),
    case(
        "unknown label",
        ValueError,
        "In validation_data: y holds 1 labels that are not in classes: 'x'; the first "
        "is 'x' at position 1. The classes are 'food', 'sport', 'weather'.",
        (X, ["food", "x"] + Y[2:]),
    ),
    case(
        "other type",
        TypeError,
        "In validation_data: y holds labels of type number (1 at position 0) but "
        "classes holds labels of type str; convert one of them.",
        (X, [1] * 6),
    ),
    case(
        "unknown column",
        ValueError,
        "In validation_data: y='lable' is no column of X; there are ['text', 'label', "
        "'n'].",
        (DATASET, "lable"),
    ),
]


@pytest.mark.parametrize(("validation_data", "error", "message"), VALIDATION_CASES)
def test_validation_data(validation_data, error, message):
    classifier = ACLClassifier(NO_BACKBONE)
    check(lambda: classifier.fit(X, Y, validation_data=validation_data), error, message)


# -- parameters: refused before anything loads -----------------------------------------


def constraint(name, expected, value):
    return (
        f"The {name!r} parameter of ACLClassifier must be {expected}. Got {value!r} "
        "instead."
    )


def no_bool(name):
    return (
        f"The {name!r} parameter of ACLClassifier must be a number, got the bool True."
    )


COUNT = "an int in the range [1, inf)"
POSITIVE = "a float in the range (0.0, inf)"
SHARE = "a float in the range [0.0, 1.0]"
DEGREES = "a float in the range [0.0, 180.0] or None"
SEED = Start(
    "The 'random_state' parameter of ACLClassifier must be an int in the range"
)
BOOLEAN = "an instance of 'bool' or an instance of 'numpy.bool'"

CONSTRAINED = {
    "n_layers": [(0, f"{COUNT} or None"), (2.0, f"{COUNT} or None")],
    "max_length": [(0, f"{COUNT} or None"), ("8", f"{COUNT} or None")],
    "angle_threshold": [(-1, DEGREES), (181, DEGREES), (np.nan, DEGREES)],
    "lr": [(0, POSITIVE), ("fast", POSITIVE), (np.inf, POSITIVE), (np.nan, POSITIVE)],
    "head_lr_factor": [(0, POSITIVE)],
    "warmup": [(1.5, SHARE), (-0.1, SHARE), (np.nan, SHARE)],
    "max_epochs": [(0, COUNT), (1.5, COUNT)],
    "batch_size": [(0, COUNT), (8.0, COUNT)],
    "gradient_accumulation_steps": [(0, COUNT)],
    "max_grad_norm": [(0, f"{POSITIVE} or None"), (np.nan, f"{POSITIVE} or None")],
    "train_split": [(5, "a callable or None")],
    "callbacks": [("a", "an instance of 'list', a str among {'disable'} or None")],
    "warm_start": [("yes", BOOLEAN)],
    "classes": [("food", "an array-like or None")],
    "class_weight": [
        ("auto", "an instance of 'dict', a str among {'balanced'} or None"),
        ([1, 2, 3], "an instance of 'dict', a str among {'balanced'} or None"),
    ],
}
BOOLS = (
    "n_layers max_length angle_threshold lr head_lr_factor warmup max_epochs batch_size"
    " gradient_accumulation_steps max_grad_norm random_state"
).split()
# sets of choices have no order of their own
CHOICES = {
    "pooling": "max",
    "head_init": "zero",
    "strategy": "both",
    "gate_scope": "embedding",
    "lr_schedule": "cosine",
    "mixed_precision": "fp8",
}

PARAMETER_CASES = [
    case(
        f"{name}={value!r}",
        ValueError,
        constraint(name, expected, value),
        name,
        value,
    )
    for name, values in CONSTRAINED.items()
    for value, expected in values
]
PARAMETER_CASES += [
    case(f"{name}=True", TypeError, no_bool(name), name, True) for name in BOOLS
]
PARAMETER_CASES += [
    case(
        f"{name}={value!r}",
        ValueError,
        re.compile(
            rf"^The '{name}' parameter of ACLClassifier must be a str among \{{.*\}}"
            rf"( or None)?\. Got '{value}' instead\.$"
        ),
        name,
        value,
    )
    for name, value in CHOICES.items()
]
PARAMETER_CASES += [
    # without the address of an object, which differs between workers
    case(
        f"random_state={value!r}".partition(" at ")[0],
        ValueError,
        SEED,
        "random_state",
        value,
    )
    for value in (-1, 1.5, "a", np.random.default_rng(0))
]
PARAMETER_CASES += [
    case(name, error, message, name.split("=")[0], value)
    for name, value, error, message in [
        (
            "criterion__contrastive='supcon'",
            "supcon",
            ValueError,
            "criterion__contrastive='supcon' must be one of 'acl_cl', 'acl_embed', "
            "'scl', None.",
        ),
        (
            "criterion__lam=1.5",
            1.5,
            ValueError,
            "criterion__lam=1.5 must be in [0, 1].",
        ),
        (
            "criterion__lam=nan",
            np.nan,
            ValueError,
            "criterion__lam=nan must be in [0, 1].",
        ),
        (
            "criterion__lam='a'",
            "a",
            TypeError,
            "criterion__lam='a' must be a number in [0, 1], not str.",
        ),
        (
            "criterion__lam=True",
            True,
            TypeError,
            "criterion__lam=True must be a number in [0, 1], not bool.",
        ),
        (
            "criterion__temperature=0",
            0,
            ValueError,
            "criterion__temperature=0 must be above 0 and finite.",
        ),
        (
            "criterion__temperature=None",
            None,
            TypeError,
            "criterion__temperature=None must be a number above 0 and finite, not "
            "NoneType.",
        ),
        (
            "criterion__anchors='texts'",
            "texts",
            ValueError,
            "criterion__anchors='texts' must be one of 'all', 'labels'.",
        ),
        (
            "criterion__distill='both'",
            "both",
            ValueError,
            "criterion__distill='both' must be one of 'replace', 'add'.",
        ),
        (
            "criterion__exit_weights='quadratic'",
            "quadratic",
            ValueError,
            "criterion__exit_weights='quadratic' must be one of 'uniform', 'linear'.",
        ),
        (
            "criterion__lamda=1",
            1,
            ValueError,
            "Unknown parameter criterion__lamda; criterion__ takes: anchors, "
            "contrastive, distill, exit_weights, lam, temperature.",
        ),
        (
            "criterion=loss of torch",
            torch.nn.CrossEntropyLoss,
            TypeError,
            "The 'criterion' parameter must be a class with a method 'terms', got "
            "<class 'torch.nn.modules.loss.CrossEntropyLoss'>.",
        ),
        (
            "optimizer='adam'",
            "adam",
            TypeError,
            "The 'optimizer' parameter must be a class, got 'adam'.",
        ),
        (
            "optimizer__decay=1",
            1,
            ValueError,
            Start("Unknown parameter optimizer__decay; optimizer__ takes: "),
        ),
        (
            "optimizer=dict",
            dict,
            TypeError,
            "The 'optimizer' parameter must be a class such as torch.optim.AdamW, got "
            "<class 'dict'>.",
        ),
        (
            "optimizer=no optimizer",
            lambda params, lr: params,
            TypeError,
            Start(
                "The 'optimizer' parameter must be a class such as torch.optim.AdamW, "
                "got <function "
            ),
        ),
        (
            "optimizer=LBFGS",
            torch.optim.LBFGS,
            ValueError,
            "optimizer=<class 'torch.optim.lbfgs.LBFGS'> is not supported: each of its "
            "steps computes the loss several times, through a closure that training "
            "does not pass. Use one such as torch.optim.AdamW.",
        ),
        (
            "optimizer__weight_decay=-1",
            -1,
            ValueError,
            "optimizer__weight_decay=-1 cannot be used (ValueError: Invalid "
            "weight_decay value: -1). Pass what AdamW takes, or leave it out.",
        ),
        (
            "optimizer__weight_decay='x'",
            "x",
            TypeError,
            Start("optimizer__weight_decay='x' cannot be used (TypeError: "),
        ),
        (
            "optimizer__betas=(2, 3)",
            (2, 3),
            ValueError,
            "optimizer__betas=(2, 3) cannot be used (ValueError: Invalid beta "
            "parameter at index 0: 2). Pass what AdamW takes, or leave it out.",
        ),
        (
            "optimizer__lr='x'",
            "x",
            TypeError,
            Start("optimizer__lr='x' cannot be used (TypeError: "),
        ),
        (
            "optimizer__param_groups='heads'",
            "heads",
            ValueError,
            "optimizer__param_groups='heads' must be a list of pairs of a name pattern "
            "and a dict of settings, such as [('heads.*', {'lr': 0.001})].",
        ),
        (
            "optimizer__param_groups=no settings",
            ["heads.*"],
            ValueError,
            Start("optimizer__param_groups=['heads.*'] must be a list of pairs "),
        ),
        (
            "callbacks=no callback",
            ["x"],
            TypeError,
            "callbacks[0]='x' must be a skorch callback or a pair of name and "
            "callback, such as EarlyStopping() or ('stop', EarlyStopping()).",
        ),
        (
            "callbacks=no pair",
            [EarlyStopping(), ("stop", EarlyStopping, 3)],
            TypeError,
            Start("callbacks[1]=('stop', <class 'skorch."),
        ),
        (
            "callbacks=pair without a callback",
            [("stop", 3)],
            TypeError,
            Start("callbacks[0]=('stop', 3) must be a skorch callback or a pair "),
        ),
        (
            "callbacks__print_log=3",
            3,
            TypeError,
            "callbacks__print_log=3 must be a skorch callback, or None to go without.",
        ),
        (
            "iterator_train=dict",
            dict,
            TypeError,
            "The 'iterator_train' parameter must be a class such as "
            "torch.utils.data.DataLoader, got <class 'dict'>.",
        ),
        (
            "module__backbone=1",
            1,
            ValueError,
            "Unknown parameter module__backbone; module__ takes: dropout, "
            "gradient_equilibrium.",
        ),
        (
            "module__pooling='cls'",
            "cls",
            ValueError,
            "Unknown parameter module__pooling; module__ takes: dropout, "
            "gradient_equilibrium.",
        ),
        (
            "module__dropout=1",
            1,
            ValueError,
            "module__dropout=1 must be a number in [0, 1).",
        ),
        (
            "module__dropout='a'",
            "a",
            ValueError,
            "module__dropout='a' must be a number in [0, 1).",
        ),
        (
            "iterator_train__shuffle=True",
            True,
            ValueError,
            "Unknown parameter iterator_train__shuffle; iterator_train__ takes: "
            + ITERATOR,
        ),
        (
            "iterator_valid__workers=1",
            1,
            ValueError,
            "Unknown parameter iterator_valid__workers; iterator_valid__ takes: "
            + ITERATOR,
        ),
        (
            "n_layer=1",
            1,
            TypeError,
            "ACLClassifier has no parameter 'n_layer'. Did you mean 'n_layers'? "
            + PREFIXES,
        ),
        (
            "dropout=0.1",
            0.1,
            TypeError,
            f"ACLClassifier has no parameter 'dropout'. {PREFIXES}",
        ),
        (
            "compile=True",
            True,
            TypeError,
            "ACLClassifier has no parameter 'compile' of skorch's.",
        ),
        (
            "device='gpu'",
            "gpu",
            ValueError,
            "device='gpu' is no device that torch knows; use None, 'cpu', 'cuda' or "
            "'cuda:0'.",
        ),
        (
            "device='cuda:99'",
            "cuda:99",
            ValueError,
            f"device='cuda:99' is not there: torch sees {torch.cuda.device_count()} "
            "CUDA devices. Use device=None to take what the machine has.",
        ),
        (
            "backbone=''",
            "",
            ValueError,
            "The 'backbone' parameter is an empty string; pass the name of a model or "
            "a directory.",
        ),
        ("backbone=None", None, TypeError, LIVE_MODEL.format("NoneType")),
        (
            "backbone=live model",
            torch.nn.Linear(2, 2),
            TypeError,
            LIVE_MODEL.format("Linear"),
        ),
        (
            "backbone=no directory",
            NO_BACKBONE,
            OSError,
            "The backbone's directory './no-such-backbone' does not exist.",
        ),
        (
            "classes=unknown label",
            ["food", "sport"],
            ValueError,
            "y holds 1 labels that are not in classes: 'weather'; the first is "
            "'weather' at position 2. The classes are 'food', 'sport'.",
        ),
        (
            "classes=twice",
            ["food", "food", "sport"],
            ValueError,
            "classes must be unique; repeated: 'food'.",
        ),
        (
            "classes=one",
            ["food"],
            ValueError,
            "classes must hold at least two labels; got 'food'.",
        ),
        (
            "classes=other type",
            [1, 2],
            TypeError,
            "y holds labels of type str ('sport' at position 0) but classes holds "
            "labels of type number; convert one of them.",
        ),
        (
            "class_weight=negative",
            {"food": -1},
            ValueError,
            "class_weight must be finite and not negative; the class 'food' has -1.",
        ),
        (
            "class_weight=misspelt",
            {"food": 1, "sprot": 2},
            ValueError,
            "class_weight has no weight for the classes 'sport', 'weather' and keys "
            "that are no class: 'sprot'.",
        ),
    ]
]


@pytest.mark.parametrize(("name", "value", "error", "message"), PARAMETER_CASES)
def test_parameters(name, value, error, message):
    parameters = {"backbone": NO_BACKBONE, name: value}
    check(lambda: ACLClassifier(**parameters).fit(X, Y), error, message)


def test_a_parameter_that_set_params_does_not_know():
    message = Start("Invalid parameter 'n_layer' for estimator ACLClassifier")
    check(lambda: ACLClassifier().set_params(n_layer=2), ValueError, message)


# -- what only the loaded backbone can tell --------------------------------------------


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def make(backbone):
    def make(**parameters):
        settings = {"max_epochs": 1, "verbose": 0, "random_state": 0, "device": "cpu"}
        return ACLClassifier(backbone, **(settings | parameters))

    return make


@pytest.fixture(scope="module")
def singles(make):
    return make(head_init="random").fit(X, Y)


@pytest.fixture(scope="module")
def pairs(make):
    return make(head_init="random").fit(FRAME, "label")


@pytest.fixture(scope="module")
def final(make):
    return make(head_init="random", strategy="final").fit(X, Y)


OUT_OF_RANGE = (
    "exit_layer={} is out of range: the exits of this model sit after layers 1..2. Use "
    "one of these or None."
)
NO_INTEGER = "exit_layer must be an integer in 1..2 or None, got {} of type {}."
ONE_EXIT = (
    "exit_layer={0}: this model has one exit, after layer 2. Fit with strategy='joint' "
    "to train an exit after every layer, or with n_layers={0} for a shallower model; "
    "exit_layer may be None or 2 here."
)
EXIT_CASES = [
    case(repr(value), ValueError, OUT_OF_RANGE.format(value), value)
    for value in (0, 3, -1)
]
EXIT_CASES += [
    case(repr(value), TypeError, NO_INTEGER.format(repr(value), kind), value)
    for value, kind in [
        (True, "bool"),
        (np.True_, "bool"),
        (2.0, "float"),
        (np.float64(2), "float64"),
        ("2", "str"),
        ([1], "list"),
    ]
]
METHODS = ["predict", "predict_proba", "decision_function", "transform"]


@pytest.mark.parametrize(("exit_layer", "error", "message"), EXIT_CASES)
def test_exit_layer(singles, make, exit_layer, error, message):
    for method in METHODS:
        call = getattr(singles, method)
        check(lambda: call(X, exit_layer=exit_layer), error, message)  # noqa: B023
    check(lambda: singles.score(X, Y, exit_layer=exit_layer), error, message)
    changed = variant(singles, exit_layer=exit_layer)
    for method in METHODS + ["forward"]:
        call = getattr(changed, method)
        check(lambda: call(X), error, message)  # noqa: B023
    check(lambda: make(exit_layer=exit_layer).fit(X, Y), error, message)


@pytest.mark.parametrize("exit_layer", [1, np.int64(1), np.uint8(1)])
def test_integers_of_any_kind_are_exit_layers(singles, exit_layer):
    expected = singles.predict_proba_exits(X)[0]
    np.testing.assert_array_equal(singles.predict_proba(X, exit_layer), expected)
    changed = variant(singles, exit_layer=exit_layer)
    np.testing.assert_array_equal(changed.predict_proba(X), expected)


@pytest.mark.parametrize("exit_layer", [0, 1, 3])
def test_a_single_exit_points_to_training_exits(make, final, exit_layer):
    message = ONE_EXIT.format(exit_layer)
    check(lambda: final.predict(X, exit_layer), ValueError, message)
    fit = make(strategy="final", exit_layer=exit_layer).fit
    check(lambda: fit(X, Y), ValueError, message)


LIMITS = (
    "max_length={} must be None or an integer from {} to 80: this model adds {} "
    "special tokens to every {} and has 80 positions."
)
LATE_CASES = [
    case(
        "max_length=2", ValueError, LIMITS.format(2, 3, 2, "text"), X, "max_length", 2
    ),
    case(
        "max_length=81",
        ValueError,
        LIMITS.format(81, 3, 2, "text"),
        X,
        "max_length",
        81,
    ),
    case(
        "max_length=4 of pairs",
        ValueError,
        LIMITS.format(4, 5, 3, "pair"),
        PAIRS,
        "max_length",
        4,
    ),
    case(
        "n_layers=3",
        ValueError,
        "n_layers must be an integer in 1..2; got 3.",
        X,
        "n_layers",
        3,
    ),
    case(
        "train_split=predefined",
        TypeError,
        re.compile(
            r"(?s)^train_split=.* must return the rows that it is given, or a torch "
            r"Subset of them, got Dataset\. Texts of your own for validation go to "
            r"fit\(validation_data=\(X, y\)\)\.$"
        ),
        X,
        "train_split",
        predefined_split(DATASET),
    ),
    case(
        "train_split=class",
        TypeError,
        Start(
            "train_split=<class 'skorch.dataset.ValidSplit'> must return two parts, for"
            " training and for validation, got "
        ),
        X,
        "train_split",
        ValidSplit,
    ),
    case(
        "train_split=nothing",
        TypeError,
        re.compile(
            "^train_split=<function .*> must return two parts, for training and for "
            r"validation, got None\. Pass a skorch\.dataset\.ValidSplit\.$"
        ),
        X,
        "train_split",
        lambda rows, y: None,
    ),
    case(
        "backbone=empty directory",
        OSError,
        re.compile(
            r"^The directory '.*' has no config\.json\. Pass a directory written by "
            "save_pretrained; if a model of the hub was meant, the directory of the "
            r"same name hides it\.$"
        ),
        X,
        "backbone",
        "empty",
    ),
]


@pytest.mark.parametrize(("texts", "name", "value", "error", "message"), LATE_CASES)
def test_what_the_backbone_rules_out(
    make, tmp_path, texts, name, value, error, message
):
    classifier = make(head_init="random")
    value = tmp_path if value == "empty" else value
    vars(classifier)[name] = value
    check(lambda: classifier.fit(texts, Y), error, message)
    check(lambda: classifier.predict(texts), NotFittedError, Start(UNFITTED))


def test_a_fit_that_fails_late_does_not_look_fitted(make):
    classifier = make(head_init="random").fit(X, Y)
    classifier.set_params(exit_layer=9)
    with pytest.raises(ValueError, match="exit_layer=9 is out of range"):
        classifier.fit(X, Y)
    classifier.set_params(exit_layer=None)
    check(lambda: classifier.predict(X), NotFittedError, Start(UNFITTED))


def test_a_fit_refused_for_its_data_changes_nothing(singles):
    before = singles.predict_proba(X)
    with pytest.raises(ValueError, match="X is empty"):
        singles.fit([], [])
    np.testing.assert_array_equal(singles.predict_proba(X), before)


# -- prediction ------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS + ["predict_proba_exits", "forward", "save"])
def test_nothing_works_before_fit(method):
    call = getattr(ACLClassifier(NO_BACKBONE), method)
    check(lambda: call(X), NotFittedError, Start(UNFITTED))


def test_score_before_fit():
    score = ACLClassifier(NO_BACKBONE).score
    check(lambda: score(X, Y), NotFittedError, Start(UNFITTED))


@pytest.mark.parametrize("name", ["classes_", "exit_layer_numbers_", "n_exits_"])
def test_attributes_before_fit(name):
    classifier = ACLClassifier(NO_BACKBONE)
    assert not hasattr(classifier, name)
    with pytest.raises(AttributeError, match="This ACLClassifier is not fitted yet: "):
        getattr(classifier, name)


PREDICT_CASES = [
    case(
        "pairs",
        ValueError,
        "X holds pairs of texts, but fit saw single texts; pass single texts.",
        "singles",
        PAIRS,
    ),
    case(
        "single texts",
        ValueError,
        "X holds single texts, but fit saw pairs of texts; pass pairs of texts.",
        "pairs",
        X,
    ),
    case(
        "one pair not in a list",
        ValueError,
        "X holds single texts, but fit saw pairs of texts; pass pairs of texts.",
        "pairs",
        ("a", "b"),
    ),
    case(
        "one column of two",
        ValueError,
        "X has no column ['b']; its columns are ['a'].",
        "pairs",
        FRAME[["a"]],
    ),
    case(
        "other columns",
        ValueError,
        "X has no column ['a', 'b']; its columns are ['x', 'y'].",
        "pairs",
        pd.DataFrame({"x": X, "y": X}),
    ),
    case("missing", ValueError, MISSING.format("", 0), "singles", [None, "a"]),
    case(
        "str",
        ValueError,
        "X is a single str; pass a list of texts: [X].",
        "singles",
        "a text",
    ),
    case(
        "iterator",
        ValueError,
        "X is an iterator (list_iterator), which can be read only once; pass list(X).",
        "singles",
        iter(X),
    ),
]


@pytest.mark.parametrize(("fitted", "texts", "error", "message"), PREDICT_CASES)
def test_texts_to_predict(request, fitted, texts, error, message):
    classifier = request.getfixturevalue(fitted)
    for method in METHODS + ["predict_proba_exits", "forward"]:
        call = getattr(classifier, method)
        check(lambda: call(texts), error, message)  # noqa: B023


def test_labels_to_score(singles):
    check(lambda: singles.score(X), ValueError, Y_MISSING)
    message = "X and y differ in length: 6 texts but 3 labels."
    check(lambda: singles.score(X, Y[:3]), ValueError, message)
    message = "y='lable' is no column of X; there are ['text', 'label', 'n']."
    check(lambda: singles.score(DATASET, "lable"), ValueError, message)


# -- partial_fit -----------------------------------------------------------------------


def test_partial_fit_needs_all_classes_at_first():
    message = (
        "y holds 1 labels that are not in classes: 'weather'; the first is 'weather' "
        "at position 2. The classes are 'food', 'sport'."
    )
    train = ACLClassifier(NO_BACKBONE).partial_fit
    check(lambda: train(X, Y, classes=["food", "sport"]), ValueError, message)


PARTIAL_CASES = [
    case(
        "new label",
        ValueError,
        "y holds 1 labels that are not in classes: 'x'; the first is 'x' at position 0."
        " The classes are 'food', 'sport', 'weather'.",
        (X, ["x"] + Y[1:]),
    ),
    case(
        "other classes",
        ValueError,
        "classes=['a', 'b'] differs from the classes of the first call, ['food', "
        "'sport', 'weather'].",
        (X, Y, ["a", "b"]),
    ),
    case(
        "pairs",
        ValueError,
        "X holds pairs of texts, but fit saw single texts; pass single texts.",
        (PAIRS, Y),
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), PARTIAL_CASES)
def test_partial_fit_after_fit(singles, arguments, error, message):
    before = singles.predict_proba(X)
    check(lambda: singles.partial_fit(*arguments), error, message)
    np.testing.assert_array_equal(singles.predict_proba(X), before)


def test_warm_start_with_new_labels(singles):
    warm = variant(singles, warm_start=True)
    message = Start("y holds 1 labels that are not in classes: 'x'")
    check(lambda: warm.fit(X, ["x"] + Y[1:]), ValueError, message)


# -- saving and loading ----------------------------------------------------------------


def test_save_does_not_overwrite_other_files(singles, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    message = Start(f"{str(tmp_path)!r} holds other files, such as 'note.txt'; save to")
    check(lambda: singles.save(tmp_path), ValueError, message)
    file = tmp_path / "note.txt"
    message = f"{str(file)!r} is a file; save() needs a directory."
    check(lambda: singles.save(file), ValueError, message)
    assert file.read_text() == "mine"


def test_load_needs_a_saved_classifier(tmp_path):
    message = (
        f"{str(tmp_path)!r} holds no saved classifier: sklearn_acl.json is missing. "
        "Pass a directory that ACLClassifier.save wrote."
    )
    check(lambda: ACLClassifier.load(tmp_path), ValueError, message)


def rewrite(change):
    def rewrite_manifest(directory):
        file = directory / "sklearn_acl.json"
        manifest = json.loads(file.read_text())
        change(manifest)
        file.write_text(json.dumps(manifest))

    return rewrite_manifest


def cut(name, size=50):
    def cut_file(directory):
        file = directory / name
        file.write_bytes(file.read_bytes()[:size])

    return cut_file


LOAD_CASES = [
    case(
        "newer format",
        ValueError,
        re.compile(
            r"^'.*' has format 3; this version of sklearn_acl reads format 2\. Install "
            r"the version that wrote it or a newer one\.$"
        ),
        rewrite(lambda manifest: manifest.update(format=3)),
    ),
    case(
        "no format",
        ValueError,
        re.compile(r"^'.*sklearn_acl\.json' is damaged: KeyError\('format'\)\.$"),
        rewrite(lambda manifest: manifest.pop("format")),
    ),
    case(
        "cut manifest",
        ValueError,
        re.compile(r"^'.*sklearn_acl\.json' is damaged: JSONDecodeError\(.*\)\.$"),
        cut("sklearn_acl.json"),
    ),
]
LOAD_CASES += [
    case(
        name,
        ValueError,
        re.compile(
            rf"^The classifier in '.*' is incomplete or damaged: {cause}: .*Save it "
            r"again\.$"
        ),
        damage,
    )
    for name, cause, damage in [
        ("no part", "KeyError", rewrite(lambda manifest: manifest.pop("fitted"))),
        ("cut weights", "SafetensorError", cut("model.safetensors")),
        (
            "no weights",
            "FileNotFoundError",
            lambda directory: (directory / "model.safetensors").unlink(),
        ),
        ("cut configuration", "JSONDecodeError", cut("backbone.json")),
        (
            "no tokenizer",
            "(KeyError|OSError)",
            lambda directory: shutil.rmtree(directory / "tokenizer"),
        ),
    ]
]


@pytest.fixture(scope="module")
def saved(singles, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "model"
    singles.save(directory)
    return directory


@pytest.mark.parametrize(("damage", "error", "message"), LOAD_CASES)
def test_damaged_saves(saved, tmp_path, damage, error, message):
    directory = shutil.copytree(saved, tmp_path / "model")
    damage(directory)
    check(lambda: ACLClassifier.load(directory), error, message)
