"""A start from what some samples tell, where a pass over X takes long.

Which tokens are wanted first shows in the correlations of a part of the samples. The Gram matrix of
these tokens, read by themselves, leads to a point, and one pass over X then does for all: scores,
their dual point, and the largest correlation of the targets, that a certificate is due to report.
Tokens that were missed show in it, and the solve goes on from there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.stopping import until
from . import descent, sweeps
from .ready import from_gram
from .solution import Clock, Iterate, Solution
from .workspace import Workspace

Array = NDArray[np.float64]

PART, BLOCKS = 1 / 8, 8  # of the samples, and blocks of them that are spread over all
LEAST = 1000  # of which that part is to consist, or it tells little


def fits(problem: Problem) -> bool:
    """Whether a pass over X is worth saving, and none has been made, for means or `beta_max`."""
    fresh = not (problem.intercept or problem.knows_beta_max)
    enough = PART * problem.design.n_samples >= LEAST
    one = problem.n_outputs == 1
    return fresh and enough and one and problem.follows and sweeps.suit(problem)


def solve(
    problem: Problem, beta: float, tol: float, clock: Clock, work: Workspace
) -> Solution | None:
    """The optimum for the tokens that seem to be wanted; None where these are none, or too many."""
    at = Iterate.start(problem, None, beta)
    V = problem.null_direction
    norms = _expected_norms(problem, V)
    M = np.zeros(problem.shape)
    groups, _ = descent.working_groups(problem, beta, at.Z, DualPoint(V, M, norms), True)
    if not descent.gram_is_quick(problem, len(groups), True):  # but of the worst violators
        excess = norms[:, 0] - beta
        groups = np.flatnonzero(excess > descent.SMALL_PART * excess.max())
    if len(groups) == 0 or not descent.gram_is_quick(problem, len(groups), True):
        return None
    clock.n_iter += 1
    equations = None
    with until(clock.late):
        equations = work.grams.equations(groups, problem.unweighted(V)[:, 0])
    if equations is None:
        return None
    Q, q = equations
    M[groups] = q.reshape(len(groups), -1, 1)
    norms = problem.penalty.dual_norms(M)
    tokens = from_gram(Q, problem.design.dim)
    point = DualPoint(V, M, norms)
    sweeping = sweeps.Sweeps(problem, beta, at, point, groups, at.loss, tokens, False)
    goal = 0.9 * descent.BELOW * tol
    if not sweeping.run(max(goal, tokens.leaves * float(norms.max()) / beta), goal, clock):
        return None
    Z = at.Z
    Z[groups] = sweeping.best
    problem.follow(Z)
    certificate = problem.estimate(Z, at.b, beta)
    gap = certificate.relative_gap
    clock.record(gap, Z)
    return Solution(Z, at.b, certificate, clock.status(gap <= tol), clock.n_iter, clock.trace)


def _expected_norms(problem: Problem, V: Array) -> Array:
    """Dual norms of the correlations of `V` with all samples, ``(groups, 1)``, expected from some.

    Correlations of m samples have the square :math:`m^2 s^2 + m t`, by what samples have in common
    and by chance; blocks share only the former, hence tell them apart, up to two deviations of
    the latter, which among many tokens some show that nobody wants.
    """
    X, N = problem.design.float64, problem.design.n_samples
    assert X is not None  # or there was no pass to be saved
    step = N // BLOCKS
    size = max(1, int(PART * step))
    some = [slice(start, start + size) for start in range(0, BLOCKS * step, step)]
    M = np.stack([V[rows, 0] @ X[rows] for rows in some]).reshape(BLOCKS, *problem.shape[:2])
    more = N / (BLOCKS * size)
    with np.errstate(over="ignore", invalid="ignore"):  # then nothing is expected
        whole, parts = np.sum(M.sum(axis=0) ** 2, axis=1), np.sum(M**2, axis=(0, 2))
        chance = np.clip((BLOCKS * parts - whole) / (BLOCKS - 1), 0.0, whole)
        common = np.maximum(whole - (1 + np.sqrt(8 / M.shape[2])) * chance, 0.0)
        norms = np.sqrt(more**2 * common + more * (whole - common))
    return norms[:, None] / problem.penalty.column(len(norms))
