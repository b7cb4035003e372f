"""Running a fitted encoder over texts, and which exit answers."""

import numbers
import warnings
from functools import partial

import numpy as np
import torch

from .batching import prediction_batches
from .exit_rules import leaves
from .tokens import tokenize
from .user_code import stacklevel

#: Texts tokenised and sorted at a time: bounds memory whatever the size of the input.
CHUNK_ROWS = 8192


def resolve_exit_layer(exit_layer, exit_layer_numbers):
    """Layer number of the exit that answers.

    Parameters
    ----------
    exit_layer : int or None
        1-based number of a layer with an exit; None is the deepest.
    exit_layer_numbers : tuple of int
        Layers that have a trained exit, ascending.

    Returns
    -------
    layer : int

    Raises
    ------
    TypeError
        If `exit_layer` is a bool, a float or anything but an integer or None.
    ValueError
        If no exit sits after that layer.
    """
    deepest = exit_layer_numbers[-1]
    if exit_layer is None:
        return deepest
    is_bool = isinstance(exit_layer, (bool, np.bool_))
    if is_bool or not isinstance(exit_layer, numbers.Integral):
        raise TypeError(
            f"exit_layer must be an integer in 1..{deepest} or None, got "
            f"{exit_layer!r} of type {type(exit_layer).__name__}."
        )
    if exit_layer in exit_layer_numbers:
        return int(exit_layer)
    if len(exit_layer_numbers) == 1:
        raise ValueError(
            f"exit_layer={exit_layer}: this model has one exit, after layer {deepest}. "
            f"Fit with strategy='joint' to train an exit after every layer, or with "
            f"n_layers={exit_layer} for a shallower model; exit_layer may be None or "
            f"{deepest} here."
        )
    raise ValueError(
        f"exit_layer={exit_layer} is out of range: the exits of this model sit after "
        f"layers {exit_layer_numbers[0]}..{deepest}. Use one of these or None."
    )


def warn_truncated(n_truncated, n_rows, max_length):
    """Say once how many texts are longer than the model reads."""
    if n_truncated:
        warnings.warn(
            f"{n_truncated} of {n_rows} texts ({n_truncated / n_rows:.1%}) are longer "
            f"than max_length={max_length} tokens; what lies beyond is not read. Raise "
            "max_length if the model allows it, or shorten the texts.",
            UserWarning,
            stacklevel=stacklevel(),
        )


def move(inputs, device):
    """Put every tensor of a batch on a device."""
    return {k: v.to(device, non_blocking=True) for k, v in inputs.items()}


def iterate_outputs(encoder, texts, tokenizer, *, exits, batch_size, **tokenizing):
    """Yield (row numbers, `ExitOutputs`) for batches of similar length.

    Texts are tokenised chunk by chunk in this process and sorted by length within a
    chunk, so that padding and memory stay small; the row numbers say where the
    outputs belong.

    Parameters
    ----------
    encoder : MultiExitEncoder
        Put in evaluation mode; run where its parameters are.
    texts : Texts
    tokenizer : transformers tokenizer
    exits : tuple of int
        Layer numbers of the exits to compute; no layer beyond the last runs.
    batch_size : int
    **tokenizing
        `max_length` and `accepted`, as `tokenize` takes them.
    """
    run = partial(encoder, exits=exits)
    return _iterate(encoder, texts, tokenizer, run, batch_size, tokenizing)


def iterate_adaptive(
    encoder,
    texts,
    tokenizer,
    *,
    exits,
    batch_size,
    rule,
    threshold,
    patience=1,
    **tokenizing,
):
    """Yield (row numbers, `AdaptiveOutputs`) for batches of similar length.

    Each text leaves at the first of the exits where the rule fires, else at the last,
    and later layers run without it.

    Parameters
    ----------
    encoder, texts, tokenizer, exits, batch_size
        As in `iterate_outputs`.
    rule, threshold, patience
        As in `exit_rules.leaves`.
    **tokenizing
        As in `iterate_outputs`.
    """

    def run(inputs):
        return encoder.adaptive(inputs, exits, _Leaving(rule, threshold, patience))

    return _iterate(encoder, texts, tokenizer, run, batch_size, tokenizing)


class _Leaving:
    """Asks a rule who of one batch leaves, exit after exit."""

    def __init__(self, rule, threshold, patience):
        self.settings = rule, threshold, patience
        self.history = None  # (exits passed, texts still there, classes)

    def __call__(self, logits):
        passed = class_probabilities(logits)[None]
        if self.history is not None:
            passed = np.concatenate([self.history, passed])
        gone = leaves(passed, *self.settings)
        self.history = passed[:, ~gone] if gone.any() else passed
        return gone


def _iterate(encoder, texts, tokenizer, run, batch_size, tokenizing):
    encoder.eval()
    device = next(encoder.parameters()).device
    n_truncated = 0
    for start in range(0, len(texts), CHUNK_ROWS):
        chunk = texts.take(range(start, min(start + CHUNK_ROWS, len(texts))))
        tokens = tokenize(chunk, tokenizer, **tokenizing)
        n_truncated += tokens.n_truncated
        batches = prediction_batches(
            tokens.lengths, batch_size, pad_freely=device.type != "cpu"
        )
        for rows in batches:
            # entered per batch: a caller may stop reading, or train, between two
            with torch.inference_mode(), torch.autocast(device.type, enabled=False):
                outputs = run(move(tokens.collate(rows), device))
            yield start + rows, outputs
    warn_truncated(n_truncated, len(texts), tokenizing["max_length"])


def class_probabilities(logits):
    """Softmax over classes in double precision, as a numpy array."""
    return torch.softmax(logits.double(), dim=-1).cpu().numpy()
