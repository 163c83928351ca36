"""Intercepts of a logistic loss, or of a softmax, compiled; None where it is left to NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .losses import Logistic, Loss, Softmax

Array = NDArray[np.float64]

MOST_OUTPUTS = 16  # beyond which large products are quicker


class Point(NamedTuple):
    """A loss at scores with an intercept."""

    b: Array  # (c,)
    F: Array  # (N, c), scores with it, to be read only
    V: Array  # (N, c), `balanced` and within bounds
    loss: float
    settled: bool  # whether the intercept is at its best, which is 0 where there is none


def suit(loss: Loss, *arrays: Array) -> bool:
    """Whether compiled code is for this loss of arrays ``(N, c)``, as they lie in memory."""
    c = arrays[0].shape[1]
    if c > MOST_OUTPUTS or len(arrays[0]) == 0:
        return False
    known = isinstance(loss, Softmax) if c > 1 else isinstance(loss, Logistic)
    return known and all(A.flags.f_contiguous for A in arrays)


def point(loss: Loss, S: Array, Y: Array, weight: Array, b: Array, intercept: bool) -> Point | None:
    """All that is to be known of the loss at scores ``S + b``."""
    if not suit(loss, S, Y):
        return None
    F, V = np.empty(S.shape, order="F"), np.empty(S.shape, order="F")
    rounds = 2 if intercept else 0
    found, value, settled = _core.loss_point(S.shape, rounds, S.T, Y.T, weight, b, F.T, V.T)
    F.flags.writeable = False
    best = bool(settled) if intercept else not b.any()
    return Point(b.copy(), F, V, value, best) if found else None


def balanced(
    loss: Loss, V: Array, P: Array, weight: Array, rounds: int
) -> tuple[Array, Array] | None:
    """`V` weighted, made to sum to zero by steps of intercepts along curvature `P`; and these."""
    if not suit(loss, V, P):
        return None
    out, step = np.empty(V.shape, order="F"), np.zeros(V.shape[1])
    found = _core.balance(V.shape, rounds, V.T, P.T, weight, out.T, step)
    return (out, step) if found else None
