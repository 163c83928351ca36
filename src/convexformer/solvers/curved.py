"""Rounds of Newton's method for a logistic loss or a softmax, compiled (``_curved.c``).

Where tokens are few and narrow, or X is mostly zero, arithmetic takes less time than the calls of
NumPy that Newton's method (:mod:`~convexformer.solvers.newton`) makes, which stands in where
nothing was compiled, or where the sweeps that minimise models are slow.
"""

from __future__ import annotations

import numpy as np

from ..problem import Logistic, Problem, Softmax
from .machine import COMPILED
from .rounds import Round
from .solution import Clock

if COMPILED:
    from ._sweeps import minimise_curved

MOST_WORK = 5e7  # multiply-adds of a Hessian, beyond which large products are quicker,
FEW_STEPS = 20  # unless it takes no longer than so many first-order steps,
MOST_NUMBERS = 1 << 23  # and memory is for so many curvatures of samples
MOST_COEFFICIENTS = 1024
LONGEST = 1.0  # seconds of a compiled call, which nothing stops


def suits(problem: Problem, n_groups: int) -> bool:
    """Whether a round on so many groups is for this problem."""
    if not COMPILED or not problem.penalty.euclidean:
        return False
    c, columns = problem.n_outputs, n_groups * problem.design.dim
    if not isinstance(problem.loss, Softmax if c > 1 else Logistic):
        return False
    work = problem.design.gram_work(columns) * max(1, c * (c - 1) // 2)
    steps = work / (4 * problem.design.n_samples * columns * c)  # half of it, and two products
    quick = work <= MOST_WORK or (steps <= FEW_STEPS and problem.Y.size * c <= MOST_NUMBERS)
    return columns * c <= MOST_COEFFICIENTS and quick


class Curved(Round):
    """One round on the tokens of `groups`."""

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        problem, (n, d, c) = self.problem, self.Z0.shape
        columns = problem.design.listed(self.groups)
        center = np.zeros(n * d) if problem.center is None else problem.center[self.groups]
        limit = np.repeat(self.beta * self.weight, problem.penalty.cells(c), axis=1)
        Z, move = np.array(self.Z0.transpose(0, 2, 1), order="C"), np.zeros(c)
        done, gap = minimise_curved(
            (problem.design.n_samples, n, d, c, limit.size, *columns.sizes),
            *columns.X,
            center,
            np.ascontiguousarray(problem.Y.T),
            problem.weight,
            limit,
            np.ascontiguousarray(self.origin.F.T),
            Z,
            move,
            problem.intercept,
            target,
            clock.slice(LONGEST),
        )
        self.best, self.best_b = Z.transpose(0, 2, 1), self.origin.b + move
        self.least = gap * self.value  # an estimate: the next certificate tells
        return bool(done)
