"""Where the next point of a path starts: on the line through the last two.

Of a squared loss scores and correlations are linear along it, so that a start costs no product
with X. They are the solver's alone: a certificate computes its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..problem import DualPoint, Problem
from ..problem.weighted import MOST_KEPT
from .solution import Iterate, Solution


class Line:
    """The last two points of a path to ever smaller beta, where what is known of them is kept."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._points: list[tuple[float, Iterate]] = []

    def add(self, problem: Problem, beta: float, at: Iterate) -> None:
        """Keep a point, the best there is at `beta`."""
        large = problem.Y.size + at.Z.size > MOST_KEPT
        if not problem.loss.quadratic or at.point is None or large:
            self._points = []
            return
        if self._problem is not problem:
            self._problem, self._points = problem, []
        # A copy, as the user may change what is his.
        self._points = [*self._points[-1:], (beta, replace(at, Z=at.Z.copy()))]

    def leads(self, problem: Problem, init: Solution | None, beta: float) -> bool:
        """Whether it leads on from `init`: no token was let go, and beta falls."""
        if self._problem is not problem or len(self._points) < 2 or init is None:
            return False
        (larger, before), (smaller, last) = self._points
        left = before.Z.any(axis=(1, 2)) & ~last.Z.any(axis=(1, 2))
        return beta < smaller < larger and not left.any() and np.array_equal(init.Z, last.Z)

    def start(self, problem: Problem, init: Solution | None, beta: float) -> Iterate | None:
        """The point at `beta`, or the last one if that is better; None if it does not lead there.

        Either is better than none: as beta falls so does what the last one comes to.
        """
        if not self.leads(problem, init, beta):
            return None
        (larger, before), (smaller, last) = self._points
        at = _beyond(problem, before, last, (beta - smaller) / (smaller - larger))
        return at if at.primal(beta) < last.primal(beta) else last


def _beyond(problem: Problem, before: Iterate, last: Iterate, ahead: float) -> Iterate:
    """Beyond `last` by `ahead` of what it is from `before`."""
    assert before.point is not None and last.point is not None
    pairs = (before.Z, last.Z), (before.S, last.S)
    Z, S = (end + ahead * (end - start) for start, end in pairs)
    pairs = (before.point.V, last.point.V), (before.point.M, last.point.M)
    V, M = (end + ahead * (end - start) for start, end in pairs)
    at = Iterate.at(problem, Z, S, last.b)
    at.point = DualPoint(V, M, problem.penalty.dual_norms(M))
    return at
