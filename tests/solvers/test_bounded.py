"""The small quadratic programme: optimality conditions, however ill-conditioned the matrix."""

import numpy as np
import pytest

from convexformer.solvers import bounded
from convexformer.solvers.bounded import bounded_quadratic


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
        x = bounded._descend(A, b, lower, np.maximum(lower, 0.0))
        exact = bounded_quadratic(A, b, lower)
        value, least = (0.5 * u @ A @ u - b @ u for u in (x, exact))
        assert value <= least + 1e-8 * abs(least)


def test_flat_directions_do_no_harm():
    A, b, lower = programme(40, 12, 0)  # singular
    x = bounded_quadratic(A, b, lower)
    assert np.all(np.isfinite(x)) and 0.5 * x @ A @ x <= b @ x
