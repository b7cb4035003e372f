"""Claims that one method is better than another, and the tables they are read from."""

from typing import NamedTuple

from experiments import TASKS
from lookup import MEAN, at_exit, matthews, scores
from paired import Comparison, compare, decide, minus, summarize
from table_text import NOTHING, gain, interval, mean_and_count, signed, table

#: Task of which tables show Matthews correlation, too.
MATTHEWS = "cola"


class Claim(NamedTuple):
    """A difference that is claimed to be positive.

    Attributes
    ----------
    what : str
        The difference, such as "acl - ce".
    where : str
        Name of the reading; "" if `what` says it.
    heads : str
        How exits started; "" if `what` says it.
    found : Comparison
    at_least : bool
        Whether the claim is no more than being as good.
    main : bool
        Whether its verdict is in the sentences above the table.
    unit : str
    """

    what: str
    where: str
    heads: str
    found: Comparison
    at_least: bool = False
    main: bool = True
    unit: str = "points"

    @property
    def verdict(self):
        """Word or words of `decide`."""
        return decide(self.found, self.at_least)

    @property
    def asserted(self):
        """The claim in words: "acl - ce" is that acl is more than ce."""
        left, _, right = self.what.partition(" - ")
        if not right:
            return self.what
        return f"{left} {'at least' if self.at_least else 'more than'} {right}"


def in_words(found):
    """Sentences with the verdicts of the main claims, and a table of all.

    Parameters
    ----------
    found : list of Claim

    Returns
    -------
    (str, str)
    """
    sentences = {}
    for claim in found:
        if claim.main:
            what = ", ".join(filter(None, [claim.asserted, claim.where]))
            heads = f" ({claim.heads} heads)" if claim.heads else ""
            sentences.setdefault(what, []).append(f"**{claim.verdict}**{heads}")
    lines = [f"- {what}: {', '.join(found)}" for what, found in sentences.items()]
    header = ["difference", "read at", "heads", "mean", "these tasks"]
    header += ["tasks like these", "tasks", "pairs", "verdict"]
    rows = [
        [
            f"{claim.what} ({claim.unit})",
            claim.where or NOTHING,
            claim.heads or NOTHING,
            signed(claim.found.mean),
            interval(claim.found.these),
            interval(claim.found.others),
            claim.found.n_tasks,
            claim.found.n_pairs,
            claim.verdict,
        ]
        for claim in found
        if claim.found.tasks
    ]
    return "\n".join(lines), table(header, rows)


def methods_of(runs, names, head):
    """Lines by (task, seed) of each method, from one start of the heads."""
    return {name: runs.of_method(name, head) for name in names}


def against(columns, ours, others):
    """Pairs of a method with others, by the name of the difference."""
    return {f"{ours} - {other}": (columns[ours], columns[other]) for other in others}


def make_claim(what, head, sides, reading, **options):
    """The claim that the first side scores more than the second.

    Parameters
    ----------
    what, head, **options
        As `Claim` has them.
    sides : (dict, dict)
        Lines by (task, seed).
    reading : Reading

    Returns
    -------
    Claim
    """
    ours, theirs = (scores(lines, reading) for lines in sides)
    return Claim(what, reading.name, head, compare(ours, theirs), **options)


def with_claims(found, tables):
    """Sentences on claims, and a list of their table and of others that have rows."""
    sentences, of_claims = in_words(found)
    return sentences, [of_claims, *(text for text in tables if "|" in text)]


def headed(head, text):
    """A table under the start of the heads that it is about; "" without rows."""
    return f"With {head} heads:\n\n{text}" if "|" in text else ""


def scores_by_task(columns, reading=MEAN):
    """A table of means over seeds: a row per task, a column per method.

    Each row takes the seeds that all methods have, of those with a run on its task: of
    different seeds, means can't be compared.

    Parameters
    ----------
    columns : dict of str to dict
        Lines by (task, seed), by the name of the column.
    reading : Reading, default=MEAN

    Returns
    -------
    str
    """
    found = {
        name: (scores(lines, reading), matthews(lines, reading))
        for name, lines in columns.items()
    }
    rows = []
    for row in _rows():
        task, _, other = row.partition(", ")
        values = [
            {
                seed: value
                for (of, seed), value in both[bool(other)].items()
                if of == task
            }
            for both in found.values()
        ]
        seeds = _common(values)
        cells = [mean_and_count([v[s] for s in seeds if v]) for v in values]
        if set(cells) != {NOTHING}:
            rows.append([row, *cells])
    return table([f"{reading.name} (seeds)", *columns], rows)


def gains_by_task(pairs, reading=MEAN):
    """A table of paired differences: a row per task, a column per pair.

    Parameters
    ----------
    pairs : dict of str to (dict, dict)
        Lines of both sides by (task, seed), by the name of the column.
    reading : Reading, default=MEAN

    Returns
    -------
    str
    """
    found = {}
    for name, (ours, theirs) in pairs.items():
        by_accuracy = minus(scores(ours, reading), scores(theirs, reading))
        by_matthews = minus(matthews(ours, reading), matthews(theirs, reading))
        found[name] = summarize(by_accuracy).tasks | _named(summarize(by_matthews))
    rows = []
    for task in _rows():
        cells = [gain(found[name].get(task)) for name in pairs]
        if set(cells) != {NOTHING}:
            rows.append([task, *cells])
    return table([f"{reading.name}, margin (pairs)", *pairs], rows)


def gain_per_exit(pairs):
    """Paired differences over tasks, a row per exit."""
    lines = [ln for sides in pairs.values() for side in sides for ln in side.values()]
    n_exits = max((len(line["exits"]) for line in lines), default=0)
    rows = []
    for layer in range(1, n_exits + 1):
        reading = at_exit(layer)
        cells = [
            compare(*(scores(side, reading) for side in sides))
            for sides in pairs.values()
        ]
        if any(cell.tasks for cell in cells):
            rows.append([layer, *map(_over_tasks, cells)])
    return table(["exit, these tasks (tasks)", *pairs], rows)


def _over_tasks(found):
    if not found.tasks:
        return NOTHING
    return f"{signed(found.mean)} {interval(found.these)} ({found.n_tasks})"


def _rows():
    """Tasks, and one with its other score."""
    for task in TASKS:
        yield task
        if task == MATTHEWS:
            yield f"{task}, Matthews"


def _of_task(values, task):
    return {seed: value for (name, seed), value in values.items() if name == task}


def _common(parts):
    """Keys that all dicts have which are not empty."""
    present = [set(part) for part in parts if part]
    return sorted(set.intersection(*present)) if present else []


def _named(comparison):
    return {f"{task}, Matthews": mean for task, mean in comparison.tasks.items()}
