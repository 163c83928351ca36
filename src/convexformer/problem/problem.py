r"""Problem: design + loss + penalty + targets, with the dual bound that certifies a solution.

.. math:: P(Z, b) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i) + \beta\,\mathrm{penalty}(Z),
          \qquad F = \sum_k X_k Z_k + 1 b^\top

Inside, columns of X are read less their means wherever there is an intercept: the model is the
same, the intercept moves by ``means . Z``, and second-order models stay well conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import intercepts
from .certificate import Certificate, check_range
from .designs import Design, Groups
from .foremost import foremost
from .joint import softmax_quadratic
from .losses import Logistic, Loss, Softmax
from .penalties import Penalty, TokenOutput
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


class Problem(ScoredLoss):
    r"""A convex training problem.

    Parameters
    ----------
    design : Design
        Holds X.
    loss : Loss
    penalty : Penalty
    Y : array-like of shape (N, c)
        Targets: numbers, counts, -1/+1 (:class:`Logistic`) or one-hot rows (:class:`Softmax`).
    sample_weight : array-like of shape (N,), optional
        Non-negative weights :math:`a_i`.
    intercept : bool
        Whether an unpenalised intercept is part of the model.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
    >>> X = np.random.default_rng(0).normal(size=(20, 4, 3))
    >>> y = X[:, 2, :1]
    >>> problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y)
    >>> problem.certificate(np.zeros((4, 3, 1)), np.mean(y, 0), beta=problem.beta_max).gap <= 1e-12
    True
    """

    def __init__(
        self,
        design: Design,
        loss: Loss,
        penalty: Penalty,
        Y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        intercept: bool = True,
    ) -> None:
        Y = np.asarray(Y, dtype=np.float64)
        weight = (
            np.ones(design.n_samples)
            if sample_weight is None
            else np.require(sample_weight, np.float64, ["C", "A"])
        )
        self._check(design, penalty, Y, weight)
        loss.check_targets(Y, weight, intercept)
        if Y.shape[1] == 1 and not penalty.euclidean:  # one column has one singular value
            penalty = TokenOutput(penalty.weights)
        self.design, self.penalty = design, penalty
        self.shape = (design.n_groups, design.dim, Y.shape[1])
        # Losses of a residual do not see a common shift: targets near zero round less.
        shifts = intercept and loss.translates
        self._shift = _location(loss, Y, weight) if shifts else np.zeros(Y.shape[1])
        # A joint loss sums over outputs, which is fast where samples are adjacent.
        Y = np.asarray(Y - self._shift, order="F" if loss.joint else "C")
        super().__init__(loss, Y, weight, intercept)
        self.center = self._means() if intercept else None

    @staticmethod
    def _check(design: Design, penalty: Penalty, Y: Array, weight: Array) -> None:
        if Y.ndim != 2 or len(Y) != design.n_samples:
            raise ValueError(f"Y must have shape ({design.n_samples}, c), got {Y.shape}.")
        if weight.shape != (design.n_samples,):
            raise ValueError(f"sample_weight must have shape ({len(Y)},), got {weight.shape}.")
        if not (weight.min(initial=1.0) >= 0 and 0 < weight.max(initial=0.0) < np.inf):
            raise ValueError("sample_weight must be finite, not negative, and not all zero.")
        if not np.isfinite(Y).all():
            raise ValueError("Y contains NaN or infinity.")
        if penalty.weights is not None and len(penalty.weights) != design.n_groups:
            raise ValueError(
                f"The penalty has {len(penalty.weights)} weights for {design.n_groups} tokens."
            )

    def output(self, index: int) -> Problem:
        """The problem of one output alone; together they are this one where outputs separate."""
        return self.outputs([index])

    def outputs(self, indices: Sequence[int] | NDArray[np.intp]) -> Problem:
        """The problem of some outputs."""
        return self._with_targets(self.Y[:, indices], self._shift[indices])

    def rotated(self, axes: Array) -> Problem:
        """The problem of the outputs ``Y axes``, for orthonormal `axes` ``(c, r)``.

        Where loss and penalty see only lengths over outputs, and `axes` span the rows of Y, its
        solutions times ``axes'`` are those of this problem.
        """
        return self._with_targets(self.Y @ axes, self._shift @ axes)

    @property
    def principal_axes(self) -> Array:
        """Axes of the targets, largest first, less those along which they do not vary."""
        R = np.linalg.qr(np.sqrt(self.weight)[:, None] * self.Y, mode="r")
        _, size, Vt = np.linalg.svd(R)
        rank = int(np.count_nonzero(size > len(Vt) * np.finfo(float).eps * size.max(initial=0.0)))
        return np.asarray(Vt[: max(rank, 1)].T)

    def with_loss(self, loss: Loss) -> Problem:
        """The same problem under another loss for the same targets."""
        other = self._copy()
        other.loss = loss
        return other

    @cached_property
    def as_logistic(self) -> tuple[Problem, float] | None:
        r"""A softmax over two classes as a logistic problem, and by how much its beta is less.

        At the optimum scores are :math:`(f/2, -f/2)`, for any other sum costs more penalty: then
        the loss is that of f, and norms over both outputs are :math:`\|z\|/\sqrt2`. None for other
        problems, and where a sample is not in one class alone.
        """
        two = isinstance(self.loss, Softmax) and self.n_outputs == 2 and self.penalty.euclidean
        if not two or not np.all((self.Y == 0) | (self.Y == 1)):
            return None
        one = self.with_loss(Logistic())._with_targets(2.0 * self.Y[:, :1] - 1.0, np.zeros(1))
        return one, 1.0 if self.penalty.separable else np.sqrt(0.5)

    def _with_targets(self, Y: Array, shift: Array) -> Problem:
        other = self._copy()
        other.n_outputs, other.shape = Y.shape[1], (*self.shape[:2], Y.shape[1])
        other.Y = Y if self.loss.joint else np.ascontiguousarray(Y)
        other._shift = shift
        return other

    def _copy(self) -> Problem:
        other = copy(self)
        for name in ("null", "null_direction", "beta_max", "_bounds", "as_logistic"):
            other.__dict__.pop(name, None)
        other._forget()
        return other

    def _forget(self) -> None:
        super()._forget()
        self._last: tuple[Array, DualPoint] | None = None
        self._foreseen: Array | None = None

    def _means(self) -> Array:
        """Means of columns; the same pass over X does for the dual point without tokens."""
        if not self.follows:
            return self.design.means(self.weight)
        V, ones = self.null_direction, np.ones_like(self.Y)
        _, _, M = self.design.follow(np.zeros(self.shape), ones, self.weight, V)
        F = self.null_scores
        self._last = F, self._point(*self._dual_direction(F), M[:, :, 1:])
        return np.asarray(M[:, :, 0] / self._total)

    # Primal -----------------------------------------------------------------------------------

    def follow(self, Z: Array) -> None:
        """Find out in one pass over X what the certificate of `Z` takes, `beta_max` included."""
        V, lift = self.null_direction, self._lift(Z)
        F, left, M = self.design.follow(Z, self.Y + lift, self.weight, V)
        self._followed = [left, M[:, :, :1]]
        self._keep_scores(Z, F - lift)
        self.beta_max = self._largest(V, M[:, :, 1:], self.penalty.dual_norms(M[:, :, 1:]))

    def recall(self, Z: Array) -> tuple[Array, Array] | None:
        """Scores of `Z` and the correlations of their dual point, if both are still known."""
        scored, left, last = self._scored, self._left, self._last
        if scored is None or left is None or last is None or not same(scored[0], Z):
            return None
        known = left[0] is scored[1] and last[0] is left[1].F
        return (scored[1], last[1].M) if known else None

    def foresee(self, Z: Array, S: Array, M: Array) -> None:
        """Take scores of `Z` and correlations of their dual point as given, to be asked for next.

        As on a line through known points, along which those of a squared loss are linear.
        """
        F = self.residual(self._keep_scores(Z, S)).F
        self._foreseen = Z
        self._last = F, self._point(*self._dual_direction(F), M)

    def disregard(self, Z: Array) -> None:
        """Forget what was foreseen of `Z`: certificates compute their own."""
        kept = self._foreseen  # once: another thread may put its own there
        if kept is not None and same(kept, Z):
            self._forget()

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        F = self.scores(Z) + self.inner_intercept(Z, b)
        return self.loss_value(F) + beta * self.penalty.value(Z)

    # Dual -------------------------------------------------------------------------------------

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
            return self._dual_direction(self.null_scores)[0]
        return self.balanced(*self._expand(self.null_scores)[1:])[0]

    @cached_property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        if self.as_logistic is not None:
            one, scale = self.as_logistic
            return one.beta_max / scale
        F = self.null_scores
        if self.Y.size + prod(self.shape) < MOST_KEPT:  # of use to whoever starts there
            point, groups = self.dual_point(F), None
            V, M, norms = point.V, point.M, point.norms
        else:
            V = self._dual_direction(F)[0]
            groups = foremost(self.design, self.penalty, V)
            M = self.design.correlate(V, groups)
            norms = self.penalty.of(groups).dual_norms(M)
        return self._largest(V, M, norms, groups)

    def _largest(self, V: Array, M: Array, norms: Array, groups: Groups | None = None) -> float:
        """The largest norm of the correlations `M` of `V`; 0 where these are rounding."""
        if self.design.is_noise(M, V, groups):
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
        V, ray = self._dual_direction(F)
        M = self._followed_correlations(V)
        if M is None:
            M = self.correlations(V, self._correlate)
        point = self._point(V, ray, M)
        self._last = (lasting(F), point) if M.size + F.size < MOST_KEPT else None
        return point

    def _correlate(self, V: Array) -> Array:
        """Correlations of `V`, summed in one order however they come: `beta_max` is one number."""
        if not self.follows:
            return self.design.correlate(V)
        return self.design.follow(np.zeros(self.shape), V, np.ones(len(V)))[2]

    def _point(self, V: Array, ray: Ray | None, M: Array) -> DualPoint:
        return DualPoint(V, M, self.penalty.dual_norms(M), ray)

    def _dual_direction(self, F: Array) -> tuple[Array, Ray | None]:
        """V of the dual point of inner scores `F`, and its ray."""
        if self.loss.quadratic:  # whose conjugate is finite
            left = self.residual(F)
            return left.V, (left.top, left.bottom)
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
        lower, upper = self._bounds
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
    def _bounds(self) -> tuple[Array, Array]:
        """Ends of the interval allowed to every entry of a dual point."""
        a = self.weight[:, None]
        lower, upper = (np.broadcast_to(end, self.Y.shape) for end in self.loss.bounds(self.Y))
        # 0 * inf: a sample without weight has no dual point but zero
        with np.errstate(invalid="ignore"):
            return np.where(a > 0, a * lower, 0.0), np.where(a > 0, a * upper, 0.0)

    def _drawn_inside(self, V: Array) -> Array:
        """Move `V` within bounds, towards a balanced point that is inside."""
        lower, upper = self._bounds
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

    def certificate(self, Z: Array, b: Array, beta: float) -> Certificate:
        """Primal value and dual bound of a model, from nothing but its coefficients."""
        if self.as_logistic is not None and np.array_equal(Z[:, :, 0], -Z[:, :, 1]):
            one, scale = self.as_logistic
            found = one.certificate(Z[:, :, :1] - Z[:, :, 1:], b[:1] - b[1:], scale * beta)
            return replace(found, beta=float(beta), beta_max=self.beta_max)
        self.disregard(Z)
        S, b = self.scores(Z), self.inner_intercept(Z, b)
        primal = self.loss_value(S + b) + beta * self.penalty.value(Z)
        best = self.residual(S).F if self.loss.quadratic else S + self.best_intercept(S, b)
        point = self.dual_point(best)
        return Certificate(primal, self.dual_value(point, beta), float(beta), self.beta_max)

    # Second order -----------------------------------------------------------------------------

    def quadratic(
        self,
        groups: Groups,
        F: Array,
        damping: float = 0.0,
        cells: NDArray[np.bool_] | None = None,
        dtype: type = np.float64,
    ) -> list[Array]:
        """Hessians of the loss in the coefficients of `groups`, the intercept eliminated.

        One ``(p, p)`` matrix per output, or a single one where all outputs have the same, or where
        a joint loss couples them; then coefficients are ordered (group, output, channel), and
        `cells` ``(groups, c)`` may name the pairs (group, output) that are wanted. Products are
        formed in the precision of `dtype`.
        """
        H = self.curvature(F, damping)
        if self.loss.joint:
            if cells is None:
                cells = np.ones((len(groups), self.n_outputs), dtype=bool)
            return [
                softmax_quadratic(self.design, groups, cells, H, self.weight, self.center, dtype)
            ]
        if self.loss.quadratic:
            H = H[:, :1]
        W = self.weight[:, None] * H
        Q, q = self.design.gram(groups, W, self.center, dtype)
        return [self.without_intercept(*part) for part in zip(Q, q.T, W.sum(axis=0), strict=True)]

    def without_intercept(self, Q: Array, q: Array, total: float) -> Array:
        """``A' diag(w) A`` once the intercept, if any, is at its best; from ``A'w`` and ``1'w``."""
        if self.intercept and total > 0:
            Q -= np.outer(q, q / total)
        return Q


def _best_on_ray(top: float, bottom: float, limit: float) -> float:
    """The dual value ``scale (top - scale bottom / 2)`` at its best, up to the norm ball."""
    scale = min(max(0.0, top / bottom) if bottom > 0 else 0.0, limit)
    return scale * (top - 0.5 * scale * bottom)


def _location(loss: Loss, Y: Array, weight: Array) -> Array:
    first = Y[0]  # a constant target gives exactly zero
    return np.asarray(first + loss.constant(Y - first, weight))
