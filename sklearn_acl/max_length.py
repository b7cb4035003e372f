"""How many tokens of a text a model can read."""

from numbers import Integral

from .families import family_of

# Read when neither model nor tokenizer knows a limit.
_DEFAULT_LIMIT = 512
# A tokenizer that knows no limit says 1e30.
_UNLIMITED = 1_000_000


def resolve_max_length(max_length, tokenizer, config, *, pair=False):
    """Number of tokens to keep of a text, or of a pair, special tokens included.

    Parameters
    ----------
    max_length : int or None
        What the user asks for. None means as many as the model and its tokenizer were
        made for.
    tokenizer : transformers.PreTrainedTokenizerBase
    config : transformers.PreTrainedConfig
        Configuration of the encoder.
    pair : bool, default=False
        Whether rows are pairs of texts.

    Returns
    -------
    max_length : int

    Raises
    ------
    ValueError
        If `max_length` is no integer, leaves no room for a token of every text beside
        the special tokens, or exceeds the positions the model has. A tokenizer's own
        limit, often lower, may be exceeded.
    """
    positions = family_of(config).n_positions(config)
    if max_length is None:
        limits = [tokenizer.model_max_length, positions or _DEFAULT_LIMIT]
        return int(min(limit for limit in limits if limit < _UNLIMITED))
    lowest = tokenizer.num_special_tokens_to_add(pair=pair) + (2 if pair else 1)
    # relative positions alone, as in DeBERTa, reach as far as the text does
    highest = positions if getattr(config, "position_biased_input", True) else None
    is_int = isinstance(max_length, Integral) and not isinstance(max_length, bool)
    if is_int and lowest <= max_length and (not highest or max_length <= highest):
        return int(max_length)
    allowed = f"from {lowest} to {highest}" if highest else f"of at least {lowest}"
    raise ValueError(
        f"max_length={max_length!r} must be None or an integer {allowed}: this model "
        f"adds {lowest - (2 if pair else 1)} special tokens to every "
        f"{'pair' if pair else 'text'}"
        + (f" and has {highest} positions." if highest else ".")
    )
