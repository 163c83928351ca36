"""What rounds of first-order steps share: where they start, their gap, and when they are slow.

A round works on some groups, in float32 where it reads X, on changes from a point that is known in
float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import log

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Huber, Problem
from ..problem.designs import Groups
from .machine import SPEED
from .solution import Clock, Iterate

Array = NDArray[np.float64]

NEAR = 1e-2  # relative gap below which a point is a good start for Newton's method
HOPE = 0.6  # of Newton's time that steps may take, for they may take longer
OTHERS = 1.5  # what else it takes, beside the factorisations
TINY = 1e-300
NEWTON_STEP = 8e-4  # seconds of a step beyond products


class Round(ABC):
    """First-order steps on the coefficients of `groups`, from the point `at`."""

    def __init__(
        self, problem: Problem, beta: float, at: Iterate, point: DualPoint, groups: Groups
    ) -> None:
        self.problem, self.beta = problem, beta
        self.origin, self.point, self.groups = at, point, groups
        self.Z0, self.M0 = at.Z[groups], point.M[groups]
        self.weight = problem.penalty.column(problem.shape[0])[groups]
        self.norms = problem.penalty.norms
        self.value = at.primal(beta)
        self.start = self.least = np.inf  # gaps: the first one, and the lowest
        self.best, self.best_b = self.Z0, at.b  # where it is lowest

    @abstractmethod
    def run(self, target: float, goal: float, clock: Clock) -> bool:
        """Step until the gap on these groups is below `target`, on the way to `goal`.

        Both are parts of the objective, which may fall far. Returns whether Newton's method would
        not get there sooner.
        """

    def gap(self, value: float, V: Array, M: Array) -> float:
        """Objective less dual bound, as far as these groups go."""
        point = DualPoint(V, M, self.norms(M) / self.weight)
        return value - self.problem.dual_value(point, self.beta)

    def ahead(self, goal: float) -> float:
        """Logarithm of what the lowest gap is above `goal`, a part of the objective."""
        return log(max(self.least / max(goal * self.value, TINY), 1.0))

    def is_slow(self, spent: float, left: float, Z: Array) -> bool:
        """Whether Newton's method promises to be done sooner, or would have been by now."""
        newton = self._newton_seconds(Z)
        return left > HOPE * newton or spent > newton

    def _newton_seconds(self, Z: Array) -> float:
        """Roughly what Newton's method would take with the coefficients that are in use."""
        cells = self.norms(Z) > 0
        columns = int(np.count_nonzero(np.any(cells, axis=1))) * self.Z0.shape[1]
        used = int(np.count_nonzero(cells)) * self.Z0.shape[1]
        if self.problem.loss.joint:
            used = used * self.problem.n_outputs // cells.shape[1]
        return newton_seconds(self.problem, columns, used)

    def found(self) -> Iterate:
        """The best point, in float64."""
        Z = np.zeros(self.origin.Z.shape)
        Z[self.groups] = self.best
        return Iterate.at(self.problem, Z, self.problem.scores(Z), self.best_b)


def newton_seconds(problem: Problem, columns: int, used: int) -> float:
    """Roughly what Newton's method takes with so many columns and coefficients in use."""
    N, samples = problem.design.n_samples, problem.design.n_samples
    if problem.loss.joint:
        samples *= problem.n_outputs - 1
    size = min(used, samples)
    scattered = problem.design.is_sparse and not problem.loss.joint
    scattered &= not isinstance(problem.loss, Huber)  # whose outliers are cells of samples
    form = problem.design.gram_work(used) if scattered else N * used**2
    if used > samples:
        form = N**2 * columns
    models, steps = (1, 8) if problem.loss.quadratic else (6, 18)
    if scattered and models > 1 and problem.n_outputs == 1:
        steps = 8  # models are left to sweeps, as a rule, and steps read X whole
    flops = models * form + steps * size**3 / 3
    return OTHERS * flops / SPEED + steps * NEWTON_STEP
