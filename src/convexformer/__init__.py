"""Attention trained to a certified global optimum.

Names are imported at first use, so that ``import convexformer`` and ``convexformer --help`` do not
wait for scikit-learn or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import activations, datasets, plotting
    from .estimators import *
    from .plotting import *
    from .probes import HeadProbe, LayerProbe, probe
    from .problem import Certificate, Offsets

__all__ = [
    "AttentionPath",
    "Certificate",
    "CertificateDisplay",
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
    "HeadProbe",
    "LayerProbe",
    "ModelFileError",
    "Offsets",
    "PathDisplay",
    "PooledTokens",
    "ProbeDisplay",
    "TokenMapDisplay",
    "TokenScaler",
    "activations",
    "attention_path",
    "beta_max",
    "datasets",
    "load_model",
    "plotting",
    "probe",
]

_SUBPACKAGES = ("activations", "datasets", "plotting")
_ROOMS = {"Certificate": "problem", "Offsets": "problem"}
_ROOMS |= {"HeadProbe": "probes", "LayerProbe": "probes", "probe": "probes"}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = _ROOMS.get(name, "plotting" if name.endswith("Display") else "estimators")
    return getattr(import_module(f".{room}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
