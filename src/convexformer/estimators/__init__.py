"""The scikit-learn face: estimators, their cross-validated twins, paths and a scaler."""

from .attention import ConvexAttentionClassifier, ConvexAttentionRegressor
from .persistence import load_model

__all__ = ["ConvexAttentionClassifier", "ConvexAttentionRegressor", "load_model"]
