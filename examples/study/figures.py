"""Pictures of the study, from the lines of its finished runs; only of what there is.

    python examples/study/figures.py

`tables.py --write` draws them as well, from the lines that its tables are made of.
"""

import argparse
import io
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from angle_tables import TERMS, angles_of
from cost_tables import mean_along
from experiments import HEADS, TASKS
from lookup import Runs, at_exit, scores
from paired import compare
from setting_tables import contrast_grids, contrast_values, mean_grids
from tasks import read_lines

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
RESULTS = Path(__file__).resolve().parent / "results" / "runs.jsonl"
METHODS = ("acl", "scl", "ce")
N_COLOURS = 128  # of a file: small, and enough for bands over each other
DPI = 90


class Picture(NamedTuple):
    """A picture of the page.

    Attributes
    ----------
    section : str
        Table that it belongs to.
    alt : str
        What it shows, for who can't see it.
    data : callable
        From `Runs` to what is drawn, fit for JSON; empty if there is nothing.
    draw : callable
        From that to a figure.
    """

    section: str
    alt: str
    data: callable
    draw: callable


# --- scores of exits ----------------------------------------------------------------


def scores_of_exits(runs, head):
    """{task: {method: scores (n_seeds, n_exits)}}."""
    found = {}
    for method in METHODS:
        for (task, _), line in runs.of_method(method, head).items():
            of_task = found.setdefault(task, {})
            of_task.setdefault(method, []).append(line["exits"])
    return {task: found[task] for task in TASKS if task in found}


def draw_exits(data):
    """A panel per task, a curve per method, a band over seeds."""
    from sklearn_acl.displays import LayerScoreDisplay
    from sklearn_acl.plotting import curve_style

    figure, axes = panels(len(data), columns=4, size=(2.9, 2.5))
    for ax, (task, found) in zip(axes, data.items(), strict=True):
        for method, rows in found.items():
            display = LayerScoreDisplay(
                layers=[np.arange(1, len(rows[0]) + 1)],
                scores=[np.array(rows)],
                names=[method],
                score_name="Accuracy (%)",
            )
            style = curve_style(METHODS.index(method), {"label": method})
            display.plot(ax, **(style | {"markersize": 4}))
        counts = sorted({len(rows) for rows in found.values()})
        seeds = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        ax.set_title(f"{task} (seeds: {seeds})", fontsize="medium")
    share_legend(figure, axes)
    return figure


def gains(runs):
    """{head: {method: means, low and high ends over tasks, per exit}}."""
    found = {}
    for head in HEADS:
        base = runs.of_method("ce", head)
        for method in ("acl", "scl"):
            ours = runs.of_method(method, head)
            common = set(ours) & set(base)
            if common:
                n_exits = len(ours[min(common)]["exits"])
                rows = [
                    compare(scores(ours, at_exit(k)), scores(base, at_exit(k)))
                    for k in range(1, n_exits + 1)
                ]
                found.setdefault(head, {})[method] = {
                    "tasks": rows[0].n_tasks,
                    "means": [row.mean for row in rows],
                    "these": [row.these for row in rows],
                }
    return found


def draw_gains(data):
    """A panel per start of the heads, a curve per method with its interval."""
    from sklearn_acl.plotting import GREY, curve_style, number_layers, tidy

    figure, axes = panels(len(data), columns=2, size=(4.2, 3.2))
    for ax, (head, found) in zip(axes, data.items(), strict=True):
        ax.axhline(0, color=GREY, linewidth=1)
        for method, rows in found.items():
            i = METHODS.index(method)
            layers = np.arange(1, len(rows["means"]) + 1)
            label = f"{method} less ce ({rows['tasks']} tasks)"
            style = curve_style(i, {"label": label})
            ax.plot(layers, rows["means"], **style)
            if None not in rows["these"]:
                low, high = zip(*rows["these"], strict=True)
                ax.fill_between(
                    layers, low, high, color=style["color"], alpha=0.2, linewidth=0
                )
        ax.set(xlabel="Layers run (exit)", ylabel="Gain (points)")
        ax.set_title(f"{head} heads", fontsize="medium")
        number_layers(ax)
        tidy(ax)
    return figure


# --- angles -------------------------------------------------------------------------


def angles(runs):
    """{head: {task: {term: angles of the first seed there is}}}, over the encoder."""
    found = {}
    for head in HEADS:
        for term in TERMS:
            measured = angles_of(runs, term, head, "encoder")
            for task, seed in sorted(measured, reverse=True):  # the first seed stays
                values = measured[task, seed].tolist()
                of_task = found.setdefault(head, {}).setdefault(task, {})
                of_task[term] = [None if np.isnan(v) else v for v in values]
    return found


def draw_angles(data):
    """A panel per start of the heads and task, a curve per term."""
    from sklearn_acl.displays import GradientAngleDisplay
    from sklearn_acl.plotting import GREY, curve_style

    tasks = list(dict.fromkeys(task for found in data.values() for task in found))
    cells = [(head, task) for head in data for task in tasks if task in data[head]]
    figure, axes = panels(len(cells), columns=len(tasks), size=(4.2, 2.9))
    for ax, (head, task) in zip(axes, cells, strict=True):
        for i, term in enumerate(TERMS):
            values = data[head][task].get(term)
            if values is not None:
                display = GradientAngleDisplay(angles=[np.array(values, float)])
                style = curve_style(i, {"label": term}) | {"marker": ""}
                display.plot(ax, histogram=False, **style)
        ax.axhline(90, color=GREY, linewidth=1)
        ax.set_title(f"{task}, {head} heads", fontsize="medium")
        ax.set_ylabel("Angle (degrees)")
    share_legend(figure, axes)
    return figure


# --- lambda and temperature ---------------------------------------------------------


def grids_of_contrast(runs):
    """{task: {method: mean over exits, (n_lambdas, n_temperatures)}}; None: no run."""
    found = {}
    for method in ("scl", "acl"):
        for task, grid in mean_grids(contrast_grids(runs, method)).items():
            rows = [[None if np.isnan(v) else v for v in row] for row in grid]
            found.setdefault(task, {})[method] = rows
    return found


def draw_contrast_grids(data):
    """A heat map per task and method; one scale of colours for each task."""
    lams, taus = contrast_values()
    cells = [(task, method) for task in data for method in data[task]]
    figure, axes = panels(len(cells), columns=2, size=(4.2, 3.2))
    for ax, (task, method) in zip(axes, cells, strict=True):
        scale = np.array(list(data[task].values()), dtype=float)
        grid = np.array(data[task][method], dtype=float)
        low, high = np.nanmin(scale), np.nanmax(scale)
        ax.imshow(grid, cmap="cividis", aspect="auto", vmin=low, vmax=high)
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                colour = "black" if value > (low + high) / 2 else "white"
                style = {"ha": "center", "va": "center", "color": colour}
                ax.text(j, i, f"{value:.1f}", **style)
        ax.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
        ax.set_yticks(range(len(lams)), [f"{lam:g}" for lam in lams])
        ax.set(xlabel="temperature", ylabel="lambda")
        ax.set_title(f"{task}, {method}: mean over exits (%)", fontsize="medium")
    return figure


# --- early exit ---------------------------------------------------------------------


def tradeoffs(runs):
    """{task: rows of `mean_along`}."""
    lines = runs.of("tuned", "acl, lda")
    tasks = dict.fromkeys(task for task, _ in lines)
    return {task: mean_along(lines, task) for task in tasks}


def draw_tradeoffs(data):
    """A panel per task: accuracy against measured time along thresholds."""
    from sklearn_acl.displays import ExitTradeoffDisplay

    figure, axes = panels(len(data), columns=2, size=(4.2, 2.9))
    for ax, (task, rows) in zip(axes, data.items(), strict=True):
        display = ExitTradeoffDisplay(
            costs=[[row["time_over_full_depth"] for row in rows]],
            scores=[[row["accuracy"] for row in rows]],
            names=["along thresholds"],
            full_depth=float(np.mean([row["full_depth"] for row in rows])),
            cost_name="Time over that of full depth",
            score_name="Accuracy (%)",
        )
        display.plot(ax)
        ax.set_title(task, fontsize="medium")
    share_legend(figure, axes)
    return figure


#: By name; the name of the file follows from it.
PICTURES = {
    **{
        f"exits_{head}": Picture(
            "exits",
            f"Accuracy per exit of acl, scl and ce, {head} heads: a panel per task, "
            "bands from the lowest to the highest seed",
            lambda runs, head=head: scores_of_exits(runs, head),
            draw_exits,
        )
        for head in HEADS
    },
    "gains": Picture(
        "exits",
        "Gain over ce per exit: mean over tasks, with the interval for these tasks",
        gains,
        draw_gains,
    ),
    "angles": Picture(
        "angles",
        "Angle between the gradients of cross-entropy and of contrastive terms over "
        "the steps of one training, on all parameters of the encoder",
        angles,
        draw_angles,
    ),
    "sensitivity": Picture(
        "sensitivity",
        "Mean over exits for each lambda and temperature, scl and acl",
        grids_of_contrast,
        draw_contrast_grids,
    ),
    "tuned": Picture(
        "tuned",
        "Accuracy against measured time along thresholds, means over seeds",
        tradeoffs,
        draw_tradeoffs,
    ),
}


# --- what the pictures share --------------------------------------------------------


def panels(n, *, columns, size):
    """(figure, list of `n` axes), each of a size in inches, in rows of `columns`."""
    from matplotlib.figure import Figure

    columns = min(n, columns)
    n_rows = -(-n // columns)
    figure = Figure(
        figsize=(columns * size[0], n_rows * size[1] + 0.4), layout="constrained"
    )
    axes = figure.subplots(n_rows, columns, squeeze=False).ravel().tolist()
    for ax in axes[n:]:
        ax.remove()
    return figure, axes[:n]


def share_legend(figure, axes):
    """One legend below all panels instead of one in each."""
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles)
    )


def picture_file(name):
    """Name of a picture's file."""
    return f"results_{name}.png"


def digest(data):
    """What a file says that it was drawn from."""
    return sha256(json.dumps(_rounded(data), sort_keys=True).encode()).hexdigest()


def _rounded(data):
    """Data without the last digits, in which machines differ when they sum up."""
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_rounded(value) for value in data]
    return round(data, 6) if isinstance(data, float) else data


def drawn_from(path):
    """The digest that a file holds; None if there is no such file."""
    from PIL import Image

    if not path.is_file():
        return None
    with Image.open(path) as image:
        return image.text.get("Source")


def draw_pictures(runs, folder):
    """Draw what there is; files of the same data stay as they are, others go.

    Parameters
    ----------
    runs : Runs
    folder : path

    Returns
    -------
    list of str
        Names of the files that were drawn.
    """
    from sklearn_acl.plotting import require_matplotlib

    require_matplotlib("The study")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, picture in PICTURES.items():
        path, data = folder / picture_file(name), picture.data(runs)
        if not data:
            path.unlink(missing_ok=True)
        elif drawn_from(path) != digest(data):
            save(picture.draw(data), path, digest(data))
            drawn.append(path.name)
    return drawn


def save(figure, path, source):
    """Write a small PNG file without dates or versions."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    with Image.open(buffer) as image:
        small = image.convert("RGB").quantize(N_COLOURS, dither=Image.Dither.NONE)
    info = PngInfo()
    info.add_text("Source", source)
    small.save(path, format="png", optimize=True, pnginfo=info)


def main(arguments=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", default=RESULTS, help="default: %(default)s")
    parser.add_argument("--out", default=IMAGES, help="folder, default: %(default)s")
    args = parser.parse_args(arguments)
    for name in draw_pictures(Runs(read_lines(args.lines)), args.out):
        print(name)


if __name__ == "__main__":
    main()
