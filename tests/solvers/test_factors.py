"""Cholesky factors by LAPACK's own calls."""

import numpy as np
import pytest

from convexformer.solvers.factors import cholesky, half_solved, solved


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
