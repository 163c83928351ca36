"""The dual point of given scores, for tests that have no coefficients."""

from __future__ import annotations

from typing import NamedTuple

from convexformer.problem import Problem

from .raw import Array


class Dual(NamedTuple):
    """A dual point, its correlations, and their dual norms."""

    V: Array  # (N, c)
    M: Array  # (groups, d, c)
    norms: Array  # (groups, cells)


def dual_at(problem: Problem, F: Array) -> Dual:
    """The dual point of scores `F` for centred columns, with the intercept."""
    V = problem.risk.dual_point(F)
    M = problem.correlations(V)
    return Dual(V, M, problem.penalty.dual_norms(M))
