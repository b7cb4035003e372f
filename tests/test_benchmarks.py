"""The benchmark scripts run, on a tiny encoder and a few texts, and say what they do.

Their targets are not checked here: times of a tiny encoder mean nothing.
"""

import contextlib
import gzip
import importlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tiny import LABELS, TEXTS

BENCHMARKS = Path(__file__).resolve().parents[1] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """Import a benchmark script by name, as if started from its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def small_bert(tiny_backbone):
    return tiny_backbone("bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """`trec` with single texts of three classes, `mrpc` with pairs of two."""
    folder = tmp_path_factory.mktemp("data")
    pairs = zip(TEXTS, TEXTS[3:] + TEXTS[:3], strict=True)
    tables = {
        "trec": [f"{text}\t{y}" for text, y in zip(TEXTS, LABELS, strict=True)],
        "mrpc": [f"{a}\t{b}\t{'ny'[i // 3 % 2]}" for i, (a, b) in enumerate(pairs)],
    }
    headers = {"trec": "text\tlabel", "mrpc": "text_a\ttext_b\tlabel"}
    for task, rows in tables.items():
        (folder / task).mkdir()
        for part, kept in {"train": rows[:42], "test": rows[42:]}.items():
            content = "\n".join([headers[task], *kept])
            with gzip.open(folder / task / f"{part}.tsv.gz", "wt") as file:
                file.write(content)
    return folder


@pytest.fixture
def run(benchmark, data_dir, tmp_path):
    """Run a script's main; return (what it prints, the lines of its file)."""
    out = tmp_path / "results" / "lines.jsonl"

    def run_main(name, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            benchmark(name).main(
                [*map(str, arguments), "--data-dir", str(data_dir), "--out", str(out)]
            )
        lines = out.read_text().splitlines() if out.exists() else []
        return printed.getvalue(), list(map(json.loads, lines))

    return run_main


# --- quality --------------------------------------------------------------------


def quick(backbone, *tasks):
    settings = ("--epochs", 1, "--n-train", 30, "--seeds", 0, 1, "--threads", 1)
    return ("run", "--tasks", *tasks, *settings, "--set", f"backbone={backbone}")


def test_report_reads_what_run_wrote(run, small_bert):
    variants = ("default", "random_acl_cl", "random_ce", "logistic_regression")
    arguments = (*quick(small_bert, "trec"), "--variants", *variants)
    _, lines = run("quality", *arguments)
    assert len(lines) == 2 * len(variants)
    assert not any("part" in line or "matthews" in line for line in lines)
    printed, repeated = run("quality", *arguments)
    assert printed == "" and repeated == lines  # nothing is run twice

    printed, _ = run("quality", "report")
    for variant in variants:
        exits = [line["exits"] for line in lines if line["variant"] == variant]
        (row,) = re.findall(rf"^trec +{variant} +2 +(.*)$", printed, re.M)
        mean, first, last = map(float, row.split()[:3])
        assert mean == pytest.approx(np.mean(exits), abs=0.0051)
        assert first == pytest.approx(np.mean(exits, 0)[0], abs=0.0051)
        assert last == pytest.approx(np.mean(exits, 0)[-1], abs=0.0051)
        assert ("head start" in row) == (variant != "logistic_regression")
    assert len(re.findall(r"^trec: random_acl_cl - random_ce, ", printed, re.M)) == 2
    assert len(re.findall(r"^(PASS|FAIL) trec: default, ", printed, re.M)) == 2
    assert re.search(r"^(PASS|FAIL) trec: last exit .* over logistic", printed, re.M)


def test_validation_runs_are_kept_apart_and_two_classes_get_matthews(run, small_bert):
    arguments = (*quick(small_bert, "mrpc"), "--variants", "random_ce")
    run("quality", *arguments, "--part", "validation")
    _, lines = run("quality", *arguments)
    assert [line.get("part") for line in lines] == 2 * ["validation"] + 2 * [None]
    assert all(len(line["matthews"]) == len(line["exits"]) for line in lines)
    printed, _ = run("quality", "report")
    assert "rows of the validation part" in printed
    assert "rows of the scored part" in printed
    assert printed.count("Matthews") == 2


def test_validation_rows_are_cut_from_train(benchmark, data_dir):
    load_task = benchmark("tasks").load_task
    scored = []
    for seed in (0, 1):
        train, _, test, labels = load_task(
            "trec", n_train=None, seed=seed, data_dir=data_dir, part="validation"
        )
        assert len(test) == len(labels) == 42 // 5
        assert sorted(train + test) == sorted(TEXTS[:42])
        scored.append(test)
    assert scored[0] == scored[1]


def test_differences_are_paired_over_seeds(benchmark):
    lines = [
        {"task": "trec", "variant": variant, "seed": seed, "exits": [0.0, last]}
        for variant, seed, last in [
            *(("default", 0, 5.0), ("default", 1, 7.0), ("default", 2, 99.0)),
            *(("random_ce", 1, 4.0), ("random_ce", 0, 4.0)),
        ]
    ]
    paired = benchmark("quality")._paired
    gain, margin, n_seeds = paired(lines, "trec", "default", "random_ce", max)
    assert (gain, n_seeds) == (2.0, 2)
    assert margin == pytest.approx(12.706, abs=1e-3)  # t(1) times a standard error of 1


def test_c_at_the_edge_of_its_grid_is_marked(benchmark):
    quality = benchmark("quality")
    assert "edge" not in quality._remarks([{"C": quality.C_GRID[1]}])
    for edge in (quality.C_GRID[0], quality.C_GRID[-1]):
        assert "edge of its grid in 1 runs" in quality._remarks([{"C": edge}])


# --- speed ----------------------------------------------------------------------


@pytest.mark.parametrize("task", ["trec", "mrpc"])
def test_speed_predict(run, small_bert, task):
    printed, (line,) = run(
        "speed_predict",
        *("--tasks", task, "--repeats", 2, "--backbone", small_bert),
        *("--batch-size", 8),
    )
    assert len(re.findall(rf"^(?:PASS|FAIL) {task}: ", printed, re.M)) == 2
    assert list(line["exit_times"]) == ["1"]
    assert line["speed_over_pipeline"] > 0
    assert 0 <= line["predict_padding"] < 1  # so few texts share a batch
    assert 0 < line["predict_padding_as_given"] < 1
    assert 0 <= line["fit_padding"] < line["fit_padding_shuffled"] < 1
    assert 0 < line["fit_matmul_share"] < line["epoch_matmul_share"] < 1


def test_speed_fit(run, small_bert):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    pytest.importorskip("datasets", reason="the baseline holds its rows in datasets")
    printed, lines = run(
        "speed_fit",
        *("--tasks", "mrpc", "--seeds", 0, 1, "--epochs", 1, "--batch-size", 8),
        *("--backbone", small_bert, "--group-by-length", "--pooling", "cls"),
    )
    assert [line["seed"] for line in lines] == [0, 1]
    for line in lines:
        for side in ("", "trainer_", "trainer_by_length_"):
            assert line[f"{side}seconds"] > 0
            assert 0 <= line[f"{side}accuracy"] <= 100
    assert len(re.findall("^(?:PASS|FAIL) mrpc: time over ", printed, re.M)) == 2
    assert len(re.findall("^(?:PASS|FAIL) mrpc: accuracy less ", printed, re.M)) == 2


def test_speed_fit_verdicts(benchmark):
    found = [
        {"ours": (6.0, 0.90), "trainer": (10.0, 0.92)},
        {"ours": (8.0, 0.90), "trainer": (10.0, 0.92)},
        {"ours": (6.5, 0.90), "trainer": (10.0, 0.80)},
    ]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        benchmark("speed_fit").print_targets("trec", found)
    first, second = printed.getvalue().splitlines()
    assert first.startswith("PASS trec: time") and "0.65" in first
    assert second.startswith("FAIL trec: accuracy") and "+2.00 points" in second


# --- gate_scopes ----------------------------------------------------------------


def test_gate_scopes(run, small_bert):
    printed, lines = run(
        "gate_scopes",
        *("--tasks", "trec", "--backbone", small_bert, "--batch-size", 8),
        *("--max-steps", 3),
    )
    assert [line["head_init"] for line in lines] == ["lda", "random"]
    for line in lines:
        assert line["steps"] == 3
        assert list(line["no_gate"]) == ["forward_backward_over_joint_ce"]
        assert line["encoder"]["correlation_with_encoder"] == 1.0
        assert line["encoder"]["same_decision"] == 1.0
        assert 0 < line["exit_dense"]["angle_mean"] < 180
    assert len(re.findall("^  (?:PASS|FAIL) ffn_output", printed, re.M)) == 2


def test_undefined_angles_are_left_out_of_the_correlation(benchmark):
    own = np.array([10.0, np.nan, 100.0, 50.0])
    reference = np.array([20.0, 95.0, 110.0, np.nan])
    found = benchmark("gate_scopes").compare_angles(own, reference)
    assert found["correlation_with_encoder"] == 1.0
    assert found["dropped"] == 2
    assert found["angle_mean"] == pytest.approx(53.3)
    assert found["share_above_90"] == 0.25
    assert found["same_decision"] == 0.75


# --- speed_exits ----------------------------------------------------------------


def test_speed_exits(run, small_bert):
    printed, (line,) = run(
        "speed_exits",
        *("--tasks", "trec", "--backbone", small_bert, "--batch-size", 8),
        *("--epochs", 1, "--repeats", 2, "--n-single", 3, "--thresholds", 0, 0.4, 1),
    )
    rows = line["found"]
    assert [row["batch_size"] for row in rows] == [8] * 3 + [1] * 3
    layers = [row["average_exit_layer"] for row in rows]
    assert layers[0] == layers[3] == 1 and layers[2] == layers[5] == 2
    for row in rows:
        assert row["layers_saved"] == 1 - row["average_exit_layer"] / 2
        assert row["time_over_full_depth"] > 0
    for row in rows[2], rows[5]:
        assert row["accuracy"] == row["full_depth_accuracy"]
    assert len(re.findall("^(?:PASS|FAIL) trec, batch size 8, ", printed, re.M)) == 3
    assert len(re.findall("^trec, batch size 1, threshold ", printed, re.M)) == 3


# --- speed_search ---------------------------------------------------------------


def test_speed_search(run, small_bert):
    printed, lines = run(
        "speed_search",
        *("--seeds", 1, "--n-train", 30, "--epochs", 1, "--batch-size", 12),
        *("--backbone", small_bert),
    )
    (line,) = lines
    assert line["seed"] == 1
    assert line["candidates"] == 2 * 2 * 2  # exits of two layers
    assert line["trainings"] == line["trainings_alone"] == 2 * 2 * 3
    assert line["scores_equal"]
    ratio = line["search_seconds"] / line["trainings_alone_seconds"]
    assert line["time_ratio"] == pytest.approx(ratio)
    assert len(re.findall("^(?:PASS|FAIL) trec seed 1: time of", printed, re.M)) == 1
    assert len(re.findall("^PASS trec seed 1: 12 trainings, ", printed, re.M)) == 1
