"""What each `gate_scope` costs, and how well it predicts the angle over the encoder.

Every optimizer step of one training is computed at all three scopes, on the same batch
and with the same dropout, and also without a gate, and as joint cross-entropy. Times
are those of the forward and the backward pass, without gradient clipping and the
optimizer, which take the same in every row. Printed per task and head start: time per
step over that of joint cross-entropy; mean angle; share of mini-batches above 90
degrees; correlation of the angle with that at "encoder", over the steps where both are
defined, with the number of those left out; and the share of steps at which both take
the same decision. On the CPU. Usage, from the root of the project:

    python examples/benchmarks/gate_scopes.py --tasks trec mrpc
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
from sklearn_acl.backbones import DEFAULT_BACKBONE
from sklearn_acl.criterion import ACLLoss
from sklearn_acl.gradients import GATE_SCOPES, gated_backward

CHEAP_SCOPES = ("ffn_output", "exit_dense")
MAX_COST = 1.25  # of a cheap scope, over joint cross-entropy
ROWS = ("joint_ce", "no_gate", *GATE_SCOPES)


class EnoughSteps(Exception):
    """Ends a training after the steps that were asked for."""


class EveryScope(ACLClassifier):
    """A classifier that measures each step in every way before it takes it."""

    def train_step(self, batch, **fit_params):
        """Measure, then train as usual."""
        if len(self.measured_) == self.max_steps_:
            raise EnoughSteps
        self._set_training(True)
        state = torch.get_rng_state()
        shift = len(self.measured_) % len(ROWS)
        found = {}
        # another order at each step: none always finds the caches warm
        for name in ROWS[shift:] + ROWS[:shift]:
            torch.set_rng_state(state)
            found[name] = self._measure(name, batch)
        self.measured_.append(found)
        torch.set_rng_state(state)
        return super().train_step(batch, **fit_params)

    def _measure(self, name, batch):
        """(angle, seconds) of one forward and backward pass."""
        kept = self.criterion_
        if name == "joint_ce":
            self.criterion_ = ACLLoss(contrastive=None)
        trains = self.stage_.step(0)
        start = time.perf_counter()
        step = gated_backward(
            self.module_,
            list(self.module_.parameters()),
            self._micro_batches(trains, *batch),
            self.criterion_,
            angle_threshold=90.0 if name in GATE_SCOPES else None,
            gate_scope=name if name in GATE_SCOPES else "encoder",
        )
        seconds = time.perf_counter() - start
        self.criterion_ = kept
        return step.angle, seconds


def measure(task, head_init, args):
    """{row: numbers} of one training."""
    texts, labels, _, _ = load_task(
        task, n_train=args.n_train, seed=0, n_test=1, data_dir=args.data_dir
    )
    clf = EveryScope(
        args.backbone,
        head_init=head_init,
        criterion__anchors=args.anchors,
        max_epochs=args.epochs,
        batch_size=args.batch_size,
        random_state=0,
        device="cpu",
        verbose=0,
    )
    clf.measured_, clf.max_steps_ = [], args.max_steps
    try:
        clf.fit(texts, labels)
    except EnoughSteps:
        pass
    return summarize(clf.measured_)


def summarize(steps):
    """Numbers per row from a list of {row: (angle, seconds)}.

    A number that no step defines is None.
    """
    angles = {name: np.array([step[name][0] for step in steps]) for name in ROWS}
    result = {}
    for name in ROWS[1:]:
        costs = [step[name][1] / step["joint_ce"][1] for step in steps]
        result[name] = {"forward_backward_over_joint_ce": _rounded(np.median(costs), 3)}
        if name in GATE_SCOPES:
            result[name] |= compare_angles(angles[name], angles["encoder"])
    return {"steps": len(steps), **result}


def compare_angles(own, reference):
    """Angles of a scope against those over the encoder, step by step."""
    both = np.isfinite(own) & np.isfinite(reference)
    defined = own[np.isfinite(own)]
    # a correlation needs angles that differ
    varied = both.any() and np.ptp(own[both]) > 0 and np.ptp(reference[both]) > 0
    correlation = np.corrcoef(own[both], reference[both])[0, 1] if varied else np.nan
    return {
        "angle_mean": _rounded(defined.mean() if defined.size else np.nan, 1),
        "share_above_90": _rounded((own > 90).mean(), 4),
        "correlation_with_encoder": _rounded(correlation, 3),
        "dropped": int((~both).sum()),
        "same_decision": _rounded(((own > 90) == (reference > 90)).mean(), 4),
    }


def _rounded(value, digits):
    return round(float(value), digits) if np.isfinite(value) else None


def print_result(result):
    """A row per scope, then the verdict on the cheap ones."""
    for name in ROWS[1:]:
        numbers = "  ".join(f"{k} {v}" for k, v in result[name].items())
        print(f"  {name:12}{numbers}")
    for name in CHEAP_SCOPES:
        cost = result[name]["forward_backward_over_joint_ce"]
        print(
            f"  {verdict(cost <= MAX_COST)} {name}: {cost} of joint cross-entropy, "
            f"target <= {MAX_COST}",
            flush=True,
        )


def main(arguments=None):
    """Parse the command line and print a table per training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--head-init", nargs="+", default=["lda", "random"])
    parser.add_argument("--anchors", default="all")
    parser.add_argument("--n-train", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-steps", type=int, help="default: all of the epochs")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "gate_scopes.jsonl")
    args = parser.parse_args(arguments)
    if args.max_steps is not None and args.max_steps < 1:
        parser.error(f"--max-steps must be at least 1, got {args.max_steps}")
    if args.threads:
        torch.set_num_threads(args.threads)
    names = ("anchors", "n_train", "epochs", "batch_size", "max_steps")
    for task in args.tasks:
        for head_init in args.head_init:
            result = measure(task, head_init, args)
            setting = {"task": task, "head_init": head_init}
            setting |= {name: getattr(args, name) for name in names}
            append_line(
                args.out,
                {
                    **setting,
                    "threads": torch.get_num_threads(),
                    **result,
                    "versions": versions(),
                },
            )
            print(
                f"\n{task}, head_init={head_init!r}, anchors={args.anchors!r}, "
                f"{result['steps']} steps"
            )
            print_result(result)


if __name__ == "__main__":
    main()
