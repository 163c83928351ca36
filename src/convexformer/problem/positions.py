r"""Matrix targets as a problem whose samples are pairs (sample i, target position r).

The design maps coefficients ``T (n, d, n, c)``, indexed (source k, channel j, target r, output l),
to scores of rows ``(i, r)``. To a :class:`~convexformer.problem.problem.Problem` these are n groups
of ``d n`` columns, of which a row reads those of its own target. So losses, intercepts, weights,
dual points and certificates are those of every other problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .bounds import Bounded, CentredProducts, gamma, objective_bounds
from .certificate import Certificate
from .designs import Design, Groups, row_slices
from .norms import plain
from .penalties import Penalty
from .problem import Problem
from .tokens import TokenDesign

Array = NDArray[np.float64]


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
        n, d = self.n_groups, self.tokens.dim
        at = np.arange(*rows.indices(self.n_samples))
        first = at[0] // n
        X = self.tokens.gather(slice(first, at[-1] // n + 1), groups)
        A = np.zeros((len(at), len(groups), d, n))
        A[np.arange(len(at)), :, :, at % n] = X.reshape(-1, len(groups), d)[at // n - first]
        return A.reshape(len(at), -1)

    def _predict_all(self, Z: Array) -> Array:
        n, c = self.n_groups, Z.shape[2]
        return self.tokens.predict(Z.reshape(n, -1, n * c)).reshape(-1, c)

    def _correlate_all(self, V: Array) -> Array:
        n, c = self.n_groups, V.shape[1]
        return self.tokens.correlate(self.by_sample(V)).reshape(n, -1, c)

    def by_sample(self, V: Array) -> Array:
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
        raise NotImplementedError(
            "The proximal step is convexformer.solvers.matrix_targets.row_prox.prox."
        )


class PositionProblem(Problem):
    """The problem of all rows; ``shared`` tells that a channel's constant acts as an intercept."""

    design: PositionDesign
    as_logistic = None  # its equivalence is that of Euclidean norms

    @property
    def shared(self) -> bool:
        """Whether a constant added to a channel is the same as another intercept."""
        stochastic = isinstance(self.penalty, AttentionPenalty) and (
            self.penalty.attention == "stochastic"
        )
        return stochastic and self.intercept and self.design.tokens.mask is None

    def _largest(self, V: Array, M: Array, norms: Array) -> float:
        if self.shared:  # what is common to all sources, and sums to zero over targets, is nothing
            four = M.reshape(self.design.n_groups, -1, self.design.n_groups, M.shape[2])
            common = four.mean(axis=0)
            M = (four - (common - common.mean(axis=1, keepdims=True))).reshape(M.shape)
        return super()._largest(V, M, norms)

    def certificate(self, Z: Array, b: Array, beta: float, tol: float = 1e-6) -> Certificate:
        careful = partial(CentredPositions, shared=self.shared)
        primal, dual = objective_bounds(self, plain(Z), plain(b), beta, tol, careful)
        return Certificate(primal, dual, float(beta), self.beta_max, self.negligible)


class CentredPositions(CentredProducts):
    """X less the means of its channels, where these act as an intercept, else X as it is.

    Errors are bounded entry by entry. A column (k, j, r) is read less its channel's mean in the
    rows of target r only. As the row sums of every matrix are equal, what this leaves out is the
    same in all rows: the mean over r of what columns score at the constant ``origin``.
    """

    def __init__(self, design: PositionDesign, weight: Array, shared: bool) -> None:
        self.tokens, self.n = design.tokens, design.n_groups
        self.origin, self._channel = None, np.zeros(self.tokens.dim)
        if shared:
            share = weight.reshape(-1, self.n).sum(axis=1)
            mean = self.tokens.means(share / share.max()).mean(axis=0)
            # rounded so that n times a part is exact
            fraction, exponent = np.frexp(mean / self.n)
            bits = 52 - int(self.n).bit_length()
            part = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
            self._channel = self.n * part
            self.origin = np.ascontiguousarray(
                np.broadcast_to(part[:, None], (self.n, len(part), self.n))
            ).reshape(self.n, -1)

    def _blocks(self, columns: int) -> Iterator[tuple[slice, Array]]:
        channel = np.tile(self._channel, self.n)
        for rows in row_slices(self.tokens.n_samples, len(channel) + columns):
            yield rows, self.tokens.gather(rows, np.arange(self.n)) - channel

    def scores(self, Z: Array, constant: Array) -> Bounded:
        c = Z.shape[2]
        flat = Z.reshape(-1, self.n * c)  # (n d, n c)
        value, size = np.empty((2, self.tokens.n_samples, self.n * c))
        for rows, D in self._blocks(flat.shape[1]):
            value[rows] = D @ flat
            size[rows] = np.abs(D) @ np.abs(flat)
        error = gamma(len(flat) + 4) * size
        return Bounded(value.reshape(-1, c), error.reshape(-1, c))

    def correlate(self, V: Array) -> Bounded:
        c, W = V.shape[1], np.ascontiguousarray(V).reshape(self.tokens.n_samples, -1)
        value, size = np.zeros((2, self.n * self.tokens.dim, W.shape[1]))
        for rows, D in self._blocks(W.shape[1]):
            value += D.T @ W[rows]
            size += np.abs(D).T @ np.abs(W[rows])
        error = gamma(len(W) + 4) * size
        return Bounded(value.reshape(self.n, -1, c), error.reshape(self.n, -1, c))


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
