"""Finished runs by what they are: experiment, setting, task and seed."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from experiments import EXPERIMENTS, make_run

KEY = ("kind", "task", "part", "n_train", "n_test", "seed", "params")

#: Experiment in which a method was run as the others were.
HOME = {
    "ce": "exits",
    "scl": "exits",
    "acl_embed_grad": "exits",
    "acl": "exits",
    "two_stage": "strategies",
    "alternating": "strategies",
    "final_ce": "final",
    "final_scl": "final",
    "final_acl": "final",
    "small_ce": "small",
    "small_acl": "small",
    "acl_embed": "ablation",
    "acl_cl": "ablation",
}


class Reading(NamedTuple):
    """Which exits a score is read from.

    Attributes
    ----------
    name : str
        As tables write it.
    read : callable
        From the scores of the exits to a number.
    """

    name: str
    read: callable


MEAN = Reading("mean over exits", lambda exits: float(np.mean(exits)))
LAST = Reading("last exit", lambda exits: exits[-1])
EARLIER = Reading("mean over exits before the last", lambda e: float(np.mean(e[:-1])))
SHALLOW_LESS_LAST = Reading("exit 1 less last exit", lambda e: e[0] - e[-1])


def at_exit(layer):
    """Reading of one exit, counted from 1."""
    return Reading(f"exit {layer}", lambda exits: exits[layer - 1])


class Runs:
    """Lines of finished runs, to be looked up.

    Parameters
    ----------
    lines : list of dict
        As `run.py` writes them; whatever is missing is missing in the answers.
    """

    def __init__(self, lines):
        self.lines = lines
        self._found = {_key(line): line for line in lines}

    def of(self, experiment, setting):
        """Lines of a setting of an experiment, by (task, seed).

        A run is found by what it is, whichever experiment it was made for.
        """
        entry = EXPERIMENTS[experiment]
        found = {}
        for task in entry.tasks:
            for seed in range(entry.seeds):
                run = make_run(entry, task, seed, entry.settings[setting])
                line = self._found.get(_key(run))
                if line is not None:
                    found[task, seed] = line
        return found

    def of_method(self, method, head):
        """Lines of a method from a start of the heads, by (task, seed)."""
        return self.of(HOME[method], f"{method}, {head}")


def scores(lines, reading=MEAN):
    """Accuracy in percent by (task, seed), of lines by (task, seed)."""
    return {key: reading.read(line["exits"]) for key, line in lines.items()}


def matthews(lines, reading=MEAN):
    """Matthews correlation in hundredths by (task, seed), where there is one."""
    return {
        key: 100 * reading.read(line["matthews"])
        for key, line in lines.items()
        if "matthews" in line
    }


def _key(run):
    return json.dumps([run.get(name) for name in KEY], sort_keys=True)
