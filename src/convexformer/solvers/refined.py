"""Solving with a factor that need not be exact, and without the direction of an intercept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..problem.stopping import check_stop
from .factors import half_solved, solved

Array = NDArray[np.float64]

REFINE = 1e-11  # relative residual to which a system is solved


def refined_solve(
    operator: Callable[[Array], Array],
    L: NDArray,
    right: Array,
    accuracy: float,
    most: int = 40,
    relative: float = 1e12,
) -> tuple[Array, bool]:
    """Solve ``operator(q) = right`` by conjugate gradients with the factor `L` as preconditioner.

    Where `L` factorises the operator itself this is iterative refinement and ends after a step or
    two; where it is a float32 factor of a nearby matrix it takes more, up to `most`. It ends when
    rounding allows no more, or when the quadratic form is within `accuracy` of its minimum and the
    residual is below `relative` times the right-hand side. Returns the solution, and whether either
    was reached.
    """

    def precondition(r: Array) -> Array:
        return _in_range(solved, L, r)

    q = precondition(right)
    r = right - operator(q)
    size = np.linalg.norm(right, axis=0)
    limit = REFINE * size
    y = precondition(r)
    p, rho = y, np.sum(r * y, axis=0)
    for _ in range(most):
        check_stop()
        length = np.linalg.norm(r, axis=0)
        near = rho.sum() <= accuracy and np.all(length <= relative * size)
        if near or np.all(length <= limit):
            return q, True
        Ap = operator(p)
        slope = np.sum(p * Ap, axis=0)
        step = np.divide(rho, slope, out=np.zeros_like(rho), where=slope > 0)
        q, r = q + step * p, r - step * Ap
        y = precondition(r)
        before, rho = rho, np.sum(r * y, axis=0)
        p = y + np.divide(rho, before, out=np.zeros_like(rho), where=before > 0) * p
    return q, bool(np.all(np.linalg.norm(r, axis=0) <= 1e3 * limit))


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


def unit_of(root: Array) -> Array | None:
    """The direction of the intercept."""
    length = np.linalg.norm(root)
    return root / length if length > 0 else None


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
