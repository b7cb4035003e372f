"""`ExitTradeoffDisplay`: score against cost where texts leave at exits of their own."""

import numpy as np

from .display_input import (
    check_exit_probabilities,
    check_layers,
    classifier_with_exits,
    labels_of,
)
from .exit_tradeoff import (
    COST_LABELS,
    setting_in_use,
    tradeoff_of_rules,
    tradeoff_of_tuner,
    with_measured_times,
)
from .plotting import (
    GREY,
    as_list,
    as_names,
    axes_for,
    curve_style,
    number_layers,
    require_matplotlib,
    tidy,
)


class ExitTradeoffDisplay:
    """Score against cost where each text leaves at an exit of its own.

    A curve runs along the thresholds of an exit rule; each exit for all texts is a
    marker beside it. Use `from_estimator`, `from_predictions` or, after tuning,
    `from_tuned` to make one.

    Parameters
    ----------
    costs : list of array-like of shape (n_thresholds,)
        Per curve, the cost at each threshold.
    scores : list of array-like of shape (n_thresholds,)
        Per curve, the score there.
    thresholds : list of array-like of shape (n_thresholds,), default=None
        Per curve, the thresholds.
    certified : list of array-like of shape (n_thresholds,), default=None
        Per curve, whether the threshold was certified: filled markers.
    names : list of str, default=None
        Per curve, its label.
    exit_costs, exit_scores : array-like of shape (n_exits,), default=None
        Cost and score of one exit for all texts.
    exit_layers : array-like of shape (n_exits,), default=None
        Layers of these exits, to be written beside their markers.
    chosen : tuple of (float, float), default=None
        Cost and score of the setting in use, marked by a star.
    full_depth : float, default=None
        Score at full depth: a dotted line.
    floor : float, default=None
        Score that tuning must not fall below: a dashed line.
    floor_name : str, default="floor"
        Label of that line.
    cost_name : str, default="Average exit layer"
        Label of the x axis.
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
    exits_, chosen_, full_depth_, floor_ : matplotlib.lines.Line2D or None
        The exits' markers, the star and both reference lines; None if not drawn.

    See Also
    --------
    LayerScoreDisplay : Score of one exit for all texts.

    Examples
    --------
    >>> from sklearn_acl.displays import ExitTradeoffDisplay
    >>> display = ExitTradeoffDisplay(
    ...     costs=[[1.0, 2.1, 4.0]], scores=[[0.70, 0.84, 0.86]], names=["confidence"],
    ...     full_depth=0.86,
    ... )
    >>> display.plot().ax_.get_xlabel()  # doctest: +SKIP
    'Average exit layer'
    """

    def __init__(
        self,
        *,
        costs,
        scores,
        thresholds=None,
        certified=None,
        names=None,
        exit_costs=None,
        exit_scores=None,
        exit_layers=None,
        chosen=None,
        full_depth=None,
        floor=None,
        floor_name="floor",
        cost_name="Average exit layer",
        score_name="Score",
    ):
        self.costs = costs
        self.scores = scores
        self.thresholds = thresholds
        self.certified = certified
        self.names = names
        self.exit_costs = exit_costs
        self.exit_scores = exit_scores
        self.exit_layers = exit_layers
        self.chosen = chosen
        self.full_depth = full_depth
        self.floor = floor
        self.floor_name = floor_name
        self.cost_name = cost_name
        self.score_name = score_name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        rule=None,
        patience=None,
        thresholds=None,
        cost="layers",
        scoring=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Follow exit rules along their thresholds on texts, and plot.

        A star marks what the classifier itself is set to, by `exit_layer`,
        `exit_threshold` and their kin, if that is not full depth.

        Parameters
        ----------
        estimator : ACLClassifier or TunedExitClassifierCV
            Fitted, with at least two exits; all of them take part.
        X : array-like
            Texts that the classifier was not trained on.
        y : array-like of shape (n_samples,) or str
            Their labels, or the name of their column in X.
        rule : str, callable or list, default=None
            As `exit_rule` of `ACLClassifier`; a list draws a curve for each. None takes
            the classifier's own.
        patience : int, default=None
            As `exit_patience` of `ACLClassifier`; None takes the classifier's own.
        thresholds : int, array-like or dict, default=None
            Values of the threshold, for every rule, or a dict from rule to such. An
            integer spreads so many over the values that a built-in rule compares on
            these texts; None means 20. Those of a function must be listed.
        cost : {"layers", "time"}, default="layers"
            Average exit layer, or measured time of `predict` per text: the median of
            three runs over up to 128 of the texts at each setting, which takes a while.
        scoring : str, callable or None, default=None
            As in `sklearn.metrics.check_scoring`; None is accuracy. A callable
            ``scorer(estimator, X, y)`` sees an estimator with `predict`,
            `predict_proba` and `classes_`.
        name : str or list of str, default=None
            Label per curve; None takes the rules' names.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for every curve.

        Returns
        -------
        display : ExitTradeoffDisplay

        Raises
        ------
        TypeError
            For an estimator without `predict_proba_exits`.
        ValueError
            For a single exit, or a rule, cost or thresholds that cannot be used.
        """
        require_matplotlib(f"{cls.__name__}.from_estimator")
        if cost not in ("layers", "time"):
            raise ValueError(f"cost={cost!r} must be 'layers' or 'time'.")
        clf = classifier_with_exits(estimator)
        y = labels_of(X, y)
        proba = clf.predict_proba_exits(X)
        rules = as_list(clf.exit_rule if rule is None else rule)
        patience = clf.exit_patience if patience is None else patience
        arguments = tradeoff_of_rules(
            *(y, proba, clf.classes_, clf.exit_layer_numbers_),
            rules=rules,
            patience=patience,
            thresholds=thresholds,
            scoring=scoring,
            X=X,
        )
        arguments["chosen"] = setting_in_use(clf, y, proba, scoring, X)
        if cost == "time":
            arguments = with_measured_times(arguments, clf, X, rules, patience)
        return cls._plotted(arguments, name, ax, kwargs)

    @classmethod
    def from_predictions(
        cls,
        y_true,
        proba_exits,
        *,
        classes=None,
        layers=None,
        rule="confidence",
        patience=2,
        thresholds=None,
        scoring=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Follow exit rules along their thresholds on probabilities, and plot.

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
        rule : str, callable or list, default="confidence"
            As in `from_estimator`.
        patience : int, default=2
            As `exit_patience` of `ACLClassifier`.
        thresholds, scoring, name, ax, **kwargs
            As in `from_estimator`.

        Returns
        -------
        display : ExitTradeoffDisplay

        Raises
        ------
        ValueError
            If shapes do not belong together, and as `from_estimator` does.
        """
        require_matplotlib(f"{cls.__name__}.from_predictions")
        proba, classes = check_exit_probabilities(proba_exits, y_true, classes)
        arguments = tradeoff_of_rules(
            *(y_true, proba, classes, check_layers(proba, layers)),
            rules=as_list(rule),
            patience=patience,
            thresholds=thresholds,
            scoring=scoring,
        )
        return cls._plotted(arguments, name, ax, kwargs)

    @classmethod
    def from_tuned(cls, estimator, *, quality="score", name=None, ax=None, **kwargs):
        """Draw what a `TunedExitClassifierCV` saw on its calibration texts.

        The star is the setting that it chose. Filled markers are certified, where it
        gives a guarantee. With ``objective="speed"`` a dashed line is the limit set by
        `max_drop`.

        Parameters
        ----------
        estimator : TunedExitClassifierCV
            Fitted with ``store_cv_results=True``.
        quality : {"score", "risk"}, default="score"
            What the y axis shows: the score, with `max_drop` below that of full depth
            as the limit, or the risk that tuning bounds, with `max_drop` itself. After
            a calibration without labels there is only the latter.
        name : str or list of str, default=None
            Label per rule, in their order in `rules`; None takes their names.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for every curve.

        Returns
        -------
        display : ExitTradeoffDisplay

        Raises
        ------
        ValueError
            If it has no ``cv_results_``, or no scores where they are to be drawn.
        """
        require_matplotlib(f"{cls.__name__}.from_tuned")
        if quality not in ("score", "risk"):
            raise ValueError(f"quality={quality!r} must be 'score' or 'risk'.")
        arguments = tradeoff_of_tuner(estimator, quality)
        return cls._plotted(arguments, name, ax, {"markersize": 4} | kwargs)

    @classmethod
    def _plotted(cls, arguments, name, ax, style):
        if name is not None:
            arguments["names"] = as_names(name, len(arguments["costs"]), "")
        return cls(**arguments).plot(ax=ax, **style)

    def plot(self, ax=None, *, name=None, **kwargs):
        """Draw curves, markers and reference lines.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        name : str or list of str, default=None
            Label per curve; None takes `names`.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for every curve.

        Returns
        -------
        self
        """
        self.ax_, first = axes_for(self, ax)
        self.figure_ = self.ax_.figure
        names = self.names if name is None else as_names(name, len(self.scores), "")
        self._draw_references()
        self.lines_ = []
        for i, (cost, score) in enumerate(zip(self.costs, self.scores, strict=True)):
            label = names and names[i]
            style = curve_style(first + i, {"label": label} | kwargs)
            hollow = self.certified is not None
            fill = {"markerfacecolor": "white"} if hollow else {}
            self.lines_ += self.ax_.plot(cost, score, **(fill | style))
            if hollow:
                self._fill_certified(i, style)
        if self.certified is not None:  # an entry of the legend for all rules
            self.ax_.plot([], [], "o", color=GREY, label="filled: certified")
        self._draw_chosen()
        self.ax_.set(xlabel=self.cost_name, ylabel=self.score_name)
        if self.cost_name == COST_LABELS["layers"]:
            number_layers(self.ax_)
        tidy(self.ax_)
        return self

    def _draw_references(self):
        self.full_depth_ = self._reference(self.full_depth, "full depth", ":")
        self.floor_ = self._reference(self.floor, self.floor_name, "--")
        self.exits_ = None
        if self.exit_costs is None:
            return
        (self.exits_,) = self.ax_.plot(
            *(self.exit_costs, self.exit_scores, "x"),
            color=GREY,
            markersize=8,
            markeredgewidth=2,
            label="one exit for all texts",
        )
        if self.exit_layers is None:
            return
        beside = {"xytext": (5, -5), "textcoords": "offset points", "va": "top"}
        places = zip(self.exit_costs, self.exit_scores, strict=True)
        for layer, place in zip(self.exit_layers, places, strict=True):
            self.ax_.annotate(f"{layer:g}", place, color=GREY, **beside)

    def _reference(self, height, label, dashes):
        if height is None:
            return None
        return self.ax_.axhline(height, color=GREY, linestyle=dashes, label=label)

    def _fill_certified(self, i, style):
        rows = np.asarray(self.certified[i], dtype=bool)
        style = style | {"linestyle": "", "gid": "certified", "label": None}
        x, y = np.asarray(self.costs[i])[rows], np.asarray(self.scores[i])[rows]
        self.ax_.plot(x, y, **style)

    def _draw_chosen(self):
        self.chosen_ = None
        if self.chosen is not None:
            (self.chosen_,) = self.ax_.plot(
                *self.chosen,
                marker="*",
                linestyle="",
                markersize=17,
                markerfacecolor="#F0E442",
                markeredgecolor="black",
                zorder=4,
                label="setting in use",
            )
