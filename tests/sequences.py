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

from .oracle import _solve

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

    def problem(self) -> SequenceProblem:
        """The problem under test."""
        options = (self.attention, self.sample_weight, self.mask, self.intercept)
        return SequenceProblem(self.X, self.Y, *options)

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
        """Y with zeros where it does not count."""
        return np.where(self.weight[:, :, None] > 0, self.Y, 0.0)

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
        R = self.scores(Z, b) - self.targets
        return 0.5 * float(np.sum(self.weight[:, :, None] * R**2)) + beta * self.penalty(Z)

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
        loss = 0.5 * float(np.sum(self.weight[:, :, None] * (F - self.targets) ** 2))
        return loss + 0.5 * beta * decay

    def oracle(self, beta: float) -> float:
        """The optimum by CVXPY and Clarabel."""
        N, n, d = self.X.shape
        c, root = self.Y.shape[2], np.sqrt(self.weight)
        loss: cp.Expression = 0
        penalty: cp.Expression = 0
        constraints = []
        for k in range(c):
            F = np.ones((N, n)) * (cp.Variable() if self.intercept else 0.0)
            for j in range(d):
                parts = [cp.Variable((n, n), nonneg=True) for _ in range(2)]
                for part in parts:
                    sums, level = cp.sum(part, axis=1), cp.Variable()
                    stochastic = self.attention == "stochastic"
                    constraints.append(sums == level if stochastic else sums <= level)
                    penalty += level
                F = F + self.tokens[:, :, j] @ (parts[0] - parts[1]).T
            loss += cp.sum_squares(cp.multiply(root, F - self.targets[:, :, k])) / 2
        program = cp.Problem(cp.Minimize(loss + beta * penalty), constraints)
        _solve(program)
        return float(program.value)


def make(
    attention: str = "stochastic",
    intercept: bool = True,
    masked: bool = False,
    weighted: bool = False,
    shape: tuple[int, int, int, int] = (12, 4, 2, 2),
    seed: int = 0,
) -> RawSequence:
    """Noisy targets of a network with three heads, far from zero mean."""
    rng = np.random.default_rng(seed)
    N, n, d, c = shape
    X = rng.normal(size=(N, n, d)) + 1.0
    Y = teach(X, c, rng) + 3.0
    mask = weight = None
    if masked:
        mask = rng.random((N, n)) < 0.8
        X, Y = (np.where(mask[:, :, None], array, np.nan) for array in (X, Y))
    if weighted:
        weight = rng.integers(0, 3, size=N).astype(float)
        weight[:2] = 0.0, 2.0
    return RawSequence(X, Y, attention, intercept, mask, weight)


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
