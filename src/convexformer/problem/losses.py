r"""Losses: value, dual point, curvature and conjugate, written so that nothing cancels.

Every method works entry by entry on scores ``F`` and targets ``Y`` of shape ``(N, c)``. Sample
weights are applied by :class:`~convexformer.problem.Problem`, not here. A *joint* loss
(:class:`Softmax`) couples the outputs of a sample and returns one value per row, ``(N, 1)``.

The dual point of scores is :math:`V = -\partial\,\mathrm{loss}/\partial F`; the dual value is
:math:`D(V) = -\mathrm{loss}^*(-V)`, with :math:`\mathrm{loss}(F) \ge D(V) - \langle F, V\rangle`
and equality exactly at the dual point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import factorial
from typing import ClassVar, Literal

import numpy as np
from scipy.special import entr, xlog1py

from .. import _core
from .arrays import Array

TERM_UNITS = 16.0  # of 2**-53: rounding of a few operations and elementary functions, relative
ENTROPY_UNITS = 400.0  # of 2**-53: the same in an entropy, relative to its argument


@dataclass(frozen=True)
class Loss(ABC):
    """A convex loss of scores, one entry per output unless `joint`."""

    joint: ClassVar[bool] = False
    order: ClassVar[Literal["C", "F"]] = "C"
    """How scores and targets lie: sums over outputs are fast where samples are adjacent."""
    quadratic: ClassVar[bool] = False
    """The second-order model is the loss itself."""
    translates: ClassVar[bool] = False
    """Depends on ``F - Y`` only, so that shifting both changes nothing."""
    damps: ClassVar[bool] = False
    """Its curvature depends on damping."""

    @abstractmethod
    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        """`value`, `dual_point` and `curvature`, together for less than one by one."""

    def value(self, F: Array, Y: Array) -> Array:
        """Loss per entry, at least 0: ``(N, c)``, or ``(N, 1)`` if joint."""
        return self.expansion(F, Y)[0]

    def dual_point(self, F: Array, Y: Array) -> Array:
        """``V = -loss'(F)``, ``(N, c)``."""
        return self.expansion(F, Y)[1]

    def curvature(self, F: Array, Y: Array, damping: float = 0.0) -> Array:
        """``loss''(F)``, ``(N, c)``; for a joint loss the probabilities that define it.

        `damping` in [0, 1] lifts curvature that vanishes towards a majorant of the loss. Only
        losses with flat parts (Huber) need it.
        """
        return self.expansion(F, Y)[2]

    @abstractmethod
    def dual_value(self, V: Array, Y: Array) -> Array:
        """``D(V) = -loss*(-V)``, same shape as `value`."""

    # What bounds on rounding need to know (see `bounds`).

    def offset(self, Y: Array) -> Array | float:
        """What scores are compared with: `Y`, or its logarithm; 0 where that is nothing."""
        return np.abs(Y) if self.translates else 0.0

    def curvature_bound(self, F: Array) -> Array | float:
        """Largest curvature at scores of at most `F`."""
        return 1.0

    def dual_units(self, V: Array, Y: Array) -> Array:
        """Bound on the rounding of `dual_value` at a rounded `V`, in units of 2**-53.

        Entropies: ``|x log x - y log y|`` is at most ``-t log t`` for ``t = |x - y|``, which for a
        relative error of some units is below 40 units of each entry.
        """
        whole = np.where((Y == 0) | (np.abs(Y) == 1), 0.0, np.abs(Y))
        units = ENTROPY_UNITS * (np.abs(V) + whole)
        if self.joint:
            units = units.sum(axis=1, keepdims=True)
        return np.asarray(units + TERM_UNITS * np.abs(self.dual_value(V, Y)))

    def negligible(self, Y: Array, weight: Array) -> float:
        """Loss that rounding of an intercept alone leaves where the best loss is zero."""
        return 0.0

    def constant(self, Y: Array, weight: Array) -> Array:
        """The constant scores that minimise the weighted loss (or nearly so), ``(c,)``."""
        best = self.intercept(np.zeros_like(Y), Y, weight)
        assert best is not None
        return best

    def intercept(self, S: Array, Y: Array, weight: Array) -> Array | None:
        """The best intercept at scores `S` where a formula gives it, else None."""
        return None

    def easier(self, Y: Array) -> list[Loss]:
        """Losses that lead up to this one, for solvers to start with."""
        return []

    def bounds(self, Y: Array) -> tuple[Array | float, Array | float]:
        """Lower and upper end of the interval on which `dual_value` is finite."""
        return -np.inf, np.inf

    def check_targets(self, Y: Array, weight: Array, intercept: bool) -> None:  # noqa: B027
        """Raise `ValueError` where the targets are invalid or no finite minimiser exists."""


@dataclass(frozen=True)
class Squared(Loss):
    r""":math:`\frac12 (f - y)^2`."""

    quadratic: ClassVar[bool] = True
    translates: ClassVar[bool] = True

    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        R = Y - F
        value = R * R
        value *= 0.5
        return value, R, np.ones(F.shape)

    def dual_value(self, V: Array, Y: Array) -> Array:
        return V * (Y - 0.5 * V)

    def intercept(self, S: Array, Y: Array, weight: Array) -> Array:
        return np.asarray(weight @ (Y - S) / weight.sum())


@dataclass(frozen=True)
class Huber(Loss):
    r""":math:`\frac12 r^2` up to :math:`|r| = \delta`, then :math:`\delta|r| - \frac12\delta^2`."""

    translates: ClassVar[bool] = True
    damps: ClassVar[bool] = True

    delta: float = 1.35

    def __post_init__(self) -> None:
        if not (np.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"Huber's delta must be a positive number, got {self.delta!r}.")

    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        R = Y - F
        V = np.clip(R, -self.delta, self.delta)
        return V * (R - 0.5 * V), V, self.curvature(F, Y)

    def curvature(self, F: Array, Y: Array, damping: float = 0.0) -> Array:
        R = np.abs(F - Y)
        return np.where(self.delta >= R, 1.0, damping * self.delta / np.maximum(R, self.delta))

    def dual_value(self, V: Array, Y: Array) -> Array:
        return V * (Y - 0.5 * V)

    def intercept(self, S: Array, Y: Array, weight: Array) -> Array:
        # The slope sum_i a_i clip(r_i - b) is piecewise linear in b: walk its breakpoints.
        R = Y - S
        knots = np.concatenate([R - self.delta, R + self.delta])
        order = np.argsort(knots, axis=0, kind="stable")
        knots = np.take_along_axis(knots, order, axis=0)
        rate = np.cumsum(np.concatenate([weight, -weight])[order], axis=0)[:-1]
        slope = self.delta * weight.sum() - np.cumsum(rate * np.diff(knots, axis=0), axis=0)
        row = np.argmax(slope <= 0, axis=0)[None]  # the first piece on which it changes sign
        end, after = np.take_along_axis(knots, row + 1, axis=0), np.take_along_axis(slope, row, 0)
        rate = np.take_along_axis(rate, row, axis=0)
        rough = end + np.divide(after, rate, out=np.zeros_like(end), where=rate > 0)
        # Which residuals are within is now known: solve once more, from their own sums.
        V = np.clip(R - rough, -self.delta, self.delta)
        total = weight @ (np.abs(R - rough) < self.delta)
        return rough[0] + np.divide(weight @ V, total, out=np.zeros_like(total), where=total > 0)

    def easier(self, Y: Array) -> list[Loss]:
        # With most residuals beyond delta, which ones stay within is a combinatorial question:
        # it is answered bit by bit while delta comes down from the size of the targets.
        ratio = np.max(np.abs(Y), initial=0.0) / self.delta
        steps = int(np.ceil(np.log(max(ratio / 3, 1.0)) / np.log(3.0)))
        return [Huber(self.delta * 3.0**j) for j in range(steps, 0, -1)]

    def dual_units(self, V: Array, Y: Array) -> Array:
        return TERM_UNITS * np.abs(V) * (np.abs(Y) + np.abs(V))

    def bounds(self, Y: Array) -> tuple[Array | float, Array | float]:
        return -self.delta, self.delta


@dataclass(frozen=True)
class Logistic(Loss):
    r""":math:`\log(1 + e^{-yf})` with :math:`y = \pm 1`; independent over outputs."""

    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        F, Y = np.ascontiguousarray(F), np.ascontiguousarray(Y)
        value, V, H = (np.empty(F.shape) for _ in range(3))
        _core.logistic_expansion(F.shape, F, Y, value, V, H)
        return value, V, H

    def dual_value(self, V: Array, Y: Array) -> Array:
        value = np.empty(V.shape)
        given = np.ascontiguousarray(V), np.ascontiguousarray(Y)
        _core.logistic_dual(V.shape, *given, value)
        return value

    def constant(self, Y: Array, weight: Array) -> Array:
        positive = weight @ (Y > 0)
        return np.log(positive) - np.log(weight @ (Y < 0))

    def curvature_bound(self, F: Array) -> Array | float:
        return 0.25

    def bounds(self, Y: Array) -> tuple[Array | float, Array | float]:
        return np.minimum(Y, 0.0), np.maximum(Y, 0.0)

    def check_targets(self, Y: Array, weight: Array, intercept: bool) -> None:
        if not np.all(np.abs(Y) == 1):
            raise ValueError("Logistic targets must be -1 or +1.")
        counts = np.minimum(weight @ (Y > 0), weight @ (Y < 0))
        if intercept and np.any(counts == 0):
            raise ValueError(
                f"Output {int(np.argmin(counts))} has samples of one class only (of positive "
                "weight): with an intercept the loss has no finite minimiser. Add samples of the "
                "other class, or drop this output."
            )


@dataclass(frozen=True)
class Softmax(Loss):
    r"""Cross-entropy :math:`\log\sum_l e^{f_l} - \sum_l y_l f_l`, rows of `Y` one-hot.

    Joint over the outputs: :math:`\partial^2 = \mathrm{diag}(p) - pp^\top` per sample.
    """

    joint: ClassVar[bool] = True
    order: ClassVar[Literal["C", "F"]] = "F"

    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        F, Y = np.asfortranarray(F), np.asfortranarray(Y)
        value, V, P = np.empty((len(F), 1)), np.empty_like(F), np.empty_like(F)
        _core.softmax_expansion(F.shape, F.T, Y.T, value, V.T, P.T)
        return value, V, P

    def dual_value(self, V: Array, Y: Array) -> Array:
        value = np.empty((len(V), 1))
        _core.softmax_dual(V.shape, np.asfortranarray(V).T, np.asfortranarray(Y).T, value)
        return value

    def constant(self, Y: Array, weight: Array) -> Array:
        log_prior = np.log(weight @ Y)
        return log_prior - log_prior.mean()

    def bounds(self, Y: Array) -> tuple[Array | float, Array | float]:
        return Y - 1.0, Y

    def check_targets(self, Y: Array, weight: Array, intercept: bool) -> None:
        one_hot = np.all((Y == 0) | (Y == 1)) and np.all(Y.sum(axis=1) == 1)
        if not one_hot:
            raise ValueError("Softmax targets must be one-hot rows: 1 for the class, else 0.")
        mass = weight @ Y
        if intercept and np.any(mass == 0):
            raise ValueError(
                f"Class {int(np.argmin(mass))} has no sample of positive weight (classes are "
                "counted from 0, in sorted order): with an intercept the loss has no finite "
                "minimiser. Add samples of it, or fit without an intercept."
            )


@dataclass(frozen=True)
class Poisson(Loss):
    r"""Half the Poisson deviance with log link, :math:`e^f - yf + y\log y - y \ge 0`."""

    def expansion(self, F: Array, Y: Array) -> tuple[Array, Array, Array]:
        H, T = self.curvature(F, Y), F - _log(Y)
        with np.errstate(over="ignore", invalid="ignore"):
            slope = np.expm1(T)
            excess = np.where(np.abs(T) < 0.1, _series(T, _EXPONENTIAL), slope - T)
            value = np.where(Y > 0, Y * excess, np.exp(F))
        # Hopelessly high scores have a finite slope: it can still be scaled into a bound.
        slope = np.expm1(np.minimum(F, _STEEPEST) - _log(Y))
        return value, np.where(Y > 0, -Y * slope, -H), H

    def curvature(self, F: Array, Y: Array, damping: float = 0.0) -> Array:
        return np.exp(np.minimum(F, _STEEPEST))

    def dual_value(self, V: Array, Y: Array) -> Array:
        mean = np.maximum(Y - V, 0.0)
        rho = np.minimum(V / np.where(Y > 0, Y, 1.0), 1.0)
        far = rho + xlog1py(1 - rho, -rho)
        with np.errstate(over="ignore"):
            excess = np.where(np.abs(rho) < 0.1, _series(rho, _ENTROPY), far)
        return np.where(Y > 0, V * _log(Y) - Y * excess, mean + entr(mean))

    def intercept(self, S: Array, Y: Array, weight: Array) -> Array:
        # relative to the largest count and score, so that constant ones give it exactly
        S, Y, weight = S[weight > 0], Y[weight > 0], weight[weight > 0]
        high, top = Y.max(axis=0), S.max(axis=0)
        ratio = (weight @ (Y / high)) / (weight @ np.exp(S - top))
        return np.log(high) - top + np.log(ratio)

    def offset(self, Y: Array) -> Array | float:
        return 2 * np.abs(_log(Y))

    def negligible(self, Y: Array, weight: Array) -> float:
        # no float64 is the logarithm of a count: constant counts leave about 2**-106 of themselves
        return 1e-24 * float((weight @ Y).sum())

    def curvature_bound(self, F: Array) -> Array | float:
        return np.where(F > _STEEPEST, np.inf, np.exp(F))

    def dual_units(self, V: Array, Y: Array) -> Array:
        mean = np.maximum(Y - V, 0.0)
        logs = np.abs(_log(Y)) + np.abs(_log(mean))
        part = np.divide(np.abs(V), Y, out=np.ones_like(V), where=Y > 0)
        terms = logs + np.where(part < 0.1, part, ENTROPY_UNITS / TERM_UNITS)
        return TERM_UNITS * np.abs(V) * terms

    def bounds(self, Y: Array) -> tuple[Array | float, Array | float]:
        return -np.inf, Y

    def check_targets(self, Y: Array, weight: Array, intercept: bool) -> None:
        if np.any(Y < 0):
            raise ValueError(f"Poisson targets must not be negative, got {Y.min():g}.")
        if intercept and np.any(weight @ Y == 0):
            raise ValueError(
                "All counts of an output are zero: with an intercept the Poisson loss has no "
                "finite minimiser. Drop the output, or fit without an intercept."
            )


_STEEPEST = 300.0  # score from which on a Poisson loss has the slope that it has there

# Taylor coefficients from the square on, for arguments below 0.1, where closed forms cancel:
_EXPONENTIAL = tuple(1.0 / factorial(k) for k in range(2, 12))  # of exp(t) - 1 - t
_ENTROPY = tuple(1.0 / (k * (k - 1)) for k in range(2, 18))  # of t + (1 - t) log(1 - t)


def _series(t: Array, coefficients: tuple[float, ...]) -> Array:
    total = np.zeros_like(t)
    for c in reversed(coefficients):
        total = total * t + c
    return total * t * t


def _log(Y: Array) -> Array:
    return np.log(np.where(Y > 0, Y, 1.0))
