"""Newton's method in compiled code, beside Newton's method in NumPy."""

import numpy as np
import pytest
from tests.strategies import forbid

from convexformer import _core
from convexformer.problem import PENALTIES, Logistic, Problem, Softmax, Token, TokenDesign
from convexformer.solvers import choose, newton, solve

pytestmark = pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")


def letters(N=700, n=6, d=12, c=1, seed=0):
    """Sequences of letters, of which two places count."""
    rng = np.random.default_rng(seed)
    X = np.eye(d)[rng.integers(d, size=(N, n))]
    return X, targets(rng, X[:, 1] @ rng.normal(size=(d, c)) + X[:, 4] @ rng.normal(size=(d, c)))


def numbers(N=300, n=8, d=5, c=1, seed=0, mean=0.0, common=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d)) + mean + common * rng.normal(size=(N, 1, d))
    return X, targets(rng, X[:, 2] @ rng.normal(size=(d, c)) + X[:, 5] @ rng.normal(size=(d, c)))


def targets(rng, F):
    F = (F - F.mean(axis=0)) / F.std(axis=0)
    if F.shape[1] == 1:
        return np.where(F + 0.3 * rng.logistic(size=F.shape) > 0, 1.0, -1.0)
    return np.eye(F.shape[1])[np.argmax(2 * F + rng.gumbel(size=F.shape), axis=1)]


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("c", "penalty"), [(1, "token"), (3, "token"), (4, "token-output")])
@pytest.mark.parametrize("data", [letters, numbers])
def test_a_round_finds_what_newtons_method_finds(
    monkeypatch, data, c, penalty, intercept, fraction
):
    X, Y = data(c=c)
    weight = np.random.default_rng(1).integers(0, 3, size=len(X)).astype(float)
    uneven = PENALTIES[penalty](np.linspace(0.5, 2.0, X.shape[1]))
    loss = Softmax() if c > 1 else Logistic()
    problem = Problem(TokenDesign(X), loss, uneven, Y, weight, intercept)
    assert problem.design.is_sparse == (data is letters)
    beta = fraction * problem.beta_max
    expected = solve(problem, beta, tol=1e-11, strategy="newton")
    if intercept or data is numbers:  # letters of a place sum to one: as alike as intercepts
        forbid(monkeypatch, "newton")
    found = solve(problem, beta, tol=1e-9, strategy="compiled-newton")
    assert found.converged
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-4 * np.abs(expected.Z).max())
    np.testing.assert_allclose(found.intercept, expected.intercept, atol=1e-4)
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-9)


def test_what_counts_may_be_far_from_the_means():
    """Samples that are sure lose their weight, and the rest is nearly alike in a column.

    There Hessians in float32 lack digits.
    """
    rng = np.random.default_rng(0)
    sure, y = np.arange(1000) < 900, rng.choice([-1.0, 1.0], size=1000)
    X = 0.1 * rng.normal(size=(1000, 3, 2))
    X[sure, 0, 0] = 30.0 * y[sure]
    X[~sure, 1, 0] += 300.0 + 0.5 * y[~sure]
    problem = Problem(TokenDesign(X), Logistic(), Token(), y[:, None])
    expected = solve(problem, 3e-5 * problem.beta_max, tol=1e-10, strategy="newton")
    found = solve(problem, 3e-5 * problem.beta_max, tol=1e-8, strategy="compiled-newton")
    assert found.converged
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-8)


@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1e6, 1e100])
def test_units_of_x_make_no_difference(scale):
    X, Y = letters()
    problem = Problem(TokenDesign(X * scale), Logistic(), Token(), Y)
    found = solve(problem, 0.1 * problem.beta_max, strategy="compiled-newton")
    assert found.converged


def test_columns_far_from_zero_keep_their_digits():
    X, Y = numbers(mean=1e5)
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    assert solve(problem, 0.05 * problem.beta_max, tol=1e-7, strategy="compiled-newton").converged


def test_entries_that_cancel_are_left_to_newton():
    X, Y = letters()
    X[:, 0] = 0.0
    X[:, 0, 0] = 1e4 + Y[:, 0]  # nearly a constant
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    assert problem.design.is_sparse
    found = solve(problem, 0.01 * problem.beta_max, strategy="compiled-newton")
    assert found.converged and found.strategy == "compiled-newton + newton"


def test_alike_tokens_end_in_newtons_method():
    X, Y = numbers(common=300.0)
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    found = solve(problem, 1e-3 * problem.beta_max, strategy="compiled-newton")
    assert found.converged and found.strategy == "compiled-newton + newton"


def test_weights_may_lie_anywhere():
    X, Y = numbers()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, size=(len(X), 2))
    for weight in (weights[:, 0], np.broadcast_to(2.0, len(X))):
        problem = Problem(TokenDesign(X), Logistic(), Token(), Y, weight)
        assert solve(problem, 0.1 * problem.beta_max, strategy="compiled-newton").converged


def test_no_certificate_vouches_for_nan():
    X, Y = numbers()
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    beta = 0.1 * problem.beta_max
    found = problem.certificate(solve(problem, beta).Z, np.array([np.nan]), beta)
    assert found.primal == np.inf and not found.relative_gap <= 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_a_start_at_zero_just_below_beta_max(seed):
    X, Y = numbers(seed=seed)
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    zero = solve(problem, problem.beta_max)
    assert solve(
        problem, np.nextafter(problem.beta_max, 0.0), init=zero, strategy="compiled-newton"
    ).converged


@pytest.mark.parametrize("c", [1, 3])
def test_samples_may_read_the_same(c):
    X, Y = letters(N=5000, c=c)  # of two tokens there are a few hundred kinds
    X[::2] *= 2.0
    weight = np.random.default_rng(1).integers(0, 3, size=len(X)) / 2
    loss = Softmax() if c > 1 else Logistic()
    problem = Problem(TokenDesign(X), loss, Token(), Y, weight)
    assert problem.design.is_sparse
    beta = 0.3 * problem.beta_max
    found = solve(problem, beta, strategy="compiled-newton")
    expected = solve(problem, beta, tol=1e-10, strategy="newton")
    assert found.converged
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-2 * np.abs(expected.Z).max())


def test_the_intercept_that_goes_with_entries(monkeypatch):
    X, Y = letters()
    problem = Problem(TokenDesign(X), Logistic(), Token(), Y)
    rounds, plain = [], newton.CompiledNewton.run
    monkeypatch.setattr(
        newton.CompiledNewton, "run", lambda self, *a: (plain(self, *a), rounds.append(self))[0]
    )
    beta = 0.3 * problem.beta_max
    assert solve(problem, beta, tol=1e-10, strategy="compiled-newton").converged
    last = rounds[-1]
    S = problem.scores(last.found().Z)
    np.testing.assert_allclose(problem.risk.best_intercept(S, last.best_b), last.best_b, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "c", "suits"),
    [
        ((500, 8, 5), 1, True),
        ((40000, 8, 2), 10, True),  # many samples, but Hessians of few columns
        ((4000, 30, 5), 1, False),
        ((3000, 2, 200), 3, False),
    ],
)
def test_rounds_are_for_little_work(shape, c, suits):
    N, n, _ = shape
    loss, Y = (Softmax(), np.eye(c)[np.arange(N) % c]) if c > 1 else (Logistic(), np.ones((N, 1)))
    Y[::2] *= 1.0 if c > 1 else -1.0
    problem = Problem(TokenDesign(np.ones(shape)), loss, Token(), Y, intercept=False)
    assert choose.compiles(problem, n) == suits
    everything = problem.at(np.ones(problem.shape))  # in use
    names = [one.strategy for one in choose.forecasts(problem, 1.0, everything)]
    assert ("compiled-newton" in names) == suits


def test_arrays_of_other_sizes_are_refused():
    none, ones = np.empty(0, dtype=np.int32), np.ones(4)
    start, place = np.arange(5, dtype=np.int32), np.array([0, -1, 1], dtype=np.int32)
    column, both = np.array([0, 1, 2, 9], dtype=np.int32), np.arange(2, dtype=np.int32)
    rest = np.zeros(2), ones, ones, ones[:2].copy(), ones, np.zeros(2), np.zeros(1), True, 1.0, 1.0
    dense = none, none, np.ones(8)
    with pytest.raises(ValueError, match="8 numbers"):
        _core.newton((4, 2, 1, 1, 2, -1, 2), none, none, ones, both, *rest)
    with pytest.raises(ValueError, match="out of range"):
        _core.newton((4, 2, 1, 1, 2, -1, 2), *dense, np.zeros(2, np.int32), *rest)
    with pytest.raises(ValueError, match="out of range"):
        _core.newton((4, 2, 1, 1, 2, 4, 3), start, column, ones, place, *rest)
    with pytest.raises(ValueError, match="out of range"):
        _core.newton((4, 2, 1, 1, 5, -1, 2), *dense, both, *rest)
