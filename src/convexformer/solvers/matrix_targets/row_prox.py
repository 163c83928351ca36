r"""Proximal step of the matrix-target penalties, for all matrices at once.

By Moreau's identity the step removes from :math:`V` its projection onto the dual ball, and that
projection clips every row r to an interval :math:`[-g_r, h_r]` with

.. math:: \sum_r h_r \le t, \qquad \sum_r g_r \le t

(and :math:`h, g \ge 0` where attention is substochastic, else :math:`h_r + g_r \ge 0`). All rows of
a matrix share two multipliers, :math:`a = \sum_k (V_{rk} - h_r)_+` and
:math:`b = \sum_k (-V_{rk} - g_r)_+`, which are the row sums of the result's two parts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Levels = tuple[Array, Array]

_ROUNDING = 1e-15
_MOST_STEPS = 100  # Newton needs 2-3 from a good start; ends after finitely many in any case


def prox(V: Array, t: Array, stochastic: bool, start: Levels | None = None) -> tuple[Array, Levels]:
    r"""``argmin_T 1/2 ||T - V||^2 + sum_jl t_j penalty(T_jl)``.

    :math:`h_r = \max_m (\text{sum of the } m \text{ largest} - a) / m` is convex and falls with
    ``a``. Where the ends of its interval meet, a row is clipped to one value, its mean less
    ``(a - b) / n``, which is convex too and couples the levels with the sign that makes Newton's
    method monotone: from any start, no step after the first overshoots.

    Parameters
    ----------
    V : ndarray of shape (n, d, n, c)
        Source, channel, target, output.
    t : ndarray of shape (d,)
    stochastic : bool
        Whether all row sums of a matrix must be equal.
    start : pair of ndarray of shape (d, 1, c), optional
        Levels ``(a, b)`` to start from.

    Returns
    -------
    T : ndarray of shape (n, d, n, c)
    levels : pair of ndarray of shape (d, 1, c)
    """
    n, d, _, c = V.shape
    S = np.sort(V, axis=0)
    largest, smallest = _running_means(S[::-1]), _running_means(-S)
    t = t[:, None, None]
    size = np.maximum(np.abs(S[0]), np.abs(S[-1])).sum(axis=1, keepdims=True) + t
    a, b = (np.zeros((d, 1, c)), np.zeros((d, 1, c))) if start is None else start
    for _ in range(_MOST_STEPS):
        h, g = _threshold(largest, a), _threshold(smallest, b)  # (d, n, c)
        if stochastic:
            merged = h + g < 0
            middle = largest[-1] - (a - b) / n
            h, g = np.where(merged, middle, h), np.where(merged, -middle, g)
        else:
            merged = np.zeros(h.shape, dtype=bool)
            h, g = np.maximum(h, 0.0), np.maximum(g, 0.0)
        over_a, over_b = (x.sum(axis=1, keepdims=True) - t for x in (h, g))
        done = _settled(a, over_a, n * size) & _settled(b, over_b, n * size)
        if np.all(done):
            break
        coupling = merged.sum(axis=1, keepdims=True) / n
        slope_a = _slope(h, merged, np.count_nonzero(h < S, axis=0), stochastic) + coupling
        slope_b = _slope(g, merged, np.count_nonzero(-g > S, axis=0), stochastic) + coupling
        new_a, new_b = _least(
            slope_a,
            slope_b,
            coupling,
            slope_a * a - coupling * b + over_a,
            slope_b * b - coupling * a + over_b,
        )
        a, b = np.where(done, a, new_a), np.where(done, b, new_b)
    return V - np.clip(V, -g, h), (a, b)


def _running_means(S: Array) -> Array:
    """Means of the first 1, 2, ... entries along the first axis."""
    sums = np.empty_like(S)
    sums[0] = S[0]
    for k in range(1, len(S)):  # much faster than cumsum along an axis that is not the last
        np.add(sums[k - 1], S[k], out=sums[k])
    sums /= np.arange(1.0, len(S) + 1).reshape(-1, 1, 1, 1)
    return sums


def _threshold(means: Array, level: Array) -> Array:
    """What a row is clipped to so that the level is cut off."""
    counts = np.arange(1.0, len(means) + 1).reshape(-1, 1, 1, 1)
    return np.max(means - level / counts, axis=0)


def _settled(level: Array, over: Array, size: Array) -> NDArray[np.bool_]:
    return (np.abs(over) <= _ROUNDING * size) | ((level == 0) & (over <= 0))


def _slope(h: Array, merged: NDArray, count: NDArray, stochastic: bool) -> Array:
    """How fast the sum of the thresholds of rows of their own falls with the level."""
    moving = ~merged if stochastic else h > 0
    return np.where(moving, 1.0 / np.maximum(count, 1), 0.0).sum(axis=1, keepdims=True)


def _least(Ja: Array, Jb: Array, o: Array, ra: Array, rb: Array) -> Levels:
    """Least ``a, b >= 0`` with ``Ja a - o b >= ra`` and ``Jb b - o a >= rb``: Newton's model."""
    a_alone = np.divide(np.maximum(ra, 0.0), Ja, out=np.zeros_like(ra), where=Ja > 0)
    b_alone = np.divide(np.maximum(rb, 0.0), Jb, out=np.zeros_like(rb), where=Jb > 0)
    only_a, only_b = rb + o * a_alone <= 0, ra + o * b_alone <= 0
    both = ~(only_a | only_b)
    det = np.where(both, Ja * Jb - o * o, 1.0)
    a = np.where(only_a, a_alone, np.where(only_b, 0.0, (Jb * ra + o * rb) / det))
    b = np.where(only_a, 0.0, np.where(only_b, b_alone, (o * ra + Ja * rb) / det))
    return a, b
