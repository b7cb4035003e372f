"""What makes two fits the same: the key under which `memory=` keeps a fit."""

import hashlib
import platform
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

import joblib
import numpy as np
import torch
from skorch.callbacks import Callback

from .backbone_files import SAFE_WEIGHTS, find_backbone
from .code_hash import code_hash
from .parameters import resolve_device

#: Format of an entry; those of another one are not found.
ENTRY_FORMAT = 1

#: Parameters that change predictions or output only.
INFERENCE_PARAMETERS = frozenset(
    "exit_layer exit_threshold exit_rule exit_patience verbose memory".split()
)

#: Parameters that enter the key as what they stand for: the texts, label codes and
#: weights of this fit, the seed drawn, the files found, the device there is. A fit that
#: goes on from another one has no key.
_RESOLVED_PARAMETERS = frozenset(
    "text_columns classes class_weight random_state backbone device warm_start".split()
)

#: Libraries whose code decides what a training arrives at.
_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "skorch",
    "scikit-learn",
    "scipy",
    "numpy",
)

# Files that a backbone is read from; without safetensors, the weights are .bin files.
_BACKBONE_FILES = (".json", ".txt", ".model", ".safetensors")
_ROWS_AT_A_TIME = 10_000
# A file may change twice within the grain of the file system's clock.
_CLOCK_GRAIN_NS = 2 * 10**9


def fit_key(net, data, valid):
    """Key of a fit: equal keys, equal fitted classifiers.

    Parameters
    ----------
    net : ACLClassifier
        With the seed of this fit in `seed_`.
    data : object
        Checked `texts`, label `codes`, `classes` and `weights`.
    valid : object or None
        The same for validation data.

    Returns
    -------
    key : str of 32 hexadecimal digits

    Raises
    ------
    TypeError
        If a parameter holds something that cannot be hashed, such as a lambda.
    OSError
        If the backbone is found nowhere.
    """
    parts = {
        "format": ENTRY_FORMAT,
        "versions": _versions(),
        "class": _hash(type(net), "The class of the classifier"),
        "parameters": _parameter_hashes(net),
        "seed": int(net.seed_),
        "backbone": backbone_hashes(net.backbone),
        "arithmetic": _arithmetic(net.device),
        "train": _data_hash(data),
        "valid": None if valid is None else _data_hash(valid),
    }
    return joblib.hash(parts)


# -- parameters ----------------------------------------------------------------------


def _parameter_hashes(net):
    left_out = INFERENCE_PARAMETERS | _RESOLVED_PARAMETERS
    # one by one: in a joint hash, equal values and the same value twice would differ
    return {
        name: _hash(_as_made(value), f"The parameter {name!r}")
        for name, value in net.get_params(deep=False).items()
        if name not in left_out
    }


def _as_made(value):
    """Callbacks without what they keep of earlier fits, which ends with "_"."""
    if type(value) in (list, tuple):
        return type(value)(map(_as_made, value))
    if not isinstance(value, Callback):
        return value
    made = {k: v for k, v in vars(value).items() if not k.endswith("_")}
    return type(value), made


def _hash(value, what):
    try:
        # the first refuses what has no name, such as a lambda
        return joblib.hash(value), code_hash(value)
    except Exception as error:  # whatever its pickling raises
        raise TypeError(
            f"{what} cannot be hashed, which memory= needs to tell fits apart "
            f"({type(error).__name__}: {error}). Use classes and functions that a "
            "module defines, no lambdas, local classes or open files; or pass "
            "memory=None."
        ) from error


# -- data ----------------------------------------------------------------------------


def _data_hash(data):
    weights = data.weights
    return {
        "texts": texts_hash(data.texts),
        "codes": joblib.hash(np.ascontiguousarray(data.codes)),
        "classes": joblib.hash(data.classes.tolist()),
        "weights": None if weights is None else joblib.hash(weights),
    }


def texts_hash(texts):
    """Hash of texts by their content, whatever holds them; some rows at a time.

    Parameters
    ----------
    texts : Texts

    Returns
    -------
    hash : tuple of (number of rows, number of columns, str)
    """
    digest = hashlib.sha256()
    for start in range(0, len(texts), _ROWS_AT_A_TIME):
        for column in texts.slice(start, start + _ROWS_AT_A_TIME):
            if column is not None:
                # lengths first: ["ab", "c"] is not ["a", "bc"]
                digest.update(np.array([*map(len, column)], np.int64).tobytes())
                digest.update("".join(column).encode())
    return len(texts), texts.n_columns, digest.hexdigest()


# -- backbone ------------------------------------------------------------------------


def backbone_hashes(name):
    """Hashes of the files that a backbone is loaded from, by file name.

    Parameters
    ----------
    name : str or path-like
        As in `load_backbone`; no model is loaded.

    Returns
    -------
    hashes : dict of str to str
    """
    directory = find_backbone(name)
    names = {path.name: path for path in directory.iterdir() if path.is_file()}
    suffixes = _BACKBONE_FILES
    if not any(name in names for name in SAFE_WEIGHTS):
        suffixes += (".bin",)
    return {k: file_hash(path) for k, path in names.items() if k.endswith(suffixes)}


_file_hashes = {}


def file_hash(path):
    """SHA-256 of a file, read once per process and state of the file."""
    status = path.stat()
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    state = (str(path), status.st_ino, status.st_size, changed)
    if state in _file_hashes:
        return _file_hashes[state]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - changed > _CLOCK_GRAIN_NS:
        _file_hashes[state] = digest
    return digest


# -- machine and versions ------------------------------------------------------------


def _arithmetic(device):
    """What decides how numbers are rounded and in which order they are added."""
    device = resolve_device(device)
    is_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else device.type,
        "cpu": (platform.machine(), torch.backends.cpu.get_cpu_capability()),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


#: Version of an installed library; a process goes on with the one it has imported.
library_version = cache(version)


def _versions():
    from . import __version__

    libraries = {name: library_version(name) for name in _LIBRARIES}
    return {
        "python": platform.python_version(),
        "sklearn_acl": __version__,
        "source": _SOURCE_HASH,
        **libraries,
    }


def _source_hash():
    """Hash of this package's code, which changes between releases, too."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCE_HASH = _source_hash()  # of the code that is being imported
