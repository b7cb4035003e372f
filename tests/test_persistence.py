"""Fitted classifiers as pickles and as directories: same predictions, no code."""

import copy
import io
import json
import os
import pickle
import pickletools
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from skorch.dataset import ValidSplit
from tiny import FAMILIES, LABELS, TEXTS, make_tiny_backbone

from sklearn_acl import ACLClassifier, persistence
from sklearn_acl.criterion import ACLLoss
from sklearn_acl.encoder import MultiExitEncoder

X, Y = TEXTS[:16], LABELS[:16]
NEW = TEXTS[16:40] + ["", "unseen wörds 😀", "goal " * 100]
FILES = {"sklearn_acl.json", "backbone.json", "model.safetensors", "tokenizer"}

pytestmark = pytest.mark.filterwarnings("ignore:.*texts.*longer than max_length")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(backbone, **params):
    defaults = {"max_epochs": 1, "batch_size": 16, "random_state": 0, "verbose": 0}
    return ACLClassifier(backbone, **(defaults | {"device": "cpu"} | params))


@pytest.fixture(scope="module")
def backbone(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def fitted(backbone):
    """A fitted classifier; tests must not change it."""
    return make(backbone, max_epochs=2, batch_size=8).fit(X, Y)


@pytest.fixture(scope="module")
def pickled(fitted):
    return pickle.dumps(fitted)


@pytest.fixture
def clf(pickled):
    """A fitted classifier of the test's own."""
    return pickle.loads(pickled)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    return tmp_path / "saved"


def assert_same(first, second, texts=NEW):
    """Equal to the bit: probabilities of every exit, labels and classes."""
    np.testing.assert_array_equal(
        first.predict_proba_exits(texts), second.predict_proba_exits(texts)
    )
    assert first.classes_.dtype == second.classes_.dtype
    np.testing.assert_array_equal(first.predict(texts), second.predict(texts))
    assert first.exit_layer_numbers_ == second.exit_layer_numbers_


def edit(path, change):
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


# -- a fresh process ---------------------------------------------------------

FRESH = """
import json, sys
from pathlib import Path

def refuse(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise PermissionError(f"network: {event}")
    if event.startswith(("os.exec", "os.posix_spawn", "os.system", "subprocess.")):
        raise PermissionError(f"process: {event}")
    if event == "pickle.find_class" and not unpickling:
        raise PermissionError("pickle")

unpickling = False
sys.addaudithook(refuse)

import numpy as np
import torch

torch.set_num_threads(1)
from sklearn_acl import ACLClassifier

folder = Path(sys.argv[1])
texts = json.loads((folder / "texts.json").read_text("utf-8"))
results, names = {}, sorted(path.name for path in (folder / "saved").iterdir())
state = torch.get_rng_state()
for name in names:
    clf = ACLClassifier.load(folder / "saved" / name)
    results[f"saved {name}"] = clf.predict_proba_exits(texts)
unpickling = True
import joblib
for path in sorted((folder / "pickled").iterdir()):
    clf = joblib.load(path)
    results[f"pickled {path.name}"] = clf.predict_proba_exits(texts)
    results[f"labels {path.name}"] = clf.predict(texts)
assert torch.equal(state, torch.get_rng_state())
np.savez(folder / "results.npz", **results)
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """What a new process without network and backbones makes of all families."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "saved").mkdir()
    (folder / "pickled").mkdir()
    (folder / "cache").mkdir()
    expected = {}
    for family in FAMILIES:
        path = make_tiny_backbone(folder / "backbone", family, num_hidden_layers=2)
        clf = make(path, gate_scope="exit_dense").fit(X, Y)
        shutil.rmtree(path)  # from here on there is only what was stored
        clf.save(folder / "saved" / family)
        joblib.dump(clf, folder / "pickled" / family)
        expected[family] = clf.predict_proba_exits(NEW), clf.predict(NEW)
    joblib.dump(clf, folder / "pickled" / "compressed", compress=3)
    (folder / "texts.json").write_text(json.dumps(NEW))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_HOME": str(folder / "cache"), "PYTHONWARNINGS": "ignore"}
    root = str(Path(__file__).parents[1])
    paths = [root, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
    return expected, np.load(folder / "results.npz")


@pytest.mark.parametrize("family", FAMILIES)
def test_new_process_predicts_the_same_bits(fresh, family):
    expected, results = fresh
    probabilities, labels = expected[family]
    np.testing.assert_array_equal(results[f"pickled {family}"], probabilities)
    np.testing.assert_array_equal(results[f"saved {family}"], probabilities)
    np.testing.assert_array_equal(results[f"labels {family}"], labels)


def test_new_process_reads_a_compressed_file(fresh):
    expected, results = fresh
    np.testing.assert_array_equal(
        results["pickled compressed"], expected[FAMILIES[-1]][0]
    )


# -- pickle ------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(fitted, protocol):
    loaded = pickle.loads(pickle.dumps(fitted, protocol=protocol))
    assert_same(fitted, loaded)
    assert loaded.get_params(deep=False) == fitted.get_params(deep=False)
    assert vars(loaded).keys() == vars(fitted).keys()
    assert loaded.history == fitted.history
    np.testing.assert_array_equal(loaded.angles_, fitted.angles_)


def test_joblib_round_trip_compressed(fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "model", compress=3)
    assert_same(fitted, joblib.load(tmp_path / "model"))


def test_pickling_changes_neither_the_original_nor_its_copy(fitted, pickled):
    """A round trip of the copy gives the same file, and the same predictions."""
    before = fitted.predict_proba_exits(NEW)
    again = pickle.loads(pickle.dumps(pickle.loads(pickled)))
    assert_same(fitted, again)
    np.testing.assert_array_equal(fitted.predict_proba_exits(NEW), before)
    assert len(pickle.dumps(again)) == pytest.approx(len(pickled), rel=0.01)


def test_deepcopy_shares_no_weights(fitted):
    before = fitted.predict_proba(NEW)
    other = copy.deepcopy(fitted)
    assert_same(fitted, other)
    with torch.no_grad():
        for parameter in other.module_.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(fitted.predict_proba(NEW), before)


def test_unpickling_leaves_the_random_generators_alone(pickled, saved):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    pickle.loads(pickled)
    ACLClassifier.load(saved)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


def size_of_weights(clf):
    return sum(t.numel() * t.element_size() for t in clf.module_.state_dict().values())


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model of 6 MB, large beside everything else in the file."""
    path = make_tiny_backbone(
        tmp_path_factory.mktemp("wide"),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=2,
    )
    stopping = EarlyStopping(load_best=True, patience=9)
    scheduler = LRScheduler("StepLR", step_size=5)
    clf = make(
        path,
        max_epochs=2,
        callbacks=[stopping, scheduler],
        callbacks__lr_scheduler=None,
    )
    return clf.fit(X, Y, validation_data=(X, Y))


def test_file_is_hardly_larger_than_the_weights(wide, tmp_path):
    """No optimizer state, no best weights of EarlyStopping, no gradients."""
    weights = size_of_weights(wide)
    assert weights > 5e6
    config, tokenizer = persistence.backbone_to_parts(
        wide.module_.backbone, wide.tokenizer_
    )
    limit = 1.05 * weights + sum(map(len, tokenizer.values())) + 1e5
    file = tmp_path / "model.joblib"
    joblib.dump(wide, file)
    assert weights < file.stat().st_size < limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide.save(tmp_path / "saved")
    paths = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert weights < sum(path.stat().st_size for path in paths) < limit


def strings_in(data):
    """Texts in a pickle: names of modules, classes and attributes."""
    return {arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str)}


def test_pickle_holds_no_tensor_of_torch(wide):
    """Weights are one block of safetensors, which any device can read."""
    names = strings_in(pickle.dumps(wide))
    assert "fitted_parts_" in names and "_rebuild_tensor_v2" not in names
    assert not {n for n in names if n.startswith(("torch._utils", "torch.storage"))}
    rebuilt = {"module_", "criterion_", "optimizer_", "callbacks_", "tokenizer_"}
    assert not rebuilt & wide.__getstate__().keys() and rebuilt <= vars(wide).keys()


def test_unfitted_classifier_pickles(backbone):
    clf = make(backbone, criterion__lam=0.25, callbacks=[EarlyStopping()])
    loaded = pickle.loads(pickle.dumps(clf))
    params = loaded.get_params(deep=False)
    assert isinstance(params.pop("callbacks")[0], EarlyStopping)
    expected = clf.get_params(deep=False)
    del expected["callbacks"]
    assert params == expected
    with pytest.raises(NotFittedError):
        loaded.predict(X)
    unfitted = pickle.loads(pickle.dumps(make(backbone)))
    assert_same(make(backbone).fit(X, Y), unfitted.fit(X, Y))


def test_search_and_pipeline_pickle(backbone):
    pipeline = make_pipeline(FunctionTransformer(), make(backbone))
    search = GridSearchCV(
        pipeline, {"aclclassifier__exit_layer": [1, 2]}, cv=2, error_score="raise"
    )
    search.fit(X, Y)
    loaded = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(loaded.predict_proba(NEW), search.predict_proba(NEW))
    assert loaded.best_params_ == search.best_params_
    assert clone(loaded).get_params()["cv"] == 2


class ScaledEncoder(MultiExitEncoder):
    def __init__(self, *args, factor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor

    def pooled(self, inputs, exits=None):
        return super().pooled(inputs, exits) * self.factor


def test_module_of_the_users_own_pickles_but_is_not_saved(backbone, tmp_path):
    clf = make(backbone, module=ScaledEncoder, module__factor=0.5).fit(X, Y)
    loaded = pickle.loads(pickle.dumps(clf))
    assert type(loaded.module_) is ScaledEncoder and loaded.module_.factor == 0.5
    assert_same(clf, loaded)
    loaded.partial_fit(X, Y)
    with pytest.raises(TypeError, match="ScaledEncoder; use joblib.dump"):
        clf.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


# -- directory: what is in it ------------------------------------------------


def test_directory_round_trip(fitted, saved):
    loaded = ACLClassifier.load(saved)
    assert_same(fitted, loaded)
    assert loaded.get_params(deep=False) == fitted.get_params(deep=False)
    np.testing.assert_array_equal(loaded.transform(NEW), fitted.transform(NEW))
    assert loaded.angles_.dtype == np.float32
    np.testing.assert_array_equal(loaded.angles_, fitted.angles_)
    names = ("epoch", "train_loss", "angle_mean", "dur")
    assert loaded.history[:, names] == fitted.history[:, names]
    assert not loaded.module_.training
    loaded.save(str(saved))  # over itself, by another name
    assert_same(fitted, ACLClassifier.load(str(saved)))


def test_directory_holds_data_only(saved):
    """JSON and text that decode, and one safetensors file without a byte to spare."""
    assert {path.name for path in saved.iterdir()} == FILES
    for path in saved.rglob("*"):
        if path.is_dir():
            continue
        assert path.suffix in {".safetensors", ".json", ".txt", ".model"}
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        with pytest.raises(Exception):  # noqa: B017 - whatever pickle makes of it
            pickle.loads(content)
        if path.suffix == ".json":
            json.loads(content.decode("utf-8"))
        if path.suffix == ".safetensors":
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])
            header.pop("__metadata__", None)
            end = max(entry["data_offsets"][1] for entry in header.values())
            assert len(content) == 8 + size + end


def test_directory_names_no_place_of_this_machine(saved, backbone):
    """The parameter `backbone` is the user's own; nothing else holds a path."""
    manifest = (saved / "sklearn_acl.json").read_text("utf-8")
    assert json.dumps(backbone) in manifest
    names = [path for path in saved.rglob("*.json") if path.name != "sklearn_acl.json"]
    texts = [manifest.replace(json.dumps(backbone), "")]
    texts += [path.read_text("utf-8") for path in names]
    assert not any(str(Path(backbone).parent) in text for text in texts)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_files_can_be_read_by_whoever_the_umask_lets(fitted, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("")
    fitted.save(tmp_path / "plain" / "saved")

    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    for path in [tmp_path / "plain" / "saved", *(tmp_path / "plain").rglob("*")]:
        expected = tmp_path / "plain" if path.is_dir() else tmp_path / "plain" / "file"
        assert mode(path) == mode(expected), path


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "ä", "a\n\"'"]),
        np.array(["b", "ä", "🙂"], dtype=object),
        np.array([3, -5, 9]),
        np.array([3, 0, 200], dtype=np.uint8),
        np.array([3, 5, 7], dtype=np.int32),
        np.array([2**62 + 1, 2**62, 5]),
        np.array([True, False]),
        np.array([1.0, 2.0, -3.0]),
        np.array([1.0, 2.0], dtype=np.float32),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(labels)}",
)
def test_labels_come_back_with_their_type(clf, tmp_path, labels):
    """As if fitted with them: only the names of the classes differ."""
    clf.classes_inferred_ = np.unique(np.resize(labels, 3))
    if len(clf.classes_) == 2:
        for head in clf.module_.heads:
            head.classifier = torch.nn.Linear(32, 2)
    clf.save(tmp_path / "saved")
    loaded = ACLClassifier.load(tmp_path / "saved")
    assert loaded.classes_.dtype == clf.classes_.dtype
    assert loaded.classes_.tolist() == clf.classes_.tolist()
    assert set(map(type, loaded.classes_)) == set(map(type, clf.classes_))
    predicted = loaded.predict(NEW)
    assert predicted.dtype == clf.classes_.dtype
    np.testing.assert_array_equal(predicted, clf.predict(NEW))
    assert_same(clf, pickle.loads(pickle.dumps(clf)))


def test_labels_of_a_fit_come_back(backbone, tmp_path):
    weight = {1: 2.0, 0: 0.5}
    labels = np.resize([1, 0], 16).astype(np.int32)
    clf = make(backbone, class_weight=weight, classes=[0, 1, 7]).fit(X, labels)
    clf.save(tmp_path / "saved")
    loaded = ACLClassifier.load(tmp_path / "saved")
    assert loaded.class_weight == weight
    assert {type(key) for key in loaded.class_weight} == {int}
    assert loaded.classes == [0, 1, 7] and loaded.predict_proba(X).shape == (16, 3)
    assert_same(clf, loaded)
    assert_same(clf.fit(X, labels), loaded.fit(X, labels))


def test_pairs_and_column_names_come_back(backbone, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"second": X, "first": X[::-1], "label": Y})
    clf = make(backbone, text_columns=["first", "second"]).fit(frame, "label")
    clf.save(tmp_path / "saved")
    for loaded in ACLClassifier.load(tmp_path / "saved"), copy.deepcopy(clf):
        assert_same(clf, loaded, frame)
        assert_same(clf, loaded, frame[["label", "first", "second"]])
        with pytest.raises(ValueError, match="pairs of texts"):
            loaded.predict(X)


PARAMETERS = {
    "n_layers": 1,
    "pooling": "cls",
    "head_init": "random",
    "text_columns": None,
    "max_length": np.int64(12),
    "criterion__contrastive": None,
    "criterion__lam": 0.1 + 0.2,
    "criterion__temperature": np.float32(0.1),
    "angle_threshold": None,
    "lr": 1e-300,
    "batch_size": 5,
    "class_weight": {"sport": 2, "food": 1.5, "weather": 0},
    "classes": ("sport", "food", "weather"),
    "exit_layer": 1,
    "random_state": None,
    "callbacks__print_log": None,
    "callbacks__gradient_clipping__gradient_clip_value": 3.5,
    "optimizer__betas": (0.9, 0.98),
    "optimizer__param_groups": [("heads.*", {"lr": 0.5, "weight_decay": 0.0})],
    "iterator_train__num_workers": 0,
    "module__dropout": 0.25,
    "verbose": 0,
}


def test_parameters_round_trip(clf, saved):
    """Values and types survive; defaults are not written."""
    manifest = json.loads((saved / "sklearn_acl.json").read_text("utf-8"))
    assert set(manifest["parameters"]) == {
        "backbone",
        "max_epochs",
        "batch_size",
        "random_state",
        "verbose",
        "device",
    }
    clf.set_params(**PARAMETERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.save(saved)
    loaded = ACLClassifier.load(saved)
    expected = clf.get_params(deep=False)
    params = loaded.get_params(deep=False)
    assert params == expected
    for name in ("classes", "optimizer__betas", "optimizer__param_groups"):
        assert type(params[name]) is type(expected[name])
    assert params["class_weight"] == PARAMETERS["class_weight"]


def test_what_cannot_be_saved_is_named_in_one_warning(clf, tmp_path):
    clf.set_params(
        callbacks=[("early", EarlyStopping())],
        callbacks__early__patience=3,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        random_state=np.random.RandomState(0),
        lr=0.5,
        train_split=ValidSplit(5),
    )
    with pytest.warns(UserWarning) as record:
        clf.save(tmp_path / "saved")
    (warning,) = record
    assert warning.filename == __file__
    names = str(warning.message).split("store ")[1].split(":")[0].split(", ")
    assert names == [
        "callbacks",
        "callbacks__early__patience",
        "optimizer",
        "optimizer__momentum",
        "random_state",
        "train_split",
    ]
    loaded = ACLClassifier.load(tmp_path / "saved")
    assert_same(clf, loaded)
    assert loaded.lr == 0.5 and loaded.optimizer is torch.optim.AdamW
    loaded.fit(X, Y)


class OtherLoss(ACLLoss):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor


def test_criterion_of_the_users_own_is_lost_with_its_parameters(clf, tmp_path):
    clf.set_params(criterion=OtherLoss, criterion__factor=3.0, criterion__lam=0.75)
    names = "store criterion, criterion__factor, criterion__lam:"
    with pytest.warns(UserWarning, match=names):
        clf.save(tmp_path / "saved")
    loaded = ACLClassifier.load(tmp_path / "saved")
    assert type(loaded.criterion_) is ACLLoss
    assert_same(clf, loaded)
    loaded.partial_fit(X, Y)


class Noting(Callback):
    """Puts things into the history that JSON cannot hold."""

    def on_epoch_end(self, net, **kwargs):
        net.history.record("tensor", torch.zeros(3))
        net.history.record("number", np.float32(0.5))
        net.history.record("nothing", float("nan"))
        net.history.record("text", "fine")


def test_history_of_any_kind_can_be_saved(backbone, tmp_path):
    clf = make(backbone, callbacks=[Noting()]).fit(X, Y)
    with pytest.warns(UserWarning, match="callbacks"):
        clf.save(tmp_path / "saved")
    (epoch,) = ACLClassifier.load(tmp_path / "saved").history
    assert epoch["number"] == 0.5 and epoch["text"] == "fine"
    assert np.isnan(epoch["nothing"]) and "tensor" not in epoch


# -- directory: after loading ------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "directory"])
def test_loaded_classifier_trains_on_as_the_original_would(fitted, pickled, saved, how):
    """partial_fit and fit give the same weights as without storing, to the bit."""
    original = copy.deepcopy(fitted)
    loaded = pickle.loads(pickled) if how == "pickle" else ACLClassifier.load(saved)
    for clf in original, loaded:
        clf.partial_fit(NEW[:12], TEXTS_LABELS[:12])
    assert_same(original, loaded)
    assert len(loaded.history) == 3
    assert loaded.history[-1, "train_loss"] == original.history[-1, "train_loss"]
    assert [e["train_loss_best"] for e in loaded.history] == [
        e["train_loss_best"] for e in original.history
    ]
    for clf in original, loaded:
        clf.set_params(warm_start=True).fit(X, Y)
    assert_same(original, loaded)
    assert len(loaded.history) == 5
    for clf in original, loaded:
        clf.set_params(warm_start=False).fit(X, Y)
    assert_same(original, loaded)
    assert_same(fitted, loaded)


TEXTS_LABELS = LABELS[16:40]


@pytest.mark.parametrize("how", ["pickle", "directory"])
def test_parameters_of_training_do_not_change_what_a_reload_predicts(
    clf, fitted, tmp_path, how
):
    clf.set_params(
        pooling="cls",
        n_layers=1,
        strategy="final",
        max_length=5,
        text_columns=["a", "b"],
        classes=["x", "y"],
        module__dropout=0.9,
        head_init="random",
        backbone="no/such/place",
    )
    assert_same(clf, fitted)
    if how == "pickle":
        loaded = pickle.loads(pickle.dumps(clf))
    else:
        clf.save(tmp_path / "saved")
        loaded = ACLClassifier.load(tmp_path / "saved")
    assert loaded.get_params(deep=False) == clf.get_params(deep=False)
    assert_same(loaded, fitted)
    assert loaded.module_.heads[0].dropout.p == 0.1


def test_subclass_loads_as_itself(clf, tmp_path):
    class Special(ACLClassifier):
        pass

    clf.save(tmp_path / "saved")
    assert type(Special.load(tmp_path / "saved")) is Special


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", torch.device("cuda")])
def test_model_of_a_cuda_machine_loads_on_the_cpu_with_a_warning(
    clf, fitted, tmp_path, device
):
    clf.set_params(device=device)
    clf.save(tmp_path / "saved")
    data = pickle.dumps(clf)
    for load in (
        lambda: pickle.loads(data),
        lambda: ACLClassifier.load(tmp_path / "saved"),
    ):
        with pytest.warns(UserWarning, match="device=.*cuda.*device=None") as record:
            loaded = load()
        assert len(record) == 1 and record[0].filename == __file__
        assert loaded.device is None
        assert_same(loaded, fitted)
        loaded.partial_fit(X, Y)


def test_loading_runs_no_pickle(saved, fitted, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(joblib, "load", refuse)
    loaded = ACLClassifier.load(saved)
    monkeypatch.undo()
    assert_same(loaded, fitted)


# -- directory: not as it should be ------------------------------------------

EVIL = "open({marker!r}, 'w').close()\nclass Evil: pass\nclass EvilTokenizer: pass\n"


@pytest.fixture
def trap(saved, tmp_path, monkeypatch):
    """A saved classifier with Python files around it that leave a mark when run."""
    marker = tmp_path / "marker"
    code = EVIL.format(marker=str(marker))
    for folder in (saved, saved / "tokenizer"):
        for name in ("evil.py", "__init__.py", "modeling_evil.py", "sitecustomize.py"):
            (folder / name).write_text(code)
    monkeypatch.chdir(saved)
    return saved, marker


AUTO = {
    "AutoConfig": "evil.Evil",
    "AutoModel": "modeling_evil.Evil",
    "AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"],
}


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("backbone.json", {"auto_map": AUTO}),
        ("backbone.json", {"auto_map": AUTO, "architectures": ["Evil"]}),
        ("backbone.json", {"_target": "os.system", "_target_": "os.system"}),
        ("backbone.json", {"attn_implementation": "evil/kernel"}),
        ("backbone.json", {"_attn_implementation": "kernels-community/evil"}),
        ("backbone.json", {"_attn_implementation_internal": "evil/kernel"}),
        ("backbone.json", {"_experts_implementation": "evil/kernel"}),
        ("backbone.json", {"_name_or_path": "../evil", "name_or_path": "/etc"}),
        ("backbone.json", {"tokenizer_class": "EvilTokenizer"}),
        ("tokenizer/tokenizer_config.json", {"auto_map": AUTO}),
        ("tokenizer/tokenizer_config.json", {"tokenizer_class": "EvilTokenizer"}),
        ("tokenizer/tokenizer_config.json", {"chat_template": "{{ evil() }}"}),
        ("tokenizer/tokenizer_config.json", {"unknown": {"_target": "os.system"}}),
        ("sklearn_acl.json", {"unknown": 1, "_target": "os.system"}),
    ],
)
def test_entries_that_name_code_are_ignored_or_refused(trap, fitted, file, entries):
    saved, marker = trap
    edit(saved / file, lambda content: content.update(entries))
    try:
        loaded = ACLClassifier.load(saved)
    except ValueError as error:
        assert "incomplete or damaged" in str(error)
    else:
        assert_same(loaded, fitted)
        config = loaded.module_.backbone.config
        assert config._attn_implementation in ("eager", "sdpa")
        assert not hasattr(config, "auto_map")
    assert not marker.exists()
    assert not any(name.startswith("evil") for name in sys.modules)


@pytest.mark.parametrize(
    "parameters",
    [
        {"criterion": "os.system"},
        {"module": "os.system"},
        {"no_such_parameter": 1},
        {"predict": "x"},
        {"module_": "x"},
        {"_modules": {"list": []}},
        {"__class__": "x"},
        {"lr": {"_target": "os.system"}},
        {"lr": {"array": [1], "dtype": "evil"}},
        {"callbacks": {"list": ["evil"]}},
        {"device": "evil"},
        {"criterion__lam": {"dict": 3}},
        {"criterion__no_such": 3},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_parameters_that_are_none_run_nothing(saved, parameters):
    edit(
        saved / "sklearn_acl.json",
        lambda content: content["parameters"].update(parameters),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loaded = ACLClassifier.load(saved)
        except ValueError as error:
            assert "incomplete or damaged" in str(error)
            return
    # a value that training only would read: refused there, and predictions unharmed
    if caught:
        assert "device" in str(caught[0].message)
    else:
        with pytest.raises((TypeError, ValueError)):
            loaded.fit(X, Y)
    assert loaded.predict(X).shape == (16,)


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need rights there")
def test_nothing_outside_the_directory_is_read_or_written(saved, tmp_path, monkeypatch):
    """File names come from the directory itself, not from its content."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"secret": 1}')
    edit(
        saved / "tokenizer" / "tokenizer_config.json",
        lambda content: content.update(
            vocab_file=str(secret),
            tokenizer_file="../../secret.json",
            special_tokens_map_file="../../secret.json",
            added_tokens_file=str(secret),
        ),
    )
    edit(
        saved / "sklearn_acl.json",
        lambda content: content.update(weights="/etc/passwd", config="../secret.json"),
    )
    opened = []
    real_open = io.open

    def spy(file, *args, **kwargs):
        opened.append(str(file))
        return real_open(file, *args, **kwargs)

    monkeypatch.setattr("builtins.open", spy)
    monkeypatch.setattr("io.open", spy)
    ACLClassifier.load(saved)
    monkeypatch.undo()
    assert not [name for name in opened if "secret" in name or "passwd" in name]
    assert secret.read_text() == '{"secret": 1}'


@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", "a/../../evil.json"])
def test_tokenizer_file_names_stay_inside(fitted, name, tmp_path):
    """Also for a pickle of parts that somebody has changed."""
    config, files = persistence.backbone_to_parts(
        fitted.module_.backbone, fitted.tokenizer_
    )
    with pytest.raises(ValueError, match="name outside"):
        persistence.backbone_from_parts(config, {**files, name: b"{}"})


@pytest.mark.parametrize(
    "file",
    [
        "model.safetensors",
        "backbone.json",
        "sklearn_acl.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "last byte", "noise"])
def test_damaged_files_are_named_as_such(saved, file, damage):
    path = saved / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "empty": b"",
                "half": content[: len(content) // 2],
                "last byte": content.rstrip(b"\n")[:-1],
                "noise": b"\x93\x00noise" + content[10:],
            }[damage]
        )
    with pytest.raises(ValueError, match="damaged|is missing") as error:
        ACLClassifier.load(saved)
    assert str(saved) in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.clear(),
        lambda m: [m.pop(name) for name in list(m) if name != "format"],
        lambda m: m.pop("architecture"),
        lambda m: m["architecture"].pop("n_classes"),
        lambda m: m["architecture"].update(pooling="max"),
        lambda m: m["architecture"].update(n_classes=4),
        lambda m: m["architecture"].update(exit_layers=[1, 2, 3]),
        lambda m: m["architecture"].update(exit_layers=[1]),
        lambda m: m["architecture"].update(unknown=1),
        lambda m: m.update(parameters=[1, 2]),
        lambda m: m.update(classes={"array": ["a", "b"], "dtype": "<U1"}),
        lambda m: m.update(classes=3),
        lambda m: m["fitted"].pop("max_length_"),
        lambda m: m["tokenizer"].append("../backbone.json"),
        lambda m: m["tokenizer"].append("/etc/hostname"),
        lambda m: m.update(tokenizer=["tokenizer_config.json"]),
        lambda m: m.pop("tokenizer"),
        lambda m: m.update(history=[1]),
        lambda m: m.update(history=3),
    ],
)
def test_manifest_that_makes_no_sense_is_damaged(saved, change):
    edit(saved / "sklearn_acl.json", change)
    with pytest.raises(ValueError, match="damaged"):
        ACLClassifier.load(saved)


@pytest.mark.parametrize("file", ["sklearn_acl.json", "backbone.json"])
@pytest.mark.parametrize("content", ["null", "[]", "1", '"text"', "{}"])
def test_json_of_another_kind_is_damaged(saved, file, content):
    (saved / file).write_text(content)
    with pytest.raises(ValueError, match="damaged"):
        ACLClassifier.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.popitem(),
        lambda weights: weights.pop("training.angles"),
        lambda weights: weights.update(extra=torch.zeros(2)),
        lambda weights: weights.update(
            {"heads.0.classifier.weight": torch.zeros(3, 31)}
        ),
    ],
)
def test_other_weights_than_expected_are_damaged(saved, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "model.safetensors")
    change(weights)
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(ValueError, match="damaged"):
        ACLClassifier.load(saved)


@pytest.mark.parametrize("version", [1, 99, "2", None, 1.5])
def test_newer_format_is_refused_with_its_number(saved, version):
    edit(saved / "sklearn_acl.json", lambda content: content.update(format=version))
    with pytest.raises(ValueError, match=f"has format {version!r}.*reads format 2"):
        ACLClassifier.load(saved)


@pytest.mark.parametrize("target", ["nothing", "empty", "file"])
def test_no_saved_classifier_is_said_so(tmp_path, target):
    path = tmp_path / target
    if target == "empty":
        path.mkdir()
    if target == "file":
        path.write_text("text")
    with pytest.raises(ValueError, match="holds no saved classifier.*is missing"):
        ACLClassifier.load(path)


# -- directory: where it is written ------------------------------------------


def snapshot(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_unfitted_classifier_is_not_saved(backbone, tmp_path):
    with pytest.raises(NotFittedError):
        make(backbone).save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_manifest", [False, True])
@pytest.mark.parametrize("other", ["notes.txt", "model.bin", "folder"])
def test_directory_with_other_files_is_not_overwritten(
    fitted, saved, tmp_path, with_manifest, other
):
    target = saved if with_manifest else tmp_path / "other"
    target.mkdir(exist_ok=True)
    if other == "folder":
        (target / other).mkdir()
    else:
        (target / other).write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=f"other files.*{other}"):
        fitted.save(target)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_what_a_file_manager_leaves_does_not_count(fitted, tmp_path, name, is_empty):
    target = tmp_path / "model"
    if is_empty:
        target.mkdir()
    else:
        fitted.save(target)
    (target / name).write_bytes(b"positions of icons")
    fitted.save(target)
    loaded = ACLClassifier.load(target)
    np.testing.assert_array_equal(loaded.predict(TEXTS), fitted.predict(TEXTS))


def test_save_makes_parents_and_takes_an_empty_directory(fitted, tmp_path):
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "a" / "b" / "c", tmp_path / "empty"):
        fitted.save(target)
        assert {path.name for path in target.iterdir()} == FILES
        assert list(target.parent.glob(".*")) == []
    with pytest.raises(ValueError, match="is a file"):
        fitted.save(tmp_path / "empty" / "backbone.json")


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need rights there")
def test_save_through_a_link_writes_where_it_points(fitted, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for _ in range(2):
        fitted.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert {path.name for path in (tmp_path / "real").iterdir()} == FILES


def test_save_replaces_an_earlier_one_whole(clf, fitted, saved):
    (saved / "tokenizer" / "stale.txt").write_text("of an earlier version")
    with torch.no_grad():
        for parameter in clf.module_.heads.parameters():
            parameter.add_(1.0)
    clf.save(saved)
    assert_same(ACLClassifier.load(saved), clf)
    assert not (saved / "tokenizer" / "stale.txt").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


@pytest.mark.parametrize(
    "step", ["weights", "tokenizer", "config", "manifest", "move old", "move new"]
)
def test_failure_in_the_middle_keeps_the_earlier_save(
    clf, fitted, saved, monkeypatch, step
):
    import safetensors.torch

    real_replace, moves = os.replace, []

    def fail(*args, **kwargs):
        raise OSError("disk full")

    names = {"config": "backbone.json", "manifest": "sklearn_acl.json"}

    def write_text(path, *args, **kwargs):
        if path.name == names[step]:
            fail()
        path.write_bytes(args[0].encode())

    def replace(source, target):
        moves.append(target)
        if len(moves) == {"move old": 1, "move new": 2}[step]:
            fail()
        real_replace(source, target)

    if step == "weights":
        monkeypatch.setattr(safetensors.torch, "save_file", fail)
    elif step == "tokenizer":
        monkeypatch.setattr(Path, "write_bytes", fail)
    elif step in ("config", "manifest"):
        monkeypatch.setattr(Path, "write_text", write_text)
    else:
        monkeypatch.setattr(os, "replace", replace)
    before = snapshot(saved)
    with torch.no_grad():
        for parameter in clf.module_.heads.parameters():
            parameter.add_(1.0)
    with pytest.raises(OSError, match="disk full"):
        clf.save(saved)
    monkeypatch.undo()
    assert snapshot(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]
    assert_same(ACLClassifier.load(saved), fitted)
