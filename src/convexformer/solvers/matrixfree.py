r"""Secular Newton steps by conjugate gradients, where no matrix of the model's size is formed.

The same steps as in :mod:`~convexformer.solvers.secular`. With :math:`u = g/\|g\|`, eliminating
:math:`\delta\eta` from the linearised equations leaves one system in the coefficients,

.. math:: \bigl(Q + \tfrac{\beta}{\eta}(I - uu^\top)\bigr)\, \Delta = u\,\|g\|(\|g\| - r)/r, \qquad
          \delta\eta = \bigl(\beta u^\top\Delta + \eta\|g\|(\|g\| - r)/r\bigr) / \|g\|

for the radius :math:`r = \beta w` of a cell. Cells that enter move along u alone. Q is only ever
multiplied with, in float32; its diagonal blocks precondition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import Design, Penalty
from ..problem.designs import Groups
from ..problem.stopping import check_stop, until
from .workspace import low_precision

Array = NDArray[np.float64]


class Curvature:
    """``Z -> A' H A Z`` for gathered columns A, with the intercept eliminated.

    Parameters
    ----------
    design : Design
    groups : ndarray of int
    center : ndarray of shape (groups, d) or None
        None where there is no intercept.
    weight : ndarray of shape (N,)
    H : ndarray of shape (N, c)
        Curvature of every output, or the probabilities of a joint loss.
    joint : bool
    """

    def __init__(
        self,
        design: Design,
        groups: Groups,
        center: Array | None,
        weight: Array,
        H: Array,
        joint: bool,
    ) -> None:
        self.shape = (len(groups), design.dim, H.shape[1])
        self.X = low_precision(design, groups, center)
        self.weight, self.H, self.joint = weight[:, None], H, joint
        self.total = None
        if center is not None:
            self.total = self._total()

    def _total(self) -> Array:
        """Curvature of the intercept: ``(c, c)`` inverted if joint, else ``(1, c)``."""
        W = self.weight * self.H
        if self.joint:
            return np.asarray(np.linalg.pinv(np.diag(W.sum(axis=0)) - W.T @ self.H, rcond=1e-13))
        return W.sum(axis=0, keepdims=True)

    def _bend(self, F: Array) -> Array:
        """``H F`` per sample."""
        if self.joint:
            F = F - np.sum(self.H * F, axis=1, keepdims=True)
        return self.weight * self.H * F

    def apply(self, Z: Array) -> Array:
        """``A' H A Z``, shape of `Z` ``(groups, d, c)``."""
        check_stop()
        F = self._bend(self.X.predict(Z))
        if self.total is not None:
            e = F.sum(axis=0)
            if self.joint:
                F -= self._bend(np.broadcast_to(self.total @ e, F.shape))
            else:
                F -= self._bend(e / np.where(self.total > 0, self.total, np.inf))
        return self.X.correlate(F)

    def blocks(self) -> Array:
        """Diagonal blocks ``A_k' diag(h_l) A_k``: ``(groups, c, d, d)``."""
        G, d, c = self.shape
        h = self.weight * (self.H * (1 - self.H) if self.joint else self.H)
        B = np.empty((G, c, d, d))
        unit, offset = self.X.unit, self.X.offset
        for k in range(G):
            check_stop()
            A = self.X.A[:, k * d : (k + 1) * d]
            if offset is not None:
                A = A + (offset[k * d : (k + 1) * d] / unit).astype(np.float32)
            for j in range(c):
                B[k, j] = A.T @ (h[:, j, None].astype(np.float32) * A)
        return unit**2 * B


@dataclass
class SecularCG:
    """Minimise a second-order model without factorising it.

    Parameters
    ----------
    curvature : Curvature
    G0, Z0 : ndarray of shape (groups, d, c)
        Correlations and coefficients at the point of expansion.
    penalty : Penalty
    weight : ndarray of shape (groups, 1)
        Its weights.
    beta, bulk, late
        As for :class:`~convexformer.solvers.secular.SecularNewton`.
    """

    curvature: Curvature
    G0: Array
    Z0: Array
    penalty: Penalty
    weight: Array
    beta: float
    bulk: float
    late: Callable[[], bool]

    def minimise(self, target: float, max_iter: int = 30) -> tuple[Array, bool]:
        """Coefficients whose model gap is below `target`, and whether it was reached."""
        self.radius, self.target = self.beta * self.weight, target
        self.solves = self.products = 0
        self.best = self.unmeasured = self.Z0
        self.least = np.inf
        with until(self.late):
            self._minimise(target, max_iter)
            return self.best, self.least <= target
        if self.least == np.inf:  # not even the first system was solved in time
            self.best = self.unmeasured
        return self.best, self.least <= target

    def _minimise(self, target: float, max_iter: int) -> None:
        """Find `best` and its gap `least`."""
        self.blocks = self.curvature.blocks()
        eta = self.penalty.norms(self.Z0) / self.weight
        Z, g = self._ridge(eta, self.Z0)
        self.best, self.least, value = Z, self._gap(Z, g), self._value(Z, g)
        for step in range(max_iter):
            if self.least <= target and step > 0:
                break
            move = self._direction(eta, g)
            for halvings in range(8):
                trial = np.maximum(0.0, eta + 0.5**halvings * move)
                Z_new, g_new = self._ridge(trial, Z)
                if self._value(Z_new, g_new) <= value + 0.1 * target:
                    break
            else:
                break
            eta, Z, g, value = trial, Z_new, g_new, self._value(Z_new, g_new)
            gap = self._gap(Z, g)
            if gap < self.least:
                self.best, self.least = Z, gap

    def _correlations(self, Z: Array) -> Array:
        """``g`` at `Z`, by what changed since the expansion: for that float32 is enough."""
        return self.G0 - self.curvature.apply(Z - self.Z0)

    def _gap(self, Z: Array, g: Array) -> float:
        norms = self.penalty.norms(g)
        scale = min(1.0, float(np.min(self.radius / np.maximum(norms, self.radius))))
        size = float(np.sum(self.radius * self.penalty.norms(Z)))
        return size - scale * float(np.sum(Z * g)) + (1 - scale) ** 2 * self.bulk

    def _value(self, Z: Array, g: Array) -> float:
        """The model less its value at the point of expansion, plus the penalty."""
        return float(
            np.sum(self.radius * self.penalty.norms(Z))
            - 0.5 * np.sum((Z - self.Z0) * (self.G0 + g))
        )

    def _ridge(self, eta: Array, Z: Array) -> tuple[Array, Array]:
        """Coefficients and correlations at `eta`, from a start near by."""
        S = np.sqrt(eta)[:, None, :]

        def operator(t: Array) -> Array:
            return S * self.curvature.apply(S * t) + self.beta * t

        used = np.broadcast_to(S > 0, Z.shape)
        start = np.divide(Z, S, out=np.zeros_like(Z), where=used)
        residual = S * self._correlations(S * start) - self.beta * start
        inverse = self._inverses(S, self.beta * np.eye(Z.shape[1]))
        # An error of the system shows in the gap as <t, residual>.
        size = max(float(np.sum(self.radius * self.penalty.norms(Z))), self.target)
        t = start + self._solve(operator, residual, inverse, (0.1 * self.target) ** 2 / size)
        self.unmeasured = S * t
        return self.unmeasured, self._correlations(self.unmeasured)

    def _direction(self, eta: Array, g: Array) -> Array:
        norms = self.penalty.norms(g)
        enters = (eta == 0) & (norms > self.radius)
        u = g / np.maximum(norms, np.finfo(float).tiny)[:, None, :]
        excess = np.where((eta > 0) | enters, norms * (norms - self.radius) / self.radius, 0.0)
        v = u.transpose(0, 2, 1)  # (groups, c, d)
        along = np.einsum("kci,kcij,kcj->kc", v, self.blocks, v)
        if enters.shape[1] == 1:
            along = along.sum(axis=1, keepdims=True)
        S = np.where(eta > 0, np.sqrt(eta), 0.0)
        S = np.where(enters, 1.0 / np.sqrt(np.maximum(along, np.finfo(float).tiny)), S)[:, None, :]
        scalar, full = enters[:, None, :], (eta > 0)[:, None, :]

        def confine(t: Array) -> Array:  # entering cells have one unknown
            return np.where(scalar, u * self._dot(u, t), np.where(full, t, 0.0))

        def operator(t: Array) -> Array:
            bent = confine(S * self.curvature.apply(S * t))
            return bent + np.where(full, self.beta * (t - u * self._dot(u, t)), 0.0)

        flat = self.beta * (np.eye(v.shape[2]) - v[:, :, :, None] * v[:, :, None, :])
        inverse = self._inverses(np.where(full, S, 0.0), flat)
        inverse = np.where(scalar.transpose(0, 2, 1)[..., None], np.eye(v.shape[2]), inverse)
        right = S * u * excess[:, None, :]
        t = self._solve(operator, right, inverse)
        inner = self._dot(u, S * t)[:, 0, :]
        return (self.beta * inner + eta * excess) / np.maximum(norms, np.finfo(float).tiny)

    def _dot(self, u: Array, t: Array) -> Array:
        """Inner products per cell, ready to multiply an array of shape ``(groups, d, c)``."""
        axes = 1 if self.penalty.separable else (1, 2)
        return np.sum(u * t, axis=axes, keepdims=True)

    def _inverses(self, S: Array, rest: Array) -> Array:
        """Inverses of ``S Q S + rest`` on diagonal blocks: ``(groups, c, d, d)``."""
        shape = (*self.blocks.shape[:2], 1, 1)
        s2 = np.broadcast_to(S, self.G0.shape)[:, 0, :].reshape(shape) ** 2
        M = s2 * self.blocks + rest
        size = np.trace(M, axis1=2, axis2=3)[:, :, None, None]
        size = np.where(size > 0, size, 1.0)  # of a cell that stays zero any will do
        return np.asarray(np.linalg.inv(M + 1e-6 * size * np.eye(M.shape[2])))

    def _solve(
        self,
        operator: Callable[[Array], Array],
        right: Array,
        inverse: Array,
        stop: float | None = None,
    ) -> Array:
        """Preconditioned conjugate gradients, to 1 % or until ``r' M^-1 r <= stop``."""

        def precondition(r: Array) -> Array:
            return np.einsum("kcij,kjc->kic", inverse, r)

        t, r, y = np.zeros_like(right), right, precondition(right)
        p, rho = y, float(np.sum(right * y))
        stop = 1e-4 * rho if stop is None else stop
        self.solves += 1
        for _ in range(200):
            if not rho > stop or self.late():
                break
            self.products += 1
            Ap = operator(p)
            slope = float(np.sum(p * Ap))
            if not slope > 0:
                break
            t, r = t + rho / slope * p, r - rho / slope * Ap
            y = precondition(r)
            before, rho = rho, float(np.sum(r * y))
            p = y + rho / before * p
        return t
