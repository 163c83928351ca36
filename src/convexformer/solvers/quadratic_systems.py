"""The linear systems of one quadratic model, in the space where they are smallest.

:class:`GramSystem` works on coefficients, :class:`KernelSystem` on samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from ..problem.arrays import Array, Groups
from ..problem.stopping import check_stop
from .linalg import cholesky, half, half_solved, project, project_both, refined_solve, solved
from .solution import ROUNDING
from .workspace import Kernels, NearKernels

Cells = NDArray[np.intp]

LARGE_SYSTEM = 400  # unknowns from which factors are in float32, and solutions refined
LEAST_MIXES = 24  # outputs of a Hessian; many outputs are mixed at random to an eighth of them
MOST_REFINEMENTS = 200  # steps of conjugate gradients with a kernel in float32
RESIDUAL = 1e-3  # that such steps may leave, relative to the solution
ROUGH = 1e-6  # relative rounding of products and values in float32


class RoughError(Exception):
    """A system in float32 has not the digits that are wanted."""


@dataclass
class State:
    """A system at one `eta`."""

    value: float  # of the model, with half the penalty's variational form
    z: Array  # (token cells, size, outputs): coefficients
    g: Array  # (token cells, size, outputs): correlations with the residual
    squares: tuple[Array, Array]  # (cells,): of the norms of z and of g
    product: float  # <z, g>
    factor: Any
    missed: float  # of the gap, because z does not quite belong to g

    @classmethod
    def of(cls, value: float, z: Array, g: Array, factor: Any, missed: float = 0.0) -> State:
        squares = (np.einsum("esr,esr->e", z, z), np.einsum("esr,esr->e", g, g))
        return cls(value, z, g, squares, float(np.vdot(z, g)), factor, missed)


class System(Protocol):
    """A quadratic form whose coefficients fall into cells of equal size."""

    rounding: float  # relative, of values

    def solve(self, eta: Array, noise: float) -> State:
        """Everything at `eta`, with a value that may be off by `noise`."""
        ...

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
    precise : bool
        Whether factors are in float64, however large.
    """

    def __init__(
        self, Q: Array, B: Array, n_cells: int, beta: float, precise: bool = False
    ) -> None:
        self.Q, self.B, self.beta, self.precise = Q, B, beta, precise
        self.rounding = ROUNDING
        self.n_cells, self.size = n_cells, len(Q) // n_cells

    def solve(self, eta: Array, noise: float) -> State:
        shape = (self.n_cells, self.size, -1)
        used = np.flatnonzero(np.repeat(eta, self.size))
        if not len(used):
            z = np.zeros_like(self.B)
            return State.of(0.0, z.reshape(shape), self.B.reshape(shape), None)
        s = np.sqrt(np.repeat(eta, self.size)[used])[:, None]
        Q, B = self.Q, self.B
        if len(used) < len(Q):
            Q, B = Q[:, used], B[used]
        t, L = self._solved(Q[used] if len(used) < len(Q) else Q, s, s * B, noise)
        penalty = 0.5 * self.beta * float(np.vdot(t, t))
        t *= s
        g = self.B - Q @ t
        # An error of t counts twice over.
        value = penalty - 0.5 * float(np.vdot(B + g[used] if len(used) < len(g) else B + g, t))
        z = t
        if len(used) < len(self.B):
            z = np.zeros_like(self.B)
            z[used] = t
        return State.of(value, z.reshape(shape), g.reshape(shape), (used, s, L))

    def _solved(self, Q: Array, s: Array, right: Array, noise: float) -> tuple[Array, NDArray]:
        """``T^-1 right`` and a factor of ``T = beta + S Q S``."""
        if len(Q) > LARGE_SYSTEM and not self.precise:
            with suppress(LinAlgError):
                L = cholesky(self._scaled(Q, s, np.float32), overwrite=True)
                t, _, done = refined_solve(
                    lambda t: self.beta * t + s * (Q @ (s * t)), L, right, noise
                )
                if done:
                    return t, L
        T = self._scaled(Q, s, np.float64)
        L = cholesky(T)
        t = solved(L, right)
        return t + solved(L, right - T @ t), L

    def _scaled(self, Q: Array, s: Array, dtype: type) -> NDArray:
        T: NDArray = np.multiply(Q, s, dtype=dtype, casting="same_kind")
        T *= s.T.astype(dtype)
        T.flat[:: len(T) + 1] += self.beta
        return T

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = G' (Q - Q S (beta + S Q S)^-1 S Q) G``, G block-diagonal with the cells' g."""
        if 2 * self.B.shape[1] > self.size:
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
                inner = half(L, s * (QG if len(used) == p else QG[used]))
                A -= inner.T @ inner
        return A

    def _curvature_of_many(self, state: State, cells: Cells) -> Array:
        """The same for many outputs: their sum is ``(Q - ...) * GG'``, summed over blocks."""
        columns = (cells[:, None] * self.size + np.arange(self.size)).ravel()
        dtype = np.float64 if state.factor is None else state.factor[2].dtype
        G = state.g[cells].reshape(len(columns), -1)
        # float32 has room for numbers over their size.
        units = np.sqrt(np.abs(self.Q).max()) or 1.0, np.abs(G).max() or 1.0
        Q = self.Q if len(columns) == len(self.Q) else self.Q[:, columns]
        inner = (Q[columns] / units[0] ** 2).astype(dtype)
        if state.factor is not None:
            used, s, L = state.factor
            part = half_solved(L, (s / units[0] * Q[used]).astype(dtype))
            inner -= part.T @ part
        G = (G / units[1]).astype(dtype)
        inner *= G @ G.T
        sums = inner.reshape(-1, self.size).sum(axis=1, dtype=np.float64)
        A = sums.reshape(len(cells), self.size, len(cells)).sum(axis=1)
        return (units[0] * units[1]) ** 2 * A


class KernelSystem:
    r"""Works in sample space: best where used coefficients outnumber samples.

    The curvature of sample i is :math:`C_i C_i^\top`, ``C (N, c, m)``: the root of a weight for one
    output, :func:`softmax_root` for a softmax. Let r, :math:`g_0 = X^\top r` and :math:`X z_0` be
    dual point, correlations and scores at the point of expansion. The new dual point is
    :math:`v = r + C q`, where :math:`(I + C^\top K C)\, q = C^\top (X z_0 - K r)` and
    :math:`K = \sum_k \eta_k X_k X_k^\top / \beta`, block-diagonal over outputs: no division by a
    curvature that may vanish. An intercept projects the directions :math:`C^\top 1` out on both
    sides. Outputs with the same curvature and the same eta share one factor.

    A large kernel is in float32 and not of this eta: its factor preconditions conjugate gradients,
    and :math:`K r = X \eta g_0 / \beta` is a product with X.

    Parameters
    ----------
    kernels : Kernels or NearKernels
    groups : ndarray of int
    C : ndarray of shape (N, c, m)
    at : list of ndarrays (N, c, r), (N, c, r), (groups, d, c, r), (groups, d, c, r)
        Dual point, scores, correlations and coefficients of r outputs that share C.
    n_cells : int
        Cells of a group: 1 or c.
    beta : float
    """

    def __init__(
        self,
        kernels: Kernels | NearKernels,
        groups: Groups,
        C: Array,
        at: list[Array],
        n_cells: int,
        beta: float,
    ) -> None:
        self.kernels, self.groups, self.beta, self.n_cells = kernels, groups, beta, n_cells
        self.C, (self.R, self.S0, self.G0, self.Z0) = C, at
        self.rounding = ROUNDING if kernels.exact else ROUGH
        self.L: NDArray | None = None
        self.unit = None
        if kernels.centred:
            E = C.transpose(0, 2, 1).reshape(-1, C.shape[1])
            basis, size, _ = np.linalg.svd(E, full_matrices=False)
            self.unit = basis[:, size > 1e-10 * size[0]]

    def _down(self, F: Array) -> Array:
        """``C'F`` less the intercepts' directions, ``(N m, r)``."""
        CF = np.einsum("ilm,ilr->imr", self.C, F)
        return project(CF.reshape(-1, F.shape[2]), self.unit)

    def _up(self, q: Array) -> Array:
        """``C q``, ``(N, c, r)``."""
        N, _, m = self.C.shape
        return np.einsum("ilm,imr->ilr", self.C, q.reshape(N, m, -1))

    def _correlate(self, V: Array) -> Array:
        return self.kernels.correlate(self.groups, V.reshape(len(V), -1)).reshape(self.Z0.shape)

    def _factor(self, K: Sequence[NDArray]) -> tuple[NDArray, NDArray]:
        """``I + C'KC``, for a kernel of all outputs or one of each, and its factor."""
        N, c, m = self.C.shape
        T: NDArray = np.zeros((N * m, N * m), K[0].dtype)
        for outputs, kernel in zip(np.split(np.arange(c), len(K)), K, strict=True):
            check_stop()
            if not np.isfinite(kernel).all():  # beyond the range of its precision
                raise LinAlgError("The kernel is not finite.")
            flat = self.C[:, outputs].transpose(0, 2, 1).reshape(N * m, -1).astype(T.dtype)
            part = (flat @ flat.T).reshape(N, m, N, m)
            part *= kernel[:, None, :, None]
            T += part.reshape(N * m, N * m)
        T = project_both(T, None if self.unit is None else self.unit.astype(T.dtype))
        T[np.diag_indices_from(T)] += 1.0
        return T, cholesky(T, overwrite=not self.kernels.exact)

    def _solved_exactly(self, scaled: Array) -> tuple[Array, Array, Array]:
        """``q``, ``X'Cq``, and what the new scores lack of those at the point of expansion."""
        K = self.kernels.weighted(self.groups, scaled[:, : self.n_cells].T)

        def lacking(V: Array) -> Array:
            parts = [K[j % len(K)] @ one for j, one in enumerate(V.transpose(1, 0, 2))]
            return self.S0 - np.stack(parts, axis=1)

        T, self.L = self._factor(K)
        right = self._down(lacking(self.R))
        q = solved(self.L, right)
        q = project(q + solved(self.L, right - T @ q), self.unit)
        change = self._up(q)
        return q, self._correlate(change), lacking(self.R + change)

    def _solved_nearly(self, scaled: Array, noise: float) -> tuple[Array, Array, Array]:
        """The same by products with X."""
        kernels, wide = self.kernels, scaled[:, None, :, None]
        assert isinstance(kernels, NearKernels)
        eta, size = scaled[:, : self.n_cells].T, self.Z0.shape[:2]

        def predict(Z: Array) -> Array:
            return kernels.predict(self.groups, Z.reshape(*size, -1)).reshape(self.S0.shape)

        start = predict(self.Z0 - wide * self.G0)
        right, last = self._down(start), list[tuple[Array, Array, Array]]()

        def operator(q: Array) -> Array:
            M = self._correlate(self._up(q))
            F = predict(wide * M)
            last[:] = [(q, M, start - F)]
            return q + self._down(F)

        patience = kernels.patience(self.groups, eta, len(right), start[0].size)
        for anew in (True,) if kernels.products >= patience else (False, True):
            with suppress(LinAlgError):
                known = None if anew else kernels.last
                if known is None:
                    known, self.L = kernels.weighted(self.groups, eta), None
                self.L = self._factor(known)[1] if self.L is None else self.L
                most = MOST_REFINEMENTS if anew else patience
                given = self.L, right, noise, most, RESIDUAL, ROUGH
                q, _, done = refined_solve(operator, *given)
                if done:
                    if last[0][0] is not q:
                        operator(q)
                    return last[0]
        raise RoughError("A factor in float32 does not serve.")

    def solve(self, eta: Array, noise: float) -> State:
        c = self.C.shape[1]
        scaled = np.broadcast_to(eta.reshape(-1, self.n_cells), (len(self.groups), c)) / self.beta
        if not scaled.any():
            self.L, q, lacking = None, self._down(self.S0), self.S0
            M = self._correlate(self._up(q))
        elif self.kernels.exact:
            q, M, lacking = self._solved_exactly(scaled)
        else:
            q, M, lacking = self._solved_nearly(scaled, noise)
        g = self.G0 + M
        z = scaled[:, None, :, None] * g
        bent = self._down(lacking)  # q, but of z: an error of q counts twice over
        value = 0.5 * np.sum(z * g) + np.sum(self.R * lacking) + 0.5 * np.sum(bent * bent)
        missed = 0.5 * float(np.sum((bent - q) ** 2))
        z, g = (
            np.ascontiguousarray(u.transpose(0, 2, 1, 3)).reshape(len(eta), -1, u.shape[3])
            for u in (z, g)
        )
        return State.of(float(value), z, g, self.L, missed)

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = U' (I + C'KC)^-1 U`` with ``u_k = C'X_k g_k``."""
        (N, c, m), n, d = self.C.shape, len(cells), self.kernels.design.dim
        G = mixed(state.g[cells].reshape(n, -1, state.g.shape[2]))
        r, size = G.shape[2], float(np.abs(G).max(initial=0.0)) or 1.0
        G = G.reshape(n, -1, d, r) / size  # (cells, outputs of a cell, d, r)
        dtype = np.float64 if state.factor is None else state.factor.dtype
        U: NDArray = np.zeros((N, m, n, r), dtype)
        C: NDArray = self.C.astype(U.dtype)
        for j in range(c):
            own = np.flatnonzero(cells % self.n_cells == j % self.n_cells)
            groups = self.groups[cells[own] // self.n_cells]
            alone = self.kernels.contributions(groups, G[own, j % G.shape[1]])
            U[:, :, own] += C[:, j, :, None, None] * alone[:, None]
        inner = U.reshape(N * m, -1)
        if self.unit is not None:
            inner = project(inner, self.unit.astype(U.dtype))
        if state.factor is not None:
            inner = half_solved(state.factor, inner)
        inner = inner.reshape(N * m, n, r).transpose(0, 2, 1).reshape(-1, n)
        return (size * self.kernels.unit) ** 2 * np.asarray(inner.T @ inner, np.float64)


def mixed(G: Array) -> Array:
    """`G` ``(cells, size, outputs)`` with fewer outputs, of the same inner products on average."""
    c = G.shape[2]
    r = max(LEAST_MIXES, c // 8)
    return G if c <= r else G @ sketch(c, r, np.random.default_rng(0))


def sketch(c: int, r: int, rng: np.random.Generator) -> Array:
    """``(c, r)``: half of r outputs as they are, the rest in random mixes."""
    kept = r // 2
    mixes = np.eye(c, r)
    mixes[kept:, kept:] = rng.choice([-1.0, 1.0], size=(c - kept, r - kept)) / np.sqrt(r - kept)
    return mixes


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
