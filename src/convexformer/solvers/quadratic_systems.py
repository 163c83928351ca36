"""The linear systems of one quadratic model, in the space where they are smallest.

:class:`GramSystem` works on coefficients, :class:`KernelSystem` and :class:`JointKernelSystem` on
samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problem.designs import Groups
from .linalg import (
    cholesky,
    half,
    half_solved,
    project,
    project_both,
    refined_solve,
    solved,
    unit_of,
)
from .workspace import Kernels

Array = NDArray[np.float64]
Cells = NDArray[np.intp]

STALE = 0.1  # relative change of a token's eta from which a kernel in float32 is brought up to date
NEAR_BY = 0.1  # relative change of eta that the factor of a kernel in float32 may have missed
MOST_ROUGH = 10  # products by which it is to make up for that, and for rounding
FEW_OUTPUTS = 32  # samples per output from which these cost little beside the kernel


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


class System(ABC):
    """A quadratic form whose coefficients fall into cells of equal size.

    What is not solved exactly may be off by `accuracy` in the value of the form.
    """

    exact = True

    @abstractmethod
    def solve(self, eta: Array, accuracy: float) -> State: ...

    @abstractmethod
    def curvature(self, state: State, cells: Cells) -> Array: ...


class GramSystem(System):
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

    def solve(self, eta: Array, accuracy: float) -> State:
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


class KernelSystem(System):
    r"""Works in sample space: best where used coefficients outnumber samples.

    With curvature weights w, dual point r and scores f0 of the point of expansion,
    :math:`v = r + W^{1/2} q`, :math:`(I + W^{1/2} K W^{1/2})\, q = W^{1/2} (f_0 - K r)`,
    :math:`K = \sum_k \eta_k X_k X_k^\top / \beta`: no division by a curvature that may vanish.
    An intercept projects :math:`W^{1/2} 1` out on both sides.
    """

    exact = False

    def __init__(
        self,
        kernels: Kernels,
        groups: Groups,
        weight: Array,
        R: Array,
        F0: Array,
        beta: float,
    ) -> None:
        self.kernels, self.groups, self.beta = kernels, groups, beta
        self.root, self.R, self.F0 = np.sqrt(weight)[:, None], R, F0
        self.unit = unit_of(self.root) if kernels.center is not None else None
        self._last: tuple[Array, NDArray] | None = None  # eta / beta of a factor, and it

    def solve(self, eta: Array, accuracy: float) -> State:
        scaled = eta / self.beta
        q, L = self._solve(scaled, accuracy)
        V = self.R + self.root * project(q, self.unit)
        g = self.kernels.correlate(self.groups, V)
        z = scaled[:, None, None] * g
        F = self.kernels.predict(self.groups, z) - self.F0
        bent = project(self.root * F, self.unit)  # -q, but of z: an error of q counts twice over
        value = -np.sum(self.R * F) + 0.5 * np.sum(bent * bent) + 0.5 * np.sum(z * g)
        return State.of(float(value), z, g, L)

    def _solve(self, scaled: Array, accuracy: float) -> tuple[Array, NDArray | None]:
        """q, and the factor that led to it: of a kernel in float32, or near by, if that will do."""
        kernels, groups = self.kernels, self.groups
        if not np.any(scaled):  # K = 0
            return project(self.root * self.F0, self.unit), None
        few = FEW_OUTPUTS * self.R.shape[1] <= len(self.R)
        if few and kernels.may_be_rough(groups[scaled > 0]):

            def product(V: Array) -> Array:
                return kernels.predict(groups, scaled[:, None, None] * kernels.correlate(groups, V))

            def operator(u: Array) -> Array:
                F = product(self.root * project(u, self.unit))
                return u + project(self.root * F, self.unit)

            right = project(self.root * (self.F0 - product(self.R)), self.unit)
            for L in self._rough_factors(scaled):
                q, reached = refined_solve(operator, L, right, accuracy, MOST_ROUGH)
                if reached:
                    return q, L
        K = kernels.exact(groups, scaled)
        right = project(self.root * (self.F0 - K @ self.R), self.unit)
        T = self._bent(K)
        L = cholesky(T)
        return refined_solve(lambda u: T @ u, L, right, accuracy)[0], L

    def _rough_factors(self, scaled: Array) -> Iterator[NDArray]:
        """Factors of kernels for an eta nearby: the last one, one brought up to date, a new one."""
        last = self._last
        if last is not None and np.all(np.abs(scaled - last[0]) <= NEAR_BY * last[0]):
            yield last[1]
        for stale in (STALE, 0.0):
            K = self.kernels.rough(self.groups, scaled, stale)
            if not np.all(np.isfinite(np.diagonal(K))):
                break
            if self.unit is not None:  # its direction is projected out of both halves
                K += np.tril(K, -1).T
            with suppress(np.linalg.LinAlgError):
                L = cholesky(self._bent(K), overwrite=True)
                self._last = scaled, L
                yield L
        self.kernels.serves_rough = False  # or nobody would have asked for more

    def _bent(self, K: NDArray) -> NDArray:
        """``I + W^1/2 K W^1/2``, in the place of K."""
        root = self.root.astype(K.dtype)
        if np.any(root != 1):
            K *= root
            K *= root.T
        if self.unit is not None:
            K = project_both(K, self.unit.astype(K.dtype))
        K[np.diag_indices_from(K)] += 1
        return K

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = U' (I + W^1/2 K W^1/2)^-1 U`` with ``u_k = W^1/2 X_k g_k``."""
        A = np.zeros((len(cells), len(cells)))
        for r in range(self.R.shape[1]):
            U = self.kernels.contributions(self.groups[cells], state.g[cells, :, r])
            solved = half(state.factor, project(self.root * U, self.unit))
            A += solved.T @ solved
        return A


class JointKernelSystem(System):
    r"""The softmax in sample space: ``c - 1`` unknowns per sample.

    :math:`\mathrm{diag}(p) - pp^\top = CC^\top` with ``C = diag(sqrt p) B``, the columns of B an
    orthonormal basis of the complement of ``sqrt p``. Then ``v = r + C q`` and
    ``(I + C'KC) q = C'(f0 - K r)`` as in :class:`KernelSystem`, K block-diagonal over outputs.
    """

    def __init__(
        self,
        kernels: Kernels,
        groups: Groups,
        weight: Array,
        P: Array,
        R: Array,
        F0: Array,
        cells: int,
        beta: float,
    ) -> None:
        self.kernels, self.groups, self.beta = kernels, groups, beta
        self.R, self.F0, self.n_cells = R, F0, cells
        self.C = np.sqrt(weight[:, None, None] * P[:, :, None]) * _complement(np.sqrt(P))
        self.unit = None
        if kernels.center is not None:  # directions of the c intercepts, of rank c - 1
            E = self.C.transpose(0, 2, 1).reshape(-1, P.shape[1])
            basis, size, _ = np.linalg.svd(E, full_matrices=False)
            self.unit = basis[:, size > 1e-10 * size[0]]

    def _down(self, F: Array) -> Array:
        """``C'F`` less the intercepts' directions, as a column."""
        return project(np.einsum("ilm,il->im", self.C, F).reshape(-1, 1), self.unit)

    def _up(self, q: Array) -> Array:
        q = project(q, self.unit).reshape(len(self.R), -1)
        return np.einsum("ilm,im->il", self.C, q)

    def _bent(self, K: list[Array]) -> Array:
        """``C'KC``, for a kernel of all outputs or one of each."""
        N, c, m = self.C.shape
        T = np.zeros((N * m, N * m))
        for outputs, kernel in zip(np.split(np.arange(c), len(K)), K, strict=True):
            flat = self.C[:, outputs].transpose(0, 2, 1).reshape(N * m, -1)
            part = (flat @ flat.T).reshape(N, m, N, m)
            part *= kernel[:, None, :, None]
            T += part.reshape(N * m, N * m)
        return T

    def solve(self, eta: Array, accuracy: float) -> State:
        c = self.C.shape[1]
        by_output = np.broadcast_to(eta.reshape(-1, self.n_cells), (len(self.groups), c))
        scaled = by_output / self.beta
        outputs = [0] if self.n_cells == 1 else range(c)
        K = [self.kernels.exact(self.groups, scaled[:, j]) for j in outputs]
        T = project_both(self._bent(K), self.unit)
        T[np.diag_indices_from(T)] += 1.0
        L = cholesky(T)
        moved = np.stack([K[j % len(K)] @ self.R[:, j] for j in range(c)], axis=1)
        q, _ = refined_solve(lambda u: T @ u, L, self._down(self.F0 - moved), accuracy)
        V = self.R + self._up(q)
        g = self.kernels.correlate(self.groups, V)  # (groups, d, c)
        z = scaled[:, None, :] * g
        F = self.kernels.predict(self.groups, z)
        value = -np.sum(self.R * (F - self.F0)) + 0.5 * np.sum(q * q) + 0.5 * np.sum(z * g)
        shape = (len(eta), -1, 1)
        z, g = (np.ascontiguousarray(u.transpose(0, 2, 1)).reshape(shape) for u in (z, g))
        return State.of(float(value), z, g, L)

    def curvature(self, state: State, cells: Cells) -> Array:
        N, c, m = self.C.shape
        g = state.g.reshape(len(self.groups), c, -1)
        U = np.zeros((N, m, len(cells)))
        for j in range(c):
            if self.n_cells == 1:
                here = np.arange(len(cells))
            else:
                here = np.flatnonzero(cells % c == j)
            groups = cells[here] // self.n_cells
            alone = self.kernels.contributions(self.groups[groups], g[groups, j])
            U[:, :, here] += self.C[:, j, :, None] * alone[:, None, :]
        solved = half(state.factor, project(U.reshape(N * m, -1), self.unit))
        return solved.T @ solved


def _complement(s: Array) -> Array:
    """Orthonormal basis ``(N, c, c - 1)`` of the complement of every unit row of ``s (N, c)``.

    All but one column of the Householder reflection that takes the row to a coordinate axis; the
    axis of its largest entry, so that nothing cancels.
    """
    N, c = s.shape
    top = np.argmax(s, axis=1)
    h = s.copy()
    h[np.arange(N), top] += 1.0
    H = np.eye(c) - h[:, :, None] * h[:, None, :] / (0.5 * np.sum(h * h, axis=1))[:, None, None]
    keep = np.arange(c)[None] != top[:, None]
    return H.transpose(0, 2, 1)[keep].reshape(N, c - 1, c).transpose(0, 2, 1)
