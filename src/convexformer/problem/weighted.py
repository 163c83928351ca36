"""The loss of all samples: its weighted sum, and the intercept at which that is least."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from . import intercepts
from .intercepts import Point
from .joint import joint_newton
from .losses import Loss
from .points import Residual, residual

Array = NDArray[np.float64]

ROUNDING = 1e-14
MOST_KEPT = 1 << 22  # numbers of scores and of a dual point that are kept
_BALANCED = 1e-9  # part of a slope's terms that counts as none: the loss is off by its square


class WeightedLoss:
    """A loss of given targets and weights, at scores ``F = S + b``.

    What it is at the last scores is kept: where a step ends the next one and certificates begin.
    """

    def __init__(self, loss: Loss, Y: Array, weight: Array, intercept: bool) -> None:
        self.loss, self.Y, self.weight, self.intercept = loss, Y, weight, intercept
        self.n_outputs = Y.shape[1]
        self.is_plain, self._total = bool((weight == 1.0).all()), float(weight.sum())
        self._ones = weight if self.is_plain else np.ones(len(weight))  # sums of columns by BLAS
        self._forget()

    def _forget(self) -> None:
        self._expanded: tuple[Array, tuple[Array, Array, Array]] | None = None
        self._left: tuple[Array | None, Residual] | None = None
        self._met: tuple[Array | None, Point] | None = None

    def residual(self, S: Array) -> Residual:
        """What scores `S`, with an intercept or not, leave of the targets of a squared loss.

        The last one is kept, to be found by the array of its scores.
        """
        kept = self._left  # once: another thread may put its own there
        if kept is not None and (kept[0] is S or kept[1].F is S):
            return kept[1]
        found = residual(S, self.Y, self.weight, self.intercept)
        few = S.size < MOST_KEPT // 4
        self._left = (S if lasts(S) else None, found) if few else None
        return found

    def point(self, S: Array, b: Array) -> Point | None:
        """All that is to be known of the loss at scores ``S + b``, where that is compiled.

        The last one is kept, to be found by the array of its scores.
        """
        kept = self._met  # once: another thread may put its own there
        if kept is not None and kept[0] is S and kept[1].b.tolist() == b.tolist():
            return kept[1]
        found = intercepts.point(self.loss, S, self.Y, self.weight, b, self.intercept)
        few = S.size < MOST_KEPT // 4
        self._met = (S if lasts(S) else None, found) if found is not None and few else None
        return found

    def loss_at(self, S: Array, b: Array) -> float:
        """The loss of scores ``S + b``."""
        here = self.residual(S) if self.loss.quadratic else self.point(S, b)
        if here is None or here.b.tolist() != b.tolist():
            return self.loss_value(S + b)
        return here.loss

    def best_scores(self, S: Array, b: Array) -> Array:
        """Scores `S` with the best intercept, from `b` on."""
        if self.loss.quadratic:
            return self.residual(S).F
        here = self.point(S, b)
        if here is not None and here.settled:
            return here.F
        return S + self.best_intercept(S, b)

    def loss_value(self, F: Array) -> float:
        """``sum_i a_i loss(F_i, Y_i)`` at inner scores `F`."""
        if self.loss.quadratic and self.is_plain:
            R = self.Y - F
            return 0.5 * float(np.vdot(R, R))
        return float(self._sum(self._expand(F)[0]).sum())

    def expansion(self, F: Array) -> tuple[float, Array, Array]:
        """`loss_value`, and the loss's dual point and curvature entry by entry."""
        value, V, P = self._expand(F)
        return float(self._sum(value).sum()), V, P

    def curvature(self, F: Array, damping: float = 0.0) -> Array:
        """The loss's curvature entry by entry, or the probabilities that define it."""
        if damping and self.loss.damps:
            return self.loss.curvature(F, self.Y, damping)
        return self._expand(F)[2]

    def _expand(self, F: Array) -> tuple[Array, Array, Array]:
        """The loss's value, dual point and curvature, to be read only; the last ones are kept."""
        kept = self._expanded  # once: another thread may put its own there
        if kept is not None and same(kept[0], F):
            return kept[1]
        parts = self.loss.expansion(F, self.Y)
        self._expanded = (lasting(F), parts) if F.size < MOST_KEPT // 4 else None
        return parts

    def _sum(self, values: Array) -> Array:
        """Weighted sum over samples; one without weight counts for nothing, infinite or not."""
        if self.is_plain:
            return self._ones @ values
        return self.weight @ np.where(self.weight[:, None] > 0, values, 0.0)

    def dot(self, A: Array, B: Array) -> Array:
        """Weighted sum over samples of products, ``(c,)``."""
        return self.weight @ (A * B)

    def _weighted(self, values: Array) -> Array:
        return values if self.is_plain else self.weight[:, None] * values

    def unweighted(self, V: Array) -> Array:
        """`V` over the weights of samples; of those without weight there is nothing."""
        a = self.weight[:, None]
        return V if self.is_plain else np.divide(V, a, out=np.zeros_like(V), where=a > 0)

    def best_intercept(self, S: Array, b: Array) -> Array:
        """Minimise the loss over the intercept at fixed scores `S`, starting from `b`."""
        if not self.intercept:
            return np.zeros(self.n_outputs)
        closed = self.loss.intercept(S, self.Y, self.weight)
        if closed is None:
            closed = intercepts.best(self.loss, S, self.Y, self.weight, b)
        if closed is not None:
            return closed
        phi, e, size, P = self._slope(S, b)
        for _ in range(100):
            if np.all(np.abs(e) <= _BALANCED * size):
                break
            step = self._intercept_newton(P)(e)
            for _ in range(60):
                trial = self._slope(S, b + step)
                bad = (trial[0] > phi + ROUNDING * np.abs(phi)) & (abs(trial[1]) > 0.5 * abs(e))
                if not np.any(bad):
                    break
                step = np.where(bad, 0.5 * step, step)
            else:
                break
            b = b + step
            phi, e, size, P = trial
        return b

    def moved_intercept(self, F: Array, b: Array, change: Array) -> Array:
        """Nearly the best intercept once scores change from `F`, which has `b`, by `change`."""
        if not self.intercept or self.loss.translates:  # the best one is known anyway
            return b
        P = self.curvature(F)
        bent = P * change
        if self.loss.joint:
            bent -= P * bent.sum(axis=1, keepdims=True)
        return b - self._intercept_newton(P)(self._weighted(bent).sum(axis=0))

    def _slope(self, S: Array, b: Array) -> tuple[Array, Array, Array, Array]:
        """Loss, minus its slope in the intercept, the size of the slope's terms, and curvature."""
        value, V, P = self._expand(S + b)
        V = self._weighted(V)
        return self._sum(value), V.sum(axis=0), np.abs(V).sum(axis=0), P

    def _intercept_newton(self, P: Array) -> Callable[[Array], Array]:
        """Newton steps of the intercept as a function of its slope, from the loss's curvature."""
        H = self._weighted(P)
        size = H.sum(axis=0)
        if self.loss.joint:
            return joint_newton(size, H.T @ P)
        bent = np.maximum(size, 1e-10 * self.weight.sum())
        return lambda e: e / bent

    def balanced(self, V: Array, P: Array, rounds: int = 2) -> tuple[Array, Array]:
        """Weighted `V`, made to sum to zero where there is an intercept, and its step.

        `V` and `P` are dual point and curvature of the loss, entry by entry. A second round removes
        the rounding of the first.
        """
        if not self.intercept:
            return self._weighted(V), np.zeros(self.n_outputs)
        found = intercepts.balanced(self.loss, V, P, self.weight, rounds)
        if found is not None:
            return found
        V, total = self._weighted(V), np.zeros(self.n_outputs)
        H = self.weight[:, None] if self.loss.quadratic else self._weighted(P)
        size = np.array([self._total]) if self.loss.quadratic else H.sum(axis=0)
        newton = joint_newton(size, H.T @ P) if self.loss.joint else None
        if newton is None and np.any(size <= 0):
            H = np.where(size <= 0, self.weight[:, None], H)
            size = H.sum(axis=0)
        for _ in range(rounds):
            e = self._ones @ V
            if newton is not None:
                step = newton(e)
                V = V - H * (step - P @ step[:, None])
            else:
                step = e / size
                V = V - (step if self.is_plain and self.loss.quadratic else H * step)
            total += step
        return V, total


def same(kept: Array, A: Array) -> bool:
    """Whether `A` is what was kept: as a rule it is the same array, and else has to be compared."""
    return kept is A or (kept.shape == A.shape and bool((kept == A).all()))


def lasts(A: Array) -> bool:
    """Whether `A` is never written to."""
    return not A.flags.writeable and A.base is None


def lasting(A: Array) -> Array:
    """`A`, or a copy of it where it might be written to."""
    return A if lasts(A) else A.copy()
