"""A transformers encoder with exits after its layers.

The forward pass is the model's own, stopped after the deepest layer asked for, so an
exit reads exactly what the next layer would have read.
"""

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .adaptive import AdaptiveOutputs, Departures
from .equilibrium import GradientEquilibrium
from .exit_head import ExitHead
from .families import family_of
from .layer_run import hook_layers, run_dropping, run_until

POOLINGS = ("mean", "cls")


class ExitOutputs(NamedTuple):
    """What a batch of B texts gives at each of the exits that ran.

    Attributes
    ----------
    logits : Tensor of shape (n_exits, B, C)
        Class scores.
    embeddings : Tensor of shape (n_exits, B, D)
        Text embeddings, what the classifiers multiply (before dropout).
    label_embeddings : Tensor of shape (n_exits, C, D)
        Classifier weights, one row a class.
    """

    logits: Tensor
    embeddings: Tensor
    label_embeddings: Tensor


class MultiExitEncoder(nn.Module):
    """A transformers encoder with a classifier head after some of its layers.

    The backbone is used, not copied: its layers get a permanent hook and its pooler,
    if it has one, is removed.

    Parameters
    ----------
    backbone : transformers.PreTrainedModel
        Encoder of a supported family, without a task head.
    n_classes : int
        Number of classes C.
    exit_layers : iterable of int or None, default=None
        Layers, counted from 1, after which exits sit. None means after every layer.
    pooling : {"mean", "cls"}, default="mean"
        How a text's hidden states become one vector: their mean over real tokens, or
        the one of the first token.
    dropout : float, default=0.1
        Dropout probability inside the heads.
    gradient_equilibrium : bool, default=False
        Whether a layer gets the mean of the gradients of the exits above it, of those
        that run [1]_. Without it, the mean of all exits' losses gives upper layers,
        which few exits read, less. The loss stays the same, and so do its gradients
        inside the exits.

    Attributes
    ----------
    family : Family
        Entry of the backbone in the table of architectures.
    n_layers : int
        Number of layers L of the backbone.
    exit_layer_numbers : tuple of int
        Layers after which exits sit, ascending, counted from 1.
    heads : nn.ModuleList
        One `ExitHead` an exit, in that order.

    Raises
    ------
    ValueError, TypeError
        If the architecture is not supported or an argument is out of range.

    Notes
    -----
    A batch is a dict of tensors as tokenizers return it: ``input_ids`` and
    ``attention_mask``, both of shape (B, T), padded on the right, and
    ``token_type_ids`` where the model takes it. Other entries are ignored.

    References
    ----------
    .. [1] Li et al. (2019), "Improved Techniques for Training Adaptive Deep Networks".
    """

    def __init__(
        self,
        backbone,
        n_classes,
        *,
        exit_layers=None,
        pooling="mean",
        dropout=0.1,
        gradient_equilibrium=False,
    ):
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {POOLINGS}; got {pooling!r}.")
        if not isinstance(gradient_equilibrium, (bool, np.bool_)):
            raise TypeError(
                "gradient_equilibrium must be True or False; got "
                f"{gradient_equilibrium!r}."
            )
        self.family = family_of(backbone.config)
        self.n_layers = self.family.n_layers(backbone)
        every = range(1, self.n_layers + 1)
        self.exit_layer_numbers = _ascending("exit_layers", exit_layers, every)
        self.pooling = pooling
        self.gradient_equilibrium = gradient_equilibrium
        self.backbone = backbone
        # never trained and never read: it must not reach an optimizer or a file
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None
        hook_layers(self.family.layer_modules(backbone))
        self._accepted = accepted_inputs(backbone)
        n_features = backbone.config.hidden_size
        self.heads = nn.ModuleList(
            ExitHead(n_features, n_classes, dropout) for _ in self.exit_layer_numbers
        )
        self.heads.to(backbone.dtype)  # whatever torch's default is

    def forward(
        self, inputs: Mapping[str, Tensor], exits: Iterable[int] | None = None
    ) -> ExitOutputs:
        """Run the backbone up to the deepest exit asked for, and those exits' heads.

        Parameters
        ----------
        inputs : dict of Tensor
            A batch.
        exits : iterable of int or None, default=None
            Layer numbers, a subset of `exit_layer_numbers`. None means all.

        Returns
        -------
        outputs : ExitOutputs
            Of the exits asked for, in the order of ascending layer.

        Raises
        ------
        ValueError
            If there is no exit after one of these layers.
        """
        exits = self._check_exits(exits)
        # Not stacked before the heads: a gradient of one exit's own terms would have to
        # go back through the layers of every deeper exit.
        pooled = self._pooled_each(inputs, exits)
        heads = [self._head(exit) for exit in exits]
        outputs = [head(row) for head, row in zip(heads, pooled, strict=True)]
        logits, embeddings = zip(*outputs, strict=True)
        labels = torch.stack([head.classifier.weight for head in heads])
        return ExitOutputs(torch.stack(logits), torch.stack(embeddings), labels)

    @torch.no_grad()
    def adaptive(
        self,
        inputs: Mapping[str, Tensor],
        exits: Iterable[int] | None,
        leaves: Callable[[Tensor], np.ndarray],
    ) -> AdaptiveOutputs:
        """Let each text leave at an exit; deeper layers run on the others only.

        Parameters
        ----------
        inputs : dict of Tensor
            A batch.
        exits : iterable of int or None
            Layer numbers, a subset of `exit_layer_numbers`. None means all. The last
            one answers for all that are left; no deeper layer runs.
        leaves : callable
            ``leaves(logits) -> gone``, called after each of the exits but the last, in
            ascending order, until nobody is left. It gets the logits (n, C) of that
            exit for the n texts still there, in the order of the batch, and returns an
            array of n booleans. Texts that stay are the rows of the next call, so that
            a callable which lasts for one batch can keep their history.

        Returns
        -------
        outputs : AdaptiveOutputs
            In the order of the batch, without gradients. Of texts that go on together
            to the same exit, equal to `forward` up to rounding; to the bit if nobody
            left before.

        Raises
        ------
        ValueError
            If there is no exit after one of these layers, or `leaves` returns
            something else.
        RuntimeError
            If the backbone passes its layers something of which it is not known how
            texts leave it.
        """
        exits = self._check_exits(exits)
        mask = inputs["attention_mask"]
        departures = Departures(len(mask), leaves)

        def staying(layer, hidden):
            nonlocal mask
            answers = self._answers(layer, self._normed(hidden), mask)
            rows = departures.reach(layer, answers)
            if rows is not None:
                mask = mask.index_select(0, rows)
            return rows

        inputs = self._accept(inputs)
        hidden, output = run_dropping(
            self.backbone, inputs, exits, staying, self.family
        )
        if len(mask):
            ended = hidden is None
            hidden = output.last_hidden_state if ended else self._normed(hidden)
            departures.finish(exits[-1], self._answers(exits[-1], hidden, mask))
        return departures.outputs()

    def hidden_states(
        self, inputs: Mapping[str, Tensor], layers: Iterable[int]
    ) -> list[Tensor]:
        """Hidden states after some layers; no deeper layer runs.

        Parameters
        ----------
        inputs : dict of Tensor
            A batch.
        layers : iterable of int
            Layer numbers in 1..L, in any order.

        Returns
        -------
        states : list of Tensor of shape (B, T, D)
            In the order of `layers`. Where the family ends in a norm, it is applied.

        Raises
        ------
        ValueError
            If `layers` is empty or a number is not in 1..L.
        """
        layers = list(layers)
        wanted = _ascending("layers", layers, range(1, self.n_layers + 1))
        states = self._run(inputs, wanted)
        return [states[layer] for layer in layers]

    def pooled(
        self, inputs: Mapping[str, Tensor], exits: Iterable[int] | None = None
    ) -> Tensor:
        """Pooled hidden states of the exits, before their heads.

        Parameters
        ----------
        inputs : dict of Tensor
            A batch.
        exits : iterable of int or None, default=None
            Layer numbers, a subset of `exit_layer_numbers`. None means all.

        Returns
        -------
        pooled : Tensor of shape (n_exits, B, D)
            In the order of ascending layer.
        """
        exits = self._check_exits(exits)
        return torch.stack(self._pooled_each(inputs, exits))

    def layer_parameters(self) -> list[nn.Parameter]:
        """Parameters of the backbone's layers, each once; no embedding tables."""
        return list(self.family.used_modules(self.backbone).parameters())

    def ffn_output_weight(self, layer: int) -> nn.Parameter:
        """Output matrix (D, intermediate) of the feed-forward block of a layer in 1..L.

        Families that share layers return the same parameter for several of them.
        """
        (layer,) = _ascending("layer", [layer], range(1, self.n_layers + 1))
        return self.family.ffn_output_of(self.backbone, layer).weight

    def _check_exits(self, exits):
        return _ascending("exits", exits, self.exit_layer_numbers)

    def _head(self, exit):
        return self.heads[self.exit_layer_numbers.index(exit)]

    def _answers(self, exit, hidden, mask):
        """Logits and embeddings of an exit for (normed) hidden states."""
        return self._head(exit)(self._pool(hidden, mask))

    def _pooled_each(self, inputs, exits):
        fork = GradientEquilibrium(exits) if self.gradient_equilibrium else None
        states = self._run(inputs, exits, fork)
        mask = inputs["attention_mask"]
        pooled = [self._pool(states[layer], mask) for layer in exits]
        return pooled if fork is None else [fork.undo_average(row) for row in pooled]

    def _pool(self, hidden, mask):
        return hidden[:, 0] if self.pooling == "cls" else mean_pool(hidden, mask)

    def _run(self, inputs, layers, fork=None):
        """Map each of the (ascending) layer numbers to its hidden states (B, T, D)."""
        last = layers[-1]
        at_end = self.family.ends_model(self.backbone, last)
        states, output = run_until(self.backbone, self._accept(inputs), layers, fork)
        states = {k: self._normed(hidden) for k, hidden in states.items()}
        if at_end:
            states[last] = output.last_hidden_state
        return states

    def _accept(self, inputs):
        return {name: inputs[name] for name in self._accepted if name in inputs}

    def _normed(self, hidden):
        return self.family.apply_final_norm(self.backbone, hidden)


def mean_pool(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean over real tokens, summed in at least single precision.

    Parameters
    ----------
    hidden : Tensor of shape (B, T, D)
        Hidden states.
    attention_mask : Tensor of shape (B, T)
        1 for real tokens, 0 for padding.

    Returns
    -------
    mean : Tensor of shape (B, D)
        Of the dtype of `hidden`; zero for a row without a real token.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    mask = attention_mask.unsqueeze(-1).to(dtype)  # (B, T, 1)
    total = (hidden.to(dtype) * mask).sum(dim=1)  # (B, D)
    return (total / mask.sum(dim=1).clamp(min=1)).to(hidden.dtype)


def truncate_layers(backbone, n_layers):
    """Keep the first layers of a backbone only.

    The hidden states of the shortened model equal those of the whole one after the
    same layer.

    Parameters
    ----------
    backbone : transformers.PreTrainedModel
        Encoder of a supported family; changed in place.
    n_layers : int or None
        Number of layers to keep, in 1..L. None keeps all.

    Returns
    -------
    backbone : transformers.PreTrainedModel
        The same object.

    Raises
    ------
    ValueError
        If `n_layers` is not an integer in 1..L.
    """
    if n_layers is None:
        return backbone
    family = family_of(backbone.config)
    every = range(1, family.n_layers(backbone) + 1)
    (n_layers,) = _ascending("n_layers", [n_layers], every)
    family.truncate(backbone, n_layers)
    return backbone


def accepted_inputs(backbone) -> tuple[str, ...]:
    """Names of the tokenizer's outputs that a backbone makes use of.

    Parameters
    ----------
    backbone : transformers.PreTrainedModel
        Encoder of a supported family.

    Returns
    -------
    names : tuple of str
        Subset of ``("input_ids", "attention_mask", "token_type_ids")``. The last one
        is left out where the model does not name it or knows a single type only.
    """
    known = inspect.signature(backbone.forward).parameters
    names = [name for name in ("input_ids", "attention_mask") if name in known]
    if "token_type_ids" in known and getattr(backbone.config, "type_vocab_size", 2) > 1:
        names.append("token_type_ids")
    return tuple(names)


def _ascending(name, numbers_, allowed):
    """Check layer numbers against the allowed ones; sort them and drop repetitions."""
    if numbers_ is None:
        return tuple(allowed)
    checked = {_check_layer(name, number, allowed) for number in numbers_}
    if not checked:
        raise ValueError(f"{name} is empty; pass at least one of {_listed(allowed)}.")
    return tuple(sorted(checked))


def _check_layer(name, number, allowed):
    is_integer = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if not is_integer or number not in allowed:
        raise ValueError(
            f"{name} must be an integer in {_listed(allowed)}; got {number!r}."
        )
    return int(number)


def _listed(allowed):
    contiguous = list(allowed) == list(range(allowed[0], allowed[-1] + 1))
    return f"{allowed[0]}..{allowed[-1]}" if contiguous else str(tuple(allowed))
