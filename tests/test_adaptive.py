"""Texts leave the batch one by one, and get what they would get alone."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import torch
from tiny import FAMILIES, make_tiny_model, make_tokenizer
from tiny import TEXTS as ALL_TEXTS

from sklearn_acl.encoder import MultiExitEncoder, accepted_inputs
from sklearn_acl.exit_rules import EXIT_RULES, first_exits
from sklearn_acl.inference import (
    class_probabilities,
    iterate_adaptive,
    iterate_outputs,
)
from sklearn_acl.text import check_texts

TEXTS = ALL_TEXTS[:36]
EXITS = (1, 2, 3, 4)
SHORT = ["goal", "who won", "cheese", "it rained"]  # 3 or 4 tokens each
TOLERANCE = 1e-5

tokenizer = functools.cache(make_tokenizer)
padding_tokenizer = functools.cache(make_tokenizer)


def make_encoder(family="bert", *, n_classes=3, pooling="mean", **config):
    """Four layers with an exit each."""
    backbone = make_tiny_model(family, **config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return MultiExitEncoder(backbone, n_classes, pooling=pooling).eval()


@functools.cache
@torch.no_grad()
def shared_encoder(family):
    """For tests that do not change it; its exits are about equally confident."""
    encoder = make_encoder(family)
    logits = encoder(make_batch(TEXTS)).logits
    for head, values in zip(encoder.heads, logits, strict=True):
        scale = 2 / values.std(dim=0)
        head.classifier.bias.sub_(values.mean(dim=0)).mul_(scale)
        head.classifier.weight.mul_(scale[:, None])
    return encoder


def make_batch(texts, **kwargs):
    kwargs = {"padding": True, "return_tensors": "pt"} | kwargs
    return dict(padding_tokenizer()(list(texts), **kwargs))


def over_texts(iterate, encoder, texts, *, exits=EXITS, batch_size=7, **settings):
    return iterate(
        encoder,
        check_texts(list(texts), allow_empty=True),
        tokenizer(),
        exits=exits,
        batch_size=batch_size,
        max_length=64,
        accepted=accepted_inputs(encoder.backbone),
        **settings,
    )


def run_adaptive(encoder, texts, rule="confidence", threshold=0.7, **settings):
    """Probabilities, embeddings and exit layers, in the order of the texts."""
    settings = {"patience": 1} | settings
    settings |= {"rule": rule, "threshold": threshold}
    n_classes, width = encoder.heads[0].classifier.weight.shape
    proba = np.full((len(texts), n_classes), np.nan)
    embeddings = np.full((len(texts), width), np.nan)
    layers = np.zeros(len(texts), dtype=np.int64)
    for rows, outputs in over_texts(iterate_adaptive, encoder, texts, **settings):
        proba[rows] = class_probabilities(outputs.logits)
        embeddings[rows] = outputs.embeddings
        layers[rows] = outputs.exit_layers
    return proba, embeddings, layers


@functools.cache
def alone(family, texts=tuple(TEXTS)):
    """Probabilities and embeddings of all exits, one text at a time."""
    encoder = shared_encoder(family)
    with torch.no_grad():
        each = [encoder(make_batch([text])) for text in texts]
    proba = [class_probabilities(outputs.logits) for outputs in each]
    embeddings = [outputs.embeddings.numpy() for outputs in each]
    return np.concatenate(proba, axis=1), np.concatenate(embeddings, axis=1)


def threshold_between(values, quantile):
    """A threshold near a quantile, half-way between two values."""
    values = np.sort(np.ravel(values))
    position = int(quantile * len(values))
    gaps = np.diff(values[position : position + 8])
    position += int(gaps.argmax())
    assert values[position + 1] - values[position] > 2 * TOLERANCE
    return (values[position] + values[position + 1]) / 2


def confidence_threshold(family, quantile):
    return threshold_between(alone(family)[0].max(axis=-1), quantile)


@functools.cache
def spreading_threshold(family):
    """A threshold with which texts leave at many exits."""
    thresholds = [confidence_threshold(family, q / 20) for q in range(2, 17)]
    proba, _ = alone(family)
    exits = [first_exits(proba, "confidence", t) for t in thresholds]
    counts = [np.sort(np.bincount(each, minlength=4)) for each in exits]
    best = max(range(len(counts)), key=lambda i: counts[i].tolist())
    assert (counts[best] > 0).all()
    return thresholds[best]


# -- what a text gets --------------------------------------------------------------


def assert_equals_alone(family, found, threshold, rule="confidence", patience=1):
    all_proba, all_embeddings = alone(family)
    proba, embeddings, layers = found
    expected = first_exits(all_proba, rule, threshold, patience)
    np.testing.assert_array_equal(layers, expected + 1)
    rows = np.arange(len(layers))
    for own, each in ((proba, all_proba), (embeddings, all_embeddings)):
        np.testing.assert_allclose(own, each[expected, rows], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("batch_size", [1, 7, 36])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_each_text_alone(family, batch_size):
    threshold = spreading_threshold(family)
    found = run_adaptive(
        shared_encoder(family), TEXTS, threshold=threshold, batch_size=batch_size
    )
    assert_equals_alone(family, found, threshold)


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("rule", EXIT_RULES)
def test_every_rule_equals_each_text_alone(rule, patience):
    proba, _ = alone("bert")
    values = proba.max(axis=-1)
    if "entropy" in rule:
        values = -(proba * np.log(proba)).sum(axis=-1) / np.log(3)
    threshold = threshold_between(values, 0.3)
    settings = {"rule": rule, "threshold": threshold, "patience": patience}
    found = run_adaptive(shared_encoder("bert"), TEXTS, **settings)
    assert len(set(found[2])) >= 2
    assert_equals_alone("bert", found, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_order_nor_neighbours_matter(family):
    encoder, threshold = shared_encoder(family), spreading_threshold(family)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    shuffled = run_adaptive(encoder, [TEXTS[i] for i in order], threshold=threshold)
    back = np.argsort(order)
    assert_equals_alone(family, [part[back] for part in shuffled], threshold)
    long = " ".join(TEXTS[:8])
    mixed = [text for pair in zip(TEXTS, [long] * 36, strict=True) for text in pair]
    found = run_adaptive(encoder, mixed, threshold=threshold, batch_size=72)
    assert_equals_alone(family, [part[::2] for part in found], threshold)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_threshold_that_never_fires_equals_full_depth_to_the_bit(family):
    encoder = shared_encoder(family)
    proba, embeddings, layers = run_adaptive(encoder, TEXTS, threshold=1.0)
    assert set(layers) == {4}
    for rows, outputs in over_texts(iterate_outputs, encoder, TEXTS, exits=(4,)):
        full = class_probabilities(outputs.logits[0])
        np.testing.assert_array_equal(proba[rows], full)
        np.testing.assert_array_equal(embeddings[rows], outputs.embeddings[0])


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_threshold_that_always_fires_equals_the_first_exit_to_the_bit(family):
    encoder = shared_encoder(family)
    proba, _, layers = run_adaptive(encoder, TEXTS, threshold=0.0)
    assert set(layers) == {1}
    for rows, outputs in over_texts(iterate_outputs, encoder, TEXTS, exits=(1,)):
        full = class_probabilities(outputs.logits[0])
        np.testing.assert_array_equal(proba[rows], full)


@pytest.mark.parametrize("rule", ["confidence", "entropy"])
def test_the_average_exit_layer_is_monotone_in_the_threshold(rule):
    encoder = shared_encoder("bert")
    means = [
        run_adaptive(encoder, TEXTS, rule, threshold)[2].mean()
        for threshold in np.linspace(0, 1, 9)
    ]
    steps = np.diff(means) * (1 if rule == "confidence" else -1)
    assert (steps >= 0).all() and steps.sum() > 1


def test_fewer_exits_and_a_shallower_last_one():
    encoder, threshold = shared_encoder("bert"), spreading_threshold("bert")
    _, _, layers = run_adaptive(encoder, TEXTS, threshold=threshold, exits=(1, 3))
    expected = first_exits(alone("bert")[0][[0, 2]], "confidence", threshold)
    np.testing.assert_array_equal(layers, np.array([1, 3])[expected])
    _, _, layers = run_adaptive(encoder, TEXTS, threshold=threshold, exits=(2,))
    assert set(layers) == {2}


def test_no_texts():
    assert list(over_texts(iterate_outputs, shared_encoder("bert"), [])) == []
    proba, _, layers = run_adaptive(shared_encoder("bert"), [])
    assert proba.shape == (0, 3) and layers.shape == (0,)


def leaves_at_second_exit(proba, threshold):
    """After two exits, if the first predicts class 1."""
    assert proba.ndim == 2 and threshold == 0.7
    return len(proba) == 2 and bool(proba[0].argmax() == 1)


def test_a_rule_of_the_users_own():
    found = run_adaptive(shared_encoder("bert"), TEXTS, leaves_at_second_exit)
    expected = np.where(alone("bert")[0][0].argmax(axis=-1) == 1, 2, 4)
    assert len(set(expected)) == 2
    np.testing.assert_array_equal(found[2], expected)


def test_an_error_in_a_rule_reaches_the_caller_and_leaves_nothing_behind():
    encoder = shared_encoder("bert")

    def broken(proba, threshold):
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        run_adaptive(encoder, TEXTS, broken)
    with pytest.raises(TypeError, match="must return True or False"):
        run_adaptive(encoder, TEXTS, lambda proba, threshold: None)
    output = encoder.backbone(**make_batch(SHORT))
    assert len(output.last_hidden_state) == len(SHORT)
    assert not torch.is_inference_mode_enabled()


def test_mixed_precision_stays_off():
    encoder, threshold = shared_encoder("bert"), spreading_threshold("bert")
    expected = run_adaptive(encoder, TEXTS, threshold=threshold)
    with torch.autocast("cpu", torch.bfloat16):
        found = run_adaptive(encoder, TEXTS, threshold=threshold)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_threads_may_share_an_encoder(family):
    encoder = shared_encoder(family)
    thresholds = [confidence_threshold(family, q) for q in (0.2, 0.5, 0.8)]
    expected = [run_adaptive(encoder, TEXTS, threshold=t) for t in thresholds]
    start, wrong = threading.Barrier(len(thresholds)), []

    def work(threshold, parts):
        start.wait()
        for _ in range(3):
            found = run_adaptive(encoder, TEXTS, threshold=threshold)
            if not all(map(np.array_equal, found, parts)):
                wrong.append(threshold)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(thresholds, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- which rows run ----------------------------------------------------------------


class Script:
    """Lets given rows of a batch leave at given exits."""

    def __init__(self, *leaving):
        self.leaving = leaving  # one set of rows per exit
        self.there = None
        self.seen = []  # logits of every call, by row

    def __call__(self, logits):
        self.there = list(range(len(logits))) if self.there is None else self.there
        assert len(logits) == len(self.there)
        leaving = self.leaving[len(self.seen)]
        self.seen.append(dict(zip(self.there, logits.clone(), strict=True)))
        gone = np.array([row in leaving for row in self.there])
        self.there = [row for row in self.there if row not in leaving]
        return gone


def count_rows(encoder):
    """List that gets the rows of every call of a layer from now on."""
    counts = []

    def count(module, args, kwargs):
        counts.append(len(args[0] if args else kwargs["hidden_states"]))

    for layer in encoder.family.layer_modules(encoder.backbone):
        layer.register_forward_pre_hook(count, with_kwargs=True)
    return counts


def assert_follows(script, encoder, batch, outputs):
    """Every text has the answers of its exit, and the rule saw all before it."""
    with torch.no_grad():
        full = encoder(batch)
    n_rows = len(batch["input_ids"])
    left_at = [
        next((k for k, rows in enumerate(script.leaving, start=1) if row in rows), 4)
        for row in range(n_rows)
    ]
    assert outputs.exit_layers.tolist() == left_at
    assert outputs.exit_layers.dtype == torch.int64
    expected = [full.logits[k - 1, row] for row, k in enumerate(left_at)]
    assert_close(outputs.logits, torch.stack(expected))
    expected = [full.embeddings[k - 1, row] for row, k in enumerate(left_at)]
    assert_close(outputs.embeddings, torch.stack(expected))
    for position, logits in enumerate(script.seen):
        there = [row for row, k in enumerate(left_at) if k > position]
        assert list(logits) == there
        for row in there:
            assert_close(logits[row], full.logits[position, row])


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


# a single survivor; rows that leave first, last and in the middle; everybody at once
SCRIPTS = [
    ({0, 2}, {3}, set()),
    (set(), {1, 2, 3}, set()),
    ({3}, {0}, {1}),
    ({0}, {1}, {2, 3}),
    (set(), set(), {1}),
    ({0, 1, 2, 3}, set(), set()),
    ({1}, {0, 2, 3}, set()),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_texts_as_tokens_and_heads(family, script):
    encoder = make_encoder(family)
    counts = count_rows(encoder)
    for text in SHORT[1], SHORT[3]:  # with and without padding
        texts = [text, *SHORT[1:]] if text == SHORT[3] else [text] * 4
        batch = make_batch(texts)
        assert batch["input_ids"].shape == (4, 4)
        assert encoder.backbone.config.num_attention_heads == 4
        counts.clear()
        leaves = Script(*script)
        outputs = encoder.adaptive(batch, None, leaves)
        there = 4 - np.cumsum([0, *map(len, script)])
        assert counts == [n for n in there if n]
        assert len(leaves.seen) == min(len(counts), 3)
        assert_follows(leaves, encoder, batch, outputs)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("albert", {"num_hidden_groups": 2, "inner_group_num": 2}),
        ("albert", {"inner_group_num": 3}),
        ("deberta-v2", {"conv_kernel_size": 0}),
        ("deberta-v2", {"relative_attention": False}),
        ("deberta-v2", {"norm_rel_ebd": "none", "share_att_key": False}),
        ("bert", {"attn_implementation": "eager"}),
        ("modernbert", {"attn_implementation": "eager"}),
        ("modernbert", {"local_attention": 64}),
        ("mpnet", {"output_hidden_states": True}),
    ],
    ids=str,
)
def test_variants(family, config, padding):
    encoder = make_encoder(family, **config)
    texts = TEXTS[:6] if padding else [TEXTS[1], TEXTS[3]] * 3
    batch = make_batch(texts)
    if not padding:
        width = int(batch["attention_mask"].sum(1).min())
        batch = {name: tensor[:, :width] for name, tensor in batch.items()}
    script = Script({4, 1}, {0}, {5, 2})
    assert_follows(script, encoder, batch, encoder.adaptive(batch, None, script))


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "modernbert"])
def test_a_batch_of_one(family):
    encoder, batch = shared_encoder(family), make_batch([TEXTS[0]])
    for leaving in (({0},) * 3, (set(), {0}, {0}), (set(),) * 3):
        script = Script(*leaving)
        outputs = encoder.adaptive(batch, None, script)
        assert_follows(script, encoder, batch, outputs)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_follows_the_rows(pooling):
    encoder, batch = make_encoder(pooling=pooling), make_batch(TEXTS[:6])
    script = Script({5, 0}, {1}, {2})
    assert_follows(script, encoder, batch, encoder.adaptive(batch, None, script))


def test_no_graph_and_a_usable_encoder_remain():
    encoder, batch = make_encoder(), make_batch(SHORT)
    outputs = encoder.adaptive(batch, None, Script({1}, {2}, set()))
    assert not outputs.logits.requires_grad
    assert not outputs.embeddings.requires_grad
    encoder(batch).logits.sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_texts_with_two_types_of_tokens():
    batch = dict(
        padding_tokenizer()(SHORT, SHORT[::-1], padding=True, return_tensors="pt")
    )
    assert batch["token_type_ids"].max() == 1
    script = Script({1}, {2}, {0})
    encoder = shared_encoder("bert")
    assert_follows(script, encoder, batch, encoder.adaptive(batch, None, script))


# -- what must not pass ------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("bert", "attention_mask"),
        ("mpnet", "position_bias"),
        ("deberta-v2", "rel_embeddings"),
        ("modernbert", "position_embeddings"),
    ],
)
@pytest.mark.parametrize("leaving", [set(), {0}])
def test_an_argument_that_no_family_describes_is_refused(
    family, name, leaving, monkeypatch
):
    encoder = make_encoder(family)
    known = [(k, dim) for k, dim in encoder.family.further_arguments if k != name]
    changed = dataclasses.replace(encoder.family, further_arguments=tuple(known))
    monkeypatch.setattr(encoder, "family", changed)
    if name == "attention_mask":
        monkeypatch.setattr("sklearn_acl.families._BATCH_DIMS", (("hidden_states", 0),))
    message = f"Layer was called with an argument that it .* {name}: .*Texts cannot"
    with pytest.raises(RuntimeError, match=message):
        encoder.adaptive(make_batch(TEXTS[:4]), None, Script(*[leaving] * 3))
    encoder(make_batch(TEXTS[:4]))  # where no text leaves, nothing has to be known


class Mask:
    """As attention implementations make them that do not take tensors."""

    shape = (4, 1, 9, 9)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask(), r"4 texts and attention_mask: Mask of shape \(4, 1, 9, 9\)"),
        (torch.zeros(1, 1, 9, 9), r"4 texts and .*: Tensor of shape \(1, 1, 9, 9\)"),
    ],
)
def test_a_mask_without_a_row_per_text_is_refused(mask, message):
    encoder = make_encoder("bert")

    def replace(layer, args, kwargs):
        return (args[0], mask, *args[2:]), kwargs

    layer = encoder.backbone.encoder.layer[2]
    layer.register_forward_pre_hook(replace, with_kwargs=True, prepend=True)
    with pytest.raises(RuntimeError, match=message):
        encoder.adaptive(make_batch(TEXTS[:4]), None, Script({0}, {1}, {2}))


def test_arguments_beyond_the_signature_are_refused():
    encoder = make_encoder("bert")

    def add(layer, args, kwargs):
        return (*args, *[None] * 9), kwargs

    layer = encoder.backbone.encoder.layer[0]
    layer.register_forward_pre_hook(add, with_kwargs=True, prepend=True)
    with pytest.raises(RuntimeError, match="too many arguments"):
        encoder.adaptive(make_batch(TEXTS[:4]), None, Script(*[set()] * 3))


@pytest.mark.parametrize(
    "answer", [[True], [0, 1, 0, 1], [[True] * 4], None, np.ones(4)], ids=str
)
def test_leaves_must_answer_for_each_row(answer):
    with pytest.raises(ValueError, match="leaves must return 4 booleans, one per row"):
        shared_encoder("bert").adaptive(make_batch(SHORT), None, lambda _: answer)


def test_exits_must_exist():
    with pytest.raises(ValueError, match=r"exits must be an integer in 1\.\.4; got 5"):
        shared_encoder("bert").adaptive(make_batch(SHORT), [1, 5], Script())
