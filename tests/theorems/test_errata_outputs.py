"""Erratum 2: Theorem 2 is printed as separable over outputs, which cross-entropy is not."""

import numpy as np
import pytest
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import SimplexAttention
from convexformer.problem import Logistic, Problem, Softmax, Squared, TokenDesign, TokenOutput
from convexformer.solvers import solve


def solve_attention(loss, X, Y, beta):
    problem = Problem(TokenDesign(X), loss, TokenOutput(), Y, intercept=False)
    return problem, solve(problem, beta, tol=1e-10)


def test_erratum_2_outputs_of_cross_entropy_do_not_separate():
    X, Y = generic("softmax", 3, shape=(40, 4, 2))
    problem = Problem(TokenDesign(X), Softmax(), TokenOutput(), Y, intercept=False)
    beta = 0.05 * problem.beta_max
    joint = solve(problem, beta, tol=1e-10).certificate
    # One program per output, each with the cross-entropy of its own two cases.
    _, printed = solve_attention(Logistic(), X, 2 * Y - 1, beta)
    scored = problem.objective(printed.Z, np.zeros(3), beta)
    assert joint.primal == pytest.approx(15.0838, abs=1e-4)
    assert printed.certificate.primal == pytest.approx(42.5665, abs=1e-4)
    assert scored / joint.primal - 1 == pytest.approx(0.141, abs=1e-3)

    def make():
        return SimplexAttention(4, 2, 3, 16, **EXACT)

    trained = lowest(make, X, Y, "softmax", beta).min()
    assert joint.dual <= trained < 1.001 * joint.primal < scored


def test_erratum_2_outputs_of_squared_loss_do():
    X, Y = generic("squared", 3)
    problem, joint = solve_attention(Squared(), X, Y, 2.0)
    parts = [solve_attention(Squared(), X, Y[:, [j]], 2.0)[1] for j in range(3)]
    total = sum(part.certificate.primal for part in parts)
    assert total == pytest.approx(joint.certificate.primal, rel=1e-9)
    Z = np.concatenate([part.Z for part in parts], axis=2)
    assert problem.objective(Z, np.zeros(3), 2.0) == pytest.approx(total, rel=1e-12)
