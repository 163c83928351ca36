"""Norms that neither overflow nor underflow."""

import numpy as np
import pytest

from convexformer.problem import TokenOutput
from convexformer.problem.norms import safe_norm


@pytest.mark.parametrize("shape", [(12, 8, 1), (4, 3, 2), (6, 1, 16), (3, 100, 1), (0, 3, 1)])
def test_norms_whatever_the_range(shape):
    Z = np.random.default_rng(0).normal(size=shape)
    if len(Z):
        Z[0], Z[1], Z[2] = 0.0, 1e-200 * Z[1], 1e200 * Z[2]
    norms = safe_norm(Z, axis=1)
    scale = np.array([1.0, 1e-200, 1e200, *np.ones(max(len(Z) - 3, 0))])[: len(Z), None]
    expected = scale * np.linalg.norm(Z / scale[:, :, None], axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-14)
    np.testing.assert_allclose(TokenOutput().norms(Z), expected, rtol=1e-14)


def test_norms_of_what_is_not_a_number():
    Z = np.ones((2, 3, 1))
    Z[0, 1] = np.nan
    norms = safe_norm(Z, axis=1)
    assert np.isnan(norms[0, 0]) and norms[1, 0] == np.sqrt(3)
