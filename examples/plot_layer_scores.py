"""
=======================
The score of every exit
=======================

A fitted classifier has an exit after every layer. How much accuracy does an early one
cost? This example scores all exits, compares two ways to start them over several seeds,
and looks at what the gate of the contrastive term did.

So that it takes less than a minute on two cores, it trains on few of the bundled
messages, once over. With so few texts and two seeds the curves show how to compare, not
which way is better in general.
"""

# %%
# One classifier
# --------------
#
# ``from_estimator`` runs the encoder once and scores the probabilities of every exit.
# The messages it is scored on took no part in training.

import matplotlib.pyplot as plt

from sklearn_acl import ACLClassifier
from sklearn_acl.datasets import load_support_messages
from sklearn_acl.displays import GradientAngleDisplay, LayerScoreDisplay

texts, labels = load_support_messages("train", return_X_y=True)
texts, labels = texts[:80], labels[:80]
test_texts, test_labels = load_support_messages("test", return_X_y=True)

settings = {"max_epochs": 1, "batch_size": 8, "verbose": 0}
clf = ACLClassifier(random_state=0, **settings).fit(texts, labels)
LayerScoreDisplay.from_estimator(clf, test_texts, test_labels)
plt.show()

# %%
# Several methods, several seeds
# ------------------------------
#
# A list holds one entry per curve. An entry that is a list itself holds fits of one
# method, here with two seeds; the curve is their mean, and the band reaches from the
# lowest to the highest score. Any scorer of scikit-learn will do.

lda = [clf, ACLClassifier(random_state=1, **settings).fit(texts, labels)]
random = [
    ACLClassifier(head_init="random", random_state=seed, **settings).fit(texts, labels)
    for seed in (0, 1)
]
display = LayerScoreDisplay.from_estimator(
    [lda, random],
    test_texts,
    test_labels,
    scoring="f1_macro",
    name=["start: discriminant analysis", "start: random"],
)
display.ax_.set_title("Two ways to start the exits, after one epoch")
plt.show()

# %%
# What the gate did
# -----------------
#
# The angle between the gradients of cross-entropy and of the contrastive term is on
# record for every optimizer step. Where it exceeds ``angle_threshold`` the step trains
# on cross-entropy alone. Dots are steps; the line is their running median, here over
# five steps, and the band holds most of them.

GradientAngleDisplay.from_estimator(
    [lda[0], random[0]], name=["discriminant analysis", "random"], window=5
)
plt.show()
