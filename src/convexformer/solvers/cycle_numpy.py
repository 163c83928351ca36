r"""What ``_sweeps.c`` compiles, in NumPy: the same, slower, where nothing was compiled.

.. math:: \min_Z \tfrac12 \|v\|^2 + \sum_k \mathrm{limit}_k \|Z_k\|, \qquad
          v = y - \sum_k A_k^\top Z_k

for all outputs, or for each of them.

It takes the squares of v and the correlations :math:`M_k = A_k v` to begin with, then changes only,
e, either of v, or, where samples are many, of M: in samples, where tokens are float32, or in
coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .blocks import anderson_shares

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

SWEEPS, TO_AND_FRO = 6, 8  # of a cycle, at most, all one way or not
INNER = 12  # steps to the best of one token, at most
LARGEST = 32767  # entry of a token that is int16
SMALLEST = 1e-30  # largest entry of one that is not as good as zero
PLANE_STEPS = 8  # to the best point of a plane, at most
SINGULAR = 1e-9  # of a Hessian: then both moves are one
FARTHEST = 10.0  # times a move: beyond, what a move has of rounding would count
NEARLY = 1e-3  # of a move, squared: smaller steps are not worth taking


def cycle(
    tokens: NDArray | tuple[NDArray, ...],
    grams: Floats | tuple[Floats, ...],
    shape: tuple[int, int, int, int, int, bool, bool],
    step: Array,
    limit: Array,
    square: Array,
    Z: Array,
    M: Array,
    last: Array,
    sweeps: int = SWEEPS,
) -> tuple[float, float]:
    """Some sweeps over the tokens, and an extrapolation; returns the objective and its gap.

    Squares of v ``(c / part,)``, coefficients `Z` and correlations `M` ``(n, c, d)`` move in place;
    `step` are ones over the largest eigenvalues of `grams` ``(d, d)``. The last of the `shape`
    ``(n, d, c, N, part, in_samples, to_and_fro)`` say how many outputs share tokens, c or 1,
    whether these are ``(d, N)``, or else rows of the Gram matrix of all of them, and whether sweeps
    go to and fro: then `last` holds the last moves of Z and v, else nothing.
    """
    n, d, c, N, part, in_samples, to_and_fro = shape
    last_Z = last[: n * c * d].reshape(n, c, d) if to_and_fro else Z
    last_e = last[n * c * d :].reshape(c, N) if to_and_fro else np.empty((c, 0))
    found = []
    for j, first in enumerate(range(0, c, part)):
        one = slice(first, first + part)
        here = Z[:, one], M[:, one], float(square[j])
        at = _Part(tokens, grams, in_samples, step, limit, *here, last_Z[:, one], last_e[one])
        found.append(at.run_to_and_fro(sweeps) if to_and_fro else at.run_forward(sweeps))
        square[j] = at.square
    return sum(value for value, _ in found), sum(gap for _, gap in found)


@dataclass
class _Part:
    """Outputs that share tokens."""

    tokens: NDArray | tuple[NDArray, ...]
    grams: Floats | tuple[Floats, ...]
    in_samples: bool
    step: Array
    limit: Array
    Z: Array
    M: Array
    square: float
    last_Z: Array
    last_e: Array

    def run_forward(self, sweeps: int) -> tuple[float, float]:
        trail = [(self.Z.copy(), self._unchanged())]
        for sweep in range(sweeps):
            e = trail[-1][1].copy()
            self._sweep(e, sweep == 0, 1)
            trail.append((self.Z.copy(), e))
        return self._arrive(trail[0][0], self._extrapolate(trail))

    def run_to_and_fro(self, sweeps: int) -> tuple[float, float]:
        start, e = self.Z.copy(), self._unchanged()
        for sweep in range(sweeps):
            before = self.Z.copy(), e.copy()
            self._sweep(e, sweep == 0, -1 if sweep % 2 else 1)
            self._search_plane(*before, e)
        return self._arrive(start, e)

    def _unchanged(self) -> Array:
        return np.zeros((self.Z.shape[1], self.tokens[0].shape[1]))

    def _sweep(self, e: Array, new: bool, way: int) -> None:
        """Every token that is in use, or may be if they may be `new`, to its best."""
        Z, M = self.Z, self.M
        live = np.any(Z, axis=(1, 2))
        if new:
            live |= _norms(M) > self.limit
        for k in np.flatnonzero(live)[::way].tolist():
            r = M[k] + self._correlated(k, e)
            move = _best_move(Z[k], r, self.grams[k], float(self.step[k]), float(self.limit[k]))
            Z[k] += move
            e -= self._spread(k, move)

    def _arrive(self, start: Array, e: Array) -> tuple[float, float]:
        """Bring correlations up to date with the change `e` since `start`."""
        Z, M = self.Z, self.M
        change = np.array([self._correlated(k, e) for k in range(len(M))])
        self.square -= float(np.sum((Z - start) * (2 * M + change)))
        self.square = max(self.square, 0.0)
        M += change
        return self._measure()

    def _correlated(self, k: int, e: Array) -> Array:
        """By how much `e` changes the correlations of token k."""
        if self.in_samples:
            return np.asarray(e.astype(np.float32) @ self.tokens[k].T, dtype=float)
        d = self.Z.shape[2]
        return e[:, k * d : (k + 1) * d]

    def _spread(self, k: int, move: Array) -> NDArray:
        """What a move of token k changes."""
        return np.asarray(move.astype(np.float32 if self.in_samples else float) @ self.tokens[k])

    def _extrapolate(self, trail: list[tuple[Array, Array]]) -> Array:
        """To the affine combination of points whose moves cancel best, if that is better.

        A token that was let go stays so. Returns the change e there.
        """
        Z, e = self.Z, trail[-1][1]
        points = np.array([point.ravel() for point, _ in trail])
        share = anderson_shares(np.diff(points, axis=0))
        there = (share @ points[1:]).reshape(Z.shape)
        changed = np.tensordot(share, np.array([e for _, e in trail[1:]]), axes=1)
        gone = ~np.any(Z, axis=(1, 2)) & np.any(there, axis=(1, 2))
        for k in np.flatnonzero(gone).tolist():
            changed += self._spread(k, there[k])
            there[k] = 0.0
        # By how much the objective rises: not the difference of two values, which would round.
        if self.in_samples:
            bent = np.sum((changed - e) * (changed + e))
        else:
            bent = -np.sum((there - Z).transpose(1, 0, 2).reshape(e.shape) * (changed + e))
        total = np.maximum(_norms(there) + _norms(Z), 1e-300)
        shrunk = np.einsum("kcd,kcd->k", there - Z, there + Z) / total
        if 0.5 * bent - np.sum(self.M * (there - Z)) + self.limit @ shrunk < 0:
            Z[:] = there
            return np.asarray(changed)
        return e

    def _search_plane(self, Z0: Array, e0: Array, e: Array) -> None:
        """To the best point of the plane along what a sweep has moved and the last move."""
        Z, by = self.Z, np.array([1.0, 0.0])
        moves, turns = np.array([Z - Z0, self.last_Z]), np.array([e - e0, self.last_e])
        used = np.any(Z0, axis=(1, 2))
        came = np.any(Z, axis=(1, 2)) != used
        if not np.any(came | (~used & np.any(self.last_Z, axis=(1, 2)))):
            bulk = np.tensordot(turns, e0, axes=2) - np.tensordot(moves, self.M, axes=3)
            Q = np.tensordot(turns, turns, axes=((1, 2), (1, 2)))
            z, u = Z0[used], moves[:, used]
            tokens = _norms(z), np.einsum("akcd,kcd->ak", u, z), np.einsum("akcd,bkcd->abk", u, u)
            by = _best_on_plane(bulk, Q, *tokens, self.limit[used])
        for to, start, last in ((Z, Z0, self.last_Z), (e, e0, self.last_e)):
            last[:] = by[0] * (to - start) + by[1] * last
            to[:] = start + last

    def _measure(self) -> tuple[float, float]:
        limit, square, norms = self.limit, self.square, _norms(self.M)
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


def _best_on_plane(bulk: Array, Q: Array, norm: Array, p: Array, P: Array, limit: Array) -> Array:
    """The best combination of two moves, from the first alone; Newton's method.

    Of ``bulk . a + a' Q a / 2 + sum_k limit_k ||z_k + a . u_k||``, with `norm` that of z, `p` its
    products with the moves of tokens, and `P` those of moves with each other.
    """
    to, best, least = np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.inf
    for _ in range(PLANE_STEPS):
        along = p + np.einsum("abk,b->ak", P, to)
        more = to @ (p + along)
        there = np.sqrt(np.maximum(norm**2 + more, 1e-30 * norm**2))
        value = to @ (bulk + 0.5 * Q @ to) + limit @ (more / (norm + there))
        if not value < least:
            to = 0.5 * (to + best)
            continue
        least, best, by = value, to, limit / there
        slope = bulk + Q @ to + along @ by
        H = Q + P @ by - (along * (by / there**2)) @ along.T
        if not np.linalg.det(H) > SINGULAR * H[0, 0] * H[1, 1]:
            break
        to = to - np.linalg.solve(H, slope)
        if not np.abs(to).max() < FARTHEST:
            break
    return best


def _norms(Z: Array) -> Array:
    return np.sqrt(np.einsum("kcd,kcd->k", Z, Z))


def transpose(
    X: Array,
    groups: NDArray[np.int32],
    center: Array,
    factor: Array,
    root: Array,
    A: Floats,
    shape: tuple[int, int, int, int, int, int],
) -> None:
    """Some groups of the columns of `X` ``(rows, width)`` as rows of `A` ``(n, d, N)``.

    From `first` on, less their `center` ``(n, d)``, times a `factor` ``(n,)`` of each and the
    `root` ``(rows,)`` of samples' weights; the `shape` is ``(rows, width, n, d, first, N)``.
    """
    rows, _, n, d, first, _ = shape
    chosen = X.reshape(rows, -1, d)[:, groups] - center
    chosen *= root[:, None, None] * factor[:, None]
    A.reshape(n * d, -1)[:, first : first + rows] = chosen.reshape(rows, n * d).T


def prepare(
    A: Floats,
    gram: Floats,
    unit: Array,
    packed: NDArray[np.int16] | None,
    shape: tuple[int, int, int],
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
