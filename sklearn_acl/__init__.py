"""Multi-exit BERT-like text classifiers with a scikit-learn interface."""

from .classifier import ACLClassifier

__all__ = ["ACLClassifier", "__version__"]

__version__ = "0.1.0"
