"""What a run measures: a function per kind of run, from texts to a dict of numbers."""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from quality import score_exits
from tasks import DATA_DIR, folder_bytes, load_both, load_task

#: Texts on which `TunedExitClassifierCV` chooses, drawn from rows not trained on.
N_CALIBRATION = 1000
MAX_DROPS = (0.02, 0.05)
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def measure(run, data_dir=DATA_DIR):
    """Numbers of a run, by its kind."""
    return KINDS[run["kind"]](run, data_dir)


def train_classifier(run, data_dir):
    """Scores of every exit, angles and times of one classifier."""
    train, test = load_texts(run, data_dir)
    clf, fit_seconds = fit(run, train)
    start = time.perf_counter()
    proba = clf.predict_proba_exits(test[0])
    seconds = time.perf_counter() - start
    return {
        **score_exits(clf.classes_[proba.argmax(-1)], test[1]),
        "n_scored": len(test[0]),
        "fit_seconds": round(fit_seconds, 1),
        "predict_seconds": round(seconds, 2),
        "model_bytes": saved_bytes(clf),
        "n_steps": len(clf.angles_),
        "gated_share": [epoch.get("gated_share") for epoch in clf.history],
        "angles": angles_of(clf),
    }


def tune_classifier(run, data_dir):
    """Along thresholds, and what tuned exits do on the test texts."""
    train, test, calibration = load_three(run, data_dir)
    clf, fit_seconds = fit(run, train)
    full = clf.predict(test[0])
    return {
        "n_scored": len(test[0]),
        "n_calibration": len(calibration[0]),
        "fit_seconds": round(fit_seconds, 1),
        "full_depth_accuracy": percent(full == test[1]),
        "exits": [
            percent(clf.predict(test[0], exit_layer=k) == test[1])
            for k in clf.exit_layer_numbers_
        ],
        "along": along_thresholds(clf, test),
        "tuned": [
            tune(clf, calibration, test, full, risk=risk, max_drop=max_drop)
            for risk in ("disagreement", "score")
            for max_drop in MAX_DROPS
        ],
    }


def train_rival(run, data_dir):
    """Scores and times of what a user would pick instead."""
    from rivals import RIVALS

    train, test = load_texts(run, data_dir)
    params = dict(run["params"])
    rival = RIVALS[params.pop("rival")]
    return rival(train, test, seed=run["seed"], params=params)


KINDS = {
    "classifier": train_classifier,
    "tuned": tune_classifier,
    "rival": train_rival,
}


def load_texts(run, data_dir):
    """((texts, labels) to train on, (texts, labels) to score)."""
    data = load_task(
        run["task"],
        n_train=run["n_train"],
        n_test=run["n_test"],
        seed=run["seed"],
        data_dir=data_dir,
        part=run["part"],
    )
    return data[:2], data[2:]


def load_three(run, data_dir):
    """Texts to train on, to score, and to calibrate on; no text is in two of them.

    The first `n_train` of the training rows are the same as in other runs.
    """
    n_train = run["n_train"]
    (texts, labels), test = load_both(
        run["task"], n_test=run["n_test"], data_dir=data_dir, part=run["part"]
    )
    # as `draw_rows` draws them, and then the next ones
    order = np.random.default_rng(run["seed"]).permutation(len(texts))
    train, calibration = order[:n_train], order[n_train : n_train + N_CALIBRATION]
    train, calibration = (
        ([texts[i] for i in rows], labels[rows]) for rows in (train, calibration)
    )
    return train, test, calibration


def fit(run, train):
    """(fitted classifier, seconds)."""
    from sklearn_acl import ACLClassifier

    clf = ACLClassifier(
        **run["params"], mixed_precision=None, random_state=run["seed"], verbose=0
    )
    start = time.perf_counter()
    clf.fit(*train)
    return clf, time.perf_counter() - start


def saved_bytes(clf):
    """Size of the directory that `save` writes."""
    with TemporaryDirectory() as folder:
        clf.save(Path(folder) / "model")
        return folder_bytes(folder)


def angles_of(clf):
    """Angle of every step in degrees; None where none was measured or there is none."""
    if np.isnan(clf.angles_).all():
        return None
    return [None if np.isnan(a) else round(float(a), 1) for a in clf.angles_]


def along_thresholds(clf, test):
    """Accuracy, average exit layer and time over full depth, threshold by threshold."""
    from speed_predict import paired_ratio

    def predict(threshold):
        clf.set_params(exit_threshold=threshold)
        return clf.predict(test[0], return_exit_layers=True)

    found = []
    for threshold in THRESHOLDS:
        predicted, layers = predict(threshold)
        share = paired_ratio(
            lambda threshold=threshold: predict(threshold), lambda: predict(None), 2
        )
        found.append(
            {
                "threshold": threshold,
                "average_exit_layer": round(float(layers.mean()), 4),
                "time_over_full_depth": round(share, 4),
                "accuracy": percent(predicted == test[1]),
            }
        )
    clf.set_params(exit_threshold=None)
    return found


def tune(clf, calibration, test, full, *, risk, max_drop):
    """What is promised, what holds on the test texts, and what it saves."""
    import warnings

    from sklearn_acl import TunedExitClassifierCV

    tuned = TunedExitClassifierCV(clf, max_drop=max_drop, risk=risk, cv="prefit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that nothing could be certified
        tuned.fit(*calibration)
    predicted, layers = tuned.estimator_.predict(test[0], return_exit_layers=True)
    lost = predicted != full
    if risk == "score":
        lost = (full == test[1]) & (predicted != test[1])
    return {
        "risk": risk,
        "max_drop": max_drop,
        "guaranteed": bool(tuned.guaranteed_),
        "threshold": tuned.exit_threshold_,
        "average_exit_layer": round(float(layers.mean()), 4),
        "test_risk": round(float(lost.mean()), 5),
        "accuracy": percent(predicted == test[1]),
    }


def percent(right):
    """Share of True in percent."""
    return round(100 * float(np.mean(right)), 3)
