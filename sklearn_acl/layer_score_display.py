"""`LayerScoreDisplay`: the score of every exit."""

import numpy as np

from .display_input import (
    check_exit_probabilities,
    check_layers,
    classifier_with_exits,
    labels_of,
)
from .plotting import (
    as_list,
    as_names,
    axes_for,
    curve_style,
    number_layers,
    require_matplotlib,
    score_label,
    tidy,
)
from .probability_scores import score_probabilities


class LayerScoreDisplay:
    """Score of every exit, for one or several classifiers.

    Use `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    layers : list of array-like of shape (n_exits,)
        Per curve, the layers after which its exits sit.
    scores : list of array-like of shape (n_exits,) or (n_fits, n_exits)
        Per curve, the score of each exit; several rows are several fits of one method,
        drawn as their mean with a band.
    names : list of str, default=None
        Per curve, its label.
    score_name : str, default="Score"
        Label of the y axis.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        Axes with the curves.
    figure_ : matplotlib.figure.Figure
        Figure around them.
    lines_ : list of matplotlib.lines.Line2D
        The curves.
    bands_ : list of matplotlib.collections.PolyCollection or None
        Per curve, its band; None for a single fit.

    See Also
    --------
    ExitTradeoffDisplay : Score against layers run where each text chooses its exit.

    Examples
    --------
    >>> from sklearn_acl.displays import LayerScoreDisplay
    >>> display = LayerScoreDisplay(
    ...     layers=[[1, 2, 3]], scores=[[[0.70, 0.81, 0.84], [0.72, 0.80, 0.86]]],
    ...     names=["joint"], score_name="Accuracy",
    ... )
    >>> display.plot().ax_.get_xlabel()  # doctest: +SKIP
    'Layers run (exit)'
    """

    def __init__(self, *, layers, scores, names=None, score_name="Score"):
        self.layers = layers
        self.scores = scores
        self.names = names
        self.score_name = score_name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        scoring=None,
        name=None,
        band="range",
        ax=None,
        **kwargs,
    ):
        """Score every exit of fitted classifiers, from one pass each, and plot.

        Parameters
        ----------
        estimator : ACLClassifier, TunedExitClassifierCV or list
            A fitted classifier is one curve, over all of its exits. A list holds one
            entry per curve: a classifier, or a list of several fits of one method
            (over seeds, say).
        X : array-like
            Texts that the classifiers were not trained on.
        y : array-like of shape (n_samples,) or str
            Their labels, or the name of their column in X.
        scoring : str, callable or None, default=None
            As in `sklearn.metrics.check_scoring`; None is accuracy. A callable
            ``scorer(estimator, X, y)`` sees an estimator with `predict`,
            `predict_proba` and `classes_`.
        name : str or list of str, default=None
            Label per curve; None takes the name of the class.
        band : {"range", "std", None}, default="range"
            As in `plot`.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for every curve.

        Returns
        -------
        display : LayerScoreDisplay

        Raises
        ------
        TypeError
            For an estimator without `predict_proba_exits`.
        ValueError
            If fits of one curve have exits after different layers.
        """
        require_matplotlib(f"{cls.__name__}.from_estimator")
        y = labels_of(X, y)
        entries = [as_list(entry) for entry in as_list(estimator)]
        if not entries or not all(entries):
            raise ValueError("estimator must hold a fitted classifier for every curve.")
        curves = [[classifier_with_exits(fit) for fit in fits] for fits in entries]
        display = cls(
            layers=[_common_layers(fits) for fits in curves],
            scores=[_scores_of(fits, X, y, scoring) for fits in curves],
            names=as_names(name, len(curves), type(entries[0][0]).__name__),
            score_name=score_label(scoring),
        )
        return display.plot(ax=ax, band=band, **kwargs)

    @classmethod
    def from_predictions(
        cls,
        y_true,
        proba_exits,
        *,
        classes=None,
        layers=None,
        scoring=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Score every exit from probabilities, and plot.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True labels.
        proba_exits : array-like of shape (n_exits, n_samples, n_classes)
            As `ACLClassifier.predict_proba_exits` returns it.
        classes : array-like of shape (n_classes,), default=None
            Labels, in the order of the columns; None takes the sorted labels of
            `y_true`.
        layers : array-like of shape (n_exits,), default=None
            Layers after which the exits sit; None counts from 1.
        scoring, ax, **kwargs
            As in `from_estimator`.
        name : str, default=None
            Label of the curve.

        Returns
        -------
        display : LayerScoreDisplay

        Raises
        ------
        ValueError
            If shapes do not belong together.
        """
        require_matplotlib(f"{cls.__name__}.from_predictions")
        proba, classes = check_exit_probabilities(proba_exits, y_true, classes)
        display = cls(
            layers=[check_layers(proba, layers)],
            scores=[score_probabilities(y_true, proba, classes, scoring)],
            names=None if name is None else [name],
            score_name=score_label(scoring),
        )
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax=None, *, name=None, band="range", **kwargs):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        name : str or list of str, default=None
            Label per curve; None takes `names`.
        band : {"range", "std", None}, default="range"
            What is shaded around the mean of several fits: from the lowest to the
            highest score, or one sample standard deviation to either side.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for every curve.

        Returns
        -------
        self
        """
        if band not in ("range", "std", None):
            raise ValueError(f"band={band!r} must be 'range', 'std' or None.")
        self.ax_, first = axes_for(self, ax)
        self.figure_ = self.ax_.figure
        names = self.names if name is None else as_names(name, len(self.scores), "")
        self.lines_, self.bands_ = [], []
        for i, (layers, scores) in enumerate(
            zip(self.layers, self.scores, strict=True)
        ):
            scores = np.atleast_2d(scores)
            label = names and names[i] + _fits_in_words(len(scores), band)
            style = curve_style(first + i, {"label": label} | kwargs)
            self.lines_ += self.ax_.plot(layers, scores.mean(axis=0), **style)
            self.bands_.append(self._shade(self.lines_[-1], scores, band))
        self.ax_.set(xlabel="Layers run (exit)", ylabel=self.score_name)
        number_layers(self.ax_)
        tidy(self.ax_)
        return self

    def _shade(self, line, scores, band):
        if len(scores) == 1 or band is None:
            return None
        low, high = scores.min(axis=0), scores.max(axis=0)
        if band == "std":
            mean, std = scores.mean(axis=0), scores.std(axis=0, ddof=1)
            low, high = mean - std, mean + std
        return self.ax_.fill_between(
            line.get_xdata(), low, high, color=line.get_color(), alpha=0.2, linewidth=0
        )


def _scores_of(fits, X, y, scoring):
    """Scores (n_fits, n_exits) from one pass through each fit."""
    return np.array(
        [
            score_probabilities(y, fit.predict_proba_exits(X), fit.classes_, scoring, X)
            for fit in fits
        ]
    )


def _common_layers(fits):
    layers = {fit.exit_layer_numbers_ for fit in fits}
    if len(layers) > 1:
        raise ValueError(
            "Fits of one curve must have exits after the same layers, got "
            f"{sorted(layers)}; pass such fits as curves of their own."
        )
    return np.array(layers.pop())


def _fits_in_words(n_fits, band):
    if n_fits == 1:
        return ""
    band = {"range": ", lowest to highest", "std": " ± 1 std", None: ""}[band]
    return f" (mean of {n_fits} fits{band})"
