"""Rounds of Newton's method for a logistic loss or a softmax, compiled (``_curved.c``).

Where tokens are few and narrow, or X is mostly zero, arithmetic takes less time than the calls of
NumPy that Newton's method (:mod:`~convexformer.solvers.newton`) makes, which stands in where
nothing was compiled, or where the sweeps that minimise models are slow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import Logistic, Problem, Softmax
from ..problem.nonzeros import Nonzeros
from .machine import COMPILED
from .rounds import Round
from .solution import Clock

if COMPILED:
    from ._sweeps import minimise_curved

Columns = tuple[NDArray, NDArray, NDArray, NDArray]  # start, column, entries, place

MOST_WORK = 5e7  # multiply-adds of a Hessian, beyond which large products are quicker
MOST_COEFFICIENTS = 1024


def suits(problem: Problem, n_groups: int) -> bool:
    """Whether a round on so many groups is for this problem."""
    if not COMPILED or not problem.penalty.euclidean:
        return False
    c, columns = problem.n_outputs, n_groups * problem.design.dim
    if not isinstance(problem.loss, Softmax if c > 1 else Logistic):
        return False
    work = problem.design.gram_work(columns) * (c * (c + 1) // 2)
    return columns * c <= MOST_COEFFICIENTS and work <= MOST_WORK


class Curved(Round):
    """One round on the tokens of `groups`."""

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        problem, (n, d, c) = self.problem, self.Z0.shape
        entries = problem.design.entries
        sizes, X = self._dense() if entries is None else self._sparse(entries)
        limit = np.repeat(self.beta * self.weight, problem.penalty.cells(c), axis=1)
        Z, move = np.ascontiguousarray(self.Z0.transpose(0, 2, 1)), np.zeros(c)
        done, gap = minimise_curved(
            (problem.design.n_samples, n, d, c, limit.size, *sizes),
            *X,
            np.ascontiguousarray(problem.Y.T),
            problem.weight,
            limit,
            np.array(self.origin.F.T, order="C"),
            Z,
            move,
            problem.intercept,
            target,
        )
        self.best, self.best_b = Z.transpose(0, 2, 1), self.origin.b + move
        if entries is not None and problem.center is not None:  # which are not less their means
            change = self.best - self.Z0
            self.best_b += problem.center[self.groups].ravel() @ change.reshape(n * d, c)
        self.least = gap * self.value  # an estimate: the next certificate tells
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
        X, d = entries.X, self.problem.design.dim
        place: NDArray[np.int32] = np.full((X.shape[1] // d, d), -1, dtype=np.int32)
        place[self.groups] = np.arange(len(self.groups) * d, dtype=np.int32).reshape(-1, d)
        return (X.nnz, X.shape[1]), (X.indptr, X.indices, X.data, place)
