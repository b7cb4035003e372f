"""Train on your own table of labelled texts, and compare the exits.

    python examples/train_table.py --train train.tsv --test test.tsv
    python examples/train_table.py --train a.csv --test b.csv --text body --label topic
    python examples/train_table.py --train train.tsv --test test.tsv --grid

Both files are TSV or CSV (also .gz) with a header: a column `label`, and `text`, or
`text_a` and `text_b` for pairs. `--grid` first searches the contrastive weight, the
angle threshold and the exit by cross-validation.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from quickstart import measure_exits  # the script beside this one
from sklearn.metrics import classification_report, f1_score, matthews_corrcoef
from sklearn.model_selection import GridSearchCV

from sklearn_acl import ACLClassifier
from sklearn_acl.datasets import read_table

MATRIX_CLASSES = 8  # more do not fit on a line: then the commonest confusions


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    files = {"type": Path, "required": True, "metavar": "FILE"}
    add("--train", **files, help="TSV or CSV file to train on, also .gz")
    add("--test", **files, help="file of the same form to score")
    add("--text", nargs="+", metavar="COLUMN", help="text column, or two for pairs")
    add("--label", default="label", metavar="COLUMN", help="default: %(default)s")
    add("--sep", help="separator, if the files' names do not tell")
    add("--encoding", default="utf-8", help="default: %(default)s")
    add("--exit-layer", type=int, metavar="K", help="exit to report on (default: last)")
    add("--grid", action="store_true", help="search parameters by cross-validation")
    add("--cv", type=int, default=2, help="folds of --grid (default: %(default)s)")
    add("--epochs", type=int, default=4, help="default: %(default)s")
    add("--max-train", type=int, metavar="N", help="train on N rows drawn at random")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--backbone", help="directory or name of another encoder")
    add("--save", type=Path, metavar="DIR", help="save the fitted model there")
    args = parser.parse_args(arguments)
    if args.text and len(args.text) > 2:
        parser.error(f"--text takes one column, or two for pairs: got {args.text}")
    if args.max_train is not None and args.max_train < 1:
        parser.error(f"--max-train must be at least 1, got {args.max_train}")
    return args


def read(path, args):
    """Texts and labels of a file; a table that does not fit ends the script."""
    text = args.text
    if text is not None and len(text) == 1:
        text = text[0]
    try:
        table = read_table(
            path, text=text, label=args.label, sep=args.sep, encoding=args.encoding
        )
    except (OSError, ValueError) as error:
        hint = " (here: --text, --label, --sep, --encoding)"
        hint = hint if isinstance(error, ValueError) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        raise SystemExit(2) from None
    return table.texts, np.array(table.labels)


def draw_rows(texts, labels, n, seed):
    """`n` rows drawn at random, or all."""
    if n is None or n >= len(texts):
        return texts, labels
    rows = np.random.default_rng(seed).permutation(len(texts))[:n]
    return [texts[i] for i in rows], labels[rows]


def search(clf, texts, labels, args):
    """Best parameters by cross-validation, refitted on all training texts."""
    half = 3  # of the default encoder's six layers
    exits = [args.exit_layer or half, None]
    grid = [  # the angle decides nothing where the contrastive weight is 0
        {"criterion__lam": [0.0], "exit_layer": exits},
        {
            "criterion__lam": [0.5],
            "angle_threshold": [80.0, None],
            "exit_layer": exits,
        },
    ]
    clf.set_params(verbose=0)
    found = GridSearchCV(clf, grid, cv=args.cv, error_score="raise")
    found.fit(texts, labels)
    print(f"\naccuracy in {args.cv}-fold cross-validation")
    results = found.cv_results_
    for i in np.argsort(-results["mean_test_score"], kind="stable"):
        mean, std = results["mean_test_score"][i], results["std_test_score"][i]
        print(f"{100 * mean:6.1f} % +- {100 * std:3.1f}  {results['params'][i]}")
    print(f"refitted with {found.best_params_}")
    return found.best_estimator_


def print_exits(rows, labels):
    """One line per exit: accuracy, macro F1, Matthews for two classes, time."""
    binary = len(set(labels.tolist())) == 2
    print("\nexit   accuracy   macro F1" + "  Matthews" * binary + "   ms per text")
    for row in rows:
        f1 = f1_score(labels, row["predicted"], average="macro", zero_division=0)
        line = f"{row['layer']:4d} {100 * row['accuracy']:8.1f} % {100 * f1:8.1f} %"
        if binary:
            line += f"{matthews_corrcoef(labels, row['predicted']):10.3f}"
        print(line + f"{row['ms']:14.2f}")


def print_confusions(labels, predicted):
    """Confusion matrix, or the commonest confusions where there are many classes."""
    counts = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    names = sorted({name for pair in counts for name in pair})
    if len(names) <= MATRIX_CLASSES:
        print("\nrows: true label; columns: predicted, in the same order")
        width = max(map(len, names))
        for true in names:
            cells = "".join(f"{counts[true, guess]:7d}" for guess in names)
            print(f"{true:>{width}} {cells}")
    else:
        print("\ncommonest confusions (true -> predicted)")
        wrong = Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
        for (true, guess), n in wrong.most_common(10):
            print(f"{n:5d}  {true} -> {guess}")


def main(arguments=None):
    args = parse_arguments(arguments)
    texts, labels = draw_rows(*read(args.train, args), args.max_train, args.seed)
    test_texts, test_labels = read(args.test, args)
    unseen = sorted(set(test_labels.tolist()) - set(labels.tolist()))
    print(
        f"{len(texts)} training and {len(test_texts)} test rows, "
        f"{len(set(labels.tolist()))} classes"
    )
    if unseen:
        print(f"labels that only the test file has, never predicted: {unseen[:5]}")

    clf = ACLClassifier(
        max_epochs=args.epochs, random_state=args.seed, exit_layer=args.exit_layer
    )
    if args.backbone:
        clf.set_params(backbone=args.backbone)
    start = time.perf_counter()
    clf = search(clf, texts, labels, args) if args.grid else clf.fit(texts, labels)
    print(f"training took {time.perf_counter() - start:.1f} s")

    rows = measure_exits(clf, test_texts, test_labels)
    print_exits(rows, test_labels)
    chosen = clf.exit_layer or clf.exit_layer_numbers_[-1]
    predicted = next(row["predicted"] for row in rows if row["layer"] == chosen)
    print(f"\nexit {chosen}")
    print(classification_report(test_labels, predicted, digits=3, zero_division=0))
    print_confusions(test_labels, predicted)
    if args.save:
        clf.save(args.save)
        print(f"\nsaved to {args.save}: ACLClassifier.load({str(args.save)!r})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
