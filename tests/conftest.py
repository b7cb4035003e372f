"""Fixtures shared by all tests: tiny encoders on disk, written once per session."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

# tensors here are so small that threads would only wait for each other
torch.set_num_threads(1)

# `tiny.py` is imported by name whatever import mode pytest runs in
sys.path.insert(0, str(Path(__file__).parent))

from tiny import make_tiny_backbone  # noqa: E402


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory):
    """Factory: ``tiny_backbone("albert", num_hidden_layers=2)`` -> cached directory."""
    written = {}

    def factory(family="bert", **config):
        key = (family, repr(sorted(config.items())))
        if key not in written:
            directory = tmp_path_factory.mktemp(f"tiny-{family}")
            written[key] = make_tiny_backbone(directory, family, **config)
        return written[key]

    return factory


@pytest.fixture(scope="session")
def tiny_bert(tiny_backbone):
    """Directory of a 4-layer BERT, 32 wide. Tests must not write to it."""
    return tiny_backbone("bert")


@pytest.fixture(scope="module")
def study():
    """Import a script of the study by name, as if started from its folder."""
    examples = Path(__file__).resolve().parents[1] / "examples"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(examples / "study"))
        patch.syspath_prepend(str(examples / "benchmarks"))
        yield importlib.import_module


@pytest.fixture
def point_hub_to(monkeypatch):
    """Let the hub be a port of this machine: ``point_hub_to(port)`` -> its address."""
    from huggingface_hub import constants

    def point_to(port):
        endpoint = f"http://127.0.0.1:{port}"
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        return endpoint

    return point_to
