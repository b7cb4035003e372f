"""Parameters and labels as JSON, with their types."""

import os

import numpy as np
import torch


def encode(value):
    """Turn a value into what JSON holds.

    Parameters
    ----------
    value : object
        None, a bool, number or text, a list, tuple or dict of such, or an array.
        Paths and torch devices become texts, scalars of numpy Python's own.

    Returns
    -------
    encoded : None, bool, int, float, str or dict

    Raises
    ------
    TypeError
        For anything else, in it or as a whole.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, (os.PathLike, torch.device)):
        return str(value)
    if isinstance(value, list):
        return {"list": [encode(item) for item in value]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        dtype = value.dtype.str if value.dtype.kind != "O" else "object"
        return {"array": [encode(v) for v in value.tolist()], "dtype": dtype}
    raise TypeError(
        "save() stores numbers, texts and lists of them, but no "
        f"{type(value).__name__}: {value!r:.60}."
    )


def decode(value):
    """Turn what `encode` returned into the value; runs no code of the file."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        values = [decode(item) for item in value["array"]]
        return np.array(values, dtype=value["dtype"])
    if "dict" in value:
        return {decode(k): decode(v) for k, v in value["dict"]}
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    return [decode(item) for item in value["list"]]
