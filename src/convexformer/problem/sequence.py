r"""Matrix targets: every position attends to every other, with a certificate.

.. math:: \hat Y_i[r, l] = \sum_j \sum_k Z_{jl}[r, k]\, X_i[k, j] + b_l, \qquad
          P = \tfrac12 \sum_{i,r,l} a_i (\hat Y_i[r, l] - Y_i[r, l])^2
          + \beta \sum_{j,l} \Bigl(\max_r \sum_k Z^+_{jl}[r, k] + \max_r \sum_k Z^-_{jl}[r, k]\Bigr)

is the exact program of heads :math:`W_1 X W_2 w_3` whose attention :math:`W_1` is row-substochastic
(rows sum to at most one). Where rows of :math:`W_1` must sum to one, the exact program is the same
*subject to* all rows of each :math:`Z_{jl}` having equal sums. Outputs are problems of their own.

Inside, coefficients are read as those of a token design with one output per (target, output):
``T (n, d, n, c)``, indexed (source k, channel j, target r, output l).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .certificate import Certificate, check_range
from .tokens import TokenDesign

Array = NDArray[np.float64]

ATTENTION = ("stochastic", "substochastic")


@dataclass(frozen=True)
class AttentionParts:
    r"""Coefficients taken apart, :math:`Z_{jl} = A_{jl} - B_{jl}` with nonnegative parts.

    Attributes
    ----------
    A, B : ndarray of shape (d, c, n, n)
        Nonnegative. For stochastic attention all rows of a part have the same sum.
    a, b : ndarray of shape (d, c)
        The (largest) row sum of every part; ``A / a`` and ``B / b`` are attention maps, and the
        penalty is ``sum(a + b)``.
    """

    A: Array
    B: Array
    a: Array
    b: Array

    @classmethod
    def of(cls, Z: Array, attention: str) -> AttentionParts:
        """Split `Z`, whose rows have equal sums if attention is stochastic.

        A row whose parts sum to less than `a` and `b` gets the rest spread evenly over all source
        positions, in both parts, where it cancels.
        """
        A, B = np.maximum(Z, 0.0), np.maximum(-Z, 0.0)
        sums_a, sums_b = A.sum(axis=3), B.sum(axis=3)
        a, b = sums_a.max(axis=2), sums_b.max(axis=2)
        if attention == "stochastic":
            A += (a[..., None] - sums_a)[..., None] / Z.shape[3]
            B += (b[..., None] - sums_b)[..., None] / Z.shape[3]
        return cls(A, B, a, b)


class SequenceProblem:
    r"""Regression of a matrix per sample, squared loss.

    Parameters
    ----------
    X : ndarray of shape (N, n, d)
        float32 or float64.
    Y : array-like of shape (N, n, c)
        Targets.
    attention : {"stochastic", "substochastic"}
        Whether rows of attention sum to one, or to at most one (the program the paper prints).
    sample_weight : array-like of shape (N,), optional
        Non-negative weights :math:`a_i`.
    mask : ndarray of bool of shape (N, n), optional
        True where a token is real. Padding reads as a zero row of X, and its target is not
        counted; both may hold anything there, NaN included.
    intercept : bool
        Whether an unpenalised intercept per output is part of the model, the same at all positions.

    Notes
    -----
    Coefficients are ``Z (d, c, n, n)``: input channel, output, target position, source position.
    What is evaluated is always ``feasible(Z)``, which differs from a solver's Z by rounding only.

    With stochastic attention and an intercept, a constant added to a channel of X changes nothing
    but the intercept; channels are then read less their means (unless there is a mask, whose zero
    rows do not shift along).

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> X = np.random.default_rng(0).normal(size=(20, 4, 3))
    >>> problem = SequenceProblem(X, X[:, ::-1, :2])
    >>> zero, b = np.zeros(problem.shape), X[:, :, :2].mean(axis=(0, 1))
    >>> abs(problem.certificate(zero, b, beta=problem.beta_max).gap) <= 1e-12
    True
    """

    def __init__(
        self,
        X: NDArray[np.floating],
        Y: ArrayLike,
        attention: str = "stochastic",
        sample_weight: ArrayLike | None = None,
        mask: NDArray[np.bool_] | None = None,
        intercept: bool = True,
    ) -> None:
        if attention not in ATTENTION:
            raise ValueError(f"attention must be one of {ATTENTION}, got {attention!r}.")
        self.design, self.attention, self.intercept = TokenDesign(X, mask), attention, intercept
        N, n, d = X.shape
        targets = np.asarray(Y, dtype=np.float64)
        if targets.ndim != 3 or targets.shape[:2] != (N, n):
            raise ValueError(f"Y must have shape ({N}, {n}, c), got {targets.shape}.")
        self.shape = (d, targets.shape[2], n, n)
        self.n_outputs = targets.shape[2]
        self.weight = self._weigh(sample_weight, mask)  # (N, n), or (N, 1) for all positions alike
        seen = np.broadcast_to(self.weight > 0, (N, n))[:, :, None]
        if not np.all(np.isfinite(targets) | ~seen):
            raise ValueError("Y contains NaN or infinity.")
        targets = np.where(seen, targets, 0.0)
        self._total = float(self.weight.sum()) * (n // self.weight.shape[1])
        self._shift = self._mean(targets) if intercept else np.zeros(self.n_outputs)
        self.Y = np.where(seen, targets - self._shift, 0.0)
        self._center = self._channel_means() if intercept and self._shifts_along else None

    def _weigh(self, sample_weight: ArrayLike | None, mask: NDArray[np.bool_] | None) -> Array:
        N = self.design.n_samples
        weight = np.ones(N) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        if weight.shape != (N,):
            raise ValueError(f"sample_weight must have shape ({N},), got {weight.shape}.")
        if not (np.all(np.isfinite(weight)) and np.all(weight >= 0)):
            raise ValueError("sample_weight must be finite and not negative.")
        by_position = weight[:, None] if mask is None else weight[:, None] * mask
        if not np.any(by_position > 0):
            raise ValueError("No target is left to fit: all have weight zero or are masked.")
        return by_position

    @property
    def _shifts_along(self) -> bool:
        """Whether a constant added to a channel is the same as another intercept."""
        return self.attention == "stochastic" and self.design.mask is None

    def _channel_means(self) -> Array:
        n = self.design.n_groups
        means = self.design.means(self.weight[:, 0]).mean(axis=0)  # (d,)
        return np.tile(means, (n, 1))

    def _mean(self, R: Array) -> Array:
        """Weighted mean over samples and positions, ``(c,)``."""
        i, r = np.unravel_index(np.argmax(self.weight > 0), self.weight.shape)
        first = R[i, r]  # constant targets give exactly themselves
        return first + np.sum(self.weight[:, :, None] * (R - first), axis=(0, 1)) / self._total

    # Coefficients -----------------------------------------------------------------------------

    def feasible(self, Z: Array) -> Array:
        """`Z` with exactly equal row sums where attention is stochastic, up to one rounding.

        What a row lacks to the mean of its matrix's row sums goes to its largest entry, so that
        zeros stay zeros.
        """
        if self.attention == "substochastic":
            return Z
        Z = Z.copy()
        largest = np.argmax(np.abs(Z), axis=3)[..., None]
        for _ in range(2):  # the second round removes the rounding of the first
            sums = Z.sum(axis=3)
            missing = sums.mean(axis=2, keepdims=True) - sums
            entry = np.take_along_axis(Z, largest, axis=3) + missing[..., None]
            np.put_along_axis(Z, largest, entry, axis=3)
        return Z

    def parts(self, Z: Array) -> AttentionParts:
        """Nonnegative parts of ``feasible(Z)``, the attention of the equivalent network."""
        return AttentionParts.of(self.feasible(Z), self.attention)

    # Primal -----------------------------------------------------------------------------------

    def _scores(self, T: Array) -> Array:
        """Prediction without intercept, from centred channels: ``(N, n, c)``."""
        n, d, _, c = T.shape
        S = self.design.predict(T.reshape(n, d, n * c)).reshape(-1, n, c)
        return S if self._center is None else S - np.tensordot(self._center, T, axes=2)

    def _lift(self, T: Array) -> Array:
        """What centring takes from the scores, the same at all positions: ``(c,)``."""
        if self._center is None:
            return np.zeros(self.n_outputs)
        return np.tensordot(self._center, T, axes=2).mean(axis=0)

    def best_intercept(self, Z: Array) -> Array:
        """The intercept that minimises the loss at `Z`, for raw X and Y."""
        T = to_tokens(self.feasible(Z))
        return self._inner_intercept(self._scores(T)) + self._shift - self._lift(T)

    def _inner_intercept(self, S: Array) -> Array:
        if not self.intercept:
            return np.zeros(self.n_outputs)
        return np.sum(self.weight[:, :, None] * (self.Y - S), axis=(0, 1)) / self._total

    def predict(self, Z: Array, b: Array) -> Array:
        """``(N, n, c)``."""
        T = to_tokens(self.feasible(Z))
        return self._scores(T) + b + self._lift(T)

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        T = to_tokens(self.feasible(Z))
        return self._primal(T, self._scores(T), b, beta)

    def _primal(self, T: Array, S: Array, b: Array, beta: float) -> float:
        R = S + (b + self._lift(T) - self._shift) - self.Y
        loss = 0.5 * float(np.sum(self.weight[:, :, None] * R * R))
        return loss + beta * float(np.sum(norms(T)))

    # Dual -------------------------------------------------------------------------------------

    @cached_property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        V = self._dual_point(np.zeros_like(self.Y))
        M = self._correlate(V)
        if self.design.is_noise(M, V):
            return 0.0
        return check_range(float(np.max(dual_norms(M, self.attention), initial=0.0)))

    def _dual_point(self, S: Array) -> Array:
        """Weighted residuals, made to sum to zero where there is an intercept."""
        w = self.weight[:, :, None]
        V = w * (self.Y - S - self._inner_intercept(S))
        if self.intercept:
            for _ in range(2):  # the second round removes the rounding of the first
                V -= w * (V.sum(axis=(0, 1)) / self._total)
        return V

    def _correlate(self, V: Array) -> Array:
        """``M[k, j, r, l] = sum_i X_i[k, j] V_i[r, l]``."""
        n, c = V.shape[1:]
        M = self.design.correlate(V.reshape(len(V), -1)).reshape(n, -1, n, c)
        if self._center is not None:
            M -= self._center[:, :, None, None] * V.sum(axis=0)
        return M

    def _dual_value(self, S: Array, beta: float) -> float:
        V = self._dual_point(S)
        w = np.broadcast_to(self.weight[:, :, None], V.shape)
        ratio = np.divide(V, w, out=np.zeros_like(V), where=w > 0)
        top, bottom = np.sum(self.Y * V, axis=(0, 1)), np.sum(ratio * V, axis=(0, 1))
        limits = dual_norms(self._correlate(V), self.attention)
        return best_on_ray(top, bottom, limits if self.beta_max > 0 else 0 * limits, beta)

    def certificate(self, Z: Array, b: Array, beta: float) -> Certificate:
        """Primal and dual value at ``feasible(Z)`` and intercept `b`, from the data, in float64."""
        T = to_tokens(self.feasible(Z))
        S = self._scores(T)
        primal = self._primal(T, S, b, beta)
        return Certificate(primal, self._dual_value(S, beta), float(beta), self.beta_max)

    # Moments ----------------------------------------------------------------------------------

    @cached_property
    def moments(self) -> Moments:
        """All that the objective depends on, without the samples."""
        n, d = self.design.n_groups, self.design.dim
        gram, sums = self.design.gram(np.arange(n), self.weight, self._center)
        cross = self._correlate(self.weight[:, :, None] * self.Y)
        energy = np.sum(self.weight[:, :, None] * self.Y**2, axis=(0, 1))
        total = self._total if self.intercept else np.inf
        return Moments(gram, cross.reshape(n * d, n, -1), sums, energy, total)


@dataclass(frozen=True)
class Moments:
    r"""The loss as a quadratic, the intercept minimised out; its cost does not depend on N.

    With :math:`q` the stacked `sums` and :math:`s` the total weight, the Hessian of an output is
    ``blockdiag(gram) - q q' / s``.

    Attributes
    ----------
    gram : ndarray of shape (m, p, p)
        Per target position (m = n), or one for all (m = 1); p = n d.
    cross : ndarray of shape (p, n, c)
    sums : ndarray of shape (p, m)
        Weighted sums of the columns of X.
    energy : ndarray of shape (c,)
        Weighted squares of the targets.
    total : float
        Total weight, infinite where there is no intercept.
    """

    gram: Array
    cross: Array
    sums: Array
    energy: Array
    total: float

    def correlate(self, T: Array) -> Array:
        """Minus the gradient at coefficients ``T (p, n, c)``: the correlations with residuals."""
        p, n, c = T.shape
        lift = np.einsum("pr,prl->l", np.broadcast_to(self.sums, (p, n)), T) / self.total
        M = self.cross + self.sums[:, :, None] * lift
        if len(self.gram) == 1:
            return M - (self.gram[0] @ T.reshape(p, n * c)).reshape(p, n, c)
        return M - np.matmul(self.gram, T.transpose(1, 0, 2)).transpose(1, 0, 2)

    def gap(self, T: Array, M: Array, beta: float, attention: str) -> float:
        """Relative duality gap at coefficients ``T (p, n, c)`` with correlations `M`."""
        p, n, c = T.shape
        blocks = (n, p // n, n, c)
        top = self.energy - np.einsum("prl,prl->l", self.cross, T)
        bottom = np.maximum(0.0, top - np.einsum("prl,prl->l", M, T))
        dual = best_on_ray(top, bottom, dual_norms(M.reshape(blocks), attention), beta)
        primal = 0.5 * float(bottom.sum()) + beta * float(np.sum(norms(T.reshape(blocks))))
        return (primal - dual) / primal if primal > 0 else primal - dual


def to_tokens(Z: Array) -> Array:
    """``Z (d, c, n, n)`` as ``T (n, d, n, c)``."""
    return np.ascontiguousarray(Z.transpose(3, 0, 2, 1))


def from_tokens(T: Array) -> Array:
    """``T (n, d, n, c)`` as ``Z (d, c, n, n)``."""
    return np.ascontiguousarray(T.transpose(1, 3, 2, 0))


def norms(T: Array) -> Array:
    r""":math:`\max_r \sum_k Z^+[r, k] + \max_r \sum_k Z^-[r, k]` of every matrix: ``(d, c)``.

    With equal row sums this is :math:`\max_r \|Z[r, :]\|_1`.
    """
    above, below = np.maximum(T, 0.0).sum(axis=0), np.maximum(-T, 0.0).sum(axis=0)  # (d, n, c)
    return above.max(axis=1) + below.max(axis=1)


def dual_norms(M: Array, attention: str) -> Array:
    r""":math:`\sum_r \max_k M[r, k]`, the larger of that of M and of -M: ``(d, c)``.

    For substochastic attention rows count only where their maximum is positive.
    """
    above, below = M.max(axis=0), -M.min(axis=0)  # (d, n, c)
    if attention == "substochastic":
        above, below = np.maximum(above, 0.0), np.maximum(below, 0.0)
    return np.maximum(above.sum(axis=1), below.sum(axis=1))


def best_on_ray(top: Array, bottom: Array, dual: Array, beta: float) -> float:
    r"""Largest :math:`s \langle Y, V\rangle - \frac{s^2}2 \|V\|^2` with ``s V`` feasible.

    Per output, as outputs are problems of their own: `top` is ``<Y, V>``, `bottom` is ``||V||^2``,
    both ``(c,)``; `dual (d, c)` are the dual norms.
    """
    largest = dual.max(axis=0)
    limit = np.divide(beta, largest, out=np.full_like(largest, np.inf), where=largest > 0)
    free = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    s = np.minimum(np.maximum(free, 0.0), limit)
    return float(np.sum(s * top - 0.5 * s * s * bottom))
