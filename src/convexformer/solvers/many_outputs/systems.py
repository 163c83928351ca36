r"""The linear algebra of outputs that share tokens, among samples or among coefficients.

Both systems answer, at one eta, for :math:`G = X^\top V` with :math:`M(\eta) V = Y`, and for the
Hessian :math:`A_{kl} = \langle X_k G_k, M^{-1} X_l G_l\rangle`. X and Y are read less their means
where there is an intercept, times the roots of sample weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg.lapack import get_lapack_funcs

from ...problem.designs import Groups
from ...problem.stopping import check_stop
from ..linalg import cholesky, solved
from .kernel import Kernel, WeightedTokens

Array = NDArray[np.float64]

LEAST_MIXES = 24  # outputs of a Hessian among samples; up to a quarter of all where these are many
ROUGH, FINE = 0.4, 0.12  # relative changes of eta that update the kernel
FEW_OUTPUTS = 32  # samples per output from which refinement is cheap beside updates
NEW = 0.005  # relative change of eta that the first kernel of a system may miss
CHECKED = 16  # mixes of outputs that a residual is estimated from
FRESH = 0.02  # relative change of eta that a kernel brought up to date may miss
SLOW = 0.5  # contraction of refinement from which the kernel is brought up to date
FLOOR: dict[Any, float] = {
    np.float32: 2e-6,
    np.float64: 1e-13,
}  # relative residual that rounding may leave
WEAK = 1e-3  # what a token must add to M, beside the identity, to be read off a float32 inverse


@dataclass(frozen=True)
class Measure:
    """What an eta comes to; of V and Y all outputs together."""

    squares: Array  # (groups,): of the norms of G, 0 where it is not watched
    reach: float  # <Y, V>
    size: float  # <V, V>
    left: float  # ||M V - Y|| / ||V||


class SharedSystem(Protocol):
    """Targets with many outputs, for a changing eta ``(groups,)``."""

    def measure(self, eta: Array, accuracy: float) -> Measure: ...

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """A at the eta last measured, with ``G_k / radius_k`` in place of G."""
        ...

    def coefficients(self, cells: Groups) -> NDArray:
        """``Z_k = eta_k G_k / beta`` at the eta last measured, as precise as G is."""
        ...


class SharedKernel:
    """Works among samples: refines V with a kernel that need not be up to date.

    Parameters
    ----------
    Y : ndarray of shape (N, c)
        Principal axes first.
    columns : WeightedTokens
    kernel : Kernel
    watched : ndarray of int
        Groups that may be used.
    beta : float
    """

    def __init__(
        self,
        Y: Array,
        columns: WeightedTokens,
        kernel: Kernel,
        watched: Groups,
        beta: float,
    ) -> None:
        self.Y, self.columns, self.kernel, self.watched = Y, columns, kernel, watched
        self.beta = beta
        self.fine = FINE if Y.shape[1] * FEW_OUTPUTS > len(Y) else ROUGH
        self.rng = np.random.default_rng(0)
        self.V: Any = None  # (N, c), once measured
        self.far = True  # whether from the solution
        self.rounding = 0.0  # residual that the kernel left where it was up to date

    def measure(self, eta: Array, accuracy: float) -> Measure:
        kernel, anew = self.kernel, self.V is None
        self.scaled = eta / self.beta
        self.far = accuracy >= 1e-3
        kernel.update(self.scaled, NEW if anew else ROUGH if self.far else self.fine)
        if anew or (kernel.is_at(self.scaled) and self.rounding <= accuracy):
            self.V = self.columns.balanced(kernel.solve(self.Y))
            self.G = self.columns.correlate(self.V, self.watched)
            left = self.rounding = self._residual()[0]
        else:
            left = np.inf
        if left > accuracy:
            left = self._refine(accuracy)
        squares = np.zeros(len(eta))
        squares[self.watched] = _squares(self.G)
        return Measure(
            squares, float(np.vdot(self.Y, self.V)), float(np.vdot(self.V, self.V)), left
        )

    def _residual(self, most: int = CHECKED) -> tuple[float, Array]:
        """``||Y - M V|| / ||V||`` and ``Y - M V``, of mixes of the outputs where these are many."""
        mixes: NDArray = sketch(self.Y.shape[1], most, self.rng)
        Y, V, G = self.Y, self.V, self.G
        if mixes.shape[1] < len(mixes):
            Y, V, G = Y @ mixes, V @ mixes, G @ mixes.astype(G.dtype)
        R = Y - V - self.columns.predict(self.scaled[self.watched], G, self.watched)
        left = float(np.linalg.norm(R) / np.linalg.norm(V))
        # What rounding leaves is noise, which no token is correlated with.
        return left if left > FLOOR[self.columns.dtype] else 0.0, R

    def _refine(self, accuracy: float) -> float:
        """Correct V until the residual is below `accuracy`; returns that."""
        before = np.inf
        for _ in range(40):
            now, R = self._residual(self.Y.shape[1])
            if now > SLOW * before and not self.kernel.update(self.scaled, FRESH):
                break
            move = self.columns.balanced(self.kernel.solve(R))
            self.V = self.V + move
            self.G += self.columns.correlate(move, self.watched)
            left, before = self._residual()[0], now
            if left <= accuracy:
                return left
        raise LinAlgError("Refinement does not converge.")

    def _position(self, cells: Groups) -> Groups:
        return np.searchsorted(self.watched, cells)

    def coefficients(self, cells: Groups) -> NDArray:
        scaled: NDArray = self.scaled[cells].astype(self.G.dtype)
        return scaled[:, None, None] * self.G[self._position(cells)]

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """From random mixes of the outputs, but for the first, where they are many."""
        c = self.Y.shape[1]
        most = max(LEAST_MIXES, c // (8 if self.far else 4))
        mixes: NDArray = sketch(c, most, self.rng).astype(self.kernel.dtype)
        r = mixes.shape[1]
        U = np.empty((len(self.Y), len(cells) * r), mixes.dtype, order="F")
        for j, (k, limit) in enumerate(zip(cells, radius, strict=True)):
            check_stop()
            G = self.G[self._position(k)].astype(mixes.dtype) @ (mixes / mixes.dtype.type(limit))
            U[:, j * r : (j + 1) * r] = self.columns.contribution(k, G)
        T = self.kernel.half(U).reshape(-1, len(cells), order="F")
        return np.asarray(T.T @ T, dtype=np.float64)


class SharedGram:
    """Works among coefficients: factors of any precision, refined in float64.

    Parameters
    ----------
    Q : ndarray of shape (p, p)
        ``X'X`` of the groups that are watched.
    B : ndarray of shape (p, c)
        ``X'Y``.
    total : float
        ``<Y, Y>``.
    watched : ndarray of int
        Groups that may be used.
    beta : float
    dtype : type
        Of the factors, and of Hessians.
    """

    def __init__(
        self, Q: Array, B: Array, total: float, watched: Groups, beta: float, dtype: type
    ) -> None:
        self.Q, self.B, self.total, self.beta, self.dtype = Q, B, total, beta, dtype
        self.watched, self.size = watched, len(Q) // len(watched)

    def measure(self, eta: Array, accuracy: float) -> Measure:
        self.scaled = np.repeat(eta[self.watched] / self.beta, self.size)
        used = self.used = np.flatnonzero(self.scaled)
        s = self.s = np.sqrt(self.scaled[used])[:, None]
        T: NDArray = np.asarray(_block(self.Q, used) * s, dtype=self.dtype)
        T *= s.T
        T[np.diag_indices_from(T)] += 1.0
        self.factor = cholesky(T, overwrite=True)
        t, left = self._refine(s * self.B[used], accuracy)
        z = s * t
        reach = self.total - float(np.vdot(self.B[used], z))
        size = reach - float(np.vdot(self.G[used], z))
        squares = np.zeros(len(eta))
        squares[self.watched] = _squares(self.G.reshape(len(self.watched), self.size, -1))
        return Measure(squares, reach, size, left)

    def _refine(self, right: Array, accuracy: float) -> tuple[Array, float]:
        """``(I + S Q S) t = right``, and G with it."""
        t, before = solved(self.factor, right).astype(np.float64), np.inf
        few = 2 * len(self.used) < len(self.Q)
        Q, Z = self.Q[:, self.used] if few else self.Q, np.zeros_like(self.B)
        for _ in range(20):
            Z[self.used] = self.s * t
            self.G = self.B - Q @ (Z[self.used] if few else Z)
            R = self.s * self.G[self.used] - t
            left = float(np.linalg.norm(R) / max(np.linalg.norm(t), np.finfo(float).tiny))
            if left <= max(accuracy, FLOOR[np.float64]):
                return t, left
            if not left <= SLOW * before:
                break
            t, before = t + solved(self.factor, R), left
        raise LinAlgError("Refinement does not converge.")

    def coefficients(self, cells: Groups) -> NDArray:
        columns = self._columns(np.searchsorted(self.watched, cells))
        Z = self.scaled[columns][:, None] * self.G[columns]
        return np.asarray(Z.reshape(len(cells), self.size, Z.shape[1]))

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """``(Q - Q S (I + SQS)^-1 S Q) * GG'``, summed over blocks.

        Where both tokens weigh enough the first factor is ``S^-1 (I - (I + SQS)^-1) S^-1``, at a
        third of the cost.
        """
        cells = np.searchsorted(self.watched, cells)
        weight = (self.scaled * np.diagonal(self.Q)).reshape(-1, self.size).max(axis=1)[cells]
        strong, weak = np.flatnonzero(weight > WEAK), np.flatnonzero(weight <= WEAK)
        columns = self._columns(cells[strong])
        rows = np.searchsorted(self.used, columns)
        G = self._directions(cells[strong], radius[strong]) / self.s[rows].astype(self.dtype)
        A = np.zeros((len(cells), len(cells)))
        if len(weak):
            others = self._columns(cells[weak])
            right = self.s * self.Q[np.ix_(self.used, others)]
            through, G_weak = (
                solved(self.factor, right),
                self._directions(cells[weak], radius[weak]),
            )
            cross = self._summed(through[rows] * (G @ G_weak.T))
            A[np.ix_(strong, weak)], A[np.ix_(weak, strong)] = cross, cross.T
            own = (_block(self.Q, others) - right.T @ through) * (G_weak @ G_weak.T)
            A[np.ix_(weak, weak)] = self._summed(own)
        if len(strong):
            potri = get_lapack_funcs("potri", dtype=self.dtype)
            inverse, _ = potri(self.factor, lower=1, overwrite_c=1)  # the lower half, zero above
            half = -_block(inverse.T, rows)
            half[np.diag_indices_from(half)] = 0.5 * (1.0 + np.diagonal(half))
            half *= G @ G.T
            own = self._summed(half)
            A[np.ix_(strong, strong)] = own + own.T
        return A

    def _columns(self, cells: Groups) -> Groups:
        return (cells[:, None] * self.size + np.arange(self.size)).ravel()

    def _directions(self, cells: Groups, radius: Array) -> NDArray:
        """``G_k / radius_k``, ``(cells * d, c)``."""
        G = self.G.reshape(len(self.watched), -1)[cells] / radius[:, None]
        return G.reshape(len(cells) * self.size, self.B.shape[1]).astype(self.dtype)

    def _summed(self, inner: NDArray) -> Array:
        """Sums over blocks of a token by a token."""
        sums = inner.reshape(-1, self.size) @ np.ones(self.size, inner.dtype)
        return np.asarray(sums.reshape(-1, self.size, inner.shape[1] // self.size).sum(axis=1))


def _block(Q: NDArray, index: Groups) -> NDArray:
    """Rows and columns of `Q`; not copied where they are all of it."""
    return Q if len(index) == len(Q) else Q[np.ix_(index, index)]


def sketch(c: int, r: int, rng: np.random.Generator) -> Array:
    """``(c, r)``: half of r outputs as they are, the rest in random mixes; the identity if r = c.

    Inner products over outputs are those over mixes, on average.
    """
    if r >= c:
        return np.eye(c)
    kept, mixed = r // 2, r - r // 2
    mixes = np.eye(c, r)
    mixes[kept:, kept:] = rng.choice([-1.0, 1.0], size=(c - kept, mixed)) / np.sqrt(mixed)
    return mixes


def token_norms(G: NDArray) -> Array:
    """Norm of every token's G."""
    return np.sqrt(_squares(G))


def _squares(G: NDArray) -> Array:
    """Squared norm of every token's G."""
    return np.array([np.sum(np.einsum("ij,ij->i", g, g), dtype=np.float64) for g in G])
