"""Scores of the defaults, of random heads, and of logistic regression, on real tasks.

Each finished run is appended to a file as one JSON line, and a run that is there
already is not repeated. Usage, from the root of the project:

    python examples/benchmarks/quality.py run --tasks trec banking77
    python examples/benchmarks/quality.py report

Two processes with `--threads 1`, each with half of the seeds, use two cores better than
one process with two threads.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, RESULTS, TASKS, append_line, load_task, read_lines, versions

VARIANTS = {
    "default": {},
    "default_ce": {"criterion__contrastive": None},
    "random_acl_cl": {"head_init": "random"},
    "random_ce": {"head_init": "random", "criterion__contrastive": None},
    "probe": {"head_init": "linear_probe"},
    "centroid": {"head_init": "centroid"},
}
TARGETS = {"banking77": (80.0, 87.0), "trec": (90.5, 94.0)}


def fit_variant(variant, train, test, *, seed, epochs, extra):
    """Train one variant of the classifier and score its exits."""
    from sklearn_acl import ACLClassifier

    class Timed(ACLClassifier):
        """The classifier, with the time that the start of the heads takes."""

        def _start_heads(self, rows):
            start = time.perf_counter()
            super()._start_heads(rows)
            self.head_seconds_ = time.perf_counter() - start

    clf = Timed(
        max_epochs=epochs, random_state=seed, verbose=0, **VARIANTS[variant], **extra
    )
    start = time.perf_counter()
    clf.fit(*train)
    fit_time = time.perf_counter() - start
    proba = clf.predict_proba_exits(test[0])
    scores = (clf.classes_[proba.argmax(-1)] == test[1]).mean(-1)
    return {
        "exits": [round(100 * float(score), 3) for score in scores],
        "fit_seconds": round(fit_time, 1),
        "head_share": round(clf.head_seconds_ / fit_time, 4),
        "angle_mean": [e.get("angle_mean") for e in clf.history],
        "gated_share": [e.get("gated_share") for e in clf.history],
    }


def fit_logistic_regression(train, test, *, seed):
    """Logistic regression on frozen, mean-pooled embeddings; C by cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    start = time.perf_counter()
    x_train, x_test = embed(train[0]), embed(test[0])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    grid = {"logisticregression__C": [1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0]}
    search = GridSearchCV(model, grid, cv=3).fit(x_train, train[1])
    return {
        "exits": [round(100 * float(search.score(x_test, test[1])), 3)],
        "fit_seconds": round(time.perf_counter() - start, 1),
        "C": search.best_params_["logisticregression__C"],
    }


def embed(texts, batch_size=64):
    """Mean-pooled last hidden states of the default encoder, not fine-tuned."""
    import torch

    from sklearn_acl.backbones import DEFAULT_BACKBONE, load_backbone

    model, tokenizer = load_backbone(DEFAULT_BACKBONE)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            part = texts[start : start + batch_size]
            if isinstance(part[0], str):
                columns = (part,)
            else:
                columns = tuple(list(column) for column in zip(*part, strict=True))
            inputs = tokenizer(
                *columns, padding=True, truncation=True, return_tensors="pt"
            )
            hidden = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None]
            rows.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(rows)


def run(args):
    """Run what is missing, one line per finished run."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    extra = dict(pair.split("=", 1) for pair in args.set)
    extra = {k: _number(v) for k, v in extra.items()}
    for task in args.tasks:
        for seed in args.seeds:
            for variant in args.variants:
                key = {
                    "task": task,
                    "variant": variant,
                    "seed": seed,
                    "n_train": args.n_train,
                    "n_test": args.n_test,
                    "epochs": args.epochs,
                    "set": extra,
                }
                if any(key.items() <= line.items() for line in read_lines(args.out)):
                    continue
                data = load_task(
                    task,
                    n_train=args.n_train,
                    n_test=args.n_test,
                    seed=seed,
                    data_dir=args.data_dir,
                )
                train, test = data[:2], data[2:]
                if variant == "logistic_regression":
                    result = fit_logistic_regression(train, test, seed=seed)
                else:
                    result = fit_variant(
                        variant,
                        train,
                        test,
                        seed=seed,
                        epochs=args.epochs,
                        extra=extra,
                    )
                append_line(args.out, {**key, **result, "versions": versions()})
                exits = " ".join(f"{score:.1f}" for score in result["exits"])
                print(f"{task} {variant} seed {seed}: {exits}", flush=True)


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"None": None, "True": True, "False": False}.get(text, text)


def report(args):
    """Print the tables and, for every task, the gate against logistic regression."""
    lines = read_lines(args.out)
    settings = sorted(
        {(ln["n_train"], ln["epochs"], str(ln["set"])) for ln in lines}, key=str
    )
    for n_train, epochs, extra in settings:
        part = [
            ln
            for ln in lines
            if (ln["n_train"], ln["epochs"], str(ln["set"])) == (n_train, epochs, extra)
        ]
        print(f"\n{n_train} training texts, {epochs} epochs, set {extra}")
        print(
            f"{'task':16}{'variant':22}{'seeds':>6}{'mean':>8}{'exit 1':>8}{'last':>8}"
        )
        for task in TASKS:
            for variant in [*VARIANTS, "logistic_regression"]:
                _print_row(part, task, variant)
        _print_gates(part)


def _scores(lines, task, variant):
    runs = [ln for ln in lines if (ln["task"], ln["variant"]) == (task, variant)]
    return {ln["seed"]: np.array(ln["exits"]) for ln in runs}


def _print_row(lines, task, variant):
    scores = _scores(lines, task, variant)
    if not scores:
        return
    mean = np.mean(list(scores.values()), axis=0)
    target = ""
    if variant == "default" and task in TARGETS:
        target = "  target {} / {}".format(*TARGETS[task])
    shares = [
        ln["head_share"]
        for ln in lines
        if (ln["task"], ln["variant"]) == (task, variant) and "head_share" in ln
    ]
    if shares:
        target = f"  head start {np.median(shares):.1%} of the fit" + target
    print(
        f"{task:16}{variant:22}{len(scores):6d}{mean.mean():8.2f}{mean[0]:8.2f}"
        f"{mean[-1]:8.2f}{target}"
    )


def _print_gates(lines):
    """Paired over seeds: last exit of the defaults less logistic regression."""
    from scipy.stats import t

    for task in TASKS:
        ours = _scores(lines, task, "default")
        theirs = _scores(lines, task, "logistic_regression")
        seeds = sorted(set(ours) & set(theirs))
        if len(seeds) < 2:
            continue
        gain = np.array([ours[s][-1] - theirs[s][-1] for s in seeds])
        margin = t.ppf(0.975, len(seeds) - 1) * gain.std(ddof=1) / np.sqrt(len(seeds))
        verdict = "passes" if gain.mean() >= -margin else "FAILS"
        print(
            f"gate {task}: last exit {gain.mean():+.2f} points over logistic "
            f"regression, 95 % margin {margin:.2f}, {len(seeds)} seeds: {verdict}"
        )


def main():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["run", "report"])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--variants", nargs="+", default=["default"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-train", type=int, default=1500)
    parser.add_argument("--n-test", type=int, help="default: all rows")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--set", nargs="*", default=[], metavar="PARAMETER=VALUE")
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "quality.jsonl")
    args = parser.parse_args()
    {"run": run, "report": report}[args.action](args)


if __name__ == "__main__":
    main()
