r"""Proximal gradient steps of spectral length: the quick way where tokens are nearly independent.

.. math:: Z^+ = \mathrm{prox}_{\beta/L}\bigl(Z + M / L\bigr), \qquad
          L = \langle \Delta Z, -\Delta M\rangle / \|\Delta Z\|^2

with the correlations M of the residuals (minus the gradient) and the step of Barzilai and Borwein,
kept in bounds by a line search that lets the objective rise now and then. A step takes two passes
over the tokens that are used or want to be, in float32: what it works on is the change since a
point whose residuals and correlations are known in float64, and such a point ends every round.

Well-conditioned problems take a few dozen steps, for less than one factorisation of Newton's
method; others would take thousands. How far the curvatures L of a few steps differ tells which it
is, and whenever Newton's method promises to be done sooner it takes over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.designs import Groups
from .machine import CACHE, CACHE_SPEED, MEMORY_SPEED, SPEED
from .solution import Clock, Iterate
from .workspace import Workspace

Array = NDArray[np.float64]

ROUNDING = 1e-15  # relative gap that is as good as none
FLOAT32 = 2e-7  # part of a gap that changes in float32 leave, times the square of beta_max / beta
HALVINGS = 8  # of a step
CHECK = 4  # steps between estimates of the gap
TRIAL, MOST_STEPS = 8, 300  # steps before the speed is judged, and of a round
SMALL = 1e5  # entries of X below which a factorisation costs nothing
FEW = 1e6  # entries of X in a first round
FIRST_GAIN = 0.1  # by which a round reduces the gap where more tokens are to come
MOST_SPREAD = 100.0  # of curvatures, beyond which no end is in sight
NEAR = 1e-2  # relative gap below which a point is a good start for Newton's method
MEMORY = 5  # steps over which the objective may rise
HOPE = 0.6  # of Newton's time that steps may take, for they may take longer
OTHERS = 1.5  # what else it takes, beside the factorisations
STEP, NEWTON_STEP, ENTRY = 1.5e-4, 8e-4, 3e-8  # seconds beyond products: a step's, a loss entry's


def minimise(
    problem: Problem, beta: float, at: Iterate, tol: float, clock: Clock, work: Workspace
) -> tuple[Iterate, bool]:
    """Rounds of steps from `at`, until the certified relative gap is below `tol` or they slow.

    Returns where they led, and whether there is no more to do.
    """
    size = problem.design.n_samples * problem.design.n_groups * problem.design.dim
    work.descends &= size >= SMALL
    while work.descends:
        point = problem.dual_point(at.S + at.b)
        gap = at.gap(problem, point, beta)
        clock.record(gap, at.Z)
        if (gap <= tol and clock.n_iter > 0) or clock.expired:
            return at, True
        groups, violators = _working_groups(problem, beta, at.Z, point)
        if _gram_is_quick(problem, len(groups)):
            break
        work.descends = work.columns.take(groups)
        if not work.descends:
            break
        clock.n_iter += 1
        descent = _Descent(problem, beta, at, point, groups, work)
        worth = at.primal(problem, beta)
        goal = max(0.5 * tol, ROUNDING) * worth
        all_of_them = bool(np.all(np.isin(violators, descent.groups)))
        gain = FLOAT32 * (problem.beta_max / beta) ** 2 if all_of_them else FIRST_GAIN
        work.descends = descent.run(max(goal, gain * gap * worth), goal, clock)
        # What a slow descent leaves behind uses too many tokens to start from.
        if work.descends or descent.least < NEAR * descent.spot.value:
            found = descent.found()
            falls = found.primal(problem, beta) < worth
            at, work.descends = found if falls else at, work.descends and falls
    work.columns.forget()
    return at, False


def _gram_is_quick(problem: Problem, n_groups: int) -> bool:
    """Whether Newton's method, with a Gram matrix formed once, is done about when steps begin."""
    N, p = problem.design.n_samples, n_groups * problem.design.dim
    speed = CACHE_SPEED if 4 * N * p < CACHE else MEMORY_SPEED
    first_steps = TRIAL * (8 * N * p / speed + STEP)
    return problem.loss.quadratic and N * p * p / SPEED + 8 * NEWTON_STEP < 2 * first_steps


def _working_groups(
    problem: Problem, beta: float, Z: Array, point: DualPoint
) -> tuple[Groups, Groups]:
    """Tokens in use and the worst violators; and all violators.

    The first are few, which also tells at little cost that steps will be slow.
    """
    used = np.any(problem.penalty.norms(Z) > 0, axis=1)
    excess = np.where(used, 0.0, point.norms.max(axis=1) - beta)
    violators = np.flatnonzero(excess > 0)
    few = max(8, int(FEW // (problem.design.n_samples * problem.design.dim)))
    room = max(few, 3 * int(np.count_nonzero(used)))
    worst = violators[np.argsort(-excess[violators], kind="stable")[:room]]
    used[worst] = True
    return np.flatnonzero(used), violators


@dataclass
class _Spot:
    """A point of a descent; arrays of the working groups only."""

    Z: Array
    S: Array
    b: Array
    V: Array
    M: Array
    value: float


class _Descent:
    """One round on the columns of `groups`."""

    def __init__(
        self,
        problem: Problem,
        beta: float,
        at: Iterate,
        point: DualPoint,
        groups: Groups,
        work: Workspace,
    ) -> None:
        self.problem, self.beta = problem, beta
        self.X = work.columns.of(groups)
        self.groups = self.X.groups
        self.origin, self.point = at, point
        self.Z0, self.M0 = at.Z[self.groups], point.M[self.groups]
        self.weight = problem.penalty.column(problem.shape[0])[self.groups]
        self.norms = problem.penalty.norms
        value = at.loss + beta * float(np.sum(self.weight * self.norms(self.Z0)))
        self.spot = self.best = _Spot(self.Z0, at.S, at.b, point.V, self.M0, value)
        self.start = self.least = np.inf
        self.curvatures = list[float]()

    # Steps ---------------------------------------------------------------------------------------

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        """Step until the gap on these groups is below `target`, on the way to `goal`.

        Returns whether Newton's method would not get there sooner.
        """
        curvature, values = self._curvature(), [self.spot.value]
        self.start = self.least = self._gap()
        for step in range(1, MOST_STEPS):
            new = self._step(curvature, max(values[-MEMORY:]))
            if new is None:  # what is left to gain drowns in rounding
                return self.least < NEAR * self.start
            old, self.spot = self.spot, new
            values.append(new.value)
            if step % CHECK == 0:
                gap = self._gap()
                if gap < self.least:
                    self.least, self.best = gap, new
                if self.least <= target or clock.late():
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
        H = problem.loss.curvature(at.S + at.b, problem.Y, damping=1.0)
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
                V, step = problem.balanced(V, P)  # after a Newton step of the intercept
                M = self.M0 + self.X.correlate(V - self.point.V)
                return _Spot(Z, S, spot.b + step, V, M, value)
            curvature *= 2.0
        return None

    # How far, and how long it will take ----------------------------------------------------------

    def _gap(self) -> float:
        spot = self.spot
        point = DualPoint(spot.V, spot.M, self.norms(spot.M) / self.weight)
        return spot.value - self.problem.dual_value(point, self.beta)

    def _is_slow(self, step: int, goal: float) -> bool:
        """Whether Newton's method promises to be done sooner, or would have been by now."""
        newton, each = self._newton_seconds(), self._step_seconds()
        return self._steps_left(step, goal) * each > HOPE * newton or step * each > newton

    def _steps_left(self, step: int, goal: float) -> float:
        """As many as the spread of curvatures calls for, or half of what the gap's fall does."""
        low_to_high = sorted(self.curvatures) or [0.0]
        low, high = low_to_high[len(low_to_high) // 8], low_to_high[-1]
        if high >= MOST_SPREAD * low and self.least > NEAR * self.spot.value:
            return np.inf
        ahead = np.log(max(self.least / goal, 1.0))
        fallen = np.log(max(self.start / self.least, 1.0 + 1e-3))
        return float(ahead * max(1.4 * np.sqrt(high / low), 0.5 * step / fallen))

    def _step_seconds(self) -> float:
        N, c = self.spot.S.shape
        numbers = self.X.A.size
        product = 8 * numbers / (CACHE_SPEED if 4 * numbers < CACHE else MEMORY_SPEED)
        if c > 1:  # a few columns at once are slower than one
            product = max(2 * product, 2 * numbers * c / SPEED)
        entries = 0.0 if self.problem.loss.quadratic else ENTRY * N * c
        return product + STEP + entries

    def _newton_seconds(self) -> float:
        """Roughly what Newton's method would take with the coefficients that are in use."""
        N, c = self.spot.S.shape
        cells = self.norms(self.spot.Z) > 0
        columns = int(np.count_nonzero(np.any(cells, axis=1))) * self.Z0.shape[1]
        used, samples = int(np.count_nonzero(cells)) * self.Z0.shape[1], N
        if self.problem.loss.joint:
            used, samples = used * c // cells.shape[1], N * (c - 1)
        size = min(used, samples)
        form = N * used**2 if used <= samples else N**2 * columns
        models, steps = (1, 8) if self.problem.loss.quadratic else (6, 18)
        flops = models * form + steps * size**3 / 3
        return OTHERS * flops / SPEED + steps * NEWTON_STEP

    def found(self) -> Iterate:
        """The best point, in float64."""
        Z = np.zeros_like(self.origin.Z)
        Z[self.groups] = self.best.Z
        return Iterate.at(self.problem, Z, self.problem.scores(Z), self.best.b)
