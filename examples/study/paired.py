"""Differences of two methods, paired by task and seed: means, intervals, verdicts."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
#: What "at least as good" may lose, in the unit of the scores.
TOLERANCE = 0.5
SUPPORTED = "supported"
ON_THESE_TASKS = "supported on these tasks"
NOT_SUPPORTED = "not supported"
UNDECIDED = "undecided"
TOO_FEW = "undecided: not enough runs yet"
NO_RUNS = "no runs yet"

#: The rule of `decide`, as the page of results states it.
RULE = f"""\
Two methods are compared by the difference of their scores, paired by task and seed:
both were trained on the same texts and scored on the same texts. Each task gives the
mean of its differences. The difference over tasks is the mean of these, over the tasks
with at least two pairs. It has two intervals of {100 * CONFIDENCE:g} %, by Student's t:

- **these tasks**: what other seeds would change, and with them other training texts.
  The variance is that of the seeds within each task; the degrees of freedom are those
  of Welch and Satterthwaite.
- **tasks like these**: what other tasks would change, as far as these are a fair sample
  of them; from the spread of the means of the tasks.

A claim that one method is better than another ("more than") is

- **{SUPPORTED}** if the difference and all of both intervals are above 0;
- **{ON_THESE_TASKS}** if all of the first interval is above 0, but not the second;
- **{NOT_SUPPORTED}** if all of the first interval is below 0;
- **{UNDECIDED}** otherwise. With fewer than two tasks that have two seeds it is
  "{TOO_FEW}".

A claim that one is as good as another ("at least") is judged by the same rule, with
-{TOLERANCE} points as the bound of the intervals instead of 0: it takes a difference
above 0, and allows no interval to reach a loss of {TOLERANCE} points. Intervals and
verdicts are not corrected for their number: of many differences that are not there, a
few will look as if they were."""


class Mean(NamedTuple):
    """Mean of the differences on one task.

    Attributes
    ----------
    mean : float
    margin : float
        Half of the interval's length; NaN for one difference.
    n : int
        Number of differences.
    """

    mean: float
    margin: float
    n: int


class Comparison(NamedTuple):
    """What `summarize` returns.

    Attributes
    ----------
    tasks : dict of str to Mean
        Every task with a difference.
    mean : float
        Over tasks; NaN if there are none.
    these, others : tuple of (float, float) or None
        Ends of the intervals for these tasks, and for other tasks like these; None
        where fewer than two tasks have two differences.
    n_tasks, n_pairs : int
        Tasks and differences behind the mean.
    """

    tasks: dict
    mean: float
    these: tuple | None
    others: tuple | None
    n_tasks: int
    n_pairs: int


def minus(ours, theirs):
    """Differences of scores that both have, by (task, seed)."""
    return {key: ours[key] - theirs[key] for key in ours if key in theirs}


def compare(ours, theirs):
    """`summarize` the differences of scores.

    Parameters
    ----------
    ours, theirs : dict of (str, int) to float
        Scores by (task, seed).

    Returns
    -------
    Comparison
    """
    return summarize(minus(ours, theirs))


def summarize(differences):
    """Mean and intervals of differences, per task and over tasks.

    The mean over tasks is that of the tasks with at least two differences; where there
    are not two such tasks, it is that of all tasks, without intervals.

    Parameters
    ----------
    differences : dict of (str, int) to float
        By (task, seed).

    Returns
    -------
    Comparison
    """
    values = {}
    for (task, _), value in differences.items():
        values.setdefault(task, []).append(value)
    tasks = {task: _mean_of_task(found) for task, found in values.items()}
    enough = [found for found in values.values() if len(found) > 1]
    used = enough if len(enough) > 1 else list(values.values())
    means = [np.mean(found) for found in used]
    mean = float(np.mean(means)) if means else math.nan
    these = others = None
    if len(enough) > 1:
        these, others = _around(mean, *_of_seeds(used)), _around(mean, *_of(means))
    return Comparison(tasks, mean, these, others, len(used), sum(map(len, used)))


def decide(comparison, at_least=False):
    """Verdict on the claim that a difference is positive.

    This is the rule, once for all claims; `RULE` states it in words. With the bound 0,
    or -`TOLERANCE` for the claim of being at least as good, a claim is

    * "supported" if the mean is positive and both intervals lie above the bound,
    * "supported on these tasks" if the mean is positive and only the interval for these
      tasks does,
    * "not supported" if the interval for these tasks lies below the bound,
    * "undecided" otherwise; if fewer than two tasks have two pairs of runs, for want of
      runs.

    Parameters
    ----------
    comparison : Comparison
    at_least : bool, default=False

    Returns
    -------
    str
    """
    if comparison.these is None:
        return TOO_FEW
    bound = -TOLERANCE if at_least else 0.0
    if comparison.mean > 0 and comparison.these[0] > bound:
        return SUPPORTED if comparison.others[0] > bound else ON_THESE_TASKS
    return NOT_SUPPORTED if comparison.these[1] < bound else UNDECIDED


def _mean_of_task(values):
    margin = math.nan
    if len(values) > 1:
        margin = _margin(*_of(values))
    return Mean(float(np.mean(values)), margin, len(values))


def _of(values):
    """(standard error, degrees of freedom) of a mean of independent values."""
    return np.std(values, ddof=1) / math.sqrt(len(values)), len(values) - 1


def _of_seeds(tasks):
    """The same for a mean of means of tasks that are fixed (Welch-Satterthwaite)."""
    parts = np.array([np.var(values, ddof=1) / len(values) for values in tasks])
    freedom = np.array([len(values) - 1 for values in tasks])
    if not parts.any():
        return 0.0, freedom.sum()
    return (
        math.sqrt(parts.sum()) / len(tasks),
        parts.sum() ** 2 / (parts**2 / freedom).sum(),
    )


def _around(mean, error, freedom):
    margin = _margin(error, freedom)
    return mean - margin, mean + margin


def _margin(error, freedom):
    return float(_quantile(freedom) * error)


@lru_cache(maxsize=1000)
def _quantile(freedom):
    from scipy.stats import t

    return t.ppf((1 + CONFIDENCE) / 2, freedom)
