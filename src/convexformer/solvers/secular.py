r"""Newton's method on one scalar per cell, for a quadratic model of the loss.

With :math:`\|z\| = \min_{\eta \ge 0} (\|z\|^2/\eta + \eta)/2`, the quadratic model plus penalty

.. math:: \tfrac12 z^\top Q z - b^\top z + \beta \sum_e w_e \|z_e\|

becomes a smooth convex function of :math:`\eta \ge 0`. At :math:`\eta` the coefficients solve
:math:`(Q + \beta\,\mathrm{diag}(1/\eta)) z = b`, and with :math:`g = b - Qz` (the correlation with
the residual) :math:`z_e = \eta_e g_e / \beta`, slope :math:`(\beta^2 w_e^2 - \|g_e\|^2) / 2\beta` and
Hessian :math:`A/\beta^2`. The optimum is the secular equation :math:`\|g_e\| = \beta w_e` on cells
in use. A :class:`System` answers for one quadratic form, by its Gram matrix or by its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from ..problem import TokenDesign
from ..problem.designs import Groups
from .bounded import bounded_quadratic

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
        squares = (np.sum(z * z, axis=(1, 2)), np.sum(g * g, axis=(1, 2)))
        return cls(value, z, g, squares, float(np.sum(z * g)), factor)


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
        used = np.flatnonzero(np.repeat(eta > 0, self.size))
        s = np.sqrt(np.repeat(eta, self.size)[used])[:, None]
        B, Q = self.B[used], self.Q[:, used]
        T = s * Q[used] * s.T
        T[np.diag_indices_from(T)] += self.beta
        L = cholesky(T, lower=True, overwrite_a=True, check_finite=False) if len(used) else T
        t = np.zeros_like(B)
        for _ in range(2):  # the second round refines the first
            residual = s * (B - Q[used] @ (s * t)) - self.beta * t
            t += cho_solve((L, True), residual, check_finite=False) if len(used) else 0.0
        z = np.zeros_like(self.B)
        z[used] = s * t
        g = self.B - Q @ z[used]
        value = -0.5 * float(np.sum(B * z[used]))
        shape = (self.n_cells, self.size, -1)
        return State.of(value, z.reshape(shape), g.reshape(shape), (used, s, L))

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = G' (Q - Q S (beta + S Q S)^-1 S Q) G``, G block-diagonal with the cells' g."""
        used, s, L = state.factor
        p, shape = len(self.Q), (self.n_cells, self.size)
        A = np.zeros((len(cells), len(cells)))
        for r in range(self.B.shape[1]):
            g = state.g[cells, :, r]
            QG = np.einsum("pes,es->pe", self.Q.reshape(p, *shape)[:, cells], g)
            A += np.einsum("esf,es->ef", QG.reshape(*shape, -1)[cells], g)
            if len(used):
                half = solve_triangular(L, s * QG[used], lower=True, check_finite=False)
                A -= half.T @ half
        return A


class KernelSystem:
    r"""Works in sample space: best where used coefficients outnumber samples.

    With curvature weights w, dual point r and scores f0 of the point of expansion,
    :math:`v = r + W^{1/2} q`, :math:`(I + W^{1/2} K W^{1/2})\, q = W^{1/2} (f_0 - K r)`,
    :math:`K = \sum_k \eta_k X_k X_k^\top / \beta`: no division by a curvature that may vanish.
    An intercept projects :math:`W^{1/2} 1` out on both sides.
    """

    def __init__(
        self,
        design: TokenDesign,
        groups: Groups,
        center: Array | None,
        weight: Array,
        R: Array,
        F0: Array,
        beta: float,
    ) -> None:
        self.design, self.groups, self.center, self.beta = design, groups, center, beta
        self.root, self.R, self.F0 = np.sqrt(weight)[:, None], R, F0
        length = np.linalg.norm(self.root)
        self.unit = self.root / length if center is not None and length > 0 else None

    def solve(self, eta: Array) -> State:
        used = np.flatnonzero(eta > 0)
        K = self.design.kernel(self.groups[used], eta[used] / self.beta, self.center)
        T = _project(_project(self.root * K * self.root.T, self.unit).T, self.unit)
        L = T.copy()
        L[np.diag_indices_from(L)] += 1.0
        L = cholesky(L, lower=True, overwrite_a=True, check_finite=False)
        right = _project(self.root * (self.F0 - K @ self.R), self.unit)
        q = np.zeros_like(right)
        for _ in range(2):
            q += cho_solve((L, True), right - q - T @ q, check_finite=False)
        V = self.R + self.root * _project(q, self.unit)
        g = self.design.correlate(V, self.groups)
        if self.center is not None:
            g -= self.center[self.groups][:, :, None] * V.sum(axis=0)
        z = eta[:, None, None] * g / self.beta
        value = -np.sum(self.R * (K @ V - self.F0)) + 0.5 * np.sum(q * q) + 0.5 * np.sum(z * g)
        return State.of(float(value), z, g, L)

    def curvature(self, state: State, cells: Cells) -> Array:
        """``A = U' (I + W^1/2 K W^1/2)^-1 U`` with ``u_k = W^1/2 X_k g_k``."""
        A = np.zeros((len(cells), len(cells)))
        for r in range(self.R.shape[1]):
            U = self.design.contributions(self.groups[cells], state.g[cells, :, r], self.center)
            U = _project(self.root * U, self.unit)
            half = solve_triangular(state.factor, U, lower=True, check_finite=False)
            A += half.T @ half
        return A


class OutlierSystem:
    r"""The Huber loss as a squared loss with one more cell per sample.

    .. math:: \mathrm{huber}(r) = \min_o \tfrac12 (r - o)^2 + \delta |o|

    so that :math:`K` gains the diagonal :math:`\eta_i / \beta`, and which samples lie beyond
    delta is found by the same Newton steps as which tokens are in use. Cells are the tokens, then
    the samples of every output in turn; this system has the samples of one output.
    """

    def __init__(
        self,
        design: TokenDesign,
        groups: Groups,
        center: Array | None,
        weight: Array,
        y: Array,
        output: int,
        beta: float,
    ) -> None:
        self.design, self.groups, self.center, self.beta = design, groups, center, beta
        self.root = np.sqrt(weight)[:, None]
        self.unit = self.root / np.linalg.norm(self.root) if center is not None else None
        self.right = _project(self.root * y[:, None], self.unit)
        first = len(groups) + output * len(y)
        self.samples = slice(first, first + len(y))

    def solve(self, eta: Array) -> State:
        tokens, samples = eta[: len(self.groups)], eta[self.samples]
        used = np.flatnonzero(tokens > 0)
        K = self.design.kernel(self.groups[used], tokens[used] / self.beta, self.center)
        K[np.diag_indices_from(K)] += samples / self.beta
        T = _project(_project(self.root * K * self.root.T, self.unit).T, self.unit)
        T[np.diag_indices_from(T)] += 1.0
        L = cholesky(T, lower=True, check_finite=False)
        q = np.zeros_like(self.right)
        for _ in range(2):
            q += cho_solve((L, True), self.right - T @ q, check_finite=False)
        v = self.root * _project(q, self.unit)
        g = self.design.correlate(v, self.groups)
        state = State.of(
            0.5 * float(np.sum(self.right * q)), tokens[:, None, None] * g / self.beta, g, (L, v)
        )
        o = samples[:, None] * v / self.beta
        z2, g2 = np.zeros_like(eta), np.zeros_like(eta)
        z2[: len(tokens)], g2[: len(tokens)] = state.squares
        z2[self.samples], g2[self.samples] = o[:, 0] ** 2, v[:, 0] ** 2
        state.squares, state.product = (z2, g2), state.product + float(np.sum(o * v))
        return state

    def curvature(self, state: State, cells: Cells) -> Array:
        L, v = state.factor
        U = np.zeros((len(v), len(cells)))
        tokens = np.flatnonzero(cells < len(self.groups))
        mine = np.flatnonzero((cells >= self.samples.start) & (cells < self.samples.stop))
        of_tokens = cells[tokens]
        U[:, tokens] = self.root * self.design.contributions(
            self.groups[of_tokens], state.g[of_tokens, :, 0], self.center
        )
        rows = cells[mine] - self.samples.start
        U[rows, mine] = (self.root * v)[rows, 0]
        half = solve_triangular(L, _project(U, self.unit), lower=True, check_finite=False)
        return half.T @ half


def _project(U: Array, unit: Array | None) -> Array:
    """Take the direction of the intercept out of the columns of `U`."""
    return U if unit is None else U - unit * (unit.T @ U)


@dataclass
class _Point:
    """All systems at one `eta`, with what the secular equation needs of them."""

    eta: Array
    states: list[State]
    value: float
    norms: Array
    gap: float


class SecularNewton:
    """Minimise the sum of `systems` over a shared `eta`.

    Parameters
    ----------
    systems : list of System
    radius : ndarray of shape (cells,)
        ``beta * w``: the norm of g on a cell in use.
    beta : float
    bulk : float
        About the loss at the point of expansion; sizes the second-order part of the model's gap.
    """

    def __init__(self, systems: list[System], radius: Array, beta: float, bulk: float) -> None:
        self.systems, self.radius, self.beta, self.bulk = systems, radius, beta, bulk

    def minimise(self, eta: Array, target: float, max_iter: int = 100) -> Array:
        """Coefficients ``(cells, size, outputs)`` whose model gap is below `target`, or nearly."""
        at = self._point(eta)
        best, idle = at, 0
        for step in range(max_iter):
            # At least one step: the start fits the model's coefficients, but to an old eta.
            if (at.gap <= target and step > 0) or idle >= 8:
                break
            new = self._step(at)
            if new is None:
                break
            at = new
            best, idle = (at, 0) if at.gap < 0.9 * best.gap else (best, idle + 1)
        best = at if at.gap <= best.gap else best
        return np.concatenate([state.z for state in best.states], axis=2)

    def _point(self, eta: Array) -> _Point:
        states = [system.solve(eta) for system in self.systems]
        value = sum(state.value for state in states)
        value += 0.5 * self.beta * float((self.radius / self.beta) ** 2 @ eta)
        sizes, norms = (np.sqrt(sum(state.squares[i] for state in states)) for i in (0, 1))
        scale = min(1.0, float(np.min(self.radius / np.maximum(norms, self.radius))))
        gap = float(self.radius @ sizes) - scale * sum(state.product for state in states)
        return _Point(eta, states, value, norms, gap + (1 - scale) ** 2 * self.bulk)

    def _step(self, at: _Point) -> _Point | None:
        """One safeguarded Newton step, or None where rounding leaves no descent."""
        cells = np.flatnonzero((at.eta > 0) | (at.norms > self.radius))
        A = sum(
            system.curvature(state, cells)
            for system, state in zip(self.systems, at.states, strict=True)
        )
        norms, radius, eta = at.norms[cells], self.radius[cells], at.eta[cells]
        # Newton on 1/||g|| = 1/radius, nearly linear in eta; else on the slope itself.
        rational = self.beta * norms**2 * (norms / radius - 1.0)
        plain = 0.5 * self.beta * (norms**2 - radius**2)
        slack = 1e-13 * abs(at.value)
        for right in (rational, plain):
            move = bounded_quadratic(A, right, -eta)
            new = self._moved(at, cells, move, 1.0)
            if new.value <= at.value + slack:
                return new
        for halvings in range(1, 30):
            new = self._moved(at, cells, move, 0.5**halvings)
            if new.value <= at.value + slack:
                return new
        return None

    def _moved(self, at: _Point, cells: Cells, move: Array, t: float) -> _Point:
        eta = at.eta.copy()
        eta[cells] = np.maximum(0.0, eta[cells] + t * move)
        return self._point(eta)
