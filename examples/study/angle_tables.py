"""Verdicts and tables on the angle between the gradients of both terms."""

import sys
from pathlib import Path

import numpy as np
from claims import Claim, headed, with_claims
from experiments import EXPERIMENTS, HEADS
from paired import compare
from table_text import number, table

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from gate_scopes import compare_angles

TERMS = ("scl", "acl_embed, anchors all", "acl_embed, anchors labels")
SCOPES = ("encoder", "ffn_output", "exit_dense")
#: Percent of the steps with more than 90 degrees that are called "often".
OFTEN = 10.0


def angles(runs):
    """Do the terms conflict with cross-entropy, and which scope tells it?"""
    found, tables = [], []
    for head in HEADS:
        measured = {
            (term, scope): angles_of(runs, term, head, scope)
            for term in TERMS
            for scope in SCOPES
        }
        found += _claims(head, measured)
        tables.append(headed(head, _table(measured)))
    return with_claims(found, tables)


def angles_of(runs, term, head, scope):
    """Angles of all steps, NaN where there is none, by (task, seed)."""
    lines = runs.of("angles", f"{term}, {head}, {scope}")
    return {
        key: np.array(line["angles"], dtype=float)
        for key, line in lines.items()
        if line.get("angles")
    }


def _claims(head, measured):
    """Claims on the angle over all parameters of the encoder."""
    at = {term: measured[term, "encoder"] for term in TERMS}
    mean = {term: _each(np.nanmean, part) for term, part in at.items()}
    share = {term: _each(_share_above, part) for term, part in at.items()}
    often = dict.fromkeys(share["scl"], OFTEN)
    what = f"share of steps above 90° with scl - {OFTEN:g} %"
    found = [Claim(what, "encoder", head, compare(share["scl"], often))]
    for term in TERMS[1:]:
        differences = compare(share["scl"], share[term])
        what = f"share of steps above 90° with scl - that with {term}"
        found.append(Claim(what, "encoder", head, differences))
        differences = compare(mean["scl"], mean[term])
        what = f"mean angle with scl - that with {term}"
        found.append(Claim(what, "encoder", head, differences, unit="degrees"))
    return found


def _each(function, measured):
    return {
        key: float(function(values))
        for key, values in measured.items()
        if np.isfinite(values).any()
    }


def _share_above(values):
    return 100 * np.mean(values > 90)


def _table(measured):
    """A row per task, term and scope, with means over seeds."""
    rows = []
    for task in EXPERIMENTS["angles"].tasks:
        for (term, scope), found in measured.items():
            seeds = [key for key in found if key[0] == task]
            if seeds:
                full = measured[term, "encoder"]
                numbers = [_numbers(found[key], full.get(key)) for key in seeds]
                cells = [_mean_of(column) for column in zip(*numbers, strict=True)]
                angle, share, correlation, same = cells
                rows.append(
                    [
                        task,
                        term,
                        f"`{scope}`",
                        number(angle, 1),
                        number(share, 1),
                        number(correlation),
                        number(same, 1),
                        len(seeds),
                    ]
                )
    header = ["task", "term", "`gate_scope`", "mean angle", "% above 90°"]
    header += ["correlation with `encoder`", "% same decision", "seeds"]
    return table(header, rows)


def _numbers(own, full):
    """(mean angle, % above 90, correlation with the encoder's, % same decision)."""
    if full is None:
        found = compare_angles(own, own)
        return found["angle_mean"], 100 * found["share_above_90"], None, None
    n = min(len(own), len(full))
    found = compare_angles(own[:n], full[:n])
    return (
        found["angle_mean"],
        100 * found["share_above_90"],
        found["correlation_with_encoder"],
        100 * found["same_decision"],
    )


def _mean_of(values):
    present = [value for value in values if value is not None]
    return np.mean(present) if present else None
