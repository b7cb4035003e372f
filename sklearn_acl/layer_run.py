"""Run a model's own forward up to a layer, and change what its layers are given.

A hook at the entry of every layer sees the hidden states that an exit reads. It stops
the pass where no deeper layer is wanted, and it may hand the layer other hidden states
or fewer texts than the model passes.
"""

import functools
import inspect
import threading

import torch


class _Stop(Exception):
    """Raised at the entry of a layer to end a forward pass; never leaves this module"""


class _Run:
    """One forward pass up to the last of the wanted layers."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.finished = 0  # layers
        self.is_empty = False  # whether no text is left

    def enter_layer(self, layer, args, kwargs):
        """What a layer is called with; None leaves it as it is."""
        hidden = args[0] if args else kwargs["hidden_states"]
        done = self.finished if self.finished in self.wanted else None
        if done == self.wanted[-1]:
            self.finish(hidden)
            raise _Stop
        changed = self.go_on(layer, args, kwargs, done, hidden)
        self.finished += 1
        return changed


class _KeepingRun(_Run):
    """Keeps the hidden states after the wanted layers."""

    def __init__(self, wanted, fork):
        super().__init__(wanted)
        self.fork = fork
        self.states = {}

    def finish(self, hidden):
        self.states[self.wanted[-1]] = hidden

    def go_on(self, layer, args, kwargs, done, hidden):
        if done is None:
            return None
        if self.fork is None:
            self.states[done] = hidden
            return None
        self.states[done], hidden = self.fork(done, hidden)
        if args:
            return (hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hidden}


class _DroppingRun(_Run):
    """Lets texts leave after the wanted layers."""

    def __init__(self, wanted, staying, batch):
        super().__init__(wanted)
        self.staying = staying
        self.batch = batch
        self.last = None  # hidden states after the last wanted layer

    def finish(self, hidden):
        self.last = hidden

    def go_on(self, layer, args, kwargs, done, hidden):
        staying = None if done is None else self.staying(done, hidden)
        if staying is not None and not len(staying):
            self.is_empty = True
            raise _Stop
        return self.batch.drop(layer, args, kwargs, staying)


class _Batch:
    """Which texts of a batch are still there, and the arguments of layers for them.

    A model passes its layers the hidden states as the layer before returned them, and
    everything else for the whole batch.
    """

    def __init__(self, family, n_rows):
        self.dims = family.batch_dims
        self.n_rows = n_rows
        self.rows = None  # those still there, an int64 Tensor; None is all
        self.taken = {}  # whole arguments and their rows, by name and identity

    def drop(self, layer, args, kwargs, staying):
        """Arguments of a layer, for those of the texts there that stay.

        None, for `staying` or as the answer, is all of them.
        """
        n_there = self.n_rows if self.rows is None else len(self.rows)
        if staying is not None:
            self.rows = staying if self.rows is None else self.rows[staying]
            self.taken.clear()
        names = _argument_names(type(layer))
        if len(args) > len(names):
            raise _unsupported(layer, "too many arguments", args)
        values = []
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            if name == "hidden_states":
                values.append(self._take(layer, name, value, n_there, staying))
            else:
                values.append(self._take_once(layer, name, value))
        if self.rows is None:
            return None
        by_name = zip(kwargs, values[len(args) :], strict=True)
        return tuple(values[: len(args)]), dict(by_name)

    def _take_once(self, layer, name, value):
        """As `_take`; layers share most of what they are passed."""
        key = name, id(value)
        if key not in self.taken:
            taken = self._take(layer, name, value, self.n_rows, self.rows)
            self.taken[key] = value, taken  # kept alive, so that the id stays its own
        return self.taken[key][1]

    def _take(self, layer, name, value, n_rows, rows):
        """Some rows of an argument, which has `n_rows` if it has rows at all."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if name not in self.dims:
            found = f"an argument that it is not known to take, {name}"
            raise _unsupported(layer, found, value)
        dim = self.dims[name]
        if dim is None:
            return value
        if not isinstance(value, torch.Tensor) or value.shape[dim] != n_rows:
            raise _unsupported(layer, f"{n_rows} texts and {name}", value)
        return value if rows is None else value.index_select(dim, rows)


def _unsupported(layer, found, value):
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return RuntimeError(
        f"{type(layer).__name__} was called with {found}: {type(value).__name__}"
        f"{shape}. Texts cannot leave this batch: run all of them to the same exit, or "
        "use a version of transformers and an attention implementation ('sdpa' or "
        "'eager') that is supported."
    )


@functools.cache
def _argument_names(layer_type):
    """Names of the arguments of a layer's forward, in order of position."""
    parameters = inspect.signature(layer_type.forward).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in parameters if p.kind in kinds][1:]


class _LayerEntry:
    """Forward pre-hook of every layer; does nothing outside a run of this module.

    Layers are counted, not recognised: a family may call one module for several.
    """

    def __call__(self, layer, args, kwargs):
        run = getattr(_current, "run", None)
        return None if run is None else run.enter_layer(layer, args, kwargs)


# A run belongs to its thread, so threads may share an encoder.
_current = threading.local()


def hook_layers(layers):
    """Prepare the modules of a model's layers, for good, for runs of this module."""
    for layer in layers:
        hooks = layer._forward_pre_hooks.values()
        # a second encoder around the same backbone must not count each layer twice
        if not any(isinstance(hook, _LayerEntry) for hook in hooks):
            layer.register_forward_pre_hook(_LayerEntry(), with_kwargs=True)


def run_until(backbone, inputs, layers, fork=None):
    """Run a hooked model until the last of the (ascending) layers has finished.

    Parameters
    ----------
    backbone : transformers.PreTrainedModel
        A model whose layers went through `hook_layers`.
    inputs : dict of Tensor
        Arguments of its forward.
    layers : tuple of int
        Wanted layers, ascending, counted from 1.
    fork : callable, default=None
        ``fork(layer, hidden) -> (state, hidden)``, called after each wanted layer but
        the last: what stands for its hidden states in `states`, and what the next layer
        is given.

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
    run = _KeepingRun(layers, fork)
    output = _forward(backbone, inputs, run)
    return run.states, output


def run_dropping(backbone, inputs, layers, staying, family):
    """Run a hooked model; texts may leave the batch after each of the layers.

    Parameters
    ----------
    backbone, inputs, layers
        As in `run_until`.
    staying : callable
        ``staying(layer, hidden) -> rows``, called after each of `layers` but the last
        with the hidden states (n, T, D) of the n texts still there: positions among
        them, ascending, of those that go on, as an int64 Tensor on their device. None
        is all of them.
    family : Family
        Says which arguments of a layer have a row per text.

    Returns
    -------
    state : Tensor of shape (n, T, D) or None
        Hidden states of the texts left after the last of `layers`, as the next layer
        would be given them. None if no text is left, or no layer follows.
    output : transformers.utils.ModelOutput or None
        The model's output, for the texts left; None if it was stopped before its end.

    Raises
    ------
    RuntimeError
        As in `run_until`, and if a layer is given an argument which the family does not
        describe.
    """
    run = _DroppingRun(layers, staying, _Batch(family, len(inputs["input_ids"])))
    output = _forward(backbone, inputs, run)
    return run.last, output


def _forward(backbone, inputs, run):
    """Output of the model, None if the run stopped it."""
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
    if run.finished != run.wanted[-1] and not run.is_empty:
        raise RuntimeError(
            f"{type(backbone).__name__} ran {run.finished} layers where "
            f"{run.wanted[-1]} were expected; this version of transformers may not be "
            "supported."
        )
    return output
