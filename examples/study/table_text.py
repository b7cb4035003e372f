"""Markdown of the tables: cells and rows."""

import numpy as np
from paired import NO_RUNS

NOTHING = "–"


def table(header, rows):
    """A Markdown table; the cells of its first column stand left, others right."""
    if not rows:
        return f"*{NO_RUNS}*"
    marks = [":--"] + ["--:"] * (len(header) - 1)
    lines = [header, marks, *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def number(value, digits=2):
    """A number, or a dash for None and NaN."""
    if value is None or np.isnan(value):
        return NOTHING
    return f"{steady(value):.{digits}f}"


def steady(value):
    """A number without the last digits, in which machines differ when they sum up."""
    return round(float(value), 9)


def signed(value, digits=2):
    """A difference, with its sign."""
    if value is None or np.isnan(value):
        return NOTHING
    return f"{steady(value):+.{digits}f}"


def interval(ends):
    """Ends of an interval, or a dash for None."""
    if ends is None:
        return NOTHING
    return f"[{signed(ends[0])}, {signed(ends[1])}]"


def gain(found):
    """Mean of a task with its margin and number of pairs, or a dash for None."""
    if found is None:
        return NOTHING
    margin = "" if np.isnan(found.margin) else f" ± {number(found.margin)}"
    return f"{signed(found.mean)}{margin} ({found.n})"


def mean_and_count(values, digits=2):
    """Mean of values with their number, or a dash if there are none."""
    return f"{number(np.mean(values), digits)} ({len(values)})" if values else NOTHING
