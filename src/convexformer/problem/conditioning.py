"""The same problem in other units, where numbers as they are given leave float64 no digits.

Solvers square what they are given, some of it in float32. Data of an extreme size are multiplied by
powers of two, which is exact, and columns whose means are far above their spreads are read less
their means. Both take a copy of X, and are rare. Certificates are of the data as given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Array
from .bounds import column_means, exact_dot
from .certificate import check_range
from .losses import Huber
from .tokens import TokenDesign

if TYPE_CHECKING:
    from .problem import Problem


@dataclass(frozen=True)
class Conditioned:
    """A problem in other units.

    ``X' = x_unit (X - origin)``, ``Y' = y_unit Y`` and ``weight' = weight_unit weight``; hence
    ``Z' = Z y_unit / x_unit``, and objectives are ``weight_unit y_unit**2`` times as large.
    """

    problem: Problem
    x_unit: float
    y_unit: float
    weight_unit: float
    origin: Array | None  # (n_groups, d)

    def beta(self, beta: float) -> float:
        """The strength at which the penalty is the same part of the objective."""
        return beta * self.weight_unit * self.y_unit * self.x_unit

    def outer_beta(self, beta: float) -> float:
        return beta / self.weight_unit / self.y_unit / self.x_unit

    def inner(self, Z: Array, b: Array) -> tuple[Array, Array]:
        """Coefficients and intercept in these units, of those for the data as given."""
        return Z / self.x_unit * self.y_unit, self.y_unit * (b + self._lift(Z))

    def outer(self, Z: Array, b: Array) -> tuple[Array, Array]:
        """Coefficients and intercept for the data as given."""
        Z = Z / self.y_unit * self.x_unit
        return Z, b / self.y_unit - self._lift(Z)

    def _lift(self, Z: Array) -> Array:
        if self.origin is None:
            return np.zeros(Z.shape[2])
        return np.array([exact_dot(self.origin.ravel(), z) for z in Z.reshape(-1, Z.shape[2]).T])


def conditioned(problem: Problem) -> Conditioned | None:
    """`problem` in units that suit float64; None where it is in such units already."""
    design, origin = problem.design, None
    if _means_are_far(problem):
        assert isinstance(design, TokenDesign)
        origin = column_means(design, problem.weight)
        design = TokenDesign(np.subtract(design.X, origin, dtype=np.float64))
    entries = design.n_samples * design.n_groups * design.dim
    x_unit, weight_unit = _unit(design.norm / np.sqrt(entries)), _unit(float(problem.weight.max()))
    y_unit = _unit(float(np.abs(problem.Y).max(initial=0.0))) if problem.loss.translates else 1.0
    if x_unit == y_unit == weight_unit == 1.0 and origin is None:
        return None
    if x_unit != 1.0:
        design = design.rescaled(x_unit)
    loss = problem.loss
    if isinstance(loss, Huber):
        loss = replace(loss, delta=loss.delta * y_unit)
    Y, weight = y_unit * (problem.Y + problem.shift), weight_unit * problem.weight
    inner = type(problem)(design, loss, problem.penalty, Y, weight, problem.intercept)
    return Conditioned(inner, x_unit, y_unit, weight_unit, origin)


def _unit(largest: float) -> float:
    """The power of two that brings `largest` near 1, where it is far from it."""
    if largest == 0 or 1e-25 <= largest <= 1e25:
        return 1.0
    return float(2.0 ** -np.frexp(check_range(largest))[1])


def _means_are_far(problem: Problem) -> bool:
    """Whether means of columns are so far above spreads that products with them lose digits."""
    design, center = problem.design, problem.center
    if center is None or not isinstance(design, TokenDesign) or design.mask is not None:
        return False
    some = design.some().reshape(-1, center.size)
    spread = np.ptp(some, axis=0)
    farthest = 1e-5 * np.abs(center).max()  # means of 1e5 spreads are far
    if not spread.any() or farthest <= spread.min():  # the median takes longer
        return False
    return bool(farthest > np.median(spread[spread > 0]))
