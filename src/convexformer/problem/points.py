"""What a squared loss is at some scores, and norms: compiled, or else NumPy's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    from . import _points

    COMPILED = True
except ImportError:  # then NumPy does the same
    COMPILED = False

Array = NDArray[np.float64]

FLOAT64 = np.dtype(np.float64)


class Residual(NamedTuple):
    """What scores leave of targets, at the best intercept."""

    b: Array  # (c,), the intercept, 0 where there is none
    F: Array  # (N, c), scores with it, to be read only
    V: Array  # (N, c), weighted; sums to zero over samples where there is an intercept
    loss: float
    top: Array  # (c,), sums of V times targets,
    bottom: Array  # and of V times what is left


def residual(S: Array, Y: Array, weight: Array, intercept: bool) -> Residual:
    """Of a squared loss with targets `Y` at scores `S`, both ``(N, c)``."""
    if COMPILED:
        F, V, sums = np.empty(S.shape), np.empty(S.shape), np.empty((4, S.shape[1]))
        _points.squared(S.shape, intercept, plain(S), Y, weight, F, V, sums)
    else:
        F, V, sums = _squared(S, Y, weight, intercept)
    F.flags.writeable = False
    b, loss, top, bottom = sums
    return Residual(b, F, V, sum(loss.tolist()), top, bottom)


def _squared(S: Array, Y: Array, weight: Array, intercept: bool) -> tuple[Array, Array, Array]:
    a, total, b = weight[:, None], weight.sum(), np.zeros(S.shape[1])
    if intercept:
        b = weight @ np.where(a > 0, Y - S, 0.0) / total
    F = S + b
    left = np.where(a > 0, Y - F, 0.0)
    loss = 0.5 * (weight @ (left * left))
    for _ in range(2 if intercept else 0):  # a second time for rounding of the first
        left = left - weight @ left / total
    V = a * left
    return F, V, np.array([b, loss, np.sum(V * Y, axis=0), np.sum(V * left, axis=0)])


def norms(Z: Array) -> tuple[Array, float]:
    """Euclidean norms ``(n, c)`` of `Z` ``(n, size, c)``, and their sum.

    They neither overflow nor underflow.
    """
    Z = plain(Z)
    if not COMPILED:
        lengths = safe_norm(Z, axis=1)
        return lengths, float(lengths.sum())
    out: Array = np.empty((len(Z), Z.shape[2]))
    return out, _points.norms(Z.shape, Z, out)


def plain(A: NDArray) -> Array:
    """`A` as compiled code reads it: float64, contiguous, aligned; a copy only where it is not."""
    if A.dtype is FLOAT64 and A.flags.c_contiguous and A.flags.aligned:
        return A
    return np.require(A, np.float64, ["C", "A"])


def safe_norm(Z: Array, axis: int) -> Array:
    """Euclidean norm that neither overflows nor underflows."""
    axes = "abcd"[: Z.ndim]
    kept = axes.replace(axes[axis], "")
    norms = np.sqrt(np.einsum(f"{axes},{axes}->{kept}", Z, Z))  # silent where squares overflow
    if norms.min(initial=1.0) > 1e-140 and norms.max(initial=1.0) < 1e140:
        return np.asarray(norms)
    # Where squares may have left the range, and not because all is zero, start from the largest.
    outside, last = ~((norms > 1e-140) & (norms < 1e140)), axis in (-1, Z.ndim - 1)
    if not (Z[outside] if last else (Z != 0.0).any(axis=axis)[outside]).any():
        return np.asarray(norms)
    scale = np.max(np.abs(Z), axis=axis, keepdims=True, initial=0.0)
    unit = np.divide(Z, scale, out=np.zeros_like(Z), where=scale > 0)
    unit *= unit
    return np.squeeze(scale, axis) * np.sqrt(np.sum(unit, axis=axis))
