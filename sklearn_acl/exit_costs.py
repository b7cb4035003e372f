"""What it costs to take a text to an exit: layers, FLOPs or measured time."""

import numpy as np
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _num_samples

from .containers import dataset_of, is_from
from .prediction_time import prediction_times
from .shared_weights import sharing_weights

#: Most texts of a measurement of time.
_TIMED_TEXTS = 128


def take_rows(values, rows):
    """Rows of texts or labels in any container, as a container of that kind.

    Parameters
    ----------
    values : array-like, DataFrame, datasets.Dataset or a column of one
    rows : ndarray of int
    """
    dataset, names = dataset_of(values, None)
    if dataset is None:
        (values,) = indexable(values)  # an array of what only numpy can read
        if _is_pandas_array(values):
            return values.take(rows)
        return _safe_indexing(values, rows)
    part = dataset.select(rows)
    return part if names is None else part[names[0]]


def _is_pandas_array(values):
    """Whether this is what `values` of a pandas Series may be, or an Index."""
    return is_from(values, "pandas", "Index") or is_from(
        values, "pandas.api.extensions", "ExtensionArray"
    )


def exit_costs(cost, estimator, X, layers):
    """Cost of taking each text to each exit.

    Parameters
    ----------
    cost : {"layers", "flops", "time"} or callable
        A function gets the number of a layer and the texts, and returns the cost of
        running them up to it: a number, or one per text.
    estimator : ACLClassifier
        Fitted; not changed.
    X : array-like of n_samples texts
    layers : sequence of int
        Layers of the exits, ascending.

    Returns
    -------
    costs : ndarray of shape (n_exits, n_samples)
        Layers, FLOPs or seconds per text.
    """
    n_samples = _num_samples(X)
    if cost == "layers":
        rows = layers
    elif cost == "flops":
        rows = _flops(estimator, X, layers)
    elif cost == "time":
        rows = _seconds(estimator, X, layers)
    else:
        rows = [_checked(cost(layer, X), layer, n_samples) for layer in layers]
    return np.stack([np.broadcast_to(row, n_samples) for row in rows]).astype(float)


def _checked(values, layer, n_samples):
    values = np.asarray(values)
    is_number = values.dtype.kind in "iuf" and np.isfinite(values).all()
    if not is_number or values.shape not in ((), (n_samples,)):
        raise ValueError(
            f"cost(layer={layer}, X) must return a finite number, or one for each of "
            f"the {n_samples} texts; got {values!r:.60}."
        )
    return values


def seconds_per_text(estimator, X, settings):
    """Measured time of `predict` with each of several settings of the exits.

    Parameters
    ----------
    estimator : ACLClassifier
        Fitted; not changed.
    X : array-like
        Texts, of which up to 128 are run, spread evenly.
    settings : list of dict
        Exit parameters.

    Returns
    -------
    seconds : ndarray of shape (n_settings,)
    """
    n_samples = _num_samples(X)
    rows = np.linspace(0, n_samples - 1, min(n_samples, _TIMED_TEXTS)).astype(int)
    twins = [sharing_weights(estimator).set_params(**values) for values in settings]
    return prediction_times(twins, take_rows(X, rows))


def _seconds(estimator, X, layers):
    """Seconds per text of predicting by each exit alone."""
    settings = [{"exit_layer": layer, "exit_threshold": None} for layer in layers]
    return seconds_per_text(estimator, X, settings)


def _flops(estimator, X, layers):
    """FLOPs of the matrix products in the layers up to each exit, for each text.

    A multiplication and an addition are two. Of a layer, the linear maps and the two
    products of attention over all tokens are counted; embeddings, norms, exits and
    products with relative positions (DeBERTa) are not.
    """
    from torch import nn

    from .encoder import accepted_inputs
    from .families import family_of
    from .text import check_texts
    from .tokens import tokenize

    if not hasattr(estimator, "module_"):
        raise ValueError(
            f"cost='flops' reads the layers of an ACLClassifier, which a "
            f"{type(estimator).__name__} does not have; pass a function as cost=."
        )
    backbone = estimator.module_.backbone
    texts = check_texts(
        X, columns=estimator.text_columns_, n_columns=estimator.n_text_columns_
    )
    accepted = accepted_inputs(backbone)
    tokenizer, limit = estimator.tokenizer_, estimator.max_length_
    tokens = tokenize(texts, tokenizer, max_length=limit, accepted=accepted)
    lengths = tokens.lengths.astype(float)

    family = family_of(backbone.config)
    modules = family.layer_modules(backbone)
    attention = 4 * lengths**2 * backbone.config.hidden_size
    of_layers = []
    for layer in range(1, layers[-1] + 1):
        parts = modules[family.module_index(backbone, layer)].modules()
        n_weights = sum(m.weight.numel() for m in parts if isinstance(m, nn.Linear))
        of_layers.append(2 * n_weights * lengths + attention)
    return np.cumsum(of_layers, axis=0)[np.array(layers) - 1]
