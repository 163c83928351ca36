"""Products of X with a few columns, compiled."""

import numpy as np
import pytest

from convexformer import _core
from convexformer.problem.designs import product, transposed_product


@pytest.mark.parametrize("in_blas", [False, True])
@pytest.mark.parametrize("c", [1, 2, 3, 4, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (130, 1030), (1030, 7), (0, 3), (4, 0)])
def test_products_are_numpys(monkeypatch, shape, c, in_blas):
    if in_blas:
        monkeypatch.setattr(_core, "COMPILED", False)
    rng = np.random.default_rng(0)
    A, Z, V = (rng.normal(size=size) for size in (shape, (shape[1], c), (shape[0], c)))
    for X in (A, np.asfortranarray(A), A[:, ::-1], A.astype(np.float32)):
        near = {"rtol": 1e-4, "atol": 1e-4} if X.dtype == np.float32 else {"atol": 1e-11}
        np.testing.assert_allclose(product(X, Z), X @ Z, **near)
        np.testing.assert_allclose(transposed_product(X, V[::-1]), X.T @ V[::-1], **near)


def test_what_is_not_finite_stays_so(core):
    A, Z = np.ones((6, 9)), np.ones((9, 3))
    A[2, 4], A[5, 1] = np.nan, np.inf
    assert np.array_equal(np.isfinite(product(A, Z)), np.isfinite(A @ Z))
    for V in (Z[:6], np.ones((6, 12))):
        assert np.array_equal(np.isfinite(transposed_product(A, V)), np.isfinite(A.T @ V))


def test_sizes_must_be_those_of_arrays(compiled):
    multiply = compiled.few_columns_product
    A, Z, F = np.ones((4, 5)), np.ones((5, 3)), np.empty((4, 3))
    multiply((4, 5, 3), False, A, Z, F)
    assert np.all(F == 5)
    for shape in (
        (4, 5, 2),
        (4, 4, 3),
        (5, 5, 3),
        (0, 5, 3),
        (4, -5, 3),
        (1 << 40, 1 << 40, 3),
        (4, 5, 17),
    ):
        with pytest.raises(ValueError, match=r"expected|out of range"):
            multiply(shape, False, A, Z, F)
    with pytest.raises(ValueError, match="expected"):
        multiply((4, 5, 3), True, A, Z, F)
    with pytest.raises(ValueError, match="out of range"):
        multiply((4, 5, 17), True, A, np.ones((4, 17)), np.ones((5, 17)))
