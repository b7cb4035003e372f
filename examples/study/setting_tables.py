"""Verdicts and tables on other settings: epochs, variants, rates, lambda and tau.

Each takes `Runs` and returns sentences with the verdicts, and a list of tables.
"""

import numpy as np
from claims import (
    Claim,
    gains_by_task,
    headed,
    in_words,
    make_claim,
    scores_by_task,
    with_claims,
)
from experiments import BASE, EXPERIMENTS, HEADS, LONG, VARIANTS
from lookup import LAST, MEAN, scores
from paired import compare
from table_text import number, table


def long(runs):
    """Is the gain no more than a faster start? Longer trainings against the usual."""
    few, many = BASE["max_epochs"], LONG["max_epochs"]
    found, tables = [], []
    for head in HEADS:
        columns = {
            f"{method}, {few} epochs": runs.of_method(method, head)
            for method in ("ce", "acl")
        }
        columns |= {
            f"{method}, {many} epochs": runs.of("long", f"{method}, {head}, long")
            for method in ("ce", "acl")
        }
        kept = {name: _as_in("long", lines) for name, lines in columns.items()}
        for ours, theirs, main in [
            (f"acl, {many} epochs", f"ce, {many} epochs", True),
            (f"acl, {few} epochs", f"ce, {many} epochs", True),
            (f"acl, {few} epochs", f"ce, {few} epochs", False),
            (f"ce, {many} epochs", f"ce, {few} epochs", False),
            (f"acl, {many} epochs", f"acl, {few} epochs", False),
        ]:
            sides = [kept[name] for name in (ours, theirs)]
            what = f"{ours} - {theirs}"
            found += [
                make_claim(what, head, sides, MEAN, main=main),
                make_claim(what, head, sides, LAST, main=False),
            ]
        tables.append(headed(head, scores_by_task(kept, MEAN)))
        tables.append(headed(head, scores_by_task(kept, LAST)))
    return with_claims(found, tables)


def variants(runs):
    """The whole method with another choice, against itself."""
    found, tables = [], []
    for head in HEADS:
        columns = {"acl": runs.of_method("acl", head)}
        columns |= {
            name: runs.of("variants", f"acl, {head}, {name}") for name in VARIANTS
        }
        pairs = {f"{name} - acl": (columns[name], columns["acl"]) for name in VARIANTS}
        for reading in (MEAN, LAST):
            found += [
                make_claim(what, head, sides, reading, main=reading is MEAN)
                for what, sides in pairs.items()
            ]
        tables.append(headed(head, gains_by_task(pairs, MEAN)))
        tables.append(headed(head, gains_by_task(pairs, LAST)))
    return with_claims(found, tables)


def learning_rate(runs):
    """Which learning rate each method would choose, on rows cut from training."""
    found, rows, n_same = [], [], 0
    for head in HEADS:
        best = {}
        for method in ("ce", "scl", "acl"):
            by_rate = _by_rate(runs, f"{method}, {head}")
            rates = {rate: np.mean(list(at.values())) for rate, at in by_rate.items()}
            if not rates:
                continue
            choice = max(rates, key=rates.get)
            best[method] = by_rate[choice]
            n_same += choice == BASE["lr"]
            cells = [number(rates.get(rate)) for rate in _all_rates()]
            n_tasks = len({task for task, _ in by_rate[choice]})
            seeds = len(by_rate[choice]) / n_tasks
            rows.append([method, head, *cells, n_tasks, f"{seeds:g}", f"{choice:g}"])
        for other in ("ce", "scl"):
            if {"acl", other} <= set(best):
                what = f"acl - {other}, each at its own rate"
                comparison = compare(best["acl"], best[other])
                claim = Claim(what, MEAN.name, head, comparison, main=False)
                found.append(claim)
    header = ["method", "heads", *(f"{rate:g}" for rate in _all_rates())]
    header += ["tasks", "seeds", "chooses"]
    sentence = ""
    if rows:
        sentence = (
            f"- Of {len(rows)} settings, {n_same} would choose the learning rate of "
            f"the study, {BASE['lr']:g}."
        )
    _, comparisons = in_words(found)
    return sentence, [table(header, rows)] + [comparisons] * bool(found)


def sensitivity(runs):
    """Spread of the score over lambda and temperature."""
    grids = {method: contrast_grids(runs, method) for method in ("scl", "acl")}
    measures = {
        "over lambda, mean over temperatures": lambda g: np.ptp(g, axis=0).mean(),
        "largest less smallest": np.ptp,
        "standard deviation": lambda g: g.std(ddof=1),
    }
    full = {
        method: {key: g for key, g in part.items() if not np.isnan(g).any()}
        for method, part in grids.items()
    }
    found, rows = [], []
    for name, measure in measures.items():
        spreads = {
            method: {key: float(measure(grid)) for key, grid in part.items()}
            for method, part in full.items()
        }
        comparison = compare(spreads["scl"], spreads["acl"])
        what = "spread of scl - that of acl"
        found.append(Claim(what, name, "random", comparison))
        rows += _ratios(name, spreads)
    header = ["spread", "task", "scl", "acl", "scl over acl", "seeds"]
    tables = [table(header, rows), _best_settings(grids)]
    tables += [_grid_table(method, grids[method]) for method in grids]
    return with_claims(found, tables)


def selection(runs):
    """The whole method's settings to choose from, on rows cut from training."""
    sentences, rows = [], []
    for head in HEADS:
        found = _on_common_runs(runs, f"acl, {head}, ")
        means = {name: np.mean(list(at.values())) for name, at in found.items()}
        ranked = sorted(means, key=means.get, reverse=True)
        rows += [[head, name, number(means[name]), len(found[name])] for name in ranked]
        if ranked:
            sentences.append(f"- {head.capitalize()} heads would choose {ranked[0]}.")
    header = ["heads", "acl with", "mean over exits", "runs"]
    return "\n".join(sentences), [table(header, rows)]


def _on_common_runs(runs, start):
    """Scores of the settings of `selection`, by (task, seed) that all of them have."""
    found = {
        name.removeprefix(start): scores(runs.of("selection", name))
        for name in EXPERIMENTS["selection"].settings
        if name.startswith(start)
    }
    return _of_common_keys(found)


def _of_common_keys(found):
    """Scores by (task, seed), of the keys that all settings have; {} if none."""
    common = set.intersection(*(set(at) for at in found.values()))
    if not common:
        return {}
    return {name: {key: at[key] for key in common} for name, at in found.items()}


def _as_in(experiment, lines):
    """Lines of the tasks and seeds of an experiment."""
    entry = EXPERIMENTS[experiment]
    return {
        (task, seed): line
        for (task, seed), line in lines.items()
        if task in entry.tasks and seed < entry.seeds
    }


def _by_rate(runs, name):
    """Scores by (task, seed) that every rate has, by learning rate."""
    entry = EXPERIMENTS["learning_rate"]
    found = {}
    for setting, changes in entry.settings.items():
        if f"{setting}, ".startswith(f"{name}, "):
            rate = changes.get("lr", BASE["lr"])
            found[rate] = scores(runs.of("learning_rate", setting))
    return _of_common_keys(found)


def _all_rates():
    settings = EXPERIMENTS["learning_rate"].settings.values()
    return sorted({changes.get("lr", BASE["lr"]) for changes in settings})


def contrast_values():
    """Values of lambda and of the temperature."""
    settings = EXPERIMENTS["sensitivity"].settings.values()
    names = "criterion__lam", "criterion__temperature"
    return [sorted({changes[name] for changes in settings}) for name in names]


def contrast_grids(runs, method):
    """Mean over exits, (n_lambdas, n_temperatures), by (task, seed); NaN is missing."""
    lams, taus = contrast_values()
    found = {}
    for i, lam in enumerate(lams):
        for j, tau in enumerate(taus):
            setting = f"{method}, random, lam {lam}, temperature {tau}"
            for key, value in scores(runs.of("sensitivity", setting)).items():
                grid = found.setdefault(key, np.full((len(lams), len(taus)), np.nan))
                grid[i, j] = value
    return found


def mean_grids(grids):
    """Mean over seeds of `contrast_grids`, by task; NaN where there is no run."""
    return {task: _mean_of_present(part) for task, part in _by_task(grids).items()}


def _by_task(grids):
    """Grids of seeds, (n_seeds, n_lambdas, n_temperatures), by task.

    Once a seed has its full grid, seeds with gaps are left out: of different seeds,
    settings can't be compared.
    """
    found = {}
    for (task, _), grid in grids.items():
        found.setdefault(task, []).append(grid)
    for task, part in found.items():
        full = [grid for grid in part if not np.isnan(grid).any()]
        found[task] = np.array(full or part)
    return found


def _mean_of_present(grids):
    present = ~np.isnan(grids)
    sums, counts = np.where(present, grids, 0).sum(axis=0), present.sum(axis=0)
    return np.where(counts, sums / np.maximum(counts, 1), np.nan)


def _grid_table(method, grids):
    lams, taus = contrast_values()
    n_seeds = {task: len(part) for task, part in _by_task(grids).items()}
    rows = [
        [task, lam, *map(number, cells), n_seeds[task]]
        for task, grid in mean_grids(grids).items()
        for lam, cells in zip(lams, grid, strict=True)
    ]
    header = [f"{method}, mean over exits", "lambda"]
    header += [*(f"temperature {tau}" for tau in taus), "seeds"]
    return table(header, rows)


def _best_settings(grids):
    """The setting with the best mean over tasks, once all of them have full grids."""
    lams, taus = contrast_values()
    usual = [BASE["criterion__lam"], BASE["criterion__temperature"]]
    rows = []
    for method, found in grids.items():
        by_task = list(mean_grids(found).values())
        if by_task and not np.isnan(by_task).any():
            mean = np.mean(by_task, axis=0)
            i, j = np.unravel_index(mean.argmax(), mean.shape)
            at_usual = mean[lams.index(usual[0]), taus.index(usual[1])]
            cells = [lams[i], taus[j], number(mean[i, j]), number(at_usual)]
            rows.append([method, *cells, len(by_task)])
    header = ["best setting", "lambda", "temperature", "mean over exits"]
    header += ["at lambda {:g}, temperature {:g}".format(*usual), "tasks"]
    return table(header, rows)


def _ratios(name, spreads):
    """A row per task that both methods have, with the mean over its common seeds."""
    common = sorted(set(spreads["scl"]) & set(spreads["acl"]))
    rows = []
    for task in dict.fromkeys(task for task, _ in common):
        keys = [key for key in common if key[0] == task]
        scl, acl = (np.mean([spreads[m][key] for key in keys]) for m in spreads)
        ratio = number(scl / acl if acl else None)
        rows.append([name, task, number(scl), number(acl), ratio, len(keys)])
    return rows
