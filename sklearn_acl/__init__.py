"""Multi-exit BERT-like text classifiers with a scikit-learn interface."""

from .classifier import ACLClassifier
from .tuning import TunedExitClassifierCV

__all__ = ["ACLClassifier", "TunedExitClassifierCV", "__version__"]

__version__ = "0.1.0"
