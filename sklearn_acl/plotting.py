"""What the displays share: axes, styles that differ without colour, labels."""

#: Okabe & Ito (2008), distinct for colour-blind readers, in order of their contrast
#: with white; yellow is left out.
COLOURS = (
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#000000",  # black
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
DASHES = ("-", "--", "-.", ":")
GREY = "0.35"


def require_matplotlib(caller):
    """Raise if matplotlib is missing, saying how to install it.

    Raises
    ------
    ImportError
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{caller} requires matplotlib. Install it with `pip install matplotlib`; "
            "sklearn_acl's `plot` extra does that, too."
        ) from error


def axes_for(display, ax):
    """Axes to draw on, new ones if `ax` is None, and the number of curves in them."""
    require_matplotlib(f"{type(display).__name__}.plot")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(layout="constrained")
    drawn = [line for line in ax.get_lines() if line.get_gid() == "curve"]
    return ax, len(drawn)


def curve_style(number, options):
    """Keywords of `Axes.plot` for curve `number`; a user's `options` go first."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    style = {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 6,
        "gid": "curve",  # so that a second display in these axes takes other colours
    }
    return style | normalize_kwargs(options, Line2D)


def number_layers(ax):
    """Ticks of the x axis at whole layers, all of them up to a dozen."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, min_n_ticks=1))


def tidy(ax):
    """Light grid behind the data, no frame where there is no axis, a legend."""
    ax.grid(alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(x=0.04, y=0.08)
    _, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(loc="best", framealpha=0.8)


def as_list(value):
    """A list or tuple as it is, anything else as the only entry of a list."""
    return value if isinstance(value, (list, tuple)) else [value]


def as_names(name, n_curves, default):
    """List of one label per curve, from a string, a list or None.

    Raises
    ------
    ValueError
        If there are more or fewer names than curves.
    """
    if name is None:
        numbers = [f" {i + 1}" for i in range(n_curves)] if n_curves > 1 else [""]
        return [f"{default}{number}" for number in numbers]
    names = as_list(name)
    if len(names) != n_curves:
        raise ValueError(
            f"name={name!r} must hold one name for each of the {n_curves} curves, got "
            f"{len(names)}."
        )
    return names


def score_label(scoring):
    """How an axis names a scorer: "neg_log_loss" is "Negative log loss"."""
    if scoring is None:
        return "Accuracy"
    if not isinstance(scoring, str):
        metric = getattr(scoring, "_score_func", scoring)  # of make_scorer
        sign = "" if getattr(scoring, "_sign", 1) > 0 else "neg_"
        scoring = sign + getattr(metric, "__name__", "score").removesuffix("_score")
    words = scoring.replace("_", " ").strip()
    if words.startswith("neg "):
        words = f"negative {words[4:]}"
    return words[:1].upper() + words[1:]
