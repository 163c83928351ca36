"""Products of X with a few columns: the fastest way is the right one."""

import numpy as np
import pytest

from convexformer.problem.designs import product, transposed_product


@pytest.mark.parametrize("c", [1, 2, 3, 4, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (130, 1030), (1030, 7), (0, 3), (4, 0)])
def test_products_are_numpys(shape, c):
    rng = np.random.default_rng(0)
    A, Z, V = (rng.normal(size=size) for size in (shape, (shape[1], c), (shape[0], c)))
    for X in (A, np.asfortranarray(A), A[:, ::-1], A.astype(np.float32)):
        near = {"rtol": 1e-4, "atol": 1e-4} if X.dtype == np.float32 else {"atol": 1e-11}
        np.testing.assert_allclose(product(X, Z), X @ Z, **near)
        np.testing.assert_allclose(transposed_product(X, V[::-1]), X.T @ V[::-1], **near)


def test_what_is_not_finite_stays_so():
    A, Z = np.ones((6, 9)), np.ones((9, 3))
    A[2, 4], A[5, 1] = np.nan, np.inf
    assert np.array_equal(np.isfinite(product(A, Z)), np.isfinite(A @ Z))
    for V in (Z[:6], np.ones((6, 12))):
        assert np.array_equal(np.isfinite(transposed_product(A, V)), np.isfinite(A.T @ V))
