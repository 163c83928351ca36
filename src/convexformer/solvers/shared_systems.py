r"""The linear algebra of outputs that share tokens, among samples or among coefficients.

Both systems answer, at one eta, for :math:`G = X^\top V` with :math:`M(\eta) V = Y`, and for the
Hessian :math:`A_{kl} = \langle X_k G_k, M^{-1} X_l G_l\rangle`. X and Y are read less their means
where there is an intercept, times the roots of sample weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg.blas import get_blas_funcs
from scipy.linalg.lapack import get_lapack_funcs

from ..problem import Problem
from ..problem.designs import Groups
from .factors import cholesky, half_solved, solved

Array = NDArray[np.float64]

COLUMNS = 512  # of X, multiplied at once
MIXES = 48  # outputs that a Hessian among samples is made of
ROUGH, FINE = 0.4, 0.12  # relative changes of eta that update the kernel
FEW_OUTPUTS = 32  # samples per output from which refinement is cheap beside updates
NEW = 0.005  # relative change of eta that the first kernel of a system may miss
FRESH = 0.02  # relative change of eta that a kernel brought up to date may miss
ROUNDING = 1e-3  # relative error of a float32 kernel, for all we know
LEAST_RATIO = 0.3  # of a contraction to the kernel's relative error, however well it goes
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

    def coefficients(self, cells: Groups) -> Array:
        """``Z_k = eta_k G_k / beta`` at the eta last measured."""
        ...


class WeightedTokens:
    """Tokens of a problem, centred and weighted, multiplied in the precision of `dtype`."""

    def __init__(self, problem: Problem, dtype: type) -> None:
        self.design, self.dtype = problem.design, dtype
        self.root = np.sqrt(problem.weight)[:, None]
        shape = (self.design.n_groups, self.design.dim)
        center = np.zeros(shape) if problem.center is None else problem.center
        self.center: NDArray = center.astype(dtype)
        self.weighted = bool(np.any(problem.weight != 1))
        self.intercept = problem.intercept

    def correlate(self, V: Array, groups: Groups) -> NDArray:
        """``X_k' V``, ``(groups, d, c)``."""
        weighted: NDArray = (self.root * V).astype(self.dtype)
        total = weighted.sum(axis=0, dtype=np.float64).astype(self.dtype)
        G: NDArray = np.empty((len(groups), self.design.dim, V.shape[1]), self.dtype)
        for part, A in self._blocks(groups):
            own = np.matmul(A.T, weighted, out=G[part].reshape(A.shape[1], -1))
            own -= self.center[groups[part]].reshape(-1, 1) * total
        return G

    def predict(self, weight: Array, G: NDArray, groups: Groups) -> Array:
        """``sum_k weight_k X_k G_k``, ``(N, c)``."""
        F: NDArray = np.zeros((len(self.root), G.shape[2]), self.dtype)
        used = np.flatnonzero(weight)
        for part, A in self._blocks(groups[used]):
            scale: NDArray = weight[used[part]].astype(self.dtype)[:, None, None]
            own = (scale * G[used[part]]).reshape(A.shape[1], -1)
            F += A @ own
            F -= self.center[groups[used[part]]].ravel() @ own
        return self.root * F

    def token(self, group: int, dtype: type) -> NDArray:
        """One of them, ``(N, d)``."""
        A = self.design.whole(np.array([group]), dtype) - self.center[group].astype(dtype)
        if self.weighted:
            A *= self.root
        return A

    def balanced(self, V: Array) -> Array:
        """`V` without what an intercept takes up."""
        if self.intercept:
            V = V - self.root * (self.root.T @ V / np.sum(self.root**2))
        return V

    def _blocks(self, groups: Groups) -> Iterator[tuple[slice, NDArray]]:
        step = max(1, COLUMNS // self.design.dim)
        for start in range(0, len(groups), step):
            part = slice(start, min(start + step, len(groups)))
            yield part, self.design.whole(groups[part], self.dtype)


class Kernel:
    """``K = sum_k scaled_k X_k X_k'``, as recent as asked for, and I + K factorised."""

    def __init__(self, columns: WeightedTokens, dtype: type) -> None:
        N = len(columns.root)
        self.columns, self.dtype = columns, dtype
        self.syrk = get_blas_funcs("syrk", dtype=dtype)
        self.scaled = np.zeros(columns.design.n_groups)
        self.K: NDArray = np.zeros((N, N), dtype, order="F")  # its lower half
        self.factor: NDArray | None = None  # where K is not zero
        self._ratio = 1.0  # of a contraction that was seen to the largest relative error

    def _forget(self) -> None:
        self.scaled[:], self.K[:], self.factor = 0.0, 0.0, None

    def update(self, scaled: Array, stale: float) -> bool:
        """Follow tokens whose weight moved by more than `stale`; whether there were any."""
        if not np.any(scaled):
            self._forget()
            return False
        change = scaled - self.scaled
        moved = (np.abs(change) > stale * np.minimum(scaled, self.scaled)) & (change != 0)
        for k in np.flatnonzero(moved):
            B = self.columns.token(int(k), self.dtype)
            B *= np.sqrt(abs(change[k]))
            # B' is in Fortran's order as it stands: nothing is copied
            sign = np.sign(change[k])
            self.K = self.syrk(sign, B.T, 1.0, self.K, trans=1, lower=1, overwrite_c=1)
        self.scaled[moved] = scaled[moved]
        if np.any(moved):
            T = self.K.copy(order="F")
            T[np.diag_indices_from(T)] += 1.0
            try:
                self.factor = cholesky(T, overwrite=True)
            except LinAlgError:
                self._forget()  # else what is kept would pass for factorised
                raise
        return bool(np.any(moved))

    def contraction(self, scaled: Array) -> float:
        """By which refinement is expected to reduce a residual at `scaled`."""
        return self._ratio * self._error(scaled)

    def learn(self, scaled: Array, contraction: float) -> None:
        """Take note of the contraction that was seen at `scaled`."""
        self._ratio = max(contraction / self._error(scaled), LEAST_RATIO)

    def _error(self, scaled: Array) -> float:
        most = np.maximum(np.maximum(scaled, self.scaled), np.finfo(float).tiny)
        return ROUNDING + float(np.max(np.abs(scaled - self.scaled) / most))

    def solve(self, R: Array) -> NDArray:
        """About ``(I + K)^-1 R``."""
        return R if self.factor is None else solved(self.factor, R)

    def half(self, U: NDArray) -> NDArray:
        """``L^-1 U``, in the place of `U`."""
        L = self.factor
        if L is None:  # K = 0
            return U
        return half_solved(L, U, overwrite=True)


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
        self.V: Any = None

    def measure(self, eta: Array, accuracy: float) -> Measure:
        self.scaled = eta / self.beta
        rough = ROUGH if accuracy >= 1e-3 else self.fine
        first = self.V is None
        self.kernel.update(self.scaled, NEW if first else rough)
        if first:
            self.V = self.columns.balanced(self.kernel.solve(self.Y))
            self.G = self.columns.correlate(self.V, self.watched)
        left = self.kernel.contraction(self.scaled) if np.any(eta) else 0.0
        if left > accuracy or not first:
            left = self._refine(accuracy)
        squares = np.zeros(len(eta))
        squares[self.watched] = _squares(self.G)
        return Measure(
            squares, float(np.vdot(self.Y, self.V)), float(np.vdot(self.V, self.V)), left
        )

    def _refine(self, accuracy: float) -> float:
        """Correct V until the next residual should be below `accuracy`; returns that one."""
        kernel, floor, before = self.kernel, FLOOR[self.columns.dtype], np.nan
        weight = self.scaled[self.watched]
        for _ in range(40):
            R = self.Y - self.V - self.columns.predict(weight, self.G, self.watched)
            now = float(np.linalg.norm(R) / np.linalg.norm(self.V))
            if np.isfinite(before):
                kernel.learn(self.scaled, now / before)
            before = now
            if kernel.contraction(self.scaled) > SLOW and now > floor:
                if not kernel.update(self.scaled, FRESH):
                    break
                before = np.nan
            move = self.columns.balanced(kernel.solve(R))
            self.V = self.V + move
            self.G += self.columns.correlate(move, self.watched)
            left = now * min(1.0, kernel.contraction(self.scaled))
            if left <= accuracy or now <= floor:
                return left
        raise LinAlgError("Refinement does not converge.")

    def _position(self, cells: Groups) -> Groups:
        return np.searchsorted(self.watched, cells)

    def coefficients(self, cells: Groups) -> Array:
        return self.scaled[cells][:, None, None] * self.G[self._position(cells)]

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """From random mixes of the outputs, but for the first, where they are many."""
        r = min(MIXES, self.Y.shape[1])
        dtype = self.kernel.dtype
        U = np.empty((len(self.Y), len(cells) * r), dtype, order="F")
        mixes: NDArray = sketch(self.Y.shape[1], r, self.rng).astype(dtype)
        for j, (k, limit) in enumerate(zip(cells, radius, strict=True)):
            G = (self.G[self._position(k)] / limit).astype(dtype)
            U[:, j * r : (j + 1) * r] = self.columns.token(k, dtype) @ (G @ mixes)
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

    def coefficients(self, cells: Groups) -> Array:
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
