"""The entry points: one solve, and a warm-started path of solves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ..problem import Point, Problem
from ..problem.arrays import Array
from ..problem.norms import plain
from . import block_descent, choose, newton, newton_cg, proximal_gradient
from .solution import FINEST_GAP, Callback, Clock, Solution, Task, interruption
from .workspace import Workspace

Strategy = Callable[[Task, Point], tuple[Point, bool]]

RUN: dict[str, Strategy] = {  # from a point to a better one, and whether there is no more to do
    "block-descent": block_descent.minimise,
    "compiled-newton": newton.minimise_compiled,
    "gradient": proximal_gradient.minimise,
    "newton": newton.minimise,
    "newton-cg": newton_cg.minimise,
    "accelerated-gradient": proximal_gradient.minimise_accelerated,
}
FIRST_ORDER = ("block-descent", "gradient", "compiled-newton")  # given up once slow on a design


def solve(
    problem: Problem,
    beta: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    strategy: str | None = None,
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
    strategy : str, optional
        One of :data:`~convexformer.solvers.STRATEGIES`, followed by others where it is slow. If
        omitted, the one that is predicted to be the quickest.
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
        return _solve(problem, beta, tol, clock, init, strategy, _workspace(problem))[0]


def solve_path(
    problem: Problem,
    betas: Iterable[float],
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    strategy: str | None = None,
    callback: Callback | None = None,
    on_interrupt: str = "raise",
) -> Iterator[Solution]:
    """Solve for every beta in turn, each started from the last; `max_time` is for all of them.

    With ``on_interrupt="keep"`` Ctrl-C ends the path with the best iterate of the beta it met.
    """
    work, started, ahead = _workspace(problem), Clock(max_iter, max_time), Extrapolation(problem)
    for beta in betas:
        with interruption(on_interrupt) as asked:  # not while whoever asks for points has the turn
            clock = Clock(max_iter, started.left, callback, asked)
            at = None if clock.late() else ahead.predict(beta)
            init, at = _solve(problem, beta, tol, clock, init, strategy, work, at)
            ahead.add(beta, at)
            ends = asked()
        yield init
        if ends:
            return


def path_betas(problem: Problem, n_betas: int = 40, eps: float = 1e-3) -> Array:
    """Geometric sequence from ``beta_max`` down to ``eps * beta_max``."""
    return problem.beta_max * np.geomspace(1.0, eps, n_betas)


def _workspace(problem: Problem) -> Workspace:
    return Workspace(problem if problem.conditioned is None else problem.conditioned.problem)


def _solve(
    problem: Problem,
    beta: float,
    tol: float,
    clock: Clock,
    init: Solution | None,
    strategy: str | None,
    work: Workspace,
    at: Point | None = None,
) -> tuple[Solution, Point]:
    """The solution, and the point that it is, in the problem's own units."""
    _check(problem, beta, init, strategy)
    units, inner, inner_beta = problem.conditioned, problem, beta
    if units is not None:
        inner, inner_beta = units.problem, units.beta(beta)
        if init is not None:
            Z, b = units.inner(init.Z, init.intercept)
            init = replace(init, Z=Z, intercept=b)
    # 1. The better of the warm start and the model without tokens.
    if at is None:
        at = _start(inner, inner_beta, init)
    # 2. Strategies in turn.
    task = Task(inner, inner_beta, 0.9 * max(tol, FINEST_GAP), clock, work)
    at = _minimise(task, at, strategy)
    Z, b = at.Z, at.intercept
    if units is not None:
        Z, b = units.outer(Z, b)
    # 3. The certificate, from the coefficients alone. Without time left the quick bounds will do,
    # which hold too but round more.
    certificate = problem.certificate(Z, b, beta, np.inf if clock.late() else tol)
    status = clock.status(certificate.relative_gap <= tol)
    if not clock.trace:
        clock.record(certificate.relative_gap, Z)
    name = " + ".join(clock.strategies)
    return Solution(Z, b, certificate, status, clock.n_iter, clock.trace, name), at


def _check(problem: Problem, beta: float, init: Solution | None, strategy: str | None) -> None:
    if not (0 <= beta < np.inf and (beta > 0 or problem.beta_max == 0)):
        raise ValueError(f"beta must be a positive number, got {beta!r}.")
    if strategy is not None and strategy not in RUN:
        raise ValueError(f"strategy must be one of {', '.join(RUN)}, got {strategy!r}.")
    if strategy is not None and not choose.suits(strategy, problem):
        able = ", ".join(name for name in RUN if choose.suits(name, problem))
        raise ValueError(
            f"The strategy {strategy!r} cannot minimise a {type(problem.loss).__name__} loss with "
            f"the penalty {problem.penalty.name!r}. Choose from {able}, or leave it out."
        )
    if init is None:
        return
    if init.Z.shape != problem.shape:
        raise ValueError(f"init has shape {init.Z.shape}, the problem {problem.shape}.")
    if not (np.isfinite(init.Z).all() and np.isfinite(init.intercept).all()):
        raise ValueError(
            "init contains NaN or infinity. Start from a finite solution, or from none."
        )


def _start(problem: Problem, beta: float, init: Solution | None) -> Point:
    """The warm start, or the model without tokens where there is none or that is better."""
    if init is not None and beta < problem.beta_max:
        Z, b = plain(init.Z), plain(init.intercept)
        warm = problem.at(Z, problem.inner_intercept(Z, b))
        if warm.primal(beta) <= problem.null.loss:
            return warm
    return problem.null


def _minimise(task: Task, at: Point, strategy: str | None) -> Point:
    """The optimum, but for the tolerance."""
    problem = task.problem
    if task.beta >= problem.beta_max:
        task.measure(problem.null)
        return problem.null
    if problem.as_logistic is not None:
        return _two_classes(task, at, strategy)
    if not problem.separable or problem.n_outputs == 1:
        return _run(task, at, strategy)
    name = strategy or choose.choose(problem, task.beta, at, task.work.slow)
    few = problem.n_outputs <= choose.TUNING.most_separable_outputs
    if name == "accelerated-gradient" or (name == "block-descent" and few):
        at = _run(task, at, name)
    return at if _is_done(task, at) else _by_outputs(task, at, strategy)


def _is_done(task: Task, at: Point) -> bool:
    return task.clock.expired or at.gap(task.beta) <= task.tol


def _run(task: Task, at: Point, strategy: str | None) -> Point:
    """Strategies in turn, until one reaches the tolerance: first `strategy`, if that is given."""
    tried = set[str]()
    while True:
        without = tried | task.work.slow
        name = strategy or choose.choose(task.problem, task.beta, at, without)
        strategy = None
        if tried and task.problem.separable and task.problem.n_outputs > 1:
            return at  # outputs have a better chance one by one
        task.clock.use([name])
        before = at.primal(task.beta)
        if name == "accelerated-gradient" and tried:
            return proximal_gradient.minimise_accelerated(task, at, patience=10)[0]
        found, done = RUN[name](task, at)
        if found.primal(task.beta) <= before + 1e-12 * abs(before):
            at = found
        if done or _is_done(task, at):
            return at
        tried.add(name)
        if name in FIRST_ORDER:
            task.work.slow.add(name)


def _by_outputs(task: Task, at: Point, strategy: str | None) -> Point:
    """Outputs that are separate problems, by chunks; the trace has the gap of all of them."""
    problem, clock = task.problem, task.clock
    most = choose.TUNING.most_separable_outputs
    size = most if problem.loss.quadratic and problem.n_outputs > most else 1
    chunks = [
        np.arange(first, min(first + size, problem.n_outputs))
        for first in range(0, problem.n_outputs, size)
    ]
    Z, b, max_iter = at.Z.copy(), at.b.copy(), clock.max_iter
    parts = [problem.outputs(chunk) for chunk in chunks]
    starts = [at.of_outputs(part, chunk) for part, chunk in zip(parts, chunks, strict=True)]
    values = np.array([[one.primal(task.beta), one.dual(task.beta)] for one in starts])
    for k, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
        if clock.late() or (clock.trace and max_iter <= 0):
            break
        own = clock.part(max_iter)
        found = _minimise(replace(task, problem=part, clock=own), starts[k], strategy)
        Z[:, :, chunk], b[chunk] = found.Z, found.b
        values[k] = found.primal(task.beta), found.dual(task.beta)
        primal, dual = values.sum(axis=0)
        clock.n_iter += own.n_iter
        clock.use(own.strategies)
        clock.record((primal - dual) / primal if primal > 0 else primal - dual, Z)
    return problem.at(Z, b)


def _two_classes(task: Task, at: Point, strategy: str | None) -> Point:
    """A softmax over two classes, by its one logistic output: scores differ in sign."""
    assert task.problem.as_logistic is not None
    one, scale = task.problem.as_logistic
    start = one.null
    if at.Z.any():
        Z, b = (-np.diff(part, axis=-1) for part in (at.Z, at.b))
        start = one.at(np.ascontiguousarray(Z), b)
    own = replace(task, problem=one, beta=scale * task.beta)
    found = _minimise(own, start, strategy)
    both = np.array([0.5, -0.5])
    return task.problem.at(found.Z * both, found.b * both, S=found.S * both)


class Extrapolation:
    """Where the next solution of a path starts: on the curve through the last ones.

    Where the loss is quadratic scores and correlations follow coefficients linearly, hence those of
    a combination of solutions take no pass over X.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.points = list[tuple[float, Point]]()  # with their betas

    def add(self, beta: float, at: Point) -> None:
        """Note the solution at `beta`."""
        kept = [one for one in self.points if one[0] != beta]
        self.points = [*kept, (beta, at)][-3:]

    def predict(self, beta: float) -> Point | None:
        """A start for `beta`; None before there is a solution."""
        if not self.points or self.problem.conditioned is not None:
            return None
        last = self.points[-1][1]
        best = last.primal(beta)
        for count in range(len(self.points), 1, -1):  # the curve through most is best, as a rule
            found = self._combined(self.points[-count:], beta, last)
            if found.primal(beta) < best:
                return found
        return last

    def _combined(self, points: list[tuple[float, Point]], beta: float, last: Point) -> Point:
        """Coefficients on the curve, but of tokens that the last solution does without."""
        shares = _shares([own for own, _ in points], beta)
        Z = _sum(shares, [at.Z for _, at in points])
        gone = Z.any(axis=(1, 2)) & ~last.used
        if gone.any() or not self.problem.loss.quadratic:
            Z[gone] = 0.0
            return self.problem.at(Z, last.b)
        S, M = (
            _sum(shares, parts) for parts in zip(*((at.S, at.M) for _, at in points), strict=True)
        )
        return self.problem.at(Z, last.b, S=S, M=M)


def _sum(shares: list[float], parts: Iterable[Array]) -> Array:
    total = sum(share * part for share, part in zip(shares, parts, strict=True))
    return np.asarray(total)


def _shares(betas: list[float], beta: float) -> list[float]:
    """Weights of values at `betas` in that at `beta`, on the polynomial through them."""
    return [
        prod((beta - other) / (own - other) for other in betas if other != own) for own in betas
    ]
