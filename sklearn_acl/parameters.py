"""The parameter check that opens every fit, before a model loads."""

import difflib
import inspect
import os
from itertools import takewhile
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.utils._param_validation import (
    Interval,
    StrOptions,
    validate_parameter_constraints,
)

from .encoder import POOLINGS
from .exit_rules import check_exit_rule
from .gradients import GATE_SCOPES
from .head_init import HEAD_INITS
from .memory_store import check_memory
from .optimization import parameter_groups, with_fast_kernel
from .strategies import STRATEGIES

#: Parts whose parameters may be set with a prefix.
PREFIXES = (
    "criterion",
    "optimizer",
    "module",
    "callbacks",
    "iterator_train",
    "iterator_valid",
)

_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="both")

CONSTRAINTS = {
    "n_layers": [_COUNT, None],
    "pooling": [StrOptions(set(POOLINGS))],
    "head_init": [StrOptions(set(HEAD_INITS))],
    "max_length": [_COUNT, None],
    "strategy": [StrOptions(set(STRATEGIES))],
    "angle_threshold": [Interval(Real, 0, 180, closed="both"), None],
    "gate_scope": [StrOptions(set(GATE_SCOPES))],
    "lr": [_POSITIVE],
    "head_lr_factor": [_POSITIVE],
    "warmup": [_SHARE],
    "lr_schedule": [StrOptions({"linear", "constant"})],
    "max_epochs": [_COUNT],
    "batch_size": [_COUNT],
    "gradient_accumulation_steps": [_COUNT],
    "max_grad_norm": [_POSITIVE, None],
    "mixed_precision": [StrOptions({"auto", "bf16", "fp16"}), None],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "classes": ["array-like", None],
    "random_state": ["random_state"],
    "train_split": [callable, None],
    "callbacks": [list, StrOptions({"disable"}), None],
    "warm_start": ["boolean"],
    "verbose": ["verbose"],
}

#: What a part is like; a class in its place has these parameters and methods.
_EXAMPLES = {
    "criterion": "sklearn_acl.criterion.ACLLoss",
    "optimizer": "torch.optim.AdamW",
    "module": "sklearn_acl.encoder.MultiExitEncoder",
    "iterator_train": "torch.utils.data.DataLoader",
    "iterator_valid": "torch.utils.data.DataLoader",
}

#: What the classifier itself passes to its parts.
_SET_BY_NET = {
    "module": ("backbone", "n_classes", "exit_layers", "pooling"),
    "iterator": (
        "dataset batch_sampler sampler shuffle drop_last collate_fn generator"
    ).split(),
}

#: Numbers that a bool would pass for, since `bool` is an `int` in Python.
_NUMERIC = (
    "n_layers max_length angle_threshold lr head_lr_factor warmup max_epochs "
    "batch_size gradient_accumulation_steps max_grad_norm random_state"
).split()


def check_parameters(estimator):
    """Check the value of every parameter of a classifier.

    Parameters
    ----------
    estimator : ACLClassifier

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, its value and what it may be.
    """
    check_names(estimator)
    values = estimator.get_params(deep=False)
    caller = type(estimator).__name__
    for name in _NUMERIC:
        if isinstance(values[name], (bool, np.bool_)):
            raise TypeError(
                f"The {name!r} parameter of {caller} must be a number, got the bool "
                f"{values[name]!r}."
            )
    checked = {name: values[name] for name in CONSTRAINTS}
    validate_parameter_constraints(CONSTRAINTS, checked, caller_name=caller)
    _check_backbone(values["backbone"])
    _check_text_columns(values["text_columns"])
    check_exit_rule(
        values["exit_rule"], values["exit_threshold"], values["exit_patience"]
    )
    check_memory(values["memory"])
    resolve_device(values["device"])
    _check_component(estimator, "criterion", required="terms")
    _check_component(estimator, "module", skip=_SET_BY_NET["module"])
    _check_component(estimator, "optimizer", skip=("params",))
    _check_optimizer(estimator)
    for iterator in ("iterator_train", "iterator_valid"):
        _check_component(estimator, iterator, skip=_SET_BY_NET["iterator"])
        batch_size = estimator.get_params_for(iterator).get("batch_size", 1)
        check_batch_size(f"{iterator}__batch_size", batch_size)
    _check_module_parameters(estimator)
    _check_callbacks(estimator)


def check_batch_size(name, value):
    """Raise ValueError for a batch size that is no integer above zero."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1.")


def resolve_device(device):
    """`torch.device` for a parameter value; None takes CUDA where there is one.

    Raises
    ------
    ValueError
        If torch does not know the device or the machine does not have it.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is no device that torch knows; use None, 'cpu', "
            f"'cuda' or 'cuda:0'."
        ) from error
    if resolved.type == "cuda":
        count = torch.cuda.device_count()
        if (resolved.index or 0) >= count:
            raise ValueError(
                f"device={device!r} is not there: torch sees {count} CUDA devices. "
                "Use device=None to take what the machine has."
            )
    elif resolved.type != "cpu":
        _check_other_device(resolved)
    return resolved


def _check_other_device(device):
    """Raise ValueError if a device, such as 'mps', cannot compute here."""
    try:
        torch.zeros(1, device=device).cpu()
    except (AssertionError, ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={str(device)!r} cannot be used here: {reason} Use device=None to "
            "take what the machine has."
        ) from error


def check_names(estimator):
    """Raise TypeError for parameters that nothing reads, such as a misspelt one."""
    known = _constructor_names(type(estimator))
    for name in estimator.get_params(deep=False):
        prefix, separator, _ = name.partition("__")
        if name in known or (separator and prefix in PREFIXES):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise TypeError(
            f"{type(estimator).__name__} has no parameter {name!r}.{hint} Parameters "
            f"of its parts have the prefixes {', '.join(f'{p}__' for p in PREFIXES)}."
        )


def _constructor_names(cls):
    """Parameters of a class and of those that its constructor hands its own on to."""
    names = set()
    # skorch's constructor comes after ours in this order and has names unused here
    for base in takewhile(lambda c: not c.__module__.startswith("skorch."), cls.mro()):
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            names.update(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
    return names - {"self"}


def _check_backbone(backbone):
    if not isinstance(backbone, (str, os.PathLike)):
        raise TypeError(
            "The 'backbone' parameter must be a name or a directory, got "
            f"{type(backbone).__name__}: every fit starts from pretrained weights "
            "that it loads itself, so a live model cannot be passed."
        )
    if not os.fspath(backbone):
        raise ValueError(
            "The 'backbone' parameter is an empty string; pass the name of a model "
            "or a directory."
        )


def _check_text_columns(columns):
    names = (columns,) if isinstance(columns, str) else columns
    if names is not None and (
        not isinstance(names, (list, tuple)) or not 1 <= len(names) <= 2
    ):
        raise ValueError(
            f"text_columns={columns!r} must be a column name, a list of one or two "
            "names, or None."
        )


def _check_callbacks(estimator):
    """Raise for what is no callback, and for parameters of callbacks not there.

    skorch ignores the latter.
    """
    if estimator.callbacks == "disable":
        there = set()
    else:
        for number, item in enumerate(estimator.callbacks or ()):
            if not _is_callback_item(item):
                raise TypeError(
                    f"callbacks[{number}]={item!r} must be a skorch callback or a "
                    "pair of name and callback, such as EarlyStopping() or ('stop', "
                    "EarlyStopping())."
                )
        there = {name for name, _ in estimator._uniquely_named_callbacks()}
    for key, value in estimator.get_params_for("callbacks").items():
        name, separator, _ = key.partition("__")
        if name not in there:
            raise ValueError(
                f"callbacks__{key}: there is no callback {name!r}; there are: "
                f"{', '.join(sorted(there)) or 'none'}."
            )
        if not separator and value is not None and not _is_callback(value):
            raise TypeError(
                f"callbacks__{key}={value!r} must be a skorch callback, or None to go "
                "without."
            )


def _is_callback_item(item):
    if not isinstance(item, (list, tuple)):
        return _is_callback(item)
    is_pair = len(item) == 2 and isinstance(item[0], str)
    return is_pair and (item[1] is None or _is_callback(item[1]))


def _is_callback(value):
    """Whether something, or a class, has what skorch needs of a callback."""
    needed = ("initialize", "set_params", "on_train_begin")
    return all(hasattr(value, name) for name in needed)


def _check_module_parameters(estimator):
    given = estimator.get_params_for("module")
    dropout = given.get("dropout", 0.0)
    is_number = isinstance(dropout, Real) and not isinstance(dropout, bool)
    if not is_number or not 0 <= dropout < 1:
        raise ValueError(f"module__dropout={dropout!r} must be a number in [0, 1).")
    equilibrium = given.get("gradient_equilibrium", False)
    if not isinstance(equilibrium, (bool, np.bool_)):
        raise TypeError(
            f"module__gradient_equilibrium={equilibrium!r} must be True or False."
        )
    if equilibrium and estimator.strategy in ("final", "two_stage"):
        raise ValueError(
            "module__gradient_equilibrium=True balances exits that train at once, but "
            f"strategy={estimator.strategy!r} trains the encoder by one exit. Use "
            "strategy='joint' or 'alternating', or leave it out."
        )


def _check_component(estimator, component, *, required=None, skip=()):
    """Check that `component__x` names something its constructor takes."""
    part = getattr(estimator, component)
    if not callable(part) or (required and not hasattr(part, required)):
        detail = f" with a method {required!r}" if required else ""
        raise TypeError(
            f"The {component!r} parameter must be a class{detail}, got {part!r}."
        )
    given = estimator.get_params_for(component)
    try:
        accepted = inspect.signature(part).parameters
    except (TypeError, ValueError) as error:  # such as dict
        raise _no_such_part(component, part) from error
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        accepted = given
    if component == "optimizer":
        given = {k: v for k, v in given.items() if not k.startswith("param_groups")}
    unknown = sorted(set(given) - set(accepted) | set(given) & set(skip))
    if unknown:
        known = sorted(set(accepted) - set(skip) - {"self"})
        raise ValueError(
            f"Unknown parameter {component}__{unknown[0]}; {component}__ takes: "
            f"{', '.join(known)}."
        )
    if component == "criterion" and hasattr(part, "check"):
        part(**given).check()


def _no_such_part(component, part):
    return TypeError(
        f"The {component!r} parameter must be a class such as {_EXAMPLES[component]}, "
        f"got {part!r}."
    )


def _check_optimizer(estimator):
    """Build the optimizer as training will, around parameters that stand for its."""
    part = estimator.optimizer
    given = estimator.get_params_for("optimizer")
    _check_param_groups(given.get("param_groups", ()))
    _check_closure(part)
    settings = with_fast_kernel(part, {"lr": estimator.lr, **given})
    names = ("encoder.weight", "encoder.bias", "heads.weight", "heads.bias")
    shapes = ((1, 1), (1,)) * 2
    stand_ins = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    try:
        groups = parameter_groups(
            zip(names, stand_ins, strict=True),
            lr=settings["lr"],
            head_lr_factor=estimator.head_lr_factor,
            user_groups=settings.pop("param_groups", ()),
        )
        optimizer = part(groups, **settings)
    except Exception as error:  # whatever its checks raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        values = [f"optimizer__{k}={v!r}" for k, v in given.items()]
        name = getattr(part, "__name__", repr(part))
        raise kind(
            f"{', '.join(values) or f'optimizer={part!r}'} cannot be used "
            f"({type(error).__name__}: {error}). Pass what {name} takes, or leave it "
            "out."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _no_such_part("optimizer", part)


def _check_param_groups(groups):
    are_pairs = isinstance(groups, (list, tuple)) and all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], dict)
        for pair in groups
    )
    if not are_pairs:
        raise ValueError(
            f"optimizer__param_groups={groups!r} must be a list of pairs of a name "
            "pattern and a dict of settings, such as [('heads.*', {'lr': 0.001})]."
        )


def _check_closure(part):
    """Raise for an optimizer, such as LBFGS, whose steps compute the loss again."""
    if not callable(getattr(part, "step", None)):
        return
    closure = inspect.signature(part.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optimizer={part!r} is not supported: each of its steps computes the loss "
            "several times, through a closure that training does not pass. Use one "
            f"such as {_EXAMPLES['optimizer']}."
        )
