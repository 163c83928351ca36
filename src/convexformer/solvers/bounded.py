"""A small quadratic programme with lower bounds, by block principal pivoting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Array = NDArray[np.float64]


def bounded_quadratic(A: Array, b: Array, lower: Array) -> Array:
    """``argmin_x 1/2 x'Ax - b'x`` subject to ``x >= lower``, for a positive semidefinite `A`.

    Variables change sides of their bounds in blocks while that reduces the number of violated
    conditions, and one at a time where it does not, which makes the method finite.
    """
    # Unit diagonal, and a ridge for directions in which A is flat (duplicated tokens).
    scale = np.sqrt(np.maximum(np.diagonal(A), 0.0))
    scale[scale == 0] = 1.0
    A = A / scale / scale[:, None]
    A[np.diag_indices_from(A)] += 1e-13 * (1 + len(A))
    b, lower = b / scale, lower * scale

    free = np.ones(len(b), dtype=bool)
    fewest, patience = len(b) + 1, 3
    for _ in range(20 + 5 * len(b)):
        x = _solve_free(A, b, lower, free)
        gradient = A @ x - b
        slack = 1e-12 * (np.abs(A) @ np.abs(x) + np.abs(b))
        wrong = np.where(free, x < lower, gradient < -slack)
        count = int(np.count_nonzero(wrong))
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    return np.maximum(x, lower) / scale


def _solve_free(A: Array, b: Array, lower: Array, free: NDArray[np.bool_]) -> Array:
    x = np.where(free, 0.0, lower)
    if np.any(free):
        right = b[free] - A[np.ix_(free, ~free)] @ lower[~free]
        block, ridge = A[np.ix_(free, free)], 1e-12
        while True:
            try:
                x[free] = cho_solve(cho_factor(block), right)
                break
            except np.linalg.LinAlgError:
                block = block + ridge * np.eye(len(block))
                ridge *= 100.0
    return x
