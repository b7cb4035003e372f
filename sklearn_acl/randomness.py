"""One seed for a fit, without a trace on the caller's random generators."""

import threading
from contextlib import contextmanager

import numpy as np
import torch
from sklearn.utils import check_random_state


def draw_seed(random_state):
    """Turn `random_state` into one integer seed.

    Parameters
    ----------
    random_state : int, numpy.random.RandomState or None
        None takes entropy from the system, not from numpy's global generator. A
        `RandomState` is advanced, as everywhere in scikit-learn.

    Returns
    -------
    seed : int
        In [0, 2**31).
    """
    if random_state is None:
        return int(np.random.SeedSequence().entropy % 2**31)
    if isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return int(random_state)


# Dropout draws from generators of the whole process: two trainings at a time would
# take each other's numbers, and put back what the other one left.
_generators_lock = threading.RLock()


@contextmanager
def seeded(seed):
    """Run a block with torch's generators seeded, then put them back.

    One thread at a time; others wait.
    """
    devices = list(range(torch.cuda.device_count()))
    with _generators_lock, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
