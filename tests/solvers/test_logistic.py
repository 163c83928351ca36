"""Compiled rounds of Newton's method for a logistic loss, beside Newton's method in NumPy."""

import numpy as np
import pytest

from convexformer.problem import Logistic, Problem, Token, TokenDesign, TokenOutput
from convexformer.solvers import logistic, newton, solve

pytestmark = pytest.mark.skipif(not logistic.COMPILED, reason="nothing was compiled")


def letters(N=700, n=6, d=12, seed=0, scale=1.0):
    """Sequences of letters, of which two places count."""
    rng = np.random.default_rng(seed)
    X = np.eye(d)[rng.integers(d, size=(N, n))] * scale
    F = X[:, 1] @ rng.normal(size=d) + X[:, 4] @ rng.normal(size=d)
    return X, np.where(F / scale + 0.3 * rng.logistic(size=N) > 0, 1.0, -1.0)[:, None]


def numbers(N=300, n=8, d=5, seed=0, mean=0.0, common=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d)) + mean + common * rng.normal(size=(N, 1, d))
    F = X[:, 2] @ rng.normal(size=d) + X[:, 5] @ rng.normal(size=d)
    F = (F - F.mean()) / F.std()
    return X, np.where(F + 0.3 * rng.logistic(size=N) > 0, 1.0, -1.0)[:, None]


def never(*args, **kwargs):
    raise AssertionError("What was not to be called was called.")


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("data", [letters, numbers])
def test_a_round_finds_what_newtons_method_finds(monkeypatch, data, intercept, fraction):
    X, Y = data()
    weight = np.random.default_rng(1).integers(0, 3, size=len(X)).astype(float)
    penalty = TokenOutput(np.linspace(0.5, 2.0, X.shape[1]))
    problem = Problem(TokenDesign(X), Logistic(), penalty, Y, weight, intercept)
    assert problem.design.is_sparse == (data is letters)
    beta = fraction * problem.beta_max
    expected = solve(problem, beta, tol=1e-11, method="newton")
    monkeypatch.setattr(newton, "minimise", never)
    found = solve(problem, beta, tol=1e-9)
    assert found.converged
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-4 * np.abs(expected.Z).max())
    np.testing.assert_allclose(found.intercept, expected.intercept, atol=1e-4)
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1e6, 1e100])
def test_units_of_x_make_no_difference(scale):
    X, Y = letters()
    problem = Problem(TokenDesign(X * scale), Logistic(), Token(), Y)
    found = solve(problem, 0.1 * problem.beta_max)
    assert found.converged


def test_columns_far_from_zero_keep_their_digits():
    X, Y = numbers(mean=1e5)
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    assert solve(problem, 0.05 * problem.beta_max, tol=1e-7).converged


def test_entries_that_cancel_are_left_to_newton(monkeypatch):
    X, Y = letters()
    X[:, 0] = 0.0
    X[:, 0, 0] = 1e4 + Y[:, 0]  # nearly a constant
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    assert problem.design.is_sparse
    calls, plain = [], newton.minimise
    monkeypatch.setattr(newton, "minimise", lambda *a: calls.append(1) or plain(*a))
    assert solve(problem, 0.01 * problem.beta_max).converged
    assert calls


def test_alike_tokens_end_in_newtons_method(monkeypatch):
    X, Y = numbers(common=300.0)
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    calls, plain = [], newton.minimise
    monkeypatch.setattr(newton, "minimise", lambda *a: calls.append(1) or plain(*a))
    assert solve(problem, 1e-3 * problem.beta_max).converged
    assert calls


def test_arrays_of_other_sizes_are_refused():
    none, ones = np.empty(0, dtype=np.int32), np.ones(4)
    with pytest.raises(ValueError, match="8 numbers"):
        logistic.minimise_logistic(
            (4, 2, 1, -1, 0),
            none,
            none,
            ones,
            none,
            ones,
            ones,
            ones[:2],
            ones,
            ones[:2],
            True,
            1.0,
        )
    start, column = (
        np.array([0, 1, 2, 3, 4], dtype=np.int32),
        np.array([0, 1, 2, 9], dtype=np.int32),
    )
    place = np.array([0, -1, 1], dtype=np.int32)
    with pytest.raises(ValueError, match="out of range"):
        logistic.minimise_logistic(
            (4, 2, 1, 4, 3),
            *(start, column, ones, place, ones, ones, ones[:2].copy(), ones.copy(), np.zeros(2)),
            True,
            1.0,
        )
