r"""A system in the space of many samples, solved by conjugate gradients.

A kernel :math:`K = \sum_k \eta_k X_k X_k^\top / \beta` of thousands of samples takes far longer to
form than to multiply with. So the factor of one that was formed for another eta preconditions, and
what is solved for are changes since the point of expansion, for which float32 is enough. A kernel
is brought up to date only once conjugate gradients have cost as much as that would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problem.designs import Groups
from .factors import cholesky
from .machine import MEMORY_SPEED, SPEED32
from .refined import half, project, project_both, refined_solve, unit_of
from .systems import Array, Cells, State, System
from .workspace import Columns, Kernels

STEP = 3  # products that cost as much as the rest of a step
RESIDUAL = 1e-3  # relative; it goes into the scores of the next point as it is
LEAST, MOST = 6, 200  # products before a kernel is brought up to date, and after


class NearKernelSystem(System):
    r"""As :class:`~convexformer.solvers.systems.KernelSystem`, for many samples.

    With dual point r, correlations :math:`g_0 = X^\top r` and coefficients :math:`z_0` of the point
    of expansion, :math:`v = r + W^{1/2} q`,
    :math:`(I + W^{1/2} K W^{1/2})\, q = W^{1/2} X (z_0 - \eta g_0 / \beta)`.

    Parameters
    ----------
    kernels : Kernels
    columns : Columns
    groups : ndarray of int
    weight : ndarray of shape (N,)
    R : ndarray of shape (N, outputs)
    G0, Z0 : ndarray of shape (groups, d, outputs)
    beta : float
    balanced : bool
        K is orthogonal to ``W^1/2 1`` as it stands.
    """

    exact = False

    def __init__(
        self,
        kernels: Kernels,
        columns: Columns,
        groups: Groups,
        weight: Array,
        R: Array,
        G0: Array,
        Z0: Array,
        beta: float,
        balanced: bool = False,
    ) -> None:
        self.kernels, self.groups, self.beta = kernels, groups, beta
        self.X = columns.of(groups)
        self.where = np.searchsorted(self.X.groups, groups)
        self.root, self.R, self.G0, self.Z0 = np.sqrt(weight)[:, None], R, G0, Z0
        self.unit = unit_of(self.root) if kernels.center is not None else None
        self.balanced = balanced or self.unit is None
        self.L: Any = None
        self.per_step = 0  # products that the last solve took

    def _predict(self, Z: Array) -> Array:
        scattered = np.zeros((len(self.X.groups), *Z.shape[1:]))
        scattered[self.where] = Z
        return self.X.predict(scattered, np.any(scattered, axis=(1, 2)))

    def _correlate(self, V: Array, eta: Array | None = None) -> Array:
        """Correlations of all tokens, or of those with an `eta`."""
        used = None
        if eta is not None:
            used = np.zeros(len(self.X.groups), dtype=bool)
            used[self.where] = eta > 0
        return self.X.correlate(V, used)[self.where]

    def solve(self, eta: Array, accuracy: float) -> State:
        scaled = (eta / self.beta)[:, None, None]
        right = project(self.root * self._predict(self.Z0 - scaled * self.G0), self.unit)
        q = self._solve(scaled, right, accuracy)
        change = self.root * project(q, self.unit)
        g = self.G0 + self._correlate(change)
        z = scaled * g
        F = self._predict(z - self.Z0)
        bent = project(self.root * F, self.unit)  # -q, but of z: an error of q counts twice over
        value = -np.sum(self.R * F) + 0.5 * np.sum(bent * bent) + 0.5 * np.sum(z * g)
        return State.of(float(value), z, g, self.L)

    def _solve(self, scaled: Array, right: Array, accuracy: float) -> Array:
        def operator(q: Array) -> Array:
            self.per_step += 1
            V = self.root * project(q, self.unit)
            F = self._predict(scaled * self._correlate(V, eta))
            return q + project(self.root * F, self.unit)

        eta, self.per_step = scaled[:, 0, 0], 0
        if self.L is None:
            self._factorise(self.kernels.near(self.groups, eta))
        q, reached = refined_solve(operator, self.L, right, accuracy, self._patience(eta), RESIDUAL)
        if not reached:
            self._factorise(self.kernels.near(self.groups, eta, afresh=True))
            q, reached = refined_solve(operator, self.L, right, accuracy, MOST, RESIDUAL)
        if not reached:  # too ill-conditioned for a preconditioner in float32
            self._factorise(self.kernels.exact(self.groups, eta))
            q, _ = refined_solve(operator, self.L, right, accuracy, MOST, RESIDUAL)
        self.kernels.products += self.per_step
        return q

    def sharpen(self, eta: Array, steps: float) -> None:
        scaled = eta / self.beta
        spent = self.kernels.products + steps * (self.per_step + STEP)
        if self.kernels.stale(self.groups, scaled) and spent >= self._patience(scaled):
            self._factorise(self.kernels.near(self.groups, scaled, afresh=True))

    def _patience(self, eta: Array) -> int:
        """Products that cost as much as bringing the kernel up to date."""
        N = len(self.root)
        update = (N * N * self.kernels.stale(self.groups, eta) + N**3 / 3) / SPEED32
        return max(LEAST, int(update / (8 * self.X.A.size / MEMORY_SPEED)))

    def _factorise(self, K: NDArray) -> None:
        root = self.root.astype(K.dtype)
        T = root * K
        T *= root.T
        if not self.balanced:
            T = np.tril(T) + np.tril(T, -1).T
            unit = np.asarray(self.unit).astype(K.dtype)
            T = project_both(T, unit)
        T[np.diag_indices_from(T)] += 1.0
        self.L = cholesky(T, overwrite=True)

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = U' (I + W^1/2 K W^1/2)^-1 U`` with ``u_k = W^1/2 X_k g_k``, nearly."""
        A = np.zeros((len(cells), len(cells)))
        for r in range(self.R.shape[1]):
            G = np.zeros((len(self.X.groups), self.G0.shape[1]))
            G[self.where[cells]] = state.g[cells, :, r]
            U = self.X.contributions(G)[:, self.where[cells]]
            solved = half(state.factor, project(self.root * U, self.unit))
            A += solved.T @ solved
        return A
