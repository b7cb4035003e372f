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
    for iterator in ("iterator_train", "iterator_valid"):
        _check_component(estimator, iterator, skip=_SET_BY_NET["iterator"])
        batch_size = estimator.get_params_for(iterator).get("batch_size", 1)
        check_batch_size(f"{iterator}__batch_size", batch_size)
    _check_module_parameters(estimator)
    _check_callback_names(estimator)


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


def _check_callback_names(estimator):
    """Raise for parameters of callbacks that are not there; skorch ignores them."""
    if estimator.callbacks == "disable":
        there = set()
    else:
        there = {name for name, _ in estimator._uniquely_named_callbacks()}
    for key in estimator.get_params_for("callbacks"):
        name = key.partition("__")[0]
        if name not in there:
            raise ValueError(
                f"callbacks__{key}: there is no callback {name!r}; there are: "
                f"{', '.join(sorted(there)) or 'none'}."
            )


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
    accepted = inspect.signature(part).parameters
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
