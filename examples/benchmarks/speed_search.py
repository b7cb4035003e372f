"""Time of a grid search with `memory=` against that of its trainings alone.

The grid has 2 values of lambda, 2 angle thresholds and every exit; 3 folds. Of the
candidates, those that differ in the exit alone share a training: 12 trainings, however
many exits there are. These 12 are also run without a search and without memory, one
after the other, and only their `fit` is timed. The ratio of the two times is what
loading, scoring and the search itself cost. The scores of the search are compared with
those of the classifiers trained alone: equal to the bit.

Which side goes first alternates with the seed. Entries lie in a temporary folder while
the script runs, 12 times the size of the encoder. Usage, from the root of the project:

    python examples/benchmarks/speed_search.py
    python examples/benchmarks/speed_search.py --n-train 300 --epochs 1
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid, StratifiedKFold
from tasks import DATA_DIR, RESULTS, append_line, load_task, verdict, versions

from sklearn_acl import ACLClassifier
from sklearn_acl.backbones import DEFAULT_BACKBONE

MAX_TIME_RATIO = 1.3
TRAINING_GRID = {"criterion__lam": [0.25, 0.5], "angle_threshold": [90.0, None]}
N_FOLDS = 3


def make_classifier(seed, args):
    """The classifier that both sides train."""
    return ACLClassifier(
        args.backbone,
        max_epochs=args.epochs,
        batch_size=args.batch_size,
        random_state=seed,
        device=args.device,
        verbose=0,
    )


def search(clf, texts, labels, cv, exits):
    """(seconds, scores by parameters, number of trainings) of a search with memory."""
    grid = {**TRAINING_GRID, "exit_layer": exits}
    with tempfile.TemporaryDirectory() as folder:
        clf = clone(clf).set_params(memory=folder)
        start = time.perf_counter()
        found = GridSearchCV(clf, grid, cv=cv, refit=False).fit(texts, labels)
        seconds = time.perf_counter() - start
        n_trained = len(list(Path(folder).rglob("output.pkl")))
    columns = [found.cv_results_[f"split{i}_test_score"] for i in range(N_FOLDS)]
    keys = map(as_key, found.cv_results_["params"])
    return seconds, dict(zip(keys, np.transpose(columns), strict=True)), n_trained


def train_alone(clf, texts, labels, cv, exits):
    """(seconds, scores by parameters, number of trainings) of fits without a search."""
    seconds, scores, n_trained = 0.0, {}, 0
    for params in ParameterGrid(TRAINING_GRID):
        for train, test in cv.split(texts, labels):
            one = clone(clf).set_params(**params)
            start = time.perf_counter()
            one.fit(texts[train], labels[train])
            seconds += time.perf_counter() - start
            n_trained += 1
            for k in exits:
                score = one.score(texts[test], labels[test], exit_layer=k)
                scores.setdefault(as_key({**params, "exit_layer": k}), []).append(score)
    return seconds, scores, n_trained


def as_key(params):
    """Parameters as something that a dict can be looked up by."""
    return tuple(sorted(params.items()))


def measure(seed, args):
    """Numbers of both sides for one seed."""
    texts, labels, _, _ = load_task(
        args.task, n_train=args.n_train, seed=seed, n_test=1, data_dir=args.data_dir
    )
    texts = np.array(texts, dtype=object)
    clf, cv = make_classifier(seed, args), StratifiedKFold(N_FOLDS)
    # imports and first calls are not timed
    n_exits = clone(clf).set_params(max_epochs=1).fit(texts[:99], labels[:99]).n_exits_
    exits = list(range(1, n_exits + 1))
    sides = [search, train_alone] if seed % 2 == 0 else [train_alone, search]
    found = {side: side(clf, texts, labels, cv, exits) for side in sides}
    search_seconds, search_scores, n_trained = found[search]
    alone_seconds, alone_scores, n_alone = found[train_alone]
    return {
        "task": args.task,
        "seed": seed,
        "n_train": len(texts),
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "device": args.device,
        "threads": torch.get_num_threads(),
        "candidates": len(search_scores),
        "folds": N_FOLDS,
        "trainings": n_trained,
        "trainings_alone": n_alone,
        "search_seconds": search_seconds,
        "trainings_alone_seconds": alone_seconds,
        "time_ratio": search_seconds / alone_seconds,
        "scores_equal": all(
            np.array_equal(scores, alone_scores[key])
            for key, scores in search_scores.items()
        ),
    }


def print_numbers(found):
    """One line per target for one seed."""
    label = f"{found['task']} seed {found['seed']}"
    print(
        f"{label}: {found['candidates']} candidates x {found['folds']} folds: "
        f"{found['trainings']} trainings, search {found['search_seconds']:.1f} s; "
        f"the trainings alone {found['trainings_alone_seconds']:.1f} s"
    )
    ratio = found["time_ratio"]
    print(
        f"{verdict(ratio <= MAX_TIME_RATIO)} {label}: time of the search over that of "
        f"its trainings alone: {ratio:.2f}, target <= {MAX_TIME_RATIO}"
    )
    same = found["scores_equal"] and found["trainings"] == found["trainings_alone"]
    print(
        f"{verdict(same)} {label}: {found['trainings_alone']} trainings, scores equal "
        "to those without memory",
        flush=True,
    )


def main(arguments=None):
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="trec")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--n-train", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "speed_search.jsonl")
    args = parser.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    for seed in args.seeds:
        found = measure(seed, args)
        append_line(args.out, {**found, "versions": versions()})
        print_numbers(found)


if __name__ == "__main__":
    main()
