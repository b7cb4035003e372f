"""Hash of a value with the user's own code in it, which pickle knows by name only."""

import functools
import inspect
import site
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path

from joblib.hashing import NumpyHasher

# What a function does, without where it stands: no file, no lines, no positions.
_CODE_PARTS = (
    "co_code",
    "co_exceptiontable",
    "co_consts",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
)
_LRU_CACHE = type(functools.lru_cache(len))
_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def code_hash(value):
    """Hash of a value and of the code of the user's classes and functions in it.

    A class or function counts with its source text and its compiled code; where there
    is no text, as for what was typed at a prompt, with its default values, closure and
    attributes in place of it. A class counts with those of its bases that are the
    user's. What they call elsewhere is not looked at. Code of this package and of
    installed ones, which have a version, counts with its name.

    Parameters
    ----------
    value : object

    Returns
    -------
    hash : str
        The same in every process of one version of Python.

    Raises
    ------
    ValueError
        If there is something in it that pickle cannot store, such as a lock.
    """
    return _CodeHasher().hash(value)


class _CodeHasher(NumpyHasher):
    """joblib's hasher, which sees more than the names of the user's own code."""

    def save(self, obj):
        try:
            super().save(obj)
        except TypeError as error:
            # joblib takes it for keys that have no order, and would go on without obj
            raise ValueError(str(error)) from error

    def reducer_override(self, obj):
        inner = _wrapped(obj)
        if inner is not None:
            return str, (type(obj).__name__,), inner
        if isinstance(obj, types.ModuleType):
            return str, (obj.__name__,)
        if isinstance(obj, (type, types.FunctionType)) and _is_own(obj):
            # as a state, which may lead back to the object itself
            return str, (f"{obj.__module__}.{obj.__qualname__}",), _definition(obj)
        return NotImplemented


# -- whose code it is ----------------------------------------------------------------


def _is_own(code):
    """Whether a class or function is the user's, or holds what may be."""
    if _is_local(code):  # such as what an installed decorator returns
        return True
    name = code.__module__ or ""
    # in a worker process, the file of __main__ is another one
    module = None if name == "__main__" else sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path is None:
        return name.partition(".")[0] not in sys.stdlib_module_names
    path = Path(path).resolve()
    return not any(path.is_relative_to(folder) for folder in _folders_with_a_version())


def _is_local(code):
    return "<" in code.__qualname__  # made in a function, or a lambda


@cache
def _folders_with_a_version():
    # not the prefix: projects may lie below it, as below /usr
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {*map(sysconfig.get_path, names), *site.getsitepackages()}
    folders |= {site.getusersitepackages(), str(Path(__file__).parent)}
    return [Path(folder).resolve() for folder in folders]


# -- what it is ----------------------------------------------------------------------


def _definition(code):
    """All that tells a class or function from others of its name."""
    text = _source(code)
    if not isinstance(code, type):
        if text is not None:
            return [text, _compiled(inspect.unwrap(code)), _compiled(code)]
        cells = [_content(cell) for cell in code.__closure__ or ()]
        values = [list(code.__defaults__ or ()), code.__kwdefaults__, cells]
        return [_compiled(code), *values]
    kinds = [type(code), *code.__bases__]
    if text is None:
        return [_attributes(code), kinds]
    return [text, _compiled_methods(code), kinds]


def _source(code):
    """Source text, or None if it cannot be found or may be that of something else.

    The text of what a function made says nothing of the values it was made with, and
    the file of `__main__` nothing of what was typed at a prompt later.
    """
    if code.__module__ == "__main__" or _is_local(code):
        return None
    try:
        return inspect.getsource(code)
    except Exception:  # in no file, or in one that is no longer valid
        return None


def _attributes(cls):
    """What a class statement made, without what Python puts there, now or later."""
    return {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, _METHODS)
        or not (name == "_abc_impl" or name.startswith("__") and name.endswith("__"))
    }


def _compiled_methods(cls):
    """Compiled code by name: a file may have been edited since it was imported."""
    return {
        name: [_compiled(inner) for inner in _wrapped(value) or [value]]
        for name, value in _attributes(cls).items()
    }


def _compiled(value):
    is_function = isinstance(value, types.FunctionType)
    return _described(value.__code__ if is_function else None)


def _wrapped(obj):
    """What is in an object around methods, which pickle cannot store; else None."""
    if isinstance(obj, property):
        return [obj.fget, obj.fset, obj.fdel]
    if isinstance(obj, functools.cached_property):
        return [obj.func]
    if isinstance(obj, (staticmethod, classmethod, _LRU_CACHE)):
        return [obj.__wrapped__]
    return None


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def _described(constant):
    """Text of compiled code, and of constants in it, that is the same everywhere."""
    if isinstance(constant, types.CodeType):
        return _described(tuple(getattr(constant, part) for part in _CODE_PARTS))
    if isinstance(constant, tuple):
        return f"({', '.join(map(_described, constant))})"
    if isinstance(constant, frozenset):  # in an order of its own in every process
        return f"{{{', '.join(sorted(map(_described, constant)))}}}"
    return repr(constant)
