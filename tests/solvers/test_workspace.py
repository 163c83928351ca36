"""Gram matrices that grow: what they are, and when they are kept."""

import numpy as np
import pytest
from tests.strategies import forbid

from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.solvers import solve_path
from convexformer.solvers.workspace import Workspace


def made(N=60, n=12, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d))
    return Problem(TokenDesign(X), Squared(), TokenOutput(), X[:, :4, :1].sum(axis=1))


def gram_of(problem, groups):
    A = (problem.design.X - problem.center)[:, groups].reshape(len(problem.Y), -1)
    return A.T @ A


@pytest.mark.parametrize("n", [12, 86])
def test_tokens_are_those_of_the_groups_that_come_with_them(n):
    problem = made(n=n)
    grams = Workspace(problem).grams
    for wanted in ([3], [5, 3, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8], [2]):
        groups = np.array(wanted)
        tokens = grams.tokens(groups)
        assert grams.tokens(groups) is tokens
        Q = tokens.unit[0] ** 2 * tokens.A.reshape(len(groups) * 3, -1)
        np.testing.assert_allclose(Q, gram_of(problem, groups), atol=1e-10)


def test_a_path_from_just_below_beta_max_descends_all_along(monkeypatch):
    problem = made(N=200)
    betas = problem.beta_max * (1 - 1e-16) * np.geomspace(1.0, 0.1, 5)
    betas[0] = np.nextafter(problem.beta_max, 0.0)
    forbid(monkeypatch, "newton")
    path = list(solve_path(problem, betas, strategy="block-descent"))
    assert all(solution.converged for solution in path)
