"""First-order steps: the quick way where tokens are nearly independent.

Rounds of steps, in float32 where they read X, alternate with certificates in float64, from which
the next round starts.
For few outputs of a squared loss tokens move in turn (:mod:`~convexformer.solvers.sweeps`), else,
and at first where many tokens are to come, all at once (:mod:`~convexformer.solvers.spectral`),
which tells sooner whether that will be slow.

Well-conditioned problems are done in less time than one factorisation of Newton's method takes;
others would need thousands of steps. Whenever Newton's method promises to be done sooner it takes
over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.designs import Groups
from ..problem.stopping import until
from . import curved, newton
from .machine import CACHE, CACHE_SPEED, MEMORY_SPEED, SPEED
from .rounds import NEAR, NEWTON_STEP, Round, newton_seconds
from .solution import Clock, Iterate
from .spectral import STEP, TRIAL, Spectral, step_seconds
from .sweeps import Sweeps, suit
from .workspace import Workspace

Array = NDArray[np.float64]

ROUNDING = 1e-15  # relative gap that is as good as none
BELOW = 0.8  # of the gap that is wanted: what a round finds in float32 is nearly what it certifies
FLOAT32 = 2e-7  # part of a gap that changes in float32 leave, times the square of beta_max / beta
NO_DIGITS = 1e-13  # of an objective: by so much it may differ by rounding
SMALL = 1e5  # entries of X below which a factorisation costs nothing
TINY = 5e3  # below which it is welcome even after sweeps, for its digits
FEW = 2e6  # entries of X in a first round of steps,
MORE = 5e6  # or of sweeps, with an intercept: tokens less their means rarely make these slow
LITTLE_WORK = 3e8  # multiply-adds that sweeps may take to prepare for a first round
MUCH_WORK = 3e8  # multiply-adds of a Gram matrix that had better be small
SMALL_PART = 0.1  # of the largest excess: tokens that a first Gram matrix is spared
SOME = 16  # tokens whose sweeps tell as well as steps on all at once whether they will be slow
FEWER = 8  # that are ready soon enough for sweeps once steps have not been slow
FAIR = 0.2  # relative gap that is a good start where tokens enter at once, and cost little
NEARLY = 1.5  # times the gap that is wanted: a round that may reach that may reach it
FIRST_GAIN = 0.1  # by which a round reduces the gap where more tokens are to come


def minimise(
    problem: Problem, beta: float, at: Iterate, tol: float, clock: Clock, work: Workspace
) -> tuple[Iterate, bool]:
    """Rounds of steps from `at`, until the certified relative gap is below `tol` or they slow.

    Returns where they led, and whether there is no more to do.
    """
    size = problem.design.n_samples * problem.design.n_groups * problem.design.dim
    sweeps = suit(problem)
    work.descends &= size >= (TINY if sweeps else SMALL) or curved.suits(problem, 1)
    while work.descends:
        before_point = clock.seconds
        point = problem.dual_point(at.F)
        clock.keep_back(newton.PASSES * (clock.seconds - before_point))
        gap = at.gap(problem, point, beta)
        if (gap <= tol and clock.n_iter > 0) or gap <= ROUNDING or clock.expired:
            clock.record(gap, at.Z)
            return at, True
        groups, everyone = working_groups(problem, beta, at.Z, point, sweeps)
        if len(groups) == 0:  # at beta_max, but for rounding
            clock.record(gap, at.Z)
            return at, gap <= tol
        compact = curved.suits(problem, len(groups))
        by_gram = gram_is_quick(problem, len(groups), sweeps, work.grams.known(groups))
        if by_gram and not (sweeps or compact):  # Newton's method begins with the same point
            break
        clock.record(gap, at.Z)
        work.descends = by_gram or compact or work.columns.take(groups)
        if not work.descends:
            break
        clock.n_iter += 1
        worth, goal = at.primal(beta), max(BELOW * tol, ROUNDING)
        descent: Round | None = None
        ready = SOME if problem.center is None and not at.Z.any() else FEWER
        with until(clock.late):
            if sweeps and (by_gram or everyone or _ready_soon(problem) >= ready):
                work.columns.forget()
                if by_gram:
                    groups, tokens = work.grams.tokens(groups)
                else:
                    tokens = work.tokens.of(groups, goal / gap * beta / problem.beta_max)
                descent = Sweeps(problem, beta, at, point, groups, gap * worth, tokens, not by_gram)
                gain = tokens.leaves * problem.beta_max / beta if everyone else FIRST_GAIN
            elif compact:
                descent = curved.Curved(problem, beta, at, point, groups)
                gain = 0.0 if everyone else FIRST_GAIN
            else:
                descent = Spectral(problem, beta, at, point, work.columns.of(groups))
                gain = FLOAT32 * (problem.beta_max / beta) ** 2 if everyone else FIRST_GAIN
        if descent is None:  # what it reads was not ready in time
            return at, True
        shares = everyone and isinstance(descent, Sweeps)  # other steps lose their momentum
        work.descends = descent.run(_target(goal, gap, gain, shares), goal, clock)
        if work.descends or _is_good_start(problem, beta, point, descent, work):
            found = descent.found()
            falls = _is_better(problem, beta, found, worth, gap)
            at, work.descends = found if falls else at, work.descends and falls
    if problem.loss.quadratic:  # for other losses Newton's method goes on with them
        work.columns.forget()
    work.tokens.forget()
    return at, False


def _target(goal: float, gap: float, gain: float, shares: bool) -> float:
    """The gap that a round is to reach, from `gap`; by `gain`, at the most, it reduces it.

    Where one more round will be due, that may bring tokens, it may be that they share the way.
    """
    if shares and gain * gap > NEARLY * goal:
        return max(float(np.sqrt(goal * gap)), gain * gap)
    return max(goal, gain * gap)


def _is_good_start(
    problem: Problem, beta: float, point: DualPoint, descent: Round, work: Workspace
) -> bool:
    """Whether Newton's method had better start where a slow descent has led.

    As a rule it uses too many tokens there, unless it is near the end, or all may be used, or there
    are no more than where it began.
    """
    n = len(descent.groups)
    at_once = newton.enter_at_once(problem, n) and not work.kernels.keeps_own(n)
    near = descent.least < (FAIR if at_once else NEAR) * descent.value
    n_used, n_before = (int(Z.any(axis=(1, 2)).sum()) for Z in (descent.best, descent.Z0))
    leaps = newton.leaps(problem, beta, point) and not problem.loss.damps
    return near or leaps or 0 < n_used <= n_before


def _is_better(problem: Problem, beta: float, at: Iterate, worth: float, gap: float) -> bool:
    """Whether the objective is below `worth`, or, where digits end, the gap far below `gap`."""
    primal = at.primal(beta)
    if primal < worth or primal > worth * (1 + NO_DIGITS):
        return primal < worth
    return at.gap(problem, problem.dual_point(at.F), beta) < 0.5 * gap


def gram_is_quick(problem: Problem, n_groups: int, sweeps: bool, known: int = 0) -> bool:
    """Whether there is a Gram matrix about when steps begin to be judged.

    That is when Newton's method is done, or when sweeps need read no more of X; of so many groups
    it is `known`.
    """
    N, p, c = problem.design.n_samples, n_groups * problem.design.dim, problem.n_outputs
    if not problem.loss.quadratic:
        newton_time = newton_seconds(problem, p, p * c if problem.loss.joint else p)
        return newton_time < 3 * TRIAL * step_seconds(problem, N * p)
    speed = CACHE_SPEED if 4 * N * p < CACHE else MEMORY_SPEED
    first_steps = TRIAL * 8 * N * p / speed
    if sweeps:
        more = problem.design.gram_work(p) - problem.design.gram_work(known * problem.design.dim)
        more /= 2 if problem.design.halves_gram(p) else 1
        return 2 * p < N and more / SPEED < 2 * c * first_steps
    return problem.design.gram_work(p) / SPEED + 8 * NEWTON_STEP < 2 * (first_steps + TRIAL * STEP)


def _ready_soon(problem: Problem) -> int:
    """Tokens for which it takes little to prepare for sweeps."""
    return int(LITTLE_WORK // (problem.design.n_samples * problem.design.dim**2))


def working_groups(
    problem: Problem, beta: float, Z: Array, point: DualPoint, sweeps: bool
) -> tuple[Groups, bool]:
    """Tokens in use and the worst violators; and whether these are all.

    The first are few, which also tells at little cost that steps will be slow.
    """
    used = np.asarray(Z.any(axis=(1, 2)))
    excess = point.norms.max(axis=1) - beta
    excess[used] = 0.0
    violators = (excess > 0).nonzero()[0]
    N, d, n_violators = problem.design.n_samples, problem.design.dim, len(violators)
    few, n_used = max(8, int(FEW // (N * d))), int(np.count_nonzero(used))
    if sweeps:
        ready = _ready_soon(problem)
        few = max(few, ready)
        if problem.center is not None and ready >= FEWER:
            few = max(few, int(MORE // (N * d)))
    room = max(few, 3 * n_used)
    if sweeps and _dear_gram(problem, n_used + min(room, n_violators)):
        violators = violators[excess[violators] > SMALL_PART * excess.max()]
    if len(violators) > room:
        violators = violators[np.argsort(-excess[violators], kind="stable")[:room]]
    used[violators] = True
    return used.nonzero()[0], len(violators) == n_violators


def _dear_gram(problem: Problem, n_groups: int) -> bool:
    """Whether there is to be a Gram matrix, of a size that some tokens are better spared."""
    work = problem.design.gram_work(n_groups * problem.design.dim)
    return work > MUCH_WORK and gram_is_quick(problem, n_groups, True)
