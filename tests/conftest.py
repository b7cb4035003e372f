"""Fixtures shared by all tests: tiny encoders on disk, written once per session."""

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
