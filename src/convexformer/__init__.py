"""Attention trained to a certified global optimum."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

from .estimators import (
    AttentionPath,
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    TokenScaler,
    attention_path,
    beta_max,
    load_model,
)
from .problem import Certificate

# Imported at first use: matplotlib takes longer to import than everything else here.
_LAZY = {
    "CertificateDisplay": "plotting",
    "PathDisplay": "plotting",
    "TokenMapDisplay": "plotting",
}

__all__ = [
    "AttentionPath",
    "Certificate",
    "ConvexAttentionClassifier",
    "ConvexAttentionClassifierCV",
    "ConvexAttentionRegressor",
    "ConvexAttentionRegressorCV",
    "TokenScaler",
    "attention_path",
    "beta_max",
    "load_model",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name in ("datasets", "plotting"):
        return import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "datasets", "plotting"])
