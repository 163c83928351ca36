"""Rounds of Newton's method for one output of a logistic loss, compiled (``_logistic.c``).

Where tokens are few and narrow, or X is mostly zero, arithmetic takes less time than the calls of
NumPy that Newton's method (:mod:`~convexformer.solvers.newton`) makes, which stands in where
nothing was compiled, or where the sweeps that minimise models are slow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import Logistic, Problem
from ..problem.nonzeros import Nonzeros
from .machine import COMPILED
from .rounds import Round
from .solution import Clock

if COMPILED:
    from ._sweeps import minimise_logistic

Columns = tuple[NDArray, NDArray, NDArray, NDArray]  # start, column, entries, place

MOST_WORK = 5e7  # multiply-adds of a Hessian, beyond which large products are quicker
MOST_COLUMNS = 1024  # of a Hessian


def suits(problem: Problem, n_groups: int) -> bool:
    """Whether a round on so many groups is for this problem."""
    columns = n_groups * problem.design.dim
    few = columns <= MOST_COLUMNS and problem.design.gram_work(columns) <= MOST_WORK
    one = isinstance(problem.loss, Logistic) and problem.n_outputs == 1
    return COMPILED and few and one and problem.penalty.euclidean


class LogisticRound(Round):
    """One round on the tokens of `groups`."""

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        problem, Z = self.problem, self.Z0[:, :, 0].copy()
        entries = problem.design.entries
        shape, X = self._dense() if entries is None else self._sparse(entries)
        done, move, gap = minimise_logistic(
            (problem.design.n_samples, *Z.shape, *shape),
            *X,
            problem.Y,
            problem.weight,
            self.beta * self.weight[:, 0],
            self.origin.F.copy(),
            Z,
            problem.intercept,
            target,
        )
        self.best, self.best_b = Z[:, :, None], self.origin.b + move
        if entries is not None and problem.center is not None:  # which are not less their means
            self.best_b += np.vdot(problem.center[self.groups], Z - self.Z0[:, :, 0])
        self.least = gap * self.value
        return bool(done)

    def _dense(self) -> tuple[tuple[int, int], Columns]:
        """Columns less their means."""
        design, center = self.problem.design, self.problem.center
        A = design.gather(slice(0, design.n_samples), self.groups)
        if center is not None:
            A -= center[self.groups].reshape(-1)
        none: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        return (-1, 0), (none, none, A, none)

    def _sparse(self, entries: Nonzeros) -> tuple[tuple[int, int], Columns]:
        """Entries of X, and which columns these groups have."""
        d, width = self.problem.design.dim, entries.X.shape[1]
        place: NDArray[np.int32] = np.full(width // d, -1, dtype=np.int32)
        place[self.groups] = d * np.arange(len(self.groups))
        place = np.where(place[:, None] < 0, -1, place[:, None] + np.arange(d, dtype=np.int32))
        X = entries.X
        return (X.nnz, width), (X.indptr, X.indices, X.data, place)
