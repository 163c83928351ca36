r"""Matrix targets: every position attends to every other, with a certificate.

.. math:: F_i[r, l] = \sum_j \sum_k Z_{jl}[r, k]\, X_i[k, j] + b_l, \qquad
          P = \sum_{i,r} a_i\, \mathrm{loss}(F_i[r], Y_i[r])
          + \beta \sum_{j,l} \Bigl(\max_r \sum_k Z^+_{jl}[r, k] + \max_r \sum_k Z^-_{jl}[r, k]\Bigr)

is the exact program of heads :math:`W_1 X W_2 w_3` whose attention :math:`W_1` is row-substochastic
(rows sum to at most one). Where rows of :math:`W_1` must sum to one, the exact program is the same
*subject to* all rows of each :math:`Z_{jl}` having equal sums. Outputs are problems of their own,
unless the loss is joint (softmax).

Inside, coefficients are read as those of a token design with one output per (target, output):
``T (n, d, n, c)``, indexed (source k, channel j, target r, output l).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import Array
from .certificate import Certificate
from .losses import Loss, Squared
from .moments import Moments, moments_of
from .positions import AttentionPenalty, PositionDesign, PositionProblem
from .tokens import TokenDesign

ATTENTION = ("stochastic", "substochastic")
SUM_BITS = 52  # sums of multiples of 2**-52 times the sum of their sizes are exact


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
    r"""Targets of every position: numbers, counts or classes.

    Parameters
    ----------
    X : ndarray of shape (N, n, d)
        float32 or float64.
    Y : array-like of shape (N, n, c)
        Targets: numbers, counts, -1/+1 (:class:`Logistic`) or one-hot vectors (:class:`Softmax`).
    attention : {"stochastic", "substochastic"}
        Whether rows of attention sum to one, or to at most one (the program the paper prints).
    sample_weight : array-like of shape (N,), optional
        Non-negative weights :math:`a_i`.
    mask : ndarray of bool of shape (N, n), optional
        True where a token is real. Padding reads as a zero row of X, and its target is not
        counted; both may hold anything there, NaN included.
    intercept : bool
        Whether an unpenalised intercept per output is part of the model, the same at all positions.
    loss : Loss
        Squared by default.

    Attributes
    ----------
    positions : PositionProblem
        The same problem with one row per position, which knows losses, intercepts and certificates.

    Notes
    -----
    Coefficients are ``Z (d, c, n, n)``: input channel, output, target position, source position.
    What is evaluated is always ``feasible(Z)``, which differs from a solver's Z by rounding only.

    With stochastic attention and an intercept, a constant added to a channel of X changes nothing
    but the intercept; quadratic models then read channels less their means (unless there is a mask,
    whose zero rows do not shift along).

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> X = np.random.default_rng(0).normal(size=(20, 4, 3))
    >>> problem = SequenceProblem(X, X[:, ::-1, :2])
    >>> zero, b = np.zeros(problem.shape), X[:, :, :2].mean(axis=(0, 1))
    >>> problem.certificate(zero, b, beta=problem.beta_max).relative_gap <= 1e-12
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
        loss: Loss | None = None,
    ) -> None:
        if attention not in ATTENTION:
            raise ValueError(f"attention must be one of {ATTENTION}, got {attention!r}.")
        self.design, self.attention, self.intercept = TokenDesign(X, mask), attention, intercept
        self.loss = Squared() if loss is None else loss
        N, n, d = X.shape
        targets = np.asarray(Y, dtype=np.float64)
        if targets.ndim != 3 or targets.shape[:2] != (N, n):
            raise ValueError(f"Y must have shape ({N}, {n}, c), got {targets.shape}.")
        weight = np.ones(N) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        if weight.shape != (N,):
            raise ValueError(f"sample_weight must have shape ({N},), got {weight.shape}.")
        self.n_outputs = c = targets.shape[2]
        self.shape = (d, c, n, n)
        # (N, n), or (N, 1) for all positions alike
        self.weight = weight[:, None] if mask is None else weight[:, None] * mask
        of_rows = np.broadcast_to(self.weight, (N, n)).ravel()
        seen, rows = of_rows != 0, targets.reshape(-1, c)
        self.positions = PositionProblem(
            PositionDesign(self.design),
            self.loss,
            AttentionPenalty(attention, n),
            np.where(seen[:, None], rows, rows[np.argmax(seen)]),  # any valid target will do
            of_rows,
            intercept,
        )
        self._center: Array | None = None  # (n, d)
        if attention == "stochastic" and intercept and mask is None:
            self._center = np.tile(self.design.means(weight).mean(axis=0), (n, 1))

    # Coefficients -----------------------------------------------------------------------------

    def feasible(self, Z: Array) -> Array:
        """`Z` with exactly equal row sums where attention is stochastic.

        Entries are rounded to multiples of one power of two per matrix, of which sums are exact.
        What a row lacks to the mean of its matrix's row sums goes to its largest entry, so that
        zeros stay zeros. Coefficients that are feasible already stay as they are.
        """
        if self.attention == "substochastic" or not np.isfinite(Z).all():
            return Z
        for _ in range(3):  # the repair may enlarge entries beyond the power of two they suit
            before, Z = Z, _equalised(Z)
            if np.array_equal(before, Z):
                break
        return Z

    def parts(self, Z: Array) -> AttentionParts:
        """Nonnegative parts of ``feasible(Z)``, the attention of the equivalent network."""
        return AttentionParts.of(self.feasible(Z), self.attention)

    def columns(self, Z: Array) -> Array:
        """``feasible(Z)`` as coefficients ``(n, d n, c)`` of `positions`."""
        return to_tokens(self.feasible(Z)).reshape(self.positions.shape)

    # Values -----------------------------------------------------------------------------------

    @property
    def beta_max(self) -> float:
        """Smallest beta at which ``Z = 0`` is optimal; 0 where that is all but rounding."""
        return self.positions.beta_max

    def best_intercept(self, Z: Array) -> Array:
        """The intercept that minimises the loss at `Z`, for raw X and Y."""
        return self.positions.at(self.columns(Z), self.positions.risk.best_constant()).intercept

    def predict(self, Z: Array, b: Array) -> Array:
        """Scores ``(N, n, c)``."""
        F = self.positions.predict(self.columns(Z), b)
        return F.reshape(*self.design.X.shape[:2], self.n_outputs)

    def objective(self, Z: Array, b: Array, beta: float) -> float:
        """``P(Z, b)``."""
        return self.positions.objective(self.columns(Z), b, beta)

    def certificate(self, Z: Array, b: Array, beta: float, tol: float = 1e-6) -> Certificate:
        """Bounds at ``feasible(Z)`` and `b` that hold in exact arithmetic, from the data alone.

        ``dual <= min P <= P(feasible(Z), b) <= primal``.
        """
        return self.positions.certificate(self.columns(Z), b, beta, tol)

    # Moments ----------------------------------------------------------------------------------

    @cached_property
    def moments(self) -> Moments:
        """The squared loss without the samples."""
        return self.model(self.weight[:, :, None], self.positions.Y)

    def model(self, weight: Array, Y: Array, joint: bool = False) -> Moments:
        """A weighted squared loss of the targets of all rows, see :func:`moments_of`."""
        Y = Y.reshape(*self.design.X.shape[:2], self.n_outputs)
        return moments_of(self.design, self._center, weight, Y, self.intercept, joint)


def _equalised(Z: Array) -> Array:
    """Entries rounded, and row sums made equal."""
    size = np.abs(Z).sum(axis=3).max(axis=2)[..., None, None]  # (d, c, 1, 1)
    grid = np.exp2(np.ceil(np.log2(np.where(size > 0, size, 1.0))) - SUM_BITS)
    Z = np.rint(Z / grid) * grid
    sums = Z.sum(axis=3, keepdims=True)
    common = np.rint(sums.mean(axis=2, keepdims=True) / grid) * grid
    largest = np.argmax(np.abs(Z), axis=3)[..., None]
    entry = np.take_along_axis(Z, largest, axis=3) + (common - sums)
    np.put_along_axis(Z, largest, entry, axis=3)
    return Z


def to_tokens(Z: Array) -> Array:
    """``Z (d, c, n, n)`` as ``T (n, d, n, c)``."""
    return np.ascontiguousarray(Z.transpose(3, 0, 2, 1))


def from_tokens(T: Array) -> Array:
    """``T (n, d, n, c)`` as ``Z (d, c, n, n)``."""
    return np.ascontiguousarray(T.transpose(1, 3, 2, 0))
