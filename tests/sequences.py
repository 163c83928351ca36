"""Matrix-target problems from plain arrays: textbook formulas, the oracle, nasty data.

Kept apart from the code under test, as in `raw`: `SequenceProblem` shifts targets, centres channels
and works on moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from convexformer.problem.sequence import SequenceProblem

from .oracle import _loss as expression
from .oracle import _solve
from .raw import LOSSES, Raw

Array = NDArray[np.float64]


@dataclass
class RawSequence:
    """Arrays and options of one matrix-target problem, as a user would give them."""

    X: NDArray[np.floating]  # (N, n, d)
    Y: Array  # (N, n, c)
    attention: str = "stochastic"
    intercept: bool = True
    mask: NDArray[np.bool_] | None = None
    sample_weight: Array | None = None
    loss: str = "squared"

    def problem(self) -> SequenceProblem:
        """The problem under test."""
        options = (self.attention, self.sample_weight, self.mask, self.intercept)
        return SequenceProblem(self.X, self.Y, *options, LOSSES[self.loss])

    @property
    def rows(self) -> Raw:
        """Targets and weights of all positions, one row each, for the formulas of losses."""
        c = self.Y.shape[2]
        Y, weight = self.targets.reshape(-1, c), self.weight.ravel()
        return Raw(np.zeros((len(Y), 1, 1)), Y, self.loss, sample_weight=weight)

    @property
    def tokens(self) -> Array:
        """X in float64 with zero rows at padding."""
        X = np.asarray(self.X, dtype=np.float64)
        return X if self.mask is None else np.where(self.mask[:, :, None], X, 0.0)

    @property
    def weight(self) -> Array:
        """Weight of every target position, ``(N, n)``."""
        a = np.ones(len(self.X)) if self.sample_weight is None else self.sample_weight
        real = np.ones(self.X.shape[:2]) if self.mask is None else self.mask
        return a[:, None] * real

    @property
    def targets(self) -> Array:
        """Y, with some other target where it does not count."""
        any_valid = self.Y[np.unravel_index(np.argmax(self.weight > 0), self.weight.shape)]
        return np.where(self.weight[:, :, None] > 0, self.Y, any_valid)

    def scores(self, Z: Array, b: Array) -> Array:
        """``Yhat_i[:, l] = sum_j Z_jl X_i[:, j] + b_l``."""
        return np.einsum("jlrk,ikj->irl", Z, self.tokens) + b

    def penalty(self, Z: Array) -> float:
        """Largest row sums of the positive and of the negative part, of every matrix."""
        return sum(
            np.maximum(sign * M, 0).sum(axis=1).max()
            for sign in (1, -1)
            for M in Z.reshape(-1, *Z.shape[2:])
        )

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``; meant for Z with equal row sums where attention is stochastic."""
        return self.loss_value(self.scores(Z, b)) + beta * self.penalty(Z)

    def loss_value(self, F: Array) -> float:
        """Weighted loss of scores ``(N, n, c)``."""
        rows = self.rows
        return float(np.sum(rows.weight[:, None] * rows._loss(F.reshape(rows.Y.shape))))

    def network_objective(self, A: Array, B: Array, b: Array, beta: float) -> float:
        """Objective of the nonconvex network with two heads per input channel and output."""
        d, c, n, _ = A.shape
        F, decay = np.zeros((len(self.X), n, c)) + b, 0.0
        for j in range(d):
            for k in range(c):
                for part, sign in ((A[j, k], 1.0), (B[j, k], -1.0)):
                    a = part.sum(axis=1).max()
                    if a == 0:
                        continue
                    W1, w3 = part / a, sign * np.sqrt(a)
                    if self.attention == "stochastic":
                        np.testing.assert_allclose(W1.sum(axis=1), 1.0, rtol=1e-12)
                    assert np.all(W1 >= 0) and np.all(W1.sum(axis=1) <= 1 + 1e-12)
                    W2 = np.zeros((d, c))
                    W2[j, k] = np.sqrt(a)
                    F += W1 @ self.tokens @ W2 * w3
                    decay += np.abs(W2).sum() ** 2 + w3**2
        return self.loss_value(F) + 0.5 * beta * decay

    def oracle(self, beta: float) -> float:
        """The optimum by CVXPY and Clarabel, as the objective of the model that it found.

        Recomputed with the formulas of this class, so that it is never below the optimum but for
        rounding of row sums.
        """
        N, n, d = self.X.shape
        c = self.Y.shape[2]
        penalty: cp.Expression = 0
        constraints, scores, matrices = [], [], []
        b = cp.Variable(c) if self.intercept else np.zeros(c)
        for k in range(c):
            F = np.ones((N, n)) * b[k]
            for j in range(d):
                parts = [cp.Variable((n, n), nonneg=True) for _ in range(2)]
                for part in parts:
                    sums, level = cp.sum(part, axis=1), cp.Variable()
                    stochastic = self.attention == "stochastic"
                    constraints.append(sums == level if stochastic else sums <= level)
                    penalty += level
                F = F + self.tokens[:, :, j] @ (parts[0] - parts[1]).T
                matrices.append(parts[0] - parts[1])
            scores.append(cp.reshape(F, (N * n, 1), order="C"))
        program = cp.Problem(
            cp.Minimize(expression(self.rows, cp.hstack(scores)) + beta * penalty), constraints
        )
        _solve(program)
        Z = np.array([Z.value for Z in matrices]).reshape(c, d, n, n).transpose(1, 0, 2, 3)
        return self.objective(Z, b.value if self.intercept else b, beta)


def make(
    attention: str = "stochastic",
    intercept: bool = True,
    masked: bool = False,
    weighted: bool = False,
    shape: tuple[int, int, int, int] = (12, 4, 2, 2),
    seed: int = 0,
    loss: str = "squared",
) -> RawSequence:
    """Noisy targets of a network with three heads, far from zero mean."""
    rng = np.random.default_rng(seed)
    N, n, d, c = shape
    X = rng.normal(size=(N, n, d)) + 1.0
    Y = as_targets(teach(X, c, rng) + 3.0, loss)
    mask = weight = None
    if masked:
        mask = rng.random((N, n)) < 0.8
        X, Y = (np.where(mask[:, :, None], array, np.nan) for array in (X, Y))
    if weighted:
        weight = rng.integers(0, 3, size=N).astype(float)
        weight[:2] = 0.0, 2.0
    return RawSequence(X, Y, attention, intercept, mask, weight, loss)


def as_targets(Y: Array, loss: str) -> Array:
    """Numbers, or what a loss takes in their place."""
    scores = (Y - Y.mean(axis=(0, 1))) / Y.std()
    if loss == "logistic":
        return np.where(scores > 0, 1.0, -1.0)
    if loss == "softmax":
        return np.eye(Y.shape[2])[scores.argmax(axis=2)]
    return np.round(2 * np.exp(np.clip(scores, -1, 1))) if loss == "poisson" else Y


def teach(X: Array, c: int, rng: np.random.Generator) -> Array:
    """Targets of a network with three heads and some noise."""
    _, n, d = X.shape
    W = rng.dirichlet(np.full(n, 0.3), size=(3, n))
    V = rng.normal(size=(3, d, c)) / X.std(axis=(0, 1))[:, None]
    Y = np.einsum("hrk,ikj,hjl->irl", W, X - X.mean(axis=(0, 1)), V)
    return Y + 0.3 * Y.std() * rng.normal(size=Y.shape)


def nasty(kind: str) -> tuple[Array, Array]:
    """Data on which first-order methods are slow."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6, 3))
    if kind == "correlated":
        for k in range(1, 6):
            X[:, k] = 0.999 * X[:, k - 1] + 0.045 * X[:, k]
    elif kind == "scales":
        X *= np.geomspace(1, 1e3, 3)
    elif kind == "duplicates":
        X[:, 1], X[:, :, 2] = X[:, 0], X[:, :, 0]
    elif kind == "mean":
        X += 30.0
    elif kind == "one-hot":
        X = np.eye(3)[rng.integers(0, 3, size=(40, 6))]
    elif kind == "few samples":
        X = X[:6]
    return X, teach(X, 2, rng)
