"""Adaptive exit: average exit layer, layers saved and measured time, by threshold.

Fits a classifier on each task and predicts its test texts with several values of
`exit_threshold`, in batches and one text at a time. Three figures are printed, all
called "speed-up" somewhere:

- average exit layer e, over the texts;
- layers saved, 1 - e / L, where L is the number of layers;
- measured time, wall-clock, as a share of that of full depth on the same texts: the
  median over pairs of calls, who goes first alternating.

The target holds for batches: time <= e / L + 0.12. Every task appends one JSON line to
a file. Usage, from the root of the project:

    python examples/benchmarks/speed_exits.py --tasks trec sst2_sentences
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from speed_predict import paired_ratio
from tasks import DATA_DIR, RESULTS, append_line, load_task, verdict, versions

from sklearn_acl import ACLClassifier
from sklearn_acl.backbones import DEFAULT_BACKBONE
from sklearn_acl.exit_rules import EXIT_RULES

EXIT_SLACK = 0.12  # an average exit layer e of L may take e / L plus this


def fit(texts, labels, args):
    """A classifier with the defaults, in single precision."""
    return ACLClassifier(
        args.backbone,
        max_epochs=args.epochs,
        batch_size=args.batch_size,
        mixed_precision=None,
        exit_rule=args.rule,
        random_state=0,
        device=args.device,
        verbose=0,
    ).fit(texts, labels)


def measure(clf, texts, labels, *, threshold, batch_size, repeats):
    """The three figures of one threshold, and the accuracy at it and at full depth."""

    def predict(threshold):
        clf.set_params(exit_threshold=threshold, batch_size=batch_size)
        return clf.predict(texts, return_exit_layers=True)

    (predicted, layers), (full, _) = predict(threshold), predict(None)
    share = paired_ratio(lambda: predict(threshold), lambda: predict(None), repeats)
    return {
        "batch_size": batch_size,
        "threshold": threshold,
        "average_exit_layer": float(layers.mean()),
        "layers_saved": float(1 - layers.mean() / clf.n_exits_),
        "time_over_full_depth": share,
        "accuracy": 100 * float(np.mean(predicted == labels)),
        "full_depth_accuracy": 100 * float(np.mean(full == labels)),
    }


def print_figures(task, n_layers, found):
    """A line per threshold and batch size; those with a target say whether it holds."""
    for row in found:
        text = (
            f"{task}, batch size {row['batch_size']}, threshold {row['threshold']}: "
            f"average exit layer {row['average_exit_layer']:.2f} of {n_layers}, layers "
            f"saved {row['layers_saved']:.1%}, measured time "
            f"{row['time_over_full_depth']:.3f} of full depth"
        )
        if row["batch_size"] > 1:
            allowed = row["average_exit_layer"] / n_layers + EXIT_SLACK
            passed = row["time_over_full_depth"] <= allowed
            text = f"{verdict(passed)} {text}, target <= {allowed:.3f}"
        print(
            f"{text}; accuracy {row['accuracy']:.1f}, at full depth "
            f"{row['full_depth_accuracy']:.1f}",
            flush=True,
        )


def bench(task, args):
    """Fit, measure, append and print every number for one task."""
    texts, labels, test, test_labels = load_task(
        task, n_train=args.n_train, seed=0, n_test=args.n_test, data_dir=args.data_dir
    )
    clf = fit(texts, labels, args)
    n_single = min(args.n_single, len(test))
    sizes = {args.batch_size: len(test), 1: n_single}
    found = [
        measure(
            clf,
            test[:n_rows],
            test_labels[:n_rows],
            threshold=threshold,
            batch_size=batch_size,
            repeats=args.repeats,
        )
        for batch_size, n_rows in sizes.items()
        for threshold in args.thresholds
    ]
    append_line(
        args.out,
        {
            "task": task,
            "n_train": len(texts),
            "n_test": len(test),
            "n_single": n_single,
            "epochs": args.epochs,
            "rule": args.rule,
            "device": args.device,
            "threads": torch.get_num_threads(),
            "n_layers": clf.n_exits_,
            "found": found,
            "versions": versions(),
        },
    )
    print_figures(task, clf.n_exits_, found)


def main(arguments=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["trec", "sst2_sentences"])
    parser.add_argument("--n-train", type=int, default=1500)
    parser.add_argument("--n-test", type=int, default=1000)
    parser.add_argument("--n-single", type=int, default=200, help="one at a time")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rule", choices=EXIT_RULES, default="confidence")
    parser.add_argument(
        "--thresholds", nargs="+", type=float, default=[0.6, 0.8, 0.9, 0.95, 0.99]
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "speed_exits.jsonl")
    args = parser.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    for task in args.tasks:
        bench(task, args)


if __name__ == "__main__":
    main()
