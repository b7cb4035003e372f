"""The study's tables and pictures say what the lines hold, whatever is missing.

Lines are made up here, with effects that are known; no model is trained.
"""

import json
import math
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "examples" / "study"
N_STEPS = 40
MAX_BYTES = 60_000  # of a picture
BINARY = ("cola", "sst2_sentences", "qqp_sample", "mrpc", "qnli", "rte")

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def lines(study):
    """A line for every planned run, with an effect of every part."""
    return make_lines(study, usual_effect)


# --- lines that are made up -----------------------------------------------------------


def seeded(*parts):
    """Generator of its own for each combination of values."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def usual_effect(params, layer):
    """Points over cross-entropy: 2 for ACL-CL, more at shallow exits; -1 for SCL."""
    term, gain = params["criterion__contrastive"], 0.0
    if term == "scl":  # and the more so, the larger its share
        gain = -4 * (params["criterion__lam"] - 0.25)
    if term == "acl_cl":
        gain = 2 + 0.4 * (3.5 - layer)
    return gain + 3 * (params["head_init"] == "lda")


def make_lines(study, effect, **chosen):
    """A line for every run once; scores of a task and seed go up and down together."""
    found = {}
    for run in study("experiments").runs(**chosen):
        found.setdefault(json.dumps(run, sort_keys=True), run)
    return [run | NUMBERS[run["kind"]](run, effect) for run in found.values()]


def exits_of(run, effect, layers, noise=0.2):
    level = 60 + seeded(run["task"]).uniform(0, 10)
    common = seeded(run["task"], run["seed"]).normal(0, 2)
    own = seeded(json.dumps(run, sort_keys=True)).normal(0, noise, len(layers))
    params = run["params"]
    gains = [effect(params, layer) if effect else 0.0 for layer in layers]
    return (level + common + 2 * np.array(layers) + gains + own).tolist()


def classifier_numbers(run, effect):
    params = run["params"]
    layers = list(range(1, (params["n_layers"] or 6) + 1))
    exits = exits_of(
        run, effect, layers[-1:] if params["strategy"] == "final" else layers
    )
    matthews = {"matthews": [score / 100 - 0.4 for score in exits]}
    gated = params["angle_threshold"] is not None and params["criterion__contrastive"]
    return {
        "exits": exits,
        **(matthews if run["task"] in BINARY else {}),
        "n_scored": 500,
        "fit_seconds": 20.0 + run["seed"],
        "predict_seconds": 2.0,
        "n_steps": N_STEPS,
        "gated_share": [0.1, 0.3] if gated else [None, None],
        "angles": angles(run) if gated else None,
    }


def angles(run):
    """Angles around 95 for SCL and 80 for the others; cheap scopes follow roughly."""
    params = run["params"]
    term = params["criterion__contrastive"]
    path = (run["task"], run["seed"], params["head_init"], term)
    full = seeded(*path, params["criterion__anchors"]).normal(0, 8, N_STEPS)
    if params["gate_scope"] != "encoder":
        full = 0.5 * full + seeded(*path, params["gate_scope"]).normal(0, 4, N_STEPS)
    values = (full + (95 if term == "scl" else 80)).round(1).tolist()
    return [None, *values[1:]]


def tuned_numbers(run, effect):
    exits = exits_of(run, effect, range(1, 7))
    along = [
        {
            "threshold": threshold,
            "average_exit_layer": 6 * threshold**2,
            "time_over_full_depth": threshold**2,
            "accuracy": exits[-1] - 5 * (1 - threshold),
        }
        for threshold in (0.4, 0.6, 0.8, 0.9, 0.99)
    ]
    tuned = [
        {
            "risk": risk,
            "max_drop": max_drop,
            "guaranteed": True,
            "threshold": 0.9,
            "average_exit_layer": 3.0,
            "test_risk": 0.03 if risk == "score" else 0.01,
            "accuracy": exits[-1] - 1,
        }
        for risk in ("disagreement", "score")
        for max_drop in (0.02, 0.05)
    ]
    full = {"full_depth_accuracy": exits[-1], "exits": exits}
    return {"along": along, "tuned": tuned, "fit_seconds": 30.0, **full}


def rival_numbers(run, effect):
    return {
        "exits": exits_of(run, None, [5]),
        "n_scored": 500,
        "fit_seconds": 5.0,
        "predict_seconds": 0.5,
        "model_bytes": 90_000_000,
    }


NUMBERS = {
    "classifier": classifier_numbers,
    "tuned": tuned_numbers,
    "rival": rival_numbers,
}


def block(study, name, lines):
    return study("tables").block(name, study("lookup").Runs(lines))


def verdicts(text):
    """{claim with its heads: verdict} of the sentences of a block."""
    found = {}
    for what, rest in re.findall(r"^- (.*?): (\*\*.*)$", text, re.M):
        for verdict, heads in re.findall(r"\*\*(.*?)\*\*(?: \((\w+) heads\))?", rest):
            found[what, heads] = verdict
    return found


def rows_of(text, first):
    """Rows, as lists of cells, of the tables whose header starts with a cell."""
    found = []
    for part in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in part.strip().splitlines()
        ]
        if header[0] == first:
            assert {len(row) for row in rows} == {len(header)}
            found += [dict(zip(header, row, strict=True)) for row in rows]
    return found


# --- statistics -----------------------------------------------------------------------


def draw(n_seeds, seed=0):
    """Scores of two methods by (task, seed), for some numbers of seeds."""
    rng = np.random.default_rng(seed)
    keys = [(f"task {i}", j) for i, n in enumerate(n_seeds) for j in range(n)]
    return [{key: rng.normal(0, 3) for key in keys} for _ in range(2)]


def by_task(values):
    found = {}
    for (task, _), value in values.items():
        found.setdefault(task, []).append(value)
    return list(found.values())


def test_intervals_of_a_task_are_those_of_a_paired_t_test(study):
    ours, theirs = draw([5, 3, 2])
    found = study("paired").compare(ours, theirs)
    sides = by_task(ours), by_task(theirs)
    for mean, a, b in zip(found.tasks.values(), *sides, strict=True):
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert mean.mean - mean.margin == pytest.approx(low)
        assert mean.mean + mean.margin == pytest.approx(high)
        assert mean.n == len(a)


def test_interval_for_these_tasks_is_that_of_welch(study):
    # the sum of two means is the difference of one and the other's opposite
    ours, theirs = draw([5, 3])
    found = study("paired").compare(ours, theirs)
    a, b = by_task(study("paired").minus(ours, theirs))
    test = stats.ttest_ind(a, np.negative(b), equal_var=False)
    assert np.multiply(2, found.these) == pytest.approx(test.confidence_interval(0.95))


@pytest.mark.parametrize("n_seeds", [[5, 3, 2], [2, 2], [4] * 8])
def test_intervals_over_tasks(study, n_seeds):
    ours, theirs = draw(n_seeds, seed=1)
    found = study("paired").compare(ours, theirs)
    variance, spread, means = 0.0, 0.0, []
    for task, n in enumerate(n_seeds):
        gains = [ours[f"task {task}", j] - theirs[f"task {task}", j] for j in range(n)]
        mean = sum(gains) / n
        means.append(mean)
        part = sum((gain - mean) ** 2 for gain in gains) / (n - 1) / n
        variance += part
        spread += part**2 / (n - 1)
    mean, n_tasks = sum(means) / len(means), len(means)
    margin = stats.t(variance**2 / spread).ppf(0.975) * math.sqrt(variance) / n_tasks
    assert found.mean == pytest.approx(mean)
    assert found.these == pytest.approx((mean - margin, mean + margin))
    others = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert found.others == pytest.approx((others.low, others.high))
    assert (found.n_tasks, found.n_pairs) == (n_tasks, sum(n_seeds))


def test_only_pairs_count_and_tasks_with_two_of_them(study):
    ours, theirs = draw([3, 3, 2])
    full = study("paired").compare(ours, theirs)
    fewer = {key: value for key, value in theirs.items() if key != ("task 2", 1)}
    found = study("paired").compare(ours, fewer | {("task 9", 0): 1.0})
    assert list(found.tasks) == ["task 0", "task 1", "task 2"]
    assert found.tasks["task 2"].n == 1 and math.isnan(found.tasks["task 2"].margin)
    assert (found.n_tasks, found.n_pairs) == (2, 6)
    two = [full.tasks[f"task {i}"].mean for i in range(2)]
    assert found.mean == pytest.approx(np.mean(two))


def test_equal_differences_have_an_interval_of_no_length(study):
    found = study("paired").summarize({(task, i): 1.5 for task in "ab" for i in (0, 1)})
    assert found.these == found.others == (1.5, 1.5)


@pytest.mark.parametrize(
    ("means", "noise", "at_least", "verdict"),
    [
        ([2, 3, 2.5], 0.1, False, "supported"),
        ([1, 9, 2], 0.1, False, "supported on these tasks"),
        ([-2, -3, -2.5], 0.1, False, "not supported"),
        ([0.2, -0.2, 0.1], 2, False, "undecided"),
        ([3], 0.1, False, "undecided: not enough runs yet"),
        ([], 0.1, False, "undecided: not enough runs yet"),
        # as good, up to half a point, and not below on average
        ([0.1, 0.0, 0.05], 0.1, True, "supported"),
        ([0.1, 0.0, 0.05], 0.1, False, "undecided"),
        ([-0.3, -0.3, -0.3], 0.01, True, "undecided"),
        ([-0.7, -0.7, -0.7], 0.01, True, "not supported"),
        ([0.1, 0.0, 0.05], 3, True, "undecided"),
    ],
)
def test_verdicts(study, means, noise, at_least, verdict):
    differences = {
        (f"task {i}", j): mean + noise * (j - 1)
        for i, mean in enumerate(means)
        for j in range(3)
    }
    paired = study("paired")
    assert paired.decide(paired.summarize(differences), at_least) == verdict


def test_one_seed_is_not_enough(study):
    paired = study("paired")
    found = paired.summarize({(f"task {i}", 0): 5.0 for i in range(8)})
    assert found.mean == 5 and found.these is None
    assert paired.decide(found) == paired.TOO_FEW


def test_the_rule_names_every_verdict(study):
    paired = study("paired")
    names = ("SUPPORTED", "ON_THESE_TASKS", "NOT_SUPPORTED", "UNDECIDED", "TOO_FEW")
    for verdict in (getattr(paired, name) for name in names):
        assert verdict in paired.RULE
        assert f'"{verdict.split(":")[0]}"' in paired.decide.__doc__


# --- looking up -----------------------------------------------------------------------


def test_a_run_is_found_by_every_experiment_that_it_belongs_to(
    study, lines, monkeypatch
):
    known = study("experiments").EXPERIMENTS
    again = {"as ever": dict(known["exits"].settings["acl, random"])}
    other = known["exits"]._replace(settings=again, tasks=("mrpc", "rte"), seeds=2)
    monkeypatch.setitem(known, "other", other)
    runs = study("lookup").Runs(lines)
    ours, theirs = runs.of("exits", "acl, random"), runs.of("other", "as ever")
    assert set(theirs) == {(task, i) for task in ("mrpc", "rte") for i in (0, 1)}
    assert all(ours[key] is line for key, line in theirs.items())


def test_runs_of_another_kind_or_part_are_not_mistaken(study, lines):
    runs = study("lookup").Runs(lines)
    for experiment, setting in [
        ("exits", "acl, lda"),
        ("tuned", "acl, lda"),
        ("learning_rate", "acl, lda"),
    ]:
        entry = study("experiments").EXPERIMENTS[experiment]
        found = runs.of(experiment, setting)
        assert set(found) == {(t, s) for t in entry.tasks for s in range(entry.seeds)}
        for (task, seed), line in found.items():
            assert (line["task"], line["seed"]) == (task, seed)
            assert (line["kind"], line["part"]) == (entry.kind, entry.part)


def test_every_method_has_a_home(study):
    experiments, home = study("experiments"), study("lookup").HOME
    assert set(home) == set(experiments.METHODS)
    for method, name in home.items():
        for head in experiments.HEADS:
            assert f"{method}, {head}" in experiments.EXPERIMENTS[name].settings


# --- verdicts on lines ----------------------------------------------------------------


def test_effects_are_found(study, lines):
    found = verdicts(block(study, "exits", lines))
    shallow = "gain of acl over ce at exit 1 more than that at the last exit"
    for heads in ("random", "lda"):
        assert found["acl more than ce, mean over exits", heads] == "supported"
        assert found["acl more than scl, mean over exits", heads] == "supported"
        assert found[shallow, heads] == "supported"
    found = verdicts(block(study, "sensitivity", lines))
    what = "spread of scl more than that of acl, over lambda, mean over temperatures"
    assert found[what, "random"] == "supported"
    found = verdicts(block(study, "ablation", lines))
    for heads in ("random", "lda"):
        assert found["scl more than ce, mean over exits", heads] == "not supported"
    found = verdicts(block(study, "heads", lines))
    assert found["acl, lda more than acl, random, last exit", ""] == "supported"


def test_effects_that_are_not_there_or_opposite_are_not_found(study):
    nothing = make_lines(study, None, names=["exits", "final", "strategies"])
    counts = {}
    for name in ("exits", "strategies"):
        for verdict in verdicts(block(study, name, nothing)).values():
            counts[verdict] = counts.get(verdict, 0) + 1
    assert counts["undecided"] > 0.7 * sum(counts.values()) > 10
    # as good is what can be said where nothing differs and runs scatter little
    found = verdicts(block(study, "final", nothing))
    assert set(found.values()) <= {"supported", "supported on these tasks", "undecided"}

    def opposite(params, layer):
        return -usual_effect(params, layer)

    found = verdicts(
        block(study, "exits", make_lines(study, opposite, names=["exits"]))
    )
    for heads in ("random", "lda"):
        assert found["acl more than ce, mean over exits", heads] == "not supported"


@pytest.mark.parametrize("few", [{"seeds": [0]}, {"tasks": ["trec"]}])
def test_few_runs_decide_nothing(study, few):
    lines = make_lines(study, usual_effect, **few)
    without = {"setup", "rule", "learning_rate", "selection"}  # these have no claims
    for name in set(study("tables").TABLES) - without:
        found = verdicts(block(study, name, lines))
        assert set(found.values()) == {study("paired").TOO_FEW}, name


def test_without_lines_tables_say_so(study):
    for name in set(study("tables").TABLES) - {"setup", "rule"}:
        text = block(study, name, [])
        assert text.count("*no runs yet*") == 1, name
        assert "|" not in text and "!" not in text
        assert set(verdicts(text).values()) <= {study("paired").TOO_FEW}


def test_missing_runs_are_tolerated(study, lines):
    experiments = study("experiments").EXPERIMENTS
    order = np.random.default_rng(0).permutation(len(lines))
    parts = [[lines[i] for i in order[:n]] for n in (len(lines) // 2, 60)]
    parts += [make_lines(study, usual_effect, names=[name]) for name in experiments]
    for part in parts:
        for name in study("tables").TABLES:
            assert "nan" not in block(study, name, part)


# --- numbers in tables ----------------------------------------------------------------


def chosen(lines, part="scored", **params):
    """The lines with some parameters, by (task, seed)."""
    wanted = {"kind": "classifier", "part": part}
    found = {}
    for line in lines:
        if wanted.items() <= line.items() and params.items() <= line["params"].items():
            found.setdefault((line["task"], line["seed"]), []).append(line)
    assert {len(same) for same in found.values()} == {1}
    return {key: same[0] for key, same in found.items()}


ACL = {
    "criterion__contrastive": "acl_cl",
    "angle_threshold": 90.0,
    "criterion__anchors": "all",
    "criterion__distill": "replace",
    "criterion__exit_weights": "uniform",
    "criterion__lam": 0.5,
    "criterion__temperature": 0.3,
    "head_init": "random",
    "strategy": "joint",
    "lr": 1e-4,
    "max_epochs": 4,
}
CE = {
    "criterion__contrastive": None,
    "strategy": "joint",
    "head_init": "random",
    "max_epochs": 4,
}


def test_gains_by_task(study, lines):
    rows = rows_of(block(study, "exits", lines), "mean over exits, margin (pairs)")
    random, lda = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert [row["mean over exits, margin (pairs)"] for row in random] == [
        *("trec", "banking77", "cola", "cola, Matthews"),
        *("sst2_sentences", "qqp_sample", "mrpc", "qnli", "rte"),
    ]
    assert random != lda
    ours, theirs = chosen(lines, **ACL), chosen(lines, **CE)
    for row in random:
        task, _, is_matthews = row["mean over exits, margin (pairs)"].partition(", ")
        score, factor = ("matthews", 100) if is_matthews else ("exits", 1)
        a, b = (
            [factor * np.mean(side[task, seed][score]) for seed in range(5)]
            for side in (ours, theirs)
        )
        gain, margin, n = re.fullmatch(
            r"([+-][\d.]+) ± ([\d.]+) \((\d+)\)", row["acl - ce"]
        ).groups()
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert float(gain) == pytest.approx((low + high) / 2, abs=0.0051)
        assert float(margin) == pytest.approx((high - low) / 2, abs=0.0051)
        assert n == "5"


def test_means_in_a_row_are_of_the_same_seeds(study, lines):
    acl, ce = chosen(lines, **ACL), chosen(lines, **CE)
    gone = acl["trec", 0], acl["trec", 3], acl["rte", 1], ce["rte", 0], ce["rte", 2]
    fewer = [line for line in lines if not any(line is other for other in gone)]
    rows = rows_of(block(study, "heads", fewer), "mean over exits (seeds)")
    cells = {row["mean over exits (seeds)"]: row for row in rows}
    for task, seeds in {"trec": (1, 2, 4), "rte": (3, 4), "mrpc": range(5)}.items():
        for name, side in {"acl, random": acl, "ce, random": ce}.items():
            mean = np.mean([np.mean(side[task, seed]["exits"]) for seed in seeds])
            value, n = cells[task][name].split()
            assert float(value) == pytest.approx(mean, abs=0.0051)
            assert n == f"({len(seeds)})"


def test_an_exit_is_compared_with_the_last_exit_of_a_small_model(study, lines):
    rows = rows_of(block(study, "small", lines), "after 3 layers, margin (pairs)")
    ours = chosen(lines, **ACL)
    small = chosen(lines, **CE | {"strategy": "final", "n_layers": 3})
    expected = [
        ours["mrpc", seed]["exits"][2] - small["mrpc", seed]["exits"][0]
        for seed in range(3)
    ]
    (row,) = [r for r in rows if r["after 3 layers, margin (pairs)"] == "mrpc"][:1]
    gain = float(row["acl, exit 3 - small_ce"].split()[0])
    assert gain == pytest.approx(np.mean(expected), abs=0.0051)


def test_spread_over_lambda(study, lines):
    text = block(study, "sensitivity", lines)
    rows = {(row["spread"], row["task"]): row for row in rows_of(text, "spread")}
    for method, term in (("scl", "scl"), ("acl", "acl_cl")):
        over_lambda, over_all = [], []
        for seed in (0, 1):
            grid = [
                [
                    np.mean(
                        chosen(
                            lines,
                            part="validation",
                            **ACL
                            | {
                                "criterion__contrastive": term,
                                "criterion__lam": lam,
                                "criterion__temperature": tau,
                                "angle_threshold": 90.0 if method == "acl" else None,
                            },
                        )["trec", seed]["exits"]
                    )
                    for tau in (0.1, 0.3, 0.7)
                ]
                for lam in (0.1, 0.3, 0.5, 0.7, 0.9)
            ]
            columns = list(zip(*grid, strict=True))
            over_lambda.append(np.mean([max(c) - min(c) for c in columns]))
            over_all.append(max(map(max, grid)) - min(map(min, grid)))
        row = rows["over lambda, mean over temperatures", "trec"]
        assert float(row[method]) == pytest.approx(np.mean(over_lambda), abs=0.0051)
        row = rows["largest less smallest", "trec"]
        assert float(row[method]) == pytest.approx(np.mean(over_all), abs=0.0051)
        assert row["seeds"] == "2"


def test_seeds_with_gaps_are_left_out_of_a_grid_once_one_has_none(study, lines):
    gap = chosen(lines, part="validation", **ACL | {"criterion__lam": 0.1})["trec", 1]
    fewer = [line for line in lines if line is not gap]
    header = "acl, mean over exits"
    for part, n in ((lines, "2"), (fewer, "1")):
        rows = rows_of(block(study, "sensitivity", part), header)
        seeds = {(row[header], row["seeds"]) for row in rows}
        assert seeds == {("trec", n), ("sst2_sentences", "2")}
    alone = chosen(lines, part="validation", **ACL | {"criterion__lam": 0.9})["trec", 0]
    cell = next(r for r in rows if (r[header], r["lambda"]) == ("trec", "0.9"))
    mean = np.mean(alone["exits"])
    assert float(cell["temperature 0.3"]) == pytest.approx(mean, abs=0.0051)


def test_angles(study, lines):
    text = block(study, "angles", lines)
    rows = rows_of(text, "task")
    assert len(rows) == 2 * 2 * 3 * 3
    for row in rows:
        if row["`gate_scope`"] == "`encoder`":
            assert row["correlation with `encoder`"] == "1.00"
    row = next(
        r for r in rows if (r["term"], r["`gate_scope`"]) == ("scl", "`exit_dense`")
    )
    entry = study("experiments").EXPERIMENTS["angles"]
    numbers = []
    for seed in range(entry.seeds):
        wanted = {"task": row["task"], "seed": seed}
        own, full = (
            next(
                np.array(line["angles"][1:])
                for line in lines
                if wanted.items() <= line.items()
                and line["params"].get("angle_threshold") == 180.0
                and line["params"]["criterion__contrastive"] == "scl"
                and line["params"]["head_init"] == "random"
                and line["params"]["gate_scope"] == scope
            )
            for scope in ("exit_dense", "encoder")
        )
        share = 100 * (own > 90).sum() / N_STEPS  # a step without angle is not above
        numbers.append((own.mean(), share, stats.pearsonr(own, full).statistic))
    mean, share, correlation = np.mean(numbers, axis=0)
    assert row["seeds"] == f"{entry.seeds}"
    assert float(row["mean angle"]) == pytest.approx(mean, abs=0.11)
    assert float(row["% above 90°"]) == pytest.approx(share, abs=0.051)
    assert float(row["correlation with `encoder`"]) == pytest.approx(
        correlation, abs=0.0061
    )


def test_angles_of_more_seeds_decide(study, monkeypatch):
    experiments = study("experiments")
    more = experiments.EXPERIMENTS["angles"]._replace(seeds=3)
    monkeypatch.setitem(experiments.EXPERIMENTS, "angles", more)
    found = verdicts(block(study, "angles", make_lines(study, None, names=["angles"])))
    assert len(found) == 10
    for (what, _), verdict in found.items():
        assert verdict.startswith("supported"), what


def test_risks_above_the_promise_are_counted(study, lines):
    entry = study("experiments").EXPERIMENTS["tuned"]
    n = len(entry.tasks) * entry.seeds
    text = block(study, "guarantee", lines)
    rows = {(r["`risk`"], r["`max_drop` in %"]): r for r in rows_of(text, "`risk`")}
    above = {key: row["above `max_drop`"] for key, row in rows.items()}
    assert above == {
        ("disagreement", "2"): "0",
        ("disagreement", "5"): "0",
        ("score", "2"): f"{n}",
        ("score", "5"): "0",
    }
    assert rows["score", "2"]["settings"] == rows["score", "2"]["that leave early"]
    assert rows["score", "2"]["accuracy less full depth"] == "-1.00"
    assert f"{n} of {4 * n} do (25.0 %" in text and "**not supported**" in text
    kept = [
        line | {"tuned": [s for s in line["tuned"] if s["risk"] == "disagreement"]}
        if line["kind"] == "tuned"
        else line
        for line in lines
    ]
    text = block(study, "guarantee", kept)
    assert f"0 of {2 * n} do" in text and "**supported**" in text


def test_thresholds(study, lines):
    rows = rows_of(block(study, "tuned", lines), "task")
    assert len(rows) == 4 * 5
    row = next(r for r in rows if (r["task"], r["threshold"]) == ("trec", "0.8"))
    assert row["average exit layer"] == "3.84" and row["seeds"] == "3"
    assert row["time over full depth"] == "0.64" and row["less full depth"] == "-1.00"


def test_the_best_setting(study):
    def effect(params, layer):  # the best one differs between the terms
        lam, tau = params["criterion__lam"], params["criterion__temperature"]
        best = {"scl": (0.1, 0.7), "acl_cl": (0.9, 0.1)}
        return 3 * ((lam, tau) == best[params["criterion__contrastive"]])

    lines = make_lines(study, effect, names=["sensitivity"])
    rows = rows_of(block(study, "sensitivity", lines), "best setting")
    best = [(r["best setting"], r["lambda"], r["temperature"]) for r in rows]
    assert best == [("scl", "0.1", "0.7"), ("acl", "0.9", "0.1")]
    for row in rows:
        usual = float(row["at lambda 0.5, temperature 0.3"])
        assert float(row["mean over exits"]) - usual == pytest.approx(3, abs=0.5)


def test_the_setting_that_each_start_of_the_heads_would_choose(study):
    def effect(params, layer):
        best_lam = 0.9 if params["head_init"] == "lda" else 0.1
        right = (
            params["criterion__lam"] == best_lam,
            params["criterion__anchors"] == "labels",
            params["criterion__temperature"] == 0.1,
        )
        return 5 * sum(right)

    lines = make_lines(study, effect, names=["selection"])
    selection = study("setting_tables").selection
    sentences, (ranking,) = selection(study("lookup").Runs(lines))
    best = "lam {}, temperature 0.1, anchors labels"
    assert sentences.splitlines() == [
        f"- Random heads would choose {best.format(0.1)}.",
        f"- Lda heads would choose {best.format(0.9)}.",
    ]
    rows = rows_of(ranking, "heads")
    assert [row["heads"] for row in rows] == ["random"] * 12 + ["lda"] * 12
    assert {row["runs"] for row in rows} == {"3"}
    # a run that one setting lacks counts for no other one from that start
    _, (ranking,) = selection(study("lookup").Runs(lines[1:]))
    rows = rows_of(ranking, "heads")
    assert {(row["heads"], row["runs"]) for row in rows} == {
        (lines[0]["params"]["head_init"], "2"),
        ("lda", "3"),
    }


def test_rates(study):
    def effect(params, layer):  # each method has a rate of its own
        best = {None: 5e-5, "scl": 1e-4, "acl_cl": 2e-4}
        return 5 * (params["lr"] == best[params["criterion__contrastive"]])

    lines = make_lines(study, effect, names=["learning_rate"])
    text = block(study, "learning_rate", lines)
    chosen = {(r["method"], r["chooses"]) for r in rows_of(text, "method")}
    assert chosen == {("ce", "5e-05"), ("scl", "0.0001"), ("acl", "0.0002")}
    assert "Of 6 settings, 2 would choose" in text


def test_costs_of_rivals(study, lines):
    rows = {
        row["median"]: row for row in rows_of(block(study, "rivals", lines), "median")
    }
    assert rows["setfit"]["texts per second"] == "1000"
    assert rows["setfit"]["model in MB"] == "90.0"
    assert rows["acl, lda"]["texts per second"] == "250"
    assert rows["acl, lda"]["fit in s"] == "22.0"
    assert rows["acl, lda, exit 3"]["texts per second"] == "–"  # was not timed


def test_gated_steps(study, lines):
    rows = rows_of(block(study, "ablation", lines), "gated steps in % (seeds)")
    assert rows[0]["acl, random"] == "20.0 (5)"


# --- the page -------------------------------------------------------------------------


@pytest.fixture
def page(study):
    """A page with a block for every table."""
    blocks = [
        f"<!-- table: {name} -->\nOLD\n<!-- end -->" for name in study("tables").TABLES
    ]
    return "# Title\n\n" + "\n\nprose\n\n".join(blocks) + "\n"


def test_blocks_are_replaced_again_and_again(study, page, lines):
    lines = lines[::5]
    fill, runs = study("tables").fill, study("lookup").Runs(lines)
    once = fill(page, runs)
    assert fill(once, runs) == once
    assert fill(once, study("lookup").Runs([])) == fill(page, study("lookup").Runs([]))
    assert "OLD" not in once and once.startswith("# Title\n\n<!-- table: ")
    assert once.count("\n\nprose\n\n") == page.count("\n\nprose\n\n")
    for name in study("tables").TABLES:
        assert block(study, name, lines) in once


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("table: heads", "table: headss", "heads, headss"),
        ("<!-- table: heads -->\nOLD\n<!-- end -->", "", "heads"),
        (
            "<!-- table: heads -->\nOLD\n<!-- end -->",
            "<!-- table: heads -->\n",
            "small",
        ),
    ],
)
def test_a_page_with_other_blocks_is_refused(study, page, old, new, named):
    assert old in page
    with pytest.raises(ValueError, match=f"look at: {named}$"):
        study("tables").fill(page.replace(old, new), study("lookup").Runs([]))


def test_commands(study, page, lines, tmp_path, capsys):
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "page.md").write_text(page)
    tables = study("tables")
    given = [
        "--lines",
        f"{tmp_path / 'runs.jsonl'}",
        "--page",
        f"{tmp_path / 'page.md'}",
    ]
    tables.main([*given, "heads", "small"])
    printed = capsys.readouterr().out
    assert re.findall("^## (.*)$", printed, re.M) == ["heads", "small"]
    assert block(study, "heads", lines) in printed
    with pytest.raises(SystemExit):
        tables.main([*given, "nothing"])
    assert "unknown ['nothing']" in capsys.readouterr().err


def test_the_page_is_what_its_lines_make(study):
    tables, lookup = study("tables"), study("lookup")
    text = tables.PAGE.read_text("utf-8")
    lines = study("tasks").read_lines(tables.RESULTS)
    runs = lookup.Runs(tables.lines_of(text, lines))
    hint = "run `python examples/study/tables.py --write`"
    assert tables.fill(text, runs) == text, hint
    figures = study("figures")
    for name, picture in figures.PICTURES.items():
        path, data = figures.IMAGES / figures.picture_file(name), picture.data(runs)
        expected = figures.digest(data) if data else None
        assert figures.drawn_from(path) == expected, f"{path.name}: {hint}"
        assert not data or path.stat().st_size < MAX_BYTES


def test_prose_holds_no_numbers(study):
    text = study("tables").PAGE.read_text("utf-8")
    prose = study("tables").BLOCK.sub("", text)
    prose = re.sub(r"```.*?```", "", prose, flags=re.DOTALL)
    assert not re.findall(r".*\d.*", prose)


def test_the_page_says_how_many_lines_it_was_made_from(study, page):
    tables, lookup = study("tables"), study("lookup")
    lines = [{"task": "a"}, {"task": "b"}]
    text = tables.fill(page, lookup.Runs(lines))
    assert tables.lines_of(text, [*lines, {"task": "c"}]) == lines
    with pytest.raises(ValueError, match="The page must say"):
        tables.lines_of(page, lines)


# --- pictures -------------------------------------------------------------------------


def test_pictures(study, lines, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    lines = [x for x in lines if x["task"] in ("trec", "sst2_sentences")]
    figures, runs = study("figures"), study("lookup").Runs(lines)
    monkeypatch.delitem(figures.PICTURES, "exits_lda")  # as that of random heads
    monkeypatch.setattr(figures, "DPI", 40)  # faster
    files = sorted(map(figures.picture_file, figures.PICTURES))
    assert sorted(figures.draw_pictures(runs, tmp_path)) == files
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert len(content) < MAX_BYTES, path.name
        assert b"matplotlib" not in content.lower()
    assert figures.draw_pictures(runs, tmp_path) == []  # of the same data

    gains = tmp_path / "results_gains.png"
    before = gains.read_bytes()
    gains.unlink()
    assert figures.draw_pictures(runs, tmp_path) == ["results_gains.png"]
    assert gains.read_bytes() == before

    fewer = study("lookup").Runs([x for x in lines if x["kind"] != "tuned"])
    assert figures.draw_pictures(fewer, tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        name for name in files if name != "results_tuned.png"
    ]


def test_pictures_of_little(study, lines, tmp_path, monkeypatch):
    """One task, one seed, and gaps: what there is is drawn, and the page shows it."""
    pytest.importorskip("matplotlib")
    few = [x for x in lines if x["task"] == "trec" and x["seed"] == 0]
    few = [x for i, x in enumerate(few) if i % 3]
    figures, runs = study("figures"), study("lookup").Runs(few)
    monkeypatch.setattr(figures, "DPI", 40)
    names = figures.draw_pictures(runs, tmp_path)
    assert len(names) >= 4
    for name in names:
        key = name.removeprefix("results_").removesuffix(".png")
        text = block(study, figures.PICTURES[key].section, few)
        assert f"](images/{name})" in text
