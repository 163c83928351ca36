"""Linear algebra that strategies share: Cholesky factors, refinement, bounded least squares.

LAPACK is called directly, because SciPy's checks take longer than small factorisations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, lapack

from ..problem.arrays import Array
from ..problem.stopping import check_stop

BLOCK = 1024  # columns of a large factor between looks at the clock

_CALLS = {
    np.dtype(np.float32): (lapack.spotrf, lapack.spotrs, lapack.strtrs),
    np.dtype(np.float64): (lapack.dpotrf, lapack.dpotrs, lapack.dtrtrs),
}


def cholesky(T: NDArray, overwrite: bool = False) -> NDArray:
    """The lower factor L of ``T = L L'``, float32 or float64; only one half of T is read.

    In Fortran's order that is the lower half, else the upper one, so that nothing is copied twice.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.solvers.linalg import cholesky, solved
    >>> T = np.array([[4.0, 2.0], [2.0, 5.0]])
    >>> L = cholesky(T)
    >>> L
    array([[2., 0.],
           [1., 2.]])
    >>> solved(L, np.array([[8.0], [12.0]])).ravel()
    array([1., 2.])
    """
    if T.size == 0:
        return T
    if len(T) > 2 * BLOCK:
        return _by_blocks(T if T.flags.f_contiguous else T.T, overwrite)
    factorise = _CALLS[T.dtype][0]
    L, info = factorise(T if T.flags.f_contiguous else T.T, lower=1, overwrite_a=overwrite)
    if info:
        raise LinAlgError("The matrix is not positive definite.")
    return L


def _by_blocks(T: NDArray, overwrite: bool) -> NDArray:
    """The same, some columns at a time, so that it can be stopped."""
    factorise = _CALLS[T.dtype][0]
    divide = get_blas_funcs("trsm", dtype=T.dtype)
    L = T if overwrite and T.flags.f_contiguous else np.array(T, order="F")
    for start in range(0, len(L), BLOCK):
        own, below = slice(start, start + BLOCK), slice(start + BLOCK, None)
        check_stop()
        L[own, own], info = factorise(L[own, own], lower=1)
        if info:
            raise LinAlgError("The matrix is not positive definite.")
        L[own, below] = 0
        L[below, own] = divide(1, L[own, own], L[below, own], side=1, lower=1, trans_a=1)
        for first in range(start + BLOCK, len(L), BLOCK):
            check_stop()
            columns = slice(first, first + BLOCK)
            L[first:, columns] -= L[first:, own] @ L[columns, own].T
    return L


def solved(L: NDArray, B: NDArray, overwrite: bool = False) -> NDArray:
    """``(L L')^-1 B`` for ``B (p, r)``, in the precision of `L`."""
    return _solve(_CALLS[L.dtype][1], L, B, overwrite)


def half_solved(L: NDArray, B: NDArray, overwrite: bool = False) -> NDArray:
    """``L^-1 B`` for ``B (p, r)``, in the precision of `L`."""
    return _solve(_CALLS[L.dtype][2], L, B, overwrite)


def _solve(way: Callable[..., Any], L: NDArray, B: NDArray, overwrite: bool) -> NDArray:
    if B.size == 0:  # nothing, or nothing to solve for, which LAPACK does not take
        return B.astype(L.dtype)
    return np.asarray(way(L, B, lower=1, overwrite_b=overwrite)[0])


# Refinement ---------------------------------------------------------------------------------------


def refined_solve(
    operator: Callable[[Array], Array],
    L: NDArray,
    right: Array,
    accuracy: float,
    most: int = 40,
    relative: float = np.inf,
    rounding: float = 1e-11,
) -> tuple[Array, Array, bool]:
    """Solve ``operator(q) = right`` by conjugate gradients with the factor `L` as preconditioner.

    Where `L` factorises the operator itself this is iterative refinement and ends after a step or
    two; where it is a float32 factor of a nearby matrix it takes more, up to `most`. It ends when
    the residual is below `rounding` times `right`, or below `relative` times the solution with the
    quadratic form within `accuracy` of its minimum. Returns the solution, its residual, and whether
    either was reached, or nearly so.
    """

    def precondition(r: Array) -> Array:
        return _in_range(solved, L, r)

    q = precondition(right)
    r = right - operator(q)
    size = np.linalg.norm(right, axis=0)
    limit = rounding * size  # of residuals
    y = precondition(r)
    p, rho = y, np.sum(r * y, axis=0)
    for _ in range(most):
        check_stop()
        length = np.linalg.norm(r, axis=0)
        small = length <= relative * np.maximum(np.linalg.norm(q, axis=0), 1e-300)
        if (rho.sum() <= accuracy and np.all(small)) or np.all(length <= limit):
            return q, r, True
        Ap = operator(p)
        slope = np.sum(p * Ap, axis=0)
        step = np.divide(rho, slope, out=np.zeros_like(rho), where=slope > 0)
        q, r = q + step * p, r - step * Ap
        y = precondition(r)
        before, rho = rho, np.sum(r * y, axis=0)
        p = y + np.divide(rho, before, out=np.zeros_like(rho), where=before > 0) * p
    return q, r, bool(np.all(np.linalg.norm(r, axis=0) <= 100 * limit))


def half(L: NDArray | None, U: Array) -> Array:
    """``L^-1 U``; `U` where there is no factor but the identity."""
    return U if L is None else _in_range(half_solved, L, U)


def _in_range(solve: Callable[[NDArray, Array], NDArray], L: NDArray, B: Array) -> Array:
    """`solve` with columns of `B`, whatever their size; float32 has not the range of it."""
    if L.dtype == np.float64:
        return solve(L, B)
    size = np.abs(B).max(axis=0, initial=0.0)
    size[size == 0] = 1.0
    return np.asarray(size * solve(L, B / size))


def project(U: Array, unit: Array | None) -> Array:
    """Take the directions of the intercept out of the columns of `U`."""
    return U if unit is None else U - unit @ (unit.T @ U)


def project_both(T: NDArray, unit: NDArray | None) -> NDArray:
    """The same on both sides of a symmetric `T`, in place."""
    if unit is not None:
        H = T @ unit
        H -= 0.5 * unit @ (unit.T @ H)
        T -= np.hstack([unit, H]) @ np.hstack([H, unit]).T
    return T


# A quadratic programme with lower bounds ----------------------------------------------------------


def bounded_quadratic(A: Array, b: Array, lower: Array) -> Array:
    """``argmin_x 1/2 x'Ax - b'x`` subject to ``x >= lower``, for a positive semidefinite `A`.

    Variables change sides of their bounds in blocks, as long as that reduces the number of
    violated conditions; where it does not, projected Newton steps descend to the end.
    """
    # Unit diagonal, and a ridge for directions in which A is flat (duplicated tokens).
    scale = np.sqrt(np.maximum(np.diagonal(A), 0.0))
    scale[scale == 0] = 1.0
    check_stop()
    A = A / scale
    A /= scale[:, None]
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
        return _solve_ridged(A, b)
    x = np.where(free, 0.0, lower)
    some, fixed = np.flatnonzero(free), np.flatnonzero(~free)
    if len(some):
        rows = A[some]
        x[some] = _solve_ridged(rows[:, some], b[some] - rows[:, fixed] @ lower[fixed])
    return x


def _solve_ridged(A: Array, b: Array) -> Array:
    if not np.isfinite(A).all():
        raise LinAlgError("The matrix is not finite.")
    ridge = 1e-12
    while True:
        try:
            return solved(cholesky(A), b[:, None])[:, 0]
        except LinAlgError:
            check_stop()
            A = A + ridge * np.eye(len(A))
            ridge *= 100.0
