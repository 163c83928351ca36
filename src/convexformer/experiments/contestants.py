"""Who takes part in the comparison of predictions, and what each may try.

Every contestant has the same budget: `BUDGET` configurations, from which the validation part
chooses. To add one, add an entry to `CONTESTANTS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC

from convexformer import ConvexAttentionClassifier, ConvexTransformerClassifier, PooledTokens

BUDGET = 6
TOL = 1e-6  # the relative duality gap asked of convex models
MAX_SECONDS = 60.0  # of one convex fit; what it has not proved by then is in the table

Config = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """A kind of model and the configurations it may try.

    Attributes
    ----------
    name : str
        For files and the command line.
    label : str
        For the table.
    grid : tuple of dict
        `BUDGET` configurations, the simplest first: it wins where validation cannot tell.
    build : callable
        From a configuration and a seed to a classifier of tokens ``(N, n, d)``.
    convex : bool
        Whether the fitted model has `tokens_` and `certificate_`.
    watches : bool
        Whether ``fit`` takes the validation part, for early stopping.
    tokens : callable, optional
        Makes a transformer that appends tokens, before they are scaled.
    """

    name: str
    label: str
    grid: tuple[Config, ...]
    build: Callable[[Config, int], Any]
    convex: bool = False
    watches: bool = False
    tokens: Callable[[], Any] | None = None

    @property
    def fingerprint(self) -> str:
        """Changes with the grid, so that results of another grid are not mistaken for these."""
        return hashlib.sha256(json.dumps(self.grid, sort_keys=True).encode()).hexdigest()[:12]


def grid(**choices: tuple[Any, ...]) -> tuple[Config, ...]:
    """All combinations, the last name varying fastest.

    Examples
    --------
    >>> from convexformer.experiments.contestants import grid
    >>> grid(C=(1, 10), gamma=(0.5,))
    ({'C': 1, 'gamma': 0.5}, {'C': 10, 'gamma': 0.5})
    """
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


class ScaledSVC(SVC):
    """`SVC` whose gamma is in units of scikit-learn's ``gamma="scale"``."""

    gamma: Any

    def fit(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any = None) -> Any:
        """Fit with ``gamma / (n_features * X.var())``."""
        units, self.gamma = self.gamma, self.gamma / (X.shape[1] * X.var())
        try:
            return super().fit(X, y, sample_weight)
        finally:
            self.gamma = units


def flat(model: Any) -> Pipeline:
    """A classifier of vectors as one of tokens: they are laid side by side."""
    return make_pipeline(FunctionTransformer(lay_side_by_side), model)


def lay_side_by_side(X: NDArray[Any]) -> NDArray[Any]:
    """Tokens ``(N, n, d)`` as vectors ``(N, n d)``."""
    return np.ascontiguousarray(X).reshape(len(X), -1)


def _attention(config: Config, seed: int) -> Any:
    return ConvexAttentionClassifier(**config, tol=TOL, max_time=MAX_SECONDS)


def _gated(config: Config, seed: int) -> Any:
    # The published scores were made before blocks behind gates had a weight of their own.
    return ConvexTransformerClassifier(
        **config, gate_weight=1.0, random_state=seed, tol=TOL, max_time=MAX_SECONDS
    )


def _logistic(config: Config, seed: int) -> Any:
    return flat(LogisticRegression(**config, max_iter=2000))


def _svc(config: Config, seed: int) -> Any:
    return flat(ScaledSVC(**config, cache_size=500))


def _boosting(config: Config, seed: int) -> Any:
    return flat(
        HistGradientBoostingClassifier(
            **config, max_iter=150, early_stopping=False, random_state=seed
        )
    )


def _mlp(config: Config, seed: int) -> Any:
    return flat(MLPClassifier(**config, max_iter=200, random_state=seed))


def _transformer(config: Config, seed: int) -> Any:
    try:
        from .transformer import TransformerClassifier
    except ImportError as error:
        raise ImportError(
            'The transformer needs PyTorch, which is not installed: pip install "convexformer[nn]"'
        ) from error
    return TransformerClassifier(**config, random_state=seed)


BETAS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
GATED = grid(n_gates=(256,), gates=("axis", "pairs"), beta=(0.03, 0.01, 0.003))

KINDS = grid(n_gates=(64,), gates=("gaussian", "axis", "pairs"), beta=(0.03, 0.01))

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("attention", "convex attention", grid(beta=BETAS), _attention, convex=True),
        Contestant("kinds", "gated, 64 gates of any kind", KINDS, _gated, convex=True),
        Contestant("gated", "gated", GATED, _gated, convex=True),
        Contestant(
            "pooled", "gated + pooled tokens", GATED, _gated, convex=True, tokens=PooledTokens
        ),
        Contestant(
            "logistic", "logistic regression", grid(C=(0.01, 0.05, 0.2, 1.0, 5.0, 25.0)), _logistic
        ),
        Contestant(
            "svc",
            "SVC (RBF)",
            grid(C=(1.0,), gamma=(0.3, 1.0)) + grid(C=(10.0,), gamma=(0.3, 1.0, 3.0, 8.0)),
            _svc,
        ),
        Contestant(
            "boosting",
            "HistGradientBoosting",
            grid(max_leaf_nodes=(8, 31), learning_rate=(0.05, 0.1, 0.2)),
            _boosting,
        ),
        Contestant(
            "mlp",
            "MLP",
            grid(hidden_layer_sizes=((100,), (100, 100)), alpha=(1.0, 0.01, 0.0001)),
            _mlp,
        ),
        Contestant(
            "transformer",
            "torch transformer",
            grid(layers=(1, 2), learning_rate=(0.001, 0.003, 0.01)),
            _transformer,
            watches=True,
        ),
    )
}
