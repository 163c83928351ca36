"""Which groups may be correlated the most, in float32: only these need products in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .designs import Design, Groups
from .penalties import Penalty

Array = NDArray[np.float64]

COLUMNS = 1024  # of X, multiplied at once
ROUNDING = 2.0**-24  # of float32
LEAST, MOST = 1e-15, 1e15  # lengths of X beyond which float32 has other errors than rounding


def foremost(design: Design, penalty: Penalty, V: Array) -> Groups:
    r"""Groups that are sure to hold the largest dual norm of :math:`M_k = X_k^\top V`.

    Summed in whatever order, N products in float32 are off by at most
    :math:`N u\,|x|^\top|v|`, and dual norms by no more than Frobenius' of all errors, hence by
    :math:`N u\,\|X_k\|_F\|V\|_F`: groups that may lead in spite of it are returned. These are all
    of them where X does not lie in memory in float32.
    """
    X, d, N = design.float32, design.dim, design.n_samples
    everything = np.arange(design.n_groups)
    size = float(np.max(np.abs(V), initial=0.0))
    if X is None or size == 0.0 or N * d * ROUNDING > 0.5:
        return everything
    tokens = X.reshape(N, -1, d)
    squares = np.einsum("ikd,ikd->k", tokens, tokens).astype(np.float64)
    squares = squares + N * d * 2.0**-126  # of numbers so small that their squares are lost
    lengths = np.sqrt(squares / (1.0 - N * d * ROUNDING))  # at least
    if not LEAST < float(np.max(lengths)) < MOST:  # or not a number
        return everything
    unit: NDArray[np.float32] = (V / size).astype(np.float32)
    norms = np.empty(len(everything))
    for part in np.array_split(everything, min(len(everything), 1 + X.shape[1] // COLUMNS)):
        A = X[:, part[0] * d : (part[-1] + 1) * d]
        M = np.asarray(A.T @ unit, dtype=np.float64).reshape(len(part), d, -1)
        norms[part] = penalty.of(part).dual_norms(M).max(axis=1)
    terms = (N + 8) * ROUNDING  # a few more than N, for what rounds apart from the sum
    error = terms / (1.0 - terms) * np.linalg.norm(unit) * lengths
    error /= penalty.column(len(everything))[:, 0]
    return np.flatnonzero(norms + error >= np.max(norms - error))
