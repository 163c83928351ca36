r"""Matrix targets as a problem whose samples are pairs (sample i, target position r).

The design maps coefficients ``T (n, d, n, c)``, indexed (source k, channel j, target r, output l),
to scores of rows ``(i, r)``. To a :class:`~convexformer.problem.problem.Problem` these are n groups
of ``d n`` columns, of which a row reads those of its own target. So losses, intercepts, weights,
dual points and certificates are those of every other problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, Groups
from .bounds import Bounded, CentredProducts, objective_bounds
from .certificate import Certificate
from .designs import Design
from .norms import plain
from .penalties import Penalty
from .problem import Problem
from .tokens import TokenDesign


class PositionDesign(Design):
    """Scores of all target positions; X is stored once, as tokens.

    Parameters
    ----------
    tokens : TokenDesign
    """

    def __init__(self, tokens: TokenDesign) -> None:
        self.tokens, n = tokens, tokens.n_groups
        self.n_samples, self.n_groups, self.dim = tokens.n_samples * n, n, tokens.dim * n
        self.nbytes = tokens.nbytes

    @property
    def norm(self) -> float:
        """A bound of the norm of every row and of every column, which is all it is used for."""
        return self.tokens.norm

    def rescaled(self, unit: float) -> PositionDesign:
        return PositionDesign(self.tokens.rescaled(unit))

    def some(self) -> Array:
        return self.tokens.some()

    def prefers_all(self, groups: Groups) -> bool:
        return True

    def gather(self, rows: slice, groups: Groups) -> Array:
        raise NotImplementedError("Columns of positions are never formed: most entries are zero.")

    def sizes(self, V: Array) -> Array:
        return self.tokens.sizes(self._by_sample(V)).reshape(self.n_groups, self.dim, -1)

    def _predict_all(self, Z: Array) -> Array:
        n, c = self.n_groups, Z.shape[2]
        return self.tokens.predict(Z.reshape(n, -1, n * c)).reshape(-1, c)

    def _correlate_all(self, V: Array) -> Array:
        n, c = self.n_groups, V.shape[1]
        return self.tokens.correlate(self._by_sample(V)).reshape(n, -1, c)

    def _by_sample(self, V: Array) -> Array:
        """Values of rows ``(N n, c)`` as ``(N, n c)``."""
        return np.ascontiguousarray(V).reshape(self.tokens.n_samples, -1)


class AttentionPenalty(Penalty):
    r""":math:`\sum_{jl} \bigl(\max_r \sum_k Z^+_{jl}[r, k] + \max_r \sum_k Z^-_{jl}[r, k]\bigr)`.

    Where row sums of every :math:`Z_{jl}` must be equal, the dual norm is that on such matrices.
    """

    name = "attention"
    separable = True

    def __init__(self, attention: str, n_tokens: int) -> None:
        super().__init__()
        self.attention, self.n_tokens = attention, n_tokens

    def _four(self, Z: Array) -> Array:
        """``(n, d n, c)`` as ``(source, channel, target, output)``."""
        return Z.reshape(len(Z), -1, self.n_tokens, Z.shape[2])

    def norms(self, Z: Array) -> Array:
        return norms(self._four(Z))

    def cells(self, n_outputs: int) -> int:
        return n_outputs

    def of(self, groups: NDArray[np.intp]) -> AttentionPenalty:
        """Itself: all matrices have entries in all groups."""
        return self

    def dual_norms(self, M: Array) -> Array:
        return dual_norms(self._four(M), self.attention)

    def dual_norms_bound(self, M: Array, error: Array) -> Array:
        four = self._four(M)
        off = self._four(np.broadcast_to(error, M.shape))
        # sums may cancel: their rounding is relative to the sum of sizes
        size = (np.abs(four) + off).max(axis=0).sum(axis=1)
        found = np.maximum(
            dual_norms(four + off, self.attention), dual_norms(four - off, self.attention)
        )
        return found + 2.0**-52 * (self.n_tokens + 8) * size

    def prox(self, Z: Array, step: float) -> Array:
        raise NotImplementedError("The proximal step is convexformer.solvers.matrix_targets.prox.")


class PositionProblem(Problem):
    """The problem of all rows."""

    as_logistic = None  # its equivalence is that of Euclidean norms

    def certificate(self, Z: Array, b: Array, beta: float, tol: float = 1e-6) -> Certificate:
        primal, dual = objective_bounds(self, plain(Z), plain(b), beta, tol, PositionProducts)
        return Certificate(primal, dual, float(beta), self.beta_max, self.negligible)


class PositionProducts(CentredProducts):
    """X as it is; errors are bounded entry by entry."""

    def __init__(self, design: PositionDesign, weight: Array) -> None:
        super().__init__(design.tokens, weight.reshape(-1, design.n_groups).sum(axis=1))
        self.origin, self._means = None, np.zeros_like(self._means)

    def scores(self, Z: Array, constant: Array) -> Bounded:
        n, c = len(Z), Z.shape[2]
        of_tokens = super().scores(Z.reshape(n, -1, n * c), constant)
        return Bounded(*(part.reshape(-1, c) for part in of_tokens))

    def correlate(self, V: Array) -> Bounded:
        n, c = self.design.n_groups, V.shape[1]
        of_tokens = super().correlate(V.reshape(self.design.n_samples, n * c))
        return Bounded(*(part.reshape(n, -1, c) for part in of_tokens))


def norms(T: Array) -> Array:
    r""":math:`\max_r \sum_k Z^+[r, k] + \max_r \sum_k Z^-[r, k]` of every matrix: ``(d, c)``.

    With equal row sums this is :math:`\max_r \|Z[r, :]\|_1`.
    """
    above, below = np.maximum(T, 0.0).sum(axis=0), np.maximum(-T, 0.0).sum(axis=0)  # (d, n, c)
    return above.max(axis=1) + below.max(axis=1)


def dual_norms(M: Array, attention: str) -> Array:
    r""":math:`\sum_r \max_k M[r, k]`, the larger of that of M and of -M: ``(d, c)``.

    For substochastic attention rows count only where their maximum is positive.
    """
    above, below = M.max(axis=0), -M.min(axis=0)  # (d, n, c)
    if attention == "substochastic":
        above, below = np.maximum(above, 0.0), np.maximum(below, 0.0)
    return np.maximum(above.sum(axis=1), below.sum(axis=1))
