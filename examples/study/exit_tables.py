"""Verdicts and tables on the scores of exits, a function per section of the page.

Each takes `Runs` and returns sentences with the verdicts, and a list of tables.
"""

import numpy as np
from claims import (
    Claim,
    against,
    gain_per_exit,
    gains_by_task,
    headed,
    make_claim,
    methods_of,
    scores_by_task,
    with_claims,
)
from experiments import HEADS, METHODS
from lookup import EARLIER, LAST, MEAN, SHALLOW_LESS_LAST, Reading, scores
from paired import compare, minus
from table_text import interval, mean_and_count, signed, table

LADDER = ("ce", "scl", "acl_embed", "acl_embed_grad", "acl_cl", "acl")
#: What each part adds, and to what.
PARTS = (
    ("scl", "ce"),
    ("acl_embed", "scl"),
    ("acl_embed_grad", "acl_embed"),
    ("acl_cl", "acl_embed"),
    ("acl", "acl_embed_grad"),
    ("acl", "acl_cl"),
    ("acl", "ce"),
)
GATED = ("acl_embed_grad", "acl")


def exits(runs):
    """The whole method against cross-entropy and SCL, at all exits."""
    found, tables = [], []
    for head in HEADS:
        columns = methods_of(runs, ("ce", "scl", "acl_embed_grad", "acl"), head)
        pairs = against(columns, "acl", ("ce", "scl"))
        for other in ("ce", "scl"):
            sides = pairs[f"acl - {other}"]
            found += [
                make_claim(f"acl - {other}", head, sides, MEAN),
                make_claim(f"acl - {other}", head, sides, LAST),
                make_claim(
                    f"gain of acl over {other} at exit 1 - that at the last exit",
                    head,
                    sides,
                    Reading("", SHALLOW_LESS_LAST.read),
                ),
            ]
        pairs |= against(columns, "acl", ("acl_embed_grad",))
        for reading in (MEAN, LAST):
            tables.append(headed(head, scores_by_task(columns, reading)))
            tables.append(headed(head, gains_by_task(pairs, reading)))
        tables.append(headed(head, gain_per_exit(pairs)))
    return with_claims(found, tables)


def strategies(runs):
    """The whole method against three ways to train exits with cross-entropy."""
    found, tables = [], []
    others = ("ce", "two_stage", "alternating")
    for head in HEADS:
        columns = methods_of(runs, (*others, "acl"), head)
        pairs = against(columns, "acl", others)
        for reading in (EARLIER, LAST):
            found += [
                make_claim(what, head, sides, reading, main=reading is EARLIER)
                for what, sides in pairs.items()
            ]
        tables.append(headed(head, scores_by_task(columns, EARLIER)))
        tables.append(headed(head, gains_by_task(pairs, EARLIER)))
        tables.append(headed(head, gain_per_exit(pairs)))
    return with_claims(found, tables)


def final(runs):
    """Ordinary fine-tuning: the last exit alone is trained."""
    found, tables = [], []
    others = ("final_ce", "final_scl")
    for head in HEADS:
        columns = methods_of(runs, (*others, "final_acl"), head)
        pairs = against(columns, "final_acl", others)
        found += [
            make_claim(what, head, sides, LAST, at_least=True)
            for what, sides in pairs.items()
        ]
        tables.append(headed(head, scores_by_task(columns, LAST)))
        tables.append(headed(head, gains_by_task(pairs, LAST)))
    return with_claims(found, tables)


def ablation(runs):
    """What each part adds, and how often the gate acts."""
    found, tables, shares = [], [], {}
    for head in HEADS:
        columns = methods_of(runs, LADDER, head)
        for reading in (MEAN, LAST):
            found += [
                make_claim(
                    f"{ours} - {theirs}",
                    head,
                    (columns[ours], columns[theirs]),
                    reading,
                    main=reading is MEAN,
                )
                for ours, theirs in PARTS
            ]
        tables.append(headed(head, _ladder(columns)))
        shares |= {f"{name}, {head}": _gated(columns[name]) for name in GATED}
    tables.append(_table_of_shares(shares))
    return with_claims(found, tables)


def heads(runs):
    """Do data-driven heads and the contrastive terms add up?"""
    found, tables = [], []
    lines = {
        f"{method}, {head}": runs.of_method(method, head)
        for method in ("ce", "acl")
        for head in ("random", "lda")
    }
    names = [
        ("acl, random", "ce, random"),
        ("acl, lda", "ce, lda"),
        ("ce, lda", "ce, random"),
        ("acl, lda", "acl, random"),
    ]
    for reading in (MEAN, LAST):
        for ours, theirs in names:
            sides = lines[ours], lines[theirs]
            found.append(make_claim(f"{ours} - {theirs}", "", sides, reading))
        at = {name: scores(part, reading) for name, part in lines.items()}
        with_lda = minus(at["acl, lda"], at["ce, lda"])
        without = minus(at["acl, random"], at["ce, random"])
        what = "gain of acl with lda heads - that with random heads"
        interaction = compare(with_lda, without)
        found.append(Claim(what, reading.name, "", interaction, main=False))
        tables.append(scores_by_task(lines, reading))
    return with_claims(found, tables)


def small(runs):
    """An early exit of the whole method against a model of as many layers."""
    depth = METHODS["small_ce"]["n_layers"]
    found, tables = [], []
    for head in HEADS:
        columns = {f"acl, exit {depth}": up_to(runs.of_method("acl", head), depth)}
        columns |= methods_of(runs, ("small_ce", "small_acl"), head)
        pairs = against(columns, f"acl, exit {depth}", ("small_ce", "small_acl"))
        found += [
            make_claim(what, head, sides, Reading(f"layer {depth}", LAST.read))
            for what, sides in pairs.items()
        ]
        reading = Reading(f"after {depth} layers", LAST.read)
        tables.append(headed(head, scores_by_task(columns, reading)))
        tables.append(headed(head, gains_by_task(pairs, reading)))
    return with_claims(found, tables)


def up_to(lines, layer):
    """Lines without the scores of exits beyond a layer."""
    cut = {}
    for key, line in lines.items():
        kept = {n: line[n][:layer] for n in ("exits", "matthews") if n in line}
        cut[key] = line | kept
    return cut


def _ladder(columns):
    """Each method less cross-entropy, over tasks."""
    rows = []
    for name in LADDER[1:]:
        cells = []
        for reading in (MEAN, LAST):
            found = compare(*(scores(columns[n], reading) for n in (name, "ce")))
            cells += [signed(found.mean), interval(found.these), interval(found.others)]
        if found.tasks:
            rows.append([name, *cells, found.n_tasks, found.n_pairs])
    header = ["less ce", "mean over exits", "these tasks", "tasks like these"]
    header += ["last exit", "these tasks", "tasks like these", "tasks", "pairs"]
    return table(header, rows)


def _gated(lines):
    """Share of gated steps in percent, by task."""
    found = {}
    for (task, _), line in lines.items():
        shares = [share for share in line["gated_share"] if share is not None]
        if shares:
            found.setdefault(task, []).append(100 * np.mean(shares))
    return found


def _table_of_shares(shares):
    tasks = dict.fromkeys(task for found in shares.values() for task in found)
    rows = [
        [task, *(mean_and_count(found.get(task, []), 1) for found in shares.values())]
        for task in tasks
    ]
    return table(["gated steps in % (seeds)", *shares], rows)
