"""Table of the supported encoder architectures.

Nothing else in the package knows the name of an architecture or of its parts.
"""

from dataclasses import dataclass

from torch import nn

# ALBERT computes which group serves a layer from `num_hidden_layers`, so a shortened
# one keeps that number and notes its depth under this name in its configuration.
_DEPTH_LIMIT = "sklearn_acl_depth"

# Of every family. A mask may also be None, where no text of the batch is padded.
_BATCH_DIMS = (("hidden_states", 0), ("attention_mask", 0))


@dataclass(frozen=True)
class Family:
    """Where one architecture keeps what exits need.

    Parameters
    ----------
    name : str
        ``config.model_type`` of the architecture.
    layers : str
        Attribute path from the model to its list of layers.
    ffn_output : str
        Attribute path from a layer to the linear map that ends its feed-forward block.
    final_norm : str or None, default=None
        Attribute path to a norm which the model applies after its last layer only.
    pooler : bool, default=False
        Whether the model can be built with a pooler, which exits do not use.
    shared_layers : bool, default=False
        Whether a module of the list serves several layers in a row.
    first_position : int or None, default=0
        Entry of the position table that the first token has: those before it are for
        padding. None is the one after ``config.pad_token_id``.
    further_arguments : tuple of (str, int or None), default=()
        What the model passes to its layers beside hidden states, mask and plain
        numbers: the name in their signature, and the dimension with one entry a text,
        or None where all texts share what is passed.
    """

    name: str
    layers: str
    ffn_output: str
    final_norm: str | None = None
    pooler: bool = False
    shared_layers: bool = False
    first_position: int | None = 0
    further_arguments: tuple = ()

    @property
    def batch_dims(self) -> dict:
        """Dimension with one entry a text, or None, by name of a layer's argument."""
        return dict(_BATCH_DIMS + self.further_arguments)

    def n_positions(self, config) -> int | None:
        """Tokens that have a position, or None where the table sets no limit."""
        positions = getattr(config, "max_position_embeddings", None)
        if not positions or positions < 0:
            return None
        first = self.first_position
        return positions - (config.pad_token_id + 1 if first is None else first)

    def layer_modules(self, backbone) -> nn.ModuleList:
        """List of the modules that serve the layers, each once."""
        return _follow(backbone, self.layers)

    def used_modules(self, backbone) -> nn.ModuleList:
        """Those of the modules that serve a layer that may run."""
        last = self.module_index(backbone, self.n_layers(backbone))
        return self.layer_modules(backbone)[: last + 1]

    def n_layers(self, backbone) -> int:
        """Number of layers that may run."""
        limit = getattr(backbone.config, _DEPTH_LIMIT, None)
        return backbone.config.num_hidden_layers if limit is None else limit

    def ends_model(self, backbone, layer) -> bool:
        """Whether the model's own forward ends with this layer (1-based)."""
        return layer == backbone.config.num_hidden_layers

    def module_index(self, backbone, layer) -> int:
        """Position in the list of the module that serves a layer (1-based)."""
        if not self.shared_layers:
            return layer - 1
        config = backbone.config
        # as in the model: equal runs of layers share a group
        return int((layer - 1) / (config.num_hidden_layers / config.num_hidden_groups))

    def ffn_output_of(self, backbone, layer) -> nn.Linear:
        """Linear map that ends the feed-forward block of a layer (1-based)."""
        module = self.layer_modules(backbone)[self.module_index(backbone, layer)]
        return _follow(module, self.ffn_output)

    def apply_final_norm(self, backbone, hidden):
        """Apply the norm that follows the last layer, where the family has one."""
        if self.final_norm is None:
            return hidden
        return _follow(backbone, self.final_norm)(hidden)

    def truncate(self, backbone, n_layers):
        """Let, in place, only the first `n_layers` layers run (not checked)."""
        config = backbone.config
        if self.shared_layers:
            setattr(config, _DEPTH_LIMIT, n_layers)
            return
        del self.layer_modules(backbone)[n_layers:]
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:n_layers]
        config.num_hidden_layers = n_layers


def _follow(module, path):
    """Follow an attribute path such as ``"encoder.layer"`` or ``"layers.-1"``."""
    for name in path.split("."):
        is_index = name.lstrip("-").isdigit()
        module = module[int(name)] if is_index else getattr(module, name)
    return module


FAMILIES = {
    family.name: family
    for family in (
        Family("bert", "encoder.layer", "output.dense", pooler=True),
        Family(
            "roberta",
            "encoder.layer",
            "output.dense",
            pooler=True,
            first_position=None,
        ),
        Family(
            "xlm-roberta",
            "encoder.layer",
            "output.dense",
            pooler=True,
            first_position=None,
        ),
        Family(
            "mpnet",
            "encoder.layer",
            "output.dense",
            pooler=True,
            first_position=2,
            # (B, heads, T, T), the same for all texts but written out for each
            further_arguments=(("position_bias", 0),),
        ),
        Family("electra", "encoder.layer", "output.dense"),
        Family(
            "deberta-v2",
            "encoder.layer",
            "output.dense",
            # (1, T, T), and a table of distances
            further_arguments=(("relative_pos", None), ("rel_embeddings", None)),
        ),
        Family("distilbert", "transformer.layer", "ffn.lin2"),
        Family(
            "albert",
            "encoder.albert_layer_groups",
            "albert_layers.-1.ffn_output",
            pooler=True,
            shared_layers=True,
        ),
        Family(
            "modernbert",
            "layers",
            "mlp.Wo",
            final_norm="final_norm",
            # cosine and sine, (1, T, head width) each: positions count from 0 for all
            further_arguments=(("position_embeddings", None),),
        ),
    )
}


def family_of(config) -> Family:
    """Family of a transformers configuration.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration of the encoder; its ``model_type`` decides.

    Returns
    -------
    family : Family
        Entry of the table.

    Raises
    ------
    ValueError
        If the architecture is not supported.
    """
    name = getattr(config, "model_type", None)
    if name not in FAMILIES:
        raise ValueError(
            f"Architecture {name!r} is not supported as a backbone; supported are "
            f"{', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]
