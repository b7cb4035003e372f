"""Hashes of the user's own code: they follow what it does, wherever it was written."""

import copy
import importlib
import linecache
import os
import pickle
import subprocess
import sys
import sysconfig
import threading
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from skorch.callbacks import Callback, EarlyStopping, EpochScoring

from sklearn_acl import ACLClassifier, code_hash, fit_key
from sklearn_acl.code_hash import code_hash as hash_of
from sklearn_acl.criterion import ACLLoss


def typed(source, name="A", module="__main__", **known):
    """What a prompt or a notebook defines: in `__main__`, in no file."""
    namespace = {"__name__": module, "Callback": Callback, **known}
    exec(compile(source, "<stdin>", "exec"), namespace)
    return namespace[name]


# -- what was typed --------------------------------------------------------------------

CHANGES = {
    "body": ("class A:\n def f(s): return 1", "class A:\n def f(s): return 2"),
    "type of a constant": (
        "class A:\n def f(s): return 1",
        "class A:\n def f(s): return 1.0",
    ),
    "sign of zero": (
        "class A:\n def f(s): return 0.0",
        "class A:\n def f(s): return -0.0",
    ),
    "name called": (
        "class A:\n def f(s): return s.a()",
        "class A:\n def f(s): return s.b()",
    ),
    "operator": (
        "class A:\n def f(s, x): return s + x",
        "class A:\n def f(s, x): return s - x",
    ),
    "default": ("class A:\n def f(s, a=1): pass", "class A:\n def f(s, a=2): pass"),
    "keyword default": (
        "class A:\n def f(s, *, a=1): pass",
        "class A:\n def f(s, *, a=2): pass",
    ),
    "name of an argument": (
        "class A:\n def f(s, a): pass",
        "class A:\n def f(s, b): pass",
    ),
    "set of constants": (
        "class A:\n def f(s, x): return x in {'a', 'b'}",
        "class A:\n def f(s, x): return x in {'a', 'c'}",
    ),
    "inner function": (
        "class A:\n def f(s): return lambda: [i for i in (1, 2)]",
        "class A:\n def f(s): return lambda: [i for i in (1, 3)]",
    ),
    "what is caught": (
        "class A:\n def f(s):\n  try: s()\n  except OSError: pass",
        "class A:\n def f(s):\n  try: s()\n  except ValueError: pass",
    ),
    "attribute": ("class A: patience = 1", "class A: patience = 2"),
    "attribute that is an array": (
        "import numpy as np\nclass A: at = np.array([1, 2])",
        "import numpy as np\nclass A: at = np.array([1, 3])",
    ),
    "static method": (
        "class A:\n @staticmethod\n def f(): return 1",
        "class A:\n @staticmethod\n def f(): return 2",
    ),
    "class method": (
        "class A:\n @classmethod\n def __class_getitem__(c, i): return 1",
        "class A:\n @classmethod\n def __class_getitem__(c, i): return 2",
    ),
    "kind of method": (
        "class A:\n @staticmethod\n def f(a): return 1",
        "class A:\n @classmethod\n def f(a): return 1",
    ),
    "getter": (
        "class A:\n @property\n def f(s): return 1",
        "class A:\n @property\n def f(s): return 2",
    ),
    "setter": (
        "class A:\n f = property(None, lambda s, v: v)",
        "class A:\n f = property(None, lambda s, v: -v)",
    ),
    "cached property": (
        "import functools\nclass A:\n @functools.cached_property\n def f(s): return 1",
        "import functools\nclass A:\n @functools.cached_property\n def f(s): return 2",
    ),
    "cached method": (
        "import functools\nclass A:\n @functools.lru_cache\n def f(s): return 1",
        "import functools\nclass A:\n @functools.lru_cache\n def f(s): return 2",
    ),
    "attribute that is a lambda": (
        "class A: f = lambda s: 1",
        "class A: f = lambda s: 2",
    ),
    "class inside": ("class A:\n class B: a = 1", "class A:\n class B: a = 2"),
    "base": (
        "class B:\n def f(s): return 1\nclass A(B): pass",
        "class B:\n def f(s): return 2\nclass A(B): pass",
    ),
    "base of a base": (
        "class C: a = 1\nclass B(C): pass\nclass A(B): pass",
        "class C: a = 2\nclass B(C): pass\nclass A(B): pass",
    ),
    "which base": (
        "class B: pass\nclass A(B, Callback): pass",
        "class B: pass\nclass A(Callback, B): pass",
    ),
    "metaclass": (
        "class M(type):\n def f(c): return 1\nclass A(metaclass=M): pass",
        "class M(type):\n def f(c): return 2\nclass A(metaclass=M): pass",
    ),
    "closure": (
        "def deco(n):\n def g(s): return n\n return g\nclass A: f = deco(1)",
        "def deco(n):\n def g(s): return n\n return g\nclass A: f = deco(2)",
    ),
    "what a wrapper is around": (
        "class A:\n @deco\n def f(s): return 1",
        "class A:\n @deco\n def f(s): return 2",
    ),
    "new method": ("class A: pass", "class A:\n def f(s): pass"),
    "function": ("def A(x): return x", "def A(x): return -x"),
    "default of a function": ("def A(x=1): return x", "def A(x=2): return x"),
    "a member of an enum": (
        "import enum\nclass A(enum.Enum): a = 1",
        "import enum\nclass A(enum.Enum): a = 2",
    ),
    "a field": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n a: int = 1",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n a: int = 2",
    ),
    "an abstract method": (
        "import abc\nclass A(abc.ABC):\n @abc.abstractmethod\n def f(s): return 1",
        "import abc\nclass A(abc.ABC):\n @abc.abstractmethod\n def f(s): return 2",
    ),
    "super": (
        "class A:\n def f(s): return super().f() + 1",
        "class A:\n def f(s): return super().f() + 2",
    ),
    "slots": ("class A: __slots__ = ('a',)", "class A: __slots__ = ('b',)"),
}
# that of an installed library, which has no wraps
DECO = typed("def deco(f):\n def g(s): return f(s)\n return g", "deco", "torch.optim")


@pytest.mark.parametrize("change", CHANGES)
def test_another_hash_for_code_that_does_something_else(change):
    old, new = (typed(source, deco=DECO) for source in CHANGES[change])
    again = typed("# moved down\n\n" + CHANGES[change][0], deco=DECO)
    assert hash_of(old) == hash_of(old) == hash_of(again)
    assert hash_of(old) != hash_of(new)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda code: code(),
        lambda code: [code],
        lambda code: ("name", code()),
        lambda code: partial(code, 1),
        lambda code: {"a": {"b": code}},
        lambda code: EpochScoring(code),
        lambda code: code().f,
    ],
    ids="instance list pair partial dict attribute method".split(),
)
def test_code_counts_wherever_it_is_in_a_value(wrap):
    old, new = map(typed, CHANGES["body"])
    assert hash_of(wrap(old)) != hash_of(wrap(new))
    assert hash_of(wrap(old)) == hash_of(wrap(typed(CHANGES["body"][0])))


def test_values_count_beside_the_code():
    cls = typed("class A:\n def __init__(s, n): s.n = n")
    assert hash_of(cls(1)) == hash_of(cls(1)) != hash_of(cls(2))
    assert hash_of(np.arange(3)) != hash_of(np.arange(4))


def test_a_name_counts_beside_the_code():
    first, second = typed("class A: pass"), typed("class B: pass", "B")
    assert hash_of(first) != hash_of(second)


def test_running_code_does_not_change_its_hash():
    function = typed("def A(n):\n a = 0\n for i in range(n): a += i\n return a")
    before = hash_of(function)
    function(10_000)  # the interpreter rewrites what runs often
    assert hash_of(function) == before


@pytest.mark.parametrize("base", [Callback, ACLLoss, ACLClassifier, torch.nn.Linear])
def test_classes_derived_from_those_of_libraries(base):
    """scikit-learn wraps methods of subclasses, torch annotates modules."""
    source = (
        "class A(B):\n def fit(s, X, y=None): return {}\n def transform(s, X): pass"
    )
    first, again, other = (typed(source.format(n), B=base) for n in (1, 1, 2))
    assert hash_of(first) == hash_of(again) != hash_of(other)


@pytest.mark.parametrize("in_file", [True, False])
def test_use_of_a_class_does_not_change_its_hash(write, in_file):
    source = "class A:\n    def f(self):\n        return 1\n"
    write(own_used=source)
    cls = write.load("own_used").A if in_file else typed(source)
    before = hash_of(cls)
    copy.copy(cls())  # notes names in the class
    assert "__slotnames__" in vars(cls)
    assert hash_of(cls) == before


SHARED = """
class B:
    def g(self): return {"a", "b"}, (1, 2), ("x", None)
class A(B):
    a, b = (1, 2), None
    def f(self, x=(1, 2)): return super().g() if x in {"a", "b", "c", "d"} else 0.5
    @property
    def p(self): return [y for y in {1, "e", None, 2.5}]
"""

READ = """
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("code_hash", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.code_hash(pickle.loads(bytes.fromhex(sys.argv[2]))))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_hash_in_every_process(seed):
    """Strings have other hashes there, and workers get classes of `__main__` so."""
    value = [typed(SHARED)]
    # as joblib sends it
    sent = pickle.dumps(joblib.wrap_non_picklable_objects(value, keep_wrapper=False))
    done = subprocess.run(
        [sys.executable, "-c", READ, code_hash.__file__, sent.hex()],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == hash_of(value), done.stderr


@pytest.mark.parametrize(
    "source",
    [
        "class A: lock = Lock()",
        "class A:\n def f(s, lock=Lock()): pass",
        "def A(lock=Lock()): pass",
        "def f(lock=Lock()): pass\nA = {'a': f}",
    ],
    ids=["attribute", "default of a method", "default", "in a dict"],
)
def test_what_no_hash_can_tell_is_refused(source):
    with pytest.raises(ValueError, match="cannot pickle '_thread.lock'"):
        hash_of(typed(source, Lock=threading.Lock))


def test_the_refusal_says_what_to_do(monkeypatch):
    cls = typed("class A:\n lock = Lock()", Lock=threading.Lock)
    # joblib finds it by its name
    monkeypatch.setattr(sys.modules["__main__"], "A", cls, raising=False)
    with pytest.raises(TypeError) as raised:
        fit_key._hash([cls()], "The parameter 'callbacks'")
    message = str(raised.value)
    assert message.startswith("The parameter 'callbacks' cannot be hashed")
    assert "(ValueError: cannot pickle '_thread.lock' object)" in message
    assert "classes and functions that a module defines" in message
    assert message.endswith("or pass memory=None.")


# -- what is in files ------------------------------------------------------------------


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules; returns a function that imports one anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()

    def write(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        names.update(sources)
        linecache.checkcache()

    def load(name):
        for known in names:
            sys.modules.pop(known, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    write.load = load
    yield write
    for name in names:
        sys.modules.pop(name, None)


OWN = (
    "from own_base import Base\n\n\nclass Own(Base):\n    def f(self):\n        pass\n"
)
BASE = "class Base:\n    def g(self):\n        return {}\n"


@pytest.mark.parametrize("path", ["own_base", "own_child"])
def test_a_class_counts_with_its_bases_in_other_modules(write, path):
    sources = {"own_base": BASE.format(1), "own_child": OWN}
    changed = {"own_base": BASE.format(2), "own_child": OWN.replace("pass", "return")}
    write(**sources)
    first = hash_of(write.load("own_child").Own())
    assert hash_of(write.load("own_child").Own()) == first
    write(**{path: changed[path]})
    assert hash_of(write.load("own_child").Own()) != first
    write(**sources)
    assert hash_of(write.load("own_child").Own()) == first


@pytest.mark.parametrize("name", ["method", "function"])
def test_a_file_that_was_edited_but_not_imported_again(write, name):
    """The old code runs: its fit must not be found when the new code does."""
    source = "class A:\n    def f(self):\n        return {0}\n\n\n"
    source += "def b():\n    return {0}\n"

    def get(module):
        return module.A if name == "method" else module.b

    write(own_edited=source.format(1))
    code = get(write.load("own_edited"))
    hash_of(code)
    write(own_edited=source.format(22))
    assert hash_of(code) != hash_of(get(write.load("own_edited")))


def test_a_file_that_is_no_longer_valid(write):
    write(own_broken="class A:\n    a = 1\n")
    cls = write.load("own_broken").A
    write(own_broken="class A(:\n")
    assert hash_of(cls)


def test_in_a_file_a_class_may_hold_what_pickle_cannot_store(write):
    source = "import threading\n\n\nclass A:\n    lock = threading.{}()\n"
    write(own_lock=source.format("Lock"))
    first = hash_of(write.load("own_lock").A)
    write(own_lock=source.format("RLock"))
    assert hash_of(write.load("own_lock").A) != first


@pytest.mark.parametrize(
    "value",
    [EarlyStopping(), EarlyStopping, ACLLoss, LogisticRegression(), np.mean, len, dict],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_code_with_a_version_is_known_by_its_name(value):
    assert hash_of(value) == joblib.hash(value)


def test_a_project_may_lie_below_the_prefix():
    """As in /usr/src/app with the Python of /usr."""
    folders = code_hash._folders_with_a_version()
    assert Path(sysconfig.get_path("data")).resolve() not in folders
    assert Path(torch.__file__).resolve().parents[1] in folders
