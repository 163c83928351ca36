"""Cholesky factors, refinement, and the small quadratic programme: its optimality conditions."""

import numpy as np
import pytest

from convexformer.solvers import linalg
from convexformer.solvers.linalg import (
    bounded_quadratic,
    cholesky,
    half_solved,
    solved,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_a_factor_solves(dtype, order, columns):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(9, 5))
    T = np.array(A.T @ A, dtype=dtype, order=order)
    B = rng.normal(size=(5, columns)).astype(dtype)
    kept, right = T.copy(), B.copy()
    L = cholesky(T)
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(L @ L.T, T, rtol=tolerance)
    np.testing.assert_allclose(T @ solved(L, B), B, atol=tolerance)
    np.testing.assert_allclose(L @ half_solved(L, B), B, atol=tolerance)
    np.testing.assert_array_equal(T, kept)
    np.testing.assert_array_equal(B, right)
    assert solved(L, B).dtype == dtype


def test_one_half_is_enough():
    T = np.array([[4.0, 2.0], [2.0, 5.0]])
    np.testing.assert_array_equal(cholesky(np.asfortranarray(np.tril(T))), cholesky(T))


def test_what_is_not_positive_definite_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        cholesky(np.diag([1.0, -1.0]))


def test_nothing_is_solved_too():
    L = cholesky(np.zeros((0, 0)))
    assert solved(L, np.zeros((0, 2))).shape == (0, 2)


# A quadratic programme with lower bounds ----------------------------------------------------------


def programme(n, rank, seed, common=0.0):
    """``U'U`` with columns of very different length; `common` makes them nearly parallel."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(rank, n)) * 10.0 ** rng.uniform(-2, 2, size=n)
    U += common * rng.normal(size=(rank, 1)) * np.linalg.norm(U, axis=0)
    lower = -np.abs(rng.normal(size=n)) / np.linalg.norm(U, axis=0) * (rng.random(n) > 0.3)
    return U.T @ U, U.T @ rng.normal(size=rank), lower


def violation(A, b, lower, x):
    """Largest violation of the optimality conditions, in units of the diagonal."""
    assert np.all(x >= lower)
    slope = (A @ x - b) / np.sqrt(np.diagonal(A))
    free = x > lower + 1e-10 * np.abs(lower)
    return np.max(np.where(free, np.abs(slope), np.maximum(-slope, 0.0)))


@pytest.mark.parametrize("common", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("n", [1, 2, 15, 60])
def test_conditions_hold(n, common):
    for seed in range(20):
        A, b, lower = programme(n, n + 5, seed, common)
        x = bounded_quadratic(A, b, lower)
        assert violation(A, b, lower, x) <= 1e-7 * np.max(np.abs(b) / np.sqrt(np.diagonal(A)))


def test_descent_alone_reaches_the_same_value():
    for seed in range(20):
        A, b, lower = programme(30, 40, seed, 1.0)
        x = linalg._descend(A, b, lower, np.maximum(lower, 0.0))
        exact = bounded_quadratic(A, b, lower)
        value, least = (0.5 * u @ A @ u - b @ u for u in (x, exact))
        assert value <= least + 1e-8 * abs(least)


def test_flat_directions_do_no_harm():
    A, b, lower = programme(40, 12, 0)  # singular
    x = bounded_quadratic(A, b, lower)
    assert np.all(np.isfinite(x)) and 0.5 * x @ A @ x <= b @ x
