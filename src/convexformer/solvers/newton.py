r"""Proximal Newton with an active set: the solver.

Each iteration certifies the current point, models the loss to second order on a working set of
tokens (those in use and the worst violators of :math:`\|M_k\| \le \beta`), minimises the model,
and searches the true objective along the step, back and, while the end is far, beyond. For the
squared loss the model is the loss, and the iterations only grow the working set. beta comes down
in stages where that keeps models small, or where a step without them was too far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.stopping import until
from .models import SecondOrderModel, in_samples
from .solution import Clock, Iterate, Progress
from .workspace import Workspace

Array = NDArray[np.float64]

STAGE = {True: 0.1, False: 0.3}  # factor of beta per stage: quadratic losses, others
FEW = 512  # coefficients that may enter at once, or without stages; samples for which all may
LEAST_LEAP = 1e-8  # of beta_max: below, stages show at which beta rounding ends the descent
LAST = 1.5  # times beta: a stage so near would lead nowhere
STAGE_GAP = 0.03  # relative gap that ends a stage on the way
SLOW, FAR = 0.5, 0.9  # of a gap left by a step that may lack digits: near the end, far from it
LONGER = 1.4  # factor of a step that may be too short
SHORT = 0.1  # of a step: beta should have come down in stages
PASSES = 2  # over X, that a model's step takes to be evaluated


def minimise(
    problem: Problem, beta: float, at: Iterate, tol: float, clock: Clock, work: Workspace
) -> Iterate:
    """Iterate from `at` until the certified relative gap is below `tol`, or progress ends.

    Returns the iterate with the least gap.
    """
    damping, stage, before = 1.0, np.inf, np.inf
    best, least, progress = at, np.inf, Progress()
    leap: bool | None = None  # whether beta need not come down in stages
    while True:
        before_point = clock.seconds
        point = problem.dual_point(at.F)
        clock.keep_back(PASSES * (clock.seconds - before_point))
        gap = at.gap(problem, point, beta)
        clock.record(gap, at.Z)
        if gap <= least:
            best, least = at, gap
        if (gap <= tol and clock.n_iter > 0) or clock.expired:
            return best
        if leap is None:
            leap = leaps(problem, beta, point)
            stage = beta if leap else np.inf
        stage_gap = 0.0 if stage == np.inf else gap
        if beta < stage < np.inf:
            stage_gap = at.gap(problem, point, stage)
        if stage_gap <= STAGE_GAP and stage > beta:
            stage = STAGE[problem.loss.quadratic] * float(point.norms.max())
            stage = stage if stage > LAST * beta else beta
            stage_gap, before = at.gap(problem, point, stage), np.inf
            progress = Progress()
        if progress.ended(stage_gap, at.primal(stage)):
            return best
        far = stage_gap > STAGE_GAP and not problem.loss.quadratic
        precise, before = stage_gap > (FAR if far else SLOW) * before, stage_gap
        clock.n_iter += 1
        floor = 0.3 * tol if stage == beta else 0.3 * STAGE_GAP
        worth = at.primal(stage)
        floor, target = floor * worth, max(floor, 0.05 * stage_gap) * worth
        for tighter in (1.0, 1e-2, 1e-4)[int(precise) :]:
            working = _working_set(problem, stage, at.Z, point)
            if not working.any():  # nothing is used, nor wanted, but by rounding
                return best
            model = SecondOrderModel(
                problem, stage, working, at, point, damping, precise, work, clock.late
            )
            Z = None
            with until(clock.late):
                Z = model.minimiser(tighter * target, tighter * floor)
            if Z is None:  # nothing was found in time
                return best
            found, t = _search(problem, stage, at, Z, point, far, clock.late)
            if found is not None or clock.late():
                break
            damping, precise = 1.0, True
        if leap and t < SHORT:  # too far at once: by stages after all
            stage, leap = np.inf, False
        elif found is None:
            return best
        at = found or at
        damping = 0.1 * damping if t >= 1.0 else min(1.0, max(10 * damping, 1e-3))


def leaps(problem: Problem, beta: float, point: DualPoint) -> bool:
    """Whether beta need not come down in stages: what may be used is few, or fewer than samples.

    Stages save work where they keep models small; elsewhere they take two steps for one.
    """
    wanted = int(np.count_nonzero(point.norms > beta)) * problem.design.dim
    few = wanted <= FEW or not in_samples(problem, wanted)
    return few and not problem.loss.quadratic and beta > LEAST_LEAP * problem.beta_max


def enter_at_once(problem: Problem, n_wanted: int) -> bool:
    """Whether samples are so few that so many tokens, all that are wanted, had better enter now.

    Unless these are many themselves, most of which would not stay.
    """
    few = problem.loss.quadratic and 2 * n_wanted <= problem.design.n_samples <= FEW
    return few and in_samples(problem, n_wanted * problem.design.dim)


def _working_set(problem: Problem, beta: float, Z: Array, point: DualPoint) -> NDArray[np.bool_]:
    """Cells in use and the worst violators, ``(groups, cells)``.

    There is room for as many as are in use, or a few. Once those in use are many beside the
    samples all violators enter: in the space of samples a cell costs little before it is used.
    """
    used, excess = problem.penalty.norms(Z) > 0, point.norms - beta
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
    problem: Problem,
    beta: float,
    at: Iterate,
    Z: Array,
    point: DualPoint,
    far: bool,
    late: Callable[[], bool],
) -> tuple[Iterate | None, float]:
    """Backtrack from `Z` towards `at` until the true objective falls as promised, or time is up.

    Where `Z` will do, and the end is `far`, go on beyond it for as long as that is better.
    """
    step, S = Z - at.Z, problem.scores(Z)
    start = at.primal(beta)
    promise = -float(np.vdot(point.M, step)) + beta * (problem.penalty.value(Z) - at.penalty)
    slack = 1e-14 * abs(start)
    if not np.any(step) or promise > slack:
        return None, 0.0
    turn = S - at.S
    lift = problem.moved_intercept(at.F, at.b, turn) - at.b
    best, best_t, reached = None, 0.0, np.inf
    for halvings in range(40):
        t = 0.5**halvings
        Zt, St = (Z, S) if t == 1 else (at.Z + t * step, at.S + t * turn)
        found = Iterate.at(problem, Zt, St, at.b + t * lift)
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
        t = LONGER * best_t
        Zt, St, b = at.Z + t * step, at.S + t * turn, at.b + LONGER * (best.b - at.b)
        value = problem.loss_at(St, b) + beta * problem.penalty.value(Zt)
        if not value < best.primal(beta):  # nor where it is none
            break
        best, best_t = Iterate.at(problem, Zt, St, b), t
    return best, best_t
