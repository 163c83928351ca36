r"""Newton's method on one scalar per cell, for a quadratic model of the loss.

With :math:`\|z\| = \min_{\eta \ge 0} (\|z\|^2/\eta + \eta)/2`, the quadratic model plus penalty

.. math:: \tfrac12 z^\top Q z - b^\top z + \beta \sum_e w_e \|z_e\|

becomes a smooth convex function of :math:`\eta \ge 0`. At :math:`\eta` the coefficients solve
:math:`(Q + \beta\,\mathrm{diag}(1/\eta)) z = b`. With :math:`g = b - Qz`, the correlation with the
residual, :math:`z_e = \eta_e g_e / \beta`; the slope is
:math:`(\beta^2 w_e^2 - \|g_e\|^2) / 2\beta` and the Hessian :math:`A/\beta^2`. The optimum is the
secular equation :math:`\|g_e\| = \beta w_e` on cells in use. What it takes to answer for z, g and A
at one eta is the business of a :class:`~convexformer.solvers.systems.System`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem.stopping import check_stop, until
from .bounded import bounded_quadratic
from .solution import ROUNDING
from .systems import Cells, State, System

Array = NDArray[np.float64]

SLOW = 0.25  # of a gap left by a step that could have done with a better curvature


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
    late : callable
        Whether time is up.
    """

    def __init__(
        self,
        systems: list[System],
        radius: Array,
        beta: float,
        bulk: float,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.systems, self.radius, self.beta, self.bulk = systems, radius, beta, bulk
        self.late = late

    def minimise(self, eta: Array, target: float, max_iter: int = 100) -> Array:
        """Coefficients ``(cells, size, outputs)`` whose model gap is below `target`, or nearly."""
        # An error of the systems shows in the gap as its square root times the penalty's.
        size = self.bulk + float(self.radius @ (eta * self.radius)) / self.beta
        self.accuracy = 0.1 * target * (0.1 * target / max(size, target))
        self.noise = 1e-3 * target
        try:
            at = self._point(eta)
        except np.linalg.LinAlgError:  # a start so large that its system cannot be factorised
            at = self._point(np.zeros_like(eta))
        self.best = at
        with until(self.late):
            self._descend(at, target, max_iter)
        return np.concatenate([state.z for state in self.best.states], axis=2)

    def _descend(self, at: _Point, target: float, max_iter: int) -> None:
        """Steps from `at`; `best` is where they led, also where time is up before they end."""
        best, idle = at, 0
        for step in range(max_iter):
            # At least one step: the start fits the model's coefficients, but to an old eta.
            if (at.gap <= target and step > 0) or idle >= 8:
                break
            check_stop()
            new = self._step(at)
            if new is None:
                break
            if new.gap > SLOW * at.gap:
                self._sharpen(at, new, target)
            # The gap may be slower than the value, which rounds.
            least_fall = max(0.01 * min(target, at.gap), ROUNDING * abs(at.value))
            falls = at.value - new.value > least_fall
            at = new
            better = at.gap < 0.9 * best.gap
            best, idle = at if better else best, 0 if better or falls else idle + 1
            self.best = at if at.gap <= best.gap or at.value < best.value - target else best

    def _sharpen(self, at: _Point, new: _Point, target: float) -> None:
        """Better curvatures, if there are so many steps left that it pays.

        While cells still come and go it is not the curvature that makes steps slow.
        """
        changed, used = (np.count_nonzero(x) for x in ((at.eta > 0) != (new.eta > 0), new.eta > 0))
        steps = 0.0
        if changed <= 1 + 0.04 * used:
            rate = max(np.log(at.gap / new.gap), 0.1) if 0 < new.gap < at.gap else 0.1
            steps = np.log(new.gap / max(target, 1e-300)) / rate if new.gap > target else 0.0
        for system in self.systems:
            system.sharpen(new.eta, steps)

    def _point(self, eta: Array) -> _Point:
        check_stop()
        states = [system.solve(eta, self.accuracy) for system in self.systems]
        value = sum(state.value for state in states)
        value += 0.5 * self.beta * float((self.radius / self.beta) ** 2 @ eta)
        sizes, norms = (np.sqrt(sum(state.squares[i] for state in states)) for i in (0, 1))
        scale = min(1.0, float(np.min(self.radius / np.maximum(norms, self.radius))))
        gap = float(self.radius @ sizes) - scale * sum(state.product for state in states)
        return _Point(eta, states, value, norms, gap + (1 - scale) ** 2 * self.bulk)

    def _step(self, at: _Point) -> _Point | None:
        """One safeguarded Newton step, or None where rounding leaves no descent."""
        cells = np.flatnonzero((at.eta > 0) | (at.norms > self.radius))
        if not len(cells):
            return None
        A = np.zeros((len(cells), len(cells)))
        for system, state in zip(self.systems, at.states, strict=True):
            A += system.curvature(state, cells)
        norms, radius, eta = at.norms[cells], self.radius[cells], at.eta[cells]
        # Newton on 1/||g|| = 1/radius, nearly linear in eta; else on the slope itself.
        rational = self.beta * norms**2 * (norms / radius - 1.0)
        plain = 0.5 * self.beta * (norms**2 - radius**2)
        exact = all(system.exact for system in self.systems)
        slack = 1e-13 * abs(at.value) + (0.0 if exact else 2 * self.accuracy + self.noise)
        for right in (rational, plain):
            try:
                move = bounded_quadratic(A, right, -eta)
            except np.linalg.LinAlgError:  # products beyond the range of float64
                return None
            new = self._moved(at, cells, move)
            if new is not None and new.value <= at.value + slack:
                return new
        for halvings in range(1, 30):
            new = self._moved(at, cells, 0.5**halvings * move)
            if new is not None and new.value <= at.value + slack:
                return new
        return None

    def _moved(self, at: _Point, cells: Cells, move: Array) -> _Point | None:
        eta = at.eta.copy()
        eta[cells] = np.maximum(0.0, eta[cells] + move)
        try:
            return self._point(eta)
        except np.linalg.LinAlgError:  # eta so large that its system cannot be factorised
            return None
