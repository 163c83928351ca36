r"""The kernels in NumPy: what stands in for ``_compiled`` where nothing was compiled.

Every function takes the same arrays as its compiled twin and writes to the same ones, which come
last, as a rule; docstrings are for both. Arrays are contiguous. Kernels of losses with an intercept
and Newton's method decline here, by a return value that says so: the general methods of `problem`
and `solvers` do their work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Matrices = NDArray | tuple[NDArray, ...]  # one for every token
Shape = tuple[int, ...]

__all__ = [
    "balance",
    "block_descent",
    "csr_correlate",
    "csr_entries",
    "csr_gram",
    "csr_predict",
    "few_columns_product",
    "gram_of_columns",
    "logistic_dual",
    "logistic_expansion",
    "loss_point",
    "newton",
    "predict_and_correlate",
    "prepare_tokens",
    "softmax_dual",
    "softmax_expansion",
    "transpose_tokens",
    "wide_registers",
]

SWEEPS = 6  # of a cycle, at most
INNER = 12  # steps to the best of one token, at most
LARGEST = 32767  # entry of a token that is int16
SMALLEST = 1e-30  # largest entry of one that is not as good as zero
NEARLY = 1e-3  # of a move, squared: smaller steps are not worth taking
NOISE = 1e-8  # of moves that were found in float32, squared
BLOCK_ROWS = 4096  # of X that are copied at a time
TINY, BELOW_ONE = np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg  # for logarithms of 0


def wide_registers() -> bool:
    """Whether the processor has AVX-512: then reading int16 takes half the time of float32."""
    return False


# Block coordinate descent over tokens


def block_descent(
    tokens: Matrices,
    grams: Matrices,
    shape: Shape,
    step: Array,
    limit: Array,
    square: Array,
    Z: Array,
    M: Array,
    sweeps: int = SWEEPS,
) -> tuple[float, float]:
    """Some sweeps over the tokens, and an extrapolation; returns the objective and its gap.

    Squares of v ``(c / part,)``, coefficients `Z` and correlations `M` ``(n, c, d)`` move in place;
    `step` are ones over the largest eigenvalues of `grams` ``(d, d)``. The last of the `shape`
    ``(n, d, c, N, part, in_samples)`` say how many outputs share tokens, c or 1, and whether these
    are ``(d, N)``, or else rows of the Gram matrix of all of them.
    """
    _, _, c, _, part, in_samples = shape
    value = gap = 0.0
    for j, first in enumerate(range(0, c, part)):
        one = slice(first, first + part)
        at = _Part(tokens, grams, bool(in_samples), step, limit, Z[:, one], M[:, one])
        square[j] = at.run(float(square[j]), sweeps)
        more = at.measure(float(square[j]))
        value, gap = value + more[0], gap + more[1]
    return value, gap


@dataclass
class _Part:
    """Outputs that share tokens."""

    tokens: Matrices
    grams: Matrices
    in_samples: bool
    step: Array
    limit: Array
    Z: Array
    M: Array

    def run(self, square: float, sweeps: int) -> float:
        """Sweeps, and where they lead; returns the square of v there."""
        Z, M = self.Z, self.M
        points, changes = [Z.copy()], [np.zeros((Z.shape[1], self.tokens[0].shape[1]))]
        for sweep in range(sweeps):
            changes.append(changes[-1].copy())
            self._sweep(changes[-1], sweep == 0)
            points.append(Z.copy())
        e = self._extrapolate(np.array(points), np.array(changes[1:]))
        change = np.array([self._correlated(k, e) for k in range(len(M))])
        square -= float(np.sum((Z - points[0]) * (2 * M + change)))
        M += change
        return max(square, 0.0)

    def _sweep(self, e: Array, new: bool) -> None:
        """Every token that is in use, or may be if they may be `new`, to its best."""
        Z, M = self.Z, self.M
        live = np.any(Z, axis=(1, 2))
        if new:
            live |= _norms(M) > self.limit
        for k in np.flatnonzero(live).tolist():
            r = M[k] + self._correlated(k, e)
            move = _best_move(Z[k], r, self.grams[k], float(self.step[k]), float(self.limit[k]))
            Z[k] += move
            e -= self._spread(k, move)

    def _correlated(self, k: int, e: Array) -> Array:
        """By how much the change `e` changes the correlations of token k."""
        if self.in_samples:
            return np.asarray(e.astype(np.float32) @ self.tokens[k].T, dtype=float)
        d = self.Z.shape[2]
        return e[:, k * d : (k + 1) * d]

    def _spread(self, k: int, move: Array) -> NDArray:
        """What a move of token k changes."""
        return np.asarray(move.astype(np.float32 if self.in_samples else float) @ self.tokens[k])

    def _extrapolate(self, points: Array, changes: Array) -> Array:
        """To the affine combination of points whose moves cancel best, if that is better.

        A token that was let go stays so. Returns the change e there.
        """
        Z, e = self.Z, changes[-1]
        share = _anderson_shares(np.diff(points, axis=0).reshape(len(changes), -1))
        there, changed = (np.tensordot(share, of, axes=1) for of in (points[1:], changes))
        gone = ~np.any(Z, axis=(1, 2)) & np.any(there, axis=(1, 2))
        for k in np.flatnonzero(gone).tolist():
            changed += self._spread(k, there[k])
            there[k] = 0.0
        # By how much the objective rises: not the difference of two values, which would round.
        move = there - Z
        in_coefficients = -move.transpose(1, 0, 2).reshape(len(e), -1)
        bent = (changed - e if self.in_samples else in_coefficients) * (changed + e)
        total = np.maximum(_norms(there) + _norms(Z), 1e-300)
        shrunk = np.sum(move * (there + Z), axis=(1, 2)) / total
        if 0.5 * np.sum(bent) - np.sum(self.M * move) + self.limit @ shrunk < 0:
            Z[:] = there
            return np.asarray(changed)
        return e

    def measure(self, square: float) -> tuple[float, float]:
        """The objective and its gap."""
        limit, norms = self.limit, _norms(self.M)
        penalty, inner = float(limit @ _norms(self.Z)), float(np.sum(self.Z * self.M))
        scale = float(np.min(limit / np.maximum(norms, 1e-9 * limit)))
        if square > 0:  # the best place on the ray of the dual point, if it is in the norm ball
            scale = min(scale, max(0.0, 1 + inner / square))
        gap = 0.5 * (1 - scale) ** 2 * square + penalty - scale * inner
        return 0.5 * square + penalty, gap


def _best_move(z: Array, r: Array, G: Floats, step: float, limit: float) -> Array:
    """From `z`, with correlations `r` there, to the minimum over one token."""
    move = np.zeros_like(z)
    for _ in range(INNER):
        new = z + move + step * (r - move @ G)
        length = float(np.linalg.norm(new))
        shrink = 1 - step * limit / length if length > step * limit else 0.0
        last, move = move, shrink * new - z
        if len(G) == 1 or np.sum((move - last) ** 2) <= NEARLY * np.sum(move**2):
            break
    return move


def _norms(Z: Array) -> Array:
    return np.sqrt(np.einsum("kcd,kcd->k", Z, Z))


def _anderson_shares(moves: Array) -> Array:
    """Shares, which sum to 1, with which moves ``(depth, size)`` cancel best."""
    C = moves @ moves.T
    C += (NOISE * np.trace(C) + 1e-300) * np.eye(len(C))
    x = np.linalg.solve(C, np.ones(len(C)))
    return np.asarray(x / x.sum())


def transpose_tokens(
    X: Array, groups: Integers, center: Array, factor: Array, root: Array, A: Floats, shape: Shape
) -> None:
    """Some groups of the columns of `X` ``(rows, width)`` as rows of `A` ``(n, d, N)``.

    From `first` on, less their `center` ``(n, d)``, times a `factor` ``(n,)`` of each and the
    `root` ``(rows,)`` of samples' weights; the `shape` is ``(rows, width, n, d, first, N)``.
    """
    rows, _, n, d, first, _ = shape
    chosen = X.reshape(rows, -1, d)[:, groups] - center
    chosen *= root[:, None, None] * factor[:, None]
    A.reshape(n * d, -1)[:, first : first + rows] = chosen.reshape(rows, n * d).T


def prepare_tokens(
    A: Floats, gram: Floats, unit: Array, packed: NDArray[np.int16] | None, shape: Shape
) -> None:
    """Gram matrices of tokens `A` ``(n, d, N)``, and, unless it is None, tokens packed.

    That is over units of their own, by which `unit` ``(n,)`` grows, or is 0 where entries do not
    fit; the `shape` is ``(n, d, N)``.
    """
    if packed is not None:
        top = np.abs(A).max(axis=(1, 2)).astype(np.float64)
        fits = (top > SMALLEST) & (top < 1 / SMALLEST)
        own = np.where(fits, top / LARGEST, np.inf)
        A = (A / own[:, None, None]).astype(np.float32)
        packed[:] = np.rint(A)
        unit *= np.where(fits, own, 0.0)
    np.matmul(A, A.transpose(0, 2, 1), out=gram)


# Products with X


def csr_entries(shape: Shape, X: NDArray, end: Integers, column: Integers, value: Array) -> int:
    """List what is not zero of `X` ``(rows, columns)``: where rows end, columns and values.

    Returns how many there are, or -1 where they, and one more, find no `room`, the last of the
    `shape`.
    """
    rows, columns, room = shape
    row, place = np.nonzero(X.reshape(rows, columns))
    count = len(row)
    if count >= room:
        return -1
    end[:] = np.cumsum(np.bincount(row, minlength=rows))
    column[:count], value[:count] = place, X.reshape(rows, columns)[row, place]
    return count


def csr_predict(
    shape: Shape, start: Integers, column: Integers, value: Array, Z: Array, F: Array
) -> None:
    """``F (c, rows) = X Z`` of `Z` ``(c, columns)``.

    The `shape` is ``(rows, entries, columns, c)``.
    """
    F[...] = (_csr(shape, start, column, value) @ Z.T).T


def csr_correlate(
    shape: Shape, start: Integers, column: Integers, value: Array, V: Array, M: Array
) -> None:
    """``M (c, columns) += X' V`` of `V` ``(c, rows)``."""
    M += (_csr(shape, start, column, value).T @ V.T).T


def csr_gram(
    shape: Shape,
    start: Integers,
    column: Integers,
    value: Array,
    weight: Array,
    place: Integers,
    Q: Array,
    q: Array,
) -> None:
    """``Q += X' diag(w) X`` and ``q += X' w`` of the columns that have a place in `Q`.

    Places ascend with columns; others are -1.
    """
    A = _csr(shape, start, column, value)[:, place >= 0]
    Q += (A.T @ A.multiply(weight[:, None])).toarray()
    q += A.T @ weight


def _csr(shape: Shape, start: Integers, column: Integers, value: Array):  # type: ignore[no-untyped-def]
    from scipy.sparse import csr_array  # where it is needed: it takes a while to import

    return csr_array((value, column, start), shape=(shape[0], shape[2]))


def predict_and_correlate(
    shape: Shape,
    X: NDArray,
    Z: Array,
    target: Array,
    weight: Array,
    other: Array,
    F: Array,
    V: Array,
    M: Array,
) -> None:
    """``F = X Z``, ``V = weight (target - F)``, and to `M` is added ``(V, other)' X``.

    The `shape` is ``(rows, p, c, others)``, c up to 4; for one there is an other (1), or none (0).
    """
    rows, p, c, others = shape
    A, scores, left = X.reshape(rows, p), F.reshape(rows, c), V.reshape(rows, c)
    scores[...] = A @ Z.reshape(p, c)
    left[...] = weight[:, None] * (target.reshape(rows, c) - scores)
    both = M.reshape(c + others, p)
    both[:c] += left.T @ A
    both[c:] += other.reshape(rows, others).T @ A


def gram_of_columns(
    shape: Shape,
    doubles: bool,
    X: NDArray,
    group: Integers,
    center: Array,
    root: Array,
    beside: Array,
    Q: Array,
    q: Array,
) -> None:
    """``Q += B' A`` and ``q += B' beside`` of columns A of some groups of `X`.

    Less their `center`, and times the `root` of samples' weights; B are the first `own` of A. The
    `shape` is ``(rows, width, n, d, own, padded)``: `Q` and `q` have columns up to a multiple of
    16, or 8 in doubles, and what there is beside A and B means nothing.
    """
    rows, width, n, d, own, _ = shape
    for first in range(0, rows, BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        A = X.reshape(rows, width // d, d)[part][:, group].reshape(-1, n * d) - center.ravel()
        A *= root[part, None]
        B: NDArray = A.astype(np.float64 if doubles else np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):  # of float32: callers look at Q
            Q[:own, : n * d] += B[:, :own].T @ B
            q[:own] += B[:, :own].T @ (root[part] * beside[part])


def few_columns_product(shape: Shape, transposed: bool, X: Array, by: Array, out: Array) -> None:
    """``X by`` of `X` ``(N, p)``, c up to 4, or, transposed, ``X' by``, c up to 16."""
    out[...] = (X.T if transposed else X) @ by


# Losses


def logistic_expansion(shape: Shape, F: Array, Y: Array, value: Array, V: Array, H: Array) -> None:
    """A logistic loss, minus its slope, and its curvature."""
    small, margin = np.exp(-np.abs(F)), Y * F
    share = 1.0 / (1.0 + small)
    value[...] = np.maximum(-margin, 0.0) + np.log1p(small)
    V[...] = Y * np.where(margin > 0, small, 1.0) * share
    H[...] = small * share * share


def logistic_dual(shape: Shape, V: Array, Y: Array, value: Array) -> None:
    """Minus the conjugate of a logistic loss at ``-V``."""
    q = Y * V
    value[...] = -q * np.log(np.maximum(q, TINY)) - (1 - q) * np.log1p(-np.minimum(q, BELOW_ONE))


def softmax_expansion(shape: Shape, F: Array, Y: Array, value: Array, V: Array, P: Array) -> None:
    """Cross-entropy, minus its slopes, and probabilities; arrays are ``(c, rows)``."""
    size = F - np.sum(F * Y, axis=0)  # relative to the score of the true class
    top = size.max(axis=0)
    E = np.exp(size - top)
    is_top = E == 1.0
    others = np.where(is_top, 0.0, E).sum(axis=0) + (np.count_nonzero(is_top, axis=0) - 1)
    value[...] = (top + np.log1p(others)).reshape(value.shape)
    P[...] = E / E.sum(axis=0)
    # 1 - p of a likely class is the sum of the others: exact also where the fit is perfect
    likely = P > 0.5
    rest = np.where(likely, 0.0, P).sum(axis=0)
    V[...] = Y * np.where(likely, rest, 1.0 - P) - (1.0 - Y) * P


def softmax_dual(shape: Shape, V: Array, Y: Array, value: Array) -> None:
    """Minus the conjugate of a cross-entropy at ``-V``; arrays are ``(c, rows)``."""
    Q = np.maximum(Y - V, 0.0)  # where Y = 1 this is near 1, and log1p keeps its distance from 1
    logs = np.log(np.maximum(Q, TINY))
    np.log1p(-np.minimum(V, BELOW_ONE), out=logs, where=Y == 1.0)
    value[...] = -np.sum(logs * Q, axis=0).reshape(value.shape)


def loss_point(
    shape: Shape, rounds: int, S: Array, Y: Array, weight: Array, b: Array, F: Array, V: Array
) -> tuple[bool, float, bool]:
    """Where it is compiled: ``F = S + b``, the loss there, and its dual point `V`; here declines.

    Returns whether `V` was found, made to sum to zero in some `rounds` and within bounds; the loss;
    and whether `b` is the best intercept. Arrays are ``(c, N)``; c = 1 is a logistic loss, more a
    softmax.
    """
    return False, np.nan, False


def balance(
    shape: Shape, rounds: int, V: Array, P: Array, weight: Array, out: Array, step: Array
) -> bool:
    """Where it is compiled: `V` weighted, and made to sum to zero; here declines.

    That is by steps of intercepts along the curvature of probabilities `P`, which add up in `step`.
    Returns whether there is curvature.
    """
    return False


def newton(*arrays: object) -> tuple[bool, float]:
    """Where it is compiled: proximal Newton method for a logistic loss or a softmax; here declines.

    Takes ``(N, n, d, c, blocks, entries, width), start, column, X, place, center, Y, weight, limit,
    F, Z, b, intercept, goal, seconds``. It goes on from `Z` with scores `F`; in place are `Z` and
    `b`, to which moves of the intercepts are added. X is dense where entries is -1; those of its
    columns count that have a place, less their center. It is done where the gap, which is also
    returned, is below its goal, or where that would take more seconds: then the next call may go on
    from there.
    """
    return False, np.inf
