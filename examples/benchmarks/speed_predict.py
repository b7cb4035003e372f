"""Prediction: against transformers' pipeline, and exit k against full depth.

Prints texts per second as a ratio to ``pipeline("text-classification",
batch_size=32)`` on the same texts and weights, time at each `exit_layer` as a ratio to
full depth, the share of padding tokens in the batches, and the share of the measured
matrix-multiplication peak that the forward pass reaches. Usage, from the root of the
project:

    python examples/benchmarks/speed_predict.py --tasks trec mrpc
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, load_task


def seconds(function, repeats):
    """Median wall-clock seconds of a call, after one warm-up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def paired_ratio(ours, theirs, repeats):
    """Median over alternating calls of seconds of `ours` over seconds of `theirs`."""
    ours(), theirs()
    ratios = []
    for _ in range(repeats):
        first, second = time.perf_counter(), None
        ours()
        second = time.perf_counter()
        theirs()
        ratios.append((second - first) / (time.perf_counter() - second))
    return float(np.median(ratios))


def make_pipeline(n_classes):
    """transformers' pipeline on the same encoder, as its users would call it."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        pipeline,
    )
    from transformers.utils import logging

    from sklearn_acl.backbones import DEFAULT_BACKBONE, find_backbone

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    directory = find_backbone(DEFAULT_BACKBONE)
    return pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(
            directory, num_labels=n_classes
        ),
        tokenizer=AutoTokenizer.from_pretrained(directory),
        device=-1,
        top_k=None,
    )


def matmul_peak(repeats=20):
    """Measured fp32 peak of a large matrix product, in operations per second."""
    import torch

    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: a @ b, repeats)


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


def padding_share(lengths, batch_size):
    """Share of padding in batches sorted by length, and in batches as they come."""
    from sklearn_acl.tokens import length_sorted_batches

    def share(batches):
        padded = sum(lengths[rows].max() * len(rows) for rows in batches)
        return 1 - lengths.sum() / padded

    unsorted = np.array_split(
        np.arange(len(lengths)), range(batch_size, len(lengths), batch_size)
    )
    return share(length_sorted_batches(lengths, batch_size)), share(unsorted)


def bench(task, args):
    """Print every ratio for one task."""
    from sklearn_acl import ACLClassifier
    from sklearn_acl.encoder import accepted_inputs
    from sklearn_acl.text import check_texts
    from sklearn_acl.tokens import tokenize

    texts, labels, test, _ = load_task(
        task,
        n_train=200,
        seed=0,
        n_test=args.n_test,
        data_dir=args.data_dir,
    )
    clf = ACLClassifier(
        max_epochs=1, random_state=0, verbose=0, batch_size=args.batch_size
    ).fit(texts, labels)
    pipe = make_pipeline(len(clf.classes_))
    inputs = test
    if not isinstance(test[0], str):
        inputs = [{"text": a, "text_pair": b} for a, b in test]
    ratio = paired_ratio(
        lambda: clf.predict_proba(test),
        lambda: pipe(inputs, batch_size=args.batch_size),
        args.repeats,
    )
    print(f"{task}: texts per second over the pipeline's: {1 / ratio:.2f} x")
    full = clf.n_exits_
    for k in range(1, full):
        ratio = paired_ratio(
            lambda k=k: clf.predict_proba(test, exit_layer=k),
            lambda: clf.predict_proba(test),
            args.repeats,
        )
        print(
            f"{task}: exit_layer={k} of {full}: time {ratio:.3f} of full depth, "
            f"allowed {k / full + 0.08:.3f}"
        )
    tokens = tokenize(
        check_texts(test),
        clf.tokenizer_,
        max_length=clf.max_length_,
        accepted=accepted_inputs(clf.module_.backbone),
    )
    ours, unsorted = padding_share(tokens.lengths, args.batch_size)
    print(
        f"{task}: padding tokens {ours:.1%}; in the order of the texts {unsorted:.1%}"
    )
    rate = forward_operations(clf, tokens.lengths) / seconds(
        lambda: clf.predict_proba(test), args.repeats
    )
    print(
        f"{task}: {rate / matmul_peak():.1%} of the measured matmul peak, padding and "
        "tokenising counted as waste",
        flush=True,
    )


def main():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--n-test", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", default=DATA_DIR)
    args = parser.parse_args()
    for task in args.tasks:
        bench(task, args)


if __name__ == "__main__":
    main()
