"""
=========================================
A search over exits that trains only once
=========================================

A grid that holds ``exit_layer`` next to parameters of the training fits the same model
again and again: the exit that answers changes no weight. With ``memory=`` each training
runs once, and fits that differ only in what prediction reads are loaded.
"""

# %%
# The search
# ----------
#
# Two values of the contrastive share, three exits, two folds: 12 fits, but only four
# different trainings. ``memory`` takes a folder or a :class:`joblib.Memory`. The seed
# must be fixed: a fit with ``random_state=None`` is never the same as another.

import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from sklearn_acl import ACLClassifier
from sklearn_acl.datasets import load_support_messages
from sklearn_acl.displays import LayerScoreDisplay

texts, labels = load_support_messages("train", return_X_y=True)
texts, labels = texts[:80], labels[:80]

folder = tempfile.TemporaryDirectory()
clf = ACLClassifier(max_epochs=1, random_state=0, verbose=0, memory=folder.name)
grid = {"criterion__lam": [0.0, 0.5], "exit_layer": [2, 4, 6]}
search = GridSearchCV(clf, grid, cv=2, refit=False)
start = time.perf_counter()
search.fit(texts, labels)
print(f"first search: {time.perf_counter() - start:.1f} s for 4 trainings, 12 fits")

# %%
# What is trained stays in the folder, for the next search, too: a finer grid over the
# exits, another score, or the same search after the computer was switched off.

start = time.perf_counter()
search.fit(texts, labels)
print(f"again: {time.perf_counter() - start:.1f} s, everything is loaded")

# %%
# The result
# ----------
#
# Displays can be made from arrays: here the scores of both folds, whose range is the
# band.

results = search.cv_results_
shares = np.array(results["param_criterion__lam"], dtype=float)
folds = np.array([results["split0_test_score"], results["split1_test_score"]])
display = LayerScoreDisplay(
    layers=[grid["exit_layer"]] * 2,
    scores=[folds[:, shares == share] for share in grid["criterion__lam"]],
    names=["cross-entropy: lam = 0", "with ACL-CL: lam = 0.5"],
    score_name="Accuracy",
)
display.plot()
plt.show()

# %%
# Neighbouring exits of a fold are scored on the same 40 messages, and both folds
# together are few: differences of several points are chance.

folder.cleanup()
