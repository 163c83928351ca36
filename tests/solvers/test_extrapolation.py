"""Starts of a path's points: on the curve through the last ones."""

import numpy as np
import pytest
from tests.strategies import never, start

from convexformer.problem import PENALTIES, Logistic, Problem, Squared, TokenDesign
from convexformer.solvers import solve, solve_path
from convexformer.solvers.solve import Extrapolation, _shares


def made(c=1, intercept=True, loss=None, N=200, n=10, d=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d)) + rng.normal(size=(n, d))
    Y = X[:, 2] @ rng.normal(size=(d, c)) + X[:, 5] @ rng.normal(size=(d, c))
    Y += rng.normal(size=Y.shape)
    Y = Y if loss is None else np.sign(Y - np.median(Y))
    weight = rng.uniform(0.5, 2.0, size=N)
    return Problem(TokenDesign(X), loss or Squared(), PENALTIES["token"](), Y, weight, intercept)


def extrapolation_of(problem, fractions, tol=1e-10):
    ahead = Extrapolation(problem)
    for fraction in fractions:
        beta = fraction * problem.beta_max
        at = start(problem, solve(problem, beta, tol=tol))
        assert at.gap(beta) <= 1.1 * tol  # as a strategy measured it
        ahead.add(beta, at)
    return ahead


def test_shares_are_those_of_a_polynomial():
    betas = [1.0, 0.7, 0.4]
    values = 2.0 - 3.0 * np.array(betas) + 5.0 * np.array(betas) ** 2
    assert _shares(betas, 0.3) @ values == pytest.approx(2.0 - 0.9 + 0.45)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("c", [1, 3])
def test_what_is_predicted_is_what_is_found(monkeypatch, c, intercept):
    problem = made(c, intercept)
    ahead = extrapolation_of(problem, [0.3, 0.25, 0.2])
    with monkeypatch.context() as patch:
        for name in ("predict", "correlate", "follow"):  # without a pass over X
            patch.setattr(TokenDesign, name, never)
        found = ahead.predict(0.16 * problem.beta_max)
        assert found.gap(0.16 * problem.beta_max) < 0.1
    expected = made(c, intercept).at(found.Z)
    for name in ("S", "F", "V"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-10)
    np.testing.assert_allclose(found.M, expected.M, atol=1e-9)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)


def test_a_start_is_better_than_the_last_solution():
    problem = made()
    ahead, beta = extrapolation_of(problem, [0.3, 0.25, 0.2]), 0.16 * problem.beta_max
    both = ahead.predict(beta), ahead.points[-1][1]
    values = [problem.objective(one.Z, one.intercept, beta) for one in both]
    assert values[0] < values[1]


def test_certificates_do_not_rely_on_what_was_predicted():
    problem = made()
    beta = 0.16 * problem.beta_max
    at = extrapolation_of(problem, [0.3, 0.25, 0.2]).predict(beta)
    lie = problem.at(at.Z, at.b, S=np.zeros_like(problem.Y), M=np.zeros(problem.shape))
    assert lie.gap(beta) != pytest.approx(at.gap(beta), rel=0.5)
    found = problem.certificate(at.Z, at.intercept, beta)
    assert found == made().certificate(at.Z, at.intercept, beta)


def test_tokens_that_were_let_go_stay_so():
    problem = made()
    ahead = extrapolation_of(problem, [0.2, 0.4, 0.6])
    found = ahead.predict(0.65 * problem.beta_max)
    gone = ahead.points[0][1].used & ~ahead.points[-1][1].used
    assert gone.any() and not np.any(found.Z[gone])


@pytest.mark.parametrize("loss", [None, Logistic()])
def test_a_path_may_go_anywhere(loss):
    problem = made(loss=loss)
    betas = problem.beta_max * np.array([0.5, 0.5, 0.2, 1.5, 0.1, 0.1, 0.05, 0.3])
    for beta, found in zip(betas, solve_path(problem, betas), strict=True):
        assert found.converged and found.certificate.beta == beta
        alone = solve(made(loss=loss), beta)
        assert found.certificate.primal == pytest.approx(alone.certificate.primal, rel=2e-6)
