r"""Accelerated proximal gradient with restart: the fallback and the cross-check.

.. math:: Z^+ = \mathrm{prox}_{\beta/L}\bigl(U + X^\top V(U) / L\bigr)

with the intercept minimised out at every step. First-order: cheap and memory-light, slow where
tokens are correlated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from .solution import Clock, Iterate, Progress

Array = NDArray[np.float64]

CHECK_EVERY = 10  # iterations between certificates, which cost one more pass over X
MOST_DOUBLINGS = 100  # of the curvature bound within a step: by far more than sound numbers need
PATIENCE = 50  # certificates without a smaller gap before giving up
STILL = 10  # where Newton's method has stalled and the objective does not fall either
ROUNDING = 1e-10  # relative rise of an objective that rounding explains, where means cancel


def minimise(
    problem: Problem, beta: float, at: Iterate, tol: float, clock: Clock, still: int = PATIENCE
) -> Iterate:
    """Iterate from `at` until the certified relative gap is below `tol` or the clock expires.

    Or until, for `still` certificates, neither the gap nor the objective has fallen.
    """
    lipschitz, momentum = _initial_lipschitz(problem, at), 1.0
    extrapolated, best, least, idle, progress = at, at, np.inf, 0, Progress(still)
    for step in range(clock.max_iter):
        if step % CHECK_EVERY == 0 or clock.expired:
            before = clock.seconds
            gap = at.gap(problem, problem.dual_point(at.F), beta)
            clock.keep_back(clock.seconds - before)
            clock.record(gap, at.Z)
            idle = 0 if gap < 0.99 * least else idle + 1
            if gap < least:
                best, least = at, gap
            ends = progress.ended(gap, at.primal(beta)) or idle >= PATIENCE
            if (gap <= tol and step > 0) or clock.expired or ends:
                break
        clock.n_iter += 1
        found = _step(problem, beta, extrapolated, lipschitz, clock.late)
        if found is None:  # time is up, or numbers have no digits left
            break
        new, lipschitz = found
        old = at.primal(beta)
        # Near the optimum objectives agree to rounding while steps still close the gap.
        if new.primal(beta) > old + (ROUNDING * abs(old) if extrapolated is at else 0.0):
            if extrapolated is at:
                break
            extrapolated, momentum = at, 1.0
            continue
        following = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        t = (momentum - 1) / following
        Z, S = new.Z + t * (new.Z - at.Z), new.S + t * (new.S - at.S)
        at, momentum = new, following
        extrapolated = Iterate.at(problem, Z, S, new.b)
        lipschitz *= 0.95  # let the step grow again where curvature is lower
    return best if least < np.inf else at


def _step(
    problem: Problem, beta: float, at: Iterate, lipschitz: float, late: Callable[[], bool]
) -> tuple[Iterate, float] | None:
    """One proximal step; the curvature bound doubles until it majorises.

    None where that does not come about: in time, or because the loss is no number.
    """
    V = problem.weight[:, None] * problem.loss.dual_point(at.F, problem.Y)
    G = problem.design.correlate(V)
    if problem.center is not None:
        G -= problem.center[:, :, None] * V.sum(axis=0)
    if not np.isfinite(G).all():
        return None
    for _ in range(MOST_DOUBLINGS):
        if late() or not np.isfinite(lipschitz):
            return None
        Z = problem.penalty.prox(at.Z + G / lipschitz, beta / lipschitz)
        new = Iterate.at(problem, Z, problem.scores(Z), at.b)
        D = Z - at.Z
        model = at.loss - np.sum(G * D) + 0.5 * lipschitz * np.sum(D * D)
        if new.loss <= model + 0.1 * ROUNDING * abs(at.loss) or not np.any(D):
            return new, lipschitz
        lipschitz *= 2.0
    return None


def _initial_lipschitz(problem: Problem, at: Iterate) -> float:
    """Curvature along the gradient: a lower bound that backtracking raises."""
    G = problem.dual_point(at.F).M
    H = problem.curvature(at.F, damping=1.0)
    change = problem.scores(G)
    curvature = float(np.sum(problem.weight[:, None] * H * change**2))
    size = float(np.sum(G * G))
    return max(curvature / size, np.finfo(float).tiny) if size > 0 and curvature > 0 else 1.0
