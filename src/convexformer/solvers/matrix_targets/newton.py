"""Matrix targets: proximal Newton, whose models are minimised by Douglas-Rachford splitting.

Newton's method models the loss, at the current point, as a weighted squared loss of every target
(:class:`~convexformer.problem.moments.Moments`), and searches the true objective along the step to
the model's minimiser. For the squared loss the model is the loss, and one is enough.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...problem import Huber, Point
from ...problem.moments import Moments
from ...problem.sequence import SequenceProblem, from_tokens, to_tokens
from ..solution import Callback, Clock, Solution, interruption
from .douglas_rachford import Done, minimise_model

Array = NDArray[np.float64]

MATRIX_STRATEGY = "douglas-rachford"  # of every solution
MODEL_GAP = 0.05  # of the true gap: to what gap a Newton model is minimised
FARTHEST = 100.0  # scores (or deltas of Huber) that a target of a model is away at most
MOST_HALVINGS = 40  # of a Newton step
SAME = 1e-12  # relative difference of objectives that may be rounding


def solve_sequence(
    problem: SequenceProblem,
    beta: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    callback: Callback | None = None,
    on_interrupt: str = "raise",
) -> Solution:
    """Minimise `problem` at penalty strength `beta` to a certified relative gap.

    Parameters
    ----------
    problem : SequenceProblem
    beta : float
        Absolute penalty strength, positive (0 only where ``problem.beta_max`` is 0).
    tol : float
        Relative duality gap at which to stop.
    max_iter : int
    max_time : float, optional
        Seconds, kept to within the larger of .3 s and two passes over X.
    init : Solution, optional
        Warm start.
    callback : callable, optional
        Called with every :class:`TracePoint`; what is active are matrices ``Z_jl``.
    on_interrupt : {"raise", "keep"}
        What Ctrl-C does, as for :func:`~convexformer.solvers.solve`.

    Returns
    -------
    Solution
        ``Z (d, c, n, n)`` with exactly feasible row sums; its true gap, and a status that says
        why it is above the tolerance where it is.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> from convexformer.solvers.matrix_targets import solve_sequence
    >>> X = np.random.default_rng(0).normal(size=(30, 4, 2))
    >>> problem = SequenceProblem(X, X[:, ::-1])
    >>> solution = solve_sequence(problem, 0.1 * problem.beta_max)
    >>> solution.certificate.relative_gap <= 1e-6
    True
    """
    if not (np.isfinite(beta) and beta >= 0 and (beta > 0 or problem.beta_max == 0)):
        raise ValueError(f"beta must be a positive number, got {beta!r}.")
    if init is not None and init.Z.shape != problem.shape:
        raise ValueError(f"init has shape {init.Z.shape}, the problem {problem.shape}.")
    with interruption(on_interrupt) as asked:
        clock = Clock(max_iter, max_time, callback, asked)
        return _solve(problem, beta, tol, clock, init)


def _solve(
    problem: SequenceProblem, beta: float, tol: float, clock: Clock, init: Solution | None
) -> Solution:
    if beta >= problem.beta_max:
        Z = np.zeros(problem.shape)
    else:
        start = np.zeros(problem.shape) if init is None else problem.feasible(init.Z)
        minimise = _quadratic if problem.loss.quadratic else _newton
        T = minimise(problem, beta, to_tokens(start), tol, clock)
        Z = problem.feasible(from_tokens(T))
    b = problem.best_intercept(Z)
    # Without time left the quick bounds must do: they hold too, but allow for more rounding.
    certificate = problem.certificate(Z, b, beta, np.inf if clock.late() else tol)
    if not clock.trace:
        clock.record(certificate.relative_gap, Z.reshape(-1, *Z.shape[2:]))
    status = clock.status(certificate.relative_gap <= tol)
    return Solution(Z, b, certificate, status, clock.n_iter, clock.trace, MATRIX_STRATEGY)


def _quadratic(problem: SequenceProblem, beta: float, T: Array, tol: float, clock: Clock) -> Array:
    """The squared loss, from ``T (n, d, n, c)``: its model is the loss."""

    def done(primal: float, dual: float, T: Array) -> bool:
        gap = (primal - dual) / primal if primal > 0 else primal - dual
        clock.record(gap, _matrices(T))
        return not gap > 0.9 * tol  # the exact gap differs by rounding

    found = minimise_model(lambda: problem.moments, beta, problem.attention, T, done, clock)
    return T if found is None else found


def _newton(problem: SequenceProblem, beta: float, T: Array, tol: float, clock: Clock) -> Array:
    """Any other loss, from ``T (n, d, n, c)``."""
    inner, shape = problem.positions, T.shape
    at = inner.null
    if np.any(T):
        warm = inner.at(T.reshape(inner.shape), at.b)
        if warm.primal(beta) < at.primal(beta):  # else zero is the better start
            at = warm
    damping, precision = 1.0, MODEL_GAP
    while True:
        gap = at.gap(beta)
        clock.record(gap, _matrices(at.Z.reshape(shape)))
        if not gap > 0.9 * tol or clock.expired:
            return at.Z.reshape(shape)
        done = _within(max(precision * gap, 0.3 * tol) * at.primal(beta))
        model = partial(_model, problem, at, damping)
        minimiser = minimise_model(model, beta, problem.attention, at.Z.reshape(shape), done, clock)
        if minimiser is None:
            return at.Z.reshape(shape)
        if not clock.expired:  # so that steps end even where models take none
            clock.n_iter += 1
        found, t = _search(beta, at, minimiser.reshape(inner.shape), gap, clock)
        # Where the most precise model has no step down, what is left is rounding.
        exhausted = precision < MODEL_GAP and damping == 1.0
        if found is None and (exhausted or clock.late()):
            return at.Z.reshape(shape)
        precision = MODEL_GAP if found is not None else 1e-3 * MODEL_GAP
        damping = 0.1 * damping if t >= 1.0 else 1.0
        at = found or at


def _within(slack: float) -> Done:
    """Whether the gap of a model is at most `slack`, or no number."""
    return lambda primal, dual, _: not primal - dual > slack


def _model(problem: SequenceProblem, at: Point, damping: float) -> Moments:
    """The loss at a point as a weighted squared loss."""
    inner, loss = problem.positions, problem.loss
    shape = (*problem.design.X.shape[:2], problem.n_outputs)
    _, V, H = inner.risk.expansion(at.F)
    if loss.damps:
        H = loss.curvature(at.F, inner.Y, damping)
    reach = FARTHEST * (loss.delta if isinstance(loss, Huber) else 1.0)
    H = np.maximum(H, np.abs(V) / reach)
    targets = at.F + np.divide(V, H, out=np.zeros(V.shape), where=H > 0)
    weight = np.ascontiguousarray(inner.weight[:, None] * H).reshape(shape)
    return problem.model(weight, np.ascontiguousarray(targets).reshape(shape), loss.joint)


def _search(
    beta: float, at: Point, Z: Array, gap: float, clock: Clock
) -> tuple[Point | None, float]:
    """The first better point, back from `Z` towards `at`, and its step.

    Better is a lower objective; or, where objectives are the same but for rounding, a whole step to
    a gap below `gap`, that of `at`. The whole step is always tried, shorter ones while there is
    time.
    """
    problem = at.problem
    S, t, primal = problem.scores(Z), 1.0, at.primal(beta)
    for _ in range(MOST_HALVINGS):
        before = clock.seconds
        found = problem.at(at.Z + t * (Z - at.Z), at.b, S=at.S + t * (S - at.S))
        clock.keep_back(clock.seconds - before)  # for the trial that ends the next model
        if found.primal(beta) < primal:
            return found, t
        same = t == 1.0 and found.primal(beta) <= (1 + SAME) * primal
        if same and found.gap(beta) < gap:
            return found, t
        if clock.late():
            break
        t *= 0.5
    return None, 0.0


def _matrices(T: Array) -> Array:
    """Which matrices of ``T (n, d, n, c)`` are not zero, as a trace counts them."""
    return np.any(T, axis=(0, 2)).reshape(-1, 1, 1)
