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

SWEEPS = 6  # of a cycle, at most
INNER = 12  # steps to the best of one token, at most
LARGEST = 32767  # entry of a token that is int16
SMALLEST = 1e-30  # largest entry of one that is not as good as zero
NEARLY = 1e-3  # of a move, squared: smaller steps are not worth taking


def cycle(
    tokens: NDArray | tuple[NDArray, ...],
    grams: Floats | tuple[Floats, ...],
    shape: tuple[int, int, int, int, int, bool],
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
    part, found = shape[4], []
    for j, first in enumerate(range(0, shape[2], part)):
        one = slice(first, first + part)
        at = _Part(tokens, grams, shape[5], step, limit, Z[:, one], M[:, one], float(square[j]))
        found.append(at.cycle(sweeps))
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

    def cycle(self, sweeps: int) -> tuple[float, float]:
        Z, M = self.Z, self.M
        e: Array = np.zeros((Z.shape[1], self.tokens[0].shape[1]))
        trail = [(Z.copy(), e.copy())]
        for sweep in range(sweeps):
            live = np.any(Z, axis=(1, 2))
            if sweep == 0:
                live |= _norms(M) > self.limit
            for k in np.flatnonzero(live).tolist():
                r = M[k] + self._correlated(k, e)
                own = self.grams[k], float(self.step[k]), float(self.limit[k])
                move = _best_move(Z[k], r, *own)
                Z[k] += move
                e -= self._spread(k, move)
            trail.append((Z.copy(), e.copy()))
        e = self._extrapolate(trail)
        change = np.array([self._correlated(k, e) for k in range(len(M))])
        self.square -= float(np.sum((Z - trail[0][0]) * (2 * M + change)))
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
