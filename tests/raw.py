"""The plain ingredients of a problem, kept apart from the code under test.

`Problem` shifts targets and centres columns. What is compared with it (the oracle, dense algebra)
must start from the same raw arrays, and from formulas written here a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from convexformer.problem import (
    PENALTIES,
    Huber,
    Logistic,
    Loss,
    Poisson,
    Problem,
    Softmax,
    Squared,
    TokenDesign,
)

Array = NDArray[np.float64]
LOSSES: dict[str, Loss] = {
    "squared": Squared(),
    "huber": Huber(),
    "logistic": Logistic(),
    "softmax": Softmax(),
    "poisson": Poisson(),
}


@dataclass
class Raw:
    """Arrays and options of one problem, as a user would give them."""

    X: NDArray[np.floating]  # (N, n, d)
    Y: Array  # (N, c)
    loss: str
    penalty: str = "token-output"
    intercept: bool = True
    mask: NDArray[np.bool_] | None = None
    sample_weight: Array | None = None
    penalty_weights: Array | None = None
    delta: float = field(default=1.35, kw_only=True)

    def problem(self) -> Problem:
        """The problem under test."""
        loss = Huber(self.delta) if self.loss == "huber" else LOSSES[self.loss]
        penalty = PENALTIES[self.penalty](self.penalty_weights)
        design = TokenDesign(self.X, self.mask)
        return Problem(design, loss, penalty, self.Y, self.sample_weight, self.intercept)

    @property
    def tokens(self) -> Array:
        """X in float64 with zero rows at padding."""
        X = np.asarray(self.X, dtype=np.float64)
        return X if self.mask is None else np.where(self.mask[:, :, None], X, 0.0)

    @property
    def weight(self) -> Array:
        """Sample weights, 1 if none were given."""
        return np.ones(len(self.Y)) if self.sample_weight is None else self.sample_weight

    @property
    def groups(self) -> Array:
        """Penalty weights, 1 if none were given."""
        return np.ones(self.X.shape[1]) if self.penalty_weights is None else self.penalty_weights

    @property
    def has_minimiser(self) -> bool:
        """Whether a finite intercept minimises the loss (always, without an intercept)."""
        if not self.intercept or self.loss in ("squared", "huber"):
            return True
        mass = self.weight @ (self.Y > 0)
        if self.loss == "logistic":
            return bool(np.all(mass > 0) and np.all(self.weight @ (self.Y < 0) > 0))
        return bool(np.all(mass > 0))

    def scores(self, Z: Array, b: Array) -> Array:
        """``F = sum_k X_k Z_k + b``."""
        return np.einsum("ikd,kdc->ic", self.tokens, Z) + b

    def penalty_value(self, Z: Array) -> float:
        """The penalty, without beta."""
        if self.penalty == "nuclear":
            return float(
                sum(w * np.linalg.norm(Zk, "nuc") for w, Zk in zip(self.groups, Z, strict=True))
            )
        axis = 1 if self.penalty == "token-output" else (1, 2)
        norms = np.sqrt(np.sum(Z**2, axis=axis)).reshape(len(Z), -1)
        return float(np.sum(self.groups[:, None] * norms))

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)`` from the textbook formulas (Poisson as half its deviance)."""
        F = self.scores(Z, b)
        return float(np.sum(self.weight[:, None] * self._loss(F))) + beta * self.penalty_value(Z)

    def _loss(self, F: Array) -> Array:
        Y, R = self.Y, np.abs(F - self.Y)
        if self.loss == "squared":
            return R**2 / 2
        if self.loss == "huber":
            near = np.minimum(R, self.delta)
            return near**2 / 2 + self.delta * (R - near)
        if self.loss == "logistic":
            return np.logaddexp(0, -Y * F)
        if self.loss == "softmax":
            return (np.logaddexp.reduce(F, axis=1) - np.sum(Y * F, axis=1))[:, None]
        log_y = np.log(np.where(Y > 0, Y, 1))
        return np.exp(F) - Y * F + Y * log_y - Y
