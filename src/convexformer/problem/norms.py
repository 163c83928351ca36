"""Euclidean norms that neither overflow nor underflow, and arrays as compiled code reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .arrays import Array

FLOAT64 = np.dtype(np.float64)
SAFE = (1e-280, 1e280)  # sums of squares that have neither underflown nor overflown


def plain(A: NDArray) -> Array:
    """`A` as compiled code reads it: float64, contiguous, aligned; a copy only where it is not."""
    if A.dtype is FLOAT64 and A.flags.c_contiguous and A.flags.aligned:
        return A
    return np.require(A, np.float64, ["C", "A"])


def safe_norm(Z: Array, axis: int) -> Array:
    """Euclidean norms along `axis`, with no overflow and no underflow."""
    axes = "abcd"[: Z.ndim]
    kept = axes.replace(axes[axis], "")
    squares = np.einsum(f"{axes},{axes}->{kept}", Z, Z)  # silent where squares overflow
    if squares.max(initial=0.0) < SAFE[1]:
        # Squares that are too small are computed again, unless all entries are zero.
        too_small = squares <= SAFE[0]
        if not (too_small.any() and (too_small & Z.any(axis=axis)).any()):
            return np.asarray(np.sqrt(squares))
    scale = np.max(np.abs(Z), axis=axis, keepdims=True, initial=0.0)
    unit = np.divide(Z, scale, out=np.zeros_like(Z), where=scale > 0)
    unit *= unit
    return np.squeeze(scale, axis) * np.sqrt(np.sum(unit, axis=axis))
