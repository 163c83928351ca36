r"""Proximal gradient methods, which move all tokens at once.

.. math:: Z^+ = \mathrm{prox}_{\beta/L}\bigl(U + X^\top V(U) / L\bigr)

`minimise` takes Barzilai-Borwein steps on a working set, in float32: with
:math:`L = \langle \Delta Z, -\Delta M\rangle / \|\Delta Z\|^2` for the correlations M, kept in
bounds by a line search that lets the objective rise now and then. Well-conditioned problems take a
few dozen steps, others would take thousands. How far the curvatures L of a few steps differ tells
which it is.

`minimise_accelerated` is Nesterov's method with restarts, on all tokens and in float64: for the
nuclear penalty, as a cross-check, and as the last resort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..problem import Point, Problem
from ..problem.arrays import Array, Groups
from . import choose
from .solution import Clock, Progress, Task
from .working_set import Round, rounds

MOST_STEPS = 300  # of a round

MOST_IDLE = 50  # gaps without a smaller one before giving up;


def minimise(task: Task, at: Point) -> tuple[Point, bool]:
    """Rounds of Barzilai-Borwein steps from `at`; and whether there is no more to do."""
    return rounds(task, at, _make_round)


def _make_round(task: Task, at: Point, groups: Groups, gain: float) -> BarzilaiBorwein | None:
    if not task.work.columns.take(groups):
        return None
    return BarzilaiBorwein(task, at, groups)


@dataclass
class _State:
    """A point of a descent; arrays of the working groups only."""

    Z: Array
    S: Array
    b: Array
    V: Array
    M: Array
    value: float


class BarzilaiBorwein(Round):
    """One round on columns in float32."""

    def __init__(self, task: Task, at: Point, groups: Groups) -> None:
        self.X = task.work.columns.of(groups)
        super().__init__(task, at, self.X.groups)
        self.gain = 2e-7 * (self.problem.beta_max / self.beta) ** 2  # as float32 rounds
        self.weight = self.penalty.column(len(self.groups))
        self.state = _State(self.Z0, at.S, at.b, at.V, self.M0, self.value)
        self.curvatures = list[float]()

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        curvature, values = self._curvature(), [self.state.value]
        self.start = self.least = self._gap()
        for step in range(1, MOST_STEPS):
            new = self._step(curvature, max(values[-5:]))
            if new is None:  # what is left to gain drowns in rounding
                return self.least < choose.TUNING.newton_start_gap * self.start
            old, self.state, self.value = self.state, new, new.value
            values.append(new.value)
            late = clock.late()
            if step % 4 == 0 or late:
                gap = self._gap()
                if gap < self.least:
                    self.least, self.best, self.best_b = gap, new.Z, new.b
                if self.least <= target * self.value or late:
                    return True
                if step >= choose.TUNING.gradient_trial_steps and self._slows(step, goal):
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
        risk = self.problem.risk
        F = self.X.predict(self.M0)
        bend = float(np.sum(risk.weighted(risk.curvature(self.origin.F, damping=1.0) * F**2)))
        return max(bend / float(np.sum(self.M0**2)), 1e-300)

    def _step(self, curvature: float, ceiling: float) -> _State | None:
        """A proximal step, shortened until the objective is below `ceiling`."""
        state, risk = self.state, self.problem.risk
        for _ in range(8):
            Z = state.Z + state.M / curvature
            norms = self.penalty.norms(Z)
            shrunk = np.maximum(0.0, norms - self.beta / curvature * self.weight)
            Z *= (shrunk / np.where(norms > 0, norms, 1.0))[:, None, :]
            move = Z - state.Z
            with np.errstate(over="ignore", invalid="ignore"):
                S = self.origin.S + self.X.predict(Z - self.Z0)
                value, V, H = risk.expansion(S + state.b)
                value += self.beta * float(np.sum(self.weight * shrunk))
            if value <= ceiling - 5e-5 * curvature * float(np.sum(move * move)):
                V, step = risk.balancing(V, H, rounds=1)  # a Newton step of the intercept
                M = self.M0 + self.X.correlate(V - self.origin.V)
                return _State(Z, S, state.b + step, V, M, value)
            curvature *= 2.0
        return None

    def _gap(self) -> float:
        return self.gap(self.state.value, self.state.V, self.state.M)

    def _slows(self, step: int, goal: float) -> bool:
        each = choose.gradient_step_seconds(self.problem, self.X.A.size)
        return self.is_slow(step * each, self._steps_left(step, goal) * each, self.state.Z)

    def _steps_left(self, step: int, goal: float) -> float:
        """As many as the spread of curvatures calls for, or half of what the gap's fall does."""
        low_to_high = sorted(self.curvatures) or [1.0]  # none: all moves drowned in rounding
        low, high = low_to_high[len(low_to_high) // 8], low_to_high[-1]
        start_gap = choose.TUNING.newton_start_gap
        if high >= 100 * low and self.least > start_gap * self.state.value:
            return np.inf
        fallen = np.log(max(self.start / self.least, 1.0 + 1e-3))
        return self.ahead(goal) * float(max(1.4 * np.sqrt(high / low), 0.5 * step / fallen))


def minimise_accelerated(task: Task, at: Point, patience: int = MOST_IDLE) -> tuple[Point, bool]:
    """Accelerated steps from `at` until the gap is below the tolerance or the clock expires.

    Or until, for `patience` gaps, neither the gap nor the objective has fallen. Returns the point
    of the least gap, and whether there is no more to do.
    """
    problem, beta, clock = task.problem, task.beta, task.clock
    lipschitz, momentum = _initial_lipschitz(problem, at), 1.0
    extrapolated, best, least, idle, progress = at, at, np.inf, 0, Progress(patience)
    for step in range(clock.max_iter):
        if step % 10 == 0 or clock.expired:  # a gap costs one more pass over X
            gap = task.measure(at)
            idle = 0 if gap < 0.99 * least else idle + 1
            if gap < least:
                best, least = at, gap
            ends = progress.ended(gap, at.primal(beta)) or idle >= MOST_IDLE
            if (gap <= task.tol and step > 0) or clock.expired or ends:
                break
        clock.n_iter += 1
        found = _accelerated_step(problem, beta, extrapolated, lipschitz, clock.late)
        if found is None:  # time is up, or numbers have no digits left
            break
        new, lipschitz = found
        old = at.primal(beta)
        # Near the optimum objectives agree to rounding while steps still close the gap.
        if new.primal(beta) > old + (1e-10 * abs(old) if extrapolated is at else 0.0):
            if extrapolated is at:
                break
            extrapolated, momentum = at, 1.0
            continue
        following = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        t = (momentum - 1) / following
        Z, S = new.Z + t * (new.Z - at.Z), new.S + t * (new.S - at.S)
        at, momentum = new, following
        extrapolated = problem.at(Z, new.b, S=S)
        lipschitz *= 0.95  # so that steps may grow again
    return (best if least < np.inf else at), least <= task.tol or clock.expired


def _accelerated_step(
    problem: Problem, beta: float, at: Point, lipschitz: float, late: Callable[[], bool]
) -> tuple[Point, float] | None:
    """One proximal step; the curvature bound doubles until it majorises.

    None where that does not come about: in time, or because the loss is no number.
    """
    V = problem.risk.weighted(problem.loss.dual_point(at.F, problem.Y))
    G = problem.design.correlate(V)
    if problem.center is not None:
        G -= problem.center[:, :, None] * V.sum(axis=0)
    if not np.isfinite(G).all():
        return None
    for _ in range(100):  # far more than sound numbers need
        if late() or not np.isfinite(lipschitz):
            return None
        Z = problem.penalty.prox(at.Z + G / lipschitz, beta / lipschitz)
        new = problem.at(Z, at.b)
        D = Z - at.Z
        model = at.loss - np.sum(G * D) + 0.5 * lipschitz * np.sum(D * D)
        if new.loss <= model + 1e-11 * abs(at.loss) or not np.any(D):
            return new, lipschitz
        lipschitz *= 2.0
    return None


def _initial_lipschitz(problem: Problem, at: Point) -> float:
    """Curvature along the gradient: a lower bound that backtracking raises."""
    G, risk = at.M, problem.risk
    change = problem.scores(G)
    curvature = float(np.sum(risk.weighted(risk.curvature(at.F, damping=1.0) * change**2)))
    size = float(np.sum(G * G))
    return max(curvature / size, np.finfo(float).tiny) if size > 0 and curvature > 0 else 1.0
