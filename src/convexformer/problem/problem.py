r"""Problem: design + loss + penalty + targets, with the dual bound that certifies a solution.

.. math:: P(Z, b) = \sum_i a_i\,\mathrm{loss}(F_i, Y_i) + \beta\,\mathrm{penalty}(Z),
          \qquad F = \sum_k X_k Z_k + 1 b^\top

.. math:: D(V) = -\sum_i a_i\,\mathrm{loss}^*(-V_i / a_i) \quad \text{subject to}
          \quad \|X_k^\top V\| \le \beta w_k, \quad \sum_i V_i = 0 \text{ with an intercept}

Solvers see columns of X less their means wherever there is an intercept: the model is the same, the
intercept moves by ``means . Z``, and second-order models stay well conditioned.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import Array, Groups
from .bounds import objective_bounds
from .certificate import Certificate, check_range
from .conditioning import Conditioned, conditioned
from .designs import Design
from .lazy import lazy
from .losses import Logistic, Loss, Softmax
from .norms import plain
from .penalties import Penalty, TokenOutput
from .point import Point
from .risk import ROUNDING, EmpiricalRisk
from .softmax_hessian import softmax_quadratic


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
    >>> problem.at(np.zeros((4, 3, 1))).gap(problem.beta_max) <= 1e-12
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
        given = np.ones(design.n_samples) if sample_weight is None else sample_weight
        weight = np.array(given, dtype=np.float64)
        weight.flags.writeable = False  # means and totals are of these numbers
        self._check(design, penalty, Y, weight)
        loss.check_targets(Y, weight, intercept)
        if Y.shape[1] == 1 and not penalty.euclidean:  # one column has one singular value
            penalty = TokenOutput(penalty.weights)
        self.design, self.loss, self.penalty, self.intercept = design, loss, penalty, intercept
        # Losses of a residual do not see a common shift: targets near zero round less.
        self.shift = np.zeros(Y.shape[1])
        if intercept and loss.translates:
            first = Y[0]  # a constant target gives exactly zero
            self.shift = np.asarray(first + loss.constant(Y - first, weight))
            Y = Y - self.shift
        self._set_targets(np.array(Y, order=loss.order), weight)
        self.center: Array | None = None  # (n_groups, d), means of columns
        if intercept:
            self._set_center()

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

    def _set_targets(self, Y: Array, weight: Array) -> None:
        self.Y, self.weight, self.n_outputs = Y, weight, Y.shape[1]
        self.shape = (self.design.n_groups, self.design.dim, Y.shape[1])
        self.risk = EmpiricalRisk(self.loss, Y, weight, self.intercept)

    @property
    def separable(self) -> bool:
        """Whether every output is a problem of its own."""
        return self.penalty.separable and not self.loss.joint

    # Points ---------------------------------------------------------------------------------------

    def at(
        self, Z: Array, b: Array | None = None, *, S: Array | None = None, M: Array | None = None
    ) -> Point:
        """The problem at coefficients `Z`, with the best intercept.

        Parameters
        ----------
        Z : ndarray of shape (groups, d, c)
        b : ndarray of shape (c,), optional
            The intercept, for centred columns, from which the best one is searched.
        S : ndarray of shape (N, c), optional
            Scores of `Z`, if these are known, which saves a pass over X.
        M : ndarray of shape (groups, d, c), optional
            Correlations of the dual point, if these are known, which saves the other pass.
        """
        b = np.zeros(self.n_outputs) if b is None else b
        if S is None and self.follows:  # both passes in one
            lift = self._lift(Z)
            F, left, M = self.design.follow(Z, self.Y + lift, self.weight)
            settled, M = self.risk.settle(F - lift, b), np.ascontiguousarray(M)
            assert settled.V is not None
            if self.center is not None:  # what is left is not balanced yet
                M -= (left - settled.V).sum(axis=0) * self.center[:, :, None]
            return Point(self, Z, F - lift, *settled, M)
        S = self.scores(Z) if S is None else S
        return Point(self, Z, S, *self.risk.settle(S, b), M)

    @lazy
    def null(self) -> Point:
        """The model without tokens."""
        S = np.zeros(self.Y.shape, order=self.loss.order)
        return self.at(np.zeros(self.shape), self.risk.best_constant(), S=S)

    def scores(self, Z: Array) -> Array:
        """Prediction without intercept, from centred columns: ``(N, c)``."""
        # In the order of losses first: a row of few outputs is slow to subtract from.
        F = np.asarray(self.design.predict(Z), order=self.loss.order)
        return F if self.center is None else F - self._lift(Z)

    def correlations(self, V: Array) -> Array:
        """``X' V`` of a balanced V: ``(groups, d, c)``."""
        if not self.loss.joint:
            return self.design.correlate(V)
        return _last_follows(self.design.correlate(V[:, :-1]))

    @property
    def follows(self) -> bool:
        """Whether scores and the correlations of their dual point come in one pass over X."""
        return self.loss.quadratic and self.design.follows(self.n_outputs)

    def _lift(self, Z: Array) -> Array:
        """What centring takes from the scores, ``means . Z``: ``(c,)``."""
        if self.center is None:
            return np.zeros(self.n_outputs)
        return np.asarray(self.center.ravel() @ Z.reshape(-1, self.n_outputs))

    def inner_intercept(self, Z: Array, b: Array) -> Array:
        """The intercept for centred columns and shifted targets, from that for the data given."""
        return b - self.shift + self._lift(Z)

    def outer_intercept(self, Z: Array, b: Array) -> Array:
        """The inverse of `inner_intercept`."""
        b = b + self.shift - self._lift(Z)
        if not (self.loss.joint and self.intercept):
            return b
        # Softmax does not see what all outputs share: of all intercepts return the balanced one.
        # An intercept that is balanced up to rounding stays as it is.
        mean = b.sum() / len(b)
        return b if abs(mean) <= ROUNDING * np.abs(b).max() else b - mean

    def predict(self, Z: Array, b: Array) -> Array:
        """``F = sum_k X_k Z_k + b``, ``(N, c)``, for the data as given."""
        return self.scores(Z) + self.inner_intercept(Z, b) + self.shift

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        Z = plain(Z)
        loss = self.risk.value(self.scores(Z) + self.inner_intercept(Z, b))
        return loss + beta * self.penalty.value(Z)

    def _set_center(self) -> None:
        """Means of columns; the same pass over X correlates the dual point without tokens."""
        null, joint = self.null, self.loss.joint
        share, V = self.weight[:, None] / self.risk.total, null.V[:, :-1] if joint else null.V
        M = self.design.correlate(np.concatenate([share, V], axis=1))
        self.center, own = np.ascontiguousarray(M[:, :, 0]), np.ascontiguousarray(M[:, :, 1:])
        own = _last_follows(own) if joint else own
        self.__dict__["null"] = Point(self, null.Z, null.S, null.b, null.F, null.loss, null.V, own)

    # Duality --------------------------------------------------------------------------------------

    @lazy
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 if correlations are rounding errors."""
        if self.conditioned is not None:
            return check_range(self.conditioned.outer_beta(self.conditioned.problem.beta_max))
        if self.as_logistic is not None:
            one, scale = self.as_logistic
            return one.beta_max / scale
        return self._largest(self.null.V, self.null.M, self.null.norms)

    def _largest(self, V: Array, M: Array, norms: Array) -> float:
        """The largest of `norms`, those of the correlations `M` of `V`; 0 where M is rounding."""
        size, total = float(np.abs(M).max(initial=0.0)), float(np.abs(V).sum())
        if size <= 1e-9 * total * np.abs(self.design.some()).max(initial=0.0):  # it may be
            rounding = (4 + np.sqrt(len(V))) * np.finfo(float).eps
            known = slice(-1 if self.loss.joint else None)  # the last output follows from others
            if (np.abs(M) <= rounding * self.design.sizes(V))[:, :, known].all():
                return 0.0
        return check_range(float(norms.max(initial=0.0)))

    def ray(self, V: Array) -> tuple[Array, Array] | None:
        """For a squared loss: ``sum V Y`` and ``sum V^2 / a``, for the dual value of ``s V``.

        One of each for every part of the problem that has a norm ball of its own.
        """
        if not self.loss.quadratic:
            return None
        U = self.risk.unweighted(V)
        top, bottom = np.einsum("il,il->l", V, self.Y), np.einsum("il,il->l", V, U)
        return (
            (top, bottom) if self.separable else (top.sum(keepdims=True), bottom.sum(keepdims=True))
        )

    def dual_value(self, V: Array, norms: Array, beta: float) -> float:
        """The best dual value on the ray through `V`, scaled into the norm ball.

        `norms` are dual norms of the correlations of `V`, ``(groups, cells)``.
        """
        sizes = norms.max(axis=0, initial=0.0)
        if not self.separable:
            sizes = sizes.max(keepdims=True)
        limits = [
            beta / size if size > 0 and self.beta_max > 0 else np.inf for size in sizes.tolist()
        ]
        ray = self.ray(V)
        if ray is None:
            return self.risk.dual_value(V, np.minimum(1.0, limits))
        return sum(map(_best_on_ray, ray[0].tolist(), ray[1].tolist(), limits))

    def certificate(self, Z: Array, b: Array, beta: float, tol: float = 1e-6) -> Certificate:
        """Bounds that hold in exact arithmetic, from the data and the coefficients alone.

        ``dual <= min P <= P(Z, b) <= primal``: both carry a bound on their own rounding. It takes
        two passes over X, a third the first time (for the norm of X), and three more where these
        leave a relative gap above `tol`.
        """
        primal, dual = objective_bounds(self, plain(Z), plain(b), beta, tol)
        return Certificate(primal, dual, float(beta), self.beta_max, self.negligible)

    @property
    def negligible(self) -> float:
        """Gap that counts as none although it is large beside an objective of nearly zero."""
        return self.loss.negligible(self.Y, self.weight)

    # Related problems -----------------------------------------------------------------------------

    def outputs(self, indices: Sequence[int] | NDArray[np.intp]) -> Problem:
        """The problem of some outputs; where outputs separate, together they are this one."""
        other = self._with_targets(self.Y[:, indices], self.shift[indices])
        null = self.__dict__.get("null")
        if null is not None and not self.loss.joint and "M" in null.__dict__:
            other.__dict__["null"] = null.of_outputs(other, indices)
        return other

    def with_loss(self, loss: Loss) -> Problem:
        """The same problem under another loss for the same targets."""
        return self._with_targets(self.Y, self.shift, loss)

    @lazy
    def as_logistic(self) -> tuple[Problem, float] | None:
        r"""A softmax over two classes as a logistic problem, and the factor of its beta.

        At the optimum scores are :math:`(f/2, -f/2)`, for any other sum costs more penalty: then
        the loss is that of f, and norms over both outputs are :math:`\|z\|/\sqrt2`. None for other
        problems.
        """
        if not (isinstance(self.loss, Softmax) and self.n_outputs == 2 and self.penalty.euclidean):
            return None
        one = self._with_targets(2.0 * self.Y[:, :1] - 1.0, np.zeros(1), Logistic())
        return one, 1.0 if self.penalty.separable else np.sqrt(0.5)

    @lazy
    def conditioned(self) -> Conditioned | None:
        """The problem in units that suit float64; None where it is in such units already."""
        return conditioned(self)

    def _with_targets(self, Y: Array, shift: Array, loss: Loss | None = None) -> Problem:
        other = copy(self)
        for name in ("null", "beta_max", "as_logistic", "conditioned"):
            other.__dict__.pop(name, None)
        other.loss, other.shift = self.loss if loss is None else loss, shift
        other._set_targets(np.asarray(Y, order=other.loss.order), self.weight)
        return other

    # Second order ---------------------------------------------------------------------------------

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
        H = self.risk.curvature(F, damping)
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


def _last_follows(M: Array) -> Array:
    """Correlations of a joint loss sum to zero over outputs: the last one is minus the others."""
    return np.concatenate([M, -M.sum(axis=2, keepdims=True)], axis=2)


def _best_on_ray(top: float, bottom: float, limit: float) -> float:
    """The dual value ``scale (top - scale bottom / 2)`` at its best, up to the norm ball."""
    scale = min(max(0.0, top / bottom) if bottom > 0 else 0.0, limit)
    return scale * (top - 0.5 * scale * bottom)
