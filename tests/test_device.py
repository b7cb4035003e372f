"""Where tensors live: everything follows its inputs, and files hold no device.

Without a second device at hand, the "meta" device stands in for one: it computes no
values, but refuses to mix with the CPU.
"""

import ast
import copy
import itertools
import pickle
from contextlib import nullcontext
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from tiny import LABELS, TEXTS, make_tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sklearn_acl
from sklearn_acl import ACLClassifier, losses
from sklearn_acl.criterion import ACLLoss
from sklearn_acl.encoder import ExitOutputs, MultiExitEncoder, mean_pool
from sklearn_acl.inference import move
from sklearn_acl.optimization import autocast_dtype
from sklearn_acl.parameters import resolve_device

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)
X, Y = TEXTS[:16], LABELS[:16]


# -- following the inputs ----------------------------------------------------


class MetaOnly(TorchDispatchMode):
    """Fails where an operation gives a tensor elsewhere; scalars may be."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.ndim:
                assert tensor.device.type == "meta", f"{func} made {tensor.device}"
        return outputs


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_the_stand_in_refuses_to_mix():
    """Else the tests below could not fail."""
    with pytest.raises(RuntimeError, match="device"):
        meta(3, 4) + torch.zeros(4)
    with pytest.raises(AssertionError, match=r"aten\.ones.*made cpu"), MetaOnly():
        torch.ones(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_stay_on_the_device_of_their_inputs(monkeypatch, weighted, dtype):
    # the stand-in has no autocast to switch off
    monkeypatch.setattr(losses, "_full_precision", lambda tensor: nullcontext())
    choices = itertools.product(
        ("acl_cl", "acl_embed", "scl", None),
        (("all", "uniform"), ("labels", "linear")),
        ("replace", "add"),
    )
    for contrastive, (anchors, exit_weights), distill in choices:
        loss = ACLLoss(contrastive, 0.5, 0.3, anchors, distill, exit_weights)
        sizes = (2, 5, 3), (2, 5, 8), (2, 3, 8)
        outputs = [meta(*s, dtype=dtype).requires_grad_() for s in sizes]
        labels = meta(5, dtype=torch.long)
        with MetaOnly():
            terms = loss.terms(
                ExitOutputs(*outputs), labels, meta(5) if weighted else None
            )
            total = loss.combine(terms)
            total.backward()
        assert total.device.type == "meta" and total.shape == ()
        used = outputs if contrastive not in (None, "scl") else outputs[:1]
        assert all(tensor.grad.device.type == "meta" for tensor in used)


def test_pooling_and_heads_stay_on_the_device_of_their_inputs(monkeypatch):
    encoder = MultiExitEncoder(make_tiny_model(num_hidden_layers=2), 3).to("meta")
    mask = meta(4, 7, dtype=torch.long)
    states = {1: meta(4, 7, 32), 2: meta(4, 7, 32)}
    monkeypatch.setattr(encoder, "_run", lambda inputs, layers, fork=None: states)
    with MetaOnly():
        outputs = encoder({"input_ids": mask, "attention_mask": mask})
        pooled = mean_pool(meta(4, 7, 8, dtype=torch.bfloat16), mask)
    assert [tuple(t.shape) for t in outputs] == [(2, 4, 3), (2, 4, 32), (2, 3, 32)]
    assert pooled.device.type == "meta"


def test_a_whole_forward_pass_stays_on_its_device():
    """DeBERTa's code runs without values; that of other families looks at them."""
    model = make_tiny_model("deberta-v2", num_hidden_layers=2)
    encoder = MultiExitEncoder(model, 3).to("meta")
    ids = meta(4, 7, dtype=torch.long)
    outputs = encoder({"input_ids": ids, "attention_mask": ids})
    assert {tensor.device.type for tensor in outputs} == {"meta"}


def test_a_batch_moves_whole():
    batch = {"input_ids": torch.zeros(2, 3), "attention_mask": torch.ones(2, 3)}
    moved = move(batch, torch.device("meta"))
    assert moved.keys() == batch.keys()
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}


FACTORIES = "arange empty eye full ones rand randint randn randperm tensor zeros"
ON_DEVICE = ("encoder.py", "gradients.py", "layer_run.py", "losses.py")


def sources():
    return sorted(Path(sklearn_acl.__file__).parent.glob("*.py"))


def calls(path):
    """Calls in a source file: (what is called, names of keywords, line)."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg for keyword in node.keywords}
            yield ast.unparse(node.func), keywords, f"{path.name}:{node.lineno}"


def test_code_on_the_device_names_it_for_every_new_tensor():
    found = [item for p in sources() if p.name in ON_DEVICE for item in calls(p)]
    names = {f"torch.{name}" for name in FACTORIES.split()}
    made = [(place, keywords) for name, keywords, place in found if name in names]
    assert len(made) >= 2
    assert [place for place, keywords in made if "device" not in keywords] == []


def test_no_code_moves_anything_to_a_device_it_names():
    for path in sources():
        for name, _, place in calls(path):
            fixed = (".cuda", "set_device", "set_default_device")
            assert not name.endswith(fixed), place
        source = path.read_text("utf-8")
        assert '.to("cuda' not in source and ".to('cuda" not in source
        assert 'device="cuda' not in source or path.name == "classifier.py", path


# -- choosing a device -------------------------------------------------------


def test_device_none_is_cuda_where_there_is_one(monkeypatch):
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda a=available: a)
        monkeypatch.setattr(torch.cuda, "device_count", lambda a=available: int(a))
        assert resolve_device(None) == torch.device(expected)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_cuda_devices_are_counted(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for index in range(3):
        if index < count:
            assert resolve_device(f"cuda:{index}") == torch.device("cuda", index)
        else:
            with pytest.raises(ValueError, match=f"cuda:{index}.*sees {count} CUDA"):
                resolve_device(f"cuda:{index}")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5, "", "mps", "meta"])
def test_devices_that_cannot_compute_here_are_refused(device):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ValueError, match="device="):
        resolve_device(device)


@pytest.mark.parametrize(("bf16", "dtype"), [(True, "bfloat16"), (False, "float16")])
def test_auto_precision_takes_what_a_cuda_device_has(monkeypatch, bf16, dtype):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
    assert autocast_dtype("auto", torch.device("cuda")) is getattr(torch, dtype)
    assert autocast_dtype("auto", torch.device("mps")) is None


# -- on a CUDA device --------------------------------------------------------


@pytest.fixture(scope="module")
def on_cuda(tiny_backbone):
    path = tiny_backbone("bert", num_hidden_layers=2)
    params = {"batch_size": 8, "max_epochs": 2, "random_state": 0, "verbose": 0}
    return ACLClassifier(path, device="cuda", **params).fit(X, Y)


@needs_cuda
def test_training_and_prediction_run_on_cuda(on_cuda):
    assert {p.device.type for p in on_cuda.module_.parameters()} == {"cuda"}
    assert next(on_cuda.module_.parameters()).dtype == torch.float32
    assert on_cuda.predict_proba(TEXTS).shape == (60, 3)
    assert np.isfinite(on_cuda.angles_).all()
    assert on_cuda.score(X, Y) > 0.5


@needs_cuda
def test_predictions_agree_between_devices(on_cuda):
    expected = on_cuda.predict_proba_exits(TEXTS)
    other = copy.deepcopy(on_cuda).set_params(device="cpu")
    np.testing.assert_allclose(other.predict_proba_exits(TEXTS), expected, atol=1e-4)
    assert {p.device.type for p in other.module_.parameters()} == {"cpu"}
    other.set_params(device="cuda")
    np.testing.assert_array_equal(other.predict_proba_exits(TEXTS), expected)


@needs_cuda
def test_files_of_a_cuda_model_hold_cpu_tensors(on_cuda, tmp_path, monkeypatch):
    expected = on_cuda.predict_proba(TEXTS)
    joblib.dump(on_cuda, tmp_path / "model.joblib")
    on_cuda.save(tmp_path / "saved")
    for loaded in (
        joblib.load(tmp_path / "model.joblib"),
        ACLClassifier.load(tmp_path / "saved"),
    ):
        np.testing.assert_array_equal(loaded.predict_proba(TEXTS), expected)
        loaded.partial_fit(X, Y)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for load in (
        lambda: joblib.load(tmp_path / "model.joblib"),
        lambda: ACLClassifier.load(tmp_path / "saved"),
    ):
        with pytest.warns(UserWarning, match="device=None"):
            loaded = load()
        assert {p.device.type for p in loaded.module_.parameters()} == {"cpu"}
        np.testing.assert_allclose(loaded.predict_proba(TEXTS), expected, atol=1e-4)


class OtherEncoder(MultiExitEncoder):
    pass


@needs_cuda
def test_module_of_the_users_own_is_pickled_from_the_cpu(tiny_backbone):
    path = tiny_backbone("bert", num_hidden_layers=2)
    clf = ACLClassifier(path, module=OtherEncoder, device="cuda", verbose=0)
    clf.fit(X, Y)
    module, _ = clf.__getstate__()["fitted_module_"]
    assert {p.device.type for p in module.parameters()} == {"cpu"}
    assert {p.device.type for p in clf.module_.parameters()} == {"cuda"}
    loaded = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))


@needs_cuda
@pytest.mark.parametrize("precision", ["bf16", "fp16", None])
@pytest.mark.parametrize("scope", ["encoder", "ffn_output", "exit_dense"])
def test_every_precision_and_gate_trains_on_cuda(tiny_backbone, precision, scope):
    path = tiny_backbone("bert", num_hidden_layers=2)
    clf = ACLClassifier(
        path,
        device="cuda",
        mixed_precision=precision,
        gate_scope=scope,
        gradient_accumulation_steps=2,
        batch_size=4,
        max_epochs=2,
        random_state=0,
        verbose=0,
    )
    clf.fit(X, Y, validation_data=(X, Y))
    assert np.isfinite(clf.history[:, "train_loss"]).all()
    assert np.isfinite(clf.history[:, "valid_loss"]).all()
    assert all(torch.isfinite(p).all() for p in clf.module_.parameters())


@needs_cuda
def test_fit_leaves_the_generators_of_cuda_alone(on_cuda):
    before = torch.cuda.get_rng_state()
    copy.deepcopy(on_cuda).fit(X, Y).predict(X)
    assert torch.equal(torch.cuda.get_rng_state(), before)
