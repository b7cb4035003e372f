"""Plots of fitted classifiers: numbers first, then `plot`, as scikit-learn's displays.

Nothing is measured in `plot`, which can be called again with other axes and styles.
"""

from .exit_tradeoff_display import ExitTradeoffDisplay
from .gradient_angle_display import GradientAngleDisplay
from .layer_score_display import LayerScoreDisplay

__all__ = ["ExitTradeoffDisplay", "GradientAngleDisplay", "LayerScoreDisplay"]
