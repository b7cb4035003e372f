"""Fit a classifier on the bundled messages, and see what each of its exits gives.

    python examples/quickstart.py

trains on 450 customer messages of six intents, scores and times every exit on 150 held
out ones, saves the model and a picture to a folder, reloads the model and checks that
it answers as before. Nothing is downloaded where the `bundled` extra is installed.
"""

import argparse
import time
from pathlib import Path

import joblib
import numpy as np

from sklearn_acl import ACLClassifier
from sklearn_acl.datasets import load_support_messages


def measure_exits(clf, texts, labels, *, timed=200, repeats=3):
    """Score every exit, and time it.

    Returns
    -------
    rows : list of dict
        Per exit ``layer``, ``predicted`` (its labels), ``accuracy``, and ``ms``: wall
        time per text in milliseconds for `predict` on the first `timed` texts, all
        in (tokenising too), the fastest of `repeats` runs.
    """
    sample = texts[:timed]
    seconds = {layer: [] for layer in clf.exit_layer_numbers_}
    for _ in range(repeats):  # exits in turn: a busy moment hits all of them
        for layer, runs in seconds.items():
            start = time.perf_counter()
            clf.predict(sample, exit_layer=layer)
            runs.append(time.perf_counter() - start)
    rows = []
    probabilities = clf.predict_proba_exits(texts)  # all exits from one pass
    for (layer, runs), proba in zip(seconds.items(), probabilities, strict=True):
        predicted = clf.classes_[proba.argmax(axis=1)]
        rows.append(
            {
                "layer": layer,
                "predicted": predicted,
                "accuracy": float(np.mean(predicted == labels)),
                "ms": 1000 * min(runs) / len(sample),
            }
        )
    return rows


def plot_exits(rows, path):
    """Draw accuracy and time per text against the exit's layer."""
    from matplotlib.figure import Figure  # no pyplot: needs no display

    layers = [row["layer"] for row in rows]
    panels = [
        ("accuracy", 100, "#0072B2", "accuracy on held-out texts (%)", "{:.1f}"),
        ("ms", 1, "#D55E00", "time per text (ms)", "{:.2f}"),
    ]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for ax, (key, factor, colour, title, form) in zip(axes, panels, strict=True):
        values = [factor * row[key] for row in rows]
        ax.plot(layers, values, "o-", color=colour, linewidth=2, markersize=7)
        for layer, value in zip(layers, values, strict=True):
            ax.annotate(
                form.format(value),
                (layer, value),
                xytext=(0, 10),
                textcoords="offset points",
                ha="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        ax.set_title(title)
        ax.set_xlabel("layers run (exit)")
        ax.set_xticks(layers)
        ax.margins(x=0.1, y=0.2)
        ax.grid(alpha=0.3)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_ylim(bottom=0)
    figure.savefig(path, dpi=150)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("quickstart_output"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backbone", help="directory or name of another encoder")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse_arguments(arguments)
    start = time.perf_counter()
    args.output.mkdir(parents=True, exist_ok=True)
    texts, labels = load_support_messages("train", return_X_y=True)
    test_texts, test_labels = load_support_messages("test", return_X_y=True)
    print(f"{len(texts)} training and {len(test_texts)} test messages")

    clf = ACLClassifier(max_epochs=args.epochs, random_state=args.seed)
    if args.backbone:
        clf.set_params(backbone=args.backbone)
    clf.fit(texts, labels)

    rows = measure_exits(clf, test_texts, test_labels)
    print("\nexit   accuracy   ms per text")
    for row in rows:
        print(f"{row['layer']:4d} {100 * row['accuracy']:8.1f} % {row['ms']:13.2f}")

    message = "your driver left my order at the wrong house"
    print(f"\n{message!r}:")
    for layer in (clf.exit_layer_numbers_[0], clf.exit_layer_numbers_[-1]):
        proba = clf.predict_proba([message], exit_layer=layer)[0]
        best = ", ".join(
            f"{clf.classes_[i]} {proba[i]:.2f}" for i in (-proba).argsort()[:2]
        )
        print(f"  exit {layer}: {best}")

    model_path = args.output / "model.joblib"
    joblib.dump(clf, model_path)
    reloaded = joblib.load(model_path)
    equal = np.array_equal(
        clf.predict_proba_exits(test_texts), reloaded.predict_proba_exits(test_texts)
    )
    print(f"\nsaved {model_path} ({model_path.stat().st_size / 2**20:.1f} MiB)")
    print(f"reloaded model gives equal probabilities: {equal}")

    try:
        plot_exits(rows, args.output / "exits.png")
        print(f"saved {args.output / 'exits.png'}")
    except ModuleNotFoundError:
        print("no picture: matplotlib is missing (the `plot` extra installs it)")
    print(f"total time {time.perf_counter() - start:.1f} s, imports not counted")
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
