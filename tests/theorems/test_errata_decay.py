"""Erratum 11: the paper changes the decay of w3 for its proof; plain decay has a program too."""

import pytest
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import SimplexAttention
from convexformer.problem import PENALTIES, Problem, Squared, TokenDesign
from convexformer.solvers import solve


def test_erratum_11_plain_decay_is_the_nuclear_norm():
    X, Y = generic("squared", 2)
    optimum = {}
    for penalty in ("token-output", "nuclear"):
        problem = Problem(TokenDesign(X), Squared(), PENALTIES[penalty](), Y, intercept=False)
        optimum[penalty] = solve(problem, 4.0, tol=1e-7).certificate.primal

    def make():
        return SimplexAttention(4, 2, 2, 12, penalty="nuclear", **EXACT)  # ||w2||^2 + ||w3||_2^2

    trained = lowest(make, X, Y, "squared", 4.0).min()
    assert optimum["token-output"] == pytest.approx(35.4931, abs=1e-3)
    assert optimum["nuclear"] == pytest.approx(33.3933, abs=1e-3)  # 5.9 % lower
    assert trained == pytest.approx(optimum["nuclear"], rel=1e-5)
