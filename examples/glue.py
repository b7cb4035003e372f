"""Fine-tune on tasks of the GLUE benchmark, and score every exit with GLUE's metrics.

    python examples/glue.py --task mrpc --backbone FacebookAI/roberta-base --lr 2e-5
    python examples/glue.py --task all --threshold 0.9 --output glue.json
    python examples/glue.py --task rte sst2 --data-dir glue_data

The tasks are cola, sst2, mrpc, qqp, mnli, qnli and rte: those with classes, without
WNLI. They come from the Hugging Face hub (nyu-mll/glue), or with `--data-dir` from a
folder per task, named as the task (SST-2 and sst2 are the same), that holds either

- GLUE's own files, train.tsv and dev.tsv (mnli: dev_matched.tsv, dev_mismatched.tsv),
- or tables of the same names, also .gz, with a header: `label`, and `text`, or `text_a`
  and `text_b` for pairs.

Scores are in points (100 is perfect), on the development sets: cola gets Matthews
correlation; mrpc and qqp accuracy and F1 of the positive class; mnli accuracy on both
of its sets; the others accuracy. The learning rate suits the default encoder; larger
ones such as BERT-base want a smaller one.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
from glue_data import (  # the script beside this one
    TASKS,
    Data,
    find_files,
    joined,
    load_from_hub,
    read_datasets,
    read_files,
    task_name,
)

# Imports that take seconds stand in functions: what can't be had without a network is
# said before.

TIMED_TEXTS = 200

#: Settings of the classifier that are words, the default first; ce is cross-entropy.
CHOICES = {
    "--contrastive": ("acl_cl", "acl_embed", "scl", "ce"),
    "--strategy": ("joint", "two_stage", "alternating", "final"),
    "--head-init": ("lda", "centroid", "linear_probe", "random"),
}


# --- command line -------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    tasks = f"one or more of {', '.join(TASKS)}; or all"
    add("--task", nargs="+", required=True, metavar="TASK", help=tasks)
    add("--backbone", help="directory, or name on the hub, of another encoder")
    add("--data-dir", type=Path, metavar="DIR", help="a folder per task; no network")
    add("--epochs", type=int, default=4, help="default: %(default)s")
    add("--lr", type=float, help="learning rate (default: the classifier's)")
    add("--batch-size", type=int, default=32, help="default: %(default)s")
    add("--max-train", type=int, metavar="N", help="train on N rows drawn at random")
    add("--seed", type=int, default=0, help="default: %(default)s")
    for name, choices in CHOICES.items():
        add(name, choices=choices, default=choices[0], help="default: %(default)s")
    add("--exit-layer", type=int, metavar="K", help="deepest exit to score")
    early = "also let each text leave at the first exit that is surer than T"
    add("--threshold", type=float, metavar="T", help=early)
    lines = "append a line of JSON for every finished task"
    add("--output", type=Path, metavar="FILE", help=lines)
    args = parser.parse_args(arguments)
    args.task = resolve_tasks(parser, args.task)
    check_numbers(parser, args)
    return args


def resolve_tasks(parser, given):
    names = [task_name(name) for name in given]
    for name, text in zip(names, given, strict=True):
        if name not in (*TASKS, "all"):
            parser.error(f"unknown task {text!r}; there are: {', '.join(TASKS)}, all")
    return list(TASKS) if "all" in names else list(dict.fromkeys(names))


def check_numbers(parser, args):
    for name in ("epochs", "lr", "batch_size", "max_train", "exit_layer"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            option = name.replace("_", "-")
            parser.error(f"--{option} must be above 0, got {value}")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        parser.error(f"--threshold must be between 0 and 1, got {args.threshold}")


# --- training and scores ------------------------------------------------------------


def check_backbone(args):
    """Load the encoder once, so that what is wrong with it shows before training."""
    from sklearn_acl.backbones import DEFAULT_BACKBONE, load_backbone

    model, _ = load_backbone(args.backbone or DEFAULT_BACKBONE)
    last = model.config.num_hidden_layers
    first = last if args.strategy == "final" else 1
    if args.exit_layer is not None and not first <= args.exit_layer <= last:
        raise ValueError(
            f"--exit-layer must be in {first}..{last}, got {args.exit_layer}: the "
            f"encoder has {last} layers, and --strategy is {args.strategy}"
        )


def make_classifier(task, args):
    from sklearn_acl import ACLClassifier

    given = {"backbone": args.backbone, "lr": args.lr}
    return ACLClassifier(
        text_columns=list(task.columns),  # of a Dataset; lists of texts have none
        max_epochs=args.epochs,
        batch_size=args.batch_size,
        criterion__contrastive=None if args.contrastive == "ce" else args.contrastive,
        strategy=args.strategy,
        head_init=args.head_init,
        random_state=args.seed,
        **{name: value for name, value in given.items() if value is not None},
    )


def draw_training_rows(name, texts, labels, args):
    """The rows that `--max-train` asks for, of two classes at least."""
    from train_table import draw_rows  # the script beside this one

    rows, labels = draw_rows(range(len(texts)), labels, args.max_train, args.seed)
    if len(set(labels.tolist())) < 2:
        raise ValueError(
            f"the {len(labels)} training rows of {name} are all labelled "
            f"{str(labels[0])!r}; two classes are needed (see --max-train)"
        )
    if len(rows) == len(texts):
        return texts, labels
    if hasattr(texts, "select"):  # a Dataset stays one
        return texts.select(rows), labels
    return [texts[i] for i in rows], labels


def score(task, labels, predicted):
    """{metric: points} of one development set."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    def f1(labels, predicted):
        hits = [values == task.positive for values in (labels, predicted)]
        return f1_score(*hits, zero_division=0)

    metrics = {"accuracy": accuracy_score, "f1": f1, "matthews": matthews_corrcoef}
    return {
        metric: 100 * float(metrics[metric](labels, predicted))
        for metric in task.metrics
    }


def score_parts(task, dev, predicted):
    """{metric, or metric_part where there are several development sets: points}."""
    return {
        joined(metric, part): points
        for part, (_, labels) in dev.items()
        for metric, points in score(task, labels, predicted[part]).items()
    }


def score_exits(clf, task, dev, last):
    """A row per exit up to `last`: scores, and time on the first development set."""
    from quickstart import measure_exits  # the script beside this one

    first, *others = dev
    measured = measure_exits(clf, *dev[first], timed=TIMED_TEXTS)
    predicted = {first: [row["predicted"] for row in measured]}
    for part in others:
        probabilities = clf.predict_proba_exits(dev[part][0])
        predicted[part] = clf.classes_[probabilities.argmax(axis=-1)]
    rows = []
    for i, row in enumerate(measured):
        guesses = {part: predicted[part][i] for part in dev}
        scores = score_parts(task, dev, guesses)
        rows.append({"exit": row["layer"], "scores": scores, "ms": row["ms"]})
    return [row for row in rows if row["exit"] <= last]


def score_early_exit(clf, task, dev, last, threshold):
    """The same where each text leaves at the first exit that is sure enough."""
    clf.set_params(exit_layer=last, exit_threshold=threshold)
    predicted, layers = {}, []
    for part, (texts, _) in dev.items():
        predicted[part], left = clf.predict(texts, return_exit_layers=True)
        layers.extend(left)
    sample = next(iter(dev.values()))[0][:TIMED_TEXTS]
    runs = []
    for _ in range(3):
        start = time.perf_counter()
        clf.predict(sample)
        runs.append(time.perf_counter() - start)
    return {
        "exit": "early",
        "scores": score_parts(task, dev, predicted),
        "ms": 1000 * min(runs) / len(sample),
        "layers": float(np.mean(layers)),
    }


def run_task(name, data, args):
    """Train and score; the record of the run."""
    task = TASKS[name]
    texts, labels = data.train
    n_dev = {joined("dev", part): len(y) for part, (_, y) in data.dev.items()}
    rows = ", ".join(f"{n} {part}" for part, n in n_dev.items())
    print(f"\n{name}: {len(labels)} training rows, {rows}", flush=True)
    clf = make_classifier(task, args)
    start = time.perf_counter()
    clf.fit(texts, labels)
    seconds = time.perf_counter() - start
    last = args.exit_layer or clf.exit_layer_numbers_[-1]
    exits = score_exits(clf, task, data.dev, last)
    if args.threshold is not None:
        exits.append(score_early_exit(clf, task, data.dev, last, args.threshold))
    return {
        "task": name,
        "data": "hub" if args.data_dir is None else "files",
        "n_train": len(labels),
        "n_dev": n_dev,
        "fit_seconds": seconds,
        "exits": exits,
        "settings": settings(clf, args),
    }


def settings(clf, args):
    """Parameters that scores depend on, by the classifier's own names."""
    names = (
        "backbone lr max_epochs batch_size criterion__contrastive strategy head_init "
        "random_state"
    ).split()
    return {
        **{name: getattr(clf, name) for name in names},
        "max_train": args.max_train,
        "exit_layer": args.exit_layer,
        "exit_threshold": args.threshold,
    }


# --- output -------------------------------------------------------------------------


def print_scores(record):
    """Training time, and a line per exit."""
    print(f"training took {record['fit_seconds']:.1f} s")
    metrics = list(record["exits"][0]["scores"])
    print("\n exit" + "".join(f"  {metric:>8}" for metric in metrics) + "  ms per text")
    for row in record["exits"]:
        points = "".join(
            f"  {row['scores'][metric]:{max(8, len(metric))}.1f}" for metric in metrics
        )
        print(f"{row['exit']:>5}{points}  {row['ms']:11.2f}{remark(row, record)}")


def remark(row, record):
    if "layers" not in row:
        return ""
    threshold = record["settings"]["exit_threshold"]
    return f"  exits surer than {threshold:g}: {row['layers']:.2f} layers on average"


def print_average(records):
    """GLUE's way: a task's metrics are averaged first, then the tasks."""
    print(f"\naverage of {len(records)} tasks\n exit   average")
    for i, row in enumerate(records[0]["exits"]):
        means = [np.mean(list(r["exits"][i]["scores"].values())) for r in records]
        print(f"{row['exit']:>5}  {np.mean(means):8.1f}")


def append_record(path, record):
    """Append a finished task as a line of JSON."""
    import datasets

    sys.path.insert(0, str(Path(__file__).resolve().parent / "benchmarks"))
    from tasks import append_line, versions

    found = {**versions(), "datasets": datasets.__version__}
    append_line(path, {**record, "versions": found})


def prepare(args):
    """{task: Data}: all that can be wrong shows here, before the first training."""
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.open("a").close()
    if args.data_dir is None:
        found, read = load_from_hub(args.task), read_datasets
    else:
        found, read = find_files(args.data_dir, args.task), read_files
    check_backbone(args)
    data = {}
    for name in args.task:
        train, dev = read(name, found[name])
        data[name] = Data(draw_training_rows(name, *train, args), dev)
    return data


def main(arguments=None):
    args = parse_arguments(arguments)
    try:
        data = prepare(args)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    records = []
    for name in args.task:
        records.append(run_task(name, data[name], args))
        print_scores(records[-1])
        if args.output is not None:
            append_record(args.output, records[-1])
    if len(records) > 1:
        print_average(records)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
