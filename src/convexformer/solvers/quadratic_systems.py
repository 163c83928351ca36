"""The linear systems of one quadratic model, in the space where they are smallest.

:class:`GramSystem` works on coefficients, :class:`KernelSystem` on samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..problem.designs import Groups
from .linalg import cholesky, half_solved, project, project_both, solved
from .workspace import Kernels

Array = NDArray[np.float64]
Cells = NDArray[np.intp]


@dataclass
class State:
    """A system at one `eta`."""

    value: float  # of the model, with half the penalty's variational form
    z: Array  # (token cells, size, outputs): coefficients
    g: Array  # (token cells, size, outputs): correlations with the residual
    squares: tuple[Array, Array]  # (cells,): of the norms of z and of g
    product: float  # <z, g>
    factor: Any

    @classmethod
    def of(cls, value: float, z: Array, g: Array, factor: Any) -> State:
        squares = (np.einsum("esr,esr->e", z, z), np.einsum("esr,esr->e", g, g))
        return cls(value, z, g, squares, float(np.vdot(z, g)), factor)


class System(Protocol):
    """A quadratic form whose coefficients fall into cells of equal size."""

    def solve(self, eta: Array) -> State: ...

    def curvature(self, state: State, cells: Cells) -> Array: ...


class GramSystem:
    """Works in coefficient space: best while used coefficients are fewer than samples.

    Parameters
    ----------
    Q : ndarray of shape (p, p)
    B : ndarray of shape (p, outputs)
        Linear terms; all outputs share `Q`.
    n_cells : int
        Cells are consecutive runs of ``p / n_cells`` coefficients.
    beta : float
    """

    def __init__(self, Q: Array, B: Array, n_cells: int, beta: float) -> None:
        self.Q, self.B, self.beta = Q, B, beta
        self.n_cells, self.size = n_cells, len(Q) // n_cells

    def solve(self, eta: Array) -> State:
        shape = (self.n_cells, self.size, -1)
        used = np.flatnonzero(np.repeat(eta, self.size))
        if not len(used):
            z = np.zeros_like(self.B)
            return State.of(0.0, z.reshape(shape), self.B.reshape(shape), None)
        s = np.sqrt(np.repeat(eta, self.size)[used])[:, None]
        Q, B, T = self.Q, self.B, self.Q
        if len(used) < len(Q):
            Q, B = Q[:, used], B[used]
            T = Q[used]
        T = s * T
        T *= s.T
        T.flat[:: len(T) + 1] += self.beta
        L, right = cholesky(T), s * B
        t = solved(L, right)
        t += solved(L, right - T @ t)
        t *= s
        value, g = -0.5 * float(np.vdot(B, t)), self.B - Q @ t
        z = t
        if len(used) < len(self.B):
            z = np.zeros_like(self.B)
            z[used] = t
        return State.of(value, z.reshape(shape), g.reshape(shape), (used, s, L))

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = G' (Q - Q S (beta + S Q S)^-1 S Q) G``, G block-diagonal with the cells' g."""
        if self.B.shape[1] > self.size:
            return self._curvature_of_many(state, cells)
        p, shape = len(self.Q), (self.n_cells, self.size)
        every = len(cells) == self.n_cells
        columns = self.Q.reshape(p, *shape) if every else self.Q.reshape(p, *shape)[:, cells]
        A = np.zeros((len(cells), len(cells)))
        for r in range(self.B.shape[1]):
            g = state.g[cells, :, r]
            QG = np.einsum("pes,es->pe", columns, g)
            A += np.einsum("esf,es->ef", QG.reshape(*shape, -1)[cells], g)
            if state.factor is not None:
                used, s, L = state.factor
                inner = half_solved(L, s * (QG if len(used) == p else QG[used]))
                A -= inner.T @ inner
        return A

    def _curvature_of_many(self, state: State, cells: Cells) -> Array:
        """The same for many outputs: their sum is ``(Q - ...) * GG'``, summed over blocks."""
        columns = (cells[:, None] * self.size + np.arange(self.size)).ravel()
        inner = self.Q[np.ix_(columns, columns)]
        if state.factor is not None:
            used, s, L = state.factor
            right = s * self.Q[np.ix_(used, columns)]
            part = half_solved(L, right)
            inner -= part.T @ part
        G = state.g[cells].reshape(len(columns), -1)
        inner *= G @ G.T
        return np.asarray(inner.reshape(len(cells), self.size, len(cells), -1).sum(axis=(1, 3)))


class KernelSystem:
    r"""Works in sample space: best where used coefficients outnumber samples.

    The curvature of sample i is :math:`C_i C_i^\top`, ``C (N, c, m)``: the root of a weight for one
    output, :func:`softmax_root` for a softmax. With the dual point r and the scores f0 of the point
    of expansion :math:`v = r + C q`, :math:`(I + C^\top K C)\, q = C^\top (f_0 - K r)` and
    :math:`K = \sum_k \eta_k X_k X_k^\top / \beta`, block-diagonal over outputs: no division by a
    curvature that may vanish. An intercept projects the directions :math:`C^\top 1` out on both
    sides.

    Parameters
    ----------
    kernels : Kernels
    groups : ndarray of int
    C : ndarray of shape (N, c, m)
    R, F0 : ndarray of shape (N, c)
    n_cells : int
        Cells of a group: 1 or c.
    beta : float
    """

    def __init__(
        self,
        kernels: Kernels,
        groups: Groups,
        C: Array,
        R: Array,
        F0: Array,
        n_cells: int,
        beta: float,
    ) -> None:
        self.kernels, self.groups, self.beta = kernels, groups, beta
        self.C, self.R, self.F0, self.n_cells = C, R, F0, n_cells
        self.unit = None
        if kernels.center is not None:
            E = C.transpose(0, 2, 1).reshape(-1, C.shape[1])
            basis, size, _ = np.linalg.svd(E, full_matrices=False)
            self.unit = basis[:, size > 1e-10 * size[0]]

    def _down(self, F: Array) -> Array:
        """``C'F`` less the intercepts' directions, as a column."""
        return project(np.einsum("ilm,il->im", self.C, F).reshape(-1, 1), self.unit)

    def _bent(self, K: list[Array]) -> Array:
        """``I + C'KC``, for a kernel of all outputs or one of each."""
        N, c, m = self.C.shape
        T = np.zeros((N * m, N * m))
        for outputs, kernel in zip(np.split(np.arange(c), len(K)), K, strict=True):
            flat = self.C[:, outputs].transpose(0, 2, 1).reshape(N * m, -1)
            part = (flat @ flat.T).reshape(N, m, N, m)
            part *= kernel[:, None, :, None]
            T += part.reshape(N * m, N * m)
        T = project_both(T, self.unit)
        T[np.diag_indices_from(T)] += 1.0
        return T

    def solve(self, eta: Array) -> State:
        N, c, _ = self.C.shape
        by_output = np.broadcast_to(eta.reshape(-1, self.n_cells), (len(self.groups), c))
        scaled = by_output / self.beta
        q, L = self._down(self.F0), None
        if scaled.any():
            K = [self.kernels.weighted(self.groups, scaled[:, j]) for j in range(self.n_cells)]
            T = self._bent(K)
            L = cholesky(T)
            q -= self._down(np.stack([K[j % len(K)] @ self.R[:, j] for j in range(c)], axis=1))
            right, q = q, solved(L, q)
            q = project(q + solved(L, right - T @ q), self.unit)
        V = self.R + np.einsum("ilm,im->il", self.C, q.reshape(N, -1))
        g = self.kernels.correlate(self.groups, V)  # (groups, d, c)
        z = scaled[:, None, :] * g
        F = self.kernels.predict(self.groups, z) - self.F0
        bent = self._down(F)  # -q, but of z: an error of q counts twice over
        value = -np.sum(self.R * F) + 0.5 * np.sum(bent * bent) + 0.5 * np.sum(z * g)
        shape = (len(eta), -1, 1)
        z, g = (np.ascontiguousarray(u.transpose(0, 2, 1)).reshape(shape) for u in (z, g))
        return State.of(float(value), z, g, L)

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = U' (I + C'KC)^-1 U`` with ``u_k = C'X_k g_k``."""
        N, c, m = self.C.shape
        g = state.g.reshape(len(self.groups), c, -1)
        U = np.zeros((N, m, len(cells)))
        for j in range(c):
            own = np.flatnonzero(cells % self.n_cells == j % self.n_cells)
            groups = cells[own] // self.n_cells
            alone = self.kernels.contributions(self.groups[groups], g[groups, j])
            U[:, :, own] += self.C[:, j, :, None] * alone[:, None, :]
        half = project(U.reshape(N * m, -1), self.unit)
        if state.factor is not None:
            half = half_solved(state.factor, half)
        return half.T @ half


def softmax_root(P: Array) -> Array:
    """C ``(N, c, c - 1)`` with ``C C' = diag(p) - pp'`` for every row p of ``P (N, c)``.

    ``C = diag(sqrt p) B``, the columns of B an orthonormal basis of the complement of ``sqrt p``:
    all but one column of the Householder reflection that takes ``sqrt p`` to the coordinate axis of
    its largest entry, so that nothing cancels.
    """
    (N, c), s = P.shape, np.sqrt(P)
    top = np.argmax(s, axis=1)
    h = s.copy()
    h[np.arange(N), top] += 1.0
    H = np.eye(c) - h[:, :, None] * h[:, None, :] / (0.5 * np.sum(h * h, axis=1))[:, None, None]
    keep = np.arange(c)[None] != top[:, None]
    return s[:, :, None] * H.transpose(0, 2, 1)[keep].reshape(N, c - 1, c).transpose(0, 2, 1)
