r"""Duals: the dual point of scores, repaired into the conjugate's domain, and its value.

.. math:: D(V) = -\sum_i a_i\,\mathrm{loss}^*(-V_i / a_i) \quad \text{subject to}
          \quad \|X_k^\top V\| \le \beta w_k, \quad \sum_i V_i = 0 \text{ with an intercept}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from . import intercepts
from .certificate import check_range
from .designs import Groups
from .foremost import foremost
from .penalties import Penalty
from .scored import ScoredLoss
from .weighted import MOST_KEPT, ROUNDING, lasting, lasts, same

Array = NDArray[np.float64]
Ray = tuple[Array, Array]


@dataclass(frozen=True)
class DualPoint:
    """A dual point that meets every constraint but the norm ball, which scaling meets."""

    V: Array  # (N, c), sums to zero over samples where there is an intercept
    M: Array  # (groups, d, c), its correlations
    norms: Array  # (groups, cells), dual norms of M
    ray: Ray | None = None  # sums over samples of V Y and of squares, if these are known
    values: dict[float, float] = field(default_factory=dict)  # dual values, by beta


class Dual(ScoredLoss):
    """The dual of a loss of scores and a penalty; the last point is kept."""

    penalty: Penalty
    shape: tuple[int, int, int]  # (groups, d, c)

    def _forget(self) -> None:
        super()._forget()
        self._last: tuple[Array, DualPoint] | None = None

    @cached_property
    def null(self) -> tuple[Array, Array, float]:
        """Inner intercept of the model without tokens, its scores, to be read only, and loss."""
        b = np.zeros(self.n_outputs)
        if self.intercept and not self.loss.quadratic:
            b = self.loss.constant(self.Y, self.weight)
        return self.settle(np.zeros(self.shape), np.zeros_like(self.Y), b)

    @property
    def null_intercept(self) -> Array:
        """Inner intercept of the model without tokens."""
        return self.null[0]

    @property
    def null_scores(self) -> Array:
        """Inner scores of the model without tokens, to be read only."""
        return self.null[1]

    @cached_property
    def null_direction(self) -> Array:
        """What the model without tokens leaves, weighted and balanced: ``(N, c)``."""
        if self.loss.quadratic:
            return self.dual_direction(self.null_scores)[0]
        return self.balanced(*self._expand(self.null_scores)[1:])[0]

    @cached_property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        return self._null_norm()

    def _null_norm(self) -> float:
        """Dual norm of what the model without tokens leaves."""
        F = self.null_scores
        if self.Y.size + prod(self.shape) < MOST_KEPT:  # of use to whoever starts there
            point, groups = self.dual_point(F), None
            V, M, norms = point.V, point.M, point.norms
        else:
            V = self.dual_direction(F)[0]
            groups = foremost(self.design, self.penalty, V)
            M = self.design.correlate(V, groups)
            norms = self.penalty.of(groups).dual_norms(M)
        return self._largest(V, M, norms, groups)

    def _largest(self, V: Array, M: Array, norms: Array, groups: Groups | None = None) -> float:
        """The largest norm of the correlations `M` of `V`; 0 where these are rounding."""
        known = slice(-1 if self.loss.joint else None)  # the last output is what others come to
        if self.design.is_noise(M[:, :, known], V[:, known], groups):
            return 0.0
        return check_range(float(norms.max(initial=0.0)))

    @property
    def knows_beta_max(self) -> bool:
        """Whether `beta_max` takes no more pass over X."""
        return "beta_max" in self.__dict__

    def dual_point(self, F: Array) -> DualPoint:
        """The dual point of inner scores `F`, repaired into the conjugate's domain.

        The last one is kept: where a solver ends, its certificate is asked for next.
        """
        kept = self._last
        if kept is not None and same(kept[0], F):
            self._last = (F, kept[1]) if lasts(F) else kept
            return kept[1]
        V, ray = self.dual_direction(F)
        M = self._followed_correlations(V)
        if M is None:
            M = self.correlations(V, self._correlate)
        point = self._point(V, ray, M)
        self._last = (lasting(F), point) if M.size + F.size < MOST_KEPT else None
        return point

    def _correlate(self, V: Array) -> Array:
        """Correlations of `V`, summed as those are that come with scores."""
        if not self.follows:
            return self.design.correlate(V)
        return self.design.follow(np.zeros(self.shape), V, np.ones(len(V)))[2]

    def _point(self, V: Array, ray: Ray | None, M: Array) -> DualPoint:
        return DualPoint(V, M, self.penalty.dual_norms(M), ray)

    def dual_direction(self, F: Array) -> tuple[Array, Ray | None]:
        """V of the dual point of inner scores `F`, and its ray."""
        if self.loss.quadratic:  # whose conjugate is finite
            left = self.residual(F)
            return left.V, (left.top, left.bottom)
        kept = self._met  # once: another thread may put its own there
        if kept is not None and kept[1].F is F:
            return kept[1].V, None
        return self._inside(self.balanced(*self._expand(F)[1:])[0]), None

    def ray(self, point: DualPoint) -> Ray:
        """Of a squared loss: sums over samples of ``V Y`` and of squares of V over weights.

        One of each for every part of the problem that has a norm ball of its own.
        """
        ray = point.ray
        if ray is None:
            V = self.unweighted(point.V)
            ray = self.dot(self.Y, V), self.dot(V, V)
        return ray if self.separable else (ray[0].sum(keepdims=True), ray[1].sum(keepdims=True))

    def _inside(self, V: Array) -> Array:
        """`V` within bounds."""
        found = intercepts.confined(self.loss, V, self.Y, self.weight)
        if found is not None:
            return found
        lower, upper = self.bounds
        inside = np.minimum(np.maximum(V, lower), upper)
        off = inside - V
        if off.any() and np.any(np.abs(off) > ROUNDING * self.weight[:, None]):
            inside = np.clip(self._drawn_inside(V), lower, upper)
        if self.loss.joint:  # as is assumed of their correlations
            inside[:, -1] = -inside[:, :-1].sum(axis=1)
        return inside

    def correlations(self, V: Array, correlate: Callable[[Array], Array]) -> Array:
        """``M = X'V``; of a joint loss both sum to zero over outputs, and the last one follows."""
        if not self.loss.joint:
            return correlate(V)
        M = correlate(V[:, :-1])
        return np.concatenate([M, -M.sum(axis=2, keepdims=True)], axis=2)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Ends of the interval allowed to every entry of a dual point."""
        a = self.weight[:, None]
        lower, upper = (np.broadcast_to(end, self.Y.shape) for end in self.loss.bounds(self.Y))
        # 0 * inf: a sample without weight has no dual point but zero
        with np.errstate(invalid="ignore"):
            low, high = (np.where(a > 0, a * end, 0.0) for end in (lower, upper))
        return np.asarray(low, order=self.loss.order), np.asarray(high, order=self.loss.order)

    def _drawn_inside(self, V: Array) -> Array:
        """Move `V` within bounds, towards a balanced point that is inside."""
        lower, upper = self.bounds
        free = self.weight > 0
        around_zero = np.all(lower[free] < 0) and np.all(upper[free] > 0)
        inside = np.zeros_like(V) if around_zero else np.clip(self.null_direction, lower, upper)
        move = V - inside
        room = np.where(move > 0, upper - inside, inside - lower)
        ratio = np.divide(room, np.abs(move), out=np.ones_like(V), where=move != 0)
        return inside + min(1.0, float(np.min(ratio))) * move

    @property
    def separable(self) -> bool:
        """Whether every output is a problem of its own."""
        return self.penalty.separable and not self.loss.joint

    def dual_value(self, point: DualPoint, beta: float) -> float:
        """Best dual value on the ray of `point`, scaled into the norm ball."""
        if beta not in point.values:
            point.values[beta] = self._dual_value(point, beta)
        return point.values[beta]

    def _dual_value(self, point: DualPoint, beta: float) -> float:
        norms = point.norms.max(axis=0, initial=0.0).tolist()
        sizes = norms if self.separable else [max(norms)]
        limits = [beta / size if size > 0 and self.beta_max > 0 else np.inf for size in sizes]
        if not self.loss.quadratic:
            V = np.minimum(1.0, limits) * self.unweighted(point.V)
            return float((self.weight @ self.loss.dual_value(V, self.Y)).sum())
        top, bottom = self.ray(point)
        return sum(map(_best_on_ray, top.tolist(), bottom.tolist(), limits))


def _best_on_ray(top: float, bottom: float, limit: float) -> float:
    """The dual value ``scale (top - scale bottom / 2)`` at its best, up to the norm ball."""
    scale = min(max(0.0, top / bottom) if bottom > 0 else 0.0, limit)
    return scale * (top - 0.5 * scale * bottom)
