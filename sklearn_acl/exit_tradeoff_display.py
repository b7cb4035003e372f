"""`ExitTradeoffDisplay`: score against cost where texts leave at exits of their own."""

import numpy as np

from .exit_scores import (
    adaptive_exits,
    check_exit_probabilities,
    check_has_exits,
    check_layers,
    positions_in_use,
    score_probabilities,
    thresholds_along,
    time_settings,
)
from .plotting import (
    GREY,
    as_list,
    as_names,
    axes_for,
    curve_style,
    number_layers,
    require_matplotlib,
    score_label,
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
        rule="confidence",
        patience=2,
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
        y : array-like of shape (n_samples,)
            Their labels.
        rule : str, callable or list, default="confidence"
            As `exit_rule` of `ACLClassifier`; a list draws a curve for each.
        patience : int, default=2
            As `exit_patience` of `ACLClassifier`.
        thresholds : int or array-like, default=None
            Values of the threshold, for every rule. An integer spreads so many over the
            values that the built-in rules compare on these texts; None means 20.
        cost : {"layers", "time"}, default="layers"
            Average exit layer, or measured time of `predict` per text: the fastest of
            three runs at each setting, which takes a while.
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
        clf = check_has_exits(getattr(estimator, "estimator_", estimator))
        proba, classes = clf.predict_proba_exits(X), clf.classes_
        display = cls._computed(
            y,
            proba,
            classes,
            clf.exit_layer_numbers_,
            rule=rule,
            patience=patience,
            thresholds=thresholds,
            scoring=scoring,
            name=name,
            X=X,
        )
        positions = positions_in_use(clf, proba)
        if positions is not None:
            answers = proba[positions, np.arange(len(positions))]
            (score,) = score_probabilities(y, [answers], classes, scoring, X)
            layers = np.array(clf.exit_layer_numbers_)
            display.chosen = (float(layers[positions].mean()), float(score))
        if cost == "time":
            display._take_time(clf, X, as_list(rule), patience)
        return display.plot(ax=ax, **kwargs)

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
        rule, patience, thresholds, scoring, name, ax, **kwargs
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
        display = cls._computed(
            y_true,
            proba,
            classes,
            check_layers(proba, layers),
            rule=rule,
            patience=patience,
            thresholds=thresholds,
            scoring=scoring,
            name=name,
        )
        return display.plot(ax=ax, **kwargs)

    @classmethod
    def _computed(
        cls,
        y,
        proba,
        classes,
        layers,
        *,
        rule,
        patience,
        thresholds,
        scoring,
        name,
        X=None,
    ):
        """A display of average exit layers, not plotted yet."""
        if len(proba) < 2:
            raise ValueError(
                "A trade-off needs at least two exits; this model has one. Fit with "
                "strategy='joint'."
            )
        rules, layers = as_list(rule), np.asarray(layers)
        used, costs, scores = [], [], []
        for each in rules:
            along = thresholds_along(proba, each, patience, thresholds)
            positions, answers = adaptive_exits(proba, each, along, patience)
            used.append(along)
            costs.append(np.array([layers[at].mean() for at in positions]))
            scores.append(score_probabilities(y, answers, classes, scoring, X))
        exit_scores = score_probabilities(y, proba, classes, scoring, X)
        rule_names = [getattr(each, "__name__", str(each)) for each in rules]
        return cls(
            costs=costs,
            scores=scores,
            thresholds=used,
            names=rule_names if name is None else as_names(name, len(rules), ""),
            exit_costs=layers,
            exit_scores=exit_scores,
            full_depth=float(exit_scores[-1]),
            score_name=score_label(scoring),
        )

    def _take_time(self, clf, X, rules, patience):
        """Put measured times in the place of average exit layers."""
        settings = [
            {"exit_layer": None, "exit_rule": rule, "exit_threshold": float(threshold)}
            | {"exit_patience": patience}
            for rule, along in zip(rules, self.thresholds, strict=True)
            for threshold in along
        ]
        self.exit_layers = self.exit_costs
        settings += [
            {"exit_layer": int(layer), "exit_threshold": None}
            for layer in self.exit_layers
        ]
        ms = time_settings(clf, X, [*settings, {}])  # {} is the setting in use
        ends = np.cumsum([len(along) for along in self.thresholds])
        *self.costs, rest = np.split(ms, ends)
        self.exit_costs, in_use = rest[:-1], rest[-1]
        if self.chosen is not None:
            self.chosen = (float(in_use), self.chosen[1])
        self.cost_name = "Time per text (ms)"

    @classmethod
    def from_tuned(cls, estimator, *, quality="score", name=None, ax=None, **kwargs):
        """Draw what a `TunedExitClassifierCV` saw on its calibration texts.

        Filled markers are certified, the star is the setting that it chose, and a
        dashed line the limit of `max_drop`.

        Parameters
        ----------
        estimator : TunedExitClassifierCV
            Fitted with ``store_cv_results=True``.
        quality : {"score", "risk"}, default="score"
            What the y axis shows: the score, with `max_drop` below that of full depth
            as the limit, or the risk that tuning bounds, with `max_drop` itself.
        name : str or list of str, default=None
            Label per rule, in the order of ``cv_results_``; None takes their names.
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
            If it has no ``cv_results_``.
        """
        require_matplotlib(f"{cls.__name__}.from_tuned")
        if quality not in ("score", "risk"):
            raise ValueError(f"quality={quality!r} must be 'score' or 'risk'.")
        if not hasattr(estimator, "cv_results_"):
            raise ValueError(
                f"{type(estimator).__name__} has no cv_results_: fit it with "
                "store_cv_results=True."
            )
        results = {k: np.asarray(v) for k, v in estimator.cv_results_.items()}
        by_layers = estimator.cost == "layers"
        layers = results["mean_exit_layer"]
        x = layers if by_layers else results["cost"]
        if estimator.cost == "time":
            x = 1000 * x  # seconds
        y, full_depth, limit = _tuned_quality(estimator, results, quality)
        curves = _curves_by_rule(results["rule"], x)
        static = curves.pop(None, None)
        if static is not None and len(static) == 1:  # full depth, which has its line
            static = None
        best = getattr(estimator, "best_index_", None)
        names = [str(getattr(rule, "__name__", rule)) for rule in curves]
        display = cls(
            costs=[x[rows] for rows in curves.values()],
            scores=[y[rows] for rows in curves.values()],
            thresholds=[results["threshold"][rows] for rows in curves.values()],
            certified=[results["certified"][rows] for rows in curves.values()],
            names=names if name is None else as_names(name, len(curves), ""),
            exit_costs=None if static is None else x[static],
            exit_scores=None if static is None else y[static],
            exit_layers=None if static is None or by_layers else layers[static],
            chosen=None if best is None else (float(x[best]), float(y[best])),
            full_depth=full_depth,
            floor=limit,
            floor_name=f"limit, max_drop = {estimator.max_drop:g}",
            cost_name=_cost_label(estimator.cost),
            score_name=_quality_label(estimator, quality),
        )
        return display.plot(ax=ax, **({"markersize": 4} | kwargs))

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
        if self.cost_name == "Average exit layer":
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


def _curves_by_rule(rules, x):
    """{rule: rows by ascending x}; static exits have the rule None."""
    rules = [rule if callable(rule) or rule else None for rule in rules.tolist()]
    return {
        rule: np.array(
            sorted((i for i, r in enumerate(rules) if r == rule), key=lambda i: x[i])
        )
        for rule in dict.fromkeys(rules)
    }


def _tuned_quality(estimator, results, quality):
    """Values of the y axis, that of full depth, and the limit."""
    if quality == "risk":
        return results["risk"], 0.0, estimator.max_drop
    full_depth = estimator.full_depth_score_
    return results["score"], full_depth, full_depth - estimator.max_drop


def _quality_label(estimator, quality):
    if quality == "score":
        return score_label(estimator.scoring)
    return {
        "disagreement": "Risk: disagreement with full depth",
        "score": "Risk: right at full depth, wrong here",
    }.get(estimator.risk, "Risk")


def _cost_label(cost):
    if callable(cost):
        return "Cost"
    return {
        "layers": "Average exit layer",
        "time": "Time per text (ms)",
        "flops": "Floating-point operations",
    }[cost]
