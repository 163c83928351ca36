"""Points of a path start on the line through the last two."""

import numpy as np
import pytest

from convexformer.problem import Logistic, Problem, Squared, Token, TokenDesign
from convexformer.solvers import descent, solve, solve_path
from convexformer.solvers.line import Line
from convexformer.solvers.solution import Clock, Iterate
from convexformer.solvers.workspace import Workspace


def made(loss=None, c=1, intercept=True, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 12, 5))
    Y = X[:, 3] @ rng.normal(size=(5, c)) + X[:, 7] @ rng.normal(size=(5, c))
    Y = Y + rng.normal(size=Y.shape)
    loss = Squared() if loss is None else loss
    Y = np.sign(Y) if isinstance(loss, Logistic) else Y
    return Problem(TokenDesign(X), loss, Token(), Y, intercept=intercept)


def points(problem, fractions=(0.3, 0.25)):
    """A line, and the solutions on it."""
    line, found = Line(), []
    for fraction in fractions:
        beta = fraction * problem.beta_max
        work = Workspace(problem)
        at = Iterate.start(problem, None, beta)
        at, done = descent.minimise(problem, beta, at, 1e-6, Clock(100), work)
        assert done
        line.add(problem, beta, at)
        found.append(solve(problem, beta, init=None))
        found[-1].Z = at.Z
    return line, found


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("c", [1, 3])
def test_all_is_known_where_a_line_leads(c, intercept):
    problem = made(c=c, intercept=intercept)
    line, (_, last) = points(problem)
    beta = 0.2 * problem.beta_max
    at = line.start(problem, last, beta)
    assert at is not None and at.point is not None
    S = problem.scores(at.Z)
    expected = Iterate.at(problem, at.Z, S, at.b)
    point = problem.dual_point(expected.F)
    size = np.abs(point.M).max()
    np.testing.assert_allclose(at.S, S, atol=1e-12 * np.abs(S).max())
    np.testing.assert_allclose(at.point.V, point.V, atol=1e-12 * np.abs(point.V).max())
    np.testing.assert_allclose(at.point.M, point.M, atol=1e-11 * size)
    np.testing.assert_allclose(at.point.norms, point.norms, atol=1e-11 * size)
    assert at.primal(beta) == pytest.approx(expected.primal(beta), rel=1e-12)
    assert at.primal(beta) <= Iterate.start(problem, last, beta).primal(beta)


def test_a_line_leads_only_to_smaller_beta_from_where_it_ends():
    problem = made()
    line, (first, last) = points(problem)
    beta = 0.2 * problem.beta_max
    assert line.leads(problem, last, beta)
    assert not line.leads(problem, last, 0.28 * problem.beta_max)
    assert not line.leads(problem, first, beta) and not line.leads(problem, None, beta)
    assert not line.leads(made(), last, beta)
    last.Z[3] *= 2.0  # what was returned is the user's to change
    assert line.start(problem, last, beta) is None


def test_a_line_ends_where_a_token_is_let_go():
    problem = made()
    line, (_, last) = points(problem)
    (_, before), _ = line._points
    unused = np.flatnonzero(~last.Z.any(axis=(1, 2)))[0]
    before.Z[unused] = 1e-3
    assert not line.leads(problem, last, 0.2 * problem.beta_max)


def test_only_squared_losses_are_linear():
    problem = made(Logistic())
    line = Line()
    for fraction in (0.3, 0.25):
        at = Iterate.start(problem, None, fraction * problem.beta_max)
        line.add(problem, fraction * problem.beta_max, at)
    last = solve(problem, 0.25 * problem.beta_max)
    assert not line.leads(problem, last, 0.2 * problem.beta_max)


@pytest.mark.parametrize("c", [1, 3])
def test_points_of_a_path_read_x_once_for_scores(monkeypatch, c):
    problem, products = made(c=c), []
    betas = problem.beta_max * np.geomspace(0.6, 0.05, 8)
    plain = TokenDesign.predict
    monkeypatch.setattr(
        TokenDesign, "predict", lambda self, *args: products.append(1) or plain(self, *args)
    )
    found = []
    for solution in solve_path(problem, betas):
        found.append((solution, len(products)))
        products.clear()
    assert all(s.converged for s, _ in found) and found[-1][1] == 1
    for (solution, _), beta in zip(found, betas, strict=True):
        fresh = made(c=c).certificate(solution.Z, solution.intercept, beta)
        assert fresh.relative_gap <= 1e-6
