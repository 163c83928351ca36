"""Rounds on a working set: the loop that block descent, gradient steps and compiled Newton share.

A round works on some groups: those in use and the worst violators of the dual constraints. It
starts from a point that is known in float64, and works on changes from there, in float32 where it
reads X. After each round a pass over X in float64 gives the duality gap and the next working set.

Rounds end early where Newton's method promises to be done sooner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import log

import numpy as np

from ..problem import Point, Problem
from ..problem.arrays import Array, Groups
from ..problem.stopping import until
from . import choose
from .solution import Clock, Task

NO_GAP = 1e-15  # relative gap that is as good as none


class Round(ABC):
    """First-order steps, or compiled ones, on the coefficients of `groups`, from the point `at`."""

    gain: float  # by which it can reduce a gap in its precision

    def __init__(self, task: Task, at: Point, groups: Groups) -> None:
        self.task, self.problem, self.beta = task, task.problem, task.beta
        self.origin, self.groups = at, groups
        self.Z0, self.M0 = at.Z[groups], at.M[groups]
        self.penalty = self.problem.penalty.of(groups)
        self.value = at.primal(self.beta)
        self.start = self.least = np.inf  # gaps: the first one, and the lowest
        self.best, self.best_b = self.Z0, at.b  # where it is lowest

    @abstractmethod
    def run(self, target: float, goal: float, clock: Clock) -> bool:
        """Step until the gap on these groups is below `target`, on the way to `goal`.

        Both are relative to the objective. Returns False where Newton's method would be quicker.
        """

    def gap(self, value: float, V: Array, M: Array) -> float:
        """Objective less dual bound, as far as these groups go."""
        return value - self.problem.dual_value(V, self.penalty.dual_norms(M), self.beta)

    def ahead(self, goal: float) -> float:
        """Logarithm of the lowest gap over `goal`, which is relative to the objective."""
        return log(max(self.least / max(goal * self.value, 1e-300), 1.0))

    def is_slow(self, spent: float, left: float, Z: Array) -> bool:
        """Whether Newton's method promises to be done sooner, or would have been by now."""
        newton = self._newton_seconds(Z)
        if spent < choose.TUNING.least_trial * newton:
            return False
        return left > choose.TUNING.newton_patience * newton or spent > newton

    def _newton_seconds(self, Z: Array) -> float:
        """Of the quickest second-order strategy, with the coefficients that are in use."""
        n_used = int(np.count_nonzero(Z.any(axis=(1, 2))))
        newton = choose.newton_seconds(self.problem, n_used * self.Z0.shape[1])
        cg = choose.newton_cg_seconds(self.problem, n_used)
        return min(newton, cg) if choose.decays(self.problem, newton) else newton

    def found(self) -> Point:
        """The best point, in float64."""
        Z = np.zeros(self.origin.Z.shape)
        Z[self.groups] = self.best
        return self.problem.at(Z, self.best_b)


MakeRound = Callable[[Task, Point, Groups, float], Round | None]


def rounds(
    task: Task, at: Point, make_round: MakeRound, narrow: bool = False
) -> tuple[Point, bool]:
    """Rounds from `at` until the relative gap is below the task's tolerance, or they slow.

    `make_round` makes one from the task, the point, its working set and the reduction of the gap
    that is wanted; None where no more rounds pay. A `narrow` working set leaves out weak violators
    where a Gram matrix is dear. Returns the last point, and whether there is no
    more to do.
    """
    problem, beta, clock, work = task.problem, task.beta, task.clock, task.work
    goes_on = True
    while True:
        gap = task.measure(at)
        if (gap <= task.tol and clock.n_iter > 0) or gap <= NO_GAP or clock.expired:
            return at, True
        if not goes_on:
            break
        groups, everyone = working_set(problem, beta, at, narrow)
        if len(groups) == 0:  # at beta_max, but for rounding
            return at, gap <= task.tol
        goal = max(0.8 * task.tol, NO_GAP)
        made: Round | None = None
        late = True
        with until(clock.late):
            made = make_round(task, at, groups, goal / gap)
            late = False
        if made is None:  # its data were not ready in time, or no more rounds pay
            if late:
                return at, True
            break
        clock.n_iter += 1
        gain = made.gain if everyone else max(made.gain, 0.1)  # more groups will enter
        goes_on = made.run(max(goal, gain * gap), goal, clock)
        if not (goes_on or _is_good_start(task, at, made)):
            break
        found = made.found()
        if not _is_better(task, found, at, gap):
            break
        at = found
    work.release(problem.loss.quadratic)
    return at, False


def _is_good_start(task: Task, at: Point, made: Round) -> bool:
    """Whether Newton's method had better start where slow steps have led.

    Usually too many groups are in use after slow steps. Not so if the gap is small, or if no more
    groups are in use than at the beginning of the round. For other losses than the squared one and
    Huber's, Newton's method starts from any point.
    """
    n_used, n_before = (int(Z.any(axis=(1, 2)).sum()) for Z in (made.best, made.Z0))
    loss, near = task.problem.loss, made.least < 0.2 * made.value
    return near or not (loss.quadratic or loss.damps) or 0 < n_used <= n_before


def _is_better(task: Task, found: Point, at: Point, gap: float) -> bool:
    """Whether the objective is lower, or the same but for rounding at half the gap."""
    new, old = found.primal(task.beta), at.primal(task.beta)
    if new < old or new > old * (1 + 1e-13):
        return new < old
    return found.gap(task.beta) < 0.5 * gap


def gram_is_quick(problem: Problem, n_groups: int, known: int = 0) -> bool:
    """Whether the Gram matrix of so many groups is formed in the time of a few passes over them.

    Products of `known` of them are there already.
    """
    design, tuning = problem.design, choose.TUNING
    N, p = design.n_samples, n_groups * design.dim
    trial = tuning.gradient_trial_steps * 2 * choose.read_seconds(4 * N * p)
    work = design.gram_work(p) - design.gram_work(known * design.dim)
    if design.halves_gram(p):
        work /= 2
    return 2 * p < N and work / tuning.speed64 < 2 * problem.n_outputs * trial


def working_set(problem: Problem, beta: float, at: Point, narrow: bool) -> tuple[Groups, bool]:
    """Groups in use and the worst violators; and whether these are all violators.

    The first working set is small, which also shows at little cost that steps will be slow.
    """
    used = at.used
    excess = at.norms.max(axis=1) - beta
    excess[used] = 0.0
    violators = (excess > 0).nonzero()[0]
    N, d, n_violators = problem.design.n_samples, problem.design.dim, len(violators)
    n_used = int(np.count_nonzero(used))
    entries = 2e6 * (min(problem.n_outputs, 3) if narrow else 1)  # of X, in a first working set
    room = max(8, int(entries // (N * d)), 3 * n_used)
    n_groups = n_used + min(room, n_violators)
    dear = problem.design.gram_work(n_groups * d) > 3e8
    if narrow and dear and gram_is_quick(problem, n_groups):
        violators = violators[excess[violators] > 0.1 * excess.max()]
    if len(violators) > room:
        violators = violators[np.argsort(-excess[violators], kind="stable")[:room]]
    used[violators] = True
    return used.nonzero()[0], len(violators) == n_violators
