"""
===========================================
Let each text leave early, with a guarantee
===========================================

An easy text needs fewer layers than a hard one. With ``exit_threshold`` each text
leaves at the first exit that is sure enough. The threshold trades accuracy for time;
this example draws the trade-off and lets :class:`~sklearn_acl.TunedExitClassifierCV`
choose a setting whose disagreement with full depth is bounded.
"""

# %%
# Along the thresholds
# --------------------
#
# We fit on a third of the bundled training messages and keep the others for tuning. A
# curve runs along the thresholds of one rule. A cross is one exit for all texts: a rule
# is worth its while where its curve runs above the crosses.

import matplotlib.pyplot as plt

from sklearn_acl import ACLClassifier, TunedExitClassifierCV
from sklearn_acl.datasets import load_support_messages
from sklearn_acl.displays import ExitTradeoffDisplay

texts, labels = load_support_messages("train", return_X_y=True)
test_texts, test_labels = load_support_messages("test", return_X_y=True)
n_fit = len(texts) // 3

clf = ACLClassifier(max_epochs=1, random_state=0, verbose=0)
clf.fit(texts[:n_fit], labels[:n_fit])
ExitTradeoffDisplay.from_estimator(
    clf, test_texts, test_labels, rule=["confidence", "entropy", "patience"]
)
plt.show()

# %%
# Measured time
# -------------
#
# The average exit layer is not yet time. With ``cost="time"`` every setting is run and
# timed on this machine, here with few messages and few thresholds of the classifier's
# own rule. The numbers beside the crosses are layers.

ExitTradeoffDisplay.from_estimator(
    clf, test_texts[:30], test_labels[:30], thresholds=[0.5, 0.7, 0.9], cost="time"
)
plt.show()

# %%
# A setting with a guarantee
# --------------------------
#
# Reading a threshold off a curve is optimistic: the best of many looks better than it
# is. The tuner tests settings one after the other, from the most careful on, on
# messages that the classifier has not seen, and takes the cheapest that it can certify:
# with a probability of 90 % over the choice of these messages, at most 10 % of new ones
# get another answer than at full depth. So few messages cannot certify much less.

tuned = TunedExitClassifierCV(
    clf, max_drop=0.1, confidence=0.9, cv="prefit", store_cv_results=True
)
tuned.fit(texts[n_fit:], labels[n_fit:])
print(f"rule {tuned.exit_rule_!r} with threshold {tuned.exit_threshold_!r}")
print(f"average exit layer {tuned.cost_:.2f}, guaranteed: {tuned.guaranteed_}")

# %%
# Filled markers are certified. The star is the setting chosen.

fig, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
ExitTradeoffDisplay.from_tuned(tuned, ax=axes[0])
ExitTradeoffDisplay.from_tuned(tuned, quality="risk", ax=axes[1])
plt.show()

# %%
# On the test messages, which took no part in any choice:

full_depth = clf.predict(test_texts)
early = tuned.predict(test_texts)
print(f"disagreement with full depth {(early != full_depth).mean():.1%}")
print(f"accuracy {(early == test_labels).mean():.1%}", end=", ")
print(f"at full depth {(full_depth == test_labels).mean():.1%}")
