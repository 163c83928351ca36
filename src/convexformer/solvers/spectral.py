r"""Proximal gradient steps of spectral length, on all tokens at once.

.. math:: Z^+ = \mathrm{prox}_{\beta/L}\bigl(Z + M / L\bigr), \qquad
          L = \langle \Delta Z, -\Delta M\rangle / \|\Delta Z\|^2

with the correlations M of the residuals (minus the gradient) and the step of Barzilai and Borwein,
kept in bounds by a line search that lets the objective rise now and then. A step takes two passes
over the tokens that are used or want to be, in float32: what it works on is the change since a
point whose residuals and correlations are known in float64.

Well-conditioned problems take a few dozen steps, others would take thousands. How far the
curvatures L of a few steps differ tells which it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from .machine import CACHE, CACHE_SPEED, MEMORY_SPEED, SPEED
from .rounds import NEAR, Round
from .solution import Clock, Iterate
from .workspace import LowPrecision

Array = NDArray[np.float64]

HALVINGS = 8  # of a step
CHECK = 4  # steps between estimates of the gap
TRIAL, MOST_STEPS = 8, 300  # steps before the speed is judged, and of a round
MOST_SPREAD = 100.0  # of curvatures, beyond which no end is in sight
MEMORY = 5  # steps over which the objective may rise
STEP, ENTRY = 1.5e-4, 3e-8  # seconds beyond products: a step's, a loss entry's


@dataclass
class _Spot:
    """A point of a descent; arrays of the working groups only."""

    Z: Array
    S: Array
    b: Array
    V: Array
    M: Array
    value: float


class Spectral(Round):
    """One round on the columns of `X`."""

    def __init__(
        self, problem: Problem, beta: float, at: Iterate, point: DualPoint, X: LowPrecision
    ) -> None:
        super().__init__(problem, beta, at, point, X.groups)
        self.X = X
        self.spot = _Spot(self.Z0, at.S, at.b, point.V, self.M0, self.value)
        self.curvatures = list[float]()

    # Steps ---------------------------------------------------------------------------------------

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        curvature, values = self._curvature(), [self.spot.value]
        self.start = self.least = self._gap()
        for step in range(1, MOST_STEPS):
            new = self._step(curvature, max(values[-MEMORY:]))
            if new is None:  # what is left to gain drowns in rounding
                return self.least < NEAR * self.start
            old, self.spot, self.value = self.spot, new, new.value
            values.append(new.value)
            late = clock.late()
            if step % CHECK == 0 or late:
                gap = self._gap()
                if gap < self.least:
                    self.least, self.best, self.best_b = gap, new.Z, new.b
                if self.least <= target * self.value or late:
                    return True
                if step >= TRIAL and self._is_slow(step, goal):
                    return False
            move = new.Z - old.Z
            size = float(np.sum(move * move))
            if size == 0.0:
                return False
            bend = float(np.sum(move * (old.M - new.M))) / size
            if bend > 0.0:  # else rounding
                curvature = bend
                self.curvatures.append(bend)
        return False

    def _curvature(self) -> float:
        """Of the loss along its gradient."""
        at, problem = self.origin, self.problem
        F = self.X.predict(self.M0)
        H = problem.curvature(at.F, damping=1.0)
        bend = float(np.sum(problem.weight[:, None] * H * F**2))
        return max(bend / float(np.sum(self.M0**2)), 1e-300)

    def _step(self, curvature: float, ceiling: float) -> _Spot | None:
        """A proximal step, the shorter the more it has to be to stay below `ceiling`."""
        spot, problem = self.spot, self.problem
        for _ in range(HALVINGS):
            Z = spot.Z + spot.M / curvature
            norms = self.norms(Z)
            shrunk = np.maximum(0.0, norms - self.beta / curvature * self.weight)
            Z *= (shrunk / np.where(norms > 0, norms, 1.0))[:, None, :]
            move = Z - spot.Z
            with np.errstate(over="ignore", invalid="ignore"):
                S = self.origin.S + self.X.predict(Z - self.Z0)
                value, V, P = problem.expansion(S + spot.b)
                value += self.beta * float(np.sum(self.weight * shrunk))
            if value <= ceiling - 5e-5 * curvature * float(np.sum(move * move)):
                V, step = problem.balanced(V, P, rounds=1)  # a Newton step of the intercept
                M = self.M0 + self.X.correlate(V - self.point.V)
                return _Spot(Z, S, spot.b + step, V, M, value)
            curvature *= 2.0
        return None

    # How far, and how long it will take ----------------------------------------------------------

    def _gap(self) -> float:
        return self.gap(self.spot.value, self.spot.V, self.spot.M)

    def _is_slow(self, step: int, goal: float) -> bool:
        each = step_seconds(self.problem, self.X.A.size)
        return self.is_slow(step * each, self._steps_left(step, goal) * each, self.spot.Z)

    def _steps_left(self, step: int, goal: float) -> float:
        """As many as the spread of curvatures calls for, or half of what the gap's fall does."""
        low_to_high = sorted(self.curvatures) or [1.0]  # none: all moves drowned in rounding
        low, high = low_to_high[len(low_to_high) // 8], low_to_high[-1]
        if high >= MOST_SPREAD * low and self.least > NEAR * self.spot.value:
            return np.inf
        fallen = np.log(max(self.start / self.least, 1.0 + 1e-3))
        return self.ahead(goal) * float(max(1.4 * np.sqrt(high / low), 0.5 * step / fallen))


def step_seconds(problem: Problem, numbers: int) -> float:
    """Roughly what a step on so many entries of X takes."""
    c = problem.n_outputs
    product = 8 * numbers / (CACHE_SPEED if 4 * numbers < CACHE else MEMORY_SPEED)
    if c > 1:  # a few columns at once are slower than one
        product = max(2 * product, 2 * numbers * c / SPEED)
    entries = 0.0 if problem.loss.quadratic else ENTRY * problem.Y.size
    return product + STEP + entries
