"""Cholesky factors by LAPACK's own calls: SciPy's checks take longer than small factorisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, lapack

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
    >>> from convexformer.solvers.factors import cholesky, solved
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
