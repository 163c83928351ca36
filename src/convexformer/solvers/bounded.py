"""A small quadratic programme with lower bounds, by block pivoting and projected Newton steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..problem.stopping import check_stop
from .factors import cholesky, solved

Array = NDArray[np.float64]


def bounded_quadratic(A: Array, b: Array, lower: Array) -> Array:
    """``argmin_x 1/2 x'Ax - b'x`` subject to ``x >= lower``, for a positive semidefinite `A`.

    Variables change sides of their bounds in blocks, as long as that reduces the number of
    violated conditions; where it does not, projected Newton steps descend to the end.
    """
    # Unit diagonal, and a ridge for directions in which A is flat (duplicated tokens).
    scale = np.sqrt(np.maximum(np.diagonal(A), 0.0))
    scale[scale == 0] = 1.0
    A = A / scale / scale[:, None]
    A.flat[:: len(A) + 1] += 1e-13 * (1 + len(A))
    return np.maximum(_pivot(A, b / scale, lower * scale) / scale, lower)


def _pivot(A: Array, b: Array, lower: Array) -> Array:
    free = np.ones(len(b), dtype=bool)
    fewest, patience = len(b) + 1, 3
    while patience > 0:
        check_stop()
        x = _solve_free(A, b, lower, free)
        wrong = x < lower
        if not free.all():
            wrong = np.where(free, wrong, A @ x - b < -_rounding(A, b, x))
        count = int(np.count_nonzero(wrong))
        if count == 0:
            return x
        patience = 3 if count < fewest else patience - 1
        fewest = min(fewest, count)
        free ^= wrong
    return _descend(A, b, lower, np.maximum(x, lower))


def _descend(A: Array, b: Array, lower: Array, x: Array) -> Array:
    """Projected Newton: bounds that hold back are kept, the rest moves, the value falls."""
    value = 0.5 * x @ (A @ x) - b @ x
    for _ in range(100):
        check_stop()
        gradient, slack = A @ x - b, _rounding(A, b, x)
        free = (x > lower) | (gradient < -slack)
        if np.all(np.abs(gradient[free]) <= slack[free]):
            break
        move = _solve_free(A, b, np.where(free, lower, x), free) - x
        for trial in _trials(A, b, lower, x, move):
            reached = 0.5 * trial @ (A @ trial) - b @ trial
            if reached < value:
                break
        else:
            break
        x, value = trial, reached
    return x


def _trials(A: Array, b: Array, lower: Array, x: Array, move: Array) -> Iterator[Array]:
    for halvings in range(10):
        yield np.maximum(lower, x + 0.5**halvings * move)
    yield _swept(A, b, lower, x)


def _swept(A: Array, b: Array, lower: Array, x: Array) -> Array:
    """Every variable in turn to its best: descends also where the projection spoils a step."""
    x, gradient = x.copy(), A @ x - b
    for j in range(len(x)):
        check_stop()
        move = max(lower[j] - x[j], -gradient[j] / A[j, j])
        x[j] += move
        gradient += move * A[j]
    return x


def _rounding(A: Array, b: Array, x: Array) -> Array:
    """How far a component of the gradient may be from zero by rounding alone."""
    return np.asarray(1e-12 * (np.abs(A) @ np.abs(x) + np.abs(b)))


def _solve_free(A: Array, b: Array, lower: Array, free: NDArray[np.bool_]) -> Array:
    if free.all():
        return _solve(A, b)
    x = np.where(free, 0.0, lower)
    some, fixed = np.flatnonzero(free), np.flatnonzero(~free)
    if len(some):
        rows = A[some]
        x[some] = _solve(rows[:, some], b[some] - rows[:, fixed] @ lower[fixed])
    return x


def _solve(A: Array, b: Array) -> Array:
    if not np.isfinite(A).all():
        raise np.linalg.LinAlgError("The matrix is not finite.")
    ridge = 1e-12
    while True:
        try:
            return solved(cholesky(A), b[:, None])[:, 0]
        except np.linalg.LinAlgError:
            check_stop()
            A = A + ridge * np.eye(len(A))
            ridge *= 100.0
