"""Run a model's own forward up to a layer, and keep what its layers were given.

A hook at the entry of every layer takes the hidden states that exits read and stops the
pass where no deeper layer is wanted.
"""

import threading


class _Stop(Exception):
    """Raised at the entry of a layer to end a forward pass; never leaves this module"""


class _Run:
    """One forward pass: which layers have finished, and what was taken from them."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.finished = 0
        self.states = {}

    def enter_layer(self, hidden):
        if self.finished in self.wanted:
            self.states[self.finished] = hidden
        if self.finished == self.wanted[-1]:
            raise _Stop
        self.finished += 1


class _LayerEntry:
    """Forward pre-hook of every layer; does nothing outside a run of this module.

    Layers are counted, not recognised: a family may call one module for several.
    """

    def __call__(self, layer, args, kwargs):
        run = getattr(_current, "run", None)
        if run is not None:
            run.enter_layer(args[0] if args else kwargs["hidden_states"])


# A run belongs to its thread, so threads may share an encoder.
_current = threading.local()


def hook_layers(layers):
    """Prepare the modules of a model's layers, for good, for `run_until`."""
    for layer in layers:
        hooks = layer._forward_pre_hooks.values()
        # a second encoder around the same backbone must not count each layer twice
        if not any(isinstance(hook, _LayerEntry) for hook in hooks):
            layer.register_forward_pre_hook(_LayerEntry(), with_kwargs=True)


def run_until(backbone, inputs, layers):
    """Run a hooked model until the last of the (ascending) layers has finished.

    Parameters
    ----------
    backbone : transformers.PreTrainedModel
        A model whose layers went through `hook_layers`.
    inputs : dict of Tensor
        Arguments of its forward.
    layers : tuple of int
        Wanted layers, ascending, counted from 1.

    Returns
    -------
    states : dict of int to Tensor of shape (B, T, D)
        What the layer after each wanted layer was given, by the wanted layer; the
        model's last layer, which no layer follows, is left out.
    output : transformers.utils.ModelOutput or None
        The model's output; None if it was stopped before its end.

    Raises
    ------
    RuntimeError
        If the model did not call its hooked layers as often as expected.
    """
    run = _Run(layers)
    outer = getattr(_current, "run", None)
    _current.run = run
    try:
        output = backbone(
            **inputs,
            return_dict=True,
            output_hidden_states=False,
            output_attentions=False,
        )
    except _Stop:
        output = None
    finally:
        _current.run = outer
    if run.finished != layers[-1]:
        raise RuntimeError(
            f"{type(backbone).__name__} ran {run.finished} layers where {layers[-1]} "
            "were expected; this version of transformers may not be supported."
        )
    return run.states, output
