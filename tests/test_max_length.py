"""The limit on text length equals what the models themselves can run."""

import numpy as np
import pytest
import torch
from tiny import FAMILIES, make_tiny_model, make_tokenizer, tiny_config

from sklearn_acl.max_length import resolve_max_length


def runs(model, length):
    """Whether the model takes a text of so many tokens."""
    ids = torch.full((1, length), 7)
    try:
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("pad_token_id", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_highest_max_length_is_the_longest_text_the_model_runs(
    family, pad_token_id
):
    options = {"num_hidden_layers": 1, "pad_token_id": pad_token_id}
    model = make_tiny_model(family, max_position_embeddings=24, **options)
    if family == "deberta-v2":  # relative positions only
        assert resolve_max_length(100, make_tokenizer(), model.config) == 100
        assert runs(model, 100)
        return
    tokenizer = make_tokenizer(max_length=10**30)
    longest = resolve_max_length(None, tokenizer, model.config)
    assert resolve_max_length(longest, tokenizer, model.config) == longest
    assert runs(model, longest)
    # rotary positions: a limit of the training, not of the code
    assert runs(model, longest + 1) == (family == "modernbert")
    message = f"max_length={longest + 1} must be None or an integer from 3 to {longest}"
    with pytest.raises(ValueError, match=message):
        resolve_max_length(longest + 1, tokenizer, model.config)


@pytest.mark.parametrize(
    "tokenizer_limit, positions, expected",
    [
        (64, 80, 64),
        (80, 64, 64),
        (10**30, 64, 64),
        (128, -1, 128),
        (10**30, -1, 512),
    ],
)
def test_the_default_is_the_smaller_limit_there_is(
    tokenizer_limit, positions, expected
):
    config = tiny_config("bert")
    config.max_position_embeddings = positions
    tokenizer = make_tokenizer(max_length=tokenizer_limit)
    assert resolve_max_length(None, tokenizer, config) == expected


def test_the_limit_of_the_tokenizer_may_be_exceeded():
    assert resolve_max_length(80, make_tokenizer(max_length=64), tiny_config()) == 80


@pytest.mark.parametrize("pair, lowest", [(False, 3), (True, 5)])
def test_every_text_keeps_a_token_beside_the_special_ones(pair, lowest):
    arguments = make_tokenizer(), tiny_config()
    assert resolve_max_length(lowest, *arguments, pair=pair) == lowest
    message = (
        f"max_length={lowest - 1} must be None or an integer from {lowest} to 80: this "
        f"model adds {3 if pair else 2} special tokens to every"
    )
    with pytest.raises(ValueError, match=message):
        resolve_max_length(lowest - 1, *arguments, pair=pair)


@pytest.mark.parametrize("value", [1, 0, -5, True, 12.0, "12", np.float64(12), [12]])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="max_length=.* must be None or an integer"):
        resolve_max_length(value, make_tokenizer(), tiny_config())


def test_no_upper_bound_is_named_where_there_is_none():
    config = tiny_config("deberta-v2")
    with pytest.raises(ValueError, match=r"of at least 3: .*every text\.$"):
        resolve_max_length(2, make_tokenizer(), config)
    config.position_biased_input = True
    with pytest.raises(ValueError, match="from 3 to 80.* has 80 positions"):
        resolve_max_length(81, make_tokenizer(), config)


@pytest.mark.parametrize("kind", [int, np.int32, np.int64])
def test_the_result_is_a_python_int(kind):
    result = resolve_max_length(kind(12), make_tokenizer(), tiny_config())
    assert result == 12
    assert type(result) is int
