r"""Problem: design + loss + penalty + targets, with the dual bound that certifies a solution.

.. math:: P(Z, b) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i) + \beta\,\mathrm{penalty}(Z),
          \qquad F = \sum_k X_k Z_k + 1 b^\top

Inside, columns of X are read less their means wherever there is an intercept: the model is the
same, the intercept moves by ``means . Z``, and second-order models stay well conditioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .certificate import Certificate, check_range
from .designs import Design, Groups
from .joint import joint_newton, softmax_quadratic
from .losses import Logistic, Loss, Softmax
from .penalties import Penalty, TokenOutput

Array = NDArray[np.float64]

_ROUNDING = 1e-14
_BALANCED = 1e-8  # part of a slope's terms that counts as none: the loss is off by its square
MOST_KEPT = 1 << 22  # numbers of scores and of a dual point that are kept


@dataclass(frozen=True)
class DualPoint:
    """A dual point that meets every constraint but the norm ball, which scaling meets."""

    V: Array  # (N, c), sums to zero over samples where there is an intercept
    M: Array  # (groups, d, c), its correlations
    norms: Array  # (groups, cells), dual norms of M


class Problem:
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
            else np.asarray(sample_weight, dtype=np.float64)
        )
        self._check(design, penalty, Y, weight)
        loss.check_targets(Y, weight, intercept)
        if Y.shape[1] == 1 and not penalty.euclidean:  # one column has one singular value
            penalty = TokenOutput(penalty.weights)
        self.design, self.loss, self.penalty = design, loss, penalty
        self.weight, self.intercept = weight, intercept
        self._plain = bool((weight == 1.0).all())
        self.n_outputs = Y.shape[1]
        self.shape = (design.n_groups, design.dim, self.n_outputs)
        # Losses of a residual do not see a common shift: targets near zero round less.
        self._shift = self._location(Y) if intercept and loss.translates else np.zeros(Y.shape[1])
        # A joint loss sums over outputs, which is fast where samples are adjacent.
        self.Y = np.asarray(Y - self._shift, order="F" if loss.joint else "C")
        self.center = design.means(weight) if intercept else None
        self._forget()

    @staticmethod
    def _check(design: Design, penalty: Penalty, Y: Array, weight: Array) -> None:
        if Y.ndim != 2 or len(Y) != design.n_samples:
            raise ValueError(f"Y must have shape ({design.n_samples}, c), got {Y.shape}.")
        if weight.shape != (design.n_samples,):
            raise ValueError(f"sample_weight must have shape ({len(Y)},), got {weight.shape}.")
        if not (np.all(np.isfinite(weight)) and np.all(weight >= 0) and np.any(weight > 0)):
            raise ValueError("sample_weight must be finite, not negative, and not all zero.")
        if not np.all(np.isfinite(Y)):
            raise ValueError("Y contains NaN or infinity.")
        if penalty.weights is not None and len(penalty.weights) != design.n_groups:
            raise ValueError(
                f"The penalty has {len(penalty.weights)} weights for {design.n_groups} tokens."
            )

    def _location(self, Y: Array) -> Array:
        first = Y[0]  # a constant target gives exactly zero
        return first + self.loss.constant(Y - first, self.weight)

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

    @property
    def has_two_classes(self) -> bool:
        """Whether this is a softmax over two classes, every sample in one of them."""
        two = isinstance(self.loss, Softmax) and self.n_outputs == 2 and self.penalty.euclidean
        return two and bool(np.all((self.Y == 0) | (self.Y == 1)))

    def as_logistic(self) -> tuple[Problem, float]:
        r"""A softmax over two classes as a logistic problem, and by how much its beta is less.

        At the optimum scores are :math:`(f/2, -f/2)`, for any other sum costs more penalty: then
        the loss is that of f, and norms over both outputs are :math:`\|z\|/\sqrt2`.
        """
        one = self.with_loss(Logistic())._with_targets(2.0 * self.Y[:, :1] - 1.0, np.zeros(1))
        return one, 1.0 if self.penalty.separable else np.sqrt(0.5)

    def _with_targets(self, Y: Array, shift: Array) -> Problem:
        other = self._copy()
        other.n_outputs, other.shape = Y.shape[1], (*self.shape[:2], Y.shape[1])
        other.Y, other._shift = Y, shift
        return other

    def _copy(self) -> Problem:
        other = copy(self)
        for name in ("null_intercept", "_null", "beta_max", "_bounds"):
            other.__dict__.pop(name, None)
        other._forget()
        return other

    def _forget(self) -> None:
        """Of all that is kept, the last one: where a solver ends a certificate begins."""
        self._last: tuple[Array, DualPoint] | None = None
        self._scored: tuple[Array, Array] | None = None
        self._expanded: tuple[Array, tuple[Array, Array, Array]] | None = None

    # Primal -----------------------------------------------------------------------------------

    def scores(self, Z: Array) -> Array:
        """Prediction without intercept, from centred columns: ``(N, c)``, to be read only.

        The last one is kept, for the certificate and the next point of a path.
        """
        if self._scored is not None and np.array_equal(self._scored[0], Z):
            return self._scored[1]
        groups = np.flatnonzero(np.any(Z, axis=(1, 2)))
        S = self.design.predict(Z[groups], groups) - self._lift(Z)
        S.flags.writeable = False
        self._scored = (Z.copy(), S) if Z.size + S.size < MOST_KEPT else None
        return S

    def _lift(self, Z: Array) -> Array:
        """What centring takes from the scores, ``means . Z``: ``(c,)``."""
        if self.center is None:
            return np.zeros(self.n_outputs)
        return np.tensordot(self.center, Z, axes=2)

    def inner_intercept(self, Z: Array, b: Array) -> Array:
        """The intercept that goes with `scores`."""
        return b - self._shift + self._lift(Z)

    def outer_intercept(self, Z: Array, b: Array) -> Array:
        """The user's intercept, for raw X and Y."""
        b = b + self._shift - self._lift(Z)
        # Softmax does not see what all outputs share: of all intercepts return the balanced one.
        return b - b.mean() if self.loss.joint and self.intercept else b

    def predict(self, Z: Array, b: Array) -> Array:
        """``F = sum_k X_k Z_k + b``, ``(N, c)``."""
        return self.scores(Z) + self.inner_intercept(Z, b) + self._shift

    def loss_value(self, F: Array) -> float:
        """``sum_i a_i loss(F_i, Y_i)`` at inner scores `F`."""
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
        if self._expanded is not None and np.array_equal(self._expanded[0], F):
            return self._expanded[1]
        parts = self.loss.expansion(F, self.Y)
        self._expanded = (F, parts) if F.size < MOST_KEPT // 4 else None
        return parts

    def _sum(self, values: Array) -> Array:
        """Weighted sum over samples; one without weight counts for nothing, infinite or not."""
        if self._plain:
            return values.sum(axis=0)
        return self.weight @ np.where(self.weight[:, None] > 0, values, 0.0)

    def _weighted(self, values: Array) -> Array:
        return values if self._plain else self.weight[:, None] * values

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        F = self.scores(Z) + self.inner_intercept(Z, b)
        return self.loss_value(F) + beta * self.penalty.value(Z)

    # Intercept --------------------------------------------------------------------------------

    def best_intercept(self, S: Array, b: Array) -> Array:
        """Minimise the loss over the intercept at fixed scores `S`, starting from `b`."""
        if not self.intercept:
            return np.zeros(self.n_outputs)
        closed = self.loss.intercept(S, self.Y, self.weight)
        if closed is not None:
            return closed
        phi, e, size, P = self._slope(S, b)
        for _ in range(100):
            if np.all(np.abs(e) <= _BALANCED * size):
                break
            step = self._intercept_newton(P)(e)
            for _ in range(60):
                trial = self._slope(S, b + step)
                bad = (trial[0] > phi + _ROUNDING * np.abs(phi)) & (abs(trial[1]) > 0.5 * abs(e))
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
        if not self.intercept or self.loss.intercept(F[:1], self.Y[:1], self.weight[:1]) is not None:
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

    # Dual -------------------------------------------------------------------------------------

    @cached_property
    def null_intercept(self) -> Array:
        """Inner intercept of the model without tokens."""
        if not self.intercept:
            return np.zeros(self.n_outputs)
        S = np.zeros_like(self.Y)
        return self.best_intercept(S, self.loss.constant(self.Y, self.weight))

    @cached_property
    def _null(self) -> Array:
        F = np.broadcast_to(self.null_intercept, self.Y.shape)
        return self.balanced(*self._expand(F)[1:])[0]

    @cached_property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        point = self.dual_point(np.zeros_like(self.Y) + self.null_intercept)
        if self.design.is_noise(point.M, point.V):
            return 0.0
        return check_range(float(np.max(point.norms, initial=0.0)))

    def balanced(self, V: Array, P: Array, rounds: int = 2) -> tuple[Array, Array]:
        """Weighted `V`, made to sum to zero where there is an intercept, and its step.

        `V` and `P` are dual point and curvature of the loss, entry by entry. A second round removes
        the rounding of the first.
        """
        V, total = self._weighted(V), np.zeros(self.n_outputs)
        if not self.intercept:
            return V, total
        H = self._weighted(P)
        size = H.sum(axis=0)
        newton = joint_newton(size, H.T @ P) if self.loss.joint else None
        if newton is None and np.any(size <= 0):
            H = np.where(size <= 0, self.weight[:, None], H)
            size = H.sum(axis=0)
        for _ in range(rounds):
            e = V.sum(axis=0)
            if newton is not None:
                step = newton(e)
                V = V - H * (step - P @ step[:, None])
            else:
                step = e / size
                V = V - H * step
            total += step
        return V, total

    def dual_point(self, F: Array) -> DualPoint:
        """The dual point of inner scores `F`, repaired into the conjugate's domain.

        The last one is kept: where a solver ends, its certificate is asked for next.
        """
        if self._last is not None and np.array_equal(self._last[0], F):
            return self._last[1]
        V, _ = self.balanced(*self._expand(F)[1:])
        lower, upper = self._bounds
        inside = np.minimum(np.maximum(V, lower), upper)
        if np.any(np.abs(inside - V) > _ROUNDING * self.weight[:, None]):
            inside = np.clip(self._drawn_inside(V), lower, upper)
        if self.loss.joint:  # as is assumed of their correlations
            inside[:, -1] = -inside[:, :-1].sum(axis=1)
        M = self.correlations(inside, self.design.correlate)
        point = DualPoint(inside, M, self.penalty.dual_norms(M))
        self._last = (F, point) if M.size + F.size < MOST_KEPT else None
        return point

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
        inside = np.zeros_like(V) if around_zero else np.clip(self._null, lower, upper)
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
        by_output = self.separable
        norms = point.norms.max(axis=0 if by_output else None, initial=0.0)
        norms = norms if self.beta_max > 0 else np.zeros_like(norms)
        with np.errstate(divide="ignore", invalid="ignore"):
            limit = np.where(norms > 0, np.divide(beta, norms), np.inf)
        V = point.V
        if not self._plain:
            a = self.weight[:, None]
            V = np.divide(V, a, out=np.zeros_like(V), where=a > 0)
        scale = np.minimum(self._ray(V, by_output), limit)
        return float((self.weight @ self.loss.dual_value(scale * V, self.Y)).sum())

    def _ray(self, V: Array, by_output: bool) -> Array:
        """How far along its ray a dual point is best without the norm ball."""
        if not self.loss.quadratic:
            return np.ones(1)
        top, bottom = self.weight @ (self.Y * V), self.weight @ (V * V)
        if not by_output:
            top, bottom = top.sum(keepdims=True), bottom.sum(keepdims=True)
        return np.maximum(0.0, np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))

    def certificate(self, Z: Array, b: Array, beta: float) -> Certificate:
        """Primal value and dual bound of a model, from nothing but its coefficients."""
        S, b = self.scores(Z), self.inner_intercept(Z, b)
        primal = self.loss_value(S + b) + beta * self.penalty.value(Z)
        point = self.dual_point(S + self.best_intercept(S, b))
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
