"""Gated designs against the dense design they never build."""

import tracemalloc

import numpy as np
import pytest

from convexformer.problem import GatedDesign, Gates, TokenDesign

N, n, d, h, c = 40, 4, 3, 5, 2
GROUPS = np.array([1, 5, 19, 7])


def tokens(masked=False, dtype=np.float64):
    rng = np.random.default_rng(0)
    X, mask = rng.normal(size=(N, n, d)).astype(dtype), None
    if masked:
        mask = rng.random((N, n)) < 0.7
        X[~mask] = np.nan
    return TokenDesign(X, mask)


def gates():
    rng = np.random.default_rng(1)
    thresholds = np.append(-np.inf, 0.3 * rng.normal(size=h - 1))
    return Gates(rng.normal(size=(h, n, d)), thresholds)


@pytest.fixture(params=[False, True], ids=["full", "masked"])
def designs(request):
    """The gated design and a dense one of the same columns."""
    base = tokens(request.param)
    opened = gates().open(base)
    X = base.X if base.mask is None else np.where(base.mask[:, :, None], base.X, 0.0)
    dense = opened[:, :, None, None] * X[:, None]
    return GatedDesign(base, opened), TokenDesign(dense.reshape(N, h * n, d))


def test_gates_are_inner_products_against_thresholds():
    base, g = tokens(), gates()
    expected = np.einsum("ikd,hkd->ih", base.X, g.directions) >= g.thresholds
    np.testing.assert_array_equal(g.open(base), expected)
    assert np.all(g.open(base)[:, 0])
    assert len(g) == h


def test_products_equal_those_of_the_dense_design(designs):
    gated, dense = designs
    rng = np.random.default_rng(2)
    Z, V, w = rng.normal(size=(h * n, d, c)), rng.normal(size=(N, c)), rng.random(N)
    center, G = rng.normal(size=(h * n, d)), rng.normal(size=(len(GROUPS), d))
    close = np.testing.assert_allclose
    close(gated.predict(Z), dense.predict(Z), atol=1e-12)
    close(gated.correlate(V), dense.correlate(V), atol=1e-12)
    close(gated.predict(Z[GROUPS], GROUPS), dense.predict(Z[GROUPS], GROUPS), atol=1e-12)
    close(gated.correlate(V, GROUPS), dense.correlate(V, GROUPS), atol=1e-12)
    close(gated.means(w), dense.means(w), atol=1e-12)
    close(gated.gather(slice(3, 9), GROUPS), dense.gather(slice(3, 9), GROUPS))
    for one, two in zip(gated.gram(GROUPS, V, center), dense.gram(GROUPS, V, center), strict=True):
        close(one, two, atol=1e-12)
    eta = rng.random(len(GROUPS))
    close(gated.kernel(GROUPS, eta, center), dense.kernel(GROUPS, eta, center), atol=1e-12)
    close(
        gated.contributions(GROUPS, G, center), dense.contributions(GROUPS, G, center), atol=1e-12
    )


def test_the_dense_design_is_never_built():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, 16, 8))  # 2 MB; through 64 gates 131 MB
    base = TokenDesign(X)
    gated = GatedDesign(base, rng.random((2000, 64)) < 0.5)
    Z, V = rng.normal(size=(64 * 16, 8, 1)), rng.normal(size=(2000, 1))
    tracemalloc.start()
    gated.predict(Z)
    gated.correlate(V)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * X.nbytes


def test_gates_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"open_gates must have shape \(40, h\), got \(39, 2\)"):
        GatedDesign(tokens(), np.ones((39, 2), dtype=bool))
