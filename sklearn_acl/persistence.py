"""A fitted classifier as a pickle, and as a directory that holds no code.

Both carry the same parts: the encoder's configuration, the tokenizer's files and the
weights. Neither needs a network, nor the place the backbone was loaded from.
"""

import copy
import json
import os
import shutil
import uuid
import warnings
from pathlib import Path

import numpy as np
import torch

from .backbones import NoRandomInit, backbone_from_parts, backbone_to_parts
from .encoder import MultiExitEncoder
from .json_values import decode, encode
from .parameters import check_names, resolve_device
from .user_code import stacklevel

FORMAT_VERSION = 2  # 1 had no temperatures
MANIFEST = "sklearn_acl.json"
WEIGHTS = "model.safetensors"
CONFIG = "backbone.json"
TOKENIZER = "tokenizer"
ANGLES = "training.angles"

#: Rebuilt, not stored: everything that holds tensors or belongs to one process, and
#: that a callback of a running training stores the classifier.
_REBUILT = (
    "_trains_now",
    "module_",
    "criterion_",
    "optimizer_",
    "scaler_",
    "tokenizer_",
    "callbacks_",
    "stage_",
)
#: Files that file managers put into folders that they show.
_OF_FILE_MANAGERS = {".DS_Store", "Thumbs.db", "desktop.ini"}
#: What reading a damaged file may raise.
_DAMAGES = (
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_FITTED = ("max_length_", "text_columns_", "n_text_columns_", "seed_", "structure_")


# -- pickle ------------------------------------------------------------------


def pickled_state(net):
    """State of a classifier for pickle: weights as safetensors, no optimizer.

    Parameters
    ----------
    net : MultiExitNet

    Returns
    -------
    state : dict
    """
    from safetensors.torch import save as to_bytes

    state = {k: v for k, v in net.__dict__.items() if k not in _REBUILT}
    if "module_" not in net.__dict__:
        return state
    if type(net.module_) is MultiExitEncoder:
        parts = _parts_of(net)
        state["fitted_parts_"] = {**parts, "weights": to_bytes(parts["weights"])}
    else:  # a module of the user's own: only pickle knows how to store it
        state["fitted_module_"] = (_on_cpu(net.module_), net.tokenizer_)
    return state


def restore_state(net, state):
    """Give a new object the state that `pickled_state` returned."""
    from safetensors.torch import load as from_bytes

    state = dict(state)
    parts = state.pop("fitted_parts_", None)
    module = state.pop("fitted_module_", None)
    vars(net).update(state)
    if parts is not None:
        module = _build({**parts, "weights": from_bytes(parts["weights"])})
    if module is not None:
        _attach(net, *module)


# -- directory ---------------------------------------------------------------


def save(net, directory):
    """Write a fitted classifier to a directory; see `ACLClassifier.save`."""
    if type(net.module_) is not MultiExitEncoder:
        raise TypeError(
            f"save() stores the library's own MultiExitEncoder, not a "
            f"{type(net.module_).__name__}; use joblib.dump for a module of your own."
        )
    directory = Path(directory).expanduser().resolve()
    _check_target(directory)
    parts = _parts_of(net)
    # written aside and renamed: a crash never leaves a half-written model in place
    aside = _place_aside(directory) / f".{directory.name}-{uuid.uuid4().hex}"
    aside.mkdir(parents=True)
    try:
        _write(aside, net, parts)
        _put_in_place(aside, directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def load(cls, directory):
    """Read what `save` wrote; see `ACLClassifier.load`."""
    from safetensors import SafetensorError

    directory = Path(directory).expanduser()
    manifest = _read_manifest(directory)
    try:
        net, module = _read(cls, directory, manifest)
        _attach(net, *module)
    except (*_DAMAGES, SafetensorError) as error:
        raise ValueError(
            f"The classifier in {str(directory)!r} is incomplete or damaged: "
            f"{type(error).__name__}: {error}. Save it again."
        ) from error
    net.initialized_ = True
    return net


def _read(cls, directory, manifest):
    from safetensors.torch import load_file

    weights = load_file(directory / WEIGHTS)
    angles = weights.pop(ANGLES).numpy()
    config = json.loads((directory / CONFIG).read_text("utf-8"))
    folder = directory / TOKENIZER
    # names are looked up among the files there are: none leads out of the directory
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    files = {name: found[name].read_bytes() for name in manifest["tokenizer"]}
    for name, content in files.items():
        if name.endswith(".json"):
            json.loads(content)  # transformers passes over a damaged one
    parts = {
        "architecture": manifest["architecture"],
        "config": config,
        "tokenizer": files,
        "weights": weights,
    }
    parameters = {k: decode(v) for k, v in manifest["parameters"].items()}
    net = cls(**parameters)
    check_names(net)
    if not parameters.keys() <= net.get_params(deep=False).keys():
        raise ValueError(f"{MANIFEST} has parameters that are none")
    net.classes_inferred_ = decode(manifest["classes"])
    if len(net.classes_inferred_) != parts["architecture"]["n_classes"]:
        raise ValueError(f"{MANIFEST} names another number of classes")
    for name in _FITTED:
        setattr(net, name, decode(manifest["fitted"][name]))
    calibration = decode(manifest["calibration"])
    if calibration is not None:
        net.calibration_ = calibration
    net.angles_ = angles
    net.initialize_history()
    for epoch in manifest["history"]:
        net.history.append({**epoch, "batches": []})
    return net, _build(parts)


def _check_target(directory):
    if directory.is_dir():
        names = {path.name for path in directory.iterdir()} - _OF_FILE_MANAGERS
        foreign = names - {MANIFEST, WEIGHTS, CONFIG, TOKENIZER}
        if foreign or (names and MANIFEST not in names):
            raise ValueError(
                f"{str(directory)!r} holds other files, such as "
                f"{min(foreign or names)!r}; save to a new or empty directory, or over "
                "an earlier save."
            )
    elif directory.exists():
        raise ValueError(f"{str(directory)!r} is a file; save() needs a directory.")


def _place_aside(directory):
    """Where to write first: next to the directory or, if it must stay, inside."""
    if not directory.is_dir():
        return directory.parent
    is_in_use = directory == Path.cwd() or os.path.ismount(directory)
    can_be_renamed = os.access(directory.parent, os.W_OK) and not is_in_use
    return directory.parent if can_be_renamed else directory


def _put_in_place(aside, directory):
    """Rename a complete directory; the earlier save is deleted after that."""
    if aside.parent == directory:
        _replace_content(aside, directory)
        return
    if not directory.exists():
        os.replace(aside, directory)
        return
    old = aside.with_name(f"{aside.name}-old")
    os.replace(directory, old)
    try:
        os.replace(aside, directory)
    except BaseException:
        os.replace(old, directory)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _replace_content(aside, directory):
    """Exchange what is in a directory; it has no manifest while files are moving."""
    old = aside / "old"
    old.mkdir()
    names = (MANIFEST, TOKENIZER, CONFIG, WEIGHTS)
    there = [name for name in names if (directory / name).exists()]
    moves = [(directory / name, old / name) for name in there]
    moves += [(aside / name, directory / name) for name in reversed(names)]
    done = []
    try:
        for source, target in moves:
            os.replace(source, target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            os.replace(target, source)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _write(directory, net, parts):
    from safetensors.torch import save_file

    weights = dict(parts["weights"])
    weights[ANGLES] = torch.from_numpy(np.array(net.angles_))  # may be read-only
    save_file(weights, directory / WEIGHTS)
    for name, content in parts["tokenizer"].items():
        path = directory / TOKENIZER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / CONFIG).write_text(json.dumps(parts["config"], indent=2), "utf-8")
    # safetensors lets nobody but the owner read its file
    shutil.copymode(directory / CONFIG, directory / WEIGHTS)
    manifest = {
        "format": FORMAT_VERSION,
        "architecture": parts["architecture"],
        "tokenizer": sorted(parts["tokenizer"]),
        "parameters": _encode_parameters(net),
        "classes": encode(net.classes_),
        "fitted": {name: encode(getattr(net, name)) for name in _FITTED},
        "calibration": encode(getattr(net, "calibration_", None)),
        "history": [_plain_epoch(epoch) for epoch in net.history],
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")


def _read_manifest(directory):
    path = directory / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{str(directory)!r} holds no saved classifier: {MANIFEST} is missing. "
            "Pass a directory that ACLClassifier.save wrote."
        )
    try:
        manifest = json.loads(path.read_text("utf-8"))
        version = manifest["format"]
    except _DAMAGES as error:
        raise ValueError(f"{str(path)!r} is damaged: {error!r}.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{str(directory)!r} has format {version!r}; this version of sklearn_acl "
            f"reads format {FORMAT_VERSION}. Install the version that wrote it or a "
            "newer one."
        )
    return manifest


# -- parts -------------------------------------------------------------------


def _parts_of(net):
    encoder = net.module_
    config, tokenizer_files = backbone_to_parts(encoder.backbone, net.tokenizer_)
    tensors = encoder.state_dict().items()
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
    return {
        "architecture": {
            "n_classes": encoder.heads[0].classifier.out_features,
            "exit_layers": list(encoder.exit_layer_numbers),
            "pooling": encoder.pooling,
            "dropout": encoder.heads[0].dropout.p,
            "gradient_equilibrium": bool(encoder.gradient_equilibrium),
        },
        "config": config,
        "tokenizer": tokenizer_files,
        "weights": weights,
    }


def _on_cpu(module):
    """The module, or a copy of it if it is elsewhere: no device is in the file."""
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        return module
    return copy.deepcopy(module).cpu()


def _build(parts):
    """Encoder and tokenizer of the parts that `_parts_of` returned."""
    architecture = dict(parts["architecture"])
    n_classes = architecture.pop("n_classes")
    # a caller's inference mode would make weights that never train again
    with torch.inference_mode(False):
        backbone, tokenizer = backbone_from_parts(parts["config"], parts["tokenizer"])
        with NoRandomInit():
            encoder = MultiExitEncoder(backbone, n_classes, **architecture)
        encoder.load_state_dict(parts["weights"])
    return encoder.eval(), tokenizer


def _attach(net, encoder, tokenizer):
    net.tokenizer_ = tokenizer
    try:
        resolve_device(net.device)
    except ValueError as error:
        warnings.warn(
            f"{error} The classifier now has device=None.",
            UserWarning,
            stacklevel=stacklevel(),
        )
        net.device = None
    with net._current_init_context("module"):
        net.module_ = encoder.to(resolve_device(net.device))
    initialized, net.initialized_ = net.initialized_, False  # skorch prints otherwise
    net._initialize_callbacks()
    net._initialize_criterion()
    net.initialized_ = initialized
    net.optimizer_ = net.scaler_ = net.stage_ = None
    net.virtual_params_ = {}  # of a pickle made in the middle of a training


# -- parameters and history as JSON ------------------------------------------


def _encode_parameters(net):
    """Parameters that differ from their defaults, as JSON; warns of what cannot be."""
    defaults = type(net)().get_params(deep=False)
    encoded, lost = {}, []
    for name, value in net.get_params(deep=False).items():
        default = defaults.get(name, encode)  # which is the value of no parameter
        if name == "memory" or value is default:  # a place on this machine
            continue
        try:
            encoded[name] = encode(value)
        except TypeError:
            lost.append(name)
        else:
            if type(value) is type(default) and value == default:
                del encoded[name]
    if "exit_rule" in lost and net.exit_threshold is not None:
        raise TypeError(
            f"save() cannot store exit_rule={net.exit_rule!r}, which decides where "
            f"texts leave at exit_threshold={net.exit_threshold!r}. Use joblib.dump, "
            "a built-in rule, or set exit_threshold=None."
        )
    # parameters of a part that is lost would reach the default one
    lost += [name for name in encoded if name.partition("__")[0] in lost]
    encoded = {name: value for name, value in encoded.items() if name not in lost}
    if lost:
        warnings.warn(
            f"save() cannot store {', '.join(sorted(lost))}: only numbers, texts and "
            "lists of them. Predictions are not affected; before another fit, set "
            "them again after load().",
            UserWarning,
            stacklevel=stacklevel(),
        )
    return encoded


def _plain_epoch(epoch):
    """History of one epoch as JSON: its numbers and texts, without the batches'."""
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in epoch.items()}
    scalars = (bool, int, float, str, type(None))
    return {k: v for k, v in plain.items() if isinstance(v, scalars)}
