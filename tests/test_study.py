"""The study's runner: every run once, whole lines, texts kept apart."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tiny import LABELS, TEXTS

from sklearn_acl import ACLClassifier

STUDY = Path(__file__).resolve().parents[1] / "examples" / "study"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """`trec` with a training part that leaves texts for calibration."""
    folder = tmp_path_factory.mktemp("data") / "trec"
    folder.mkdir()
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    for part, kept in {"train": rows[:48], "test": rows[48:]}.items():
        with gzip.open(folder / f"{part}.tsv.gz", "wt") as file:
            file.write("\n".join(["text\tlabel", *kept]))
    return folder.parent


@pytest.fixture(scope="module")
def small(study, tiny_backbone):
    """Turn a run of the study into one on a tiny encoder and a few texts."""
    backbone = str(tiny_backbone("bert", num_hidden_layers=2))

    def shrink(experiment="exits", name="acl, lda", **changes):
        experiments = study("experiments")
        chosen = experiments.EXPERIMENTS[experiment]
        run = experiments.make_run(chosen, "trec", 0, chosen.settings[name])
        params = run["params"] | {"backbone": backbone, "max_epochs": 1}
        return run | {"params": params, "n_train": 24} | changes

    return shrink


def test_a_run_names_every_setting(study):
    experiments = study("experiments")
    known = ACLClassifier().get_params()
    names = {name for e in experiments.EXPERIMENTS.values() for name in e.settings}
    assert set(experiments.BASE) <= set(known)
    assert len(names) > 50
    run = next(iter(experiments.runs(["exits"])))
    assert set(run["params"]) == set(experiments.BASE)


def test_the_defaults_of_the_library_are_among_the_settings(study):
    # so that the tables speak of what users get
    experiments = study("experiments")
    defaults = ACLClassifier().get_params()
    (ours,) = [experiments.BASE | experiments.EXPERIMENTS["exits"].settings["acl, lda"]]
    assert ours == {name: defaults[name] for name in ours}


def test_settings_of_an_experiment_differ_from_each_other(study):
    for name, experiment in study("experiments").EXPERIMENTS.items():
        texts = [
            json.dumps(values, sort_keys=True)
            for values in experiment.settings.values()
        ]
        assert len(set(texts)) == len(texts), name


def test_runs_of_the_first_seed_come_first_and_can_be_narrowed(study):
    experiments = study("experiments")
    found = list(experiments.runs(["exits", "small"]))
    seeds = [run["seed"] for run in found]
    assert seeds == sorted(seeds)
    assert len(found) == 8 * 8 * 5 + 4 * 4 * 3
    narrowed = list(experiments.runs(["exits"], tasks=["rte"], seeds=[1, 3]))
    assert {(run["task"], run["seed"]) for run in narrowed} == {("rte", 1), ("rte", 3)}
    assert all(run in found for run in narrowed)


def test_a_run_is_made_once_and_its_line_is_whole(study, small, data_dir, tmp_path):
    out = tmp_path / "runs.jsonl"
    planned = [small(), small(name="ce, random"), small()]
    run = study("run")
    assert run.run_missing(planned, out, data_dir) == 2
    lines = list(map(json.loads, out.read_text().splitlines()))
    assert run.run_missing(planned, out, data_dir) == 0
    assert len(out.read_text().splitlines()) == 2
    acl, ce = lines
    for line, planned_run in zip(lines, planned, strict=False):
        assert planned_run.items() <= line.items()
        assert len(line["exits"]) == 2 and line["n_scored"] == 12
        assert line["n_steps"] == 1 and "torch" in line["versions"]
    assert len(acl["angles"]) == 1 and 0 <= acl["angles"][0] <= 180
    assert ce["angles"] is None


def test_scores_are_those_of_the_estimator(study, small, data_dir):
    run = small()
    line = study("measure").measure(run, data_dir)
    rows = np.random.default_rng(0).permutation(48)[:24]
    clf = ACLClassifier(**run["params"], random_state=0, verbose=0)
    clf.fit([TEXTS[i] for i in rows], np.array(LABELS)[rows])
    scores = [
        100 * np.mean(clf.predict(TEXTS[48:], exit_layer=k) == np.array(LABELS[48:]))
        for k in (1, 2)
    ]
    assert line["exits"] == pytest.approx(scores, abs=1e-3)


def test_an_interrupted_run_leaves_nothing_and_is_made_next_time(
    study, small, data_dir, tmp_path, monkeypatch
):
    run, out = study("run"), tmp_path / "runs.jsonl"

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.run_missing([small()], out, data_dir)
    assert not out.exists()
    monkeypatch.setattr(run, "measure", lambda *_: {"exits": [1.0]})
    assert run.run_missing([small()], out, data_dir) == 1


def test_a_run_that_another_process_has_is_left_to_it(
    study, small, data_dir, tmp_path, monkeypatch
):
    run, out = study("run"), tmp_path / "runs.jsonl"
    monkeypatch.setattr(run, "measure", lambda *_: {"exits": [1.0]})
    monkeypatch.setattr(run, "gettempdir", lambda: str(tmp_path))
    first, second = small(), small(seed=1)
    folder = tmp_path / f"acl_study_{run.digest(str(out.resolve()))}"
    folder.mkdir()
    with FileLock(folder / run.digest(first)):  # as another process would hold it
        assert run.run_missing([first, second], out, data_dir) == 1
        (line,) = map(json.loads, out.read_text().splitlines())
        assert line["seed"] == 1
    assert run.run_missing([first, second], out, data_dir) == 1


@pytest.mark.parametrize("part", ["scored", "validation"])
def test_texts_to_train_calibrate_and_score_on_are_kept_apart(
    study, small, data_dir, part
):
    measure = study("measure")
    run = small("tuned", part=part, n_train=20, n_test=8)
    train, test, calibration = measure.load_three(run, data_dir)
    plain_train, plain_test = measure.load_texts(run, data_dir)
    assert train[0] == plain_train[0] and (train[1] == plain_train[1]).all()
    assert test[0] == plain_test[0]
    parts = [set(train[0]), set(test[0]), set(calibration[0])]
    assert sum(map(len, parts)) == len(set.union(*parts))
    n_train_part = 48 if part == "scored" else 40
    assert len(calibration[0]) == n_train_part - 20
    text_label = dict(zip(TEXTS, LABELS, strict=True))
    for texts, labels in (train, test, calibration):
        assert [text_label[text] for text in texts] == labels.tolist()


def test_tuned_exits_are_scored_on_test_texts(study, small, data_dir):
    line = study("measure").measure(small("tuned"), data_dir)
    assert line["n_calibration"] == 24
    assert len(line["tuned"]) == 4
    for row in line["tuned"]:  # so few texts certify nothing: full depth stays
        assert row["guaranteed"] and row["threshold"] is None
        assert row["average_exit_layer"] == 2 and row["test_risk"] == 0
        assert row["accuracy"] == line["full_depth_accuracy"] == line["exits"][-1]
    layers = [row["average_exit_layer"] for row in line["along"]]
    assert layers == sorted(layers)
    assert all(row["time_over_full_depth"] > 0 for row in line["along"])


def test_the_list_of_missing_runs_counts_them(study, capsys, tmp_path):
    study("run").main(
        ["--list", "--experiments", "small", "--out", str(tmp_path / "x")]
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "48 of 48 runs are missing"
    assert len(printed) == 49
    assert printed[0].startswith("classifier trec seed 0 [")
