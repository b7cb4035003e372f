"""Run the study, one JSON line per finished run; what is in the file is not repeated.

    python examples/study/run.py --threads 1
    python examples/study/run.py --threads 1 --experiments exits --seeds 0 1
    python examples/study/run.py --list

Several processes may run side by side: none takes a run that another one has. A run
that is stopped leaves nothing, and the next call starts it anew.
"""

import argparse
import sys
import time
from hashlib import sha256
from json import dumps
from pathlib import Path
from tempfile import gettempdir

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from experiments import EXPERIMENTS, TASKS, runs
from measure import measure
from tasks import DATA_DIR, append_line, read_lines, versions

RESULTS = Path(__file__).resolve().parent / "results"


def run_missing(planned, out, data_dir=DATA_DIR):
    """Run what the file does not hold, and append a line for each.

    Parameters
    ----------
    planned : iterable of dict
        From `experiments.runs`.
    out : path
    data_dir : path

    Returns
    -------
    int
        Number of runs that were made.
    """
    from filelock import FileLock, Timeout

    out, n_made = Path(out).resolve(), 0
    folder = Path(gettempdir()) / f"acl_study_{digest(str(out))}"
    folder.mkdir(exist_ok=True)
    for run in planned:
        try:
            # released by the system if its holder dies
            with FileLock(folder / digest(run), timeout=0):
                if not is_there(run, read_lines(out)):
                    run_one(run, out, data_dir)
                    n_made += 1
        except Timeout:
            continue
    return n_made


def run_one(run, out, data_dir):
    """Make one run and append its line."""
    start = time.perf_counter()
    found = measure(run, data_dir)
    append_line(out, {**found, **run, "versions": versions()})
    scores = " ".join(f"{score:.1f}" for score in found["exits"])
    seconds = time.perf_counter() - start
    print(f"{describe(run)}: {scores} ({seconds:.0f} s)", flush=True)


def is_there(run, lines):
    """Whether a line is of this run."""
    return any(run.items() <= line.items() for line in lines)


def digest(value):
    """Short name of a value."""
    return sha256(dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def describe(run):
    """Task, seed and what differs from the base settings."""
    from experiments import BASE

    changes = {k: v for k, v in run["params"].items() if BASE.get(k, ...) != v}
    settings = ", ".join(f"{k.split('__')[-1]}={v}" for k, v in changes.items())
    part = "" if run["part"] == "scored" else f" {run['part']}"
    return f"{run['kind']} {run['task']}{part} seed {run['seed']} [{settings}]"


def main(arguments=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {"nargs": "+", "choices": list(EXPERIMENTS), "default": list(EXPERIMENTS)}
    parser.add_argument("--experiments", **names)
    parser.add_argument("--tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--threads", type=int, help="of this process; 1 per core")
    parser.add_argument("--list", action="store_true", help="print what is missing")
    parser.add_argument("--data-dir", default=DATA_DIR)
    parser.add_argument("--out", default=RESULTS / "runs.jsonl")
    args = parser.parse_args(arguments)
    planned = list(runs(args.experiments, args.tasks, args.seeds))
    if args.list:
        lines = read_lines(args.out)
        missing = [run for run in planned if not is_there(run, lines)]
        print("\n".join(map(describe, missing)))
        print(f"{len(missing)} of {len(planned)} runs are missing")
        return
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    run_missing(planned, args.out, args.data_dir)


if __name__ == "__main__":
    main()
