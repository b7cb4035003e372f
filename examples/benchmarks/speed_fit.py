"""Time of a single-exit cross-entropy fit against transformers' `Trainer`.

Both sides: the same encoder, texts, batch size, epochs, optimizer and learning rate;
`Trainer` with `DataCollatorWithPadding`. Their runs alternate, and the printed ratio is
the median over seeds. Usage, from the root of the project:

    python examples/benchmarks/speed_fit.py --tasks trec mrpc
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, RESULTS, append_line, load_task, versions

LR = 1e-4


def fit_ours(train, test, *, seed, epochs, batch_size):
    """(seconds of fit, accuracy) of the classifier with one exit and CE alone."""
    from sklearn_acl import ACLClassifier

    clf = ACLClassifier(
        strategy="final",
        criterion__contrastive=None,
        head_init="random",
        head_lr_factor=1.0,
        lr=LR,
        max_epochs=epochs,
        batch_size=batch_size,
        random_state=seed,
        verbose=0,
    )
    start = time.perf_counter()
    clf.fit(*train)
    return time.perf_counter() - start, float(clf.score(*test))


def fit_trainer(train, test, *, seed, epochs, batch_size):
    """(seconds of tokenising and training, accuracy) of transformers' `Trainer`."""
    import datasets
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )
    from transformers.utils import logging

    from sklearn_acl.backbones import DEFAULT_BACKBONE, find_backbone

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    directory = find_backbone(DEFAULT_BACKBONE)
    classes, codes = np.unique(train[1], return_inverse=True)
    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=len(classes)
    )

    def encode(texts):
        columns = (texts,) if isinstance(texts[0], str) else map(list, zip(*texts))
        return tokenizer(*columns, truncation=True)

    rows = datasets.Dataset.from_dict({**encode(train[0]), "labels": codes})
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=batch_size,
            learning_rate=LR,
            warmup_steps=0.1,
            weight_decay=0.01,
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            seed=seed,
            use_cpu=True,
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


def main():
    """Parse the command line, alternate the two sides, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-train", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "speed_fit.jsonl")
    args = parser.parse_args()
    for task in args.tasks:
        ratios, gains = [], []
        for seed in args.seeds:
            data = load_task(
                task, n_train=args.n_train, seed=seed, data_dir=args.data_dir
            )
            train, test = data[:2], data[2:]
            settings = {
                "seed": seed,
                "epochs": args.epochs,
                "batch_size": args.batch_size,
            }
            seconds, accuracy = fit_ours(train, test, **settings)
            their_seconds, their_accuracy = fit_trainer(train, test, **settings)
            ratios.append(seconds / their_seconds)
            gains.append(100 * (accuracy - their_accuracy))
            append_line(
                args.out,
                {
                    "task": task,
                    "n_train": len(train[0]),
                    **settings,
                    "seconds": round(seconds, 2),
                    "trainer_seconds": round(their_seconds, 2),
                    "accuracy": round(100 * accuracy, 2),
                    "trainer_accuracy": round(100 * their_accuracy, 2),
                    "versions": versions(),
                },
            )
            print(
                f"{task} seed {seed}: {seconds:.1f} s against {their_seconds:.1f} s, "
                f"ratio {ratios[-1]:.2f}; accuracy {100 * accuracy:.1f} against "
                f"{100 * their_accuracy:.1f}",
                flush=True,
            )
        print(
            f"{task}: time ratio, median of {len(ratios)} seeds: "
            f"{np.median(ratios):.2f}; accuracy difference, mean: "
            f"{np.mean(gains):+.2f} points"
        )


if __name__ == "__main__":
    main()
