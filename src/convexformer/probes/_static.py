r"""Static mixing: what a head writes, from its own values at fixed places.

.. math:: \min_{Z, b}\ \tfrac12 \sum_t \Bigl\|\sum_k V_{t,k} Z_k + b - Y_t\Bigr\|^2
          + \beta \sum_k w_k \|Z_k\|_F

Tokens :math:`V_{t,k}` are the head's values at offsets from the target t and at landmarks, targets
:math:`Y_t` what the head writes there. A head that weighs places by :math:`a_k`, whatever they
hold, has :math:`Z_k = a_k I`. Weights :math:`w_k` are standard deviations of the tokens, so that
what the penalty charges is a contribution to the output, on whatever scale a token is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ..activations import Activations, ArrayActivations
from ..problem import Certificate, Offsets, Problem, Squared, Token, TokenDesign
from ..problem.arrays import Array
from ..problem.designs import row_slices
from ..solvers import solve_path

LEAST_WEIGHT = 1e-3  # of the largest: a token that never changes is told from the intercept by none
HEAVY = 1e3  # beside the largest of the tokens
PATIENCE = 3  # penalties in a row that may raise the validation error before a path ends
CAUSAL_MEAN = "mean so far"


@dataclass(frozen=True)
class Places:
    """Where a static head may look.

    Parameters
    ----------
    window : int
        Offsets from ``-window`` to ``window``, to 0 where attention is causal.
    causal : bool
        Whether a target sees only what comes before it. Of landmarks the first token remains, and
        the mean of the tokens so far.
    separators : bool
        Whether there are separators within a text, as between the two texts of a pair.
    """

    window: int
    causal: bool
    separators: bool

    @property
    def offsets(self) -> Offsets:
        if self.causal:
            return Offsets(-self.window, 0, ("first",))
        inner = ("separators",) if self.separators else ()
        return Offsets(-self.window, self.window, ("first", "last", "mean", *inner))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.offsets.names, *[CAUSAL_MEAN] * self.causal)

    def tokens(
        self, V: NDArray, mask: NDArray[np.bool_], separators: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Values at all places of every target: ``(targets, places, e)`` of ``V (N, n, e)``."""
        tokens = self.offsets.expand(V, mask, separators).astype(np.float32)
        if not self.causal:
            return tokens
        real = np.where(mask[:, :, None], V, 0.0)
        so_far = real.cumsum(axis=1, dtype=np.float64) / np.arange(1, V.shape[1] + 1)[:, None]
        return np.concatenate([tokens, so_far[mask][:, None].astype(np.float32)], axis=1)


@dataclass(frozen=True)
class Part:
    """Targets of some texts, one after the other."""

    tokens: NDArray[np.float32]  # (T, places, e)
    Y: NDArray[np.float32]  # (T, e)
    starts: NDArray[np.intp]  # where texts begin

    def predict(self, Z: Array, b: Array) -> Array:
        """Scores ``(T, c)``."""
        return TokenDesign(self.tokens).predict(Z) + b

    def errors(self, F: Array | NDArray[np.float32]) -> Array:
        """Squared error of every text: ``(texts,)``."""
        squares = np.square(self.Y - F, dtype=np.float64).sum(axis=1)
        return np.add.reduceat(squares, self.starts)


def compress(part: Part) -> tuple[Array, Array, Array]:
    """As few rows with the same squared errors: ``X (r, places, e)``, ``Y (r, e)``, and means.

    Any R with ``R' R = [V Y]' [V Y]``, centred, gives the same squared errors, so the same
    objective everywhere as the T targets with an intercept. R has as many rows as columns, or
    fewer. The means are those of all columns ``[V Y]``.
    """
    (T, *shape), p = part.tokens.shape, int(np.prod(part.tokens.shape[1:]))
    size = p + part.Y.shape[1]
    total, gram = np.zeros(size), np.zeros((size, size))
    for rows in row_slices(T, size):
        block = np.concatenate([part.tokens[rows].reshape(-1, p), part.Y[rows]], axis=1)
        block = block.astype(np.float64)
        total += block.sum(axis=0)
        gram += block.T @ block
    mean = total / T
    values, vectors = np.linalg.eigh(gram - T * np.outer(mean, mean))
    known = values > size * np.finfo(float).eps * values[-1]  # fewer than few targets
    R = np.sqrt(values[known])[:, None] * vectors[:, known].T
    return np.ascontiguousarray(R[:, :p]).reshape(-1, *shape), R[:, p:], mean


def deviations(X: Array) -> Array:
    """Penalty weights: standard deviations of tokens, of which the largest is one."""
    sizes = np.linalg.norm(X, axis=(0, 2))
    return np.asarray(np.maximum(sizes / sizes.max(), LEAST_WEIGHT))


def static_attention(X: Array, Y: Array) -> Array:
    r"""The :math:`a \ge 0, \sum_k a_k \le 1` for which ``Z_k = a_k I`` is best.

    Nonnegative least squares, with a slack for what goes elsewhere and the sum as a heavy row.
    """
    columns = X.swapaxes(1, 2).reshape(-1, X.shape[1])  # (r e, places)
    heavy = HEAVY * np.linalg.norm(columns, 2)
    sums = np.pad(columns, ((0, 1), (0, 1)))
    sums[-1] = heavy
    return np.asarray(nnls(sums, np.append(Y, heavy))[0][:-1])


@dataclass(frozen=True)
class StaticFit:
    """The static mixing of one head, chosen on validation texts.

    Attributes
    ----------
    Z : ndarray of shape (places, e, e)
    b : ndarray of shape (e,)
    certificate : Certificate
        Of the training problem on all targets, in float64.
    betas, validation : ndarray of shape (B,)
        Fractions of beta_max that were tried, and the share explained on validation texts at each.
    strengths : ndarray of shape (places,)
        Deviation of what a place contributes, over the deviation of what the head writes.
    weights : ndarray of shape (places,)
        The number a for which ``a I`` is nearest to Z_k, in the metric of the place's values.
    attention : ndarray of shape (places,)
        Static attention: weights that explain most, none negative, in all at most 1.
    """

    Z: Array
    b: Array
    certificate: Certificate
    betas: Array
    validation: Array
    strengths: Array
    weights: Array
    attention: Array


def fit_static(train: Part, validation: Part, betas: Array, tol: float) -> StaticFit:
    """Certified static mixing for one beta after the other, until the validation error rises; of
    these, the largest beta that validation cannot tell from the best (one standard error).

    Parameters
    ----------
    train, validation : Part
    betas : ndarray of shape (B,)
        Fractions of beta_max, decreasing.
    tol : float
        Relative duality gap.
    """
    X, Y, mean = compress(train)
    weights, e = deviations(X), Y.shape[1]
    small = Problem(TokenDesign(X), Squared(), Token(weights), Y, intercept=False)

    def intercept(Z: Array) -> Array:
        return np.asarray(mean[-e:] - mean[:-e] @ Z.reshape(-1, e))

    solutions, rows = [], []
    for solution in solve_path(small, (betas * small.beta_max).tolist(), tol=0.5 * tol):
        solutions.append(solution)
        F = validation.predict(solution.Z, intercept(solution.Z))
        rows.append(validation.errors(F))
        if _rising(rows):
            break
    errors = np.stack(rows)  # (B, texts)
    chosen = solutions[_simplest(errors)]
    b = intercept(chosen.Z)
    # What is certified is the problem itself, on all its targets, not its smaller equal.
    problem = Problem(TokenDesign(train.tokens), Squared(), Token(weights), train.Y)
    contributed = np.einsum("rke,kec->rkc", X, chosen.Z, optimize=True)
    sizes = np.maximum(np.square(X).sum(axis=(0, 2)), np.finfo(float).tiny)
    return StaticFit(
        Z=chosen.Z,
        b=b,
        certificate=problem.certificate(chosen.Z, b, chosen.certificate.beta),
        betas=betas[: len(errors)],
        validation=1.0 - errors.sum(axis=1) / validation.errors(mean[-e:]).sum(),
        strengths=np.linalg.norm(contributed, axis=(0, 2)) / np.linalg.norm(Y),
        weights=(X * contributed).sum(axis=(0, 2)) / sizes,
        attention=static_attention(X, Y),
    )


def mixing(weights: Array, e: int) -> Array:
    """Coefficients ``(places, e, e)`` that only weigh."""
    return np.asarray(weights[:, None, None] * np.eye(e))


def _rising(rows: list[Array]) -> bool:
    """Whether the least error lies `PATIENCE` penalties back: weaker ones only fit more noise."""
    totals = [float(errors.sum()) for errors in rows]
    return len(totals) - 1 - int(np.argmin(totals)) >= PATIENCE


def _simplest(errors: Array) -> int:
    """First row whose errors are, on average, within a standard error of those of the best row."""
    best = int(np.argmin(errors.sum(axis=1)))
    excess = errors - errors[best]  # (B, texts): the same texts, so compared text by text
    deviation = excess.std(axis=1, ddof=1) * np.sqrt(errors.shape[1])
    return int(np.argmax(excess.sum(axis=1) <= deviation))


def share(errors: Array, baseline: Array) -> tuple[float, float]:
    """Share of the baseline's squared error that is gone, and its standard error over texts."""
    left = errors.sum() / baseline.sum()
    spread = np.sqrt(np.sum((errors - left * baseline) ** 2) * len(errors) / (len(errors) - 1))
    return float(1.0 - left), float(spread / baseline.sum())


# The model's own mean attention, by place ---------------------------------------------------------


def is_causal(maps: Iterable[NDArray]) -> bool:
    """Whether no target attends to what comes after it."""
    return all(not np.any(np.triu(A, 1)) for A in maps)


def mean_attention(
    activations: Activations | ArrayActivations,
    texts: Iterable[int],
    places: Places,
    separators: dict[int, NDArray],
) -> Array:
    """Mean attention of every head to every place, ``(heads, places)``.

    Tokens that are landmarks count as these and not at their offsets; of an offset, the mean is
    over targets that have such a token. What is left of a target's attention counts for the mean.
    """
    names, window = places.names, len(places.offsets.window)
    rest = [name.startswith("mean") for name in names]
    total = np.zeros((activations.n_heads, len(names)))
    count = np.zeros(len(names))
    for i in texts:
        A: Any = activations[i].maps
        n = A.shape[1]
        # which token is which place of a target: (targets, places, sources)
        seen = places.tokens(np.eye(n)[None], np.ones((1, n), dtype=bool), separators[i][None]) > 0
        seen[:, rest] = False
        landmarks = seen[:, window:].any(axis=(0, 1))
        seen[:, :window, landmarks] = False
        total += np.einsum("hts,tks->hk", A, seen, dtype=np.float64, optimize=True)
        count[:window] += seen[:, :window].sum(axis=(0, 2))
        count[window:] += n
    mean = total / np.maximum(1, count)
    mean[:, rest] = np.maximum(0.0, 1.0 - mean.sum(axis=1, keepdims=True))
    return mean
