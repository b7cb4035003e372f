"""`memory=`: a fit that was made before is loaded instead of repeated.

An entry is the state of a fitted classifier without its parameters, in joblib's folder:
``<location>/joblib/sklearn_acl/<key>/output.pkl``, where `Memory.clear` and
`Memory.reduce_size` find it. One process at a time trains an entry; the others wait for
it and load what it has written.
"""

import sys
import warnings
from contextlib import ExitStack

from .fit_key import fit_key
from .memory_store import Entry, store_folder
from .persistence import pickled_state, restore_state
from .user_code import stacklevel

#: Names of the parts of a network, which skorch collects while it builds them.
_REGISTERED_BY_SKORCH = ("_criteria", "_modules", "_optimizers")


class remembered_fit:  # noqa: N801, used like a function
    """Context of a fit: it is loaded, or what happens inside is kept.

    Parameters
    ----------
    net : ACLClassifier
        With checked parameters and the seed of this fit in `seed_`.
    data, valid : object
        Checked training data and validation data or None; see `fit_key`.
    warm : bool, default=False
        Whether the fit goes on from the fitted classifier. Such a fit is neither
        loaded nor kept, and neither is one with ``random_state=None``.

    Notes
    -----
    Entering gives True if the classifier is fitted already. Otherwise the caller trains
    it inside, while other processes wait that want the same fit. It is kept unless an
    error or the user interrupts it. A context and no function that calls the training,
    so that warnings of the training point to the same line with `memory` as without.
    """

    def __init__(self, net, data, valid, *, warm=False):
        self._net = net
        self._data = data
        self._valid = valid
        self._warm = warm
        self._entry = None  # the one to write
        self._lock = ExitStack()

    def __enter__(self):
        net = self._net
        folder = store_folder(net.memory)
        if folder is None or self._warm or net.random_state is None:
            return False
        entry = Entry(folder / fit_key(net, self._data, self._valid))
        if self._load(entry) is None:
            return True
        try:
            self._lock.enter_context(entry.lock())
        except OSError as error:
            self._warn(entry, "cannot be locked; this fit is not kept", error)
            return False
        with ExitStack() as on_error:
            on_error.push(self._lock)
            # another process may have written it meanwhile
            damage = self._load(entry)
            if damage is None:
                return True
            if not isinstance(damage, FileNotFoundError):
                self._warn(entry, "is damaged; the fit is repeated", damage)
            on_error.pop_all()
        self._entry = entry
        return False

    def __exit__(self, kind, error, traceback):
        with self._lock:
            interrupted = getattr(self._net, "interrupted_", False)
            if self._entry is None or kind is not None or interrupted:
                return
            try:
                self._entry.write(_fitted_state(self._net))
            except Exception as failure:  # a full disk, or what pickle cannot store
                text = "could not be written; the classifier is fitted all the same"
                self._warn(self._entry, text, failure)

    def _load(self, entry):
        """Fit the classifier from an entry; return the error if that cannot be."""
        before = dict(vars(self._net))
        try:
            state = entry.read()
            _replace_fitted(self._net, state)
        except Exception as error:
            _set_vars(self._net, before)
            return error
        self._net.classes_inferred_ = self._data.classes
        self._net.text_columns_ = self._data.texts.column_names
        try:
            self._net._check_inference_parameters()
        except (TypeError, ValueError):
            _set_vars(self._net, before)
            raise
        if self._net.verbose and sys.stdout is not None:
            when = f"{entry.written:%Y-%m-%d %H:%M:%S}"
            print(f"Loaded the fit of {when}, nothing was trained: {entry.path}")
        self._net.warn_if_diverged()
        return None

    @staticmethod
    def _warn(entry, text, error):
        warnings.warn(
            f"The entry {str(entry.path)!r} of memory= {text}. "
            f"({type(error).__name__}: {error})",
            UserWarning,
            stacklevel=stacklevel(),
        )


# -- what an entry holds -------------------------------------------------------------


def _fitted_state(net):
    """What a fit sets; not parameters, nor what others keep in a classifier."""
    return {k: v for k, v in pickled_state(net).items() if _is_fitted(net, k)}


def _replace_fitted(net, state):
    """Give a classifier a fitted state; nothing of an earlier fit remains."""
    for name in [name for name in vars(net) if _is_fitted(net, name)]:
        del vars(net)[name]
    restore_state(net, state)


def _is_fitted(net, name):
    if name in _REGISTERED_BY_SKORCH:
        return True
    # private names are scikit-learn's (output, routing, callbacks) or a subclass's
    return name[0] != "_" and name[-1] == "_" and name not in net.get_params(deep=False)


def _set_vars(net, values):
    vars(net).clear()
    vars(net).update(values)
