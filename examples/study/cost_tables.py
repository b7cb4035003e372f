"""Verdicts and tables on what answers cost: early exit, and rivals of the library."""

import numpy as np
from claims import Claim, scores_by_task, with_claims
from exit_tables import up_to
from experiments import EXPERIMENTS, METHODS
from lookup import LAST, scores
from paired import (
    CONFIDENCE,
    NOT_SUPPORTED,
    SUPPORTED,
    TOO_FEW,
    UNDECIDED,
    compare,
)
from table_text import number, signed, table

#: Threshold of the claims on early exit; chosen before any run.
THRESHOLD = 0.9
#: Experiments with what a user would pick instead.
RIVALS = ("rivals", "setfit")
#: Share of tuned settings that may lose more than `max_drop`.
ALLOWED = 0.05
#: Where a time is read while another process ran on the second core.
OF_TIMES = "Times: two processes shared two cores."


def tuned(runs):
    """Quality against measured time along thresholds."""
    lines = runs.of("tuned", "acl, lda")
    at = {key: _at_threshold(line, THRESHOLD) for key, line in lines.items()}
    at = {key: row for key, row in at.items() if row is not None}
    full = {key: lines[key]["full_depth_accuracy"] for key in at}
    found = [
        _claim(
            f"full depth's time - that at threshold {THRESHOLD:g}",
            dict.fromkeys(at, 100.0),
            {key: 100 * row["time_over_full_depth"] for key, row in at.items()},
            unit="% of full depth's",
        ),
        _claim(
            f"accuracy at threshold {THRESHOLD:g} - that at full depth",
            {key: row["accuracy"] for key, row in at.items()},
            full,
            at_least=True,
        ),
        _claim(
            "accuracy along thresholds - that of one exit for all at as many layers",
            {key: _over_fixed_exit(line) for key, line in lines.items()},
            dict.fromkeys(lines, 0.0),
        ),
    ]
    sentences, tables = with_claims(found, [_along(lines)])
    return sentences, tables + [OF_TIMES] * bool(lines)


def guarantee(runs):
    """What was promised about the risk, and what held on the test texts."""
    settings = [
        {
            **setting,
            "task": task,
            "seed": seed,
            "lost": line["full_depth_accuracy"] - setting["accuracy"],
            "early": setting["average_exit_layer"] < len(line["exits"]),
        }
        for (task, seed), line in runs.of("tuned", "acl, lda").items()
        for setting in line["tuned"]
        if setting["guaranteed"]
    ]
    rows = []
    for risk, drop in dict.fromkeys((s["risk"], s["max_drop"]) for s in settings):
        part = [s for s in settings if (s["risk"], s["max_drop"]) == (risk, drop)]
        rows.append(_risk_row(risk, drop, part))
    header = ["`risk`", "`max_drop` in %", "settings", "that leave early"]
    header += ["mean test risk in %", "largest", "above `max_drop`"]
    header += ["average exit layer", "accuracy less full depth"]
    return _risk_sentence(settings), [table(header, rows)]


def rivals(runs):
    """What a user would pick instead, on the same texts."""
    depth = METHODS["small_ce"]["n_layers"]
    ours = runs.of_method("acl", "lda")
    columns = {"acl, lda": ours, f"acl, lda, exit {depth}": up_to(ours, depth)}
    groups = [
        {name: runs.of(experiment, name) for name in EXPERIMENTS[experiment].settings}
        for experiment in RIVALS
    ]
    others = {name: lines for group in groups for name, lines in group.items()}
    found = []
    for column, lines in columns.items():
        found += [
            Claim(
                f"{column} - {name}",
                LAST.name if column == "acl, lda" else f"exit {depth}",
                "lda",
                compare(scores(lines, LAST), scores(theirs, LAST)),
                main=column == "acl, lda",
            )
            for name, theirs in others.items()
        ]
    # a table for each: few seeds of one rival must not hide those of the others
    tables = [scores_by_task(columns | group, LAST) for group in groups]
    tables.append(_costs(columns | others, depth))
    sentences, tables = with_claims(found, tables)
    return sentences, tables + [OF_TIMES] * any((columns | others).values())


def mean_along(lines, task):
    """Means over seeds at each threshold of one task.

    Returns
    -------
    list of dict
        With "threshold", "average_exit_layer", "time_over_full_depth", "accuracy",
        "full_depth" and "seeds"; in the order of thresholds.
    """
    found = {}
    for (name, _), line in lines.items():
        if name == task:
            for row in line["along"]:
                values = {**row, "full_depth": line["full_depth_accuracy"]}
                found.setdefault(row["threshold"], []).append(values)
    return [
        {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        | {"seeds": len(rows)}
        for _, rows in sorted(found.items())
    ]


def _claim(what, ours, theirs, **options):
    return Claim(what, "test texts", "lda", compare(ours, theirs), **options)


def _at_threshold(line, threshold):
    return next((row for row in line["along"] if row["threshold"] == threshold), None)


def _over_fixed_exit(line):
    """Points over a line through the accuracies of fixed exits, mean over thresholds.

    No threshold is chosen, so none is chosen on the test texts.
    """
    layers = np.arange(1, len(line["exits"]) + 1)
    return float(
        np.mean(
            [
                row["accuracy"]
                - np.interp(row["average_exit_layer"], layers, line["exits"])
                for row in line["along"]
            ]
        )
    )


def _along(lines):
    rows = []
    for task in dict.fromkeys(task for task, _ in lines):
        for row in mean_along(lines, task):
            rows.append(
                [
                    task,
                    f"{row['threshold']:g}",
                    number(row["average_exit_layer"]),
                    number(row["time_over_full_depth"]),
                    number(row["accuracy"]),
                    signed(row["accuracy"] - row["full_depth"]),
                    row["seeds"],
                ]
            )
    header = ["task", "threshold", "average exit layer", "time over full depth"]
    header += ["accuracy", "less full depth", "seeds"]
    return table(header, rows)


def _risk_row(risk, drop, part):
    """Numbers of the tuned settings of one kind."""
    test = [100 * setting["test_risk"] for setting in part]
    return [
        risk,
        f"{100 * drop:g}",
        len(part),
        sum(setting["early"] for setting in part),
        number(np.mean(test)),
        number(max(test)),
        sum(setting["test_risk"] > drop for setting in part),
        number(np.mean([setting["average_exit_layer"] for setting in part])),
        signed(-np.mean([setting["lost"] for setting in part])),
    ]


def _risk_sentence(settings):
    """How many tuned settings lose more than promised, and the verdict.

    "Supported" if their share is at most `ALLOWED`; "not supported" if the whole
    interval of Clopper and Pearson for that share lies above it.
    """
    claim = (
        f"- at most {100 * ALLOWED:g} % of the tuned settings lose more than `max_drop`"
    )
    if not settings:
        return f"{claim}: **{TOO_FEW}**"
    from scipy.stats import binomtest

    n_above = sum(s["test_risk"] > s["max_drop"] for s in settings)
    ends = binomtest(n_above, len(settings)).proportion_ci(CONFIDENCE, "exact")
    verdict = SUPPORTED if n_above <= ALLOWED * len(settings) else UNDECIDED
    if ends.low > ALLOWED:
        verdict = NOT_SUPPORTED
    if min(len({s[name] for s in settings}) for name in ("task", "seed")) < 2:
        verdict = TOO_FEW
    share = 100 * n_above / len(settings)
    return (
        f"{claim}: **{verdict}**. On the test texts {n_above} of {len(settings)} do "
        f"({share:.1f} %, {100 * CONFIDENCE:g} % interval {100 * ends.low:.1f} to "
        f"{100 * ends.high:.1f} %, as if they were independent)."
    )


def _costs(columns, depth):
    """Medians over runs, of the tasks that every method with runs has."""
    present = {name: lines for name, lines in columns.items() if lines}
    tasks = [{task for task, _ in lines} for lines in present.values()]
    common = set.intersection(*tasks) if tasks else set()
    rows = []
    for name, lines in present.items():
        part = [line for (task, _), line in lines.items() if task in common]
        # the pass that was timed reads all exits: it says nothing of an early one
        timed = [] if name.endswith(f"exit {depth}") else part
        speed = [line["n_scored"] / line["predict_seconds"] for line in timed]
        size = [x["model_bytes"] / 1e6 for x in part if "model_bytes" in x]
        rows.append(
            [
                name,
                _median([line["fit_seconds"] for line in part], 1),
                _median(speed, 0),
                _median(size, 1),
                len(part),
            ]
        )
    header = ["median", "fit in s", "texts per second", "model in MB", "runs"]
    return table(header, rows if common else [])


def _median(values, digits):
    return number(np.median(values) if values else None, digits)
