"""Time of a single-exit cross-entropy fit against transformers' `Trainer`.

Both sides: the same encoder, texts, batch size, epochs, optimizer, learning rate and
schedule, weight decay, clipping, device and precision (fp32); `Trainer` with
`DataCollatorWithPadding`. Times include loading and tokenising, not imports: each side
first runs on a few texts. Who goes first alternates with the seed. The printed ratio is
the median over seeds, the printed accuracy difference their mean.

One difference remains: `Trainer`'s model classifies BERT's pooled first token, through
the checkpoint's own pooler where it has one; ours classifies the mean over tokens,
through a new dense layer. `--pooling cls` makes ours read the first token, too.
`--group-by-length` adds a second `Trainer` that batches texts of similar length.

Usage, from the root of the project; tasks that need other epochs, in calls of their
own:

    python examples/benchmarks/speed_fit.py --tasks trec --epochs 2
    python examples/benchmarks/speed_fit.py --tasks mrpc --epochs 3 --group-by-length
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, RESULTS, append_line, load_task, verdict, versions

from sklearn_acl.backbones import DEFAULT_BACKBONE, find_backbone

LR = 1e-4
MAX_TIME_RATIO = 0.7
MAX_ACCURACY_DIFFERENCE = 1.0  # points, either way


def fit_ours(train, test, *, seed, args):
    """(seconds of fit, accuracy) of the classifier with one exit and CE alone."""
    from sklearn_acl import ACLClassifier

    clf = ACLClassifier(
        args.backbone,
        strategy="final",
        criterion__contrastive=None,
        head_init="random",
        head_lr_factor=1.0,
        pooling=args.pooling,
        lr=LR,
        max_epochs=args.epochs,
        batch_size=args.batch_size,
        mixed_precision=None,
        random_state=seed,
        device=args.device,
        verbose=0,
    )
    start = time.perf_counter()
    clf.fit(*train)
    return time.perf_counter() - start, float(clf.score(*test))


def fit_trainer(train, test, *, seed, args, sampling="random"):
    """(seconds of tokenising and training, accuracy) of transformers' `Trainer`."""
    import datasets
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    directory = find_backbone(args.backbone)
    classes, codes = np.unique(train[1], return_inverse=True)
    start = time.perf_counter()
    set_seed(seed)  # before the model: its classifier is drawn at random
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=len(classes)
    )

    def encode(texts):
        if isinstance(texts[0], str):
            return tokenizer(texts, truncation=True)
        columns = map(list, zip(*texts, strict=True))
        return tokenizer(*columns, truncation=True)

    rows = datasets.Dataset.from_dict({**encode(train[0]), "labels": codes})
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            learning_rate=LR,
            warmup_steps=0.1,
            weight_decay=0.01,
            train_sampling_strategy=sampling,
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            seed=seed,
            use_cpu=args.device == "cpu",
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        seconds = time.perf_counter() - start
        test_rows = datasets.Dataset.from_dict({**encode(test[0])})
        logits = trainer.predict(test_rows).predictions
    return seconds, float((classes[logits.argmax(-1)] == test[1]).mean())


def make_sides(args):
    """{name: function} of everything that is timed; the first is ours."""
    sides = {"ours": fit_ours, "trainer": fit_trainer}
    if args.group_by_length:
        sides["trainer_by_length"] = partial(fit_trainer, sampling="group_by_length")
    return sides


def measure(task, seed, sides, args):
    """{side: (seconds, accuracy)} for one seed."""
    data = load_task(
        task,
        n_train=args.n_train,
        n_test=args.n_test,
        seed=seed,
        data_dir=args.data_dir,
    )
    train, test = data[:2], data[2:]
    names = list(sides) if seed % 2 == 0 else list(sides)[::-1]
    found = {name: sides[name](train, test, seed=seed, args=args) for name in names}
    return {name: found[name] for name in sides}


def record(task, seed, found, args):
    """Append and print one seed's numbers."""
    names = ("n_train", "n_test", "epochs", "batch_size", "pooling", "device")
    line = {"task": task, "seed": seed, "threads": _threads()}
    line |= {name: getattr(args, name) for name in names}
    for side, (seconds, accuracy) in found.items():
        prefix = "" if side == "ours" else f"{side}_"
        line[f"{prefix}seconds"] = round(seconds, 2)
        line[f"{prefix}accuracy"] = round(100 * accuracy, 2)
    append_line(args.out, {**line, "versions": versions()})
    numbers = "; ".join(
        f"{side} {seconds:.1f} s, accuracy {100 * accuracy:.1f}"
        for side, (seconds, accuracy) in found.items()
    )
    print(f"{task} seed {seed}: {numbers}", flush=True)


def _threads():
    import torch

    return torch.get_num_threads()


def print_targets(task, found):
    """Ratios and differences over seeds, ours against each `Trainer`."""
    for side in list(found[0])[1:]:
        ratio = np.median([one["ours"][0] / one[side][0] for one in found])
        gains = [100 * (one["ours"][1] - one[side][1]) for one in found]
        print(
            f"{verdict(ratio <= MAX_TIME_RATIO)} {task}: time over {side}'s, median of "
            f"{len(found)} seeds: {ratio:.2f}, target <= {MAX_TIME_RATIO}"
        )
        close = abs(np.mean(gains)) <= MAX_ACCURACY_DIFFERENCE
        print(
            f"{verdict(close)} {task}: accuracy less {side}'s, mean of {len(found)} "
            f"seeds: {np.mean(gains):+.2f} points, target within "
            f"{MAX_ACCURACY_DIFFERENCE}",
            flush=True,
        )


def warm_up(sides, task, args):
    """Let every side import what it needs and run on a few texts, untimed."""
    import datasets
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    texts, labels, _, _ = load_task(
        task, n_train=2 * args.batch_size, n_test=1, seed=0, data_dir=args.data_dir
    )
    short = argparse.Namespace(**{**vars(args), "epochs": 1})
    for side in sides.values():
        side((texts, labels), (texts, labels), seed=0, args=short)


def main(arguments=None):
    """Parse the command line, alternate the sides, print ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-train", type=int, default=2000)
    parser.add_argument("--n-test", type=int, help="default: all rows")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--pooling", default="mean", help="of ours: mean or cls")
    parser.add_argument("--group-by-length", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "speed_fit.jsonl")
    args = parser.parse_args(arguments)
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    sides = make_sides(args)
    warm_up(sides, args.tasks[0], args)
    for task in args.tasks:
        found = []
        for seed in args.seeds:
            found.append(measure(task, seed, sides, args))
            record(task, seed, found[-1], args)
        print_targets(task, found)


if __name__ == "__main__":
    main()
