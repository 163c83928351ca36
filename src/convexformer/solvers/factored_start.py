r"""A start for Newton's method: L-BFGS on the factored form.

With :math:`Z_e = s_e v_e` for every cell e of the penalty,

.. math:: \min_Z R(Z) + \sum_e r_e \|Z_e\| \;=\;
          \min_{s, v} R(s v) + \tfrac12 \sum_e r_e (s_e^2 + \|v_e\|^2)

because :math:`\|Z_e\| \le (s_e^2 + \|v_e\|^2) / 2`. The right-hand side is smooth, not convex,
but the duality gap of :math:`Z = s v` is that of the convex problem, and decides where to stop.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ..problem import Point
from ..problem.stopping import check_stop, until
from .solution import Task
from .workspace import LowPrecision

Array = NDArray[np.float64]

START_GAP = 1e-4  # relative gap at which Newton's method takes over,


class _Reached(Exception):
    """The gap is small enough."""


class FactoredStart:
    """L-BFGS from the point `at`, on the columns of `X`."""

    def __init__(self, task: Task, at: Point, X: LowPrecision) -> None:
        self.task, self.problem, self.beta, self.X, self.at = task, at.problem, task.beta, X, at
        self.risk, self.penalty = at.problem.risk, at.problem.penalty.of(X.groups)
        self.strength = self.beta * self.penalty.column(len(X.groups))[:, :, None]
        self.axes = (1,) if self.penalty.separable else (1, 2)
        self.best, self.best_b, self.least, self.idle = at.Z[X.groups], at.b, np.inf, 0

    def run(self) -> tuple[Array, Array]:
        """Coefficients ``(groups, d, c)`` and the intercept of the least gap."""
        from scipy.optimize import minimize  # here, because its import takes 60 ms

        Z, M = self.at.Z[self.X.groups], self.at.M[self.X.groups]
        norms, size = (self.penalty.norms(part)[:, None, :] for part in (Z, M))
        s = np.sqrt(np.where(norms > 0, norms, self._first_step(M, size)))
        s = np.maximum(s, 0.1 * s.max(initial=0.0))  # at s = v = 0 the slope is zero
        direction = s * M / np.where(size > 0, size, 1.0)
        v = np.where(norms > 0, Z / np.where(s > 0, s, 1.0), direction)
        self.shapes = v.shape, s.shape
        start = np.concatenate([v.ravel(), s.ravel(), self.at.b])
        options = {"maxiter": 150, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
        quiet = np.errstate(over="ignore", invalid="ignore")  # steps may go too far
        with until(self.task.clock.late), suppress(_Reached), quiet:
            minimize(self._objective, start, jac=True, method="L-BFGS-B", options=options)
        norms = self.penalty.norms(self.best)[:, None, :]
        kept = norms >= 1e-3 * norms.max(initial=0.0)
        return np.where(kept, self.best, 0.0), self.best_b

    def _first_step(self, M: Array, size: Array) -> Array:
        """Norms of the cells that want to enter, after one gradient step."""
        excess = np.maximum(size - self.strength, 0.0)
        move = M / np.where(size > 0, size, 1.0) * excess
        F = self.X.predict(move)
        H = self.risk.weighted(self.risk.curvature(self.at.F, damping=1.0))
        bend = float(np.sum(H * F * F))
        return excess * (float(np.sum(excess**2)) / bend if bend > 0 else 0.0)

    def _objective(self, x: Array) -> tuple[float, Array]:
        check_stop()
        (v_shape, s_shape), split = self.shapes, np.cumsum([np.prod(s) for s in self.shapes])
        v, s, b = np.split(x, split)
        v, s = v.reshape(v_shape), s.reshape(s_shape)
        Z = s * v
        F = np.asarray(self.X.predict(Z) + b, order=self.problem.loss.order)
        loss, V, H = self.risk.expansion(F)
        slope = self.risk.weighted(V)
        M = self.X.correlate(slope)
        ridge = 0.5 * float(
            np.sum(self.strength * (s * s + np.sum(v * v, self.axes, keepdims=True)))
        )
        self._note(Z, b, F, loss, V, H)
        along = np.sum(v * M, self.axes, keepdims=True)
        slope_b = -slope.sum(axis=0) if self.problem.intercept else np.zeros_like(b)
        gradients = self.strength * v - s * M, self.strength * s - along, slope_b
        return loss + ridge, np.concatenate([part.ravel() for part in gradients])

    def _note(self, Z: Array, b: Array, F: Array, loss: float, V: Array, H: Array) -> None:
        """Keep the point of the least gap, and stop where that is small enough."""
        primal = loss + self.beta * self.penalty.value(Z)
        V = self.risk.balanced(V, H)
        norms = self.penalty.dual_norms(self.X.correlate(V))
        gap = 1.0 - self.problem.dual_value(V, norms, self.beta) / primal
        if gap < self.least and np.isfinite(primal):
            self.best, self.best_b, self.least, self.idle = Z, b.copy(), gap, 0
        self.idle += 1
        if self.least <= START_GAP or (self.idle > 15 and self.least <= 1e-2):
            raise _Reached
