"""What each `gate_scope` costs, and how well it predicts the angle over the encoder.

Every optimizer step of one training is computed at all three scopes, on the same batch
and with the same dropout, and once as joint cross-entropy without a gate. Printed per
task and head start: time per step over that of joint CE, mean angle, share of
mini-batches above 90 degrees, correlation of the angle with that at "encoder", and the
share of steps at which both take the same decision. Usage, from the root of the
project:

    python examples/benchmarks/gate_scopes.py --tasks trec mrpc
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tasks import DATA_DIR, RESULTS, append_line, load_task, versions

from sklearn_acl import ACLClassifier
from sklearn_acl.gradients import GATE_SCOPES, gated_backward
from sklearn_acl.losses import ACLLoss


class EveryScope(ACLClassifier):
    """A classifier that measures each step at every scope before it takes it."""

    def train_step(self, batch, **fit_params):
        """Measure, then train as usual."""
        self.module_.train()
        parameters = list(self.module_.parameters())
        state = torch.get_rng_state()
        angles, seconds = {}, {}
        plain = ACLLoss(contrastive=None)
        names = ["joint_ce", *GATE_SCOPES]
        # another order at each step: none always finds the caches warm
        shift = len(self.step_angles_) % len(names)
        for name in names[shift:] + names[:shift]:
            torch.set_rng_state(state)
            criterion = plain if name == "joint_ce" else self.criterion_
            self.criterion_, kept = criterion, self.criterion_
            start = time.perf_counter()
            step = gated_backward(
                self.module_,
                parameters,
                self._micro_batches(*batch),
                criterion,
                angle_threshold=90.0,
                gate_scope="encoder" if name == "joint_ce" else name,
            )
            seconds[name] = time.perf_counter() - start
            self.criterion_ = kept
            angles[name] = step.angle
        self.measured_.append((angles, seconds))
        torch.set_rng_state(state)
        return super().train_step(batch, **fit_params)


def measure(task, head_init, args):
    """One line per training: angles and times of every scope."""
    texts, labels, _, _ = load_task(
        task, n_train=args.n_train, seed=0, n_test=1, data_dir=args.data_dir
    )
    clf = EveryScope(
        head_init=head_init,
        criterion__anchors=args.anchors,
        max_epochs=args.epochs,
        random_state=0,
        verbose=0,
    )
    clf.measured_ = []
    clf.fit(texts, labels)
    angles = {s: np.array([a[s] for a, _ in clf.measured_]) for s in GATE_SCOPES}
    times = {
        name: np.median([t[name] / t["joint_ce"] for _, t in clf.measured_])
        for name in GATE_SCOPES
    }
    return {
        scope: {
            "time_over_joint_ce": round(float(times[scope]), 3),
            "angle_mean": round(float(np.nanmean(angles[scope])), 1),
            "share_above_90": round(float((angles[scope] > 90).mean()), 4),
            "correlation_with_encoder": round(
                float(np.corrcoef(angles[scope], angles["encoder"])[0, 1]), 3
            ),
            "same_decision": round(
                float(((angles[scope] > 90) == (angles["encoder"] > 90)).mean()), 4
            ),
        }
        for scope in GATE_SCOPES
    }


def main():
    """Parse the command line and print a table per training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["trec", "mrpc"])
    parser.add_argument("--head-init", nargs="+", default=["lda", "random"])
    parser.add_argument("--anchors", default="all")
    parser.add_argument("--n-train", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "gate_scopes.jsonl")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    for task in args.tasks:
        for head_init in args.head_init:
            result = measure(task, head_init, args)
            setting = {
                "task": task,
                "head_init": head_init,
                "anchors": args.anchors,
                "n_train": args.n_train,
                "epochs": args.epochs,
            }
            append_line(args.out, {**setting, **result, "versions": versions()})
            print(f"\n{task}, head_init={head_init!r}, anchors={args.anchors!r}")
            for scope, numbers in result.items():
                row = "  ".join(f"{k} {v}" for k, v in numbers.items())
                print(f"  {scope:12}{row}", flush=True)


if __name__ == "__main__":
    main()
