"""A tiny encoder of any supported family, its tokenizer, and a toy task.

Everything is random but seeded, fits in a few hundred kilobytes, and needs no network.
"""

from pathlib import Path

import torch

FAMILIES = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "deberta-v2",
    "xlm-roberta",
    "modernbert",
)

_SPORT = """
the team won the game
a fast runner took the gold medal
our goalkeeper saved the ball twice
she scored a late goal and the fans sang
the coach was proud of the young players
they lost the final match by one point
tennis is played on grass
the race began at the old stadium
he hit the ball over the wall
two teams share the cup
the referee stopped the match
swim run and ride
a long race for a tired runner
the players trained in the stadium all day
fans came to see the final
goal
the champion kept the cup
the young team played a very good second half and won the match by two goals
she ran the race in ten minutes
who won the game
"""

_FOOD = """
the soup was hot and salty
bake the bread in the oven
a slice of cake with sweet cream
fresh fish and rice for dinner
the cook added salt and pepper to the soup
he ate an apple and some cheese
this sauce needs more garlic
breakfast was eggs and bread
the chef made a sweet lemon cake
mix the butter with sugar
dinner was cold
boil the rice for ten minutes
cheese
she made a salad of fresh tomato and onion
the menu has fish soup and bread
a spoon of sugar in the tea
grill the fish with lemon butter and serve it with the rice and a fresh salad
the bread was old and dry
they ate all the cake
who made this soup
"""

_WEATHER = """
heavy rain is expected in the north
the wind was cold this morning
sunny all day with a light wind
snow fell on the hills last night
a storm is near the coast
clouds will clear by the evening
the frost was hard and the road was white
it will be warm and dry
thunder and rain in the afternoon
fog on the river
the heat will last for ten days
rain
a cold night with frost and snow
the storm took the roof of the old house
the sky is clear and blue
expect strong wind on the coast and heavy snow over the hills in the north by night
cloudy with some sun
it rained all morning
temperature will fall in the evening
will it snow
"""


def _lines(block):
    return block.strip().splitlines()


def _interleave(*blocks):
    return [text for row in zip(*map(_lines, blocks), strict=True) for text in row]


TEXTS = _interleave(_SPORT, _FOOD, _WEATHER)  # 60 texts, 1 to 18 words
LABELS = ["sport", "food", "weather"] * (len(TEXTS) // 3)

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_vocabulary():
    """Special tokens, single characters, and every word of `TEXTS`: id = position."""
    characters = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-")
    pieces = [f"##{letter}" for letter in characters[:36]]
    words = sorted({word for text in TEXTS for word in text.split()})
    return list(dict.fromkeys(_SPECIAL + characters + pieces + words))


def make_tokenizer(max_length=64):
    """A fast, lower-casing WordPiece tokenizer with BERT's special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(make_vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
        # more than some families take, as happens with real checkpoints
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def tiny_config(family="bert", **config):
    """Configuration of a 4-layer encoder, 32 wide, 4 heads; `config` overrides."""
    from transformers import AutoConfig

    values = {
        "vocab_size": len(make_vocabulary()),
        "pad_token_id": 0,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        # RoBERTa and its kin number positions from pad_token_id + 1
        "max_position_embeddings": 80,
    }
    if family == "distilbert":
        values |= {"hidden_dim": values.pop("intermediate_size")}
    if family in ("electra", "albert"):
        values |= {"embedding_size": 16}
    if family == "deberta-v2":
        values |= {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "conv_kernel_size": 3,
        }
    if family == "modernbert":
        # the window is shorter than many texts, so that both kinds of layer differ
        values |= {"local_attention": 8, "bos_token_id": 2, "cls_token_id": 2}
        values |= {"eos_token_id": 3, "sep_token_id": 3}
    return AutoConfig.for_model(family, **(values | config))


def make_tiny_model(family="bert", seed=0, **config):
    """A random encoder whose every parameter (norms and biases too) is noisy.

    With the usual weights of 1 and biases of 0 a norm applied twice would go unseen.
    """
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(tiny_config(family, **config)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_tiny_backbone(path, family="bert", *, seed=0, **config):
    """Write a tiny random encoder and its tokenizer to a directory.

    Parameters
    ----------
    path : path-like
        Directory to write, created if need be.
    family : str, default="bert"
        One of `FAMILIES`.
    seed : int, default=0
        Seed of the weights; the global generator is left as found.
    **config
        Overrides of the configuration, such as ``num_hidden_layers=2``.

    Returns
    -------
    path : str
        The directory, ready to be passed as ``backbone=``.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    from transformers.utils import logging

    model = make_tiny_model(family, seed=seed, **config)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(path)
    finally:
        if shown:
            logging.enable_progress_bar()
    make_tokenizer().save_pretrained(path)
    return str(path)
