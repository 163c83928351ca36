r"""Proximal Newton with an active set: the solver.

Each iteration certifies the current point, models the loss to second order on a working set of
tokens (those in use and the worst violators of :math:`\|M_k\| \le \beta`), minimises the model by
:class:`SecularNewton`, and searches the true objective along the step. For the squared loss the
model is the loss, and the iterations only grow the working set. beta comes down in stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Huber, Problem
from ..problem.designs import Groups
from .secular import GramSystem, KernelSystem, OutlierSystem, SecularNewton, System
from .solution import Clock, Iterate

Array = NDArray[np.float64]

STAGE = {True: 0.1, False: 0.3}  # factor of beta per stage: quadratic losses, others
STAGE_GAP = 0.03  # relative gap that ends a stage on the way
KERNEL_RATIO = 1.2  # kernel mode above this many coefficients per sample


def minimise(problem: Problem, beta: float, at: Iterate, tol: float, clock: Clock) -> Iterate:
    """Iterate from `at` until the certified relative gap is below `tol`, or progress ends."""
    damping, stage = 1.0, np.inf
    while True:
        point = problem.dual_point(at.S + at.b)
        gap = at.gap(problem, point, beta)
        clock.record(gap, at.Z)
        if (gap <= tol and clock.n_iter > 0) or clock.expired:
            return at
        stage_gap = at.gap(problem, point, stage) if np.isfinite(stage) else 0.0
        if stage_gap <= STAGE_GAP and stage > beta:
            stage = max(beta, STAGE[problem.loss.quadratic] * float(point.norms.max()))
            stage_gap = at.gap(problem, point, stage)
        clock.n_iter += 1
        floor = 0.3 * tol if stage == beta else 0.3 * STAGE_GAP
        target = max(floor, 0.05 * stage_gap) * at.primal(problem, stage)
        for tighter in (1.0, 1e-2, 1e-4):
            proposal = _model_minimiser(problem, stage, at, point, damping, tighter * target)
            found, t = _search(problem, stage, at, proposal, point)
            if found is not None:
                break
            damping = 1.0
        else:
            return at
        at = found
        damping = 0.1 * damping if t == 1.0 else min(1.0, max(10 * damping, 1e-3))


def _working_set(problem: Problem, beta: float, Z: Array, point: DualPoint) -> Groups:
    """Groups in use, and the worst violators: as many again, or a few."""
    norms = point.norms.max(axis=1)
    used = np.any(Z, axis=(1, 2))
    violators = np.flatnonzero((norms > beta) & ~used)
    room = max(10, int(np.count_nonzero(used)))
    worst = violators[np.argsort(-norms[violators], kind="stable")[:room]]
    return np.sort(np.concatenate([np.flatnonzero(used), worst]))


def _model_minimiser(
    problem: Problem, beta: float, at: Iterate, point: DualPoint, damping: float, target: float
) -> Array:
    """Minimise the second-order model at `at` over a working set of groups."""
    groups = _working_set(problem, beta, at.Z, point)
    weight = problem.penalty.column(problem.shape[0])[groups]
    cells = problem.penalty.cells(problem.n_outputs) if problem.loss.joint else 1
    radius = beta * np.repeat(weight, cells, axis=1).ravel()
    eta = (problem.penalty.norms(at.Z[groups]) / weight).ravel()
    if _few_outliers(problem, at):
        delta, R = problem.loss.delta, np.abs(problem.Y - at.S - at.b)
        heavy = np.where(problem.weight > 0, problem.weight, 1.0)  # weightless: never in use
        limit = np.repeat(delta * heavy[None], problem.n_outputs, axis=0)
        beyond = beta * np.maximum(R - delta, 0.0).T / limit
        radius, eta = np.append(radius, limit), np.append(eta, beyond)
        systems = _outlier_systems(problem, beta, groups)
    else:
        systems = _systems(problem, beta, groups, at, point, damping)
    z = SecularNewton(systems, radius, beta, at.loss).minimise(eta, target)
    Z = np.zeros_like(at.Z)
    Z[groups] = _unpack(z, problem, len(groups))
    return Z


def _few_outliers(problem: Problem, at: Iterate) -> bool:
    if not isinstance(problem.loss, Huber) or problem.design.n_samples > 4000:
        return False
    return np.count_nonzero(np.abs(problem.Y - at.S - at.b) > problem.loss.delta) <= 1500


def _outlier_systems(problem: Problem, beta: float, groups: Groups) -> list[System]:
    return [
        OutlierSystem(problem.design, groups, problem.center, problem.weight, y, j, beta)
        for j, y in enumerate(problem.Y.T)
    ]


def _pack(Z: Array, joint: bool) -> Array:
    """Coefficients ``(groups, d, c)`` as a system orders them: ``(p, outputs)``."""
    return Z.transpose(0, 2, 1).reshape(-1, 1) if joint else Z.reshape(-1, Z.shape[2])


def _unpack(z: Array, problem: Problem, n_groups: int) -> Array:
    if not problem.loss.joint:
        return z
    return z.reshape(n_groups, problem.n_outputs, -1).transpose(0, 2, 1)


def _systems(
    problem: Problem, beta: float, groups: Groups, at: Iterate, point: DualPoint, damping: float
) -> list[System]:
    F, joint = at.S + at.b, problem.loss.joint
    n_coefficients = len(groups) * problem.design.dim
    if not joint and n_coefficients > KERNEL_RATIO * problem.design.n_samples:
        W = problem.weight[:, None] * problem.loss.curvature(F, problem.Y, damping)
        shared = problem.loss.quadratic
        outputs = [slice(None)] if shared else [slice(j, j + 1) for j in range(W.shape[1])]
        return [
            KernelSystem(
                problem.design,
                groups,
                problem.center,
                W[:, 0 if shared else part.start],
                point.V[:, part],
                at.S[:, part],
                beta,
            )
            for part in outputs
        ]
    Q = problem.quadratic(groups, F, damping)
    G, Z = _pack(point.M[groups], joint), _pack(at.Z[groups], joint)
    cells = len(groups) * (problem.penalty.cells(problem.n_outputs) if joint else 1)
    if len(Q) == 1:
        return [GramSystem(Q[0], G + Q[0] @ Z, cells, beta)]
    columns = [slice(j, j + 1) for j in range(len(Q))]
    return [GramSystem(q, G[:, j] + q @ Z[:, j], cells, beta) for q, j in zip(Q, columns)]


def _search(
    problem: Problem, beta: float, at: Iterate, Z: Array, point: DualPoint
) -> tuple[Iterate | None, float]:
    """Backtrack from `Z` towards `at` until the true objective falls as promised."""
    step, S = Z - at.Z, problem.scores(Z)
    start, old, new = at.primal(problem, beta), problem.penalty.value(at.Z), problem.penalty.value(Z)
    promise = -float(np.sum(point.M * step)) + beta * (new - old)
    slack = 1e-14 * abs(start)
    if not np.any(step) or promise > slack:
        return None, 0.0
    best, best_t = None, 0.0
    for halvings in range(40):
        t = 0.5**halvings
        found = Iterate.at(problem, Z if t == 1 else at.Z + t * step, at.S + t * (S - at.S), at.b)
        value = found.primal(problem, beta)
        if best is not None and value >= reached:
            break
        if value <= start + 1e-4 * t * promise + slack:
            best, best_t, reached = found, t, value
            if t == 1:
                break
    return best, best_t
