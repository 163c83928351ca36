"""Penalties: the formulas, the dual norm by maximisation, the optimality of the prox."""

import numpy as np
import pytest

from convexformer.problem import PENALTIES, Nuclear, Token, TokenOutput
from convexformer.problem.norms import safe_norm

n, d, c = 5, 3, 4
WEIGHTS = [None, np.array([0.1, 1.0, 2.0, 5.0, 0.7])]


@pytest.fixture(params=PENALTIES)
def name(request):
    return request.param


@pytest.fixture(params=WEIGHTS, ids=["plain", "weighted"])
def penalty(name, request):
    return PENALTIES[name](request.param)


def random(seed=0):
    return np.random.default_rng(seed).normal(size=(n, d, c))


def textbook(name, Z, weights):
    w = np.ones(n) if weights is None else weights
    if name == "token-output":
        return sum(w[k] * np.linalg.norm(Z[k, :, j]) for k in range(n) for j in range(c))
    return sum(w[k] * np.linalg.norm(Z[k], "nuc" if name == "nuclear" else None) for k in range(n))


def test_value_is_the_textbook_formula(penalty):
    Z = random()
    assert penalty.value(Z) == pytest.approx(textbook(penalty.name, Z, penalty.weights), rel=1e-14)
    assert penalty.value(np.zeros_like(Z)) == 0
    assert penalty.norms(Z).shape == (n, penalty.cells(c))


def test_registry_and_cells():
    assert {"token-output": TokenOutput, "token": Token, "nuclear": Nuclear} == PENALTIES
    assert (TokenOutput().cells(7), Token().cells(7)) == (7, 1)
    assert TokenOutput().separable and not Token().separable and not Nuclear().separable


def test_penalties_agree_on_one_output():
    Z = random()[:, :, :1]
    for other in (Token, Nuclear):
        same = other(WEIGHTS[1]).value(Z)
        assert TokenOutput(WEIGHTS[1]).value(Z) == pytest.approx(same, rel=1e-14)


def test_dual_norm_bounds_every_inner_product(penalty):
    M = random(1)
    bound = penalty.dual_norms(M).max()
    for seed in range(200):
        Z = random(seed + 2)
        if seed % 2:  # sparse ones come nearest to the bound
            Z[np.arange(n) != seed % n] = 0
        assert np.sum(M * Z) <= bound * penalty.value(Z) * (1 + 1e-14)


def test_dual_norm_is_attained(penalty):
    M = random(1)
    norms = penalty.dual_norms(M)
    k, cell = np.unravel_index(np.argmax(norms), norms.shape)
    Z = np.zeros_like(M)
    outputs = slice(None) if penalty.cells(c) == 1 else cell
    Z[k, :, outputs] = M[k, :, outputs]
    if penalty.name == "nuclear":
        U, _, Vt = np.linalg.svd(M[k])
        Z[k] = np.outer(U[:, 0], Vt[0])
    assert np.sum(M * Z) == pytest.approx(norms.max() * penalty.value(Z), rel=1e-14)


@pytest.mark.parametrize("step", [1e-3, 0.5, 1.5, 100.0])
def test_prox_minimises(penalty, step):
    Z = random(3)
    U = penalty.prox(Z, step)

    def objective(W):
        return 0.5 * np.sum((W - Z) ** 2) + step * penalty.value(W)

    best = objective(U)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        near = U + 10.0 ** rng.uniform(-4, 0) * rng.normal(size=U.shape) * (rng.random((n, 1, 1)))
        assert objective(near) >= best
        assert objective(np.where(rng.random((n, 1, 1)) < 0.5, 0, U)) >= best


@pytest.mark.parametrize("step", [1e-3, 0.5, 1.5, 100.0])
def test_prox_residual_is_a_subgradient(penalty, step):
    """``(Z - U) / step`` has dual norm at most 1, and equals ``<., U> = penalty(U)``."""
    Z = random(3)
    U = penalty.prox(Z, step)
    G = (Z - U) / step
    assert penalty.dual_norms(G).max() <= 1 + 1e-14 / step + 1e-13
    assert np.sum(G * U) == pytest.approx(penalty.value(U), rel=1e-11, abs=1e-12)


def test_prox_gives_exact_zeros(penalty):
    Z = random(3)
    Z[2] = 0.0
    U = penalty.prox(Z, 1.2)
    # a cell vanishes when its dual norm is below the threshold
    vanishes = penalty.dual_norms(Z) <= 1.2
    np.testing.assert_array_equal(penalty.norms(U) == 0, vanishes)
    assert np.any(U) and not np.any(U[2])


@pytest.mark.parametrize("scale", [1e-200, 1e200, 5e-324])
def test_norms_neither_overflow_nor_underflow(scale):
    Z = np.full((1, 4, 1), scale)
    assert safe_norm(Z, axis=1).item() == pytest.approx(2 * scale, rel=1e-14)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [np.nan, 1.0], [np.inf], [[1.0]]])
def test_bad_weights_are_refused(name, weights):
    with pytest.raises(ValueError, match="vector of positive finite numbers"):
        PENALTIES[name](weights)
