"""The gate: angles, and the gradients that one optimizer step gets."""

import math
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_acl.criterion import ACLLoss
from sklearn_acl.gradients import (
    MicroBatch,
    check_gate,
    gated_backward,
    gradient_angle,
)

SCOPES = ["encoder", "ffn_output", "exit_dense"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On tiny tensors, threads would mostly wait for each other."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


class Outputs(NamedTuple):
    logits: torch.Tensor
    embeddings: torch.Tensor
    label_embeddings: torch.Tensor


class Head(nn.Module):
    def __init__(self, width, n_classes):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, n_classes)

    def forward(self, pooled):
        embeddings = torch.tanh(self.dense(pooled))
        return self.classifier(embeddings), embeddings


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.output = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden):
        return self.norm(hidden + self.output(torch.relu(self.inner(hidden))))


class Encoder(nn.Module):
    """What the gate needs to know of an encoder, without a transformer."""

    def __init__(self, n_layers=3, width=6, n_classes=3, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embeddings = nn.Linear(4, width)
            self.layers = nn.ModuleList(Layer(width) for _ in range(n_layers))
            self.heads = nn.ModuleList(Head(width, n_classes) for _ in range(n_layers))
            self.unused = nn.Linear(2, 2)
        self.exit_layer_numbers = tuple(range(1, n_layers + 1))

    def forward(self, inputs, exits=None):
        hidden, results = self.embeddings(inputs), []
        exits = self.exit_layer_numbers if exits is None else exits
        for number, layer in enumerate(self.layers, start=1):
            hidden = layer(hidden)
            if number in exits:
                results.append(self.heads[number - 1](hidden))
        logits, embeddings = zip(*results, strict=True)
        labels = [self.heads[k - 1].classifier.weight for k in exits]
        return Outputs(*map(torch.stack, (logits, embeddings, labels)))

    def layer_parameters(self):
        return list(self.layers.parameters())

    def ffn_output_weight(self, layer):
        return self.layers[layer - 1].output.weight


class UnstackedEncoder(Encoder):
    """The same outputs, but not the direct result of a stack."""

    def forward(self, inputs, exits=None):
        return Outputs(*(each * 1.0 for each in super().forward(inputs, exits)))


def make_data(n_texts=9, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_texts, 4, generator=generator)
    return inputs, torch.randint(0, 3, (n_texts,), generator=generator)


def make_batch(
    encoder, criterion, exits=None, rows=slice(None), share=1.0, weight=None
):
    inputs, labels = make_data()
    outputs = encoder(inputs[rows], exits)
    weight = None if weight is None else weight[rows]
    return MicroBatch(outputs, criterion.terms(outputs, labels[rows], weight), share)


def step(encoder, criterion, micro_batches=None, parameters=None, **options):
    """A gated step; the whole batch unless told otherwise."""
    if micro_batches is None:
        micro_batches = [make_batch(encoder, criterion, options.get("exits"))]
    parameters = encoder.parameters() if parameters is None else parameters
    return gated_backward(encoder, parameters, micro_batches, criterion, **options)


def grads_of(encoder):
    return {
        name: None if p.grad is None else p.grad.clone()
        for name, p in encoder.named_parameters()
    }


def backward_grads(encoder, loss):
    """Gradients of a loss by an ordinary backward pass."""
    encoder.zero_grad(set_to_none=True)
    loss.backward()
    grads = grads_of(encoder)
    encoder.zero_grad(set_to_none=True)
    return grads


def assert_same_grads(actual, expected, **tolerance):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert actual[name] is None, name
        elif tolerance:
            torch.testing.assert_close(actual[name], gradient, **tolerance)
        else:
            assert torch.equal(actual[name], gradient), name


def numpy_angle(a, b):
    a, b = (np.concatenate([np.ravel(part) for part in each]) for each in (a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def reference_angle(encoder, criterion, scope):
    """From separate forward and backward passes, one per term (and exit)."""

    def own(term, m, weight):
        encoder.zero_grad(set_to_none=True)
        terms = make_batch(encoder, criterion).terms
        n_exits = len(terms.cross_entropy)
        keep = torch.arange(n_exits) == m if m is not None else torch.ones(n_exits)
        criterion.average(getattr(terms, term) * keep).backward()
        return [w.grad.numpy().copy() for w in weight]

    vectors = []
    for term in ("cross_entropy", "contrastive"):
        if scope == "encoder":
            parts = own(term, None, encoder.layer_parameters())
        elif scope == "ffn_output":
            parts = [
                own(term, m, [encoder.ffn_output_weight(layer)])[0]
                for m, layer in enumerate(encoder.exit_layer_numbers)
            ]
        else:
            parts = own(term, None, [head.dense.weight for head in encoder.heads])
        vectors.append(parts)
    encoder.zero_grad(set_to_none=True)
    return numpy_angle(*vectors)


# --- angles --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_angle_equals_that_of_the_concatenated_vectors(seed):
    rng = np.random.default_rng(seed)
    shapes = [(5, 3), (7,), (2, 3, 4), ()]
    a = [rng.normal(size=shape) for shape in shapes]
    b = [x * (seed - 1) + rng.normal(size=x.shape) for x in a]
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
        tensors = [[torch.as_tensor(x).to(dtype) for x in each] for each in (a, b)]
        assert gradient_angle(*tensors) == pytest.approx(
            numpy_angle(a, b), abs=tolerance
        )


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("direction", "expected"),
    [((3.0, 0.0), 0), ((-7.0, 0.0), 180), ((0.0, 2.0), 90), ((1.0, -1.0), 45)],
)
def test_angle_of_known_directions_at_any_scale(direction, expected, dtype, scale):
    a = torch.tensor([0.1, 0.0], dtype=dtype).repeat(1000) * scale
    b = torch.tensor(direction, dtype=dtype).repeat(1000) / scale
    assert gradient_angle([a], [b]) == pytest.approx(expected, abs=1e-4)
    assert 0 <= gradient_angle([a], [b]) <= 180


def test_angle_of_nearly_parallel_gradients_is_accurate():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300_000, generator=generator)
    b = 3 * a + 1e-4 * torch.randn(300_000, generator=generator)
    expected = numpy_angle([a.numpy()], [b.numpy()])
    assert expected < 0.01
    assert gradient_angle([a], [b]) == pytest.approx(expected, rel=1e-3)
    assert gradient_angle([a], [a]) == pytest.approx(0, abs=1e-5)


def test_none_counts_as_zeros():
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([1.0])
    pairs = [a, None, None], [a, b, None]
    zeros = [a, 0 * b, torch.zeros(2)], [a, b, torch.zeros(2)]
    assert gradient_angle(*pairs) == gradient_angle(*zeros)
    assert gradient_angle(*pairs) == pytest.approx(math.degrees(math.atan2(1, 3)))


@pytest.mark.parametrize(
    "gradient", [[None], [torch.zeros(2)], [torch.tensor([1.0, math.nan])]]
)
def test_a_gradient_without_direction_gives_no_angle(gradient):
    other = [torch.tensor([1.0, 2.0])]
    assert math.isnan(gradient_angle(gradient, other))
    assert math.isnan(gradient_angle(other, gradient))
    assert math.isnan(gradient_angle(gradient, gradient))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_gradient_gives_no_angle(value):
    infinite, other = [torch.tensor([1.0, value])], [torch.tensor([1.0, 2.0])]
    assert math.isnan(gradient_angle(infinite, other))
    assert math.isnan(gradient_angle(other, infinite))


def test_no_gradients_at_all_give_no_angle():
    assert math.isnan(gradient_angle([], []))
    with pytest.raises(ValueError, match="zip"):
        gradient_angle([torch.ones(1)], [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angle_of_half_precision_gradients_does_not_overflow(dtype):
    a = torch.tensor([300.0, 0.0], dtype=dtype).repeat(1000)  # squares exceed 65504
    b = torch.tensor([300.0, 300.0], dtype=dtype).repeat(1000)
    assert gradient_angle([a], [b]) == pytest.approx(45, abs=1e-3)


def test_memory_layout_does_not_matter():
    matrix = torch.arange(6.0).reshape(2, 3)
    other = torch.tensor([[1.0, -2.0, 0.0], [0.5, 1.0, 1.0]])
    turned = other.t().contiguous().t()
    assert gradient_angle([matrix], [turned]) == gradient_angle([matrix], [other])


# --- the step's gradients ------------------------------------------------------------


@pytest.mark.parametrize("exit_weights", ["uniform", "linear"])
@pytest.mark.parametrize("contrastive", ["acl_cl", "acl_embed", "scl"])
@pytest.mark.parametrize("scope", SCOPES)
def test_angle_is_that_of_separate_backward_passes(scope, contrastive, exit_weights):
    encoder = Encoder()
    criterion = ACLLoss(contrastive, exit_weights=exit_weights)
    expected = reference_angle(encoder, criterion, scope)
    result = step(encoder, criterion, gate_scope=scope)
    assert 1 < expected < 179
    assert result.angle == pytest.approx(expected, abs=1e-2)
    assert result.gated == (expected > 90)


def test_scopes_measure_different_angles():
    """So that the test above cannot pass by measuring one scope for another."""
    encoder, criterion = Encoder(), ACLLoss()
    angles = [step(encoder, criterion, gate_scope=scope).angle for scope in SCOPES]
    assert np.ptp(angles) > 1
    assert len({round(angle, 2) for angle in angles}) == 3


@pytest.mark.parametrize("lam", [0.2, 1.0])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_gated_step_is_a_cross_entropy_step(scope, lam):
    encoder, criterion = Encoder(), ACLLoss(lam=lam)
    terms = make_batch(encoder, criterion).terms
    loss = criterion.combine(terms, gated=True)
    expected = backward_grads(encoder, loss)
    result = step(encoder, criterion, angle_threshold=0.0, gate_scope=scope)
    assert result.gated
    assert result.angle > 0
    assert_same_grads(grads_of(encoder), expected, rtol=1e-5, atol=1e-7)
    assert torch.equal(result.loss, loss.detach())
    assert not result.loss.requires_grad


@pytest.mark.parametrize("lam", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("scope", SCOPES)
def test_an_ungated_step_follows_the_combined_loss(scope, lam):
    encoder, criterion = Encoder(), ACLLoss(lam=lam)
    loss = make_loss(encoder, criterion)
    expected = backward_grads(encoder, loss)
    result = step(encoder, criterion, angle_threshold=180.0, gate_scope=scope)
    assert not result.gated
    assert 0 < result.angle < 180
    assert_same_grads(grads_of(encoder), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.loss, loss.detach())


def make_loss(encoder, criterion):
    return criterion.combine(make_batch(encoder, criterion).terms)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("criterion", "threshold"),
    [
        (ACLLoss(None), 0.0),
        (ACLLoss(lam=0), 0.0),
        (ACLLoss("scl"), None),
        (ACLLoss(), None),
    ],
    ids=["no contrastive term", "lam=0", "scl, no gate", "acl_cl, no gate"],
)
def test_without_a_gate_the_step_is_an_ordinary_backward_pass(
    criterion, threshold, scope
):
    """To the bit."""
    encoder = Encoder()
    loss = make_loss(encoder, criterion)
    expected = backward_grads(encoder, loss)
    result = step(encoder, criterion, angle_threshold=threshold, gate_scope=scope)
    assert not result.gated
    assert math.isnan(result.angle)
    assert torch.equal(result.loss, loss.detach())
    assert_same_grads(grads_of(encoder), expected)


@pytest.mark.parametrize("scope", SCOPES)
def test_the_comparison_is_strict(scope):
    encoder, criterion = Encoder(), ACLLoss()
    angle = step(encoder, criterion, gate_scope=scope).angle
    below = math.nextafter(angle, 0)
    for threshold, gated in ((angle, False), (below, True)):
        result = step(encoder, criterion, angle_threshold=threshold, gate_scope=scope)
        assert result == (result.loss, angle, gated)


@pytest.mark.parametrize("threshold", [0.0, 90.0, 180.0, None])
@pytest.mark.parametrize("scope", SCOPES)
def test_earlier_gradients_are_replaced(scope, threshold):
    encoder, criterion = Encoder(), ACLLoss()
    step(encoder, criterion, angle_threshold=threshold, gate_scope=scope)
    expected = grads_of(encoder)
    step(encoder, criterion, angle_threshold=threshold, gate_scope=scope)
    assert_same_grads(grads_of(encoder), expected)


@pytest.mark.parametrize("threshold", [0.0, 180.0, None])
@pytest.mark.parametrize("scope", SCOPES)
def test_frozen_unused_and_foreign_parameters_are_left_alone(scope, threshold):
    encoder, criterion = Encoder(), ACLLoss()
    encoder.embeddings.requires_grad_(False)
    encoder.heads[0].requires_grad_(False)
    encoder.layers[2].output.weight.requires_grad_(False)
    foreign = encoder.heads[1].classifier.bias
    foreign.grad = torch.full_like(foreign, 7.0)
    own = [p for p in encoder.parameters() if p is not foreign]
    step(encoder, criterion, None, own, angle_threshold=threshold, gate_scope=scope)
    assert (foreign.grad == 7).all()
    for frozen in (encoder.embeddings, encoder.heads[0], encoder.unused):
        assert all(p.grad is None for p in frozen.parameters())
    trained = [p for p in own if p.requires_grad]
    reached = [p for p in trained if p.grad is not None]
    assert len(trained) == len(reached) + len(list(encoder.unused.parameters()))


@pytest.mark.parametrize("threshold", [0.0, 180.0, None])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_loss_scale_multiplies_gradients_only(scope, threshold):
    encoder, criterion = Encoder(), ACLLoss()
    options = {"angle_threshold": threshold, "gate_scope": scope}
    plain = step(encoder, criterion, **options)
    expected = {
        name: None if gradient is None else 1024 * gradient
        for name, gradient in grads_of(encoder).items()
    }
    for scale in (1024.0, torch.tensor(1024.0)):
        scaled = step(encoder, criterion, scale=scale, **options)
        assert_same_grads(grads_of(encoder), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(scaled.loss, plain.loss)
        assert scaled.gated == plain.gated
        assert scaled.angle == pytest.approx(plain.angle, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_zero_gradient_is_not_gated(scope):
    """SCL finds no positive among three texts of three classes."""
    encoder, criterion = Encoder(), ACLLoss("scl", lam=0.25)

    def make():
        outputs = encoder(make_data()[0][:3])
        return MicroBatch(outputs, criterion.terms(outputs, torch.arange(3)))

    expected = backward_grads(encoder, criterion.combine(make().terms))
    result = step(encoder, criterion, [make], angle_threshold=0.0, gate_scope=scope)
    assert math.isnan(result.angle)
    assert not result.gated
    assert_same_grads(grads_of(encoder), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_gradient_that_is_not_finite_is_not_gated(scope):
    encoder, criterion = Encoder(), ACLLoss()
    outputs = encoder(make_data()[0] * math.inf)
    batch = MicroBatch(outputs, criterion.terms(outputs, make_data()[1]))
    result = step(encoder, criterion, [batch], angle_threshold=0.0, gate_scope=scope)
    assert math.isnan(result.angle)
    assert not result.gated


# --- several micro-batches -----------------------------------------------------------


def thirds(encoder, criterion, weight):
    """The batch of 9 texts in three parts of different weight."""
    total = float(weight.sum())
    slices = [slice(0, 2), slice(2, 3), slice(3, 9)]
    return [
        lambda rows=rows: make_batch(
            encoder, criterion, None, rows, float(weight[rows].sum()) / total, weight
        )
        for rows in slices
    ]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_cross_entropy_does_not_depend_on_how_a_batch_is_split(threshold, scope):
    """Plain cross-entropy, and that of a gated step."""
    encoder, weight = Encoder(), torch.linspace(0.0, 2.0, 9)
    criterion = ACLLoss(None if threshold is None else "acl_cl")
    terms = make_batch(encoder, criterion, weight=weight).terms
    loss = criterion.combine(terms, gated=True)
    expected = backward_grads(encoder, loss)
    parts = thirds(encoder, criterion, weight)
    result = step(
        encoder, criterion, parts, angle_threshold=threshold, gate_scope=scope
    )
    assert result.gated == (threshold is not None)
    assert_same_grads(grads_of(encoder), expected, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(result.loss, loss.detach())


@pytest.mark.parametrize("threshold", [0.0, 180.0, None])
@pytest.mark.parametrize("scope", SCOPES)
def test_two_equal_halves_give_the_step_of_one(scope, threshold):
    encoder, criterion = Encoder(), ACLLoss(lam=0.3)
    options = {"angle_threshold": threshold, "gate_scope": scope}
    whole = step(encoder, criterion, **options)
    expected = grads_of(encoder)
    half = make_batch(encoder, criterion)._replace(share=0.5)
    other = make_batch(encoder, criterion)._replace(share=0.5)
    split = step(encoder, criterion, [half, other], **options)
    assert split.gated == whole.gated
    assert split.angle == pytest.approx(whole.angle, abs=1e-3, nan_ok=True)
    assert_same_grads(grads_of(encoder), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split.loss, whole.loss)


@pytest.mark.parametrize("scope", SCOPES)
def test_one_decision_is_made_on_accumulated_gradients(scope):
    """The angle of the sums, not a mean of the micro-batches' own angles."""
    encoder, criterion = Encoder(), ACLLoss()
    parts = thirds(encoder, criterion, torch.ones(9))

    def gradients(values_of):
        total = None
        for part in parts:
            batch = part()
            values = values_of(batch.terms) * batch.share
            loss = criterion.average(values)
            if scope == "ffn_output":
                grads = [
                    torch.autograd.grad(
                        values[m] / 3,
                        encoder.ffn_output_weight(m + 1),
                        retain_graph=True,
                    )[0]
                    for m in range(3)
                ]
            else:
                weights = (
                    encoder.layer_parameters()
                    if scope == "encoder"
                    else [head.dense.weight for head in encoder.heads]
                )
                grads = torch.autograd.grad(loss, weights)
            total = grads if total is None else [*map(torch.add, total, grads)]
        return [gradient.numpy() for gradient in total]

    expected = numpy_angle(
        gradients(lambda terms: terms.cross_entropy),
        gradients(lambda terms: terms.contrastive),
    )
    result = step(encoder, criterion, parts, gate_scope=scope)
    assert result.angle == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("threshold", [90.0, None])
@pytest.mark.parametrize("scope", SCOPES)
def test_one_graph_is_alive_at_a_time(scope, threshold):
    encoder, criterion, alive = Encoder(), ACLLoss(), []

    def make():
        alive.append(sum(reference() is not None for reference in references))
        batch = make_batch(encoder, criterion)._replace(share=1 / 3)
        references.append(weakref.ref(batch.outputs.embeddings))
        return batch

    references = []
    step(encoder, criterion, [make] * 3, angle_threshold=threshold, gate_scope=scope)
    assert alive == [0, 0, 0]


# --- exits and the short way to the feed-forward block -------------------------------


@pytest.mark.parametrize("exits", [(2,), (1, 3), (1, 2, 3)])
def test_exits_say_which_feed_forward_blocks_are_meant(exits):
    encoder, criterion = Encoder(), ACLLoss("acl_embed")
    vectors = []
    for name in ("cross_entropy", "contrastive"):
        terms = make_batch(encoder, criterion, exits).terms
        vectors.append(
            [
                torch.autograd.grad(
                    getattr(terms, name)[m],
                    encoder.ffn_output_weight(layer),
                    retain_graph=True,
                )[0].numpy()
                for m, layer in enumerate(exits)
            ]
        )
    result = step(encoder, criterion, gate_scope="ffn_output", exits=exits)
    assert result.angle == pytest.approx(numpy_angle(*vectors), abs=1e-2)


def test_exits_that_do_not_fit_the_outputs_are_an_error():
    encoder, criterion = Encoder(), ACLLoss()
    batch = make_batch(encoder, criterion, (3,))
    with pytest.raises(ValueError, match="exits must name the layers of the 1 exits"):
        step(encoder, criterion, [batch], gate_scope="ffn_output")


def test_outputs_need_not_come_from_a_stack():
    criterion = ACLLoss()
    angles = [
        step(encoder, criterion, gate_scope="ffn_output").angle
        for encoder in (Encoder(), UnstackedEncoder())
    ]
    assert angles[0] == pytest.approx(angles[1], abs=1e-3)


def count_backward_passes(modules):
    """List to which every backward pass through a module appends its position."""
    passes = []
    for position, module in enumerate(modules):
        module.register_full_backward_hook(
            lambda *_, position=position: passes.append(position)
        )
    return passes


@pytest.mark.parametrize("threshold", [0.0, 180.0])
def test_ffn_output_goes_through_no_layer_twice(threshold):
    """Each exit's own piece ends in its layer; the rest is one backward pass."""
    encoder, criterion = Encoder(), ACLLoss()
    passes = count_backward_passes([layer.inner for layer in encoder.layers])
    options = {"angle_threshold": threshold, "gate_scope": "ffn_output"}
    step(encoder, criterion, **options)
    assert sorted(passes) == [0, 1, 2]


@pytest.mark.parametrize(("scope", "expected"), [("encoder", 2), ("exit_dense", 1)])
def test_number_of_backward_passes(scope, expected):
    encoder, criterion = Encoder(), ACLLoss()
    passes = count_backward_passes([layer.inner for layer in encoder.layers])
    step(encoder, criterion, gate_scope=scope)
    assert sorted(passes) == sorted([0, 1, 2] * expected)


def make_transformer(directory):
    from transformers import AutoModel

    from sklearn_acl.encoder import MultiExitEncoder

    backbone = AutoModel.from_pretrained(directory)
    return MultiExitEncoder(backbone, 3, dropout=0.0).eval()


def transformer_batch(encoder, criterion):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 100, (6, 7), generator=generator)
    outputs = encoder({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return MicroBatch(outputs, criterion.terms(outputs, torch.arange(6) % 3))


@pytest.mark.parametrize("scope", SCOPES)
def test_a_transformer_gets_the_gradients_of_its_loss(scope, tiny_bert):
    encoder, criterion = make_transformer(tiny_bert), ACLLoss()
    loss = criterion.combine(transformer_batch(encoder, criterion).terms)
    expected = backward_grads(encoder, loss)
    batch = transformer_batch(encoder, criterion)
    result = step(encoder, criterion, [batch], angle_threshold=180.0, gate_scope=scope)
    assert 0 < result.angle < 180
    assert_same_grads(grads_of(encoder), expected, rtol=1e-4, atol=1e-6)


def test_ffn_output_of_a_transformer_is_short_too(tiny_bert):
    encoder, criterion = make_transformer(tiny_bert), ACLLoss()
    queries = [
        module for name, module in encoder.named_modules() if name.endswith(".query")
    ]
    passes = count_backward_passes(queries)
    batch = transformer_batch(encoder, criterion)
    step(encoder, criterion, [batch], gate_scope="ffn_output")
    assert sorted(passes) == list(range(len(queries)))


# --- parameters ----------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["encoder", "ffn_output"])
def test_a_scope_without_trainable_parameters_is_an_error(scope):
    encoder, criterion = Encoder(), ACLLoss()
    encoder.layers.requires_grad_(False)
    with pytest.raises(ValueError, match=f"gate_scope='{scope}' .*'exit_dense'"):
        step(encoder, criterion, gate_scope=scope)
    assert step(encoder, criterion, gate_scope="exit_dense").angle > 0


@pytest.mark.parametrize("threshold", [None, 0, 180, 90.0, np.float32(45), np.int64(9)])
@pytest.mark.parametrize("scope", SCOPES)
def test_gate_parameters_in_range_are_accepted(threshold, scope):
    check_gate(threshold, scope)


@pytest.mark.parametrize(
    ("threshold", "scope", "error", "message"),
    [
        (-1, "encoder", ValueError, r"angle_threshold=-1 must be in \[0, 180\]"),
        (180.5, "encoder", ValueError, r"angle_threshold=180\.5 must be in .*None"),
        (math.nan, "encoder", ValueError, "angle_threshold=nan"),
        (True, "encoder", TypeError, "angle_threshold=True .*not bool"),
        ("90", "encoder", TypeError, "angle_threshold='90' .*not str"),
        (90, "layers", ValueError, "gate_scope='layers' .*'exit_dense'"),
        (None, None, ValueError, "gate_scope=None must be one of"),
    ],
)
def test_bad_gate_parameters_are_named(threshold, scope, error, message):
    with pytest.raises(error, match=message):
        check_gate(threshold, scope)
    with pytest.raises(error, match=message):
        gated_backward(
            Encoder(), [], [], ACLLoss(), angle_threshold=threshold, gate_scope=scope
        )
