"""Refits: against scikit-learn on the selected columns, and their gradient by differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from tests.generated import cases, fits

from convexformer.problem import (
    GatedDesign,
    Huber,
    Logistic,
    Nuclear,
    Poisson,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import refit as module
from convexformer.solvers import solve
from convexformer.solvers.refit import refit

N, n, d = 120, 6, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(N, n, d)) * [1.0, 3.0, 0.5] + 1.0
A = rng.normal(size=(n, d, 3)) * np.array([0, 1, 0, 2, 0, 0.5])[:, None, None]
SCORES = np.tensordot(X - 1, A, axes=2) + rng.normal(size=(N, 3))
WEIGHT = rng.uniform(0.2, 2.0, size=N)
MASK = rng.uniform(size=(N, n)) < 0.8

LOSSES = {
    "squared": (Squared(), SCORES),
    "huber": (Huber(0.5), SCORES),
    "logistic": (Logistic(), np.where(SCORES > 0, 1.0, -1.0)),
    "softmax": (Softmax(), np.eye(3)[SCORES.argmax(axis=1)]),
    "poisson": (Poisson(), rng.poisson(np.exp(np.clip(0.3 * SCORES, -3, 3))).astype(float)),
}


def problem_of(loss, penalty=TokenOutput, outputs=3, **options):
    kind, Y = LOSSES[loss]
    mask = options.pop("mask", None)
    weights = options.pop("weights", None)
    return Problem(TokenDesign(X, mask), kind, penalty(weights), Y[:, :outputs], **options)


def objective(problem, Z, b, ridge, weights=1.0):
    penalty = 0.5 * np.sum(np.square(np.reshape(weights, (-1, 1, 1)) * Z) * ridge)
    return problem.objective(Z, b, 0.0) + penalty


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("penalty", [TokenOutput, Token, Nuclear])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_model_on_the_selection_is_better(loss, penalty, intercept):
    weights = np.linspace(0.5, 2.0, n)
    problem = problem_of(
        loss, penalty, sample_weight=WEIGHT, mask=MASK, weights=weights, intercept=intercept
    )
    selected = solve(problem, 0.4 * problem.beta_max)
    found = refit(problem, selected)
    assert found.converged
    used = np.broadcast_to(problem.penalty.norms(selected.Z)[:, None] > 0, problem.shape)
    assert 0 < np.count_nonzero(used) < used.size
    assert np.array_equal(found.Z != 0, used)
    assert np.array_equal(found.ridge > 0, np.any(used, axis=(0, 1)) | (loss == "softmax"))
    best = objective(problem, found.Z, found.intercept, found.ridge, weights)
    assert best < objective(problem, selected.Z, selected.intercept, found.ridge, weights)
    scale = np.sqrt(np.mean(found.Z**2))
    for seed in range(3):
        moves = np.random.default_rng(seed)
        step = 1e-4 * scale * np.where(used, moves.normal(size=problem.shape), 0.0)
        shift = 1e-4 * intercept * moves.normal(size=3)
        up = objective(problem, found.Z + step, found.intercept + shift, found.ridge, weights)
        down = objective(problem, found.Z - step, found.intercept - shift, found.ridge, weights)
        assert min(up, down) > best
        assert abs(up - down) <= 1e-4 * (up + down - 2 * best) + 1e-12 * best


def columns_of(found, output=0):
    used = np.flatnonzero(np.any(found.Z[:, :, output], axis=1))
    return used, X[:, used].reshape(N, -1)


def test_squared_is_ridge_regression():
    problem = problem_of("squared", outputs=2, sample_weight=WEIGHT)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max), ridge=0.01)
    for j in range(2):
        used, columns = columns_of(found, j)
        mean = np.average(columns, axis=0, weights=WEIGHT)
        scale = np.mean(WEIGHT @ (columns - mean) ** 2)
        assert_allclose(found.ridge[j], 0.01 * scale)
        peer = Ridge(0.01 * scale).fit(columns, SCORES[:, j], sample_weight=WEIGHT)
        assert_allclose(found.Z[used, :, j].ravel(), peer.coef_, rtol=1e-8, atol=1e-10)
        assert_allclose(found.intercept[j], peer.intercept_, rtol=1e-8)


def test_logistic_is_logistic_regression():
    problem = problem_of("logistic", outputs=1, sample_weight=WEIGHT)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max))
    used, columns = columns_of(found)
    peer = LogisticRegression(C=1 / found.ridge[0], tol=1e-12, max_iter=1000, solver="newton-cg")
    peer.fit(columns, problem.Y[:, 0], sample_weight=WEIGHT)
    assert_allclose(found.Z[used, :, 0].ravel(), peer.coef_[0], atol=1e-6)
    assert_allclose(found.intercept, peer.intercept_, atol=1e-6)
    mean = np.average(columns, axis=0, weights=WEIGHT)
    share = np.average(problem.Y[:, 0] > 0, weights=WEIGHT)
    scale = share * (1 - share) * np.mean(WEIGHT @ (columns - mean) ** 2)
    assert_allclose(found.ridge, 1e-3 * scale)


def test_softmax_is_multinomial_regression():
    problem = problem_of("softmax", Token)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max))
    used, columns = columns_of(found)
    peer = LogisticRegression(C=1 / found.ridge[0], tol=1e-12, max_iter=2000, solver="newton-cg")
    peer.fit(columns, problem.Y.argmax(axis=1))
    assert_allclose(found.Z[used].reshape(-1, 3).T, peer.coef_, atol=1e-6)
    assert_allclose(found.intercept, peer.intercept_ - peer.intercept_.mean(), atol=1e-6)


def test_poisson_is_poisson_regression():
    problem = problem_of("poisson", outputs=1)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max))
    used, columns = columns_of(found)
    peer = PoissonRegressor(alpha=found.ridge[0] / N, solver="newton-cholesky", tol=1e-12)
    peer.fit(columns, problem.Y[:, 0])
    assert_allclose(found.Z[used, :, 0].ravel(), peer.coef_, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_iteration_and_factorisation_agree(loss, monkeypatch):
    problem = problem_of(loss, sample_weight=WEIGHT)
    selected = solve(problem, 0.3 * problem.beta_max)
    direct = refit(problem, selected)
    monkeypatch.setattr(module, "MOST_UNKNOWNS", 0)
    iterated = refit(problem, selected)
    assert iterated.converged
    assert_allclose(iterated.Z, direct.Z, atol=1e-6 * np.abs(direct.Z).max())


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_separable_classes_stay_finite(loss, scale):
    wide = scale * np.random.default_rng(1).normal(size=(20, 8, 4))
    y = np.arange(20) % 3
    Y = np.eye(3)[y] if loss == "softmax" else np.where(y == 0, 1.0, -1.0)[:, None]
    problem = Problem(TokenDesign(wide), LOSSES[loss][0], TokenOutput(), Y)
    found = refit(problem, solve(problem, 0.01 * problem.beta_max))
    assert found.converged
    scores = problem.predict(found.Z, found.intercept)
    hit = scores.argmax(axis=1) == y if loss == "softmax" else scores[:, 0] * Y[:, 0] > 0
    assert np.all(hit)
    assert 1 < np.abs(scores).max() < 100


def test_gated_selection():
    gates = np.column_stack([np.ones(N, dtype=bool), X[:, 1, 0] > 1, X[:, 3, 1] > 1])
    y = SCORES[:, :1] + 5 * np.maximum(X[:, 1, :1] - 1, 0)
    problem = Problem(GatedDesign(TokenDesign(X), gates), Squared(), TokenOutput(), y)
    selected = solve(problem, 0.2 * problem.beta_max)
    found = refit(problem, selected, ridge=0.1)
    used = np.flatnonzero(np.any(selected.Z, axis=(1, 2)))
    columns = problem.design.gather(slice(0, N), used)
    peer = Ridge(found.ridge[0]).fit(columns, y[:, 0])
    assert_allclose(found.Z[used, :, 0].ravel(), peer.coef_, rtol=1e-7)


def test_weights_are_scales():
    weights = np.linspace(0.3, 3.0, n)
    weighted = problem_of("logistic", weights=weights)
    scaled = Problem(
        TokenDesign(X / weights[:, None]), Logistic(), TokenOutput(), LOSSES["logistic"][1]
    )
    beta = 0.3 * weighted.beta_max
    one, other = refit(weighted, solve(weighted, beta)), refit(scaled, solve(scaled, beta))
    assert_allclose(one.Z * weights[:, None, None], other.Z, atol=1e-6)


def test_units_do_not_matter():
    problem = problem_of("huber", outputs=1)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max))
    other = Problem(
        TokenDesign(np.repeat(1e3 * X, 2, axis=0)),
        Huber(0.5),
        TokenOutput(),
        np.repeat(problem.Y + 7.0, 2, axis=0),
    )
    again = refit(other, solve(other, 0.3 * other.beta_max))
    assert_allclose(1e3 * again.Z, found.Z, atol=1e-6)


def test_nothing_selected():
    problem = problem_of("softmax")
    zero = solve(problem, problem.beta_max)
    found = refit(problem, zero)
    assert found.converged
    assert not np.any(found.Z) and not np.any(found.ridge)
    assert_allclose(found.intercept, zero.intercept, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.inf, np.nan])
def test_bad_ridge(ridge):
    problem = problem_of("squared")
    with pytest.raises(ValueError, match="ridge must be a positive number"):
        refit(problem, solve(problem, problem.beta_max), ridge)


@pytest.mark.parametrize("loss", LOSSES)
def test_starts_do_not_matter(loss):
    problem = problem_of(loss)
    near = refit(problem, solve(problem, 0.2 * problem.beta_max))
    selected = solve(problem, 0.3 * problem.beta_max)  # fewer tokens than the start
    cold, warm = refit(problem, selected), refit(problem, selected, start=near)
    assert_allclose(warm.Z, cold.Z, atol=1e-6 * np.abs(cold.Z).max())


@pytest.mark.parametrize("most", [module.MOST_UNKNOWNS, 0], ids=["factorised", "iterated"])
def test_nasty_problems(most, monkeypatch):
    """Constant, huge, tiny, copied and separating columns, few samples, strange weights."""
    monkeypatch.setattr(module, "MOST_UNKNOWNS", most)
    for fit in fits(cases()[:: 37 if most else 83]):
        problem = fit.case.raw().problem()
        found = refit(problem, fit.solution)
        assert found.converged, fit.case.name
        assert np.all(np.isfinite(found.Z)) and np.all(np.isfinite(found.intercept))
        before = problem.objective(fit.solution.Z, fit.solution.intercept, 0.0)
        after = problem.objective(found.Z, found.intercept, 0.0)
        ridge = 0.5 * np.sum(
            found.ridge
            * (problem.penalty.column(len(found.Z)) ** 2)[:, None]
            * (found.Z**2 - fit.solution.Z**2)
        )
        assert after + ridge <= before * (1 + 1e-9) + 1e-300, fit.case.name
