"""A squared loss at some scores, and norms: compiled and NumPy's are the same, and right."""

import numpy as np
import pytest

from convexformer.problem import points

SIZES = [(200, 1), (37, 3), (5, 20), (9, 16), (1, 1)]


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def compiled(request, monkeypatch):
    if request.param and not points.COMPILED:
        pytest.skip("nothing was compiled")
    monkeypatch.setattr(points, "COMPILED", request.param)


def made(N, c, weights):
    rng = np.random.default_rng(0)
    weight = np.ones(N) if weights == "ones" else rng.uniform(0.5, 2.0, N)
    if weights == "some":
        weight[: N // 3] = 0.0
    return rng.normal(size=(N, c)), rng.normal(size=(N, c)), weight


@pytest.mark.parametrize("weights", ["ones", "all", "some"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_residual_is_what_scores_leave(compiled, size, intercept, weights):
    S, Y, a = made(*size, weights)
    left = points.residual(S, Y, a, intercept)
    b = np.average(Y - S, axis=0, weights=a) if intercept else np.zeros(size[1])
    np.testing.assert_allclose(left.b, b, atol=1e-14)
    np.testing.assert_allclose(left.F, S + b, atol=1e-14)
    R = Y - S - b
    np.testing.assert_allclose(left.V, a[:, None] * R, atol=1e-14)
    assert left.loss == pytest.approx(0.5 * np.sum(a @ R**2), rel=1e-13)
    np.testing.assert_allclose(left.top, a @ (R * Y), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(left.bottom, a @ R**2, rtol=1e-12, atol=1e-13)
    if intercept:
        assert np.all(np.abs(left.V.sum(axis=0)) < 1e-13)


def test_a_sample_without_weight_counts_for_nothing(compiled):
    S, Y, a = made(12, 2, "some")
    rest = a > 0
    alone = points.residual(S[rest], Y[rest], a[rest], True)
    S[~rest] = np.inf
    left = points.residual(S, Y, a, True)
    np.testing.assert_allclose(left.V[rest], alone.V, atol=1e-14)
    assert np.all(left.V[~rest] == 0.0)
    assert left.loss == pytest.approx(alone.loss, rel=1e-13)


def test_scores_that_are_not_contiguous(compiled):
    S, Y, a = made(30, 3, "all")
    whole, strided = (points.residual(part, Y, a, True) for part in (S, np.asfortranarray(S)))
    np.testing.assert_array_equal(whole.V, strided.V)


@pytest.mark.parametrize("shape", [(12, 8, 1), (4, 3, 2), (6, 1, 16), (3, 100, 1), (0, 3, 1)])
def test_norms_whatever_the_range(compiled, shape):
    Z = np.random.default_rng(0).normal(size=shape)
    if len(Z):
        Z[0], Z[1], Z[2] = 0.0, 1e-200 * Z[1], 1e200 * Z[2]
    norms, total = points.norms(Z)
    scale = np.array([1.0, 1e-200, 1e200, *np.ones(max(len(Z) - 3, 0))])[: len(Z), None]
    expected = scale * np.linalg.norm(Z / scale[:, :, None], axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-14)
    assert total == pytest.approx(norms.sum(), rel=1e-14)


def test_norms_of_what_is_not_a_number(compiled):
    Z = np.ones((2, 3, 1))
    Z[0, 1] = np.nan
    assert np.isnan(points.norms(Z)[0][0, 0]) and points.norms(Z)[0][1, 0] == np.sqrt(3)
