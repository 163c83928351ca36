"""The entry points: one solve, and a warm-started path of solves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..problem import Certificate, Problem
from ..problem.points import plain
from . import batched, descent, early, newton, proximal, shared, sweeps
from .interruption import interruption
from .solution import FINEST, Callback, Clock, Iterate, Solution, Status
from .trail import Trail
from .workspace import Workspace

Array = NDArray[np.float64]
Method = Literal["auto", "newton", "proximal"]
METHODS = get_args(Method)

MANY_OUTPUTS = sweeps.MOST_OUTPUTS  # beyond which their principal axes are worth finding


def solve(
    problem: Problem,
    beta: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    method: Method = "auto",
    callback: Callback | None = None,
    on_interrupt: str = "raise",
) -> Solution:
    """Minimise `problem` at penalty strength `beta` to a certified relative gap.

    Parameters
    ----------
    problem : Problem
    beta : float
        Absolute penalty strength, positive (0 only where ``problem.beta_max`` is 0).
    tol : float
        Relative duality gap at which to stop.
    max_iter : int
        Most iterations; for every output, where outputs are problems of their own.
    max_time : float, optional
        Seconds, kept to within the larger of .3 s and two passes over X, which are what the
        certificate of an unfinished solve takes.
    init : Solution, optional
        Warm start.
    method : {"auto", "newton", "proximal"}
        "auto" is Newton, with proximal steps where Newton stalls; many outputs of a squared loss,
        each with cells of its own, descend together first. The nuclear penalty is always minimised
        by proximal steps, and a softmax over two classes as the logistic problem that it is.
    callback : callable, optional
        Called with every :class:`TracePoint`.
    on_interrupt : {"raise", "keep"}
        What Ctrl-C does: raise KeyboardInterrupt, or end with the best iterate so far, its true gap
        and ``Status.INTERRUPTED``. A second Ctrl-C always raises. Signals reach the main thread
        alone.

    Returns
    -------
    Solution
        With its true gap, and a status that says why it is above the tolerance where it is.
    """
    with interruption(on_interrupt) as asked:
        clock = Clock(max_iter, max_time, callback, asked)
        return _solve(problem, beta, tol, clock, init, method, _workspace(problem))


def _workspace(problem: Problem) -> Workspace:
    return Workspace(problem if problem.conditioned is None else problem.conditioned.problem)


def _solve(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> Solution:
    if not (0 <= beta < np.inf and (beta > 0 or problem.beta_max == 0)):
        raise ValueError(f"beta must be a positive number, got {beta!r}.")
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}.")
    if init is not None and init.Z.shape != problem.shape:
        raise ValueError(f"init has shape {init.Z.shape}, the problem {problem.shape}.")
    if init is not None and not (np.isfinite(init.Z).all() and np.isfinite(init.intercept).all()):
        raise ValueError(
            "init contains NaN or infinity. Start from a finite solution, or from none."
        )
    if init is not None and init.Z.dtype != np.float64:
        init = replace(init, Z=plain(init.Z), intercept=plain(init.intercept))
    units, aim = problem.conditioned, max(tol, FINEST)
    if units is None:
        Z, b = _find(problem, beta, aim, clock, init, method, work)
    else:
        if init is not None:
            Z, b = units.inner(init.Z, init.intercept)
            init = replace(init, Z=Z, intercept=b)
        found = _find(units.problem, units.beta(beta), aim, clock, init, method, work)
        Z, b = units.outer(*found)
    # Without time left the quick bounds will do, which hold too but round more.
    certificate = problem.certificate(Z, b, beta, np.inf if clock.late() else tol)
    status = clock.status(certificate.relative_gap <= tol)
    if not clock.trace:
        clock.record(certificate.relative_gap, Z)
    return Solution(Z, b, certificate, status, clock.n_iter, clock.trace)


def _find(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> tuple[Array, Array]:
    """Coefficients and intercept of the optimum, but for the tolerance."""
    if method == "auto" and init is None and not clock.expired and early.fits(problem):
        init = early.solve(problem, beta, tol, clock, work)
        if init is not None and init.converged and beta < problem.beta_max:
            return init.Z, init.intercept
    if method == "auto" and shared.fits(problem) and beta < problem.beta_max:
        init = shared.solve(problem, beta, tol, clock, init, work)
        if init.converged or clock.expired:
            return init.Z, init.intercept
    # At beta_max and above nothing is used; other outputs would differ from it by rounding.
    if beta >= problem.beta_max:
        way = _solve_one
    elif problem.separable and problem.n_outputs > 1:
        way = _solve_outputs
    elif problem.loss.quadratic and problem.n_outputs > MANY_OUTPUTS:
        way = _solve_rotated
    else:
        way = _solve_one if problem.as_logistic is None else _solve_two_classes
    return way(problem, beta, tol, clock, init, method, work)


def _solve_outputs(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> tuple[Array, Array]:
    """Outputs one by one; the trace has the gap of all of them after each.

    Where they share their curvature they descend together first.
    """
    if method == "auto" and sweeps.suit(problem):
        at = Iterate.start(problem, init, beta)
        at, done = descent.minimise(problem, beta, at, 0.9 * tol, clock, work)
        Z, b = at.Z, problem.outer_intercept(at.Z, at.b)
        if done:
            return Z, b
        init = Solution(Z, b, problem.estimate(Z, b, beta), Status.ITERATIONS)
    if method == "auto" and batched.suits(problem):
        together = batched.Batched(problem, beta, 0.9 * tol, clock, work)
        Z, b, known = together.minimise(init)
        left = [j for j, c in enumerate(known) if c.relative_gap > tol]
        max_iter = clock.max_iter - together.rounds
        work.descends &= not left  # first-order steps have been slow on these
    else:
        Z = np.zeros(problem.shape) if init is None else init.Z.copy()
        b = problem.outer_intercept(Z, problem.null_intercept) if init is None else init.intercept
        b, left, max_iter = b.copy(), list(range(problem.n_outputs)), clock.max_iter
        known = list[Certificate]()
        for j in left:
            if clock.late():
                return Z, b
            known.append(problem.output(j).estimate(Z[:, :, [j]], b[[j]], beta))
    for j in left:
        if clock.late() or (clock.trace and max_iter <= 0):
            break
        part, own = problem.output(j), clock.part(max_iter)
        start = Solution(Z[:, :, [j]], b[[j]], known[j], Status.ITERATIONS)
        Zj, bj = _solve_one(part, beta, tol, own, start, method, work)
        Z[:, :, [j]], b[[j]] = Zj, bj
        known[j] = part.estimate(Zj, bj, beta)
        primal, dual = sum(c.primal for c in known), sum(c.dual for c in known)
        clock.n_iter += own.n_iter
        clock.record(Certificate(primal, dual, beta, problem.beta_max).relative_gap, Z)
    return Z, b


def _solve_rotated(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> tuple[Array, Array]:
    """Along the principal axes of the targets: fewer outputs wherever targets depend linearly."""
    axes = problem.principal_axes
    if init is not None:
        init = replace(init, Z=init.Z @ axes, intercept=init.intercept @ axes)
    Z, b = _solve_one(problem.rotated(axes), beta, tol, clock, init, method, work)
    Z, b = Z @ axes.T, b @ axes.T
    S = problem.scores(Z)  # across the axes the best intercept is the targets' own mean
    return Z, problem.outer_intercept(Z, problem.settle(Z, S, b)[0])


def _solve_two_classes(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> tuple[Array, Array]:
    """By the one output that two classes come to: their scores, and who wins, differ in sign."""
    assert problem.as_logistic is not None
    one, scale = problem.as_logistic
    if init is not None:
        Z, b = (-np.diff(part, axis=-1) for part in (init.Z, init.intercept))
        init = replace(init, Z=Z, intercept=b)
    Z, b = _solve_one(one, scale * beta, tol, clock, init, method, work)
    both = np.array([0.5, -0.5])
    return Z * both, b * both


def _solve_one(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    method: Method,
    work: Workspace,
) -> tuple[Array, Array]:
    if beta >= problem.beta_max:
        at = Iterate.start(problem, None, beta)
        clock.record(at.gap(problem, problem.dual_point(at.F), beta), at.Z)
    else:
        start = Iterate.start(problem, init, beta)
        at = _minimise(problem, beta, start, tol, clock, method, work)
    return at.Z, problem.outer_intercept(at.Z, at.b)


def _minimise(
    problem: Problem,
    beta: float,
    at: Iterate,
    tol: float,
    clock: Clock,
    method: Method,
    work: Workspace,
) -> Iterate:
    # The final certificate is computed afresh: aim a little below what it must show.
    tol = 0.9 * tol
    if not problem.penalty.euclidean:
        method = "proximal"
    if method == "auto":
        at, done = descent.minimise(problem, beta, at, tol, clock, work)
        if done:
            return at
    if method != "proximal":
        if not np.any(at.Z):
            for loss in problem.loss.easier(problem.Y):
                eased = problem.with_loss(loss)
                start = Iterate.at(eased, at.Z, at.S, at.b)
                at = newton.minimise(
                    eased, beta * eased.beta_max / problem.beta_max, start, 0.1, clock, work
                )
        at = newton.minimise(problem, beta, Iterate.at(problem, at.Z, at.S, at.b), tol, clock, work)
    stalls = method == "auto" and not clock.expired and clock.trace[-1].relative_gap > tol
    if method == "proximal" or stalls:
        still = proximal.STILL if stalls else proximal.PATIENCE
        at = proximal.minimise(problem, beta, at, tol, clock, still)
    return at


def path_betas(problem: Problem, n_betas: int = 40, eps: float = 1e-3) -> Array:
    """Geometric sequence from ``beta_max`` down to ``eps * beta_max``."""
    return problem.beta_max * np.geomspace(1.0, eps, n_betas)


def solve_path(
    problem: Problem,
    betas: Iterable[float],
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    method: Method = "auto",
    callback: Callback | None = None,
    on_interrupt: str = "raise",
) -> Iterator[Solution]:
    """Solve for every beta in turn, each started from the last; `max_time` is for all of them.

    With ``on_interrupt="keep"`` Ctrl-C ends the path with the best iterate of the beta it met.
    """
    work, started, trail = _workspace(problem), Clock(max_iter, max_time), Trail(problem)
    for beta in betas:
        with interruption(on_interrupt) as asked:  # not while whoever asks for points has the turn
            clock = Clock(max_iter, started.left, callback, asked)
            foresees = problem.conditioned is None and not clock.late()
            start = trail.ahead(beta) if foresees else None
            init = _solve(problem, beta, tol, clock, start or init, method, work)
            trail.add(init)
            ends = asked()
        yield init
        if ends:
            return
