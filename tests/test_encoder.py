"""The encoder with exits: exact, lazy, and indifferent to neighbours and threads."""

import copy
import functools
import pickle
import threading

import numpy as np
import pytest
import torch
from tiny import FAMILIES, TEXTS, make_tiny_model, make_tokenizer

from sklearn_acl.criterion import ACLLoss
from sklearn_acl.encoder import (
    ExitHead,
    MultiExitEncoder,
    accepted_inputs,
    mean_pool,
    truncate_layers,
)
from sklearn_acl.gradients import MicroBatch, gated_backward, gradient_angle

N_LAYERS = 4
LAYERS = range(1, N_LAYERS + 1)


tokenizer = functools.cache(make_tokenizer)


def make_batch(texts=TEXTS[:6], **kwargs):
    kwargs = {"padding": True, "return_tensors": "pt"} | kwargs
    return dict(tokenizer()(list(texts), **kwargs))


def make_encoder(family="bert", *, backbone=None, n_classes=3, **kwargs):
    torch.manual_seed(0)
    backbone = make_tiny_model(family) if backbone is None else backbone
    return MultiExitEncoder(backbone, n_classes, **kwargs).eval()


@functools.cache
def shared_encoder(family):
    """For tests that do not change the encoder."""
    return make_encoder(family)


@functools.cache
@torch.no_grad()
def shared_states(family):
    """Hidden states of a model that never was inside an encoder."""
    return reference_states(make_tiny_model(family), make_batch())


def reference_states(model, batch):
    """What the model itself returns after each layer, its final norm applied."""
    kept = {name: batch[name] for name in accepted_inputs(model)}
    states = list(model(**kept, output_hidden_states=True).hidden_states)
    if model.config.model_type == "modernbert":
        # the model normalises its last state only
        states[1:-1] = [model.final_norm(state) for state in states[1:-1]]
    if model.config.model_type == "albert":
        # the model lists what happens inside its groups, too
        states = states[:: model.config.inner_group_num]
    return states


@pytest.fixture(autouse=True)
def leave_generator_alone():
    with torch.random.fork_rng(devices=[]):
        yield


# --- exits are the model's own hidden states -----------------------------------------


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_hidden_states_are_the_models_own(family, layer):
    expected = shared_states(family)
    (actual,) = shared_encoder(family).hidden_states(make_batch(), [layer])
    assert torch.equal(actual, expected[layer])
    assert not torch.allclose(actual, expected[layer - 1], atol=1e-2)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_groups": 2},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_groups": 3, "inner_group_num": 3, "num_hidden_layers": 5},
        {"num_hidden_groups": 3, "num_hidden_layers": 7},
    ],
    ids=str,
)
@torch.no_grad()
def test_albert_with_several_groups(config):
    batch = make_batch()
    model = make_tiny_model("albert", **config)
    expected = reference_states(model, batch)
    encoder = make_encoder(backbone=make_tiny_model("albert", **config))
    for layer in range(1, encoder.n_layers + 1):
        (actual,) = encoder.hidden_states(batch, [layer])
        assert torch.equal(actual, expected[layer])
        short = truncate_layers(make_tiny_model("albert", **config), layer)
        (actual,) = make_encoder(backbone=short).hidden_states(batch, [layer])
        assert torch.equal(actual, expected[layer])


@pytest.mark.parametrize(
    "config",
    [
        {"conv_kernel_size": 0},
        {"conv_kernel_size": 5, "position_biased_input": True},
        {"relative_attention": False, "conv_kernel_size": 3},
        {"type_vocab_size": 2, "norm_rel_ebd": "none", "share_att_key": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_deberta_variants(config):
    batch = make_batch()
    model = make_tiny_model("deberta-v2", **config)
    expected = reference_states(model, batch)
    encoder = make_encoder(backbone=make_tiny_model("deberta-v2", **config))
    for layer in LAYERS:
        (actual,) = encoder.hidden_states(batch, [layer])
        assert torch.equal(actual, expected[layer])


@torch.no_grad()
def test_hidden_states_come_in_the_order_asked_for():
    batch = make_batch()
    expected = reference_states(make_tiny_model(), batch)
    actual = make_encoder().hidden_states(batch, [3, np.int64(1), 3])
    for layer, state in zip([3, 1, 3], actual, strict=True):
        assert torch.equal(state, expected[layer])


@pytest.mark.parametrize(
    "config", [{"output_hidden_states": True}, {"return_dict": False}], ids=str
)
@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2"])
@torch.no_grad()
def test_output_settings_of_the_configuration_do_not_matter(family, config):
    batch = make_batch()
    expected = shared_encoder(family).pooled(batch)
    encoder = make_encoder(backbone=make_tiny_model(family, **config))
    assert torch.equal(encoder.pooled(batch), expected)
    # capturing states on the model's side would leave hooks that can't be pickled
    pickle.dumps(encoder)


# --- no deeper layer runs ------------------------------------------------------------


def count_layer_calls(encoder):
    calls = []
    for module in encoder.family.layer_modules(encoder.backbone):
        module.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_exactly_the_layers_needed_run(family):
    encoder, batch = make_encoder(family), make_batch()
    calls = count_layer_calls(encoder)
    for layer in LAYERS:
        calls.clear()
        encoder(batch, exits=[1, layer])
        assert len(calls) == layer


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_truncated_model_equals_the_exit(family, layer):
    batch = make_batch()
    expected = shared_states(family)[layer]
    short = truncate_layers(make_tiny_model(family), np.int32(layer))
    encoder = make_encoder(backbone=short)
    assert encoder.n_layers == layer
    assert len(getattr(short.config, "layer_types", None) or [0] * layer) == layer
    assert encoder.exit_layer_numbers == tuple(range(1, layer + 1))
    assert len(encoder.heads) == layer
    (actual,) = encoder.hidden_states(batch, [layer])
    assert torch.equal(actual, expected)
    with pytest.raises(ValueError, match=rf"layers must be .* 1\.\.{layer}; got 5"):
        encoder.hidden_states(batch, [5])


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@torch.no_grad()
def test_truncating_twice_equals_truncating_once(family):
    batch = make_batch()
    once = make_encoder(backbone=truncate_layers(make_tiny_model(family), 2))
    twice = truncate_layers(truncate_layers(make_tiny_model(family), 3), 2)
    twice = make_encoder(backbone=twice)
    for ours, theirs in zip(
        once.hidden_states(batch, [1, 2]),
        twice.hidden_states(batch, [1, 2]),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match=r"1\.\.2; got 3"):
        truncate_layers(twice.backbone, 3)


@pytest.mark.parametrize("n_layers", [0, -1, 5, True, 2.0, "2", np.bool_(True)])
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_truncate_layers_names_the_range(family, n_layers):
    model = shared_encoder(family).backbone
    with pytest.raises(ValueError, match=r"n_layers must be an integer in 1\.\.4; got"):
        truncate_layers(model, n_layers)


def test_truncate_layers_none_keeps_all():
    model = make_tiny_model()
    assert truncate_layers(model, None) is model
    assert len(model.encoder.layer) == N_LAYERS


# --- a stopped pass leaves nothing behind --------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_itself_still_works_after_a_stopped_pass(family):
    batch, expected = make_batch(), shared_states(family)
    encoder = make_encoder(family)
    kept = {name: batch[name] for name in accepted_inputs(encoder.backbone)}
    with torch.inference_mode():
        encoder(batch, exits=[1])
    encoder(batch, exits=[2]).logits.sum().backward()
    # the model's own capture of hidden states is on in this call, off in the next
    for state, own in zip(
        reference_states(encoder.backbone, batch), expected, strict=True
    ):
        assert torch.equal(state, own)
    encoder(batch, exits=[1])
    output = encoder.backbone(**kept)
    assert torch.equal(output.last_hidden_state, expected[-1])
    assert output.get("hidden_states") is None


def test_an_error_inside_the_model_ends_the_run():
    encoder, batch = make_encoder(), make_batch()
    broken = batch | {"input_ids": batch["input_ids"] + 10_000}
    with pytest.raises(IndexError):
        encoder(broken, exits=[1])
    calls = count_layer_calls(encoder)
    encoder.backbone(**batch)
    assert len(calls) == N_LAYERS


@torch.no_grad()
def test_two_encoders_may_share_a_backbone():
    batch = make_batch()
    first = make_encoder()
    expected = first.pooled(batch)
    second = make_encoder(backbone=first.backbone, exit_layers=[2])
    assert torch.equal(second.pooled(batch)[0], expected[1])
    assert torch.equal(first.pooled(batch), expected)


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@torch.inference_mode()
def test_threads_may_share_an_encoder(family):
    encoder, batch = shared_encoder(family), make_batch(TEXTS[:3])
    expected = [encoder.hidden_states(batch, [layer])[0] for layer in LAYERS]
    start, wrong = threading.Barrier(N_LAYERS), []

    @torch.inference_mode()
    def work(layer):
        start.wait()
        for _ in range(15):
            (state,) = encoder.hidden_states(batch, [layer])
            if not torch.equal(state, expected[layer - 1]):
                wrong.append(layer)

    threads = [threading.Thread(target=work, args=(layer,)) for layer in LAYERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))],
    ids=["deepcopy", "pickle"],
)
@torch.no_grad()
def test_copies_are_equal_and_stop_in_time(family, duplicate):
    batch, encoder = make_batch(), make_encoder(family)
    encoder(batch, exits=[1])
    twin = duplicate(encoder)
    for ours, theirs in zip(encoder(batch), twin(batch), strict=True):
        assert torch.equal(ours, theirs)
    calls = count_layer_calls(twin)
    twin(batch, exits=[2])
    assert len(calls) == 2


# --- neighbours and padding ----------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_neither_padding_nor_neighbours_matter(family, pooling):
    encoder = MultiExitEncoder(
        shared_encoder(family).backbone, 3, pooling=pooling, exit_layers=[1, 3, 4]
    ).eval()
    texts = ["goal", TEXTS[0], TEXTS[27], ""]
    alone = [encoder.pooled(make_batch([text]))[:, 0] for text in texts]
    together = encoder.pooled(make_batch(texts))
    padded = encoder.pooled(make_batch(texts, padding="max_length", max_length=60))
    reversed_ = encoder.pooled(make_batch(texts[::-1])).flip(1)
    for i, expected in enumerate(alone):
        for actual in (together, padded, reversed_):
            torch.testing.assert_close(actual[:, i], expected, atol=1e-5, rtol=0)


def test_mean_pool_equals_a_loop():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 5, 4, generator=generator)
    lengths = [5, 2, 1]
    mask = torch.tensor([[int(t < length) for t in range(5)] for length in lengths])
    actual = mean_pool(hidden, mask)
    for row, length in enumerate(lengths):
        expected = sum(hidden[row, t] for t in range(length)) / length
        torch.testing.assert_close(actual[row], expected)


def test_mean_pool_sums_in_single_precision():
    # the sum, 163,840, is beyond half precision
    hidden = torch.full((1, 4096, 2), 40.0, dtype=torch.float16)
    pooled = mean_pool(hidden, torch.ones(1, 4096, dtype=torch.int64))
    assert pooled.dtype == torch.float16
    assert torch.equal(pooled, hidden[:, 0])


def test_mean_pool_of_no_tokens_is_zero():
    pooled = mean_pool(torch.ones(1, 3, 2), torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(pooled, torch.zeros(1, 2))


# --- heads and their outputs ---------------------------------------------------------


@pytest.mark.parametrize("exits", [None, [4, 2], [3], (np.int64(1),)])
@torch.no_grad()
def test_outputs_follow_ascending_layers(exits):
    encoder, batch = make_encoder(n_classes=5), make_batch()
    used = LAYERS if exits is None else sorted(exits)
    outputs = encoder(batch, exits)
    assert outputs.logits.shape == (len(used), 6, 5)
    assert outputs.embeddings.shape == (len(used), 6, 32)
    assert outputs.label_embeddings.shape == (len(used), 5, 32)
    pooled = encoder.pooled(batch, exits)
    for row, layer in enumerate(used):
        head = encoder.heads[layer - 1]
        embeddings = torch.tanh(head.dense(pooled[row]))
        torch.testing.assert_close(outputs.embeddings[row], embeddings)
        assert torch.equal(outputs.label_embeddings[row], head.classifier.weight)
        logits = embeddings @ outputs.label_embeddings[row].T + head.classifier.bias
        torch.testing.assert_close(outputs.logits[row], logits)


@torch.no_grad()
def test_exits_after_some_layers_only():
    batch = make_batch()
    everywhere = make_encoder().pooled(batch)
    encoder = make_encoder(exit_layers=[4, 2])
    assert encoder.exit_layer_numbers == (2, 4)
    assert len(encoder.heads) == 2
    pooled = encoder.pooled(batch)
    assert torch.equal(pooled, everywhere[[1, 3]])
    logits = encoder(batch, exits=[4]).logits
    assert torch.equal(logits[0], encoder.heads[1](pooled[1])[0])


def test_label_embeddings_carry_gradients():
    encoder = make_encoder()
    encoder(make_batch(), exits=[2, 3]).label_embeddings.sum().backward()
    grads = [head.classifier.weight.grad for head in encoder.heads]
    assert [grad is not None for grad in grads] == [False, True, True, False]


def test_heads_drop_out_in_training_only():
    head, pooled = ExitHead(64, 3), torch.ones(2000, 64)
    seen = []
    for layer in (head.dense, head.classifier):
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    _, embeddings = head.eval()(pooled)
    assert torch.equal(seen[0], pooled)
    assert torch.equal(seen[1], embeddings)
    _, embeddings = head.train()(pooled)
    for dropped in seen[2:]:
        assert (dropped == 0).float().mean().item() == pytest.approx(0.1, abs=0.01)
    # the contrastive losses get the whole embedding
    assert not (embeddings == 0).any()


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "albert"])
def test_gradients_stop_at_the_exit(family):
    encoder, batch = make_encoder(family), make_batch()
    modules = encoder.family.layer_modules(encoder.backbone)
    for layer in LAYERS:
        encoder.zero_grad()
        encoder(batch, exits=[layer]).logits.square().sum().backward()
        reached = [[p.grad is not None for p in m.parameters()] for m in modules]
        assert [all(row) for row in reached] == [k <= layer for k in LAYERS]
        assert [any(row) for row in reached] == [k <= layer for k in LAYERS]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_trained(family):
    encoder = make_encoder(family)
    encoder(make_batch()).logits.square().sum().backward()
    idle = [name for name, p in encoder.named_parameters() if p.grad is None]
    assert idle == []
    assert not any("pooler" in name for name, _ in encoder.named_parameters())


# --- gradient equilibrium ------------------------------------------------------------


def gradients_of(encoder, outputs, exit_weights):
    """Gradients of a weighted sum of losses of exits, by the name of the parameter."""
    encoder.zero_grad()
    losses = [
        w * (logits.square().mean() + embeddings.mean())
        for w, logits, embeddings in zip(exit_weights, *outputs[:2], strict=True)
    ]
    sum(losses).backward()
    named = encoder.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def mean_over_deeper(gradients, position):
    """Mean of one parameter's gradients by the exits from a position on."""
    return sum(gradients[position:]) / (len(gradients) - position)


@pytest.mark.parametrize("exits", [None, [1, 3], [4]], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_equilibrium_gives_layers_the_mean_over_the_exits_above(family, exits):
    batch, plain = make_batch(), make_encoder(family)
    balanced = make_encoder(family, gradient_equilibrium=True)
    expected, outputs = plain(batch, exits), balanced(batch, exits)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert torch.equal(ours, theirs)

    exits = list(LAYERS) if exits is None else exits
    weights = [0.5, 1.0, 3.0, 0.25][: len(exits)]
    actual = gradients_of(balanced, outputs, weights)
    single = [
        gradients_of(plain, plain(batch, [k]), [w])
        for k, w in zip(exits, weights, strict=True)
    ]
    assert set(actual) == set().union(*single)
    modules = plain.family.layer_modules(plain.backbone)
    prefix = f"backbone.{plain.family.layers}."
    for name, gradient in actual.items():
        each = [g.get(name, torch.zeros_like(gradient)) for g in single]
        if name.startswith("heads."):
            reference = sum(each)
        elif name.startswith("backbone.embeddings."):
            reference = len(exits) * mean_over_deeper(each, 0)
        elif name.startswith(prefix) and len(modules) == N_LAYERS:
            layer = int(name.removeprefix(prefix).partition(".")[0]) + 1
            reference = len(exits) * mean_over_deeper(
                each, sum(k < layer for k in exits)
            )
        else:
            continue  # used by several layers
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)


def test_equilibrium_trains_at_one_pace_whatever_runs():
    """An averaged loss moves the topmost layer as its exit alone would."""
    batch, balanced = make_batch(), make_encoder(gradient_equilibrium=True)
    weight = balanced.ffn_output_weight(N_LAYERS)
    gradients = []
    for exits in ([N_LAYERS], list(LAYERS)):
        logits = balanced(batch, exits).logits
        loss = ACLLoss(contrastive=None).average(logits.square().mean(dim=(1, 2)))
        gradients += torch.autograd.grad(loss, weight)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_equilibrium_leaves_hidden_states_alone(family):
    batch, layers = make_batch(), [1, 3]
    gradients = []
    for switch in (False, True):
        encoder = make_encoder(family, gradient_equilibrium=switch)
        states = encoder.hidden_states(batch, layers)
        gradients.append(
            torch.autograd.grad(
                sum(map(torch.sum, states)),
                encoder.layer_parameters(),
                allow_unused=True,
            )
        )
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("equilibrium", [False, True])
def test_the_gate_measures_the_gradients_of_each_exits_own_terms(equilibrium):
    batch, labels = make_batch(), torch.tensor([0, 1, 2, 0, 1, 2])
    criterion = ACLLoss(contrastive="acl_embed")
    encoder = make_encoder(gradient_equilibrium=equilibrium)
    outputs = encoder(batch)
    step = gated_backward(
        encoder,
        encoder.parameters(),
        [MicroBatch(outputs, criterion.terms(outputs, labels))],
        criterion,
        gate_scope="ffn_output",
    )
    own = [[], []]  # cross-entropy, contrastive
    for k in LAYERS:
        single = make_encoder()
        outputs, weight = single(batch, [k]), single.ffn_output_weight(k)
        share = 1 / (N_LAYERS - k + 1) if equilibrium else 1
        for gradients, term in zip(own, criterion.terms(outputs, labels), strict=True):
            (gradient,) = torch.autograd.grad(term.sum(), weight, retain_graph=True)
            gradients.append(gradient * share)
    assert step.angle == pytest.approx(gradient_angle(*own), abs=1e-3)


def test_equilibrium_without_a_graph_changes_nothing():
    batch = make_batch()
    encoder = make_encoder(gradient_equilibrium=True)
    with torch.no_grad():
        outputs = encoder(batch)
    for ours, theirs in zip(outputs, make_encoder()(batch), strict=True):
        assert torch.equal(ours, theirs)
    for parameter in encoder.backbone.parameters():
        parameter.requires_grad_(False)  # as a stage that trains exits alone
    encoder(batch).logits.sum().backward()


# --- parameters for the gate ---------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_parameters_leave_out_embeddings_and_heads(family):
    encoder = shared_encoder(family)
    parameters = encoder.layer_parameters()
    assert len({id(p) for p in parameters}) == len(parameters)
    names = {id(p): name for name, p in encoder.named_parameters()}
    named = [names[id(p)] for p in parameters]
    assert not any("embed" in name or "heads" in name for name in named)
    everything = sum("layer" in name and "head" not in name for name in names.values())
    assert 0 < len(named) <= everything


@pytest.mark.parametrize("family", FAMILIES)
def test_ffn_output_weight_ends_the_layer(family):
    encoder = shared_encoder(family)
    weights = [encoder.ffn_output_weight(layer) for layer in LAYERS]
    assert all(weight.shape == (32, 64) for weight in weights)
    shared = 1 if family == "albert" else N_LAYERS
    assert len({id(weight) for weight in weights}) == shared
    own = {id(p) for p in encoder.layer_parameters()}
    assert all(id(weight) in own for weight in weights)
    with pytest.raises(ValueError, match=r"layer must be an integer in 1\.\.4; got 0"):
        encoder.ffn_output_weight(0)


@torch.no_grad()
def test_ffn_output_weight_of_shared_groups_is_the_one_that_runs():
    config = {"num_hidden_groups": 3, "inner_group_num": 2, "num_hidden_layers": 7}
    encoder = make_encoder(backbone=make_tiny_model("albert", **config))
    ran = []
    for group in encoder.family.layer_modules(encoder.backbone):
        group.register_forward_hook(lambda module, *_: ran.append(module))
    encoder(make_batch())
    for layer, group in enumerate(ran, start=1):
        last = group.albert_layers[-1].ffn_output
        assert encoder.ffn_output_weight(layer) is last.weight
    short = make_encoder(
        backbone=truncate_layers(make_tiny_model("albert", **config), 2)
    )
    used = len(list(ran[0].parameters()))
    assert len(short.layer_parameters()) == used


# --- arguments -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[0], [5], [True], [1.0], ["1"], [None]])
def test_unknown_exits_are_named(bad):
    encoder, batch = shared_encoder("bert"), make_batch()
    message = r"must be an integer in 1\.\.4; got"
    with pytest.raises(ValueError, match="exits " + message):
        encoder(batch, exits=bad)
    with pytest.raises(ValueError, match="exits " + message):
        encoder.pooled(batch, exits=bad)
    with pytest.raises(ValueError, match="exit_layers " + message):
        MultiExitEncoder(encoder.backbone, 3, exit_layers=bad)


def test_an_exit_must_exist():
    encoder = make_encoder(exit_layers=[2, 4])
    with pytest.raises(ValueError, match=r"exits must be .* in \(2, 4\); got 3"):
        encoder(make_batch(), exits=[3])
    with pytest.raises(ValueError, match="exits is empty"):
        encoder(make_batch(), exits=[])


def test_unknown_pooling_is_named():
    with pytest.raises(ValueError, match="pooling must be one of .* got 'max'"):
        make_encoder(pooling="max")


@pytest.mark.parametrize("bad", ["no", 1, None])
def test_gradient_equilibrium_is_a_switch(bad):
    with pytest.raises(TypeError, match="gradient_equilibrium must be True or False"):
        make_encoder(gradient_equilibrium=bad)


def test_unsupported_architecture_is_named():
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11))
    with pytest.raises(ValueError, match="'gpt2' is not supported .* modernbert"):
        MultiExitEncoder(model, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_accepted_inputs_follow_the_model(family):
    takes_types = family in ("bert", "electra", "albert", "roberta", "xlm-roberta")
    names = accepted_inputs(shared_encoder(family).backbone)
    assert names == ("input_ids", "attention_mask") + ("token_type_ids",) * takes_types


def test_a_single_token_type_is_no_input():
    # RoBERTa checkpoints know type 0 only, and fail on the second text of a pair
    model = make_tiny_model("roberta", type_vocab_size=1)
    assert accepted_inputs(model) == ("input_ids", "attention_mask")
    batch = dict(tokenizer()("a game", "a cake", return_tensors="pt"))
    assert batch["token_type_ids"].max() == 1
    make_encoder(backbone=model)(batch)
