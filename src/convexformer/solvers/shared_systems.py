r"""The linear algebra of outputs that share tokens, among samples or among coefficients.

Both systems answer, at one eta, for :math:`G = X^\top V` with :math:`M(\eta) V = Y`, and for the
Hessian :math:`A_{kl} = \langle X_k G_k, M^{-1} X_l G_l\rangle`. X and Y are read less their means
where there is an intercept, times the roots of sample weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import ssyrk
from scipy.linalg.lapack import spotri

from ..problem import Problem
from ..problem.designs import Groups

Array = NDArray[np.float64]
Single = NDArray[np.float32]

COLUMNS = 512  # of X, multiplied at once
MIXES = 48  # outputs that a Hessian among samples is made of
FRESH = 0.02  # relative change of eta that a kernel brought up to date may miss
SLOW = 0.5  # contraction of refinement from which the kernel is brought up to date
FLOOR = {np.float32: 2e-6, np.float64: 1e-13}  # relative residual that rounding may leave
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


class Columns:
    """Tokens of a problem, centred and weighted, multiplied in the precision of `dtype`."""

    def __init__(self, problem: Problem, dtype: type) -> None:
        self.design, self.dtype = problem.design, dtype
        self.root = np.sqrt(problem.weight)[:, None]
        shape = (self.design.n_groups, self.design.dim)
        self.center = np.zeros(shape) if problem.center is None else problem.center
        self.intercept = problem.intercept

    def correlate(self, V: Array, groups: Groups) -> NDArray:
        """``X_k' V``, ``(groups, d, c)``."""
        weighted: NDArray = (self.root * V).astype(self.dtype)
        total = weighted.sum(axis=0, dtype=np.float64)
        G = np.empty((len(groups), self.design.dim, V.shape[1]), self.dtype)
        for part, A in self._blocks(groups):
            own = (A.T @ weighted).reshape(-1, *G.shape[1:])
            G[part] = own - (self.center[groups[part]][:, :, None] * total).astype(self.dtype)
        return G

    def predict(self, Z: NDArray, groups: Groups) -> Array:
        """``sum_k X_k Z_k``, ``(N, c)``."""
        F: NDArray = np.zeros((len(self.root), Z.shape[2]), self.dtype)
        for part, A in self._blocks(groups):
            F += A @ Z[part].reshape(A.shape[1], -1)
        return self.root * (F - np.tensordot(self.center[groups], Z, axes=2))

    def token(self, group: int) -> Single:
        """One of them, ``(N, d)``."""
        A = self.design.whole(np.array([group]), np.float32) - self.center[group].astype(np.float32)
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
    """``K = sum_k scaled_k X_k X_k'`` in float32, as recent as asked for, and I + K factorised."""

    def __init__(self, columns: Columns) -> None:
        N = len(columns.root)
        self.columns = columns
        self.scaled = np.zeros(columns.design.n_groups)
        self.K: Single = np.zeros((N, N), np.float32, order="F")  # its lower half
        self.factor: Single | None = None

    def update(self, scaled: Array, stale: float) -> bool:
        """Follow tokens whose weight moved by more than `stale`; whether there were any."""
        change = scaled - self.scaled
        moved = (np.abs(change) > stale * np.minimum(scaled, self.scaled)) & (change != 0)
        for k in np.flatnonzero(moved):
            B = self.columns.token(k)
            B *= np.float32(np.sqrt(abs(change[k])))
            # B' is in Fortran's order as it stands: nothing is copied
            self.K = ssyrk(np.sign(change[k]), B.T, 1.0, self.K, trans=1, lower=1, overwrite_c=1)
        self.scaled[moved] = scaled[moved]
        if self.factor is None or np.any(moved):
            T = self.K.copy(order="F")
            T[np.diag_indices_from(T)] += 1.0
            self.factor = cholesky(T, lower=True, overwrite_a=True, check_finite=False)
        return bool(np.any(moved))

    def solve(self, R: Array) -> Single:
        """About ``(I + K)^-1 R``."""
        B = R.astype(np.float32, order="F")
        return np.asarray(cho_solve((self.factor, True), B, overwrite_b=True, check_finite=False))

    def half(self, U: Single) -> Single:
        """``L^-1 U``, in the place of `U`."""
        L = self.factor
        return np.asarray(solve_triangular(L, U, lower=True, overwrite_b=True, check_finite=False))


class SharedKernel:
    """Works among samples: refines V with a kernel that need not be up to date.

    Parameters
    ----------
    Y : ndarray of shape (N, c)
        Principal axes first.
    columns : Columns
    kernel : Kernel
    watched : ndarray of int
        Groups that may be used.
    beta : float
    stale : float
        Relative change of eta that updates the kernel.
    """

    def __init__(
        self,
        Y: Array,
        columns: Columns,
        kernel: Kernel,
        watched: Groups,
        beta: float,
        stale: float,
    ) -> None:
        self.Y, self.columns, self.kernel, self.watched = Y, columns, kernel, watched
        self.beta, self.stale, self.contraction = beta, stale, 0.2
        self.rng = np.random.default_rng(0)
        self.V: Array | None = None

    def measure(self, eta: Array, accuracy: float) -> Measure:
        self.scaled = eta / self.beta
        self.kernel.update(self.scaled, self.stale)
        if self.V is None:
            self.V = self.columns.balanced(self.kernel.solve(self.Y)) if np.any(eta) else self.Y
            self.G = self.columns.correlate(self.V, self.watched)
        left = self._refine(accuracy) if np.any(eta) else 0.0
        squares = np.zeros(len(eta))
        squares[self.watched] = _squares(self.G)
        return Measure(squares, float(np.vdot(self.Y, self.V)), float(np.vdot(self.V, self.V)), left)

    def _refine(self, accuracy: float) -> float:
        """Correct V until the next residual should be below `accuracy`; returns that."""
        floor, before = FLOOR[self.columns.dtype], np.inf
        cells = np.flatnonzero(self.scaled)
        for _ in range(40):
            F = self.columns.predict(self._scaled(cells), cells)
            R = self.Y - self.V - F
            now = float(np.linalg.norm(R) / np.linalg.norm(self.V))
            if not np.isfinite(now):
                break
            if np.isfinite(before):
                self.contraction = now / before
            slow = self.contraction > SLOW and now > floor
            if slow:
                if not self.kernel.update(self.scaled, FRESH):
                    break
                self.contraction = 0.2
            move = self.columns.balanced(self.kernel.solve(R))
            self.V = self.V + move
            self.G += self.columns.correlate(move, self.watched)
            if now * self.contraction <= accuracy or now <= floor:
                return now * min(1.0, self.contraction)
            before = np.inf if slow else now
        raise LinAlgError("Refinement does not converge.")

    def _scaled(self, cells: Groups) -> NDArray:
        """``eta_k G_k / beta`` in the precision of the columns."""
        weight = self.scaled[cells].astype(self.columns.dtype)
        return np.asarray(weight[:, None, None] * self.G[self._position(cells)])

    def _position(self, cells: Groups) -> Groups:
        return np.searchsorted(self.watched, cells)

    def coefficients(self, cells: Groups) -> Array:
        return self.scaled[cells][:, None, None] * self.G[self._position(cells)]

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """From random mixes of the outputs, but for the first, where they are many."""
        r = min(MIXES, self.Y.shape[1])
        U = np.empty((len(self.Y), len(cells) * r), np.float32, order="F")
        mixes = sketch(self.Y.shape[1], r, self.rng).astype(np.float32)
        for j, (k, limit) in enumerate(zip(cells, radius, strict=True)):
            G = (self.G[self._position(k)] / limit).astype(np.float32)
            U[:, j * r : (j + 1) * r] = self.columns.token(k) @ (G @ mixes)
        T = self.kernel.half(U).reshape(-1, len(cells), order="F")
        return np.asarray(T.T @ T, dtype=np.float64)


class SharedGram:
    """Works among coefficients: float32 factors, refined in float64.

    Parameters
    ----------
    Q : ndarray of shape (p, p)
        ``X'X`` of all groups.
    B : ndarray of shape (p, c)
        ``X'Y``.
    total : float
        ``<Y, Y>``.
    n_groups : int
    beta : float
    """

    def __init__(self, Q: Array, B: Array, total: float, n_groups: int, beta: float) -> None:
        self.Q, self.B, self.total, self.beta = Q, B, total, beta
        self.n_groups, self.size = n_groups, len(Q) // n_groups

    def measure(self, eta: Array, accuracy: float) -> Measure:
        self.scaled = np.repeat(eta / self.beta, self.size)
        used = self.used = np.flatnonzero(self.scaled)
        s = self.s = np.sqrt(self.scaled[used])[:, None]
        T = (s * self.Q[np.ix_(used, used)] * s.T).astype(np.float32, order="F")
        T[np.diag_indices_from(T)] += 1.0
        self.factor = cholesky(T, lower=True, overwrite_a=True, check_finite=False)
        t, left = self._refine(self.Q[:, used], s * self.B[used], accuracy)
        z = s * t
        reach = self.total - float(np.vdot(self.B[used], z))
        size = reach - float(np.vdot(self.G[used], z))
        squares = _squares(self.G.reshape(self.n_groups, -1))
        return Measure(squares, reach, size, left)

    def _refine(self, Q: Array, right: Array, accuracy: float) -> tuple[Array, float]:
        """``(I + S Q S) t = right``, and G with it."""
        t, before = self._solve(right).astype(np.float64), np.inf
        for _ in range(20):
            self.G = self.B - Q @ (self.s * t)
            R = self.s * self.G[self.used] - t
            left = float(np.linalg.norm(R) / max(np.linalg.norm(t), np.finfo(float).tiny))
            if left <= max(accuracy, FLOOR[np.float64]):
                return t, left
            if not left <= SLOW * before:
                break
            t, before = t + self._solve(R), left
        raise LinAlgError("Refinement does not converge.")

    def _solve(self, R: Array) -> Single:
        B = R.astype(np.float32, order="F")
        return np.asarray(cho_solve((self.factor, True), B, overwrite_b=True, check_finite=False))

    def coefficients(self, cells: Groups) -> Array:
        Z = self.scaled[:, None] * self.G
        return np.asarray(Z.reshape(self.n_groups, self.size, -1)[cells])

    def curvature(self, cells: Groups, radius: Array) -> Array:
        """``(Q - Q S (I + SQS)^-1 S Q) * GG'``, summed over blocks."""
        columns = (cells[:, None] * self.size + np.arange(self.size)).ravel()
        inner = self._inner(columns)
        G = (self.G[columns] / np.repeat(radius, self.size)[:, None]).astype(np.float32)
        inner *= G @ G.T
        A = inner.reshape(len(cells), self.size, len(cells), -1).sum(axis=(1, 3))
        return np.asarray(A, dtype=np.float64)

    def _inner(self, columns: Groups) -> Single:
        """``X' M^-1 X`` of some columns.

        Among those that weigh enough it is ``S^-1 (I - (I + SQS)^-1) S^-1``, at a third of the cost.
        """
        place = np.full(len(self.Q), -1)
        place[self.used] = np.arange(len(self.used))
        weight = self.scaled[columns] * np.diagonal(self.Q)[columns]
        weight = np.repeat(weight.reshape(-1, self.size).max(axis=1), self.size)
        strong, weak = np.flatnonzero(weight > WEAK), np.flatnonzero(weight <= WEAK)
        inner = np.empty((len(columns), len(columns)), np.float32)
        rows, s = place[columns[strong]], self.s.astype(np.float32)
        if len(strong):
            inverse, _ = spotri(self.factor, lower=1)
            low = inverse[np.ix_(rows, rows)]  # rows ascend: its lower half is right
            low = -(np.tril(low) + np.tril(low, -1).T)
            low[np.diag_indices_from(low)] += 1.0
            inner[np.ix_(strong, strong)] = low / s[rows] / s[rows].T
        if len(weak):
            right = self.s * self.Q[np.ix_(self.used, columns[weak])]
            through = self._solve(right)
            inner[np.ix_(strong, weak)] = through[rows] / s[rows]
            inner[np.ix_(weak, strong)] = inner[np.ix_(strong, weak)].T
            own = self.Q[np.ix_(columns[weak], columns[weak])] - right.T @ through
            inner[np.ix_(weak, weak)] = own
        return inner


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


def _squares(G: NDArray) -> Array:
    """Squared norm of every row of `G`, summed in float64."""
    return np.array([np.sum(np.einsum("ij,ij->i", g, g, dtype=np.float64)) for g in np.atleast_3d(G)])
