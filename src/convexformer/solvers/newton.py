r"""Proximal Newton with a working set.

Each iteration certifies the current point, models the loss to second order on a working set of
tokens (those in use and the worst violators of :math:`\|M_k\| \le \beta`), minimises the model,
and searches the true objective along the step, back and, while the end is far, beyond. For the
squared loss the model is the loss, and the iterations only grow the working set. beta comes down
in stages where that keeps models small, or where a step without stages was too far.

`minimise_compiled` does the same in compiled code, for a logistic loss or a softmax on few and
narrow tokens, or on mostly zero X: there arithmetic takes less time than calls of NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..problem import Point, Problem
from ..problem.arrays import Array, Groups
from ..problem.stopping import until
from . import choose
from .newton_cg import FactoredStart
from .quadratic_model import SecondOrderModel, in_samples
from .solution import Clock, Progress, Task
from .working_set import Round, rounds

FEW = 512  # coefficients that may enter at once, or without stages; samples for which all may
FAR_GAP = 0.1  # relative gap from which L-BFGS leads nearer
STAGE_GAP = 0.03  # relative gap that ends a stage on the way


def minimise(task: Task, at: Point) -> tuple[Point, bool]:
    """Iterate from `at`; returns the point of the least gap, and whether there is no more to do."""
    problem = task.problem
    if not np.any(at.Z):  # losses that lead up to this one
        for loss in problem.loss.easier(problem.Y):
            eased = problem.with_loss(loss)
            beta = task.beta * eased.beta_max / problem.beta_max
            start = eased.at(at.Z, at.b, S=at.S)
            at = _minimise(replace(task, problem=eased, beta=beta, tol=0.1), start)
            at = problem.at(at.Z, at.b, S=at.S)
    at = _minimise(task, _nearer(task, at))
    return at, task.clock.expired or at.gap(task.beta) <= task.tol


def _nearer(task: Task, at: Point) -> Point:
    """L-BFGS steps from `at` where Newton's steps are dear, for a loss whose model changes."""
    problem, wanted = task.problem, at.wanted(task.beta)
    seconds = choose.newton_seconds(problem, len(wanted) * problem.design.dim)
    dear = seconds > choose.TUNING.cg_least_newton_seconds and task.work.columns.take(wanted)
    if problem.loss.quadratic or problem.loss.damps or not dear or at.gap(task.beta) <= FAR_GAP:
        return at
    task.clock.n_iter += 1
    with until(task.clock.late):
        at = FactoredStart(task, at, task.work.columns.of(wanted), FAR_GAP).run()
    return at


def _minimise(task: Task, at: Point) -> Point:
    problem, beta, tol, clock = task.problem, task.beta, task.tol, task.clock
    damping, before, best, least, progress = 1.0, np.inf, at, np.inf, Progress()
    # A squared loss comes down in stages of beta, and others where a first step goes too far.
    few = np.count_nonzero(at.norms > beta) <= 1000  # cells, and so large is a Hessian
    leaps = few and not problem.loss.quadratic and beta > 1e-8 * problem.beta_max
    stage = beta if leaps else np.inf
    while True:
        # 1. Certify the point, and end or begin a stage.
        gap = task.measure(at)
        if gap <= least:
            best, least = at, gap
        if (gap <= tol and clock.n_iter > 0) or clock.expired:
            return best
        stage_gap = 0.0 if stage == np.inf else at.gap(stage)
        if stage_gap <= STAGE_GAP and stage > beta:
            stage = (0.1 if problem.loss.quadratic else 0.3) * float(at.norms.max())
            stage = stage if stage > 1.5 * beta else beta  # a nearer one would lead nowhere
            stage_gap, before = at.gap(stage), np.inf
            progress = Progress()
        if progress.ended(stage_gap, at.primal(stage)):
            return best
        far = stage_gap > STAGE_GAP and not problem.loss.quadratic
        grows = far or (problem.loss.quadratic and stage_gap > 1e-4)  # the working set, still
        precise, before = not grows and stage_gap > 0.5 * before, stage_gap
        clock.n_iter += 1
        floor = 0.3 * tol if stage == beta else 0.3 * STAGE_GAP
        worth = at.primal(stage)
        floor, target = floor * worth, max(floor, 0.05 * stage_gap) * worth
        # 2. Minimise the model; more precisely where it gives no descent.
        for tighter in (1.0, 1e-2, 1e-4)[int(precise) :]:
            working = _working_set(problem, stage, at)
            if not working.any():  # nothing is used, nor wanted, but by rounding
                return best
            model = SecondOrderModel(replace(task, beta=stage), working, at, damping, precise)
            Z = None
            with until(clock.late):
                Z = model.minimiser(tighter * target, tighter * floor)
            if Z is None:  # nothing was found in time
                return best
            # 3. Search along the step.
            found, t = _search(stage, at, Z, far, clock.late)
            if found is not None or clock.late():
                break
            damping, precise = 1.0, True
        if leaps and t < 0.1:
            stage, leaps = np.inf, False
        elif found is None:
            return best
        at = found or at
        damping = 0.1 * damping if t >= 1.0 else min(1.0, max(10 * damping, 1e-3))


def enter_at_once(problem: Problem, n_wanted: int) -> bool:
    """Whether samples are so few that so many groups, all that are wanted, had better enter now.

    Unless these are many themselves, most of which would not stay.
    """
    few = problem.loss.quadratic and 2 * n_wanted <= problem.design.n_samples <= FEW
    return few and in_samples(problem, n_wanted * problem.design.dim)


def _working_set(problem: Problem, beta: float, at: Point) -> NDArray[np.bool_]:
    """Cells in use and the worst violators, ``(groups, cells)``.

    There is room for as many as are in use, or a few. Once those in use are many beside the
    samples all violators enter: in the space of samples a cell costs little before it is used.
    """
    used, excess = problem.penalty.norms(at.Z) > 0, at.norms - beta
    violators = ~used & (excess > 0)
    n_used, d = int(np.count_nonzero(used)), problem.design.dim
    n_wanted = n_used + int(np.count_nonzero(violators))
    if problem.loss.joint:
        room = max(20, n_used // 2)
    elif in_samples(problem, 2 * n_used * d) or enter_at_once(problem, n_wanted):
        return used | violators
    else:
        room = max(1 + FEW // d, n_used)
    worst = np.argsort(-np.where(violators, excess, 0.0), axis=None, kind="stable")[:room]
    used.flat[worst] |= violators.flat[worst]
    return used


def _search(
    beta: float, at: Point, Z: Array, far: bool, late: Callable[[], bool]
) -> tuple[Point | None, float]:
    """Backtrack from `Z` towards `at` until the true objective falls as promised, or time is up.

    Where `Z` will do, and the end is `far`, go on beyond it for as long as that is better.
    """
    problem = at.problem
    step, S = Z - at.Z, problem.scores(Z)
    start = at.primal(beta)
    promise = -float(np.vdot(at.M, step)) + beta * (problem.penalty.value(Z) - at.penalty)
    slack = 1e-14 * abs(start)
    if not np.any(step) or promise > slack:
        return None, 0.0
    turn = S - at.S
    lift = problem.risk.moved_intercept(at.F, at.b, turn) - at.b
    best, best_t, reached = None, 0.0, np.inf
    for halvings in range(40):
        t = 0.5**halvings
        Zt, St = (Z, S) if t == 1 else (at.Z + t * step, at.S + t * turn)
        found = problem.at(Zt, at.b + t * lift, S=St)
        value = found.primal(beta)
        if best is not None and value >= reached:
            break
        if value <= start + 1e-4 * t * promise + slack:
            best, best_t, reached = found, t, value
            if t == 1:
                break
        if late():
            break
    # Curvature falls on the way to better fits.
    while best is not None and far and best_t >= 1 and not late():
        t = 1.4 * best_t
        Zt, St, b = at.Z + t * step, at.S + t * turn, at.b + 1.4 * (best.b - at.b)
        value = problem.risk.value(St + b) + beta * problem.penalty.value(Zt)
        if not value < best.primal(beta):  # also where it is not a number
            break
        best, best_t = problem.at(Zt, b, S=St), t
    return best, best_t


# Compiled ---------------------------------------------------------------------------------------


def minimise_compiled(task: Task, at: Point) -> tuple[Point, bool]:
    """Rounds of Newton's method in compiled code; and whether there is no more to do."""
    return rounds(task, at, _make_compiled_round)


def _make_compiled_round(
    task: Task, at: Point, groups: Groups, gain: float
) -> CompiledNewton | None:
    fits = choose.compiles(task.problem, len(groups))
    return CompiledNewton(task, at, groups) if fits else None


class CompiledNewton(Round):
    """One round on the tokens of `groups`."""

    gain = 0.0

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        problem, (n, d, c) = self.problem, self.Z0.shape
        columns = problem.design.listed(self.groups)
        center = np.zeros(n * d) if problem.center is None else problem.center[self.groups]
        limit = np.repeat(self.beta * self.penalty.column(n), problem.penalty.cells(c), axis=1)
        Z, move = np.array(self.Z0.transpose(0, 2, 1), order="C"), np.zeros(c)
        done, gap = _core.newton(
            (problem.design.n_samples, n, d, c, limit.size, *columns.sizes),
            *columns.X,
            center,
            np.ascontiguousarray(problem.Y.T),
            problem.weight,
            limit,
            np.ascontiguousarray(self.origin.F.T),
            Z,
            move,
            problem.intercept,
            target,
            clock.slice(1.0),  # seconds: nothing stops this call
        )
        self.best, self.best_b = Z.transpose(0, 2, 1), self.origin.b + move
        self.least = gap * self.value  # an estimate: the next gap in float64 tells
        return bool(done)
