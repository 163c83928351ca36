r"""The empirical risk: the weighted loss of all samples at given scores, and its dual points.

.. math:: R(F) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i), \qquad
          V_i = -a_i\,\partial\,\mathrm{loss}(F_i, Y_i)

An intercept asks of a dual point V that every column sums to zero, and most losses that its entries
lie within bounds. Nothing is remembered between calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import intercepts
from .lazy import lazy
from .losses import Loss
from .softmax_hessian import joint_newton

Array = NDArray[np.float64]

ROUNDING = 1e-14  # relative
BALANCED = 1e-9  # part of a slope's terms that counts as zero: the loss is off by its square
MOST_NEWTON_STEPS, MOST_HALVINGS = 100, 60  # of an intercept


class Settled(NamedTuple):
    """The risk at scores with their best intercept."""

    b: Array  # (c,), zero where there is no intercept
    F: Array  # (N, c), scores with it
    loss: float
    V: Array | None  # (N, c), the dual point, where it came with the rest


class EmpiricalRisk:
    """The weighted loss of given targets.

    Parameters
    ----------
    loss : Loss
    Y : ndarray of shape (N, c)
    weight : ndarray of shape (N,)
    intercept : bool
    """

    def __init__(self, loss: Loss, Y: Array, weight: Array, intercept: bool) -> None:
        self.loss, self.Y, self.weight, self.intercept = loss, Y, weight, intercept
        self.is_plain, self.total = bool((weight == 1.0).all()), float(weight.sum())

    # Values ---------------------------------------------------------------------------------------

    def value(self, F: Array) -> float:
        """``sum_i a_i loss(F_i, Y_i)``."""
        if self.loss.quadratic and self.is_plain:
            R = self.Y - F
            return 0.5 * float(np.vdot(R, R))
        return float(self._sum(self.loss.expansion(F, self.Y)[0]).sum())

    def expansion(self, F: Array) -> tuple[float, Array, Array]:
        """`value`, and the loss's dual point and curvature entry by entry, without weights."""
        value, V, H = self.loss.expansion(F, self.Y)
        return float(self._sum(value).sum()), V, H

    def curvature(self, F: Array, damping: float = 0.0) -> Array:
        """The loss's curvature entry by entry, or the probabilities that define it."""
        return self.loss.curvature(F, self.Y, damping)

    def _sum(self, values: Array) -> Array:
        """Weighted sums over samples; a sample of weight zero counts for nothing, even if inf."""
        if self.is_plain:
            return self.weight @ values
        return self.weight @ np.where(self.weight[:, None] > 0, values, 0.0)

    def weighted(self, values: Array) -> Array:
        """`values` times the weights of their samples."""
        return values if self.is_plain else self.weight[:, None] * values

    def unweighted(self, V: Array) -> Array:
        """`V` over the weights of samples; zero for those of weight zero."""
        a = self.weight[:, None]
        return V if self.is_plain else np.divide(V, a, out=np.zeros_like(V), where=a > 0)

    # Intercepts -----------------------------------------------------------------------------------

    def settle(self, S: Array, b: Array) -> Settled:
        """The risk at scores `S` plus the best intercept, searched from `b` on."""
        if self.loss.quadratic:
            return self._settle_squared(S)
        here = intercepts.point(self.loss, S, self.Y, self.weight, b, self.intercept)
        if here is None or not here.settled:
            b = self.best_intercept(S, b)
            here = intercepts.point(self.loss, S, self.Y, self.weight, b, self.intercept)
        if here is not None:
            return Settled(here.b, here.F, here.loss, here.V)
        F = S + b
        return Settled(b, F, self.value(F), None)

    def _settle_squared(self, S: Array) -> Settled:
        R, b = self.Y - S, np.zeros(S.shape[1])
        if not self.is_plain:
            R[self.weight == 0.0] = 0.0
        if self.intercept:
            b = self.weight @ R / self.total
            R -= b
        V = self.weighted(R)
        if self.intercept:
            V = V - self.weighted(np.broadcast_to(V.sum(axis=0) / self.total, V.shape))
        return Settled(b, S + b, 0.5 * float(np.vdot(self.weighted(R), R)), V)

    def best_intercept(self, S: Array, b: Array) -> Array:
        """The intercept that minimises the risk at scores `S`, by Newton's method from `b`."""
        if not self.intercept:
            return np.zeros(S.shape[1])
        closed = self.loss.intercept(S, self.Y, self.weight)
        if closed is not None:
            return closed
        phi, e, size, H = self._slope(S, b)
        for _ in range(MOST_NEWTON_STEPS):
            if np.all(np.abs(e) <= BALANCED * size):
                break
            step = self._intercept_newton(H)(e)
            for _ in range(MOST_HALVINGS):
                trial = self._slope(S, b + step)
                bad = (trial[0] > phi + ROUNDING * np.abs(phi)) & (abs(trial[1]) > 0.5 * abs(e))
                if not np.any(bad):
                    break
                step = np.where(bad, 0.5 * step, step)
            else:
                break
            b = b + step
            phi, e, size, H = trial
        return b

    def moved_intercept(self, F: Array, b: Array, change: Array) -> Array:
        """Nearly the best intercept once scores change from `F`, which includes `b`."""
        if not self.intercept or self.loss.translates:  # the best one is computed directly
            return b
        H = self.curvature(F)
        bent = H * change
        if self.loss.joint:
            bent -= H * bent.sum(axis=1, keepdims=True)
        return b - self._intercept_newton(H)(self.weighted(bent).sum(axis=0))

    def best_constant(self) -> Array:
        """The intercept of the model without tokens, or nearly so: ``(c,)``."""
        if self.intercept and not self.loss.quadratic:
            return self.loss.constant(self.Y, self.weight)
        return np.zeros(self.Y.shape[1])

    def _slope(self, S: Array, b: Array) -> tuple[Array, Array, Array, Array]:
        """Loss, minus its slope in the intercept, the size of the slope's terms, and curvature."""
        value, V, H = self.loss.expansion(S + b, self.Y)
        V = self.weighted(V)
        return self._sum(value), V.sum(axis=0), np.abs(V).sum(axis=0), H

    def _intercept_newton(self, H: Array) -> Callable[[Array], Array]:
        """Newton's step of the intercept as a function of its slope."""
        W = self.weighted(H)
        size = W.sum(axis=0)
        if self.loss.joint:
            return joint_newton(size, W.T @ H)
        bent = np.maximum(size, 1e-10 * self.total)
        return lambda e: e / bent

    # Dual points ----------------------------------------------------------------------------------

    def dual_point(self, F: Array) -> Array:
        """The dual point of scores `F` that include their best intercept: ``(N, c)``."""
        if self.loss.quadratic:
            V = self._settle_squared(F).V
            assert V is not None
            return V
        _, V, H = self.loss.expansion(F, self.Y)
        return self._inside(self.balanced(V, H))

    def balanced(self, V: Array, H: Array, rounds: int = 2) -> Array:
        """`V` times weights, made to sum to zero where there is an intercept.

        `V` and `H` are the dual point and the curvature of the loss, entry by entry.
        """
        return self.balancing(V, H, rounds)[0]

    def balancing(self, V: Array, H: Array, rounds: int = 2) -> tuple[Array, Array]:
        """`balanced`, and the step of the intercept that it comes from.

        A second round removes the rounding of the first.
        """
        if not self.intercept:
            return self.weighted(V), np.zeros(V.shape[1])
        found = intercepts.balanced(self.loss, V, H, self.weight, rounds)
        if found is not None:
            return found
        V, step = self.weighted(V), np.zeros(V.shape[1])
        W = self.weight[:, None] if self.loss.quadratic else self.weighted(H)
        size = np.array([self.total]) if self.loss.quadratic else W.sum(axis=0)
        newton = joint_newton(size, W.T @ H) if self.loss.joint else None
        if newton is None and np.any(size <= 0):
            W = np.where(size <= 0, self.weight[:, None], W)
            size = W.sum(axis=0)
        for _ in range(rounds):
            e = V.sum(axis=0)
            if newton is not None:
                move = newton(e)
                V = V - W * (move - H @ move[:, None])
            else:
                move = e / size
                V = V - W * move
            step += move
        return V, step

    @lazy
    def bounds(self) -> tuple[Array, Array]:
        """Ends of the interval allowed to every entry of a dual point."""
        a = self.weight[:, None]
        lower, upper = (np.broadcast_to(end, self.Y.shape) for end in self.loss.bounds(self.Y))
        # 0 * inf: a sample of weight zero has no dual point but zero
        with np.errstate(invalid="ignore"):
            low, high = (np.where(a > 0, a * end, 0.0) for end in (lower, upper))
        return np.asarray(low, order=self.loss.order), np.asarray(high, order=self.loss.order)

    def _inside(self, V: Array) -> Array:
        """`V` moved within bounds."""
        lower, upper = self.bounds
        inside = np.minimum(np.maximum(V, lower), upper)
        off = inside - V
        if off.any() and np.any(np.abs(off) > ROUNDING * self.weight[:, None]):
            inside = np.clip(self._drawn_inside(V), lower, upper)
        if self.loss.joint:  # correlations are formed on the assumption that rows sum to zero
            inside[:, -1] = -inside[:, :-1].sum(axis=1)
        return inside

    def _drawn_inside(self, V: Array) -> Array:
        """`V` moved within bounds, along the line to a balanced point that is inside."""
        lower, upper = self.bounds
        free = self.weight > 0
        around_zero = np.all(lower[free] < 0) and np.all(upper[free] > 0)
        inside = np.zeros_like(V)
        if not around_zero:
            F = self.settle(np.zeros_like(self.Y), self.best_constant()).F
            inside = np.clip(self.balanced(*self.loss.expansion(F, self.Y)[1:]), lower, upper)
        move = V - inside
        room = np.where(move > 0, upper - inside, inside - lower)
        ratio = np.divide(room, np.abs(move), out=np.ones_like(V), where=move != 0)
        return inside + min(1.0, float(np.min(ratio))) * move

    def dual_value(self, V: Array, scale: Array | float = 1.0) -> float:
        """``-sum_i a_i loss*(-scale V_i / a_i)``."""
        return float((self.weight @ self.loss.dual_value(scale * self.unweighted(V), self.Y)).sum())
