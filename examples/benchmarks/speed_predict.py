"""Prediction: against transformers' pipeline, and exit k against full depth.

Prints texts per second as a ratio to ``pipeline("text-classification",
batch_size=32)`` on the same texts, encoder and device, time at each `exit_layer` as a
ratio to full depth, the share of padding tokens in the batches, and the share of the
measured matrix-multiplication peak that prediction reaches; and for one epoch of
training, the padding of its batches next to that of plainly shuffled ones, and its
share of the peak, a training step counted as three forward passes. Every task appends
one JSON line to a file. Usage, from the root of the project:

    python examples/benchmarks/speed_predict.py --tasks trec mrpc
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, RESULTS, append_line, load_task, verdict, versions

from sklearn_acl import ACLClassifier
from sklearn_acl.backbones import DEFAULT_BACKBONE, find_backbone
from sklearn_acl.batching import length_bucketed_batches, prediction_batches
from sklearn_acl.encoder import accepted_inputs
from sklearn_acl.text import check_texts
from sklearn_acl.tokens import tokenize

MIN_SPEED_RATIO = 2.0
EXIT_SLACK = 0.08  # exit k of L may take k / L plus this


def timed(function):
    """Seconds of one call. What runs on another device has to be waited for inside."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def seconds(function, repeats):
    """Median wall-clock seconds of a call, after one warm-up."""
    function()
    return float(np.median([timed(function) for _ in range(repeats)]))


def paired_ratio(ours, theirs, repeats):
    """Median over pairs of calls of seconds of `ours` over seconds of `theirs`.

    Each goes first in every other pair.
    """
    ours(), theirs()
    ratios = []
    for i in range(repeats):
        if i % 2:
            their_seconds, our_seconds = timed(theirs), timed(ours)
        else:
            our_seconds, their_seconds = timed(ours), timed(theirs)
        ratios.append(our_seconds / their_seconds)
    return float(np.median(ratios))


def make_pipeline(n_classes, args):
    """transformers' pipeline on the same encoder, as its users would call it."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        pipeline,
    )
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    directory = find_backbone(args.backbone)
    return pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(
            directory, num_labels=n_classes
        ),
        tokenizer=AutoTokenizer.from_pretrained(directory),
        device=args.device,
        top_k=None,
    )


def matmul_peak(device, repeats=20):
    """Measured fp32 peak of a large matrix product, in operations per second."""
    size = 1024 if device == "cpu" else 8192
    a, b = torch.randn(2, size, size, device=device)

    def product():
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()

    return 2 * size**3 / seconds(product, repeats)


def forward_operations(clf, lengths):
    """Operations of the encoder's matrix products for texts of these lengths."""
    config = clf.module_.backbone.config
    d, inner, n_layers = (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
    )
    per_token = 2 * (4 * d * d + 2 * d * inner)
    lengths = lengths.astype(float)
    return n_layers * float((per_token * lengths + 4 * d * lengths**2).sum())


def padding_share(lengths, batches):
    """Share of padding among the tokens of batches."""
    padded = sum(lengths[rows].max() * len(rows) for rows in batches)
    return float(1 - lengths.sum() / padded)


def plain_batches(order, batch_size):
    """Rows cut into batches as they come."""
    return np.array_split(order, range(batch_size, len(order), batch_size))


def token_lengths(clf, texts):
    """Tokens per text, as the classifier counts them."""
    tokens = tokenize(
        check_texts(texts),
        clf.tokenizer_,
        max_length=clf.max_length_,
        accepted=accepted_inputs(clf.module_.backbone),
    )
    return np.asarray(tokens.lengths)


def bench_fit(train, peak, args):
    """(classifier, numbers) of a training of one epoch with the defaults."""
    clf = ACLClassifier(
        args.backbone,
        max_epochs=1,
        random_state=0,
        verbose=0,
        batch_size=args.batch_size,
        mixed_precision=None,
        device=args.device,
    )
    fit_seconds = timed(lambda: clf.fit(*train))
    lengths = token_lengths(clf, train[0])
    rng = np.random.default_rng(0)
    bucketed = length_bucketed_batches(lengths, args.batch_size, rng=rng)
    shuffled = plain_batches(rng.permutation(len(lengths)), args.batch_size)
    operations = 3 * forward_operations(clf, lengths)
    return clf, {
        "fit_seconds": fit_seconds,
        "fit_padding": padding_share(lengths, bucketed),
        "fit_padding_shuffled": padding_share(lengths, shuffled),
        "fit_matmul_share": operations / fit_seconds / peak,
        "epoch_matmul_share": operations / clf.history[-1, "dur"] / peak,
    }


def bench_predict(clf, test, peak, args):
    """Numbers of prediction."""
    pipe = make_pipeline(len(clf.classes_), args)
    inputs = test
    if not isinstance(test[0], str):
        inputs = [{"text": a, "text_pair": b} for a, b in test]
    over_pipeline = paired_ratio(
        lambda: clf.predict_proba(test),
        lambda: pipe(inputs, batch_size=args.batch_size, truncation=True),
        args.repeats,
    )
    exit_times = {
        k: paired_ratio(
            lambda k=k: clf.predict_proba(test, exit_layer=k),
            lambda: clf.predict_proba(test),
            args.repeats,
        )
        for k in range(1, clf.n_exits_)
    }
    lengths = token_lengths(clf, test)
    batches = prediction_batches(lengths, args.batch_size)
    as_given = plain_batches(np.arange(len(lengths)), args.batch_size)
    predict_seconds = seconds(lambda: clf.predict_proba(test), args.repeats)
    return {
        "texts_per_second": len(test) / predict_seconds,
        "speed_over_pipeline": 1 / over_pipeline,
        "exit_times": exit_times,
        "predict_padding": padding_share(lengths, batches),
        "predict_padding_as_given": padding_share(lengths, as_given),
        "predict_matmul_share": (
            forward_operations(clf, lengths) / predict_seconds / peak
        ),
    }


def print_numbers(task, n_exits, found):
    """One line per target, and what explains them."""
    speed = found["speed_over_pipeline"]
    print(
        f"{verdict(speed >= MIN_SPEED_RATIO)} {task}: texts per second over the "
        f"pipeline's: {speed:.2f}, target >= {MIN_SPEED_RATIO}"
    )
    for k, ratio in found["exit_times"].items():
        allowed = k / n_exits + EXIT_SLACK
        print(
            f"{verdict(ratio <= allowed)} {task}: exit_layer={k} of {n_exits}: time "
            f"{ratio:.3f} of full depth, target <= {allowed:.3f}"
        )
    print(
        f"{task}: padding in prediction {found['predict_padding']:.1%}, in the order "
        f"of the texts {found['predict_padding_as_given']:.1%}; in training "
        f"{found['fit_padding']:.1%}, plainly shuffled "
        f"{found['fit_padding_shuffled']:.1%}"
    )
    print(
        f"{task}: share of the measured matmul peak, all else counted as waste: "
        f"prediction {found['predict_matmul_share']:.1%}; fit of one epoch, loading "
        f"and the start of the heads in it, {found['fit_matmul_share']:.1%}; the "
        f"epoch alone {found['epoch_matmul_share']:.1%}",
        flush=True,
    )


def bench(task, args):
    """Measure, append and print every number for one task."""
    texts, labels, test, _ = load_task(
        task,
        n_train=args.n_train,
        seed=0,
        n_test=args.n_test,
        data_dir=args.data_dir,
    )
    peak = matmul_peak(args.device)
    clf, found = bench_fit((texts, labels), peak, args)
    found |= bench_predict(clf, test, peak, args)
    append_line(
        args.out,
        {
            "task": task,
            "n_train": len(texts),
            "n_test": len(test),
            "batch_size": args.batch_size,
            "device": args.device,
            "threads": torch.get_num_threads(),
            "n_exits": clf.n_exits_,
            "peak_operations_per_second": peak,
            **found,
            "versions": versions(),
        },
    )
    print_numbers(task, clf.n_exits_, found)


def main(arguments=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--n-train", type=int, default=1000)
    parser.add_argument("--n-test", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "speed_predict.jsonl")
    args = parser.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    for task in args.tasks:
        bench(task, args)


if __name__ == "__main__":
    main()
