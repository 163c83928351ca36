"""The scikit-learn face: estimators, their cross-validated twins, paths and a scaler."""

from ._sequence import AttentionMaps
from .attention import ConvexAttentionClassifier, ConvexAttentionRegressor
from .cv import ConvexAttentionClassifierCV, ConvexAttentionRegressorCV
from .path import AttentionPath, attention_path, beta_max
from .persistence import ModelFileError, load_model
from .sequence import ConvexSequenceClassifier, ConvexSequenceRegressor
from .tokens import PooledTokens, TokenScaler
from .transformer import (
    ConvexTransformerClassifier,
    ConvexTransformerClassifierCV,
    ConvexTransformerRegressor,
    ConvexTransformerRegressorCV,
)

__all__ = [
    "AttentionMaps",
    "AttentionPath",
    "ConvexAttentionClassifier",
    "ConvexAttentionClassifierCV",
    "ConvexAttentionRegressor",
    "ConvexAttentionRegressorCV",
    "ConvexSequenceClassifier",
    "ConvexSequenceRegressor",
    "ConvexTransformerClassifier",
    "ConvexTransformerClassifierCV",
    "ConvexTransformerRegressor",
    "ConvexTransformerRegressorCV",
    "ModelFileError",
    "PooledTokens",
    "TokenScaler",
    "attention_path",
    "beta_max",
    "load_model",
]
