r"""The empirical risk: the weighted loss of all samples at given scores, and its dual points.

.. math:: R(F) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i), \qquad
          V_i = -a_i\,\partial\,\mathrm{loss}(F_i, Y_i)

An intercept asks of a dual point V that every column sums to zero, and most losses that its entries
lie within bounds. Nothing is remembered between calls. For a logistic loss of one output and a
softmax of a few, compiled code does what it can; the rest of this file is for any loss.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import _core
from .arrays import Array
from .lazy import lazy
from .losses import Logistic, Loss, Softmax
from .softmax_hessian import joint_newton

ROUNDING = 1e-14  # relative


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
        known = isinstance(loss, Logistic) if Y.shape[1] == 1 else isinstance(loss, Softmax)
        self._compiled = known and Y.shape[1] <= 16 and len(Y) > 0 and Y.flags.f_contiguous

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
        if not self.intercept:
            b = np.zeros(S.shape[1])
        here, is_best = self._settle_compiled(S, b)
        if here is None or not is_best:
            b = self.best_intercept(S, b)
            here, _ = self._settle_compiled(S, b)
        if here is not None:
            return here
        F = S + b
        return Settled(b, F, self.value(F), None)

    def _settle_compiled(self, S: Array, b: Array) -> tuple[Settled | None, bool]:
        """The risk at scores ``S + b``, and whether `b` is the best; None if left to others."""
        if not (self._compiled and S.flags.f_contiguous):
            return None, False
        F, V = np.empty(S.shape, order="F"), np.empty(S.shape, order="F")
        rounds = 2 if self.intercept else 0
        given = S.T, self.Y.T, self.weight, b
        found, value, is_best = _core.loss_point(S.shape, rounds, *given, F.T, V.T)
        F.flags.writeable = False
        return (Settled(b.copy(), F, value, V) if found else None), bool(is_best)

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
        phi, e, size, parts = self._slope(S, b)
        for _ in range(100):
            if np.all(np.abs(e) <= 1e-9 * size):  # the loss is off by the square of that
                break
            step = self.balancing(*parts, rounds=1)[1]
            for _ in range(60):
                trial = self._slope(S, b + step)
                bad = (trial[0] > phi + ROUNDING * np.abs(phi)) & (abs(trial[1]) > 0.5 * abs(e))
                if not np.any(bad):
                    break
                step = np.where(bad, 0.5 * step, step)
            else:
                break
            b = b + step
            phi, e, size, parts = trial
        return b

    def moved_intercept(self, F: Array, b: Array, change: Array) -> Array:
        """Nearly the best intercept once scores change from `F`, which includes `b`."""
        if not self.intercept or self.loss.translates:  # the best one is computed directly
            return b
        H = self.curvature(F)
        bent = H * change
        if self.loss.joint:
            bent -= H * bent.sum(axis=1, keepdims=True)
        return b + self.balancing(-bent, H, rounds=1)[1]

    def best_constant(self) -> Array:
        """The intercept of the model without tokens, or nearly so: ``(c,)``."""
        if self.intercept and not self.loss.quadratic:
            return self.loss.constant(self.Y, self.weight)
        return np.zeros(self.Y.shape[1])

    def _slope(self, S: Array, b: Array) -> tuple[Array, Array, Array, tuple[Array, Array]]:
        """Loss, minus its slope in the intercept, the size of its terms; dual point and curvature.

        The last two are entry by entry, without weights.
        """
        value, V, H = self.loss.expansion(S + b, self.Y)
        weighted = self.weighted(V)
        return self._sum(value), weighted.sum(axis=0), np.abs(weighted).sum(axis=0), (V, H)

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
        out, step = self.weighted(V), np.zeros(V.shape[1])
        if not self.intercept:
            return out, step
        if self._compiled and V.flags.f_contiguous and H.flags.f_contiguous:
            balanced = np.empty(V.shape, order="F")
            if _core.balance(V.shape, rounds, V.T, H.T, self.weight, balanced.T, step):
                return balanced, step
        W, step = self.weighted(H), np.zeros(V.shape[1])
        size = W.sum(axis=0)
        flat = size <= 1e-10 * self.total
        if not self.loss.joint and flat.any():  # without curvature all samples move alike
            W = np.where(flat, 1e-10 * self.weight[:, None], W)
            size = W.sum(axis=0)
        newton = joint_newton(size, W.T @ H) if self.loss.joint else lambda e: e / size
        for _ in range(rounds):
            move = newton(out.sum(axis=0))
            out = out - W * (move - H @ move[:, None] if self.loss.joint else move)
            step = step + move
        return out, step

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
        """`V` moved within bounds, along the line to a balanced point that is inside."""
        lower, upper = self.bounds
        inside = np.minimum(np.maximum(V, lower), upper)
        if np.any(np.abs(inside - V) > ROUNDING * self.weight[:, None]):
            origin = self._interior()
            move = V - origin
            room = np.where(move > 0, upper - origin, origin - lower)
            ratio = np.divide(room, np.abs(move), out=np.ones_like(V), where=move != 0)
            inside = np.clip(origin + min(1.0, float(np.min(ratio))) * move, lower, upper)
        if self.loss.joint:  # correlations are formed on the assumption that rows sum to zero
            inside[:, -1] = -inside[:, :-1].sum(axis=1)
        return inside

    def _interior(self) -> Array:
        """A balanced dual point within bounds: zero, or the null model's if zero is an end."""
        lower, upper = self.bounds
        if ((lower < 0) & (upper > 0) | (self.weight[:, None] == 0)).all():
            return np.zeros_like(self.Y)
        F = self.settle(np.zeros_like(self.Y), self.best_constant()).F
        return np.clip(self.balanced(*self.loss.expansion(F, self.Y)[1:]), lower, upper)

    def dual_value(self, V: Array, scale: Array | float = 1.0) -> float:
        """``-sum_i a_i loss*(-scale V_i / a_i)``."""
        return float((self.weight @ self.loss.dual_value(scale * self.unweighted(V), self.Y)).sum())
