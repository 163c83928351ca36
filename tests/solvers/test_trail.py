"""Starts of a path's points: on the curve through the last ones."""

import numpy as np
import pytest

from convexformer.problem import PENALTIES, Logistic, Problem, Squared, TokenDesign
from convexformer.solvers import solve, solve_path
from convexformer.solvers.trail import Trail, _shares


def made(c=1, intercept=True, loss=None, N=200, n=10, d=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d)) + rng.normal(size=(n, d))
    Y = X[:, 2] @ rng.normal(size=(d, c)) + X[:, 5] @ rng.normal(size=(d, c))
    Y += rng.normal(size=Y.shape)
    Y = Y if loss is None else np.sign(Y - np.median(Y))
    weight = rng.uniform(0.5, 2.0, size=N)
    return Problem(TokenDesign(X), loss or Squared(), PENALTIES["token"](), Y, weight, intercept)


def trail_of(problem, fractions, tol=1e-10):
    trail = Trail(problem)
    for fraction in fractions:
        trail.add(solve(problem, fraction * problem.beta_max, tol=tol))
    return trail


def test_shares_are_those_of_a_polynomial():
    betas = [1.0, 0.7, 0.4]
    values = 2.0 - 3.0 * np.array(betas) + 5.0 * np.array(betas) ** 2
    assert _shares(betas, 0.3) @ values == pytest.approx(2.0 - 0.9 + 0.45)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("c", [1, 3])
def test_what_is_foreseen_is_what_is_found(c, intercept):
    problem = made(c, intercept)
    start = trail_of(problem, [0.3, 0.25, 0.2]).ahead(0.16 * problem.beta_max)
    assert problem._foreseen is not None and np.array_equal(problem._foreseen, start.Z)
    S, M = problem.recall(start.Z)
    again = made(c, intercept)
    np.testing.assert_allclose(S, again.scores(start.Z), atol=1e-10)
    F = S + problem.best_intercept(S, np.zeros(c))
    np.testing.assert_allclose(M, again.dual_point(F).M, atol=1e-9)


def test_a_start_is_better_than_the_last_solution():
    problem = made()
    trail, beta = trail_of(problem, [0.3, 0.25, 0.2]), 0.16 * problem.beta_max
    start, last = trail.ahead(beta), trail.stops[-1].solution
    values = [problem.objective(one.Z, one.intercept, beta) for one in (start, last)]
    assert values[0] < values[1]


def test_certificates_do_not_rely_on_what_was_foreseen():
    problem = made()
    beta = 0.16 * problem.beta_max
    start = trail_of(problem, [0.3, 0.25, 0.2]).ahead(beta)
    problem.foresee(start.Z, np.zeros_like(problem.Y), np.zeros(problem.shape))
    found = problem.certificate(start.Z, start.intercept, beta)
    assert found == made().certificate(start.Z, start.intercept, beta)


def test_tokens_that_were_let_go_stay_so():
    problem = made()
    trail = trail_of(problem, [0.2, 0.4, 0.6])
    start = trail.ahead(0.65 * problem.beta_max)
    last = trail.stops[-1].solution
    gone = np.any(trail.stops[0].solution.Z, axis=(1, 2)) & ~np.any(last.Z, axis=(1, 2))
    assert gone.any() and not np.any(start.Z[gone])


@pytest.mark.parametrize("loss", [None, Logistic()])
def test_a_path_may_go_anywhere(loss):
    problem = made(loss=loss)
    betas = problem.beta_max * np.array([0.5, 0.5, 0.2, 1.5, 0.1, 0.1, 0.05, 0.3])
    for beta, found in zip(betas, solve_path(problem, betas), strict=True):
        assert found.converged and found.certificate.beta == beta
        alone = solve(made(loss=loss), beta)
        assert found.certificate.primal == pytest.approx(alone.certificate.primal, rel=2e-6)
