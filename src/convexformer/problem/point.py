"""The problem at given coefficients: scores, loss, dual point and duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, Groups
from .lazy import lazy

if TYPE_CHECKING:
    from .problem import Problem


@dataclass(frozen=True, eq=False)
class Point:
    """Coefficients with their best intercept, and what follows from them.

    A point never changes. Its dual point `V` and the correlations `M`, which take a pass over X,
    are computed when they are first asked for.

    Attributes
    ----------
    problem : Problem
    Z : ndarray of shape (groups, d, c)
    S : ndarray of shape (N, c)
        Scores without intercept, from centred columns.
    b : ndarray of shape (c,)
        The best intercept for centred columns.
    F : ndarray of shape (N, c)
        Scores with the intercept, ``S + b``.
    loss : float
    """

    problem: Problem
    Z: Array
    S: Array
    b: Array
    F: Array
    loss: float
    given_V: Array | None = None
    given_M: Array | None = None

    @lazy
    def penalty(self) -> float:
        """The penalty, without beta."""
        return self.problem.penalty.value(self.Z)

    @lazy
    def V(self) -> Array:
        """The dual point, ``(N, c)``: weighted, within bounds, balanced if there is an intercept.

        It meets every constraint of the dual but the norm ball, into which it can be scaled.
        """
        return self.problem.risk.dual_point(self.F) if self.given_V is None else self.given_V

    @lazy
    def M(self) -> Array:
        """Correlations ``X' V``, ``(groups, d, c)``: minus the gradient of the loss."""
        return self.problem.correlations(self.V) if self.given_M is None else self.given_M

    @lazy
    def norms(self) -> Array:
        """Dual norms of `M`, ``(groups, cells)``."""
        return self.problem.penalty.dual_norms(self.M)

    def primal(self, beta: float) -> float:
        """Objective at strength `beta`."""
        return self.loss + beta * self.penalty

    def dual(self, beta: float) -> float:
        """The best dual value on the ray through `V`, a lower bound of the minimum."""
        return self.problem.dual_value(self.V, self.norms, beta)

    @lazy
    def _gaps(self) -> dict[float, float]:
        return {}

    def gap(self, beta: float) -> float:
        """Relative duality gap, but for rounding."""
        if beta not in self._gaps:
            primal = self.primal(beta)
            gap = primal - self.dual(beta)
            self._gaps[beta] = gap / primal if primal > 0 else gap
        return self._gaps[beta]

    def of_outputs(self, part: Problem, indices: Any) -> Point:
        """This point of separate outputs as one of `part`, the problem of some of them."""
        Z, F, M = (np.ascontiguousarray(A[..., indices]) for A in (self.Z, self.F, self.M))
        S, V, b = self.S[..., indices], self.V[..., indices], self.b[indices]
        return Point(part, Z, S, b, F, part.risk.value(F), V, M)

    @property
    def intercept(self) -> Array:
        """The intercept for X and targets as they were given."""
        return self.problem.outer_intercept(self.Z, self.b)

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which groups have coefficients, ``(groups,)``."""
        return np.asarray(self.Z.any(axis=(1, 2)))

    def wanted(self, beta: float) -> Groups:
        """Groups that are in use, or violate the constraints of the dual at strength `beta`."""
        return np.flatnonzero(self.used | (self.norms > beta).any(axis=1))
