"""`GradientAngleDisplay`: the gate's angles over a training."""

import numpy as np

from .plotting import (
    DASHES,
    GREY,
    as_list,
    as_names,
    axes_for,
    curve_style,
    require_matplotlib,
    tidy,
)

#: Places of a curve, and dots, at most: more cannot be told apart.
_N_PLACES = 500
_N_DOTS = 5000


class GradientAngleDisplay:
    """Angles between the two gradients, of cross-entropy and contrastive term.

    A dot per optimizer step, the running median with a band from the 10th to the 90th
    percentile, and beside them the distribution over all steps. Use `from_estimator`
    to make one.

    Parameters
    ----------
    angles : list of array-like of shape (n_steps,)
        Per training, the angle at every step in degrees; NaN where none was measured.
    thresholds : list of float, default=None
        Per training, the angle above which a step was gated.
    names : list of str, default=None
        Per training, its label.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        Axes with the angles over steps.
    histogram_ax_ : matplotlib.axes.Axes or None
        Axes with their distribution.
    figure_ : matplotlib.figure.Figure
        Figure around them.
    lines_ : list of matplotlib.lines.Line2D
        Running medians.
    bands_ : list of matplotlib.collections.PolyCollection
        Bands around them.
    threshold_lines_ : list of matplotlib.lines.Line2D
        One for each threshold there is.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_acl.displays import GradientAngleDisplay
    >>> angles = np.random.default_rng(0).normal(75, 8, size=200)
    >>> display = GradientAngleDisplay(angles=[angles], thresholds=[90.0])
    >>> display.plot().ax_.get_xlabel()  # doctest: +SKIP
    'Optimizer step'
    """

    def __init__(self, *, angles, thresholds=None, names=None):
        self.angles = angles
        self.thresholds = thresholds
        self.names = names

    @classmethod
    def from_estimator(cls, estimator, *, name=None, ax=None, **kwargs):
        """Draw the angles that fitted classifiers have on record.

        Parameters
        ----------
        estimator : ACLClassifier, TunedExitClassifierCV or list of them
            Fitted with a contrastive term and an `angle_threshold`.
        name : str or list of str, default=None
            Label per classifier; None takes the name of the class.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones.
        **kwargs
            As in `plot`.

        Returns
        -------
        display : GradientAngleDisplay

        Raises
        ------
        ValueError
            If a classifier has measured no angle.
        """
        require_matplotlib(f"{cls.__name__}.from_estimator")
        fits = [getattr(fit, "estimator_", fit) for fit in as_list(estimator)]
        display = cls(
            angles=[_measured_angles(fit) for fit in fits],
            thresholds=[fit.angle_threshold for fit in fits],
            names=as_names(name, len(fits), type(fits[0]).__name__),
        )
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax=None, *, name=None, window=None, histogram=True, **kwargs):
        """Draw the angles.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes new ones. The histogram takes a part of them.
        name : str or list of str, default=None
            Label per training; None takes `names`.
        window : int, default=None
            Steps that the running percentiles look at; None is a tenth of them.
        histogram : bool, default=True
            Whether to draw the distribution over all steps.
        **kwargs
            Keywords of `matplotlib.axes.Axes.plot`, for the running medians.

        Returns
        -------
        self
        """
        if window is not None and window < 1:
            raise ValueError(f"window={window!r} must be at least 1 step.")
        self.ax_, first = axes_for(self, ax)
        self.figure_ = self.ax_.figure
        self.lines_, self.bands_ = [], []
        self.histogram_ax_ = self._beside() if histogram else None
        names = self.names if name is None else as_names(name, len(self.angles), "")
        for i, angles in enumerate(self.angles):
            label = _label(names and names[i], angles, self._threshold(i))
            marker = "o" if np.isfinite(angles).sum() == 1 else ""
            style = {"linewidth": 2, "label": label, "marker": marker} | kwargs
            self._draw(np.asarray(angles), window, curve_style(first + i, style))
        self._draw_thresholds()
        self.ax_.set(
            xlabel="Optimizer step", ylabel="Angle between gradients (degrees)"
        )
        self.ax_.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        tidy(self.ax_)
        # dots are everywhere: leave a strip for the legend above them and below
        n_entries = len(self.lines_) + len(self.threshold_lines_)
        self.ax_.margins(y=0.08 + 0.05 * n_entries)
        return self

    def _threshold(self, i):
        return None if self.thresholds is None else self.thresholds[i]

    def _beside(self):
        """Axes to the right that share the angles."""
        from mpl_toolkits.axes_grid1 import make_axes_locatable

        beside = make_axes_locatable(self.ax_).append_axes(
            "right", size="18%", pad=0.08, sharey=self.ax_
        )
        beside.tick_params(labelleft=False, left=False)
        beside.spines[["top", "right"]].set_visible(False)
        beside.set(xlabel="Share", xticks=[])
        return beside

    def _draw(self, angles, window, style):
        steps = np.arange(1, len(angles) + 1)
        dots = slice(None, None, -(-len(angles) // _N_DOTS))
        places = np.linspace(0, len(angles) - 1, _N_PLACES).round().astype(int)
        places = np.unique(places)
        window = max(1, len(angles) // 10) if window is None else window
        low, middle, high = running_percentiles(angles, places, window, [10, 50, 90])
        self.lines_ += self.ax_.plot(steps[places], middle, **style)
        colour = self.lines_[-1].get_color()
        self.ax_.plot(
            *(steps[dots], angles[dots], "."),
            color=colour,
            alpha=0.6,
            markersize=5,
            markeredgewidth=0,
            zorder=1.5,
            rasterized=True,
        )
        self.bands_.append(
            self.ax_.fill_between(
                steps[places], low, high, color=colour, alpha=0.2, linewidth=0
            )
        )
        if self.histogram_ax_ is not None:
            finite = angles[np.isfinite(angles)]
            self.histogram_ax_.hist(
                finite,
                bins=min(30, max(5, len(finite) // 5)),
                weights=np.full(len(finite), 1 / max(1, len(finite))),
                orientation="horizontal",
                histtype="stepfilled",
                color=colour,
                alpha=0.35,
            )

    def _draw_thresholds(self):
        thresholds = [t for t in dict.fromkeys(self.thresholds or ()) if t is not None]
        self.threshold_lines_ = []
        for i, threshold in enumerate(thresholds):
            style = {"color": GREY, "linestyle": DASHES[1:][i % 3]}
            label = f"threshold {threshold:g}°"
            self.threshold_lines_.append(
                self.ax_.axhline(threshold, label=label, **style)
            )
            if self.histogram_ax_ is not None:
                self.histogram_ax_.axhline(threshold, **style)


def running_percentiles(values, places, window, percentiles):
    """Percentiles of the finite values around each place.

    Parameters
    ----------
    values : ndarray of shape (n,)
    places : ndarray of shape (n_places,), dtype int
        Positions in `values`.
    window : int
        Values around a place that count; fewer at the ends.
    percentiles : list of float

    Returns
    -------
    result : ndarray of shape (n_percentiles, n_places)
        NaN where the window holds no finite value.
    """
    before, after = (window - 1) // 2, window // 2 + 1
    result = np.full((len(places), len(percentiles)), np.nan)
    for row, place in zip(result, places, strict=True):
        around = values[max(0, place - before) : place + after]
        around = around[np.isfinite(around)]
        if len(around):
            row[:] = np.percentile(around, percentiles)
    return result.T


def _measured_angles(clf):
    angles = getattr(clf, "angles_", None)
    if angles is None:
        raise ValueError(f"{type(clf).__name__} is not fitted, or keeps no angles_.")
    if not np.isfinite(angles).any():
        raise ValueError(
            f"None of the {len(angles)} steps has an angle: angles are measured only "
            f"with angle_threshold set (here {clf.angle_threshold!r}) and a "
            "contrastive term (criterion__contrastive, criterion__lam above 0), and "
            "where both gradients are finite and not zero. angle_threshold=180 "
            "measures them and gates no step."
        )
    return angles


def _label(name, angles, threshold):
    """What the legend says: the name, the share of gated steps, steps without angle."""
    angles = np.asarray(angles)
    parts = []
    if threshold is not None:
        share = np.mean(angles > threshold)  # NaN is not gated
        steps = "step" if len(angles) == 1 else "steps"
        parts.append(f"{share:.1%} of {len(angles)} {steps} gated")
    n_undefined = int(np.sum(~np.isfinite(angles)))
    if n_undefined:
        parts.append(f"{n_undefined} without angle")
    return ": ".join(filter(None, [name, ", ".join(parts)])) or None
