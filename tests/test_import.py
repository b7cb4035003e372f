"""What `import sklearn_acl` costs and does not do; each in a new process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "transformers",
    "tokenizers",
    "datasets",
    "huggingface_hub",
    "safetensors",
    "pyarrow",
    "pandas",
    "polars",
    "matplotlib",
    "joblib.externals.loky",
)

SCRIPT = """
import gc, json, os, sys, time

def refuse(event, args):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork")):
        if importing:
            raise PermissionError(event)

importing = False
sys.addaudithook(refuse)
import numpy, sklearn, skorch, torch
import sklearn.base, sklearn.metrics, sklearn.utils.validation

def state():
    import logging, signal, warnings
    return [
        dict(os.environ), torch.get_num_threads(), torch.get_rng_state().tolist(),
        torch.get_default_dtype(), len(warnings.filters), logging.root.level,
        str(signal.getsignal(signal.SIGINT)), os.getcwd(), numpy.geterr(),
        sorted(map(str, sklearn.get_config().items())),
    ]

def seconds():
    start = time.process_time()
    import sklearn_acl
    return time.process_time() - start

def in_child():
    # each child finds torch, skorch and sklearn imported, and sklearn_acl not yet
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(seconds()).encode())
        os._exit(0)
    os.wait()
    return float(os.read(reader, 100))

already = set(sys.modules)
gc.collect()
gc.freeze()  # by chance an import may meet a collection of all that torch has made
times = [in_child() for _ in range(3)] if hasattr(os, "fork") else []
before, importing = state(), True
times.append(seconds())
importing = False
after = state()
changed = [str(pair) for pair in zip(before, after) if pair[0] != pair[1]]
from sklearn_acl import __all__, ACLClassifier
new = sorted(set(sys.modules) - already)
print(json.dumps({"times": times, "new": new, "changed": changed, "all": __all__}))
"""


@pytest.fixture(scope="module")
def report():
    root = str(Path(__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    # as for a user: compiled by the first import, read by those that follow
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:sklearn_acl", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_import_takes_a_fraction_of_a_second(report):
    """On top of torch, skorch and sklearn; 0.3 s where nothing else is running."""
    assert min(report["times"]) < 0.3


@pytest.mark.parametrize("name", HEAVY)
def test_import_leaves_heavy_packages_to_their_first_use(report, name):
    loaded = [m for m in report["new"] if m == name or m.startswith(name + ".")]
    assert loaded == []


def test_import_changes_no_setting_of_the_process(report):
    """Nor does it open a socket or start a process, which would have raised."""
    assert report["changed"] == []


def test_public_names_are_there(report):
    import sklearn_acl

    assert "ACLClassifier" in report["all"]
    assert all(hasattr(sklearn_acl, name) for name in report["all"])
    assert sorted(report["all"]) == report["all"]
