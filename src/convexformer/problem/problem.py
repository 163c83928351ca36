r"""Problem: design + loss + penalty + targets, with the dual bound that certifies a solution.

.. math:: P(Z, b) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i) + \beta\,\mathrm{penalty}(Z),
          \qquad F = \sum_k X_k Z_k + 1 b^\top

Inside, columns of X are read less their means wherever there is an intercept: the model is the
same, the intercept moves by ``means . Z``, and second-order models stay well conditioned.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bounds import objective_bounds
from .certificate import Certificate, check_range
from .conditioning import Conditioned, conditioned
from .designs import CORRELATED, Design, Groups
from .dual import Dual
from .joint import softmax_quadratic
from .losses import Logistic, Loss, Softmax
from .penalties import Penalty, TokenOutput
from .points import plain
from .weighted import MOST_KEPT, same

Array = NDArray[np.float64]


class Problem(Dual):
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
            else np.array(sample_weight, dtype=np.float64)
        )
        weight.flags.writeable = False  # means and totals are of these numbers
        self._check(design, penalty, Y, weight)
        loss.check_targets(Y, weight, intercept)
        if Y.shape[1] == 1 and not penalty.euclidean:  # one column has one singular value
            penalty = TokenOutput(penalty.weights)
        self.design, self.penalty = design, penalty
        self.shape = (design.n_groups, design.dim, Y.shape[1])
        # Losses of a residual do not see a common shift: targets near zero round less.
        if intercept and loss.translates:
            self.shift = _location(loss, Y, weight)
            Y = np.asarray(Y - self.shift, order=loss.order)
        else:
            self.shift, Y = np.zeros(Y.shape[1]), np.array(Y, order=loss.order)
        super().__init__(loss, Y, weight, intercept)
        self.center = None  # where there are no tokens means do not count
        if intercept:
            self.center = self._means()

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
        return self._with_targets(self.Y[:, indices], self.shift[indices])

    def rotated(self, axes: Array) -> Problem:
        """The problem of the outputs ``Y axes``, for orthonormal `axes` ``(c, r)``.

        Where loss and penalty see only lengths over outputs, and `axes` span the rows of Y, its
        solutions times ``axes'`` are those of this problem.
        """
        return self._with_targets(self.Y @ axes, self.shift @ axes)

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
        problems.
        """
        if not (isinstance(self.loss, Softmax) and self.n_outputs == 2 and self.penalty.euclidean):
            return None
        one = self.with_loss(Logistic())._with_targets(2.0 * self.Y[:, :1] - 1.0, np.zeros(1))
        return one, 1.0 if self.penalty.separable else np.sqrt(0.5)

    @cached_property
    def conditioned(self) -> Conditioned | None:
        """The problem in units that suit float64; None where it is in such units already."""
        return conditioned(self)

    @cached_property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        if self.conditioned is not None:
            return check_range(self.conditioned.outer_beta(self.conditioned.problem.beta_max))
        return self._null_norm()

    def _null_norm(self) -> float:
        if self.as_logistic is None:
            return super()._null_norm()
        one, scale = self.as_logistic
        return one.beta_max / scale

    def _with_targets(self, Y: Array, shift: Array) -> Problem:
        other = self._copy()
        other.n_outputs, other.shape = Y.shape[1], (*self.shape[:2], Y.shape[1])
        other.Y = Y if self.loss.joint else np.ascontiguousarray(Y)
        other.shift = shift
        return other

    def _copy(self) -> Problem:
        other = copy(self)
        for name in ("null", "null_direction", "beta_max", "bounds", "as_logistic", "conditioned"):
            other.__dict__.pop(name, None)
        other._forget()
        return other

    def _forget(self) -> None:
        super()._forget()
        self._foreseen: Array | None = None

    def _means(self) -> Array:
        """Means of columns; the same pass over X does for the dual point without tokens."""
        large = self.Y.size + prod(self.shape) >= MOST_KEPT
        two = self.loss.joint and self.n_outputs == 2  # whose logistic problem has its own
        if large or two or self.n_outputs >= CORRELATED:
            return self.design.means(self.weight)
        F = self.null_scores
        V, ray = self.dual_direction(F)
        means = np.empty(self.shape[:2])

        def correlate(V: Array) -> Array:
            share = self.weight[:, None] / self._total
            M = self.design.correlate(np.concatenate([share, V], axis=1))
            means[:] = M[:, :, 0]
            return np.ascontiguousarray(M[:, :, 1:])

        self._last = F, self._point(V, ray, self.correlations(V, correlate))
        return means

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
        self._last = F, self._point(*self.dual_direction(F), M)

    def disregard(self, Z: Array) -> None:
        """Forget what was foreseen of `Z`: certificates compute their own."""
        kept = self._foreseen  # once: another thread may put its own there
        if kept is not None and same(kept, Z):
            self._forget()

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        Z = plain(Z)
        loss = self.loss_at(self.scores(Z), self.inner_intercept(Z, b))
        return loss + beta * self.penalty.value(Z)

    def certificate(self, Z: Array, b: Array, beta: float, tol: float = 1e-6) -> Certificate:
        """Bounds that hold in exact arithmetic, from the data and the coefficients alone.

        ``dual <= min P <= P(Z, b) <= primal``: both carry a bound on their own rounding. It takes
        two passes over X, a third the first time (for the norm of X), and three more where these
        leave a relative gap above `tol`.
        """
        primal, dual = objective_bounds(self, plain(Z), plain(b), beta, tol)
        return Certificate(primal, dual, float(beta), self.beta_max, self.negligible)

    def estimate(self, Z: Array, b: Array, beta: float) -> Certificate:
        """What `certificate` is but for rounding; quicker, as it uses what is known of `Z`."""
        Z, b = plain(Z), plain(b)
        if self.as_logistic is not None and np.array_equal(Z[:, :, 0], -Z[:, :, 1]):
            one, scale = self.as_logistic
            found = one.estimate(Z[:, :, :1] - Z[:, :, 1:], b[:1] - b[1:], scale * beta)
            return replace(found, beta=float(beta), beta_max=self.beta_max)
        self.disregard(Z)
        beta_max = self.beta_max  # first: its dual point may be at hand
        S, b = self.scores(Z), self.inner_intercept(Z, b)
        primal = self.loss_at(S, b) + beta * self.penalty.value(Z)
        point = self.dual_point(self.best_scores(S, b))
        dual = self.dual_value(point, beta)
        return Certificate(primal, dual, float(beta), beta_max, self.negligible)

    @property
    def negligible(self) -> float:
        """Gap that counts as none although it is large beside an objective of nearly zero."""
        return self.loss.negligible(self.Y, self.weight)

    def without_memory(self) -> Problem:
        """The same problem, with nothing kept of any coefficients."""
        other = copy(self)
        other._forget()
        return other

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


def _location(loss: Loss, Y: Array, weight: Array) -> Array:
    first = Y[0]  # a constant target gives exactly zero
    return np.asarray(first + loss.constant(Y - first, weight))
