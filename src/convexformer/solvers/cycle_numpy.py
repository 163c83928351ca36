r"""What ``_sweeps.c`` compiles, in NumPy: the same, slower, where nothing was compiled.

.. math:: \min_Z \tfrac12 \|v\|^2 + \sum_k \mathrm{limit}_k \|Z_k\|, \qquad
          v = y - \sum_k A_k^\top Z_k

for all outputs, or for each of them.

Tokens :math:`A_k` ``(d, N)`` are float32, and so are products within a cycle; at its end v and the
correlations :math:`M_k = A_k v` are changed in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks import anderson_shares

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

SWEEPS = 5  # of a cycle
INNER = 12  # steps to the best of one token, at most
NEARLY = 1e-3  # of a move, squared: smaller steps are not worth taking


def cycle(
    tokens: tuple[Floats, ...],
    shape: tuple[int, int, int, int, int],
    gram: Array,
    step: Array,
    limit: Array,
    v: Array,
    Z: Array,
    M: Array,
) -> tuple[float, float]:
    """Some sweeps over the tokens, and an extrapolation; returns the objective and its gap.

    The dual point `v` ``(c, N)``, coefficients `Z` and correlations `M` ``(n, c, d)`` move in
    place; `step` are ones over the largest eigenvalues of `gram` ``(n, d, d)``. The last of the
    `shape` ``(n, d, c, N, part)`` says how many outputs share tokens: c or 1.
    """
    c, part = shape[2], shape[4]
    parts = [slice(first, first + part) for first in range(0, c, part)]
    found = [_cycle(tokens, gram, step, limit, v[o], Z[:, o], M[:, o]) for o in parts]
    return sum(value for value, _ in found), sum(gap for _, gap in found)


def _cycle(
    tokens: tuple[Floats, ...],
    gram: Array,
    step: Array,
    limit: Array,
    v: Array,
    Z: Array,
    M: Array,
) -> tuple[float, float]:
    """The same for outputs that share tokens."""
    e: Floats = np.zeros(v.shape, dtype=np.float32)  # change of v
    trail = [(Z.copy(), e.copy())]
    for sweep in range(SWEEPS):
        live = np.any(Z, axis=(1, 2))
        if sweep == 0:
            live |= _norms(M) > limit
        for k in np.flatnonzero(live).tolist():
            r = M[k] + e @ tokens[k].T
            move = _best_move(Z[k], r, gram[k], float(step[k]), float(limit[k]))
            Z[k] += move
            e -= move.astype(np.float32) @ tokens[k]
        trail.append((Z.copy(), e.copy()))
    _extrapolate(trail, tokens, limit, M, Z)
    dv, moves = np.zeros_like(v), Z - trail[0][0]
    for k in np.flatnonzero(np.any(moves, axis=(1, 2))).tolist():
        dv -= moves[k] @ tokens[k]
    v += dv
    for k, A in enumerate(tokens):
        M[k] += dv @ A.T
    return _measure(limit, v, Z, M)


def _best_move(z: Array, r: Array, G: Array, step: float, limit: float) -> Array:
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


def _extrapolate(
    trail: list[tuple[Array, Floats]],
    tokens: tuple[Floats, ...],
    limit: Array,
    M: Array,
    Z: Array,
) -> None:
    """To the affine combination of points whose moves cancel best, if that is better.

    A token that was let go stays so.
    """
    points = np.array([point.ravel() for point, _ in trail])
    share = anderson_shares(np.diff(points, axis=0))
    there = (share @ points[1:]).reshape(Z.shape)
    e = np.tensordot(share, np.array([e for _, e in trail[1:]]), axes=1)
    gone = ~np.any(Z, axis=(1, 2)) & np.any(there, axis=(1, 2))
    for k in np.flatnonzero(gone).tolist():
        e += there[k] @ tokens[k]
        there[k] = 0.0
    # By how much the objective rises: not the difference of two values, which would round.
    total = np.maximum(_norms(there) + _norms(Z), 1e-300)
    rise = 0.5 * np.sum((e - trail[-1][1]) * (e + trail[-1][1])) - np.sum(M * (there - Z))
    if rise + limit @ (np.einsum("kcd,kcd->k", there - Z, there + Z) / total) < 0:
        Z[:] = there


def _measure(limit: Array, v: Array, Z: Array, M: Array) -> tuple[float, float]:
    penalty, inner, square = float(limit @ _norms(Z)), float(np.sum(Z * M)), float(np.sum(v**2))
    scale = float(np.min(limit / np.maximum(_norms(M), 1e-9 * limit)))
    if square > 0:  # the best place on the ray of the dual point, if it is in the norm ball
        scale = min(scale, max(0.0, 1 + inner / square))
    gap = 0.5 * (1 - scale) ** 2 * square + penalty - scale * inner
    return 0.5 * square + penalty, gap


def _norms(Z: Array) -> Array:
    return np.sqrt(np.einsum("kcd,kcd->k", Z, Z))
