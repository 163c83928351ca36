"""Errata 1 and 4: factors of one half that the paper prints and the theorems do not have."""

import numpy as np
import pytest
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import SimplexAttention, to_network
from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.problem.heads import recover_heads
from convexformer.solvers import solve


@pytest.fixture(scope="module")
def case():
    X, Y = generic("squared", 1)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y, intercept=False)
    beta = 0.2 * problem.beta_max
    solution = solve(problem, beta, tol=1e-10)
    trained = lowest(lambda: SimplexAttention(4, 2, 1, 7, **EXACT), X, Y, "squared", beta).min()
    return X, Y, problem, beta, solution, trained


def network_objective(X, Y, Z, beta):
    """What the nonconvex problem makes of convex coefficients, mapped by Proposition 1."""
    import torch

    network = to_network(Z, None, "token-output")
    return network.objective(torch.tensor(X), torch.tensor(Y), "squared", beta).item()


def test_erratum_1_the_half_before_the_loss(case):
    """Theorem 1 prints ``1/2 sum loss + beta penalty``, the program of twice the beta."""
    X, Y, problem, beta, solution, trained = case
    printed = solve(problem, 2 * beta, tol=1e-10)  # half of its objective is what is printed
    mapped = network_objective(X, Y, printed.Z, beta)
    corrected = network_objective(X, Y, solution.Z, beta)
    assert corrected == pytest.approx(10.1020, abs=1e-4)
    assert corrected == pytest.approx(trained, rel=1e-6)  # where 200 nonconvex runs end at best
    assert printed.certificate.primal / 2 == pytest.approx(7.7422, abs=1e-4)  # its own value
    assert mapped == pytest.approx(11.3570, abs=1e-4)
    assert mapped / corrected - 1 == pytest.approx(0.124, abs=1e-3)


def test_erratum_4_the_half_before_the_norm(case):
    """Two appendix equations print ``beta/2 ||w3||_1`` after the scaling lemma."""
    X, Y, problem, beta, solution, trained = case
    heads = recover_heads(solution.Z, "token-output")
    size = np.linalg.norm(heads.values, axis=1)
    w2, w3 = heads.values / size[:, None], heads.outputs * size[:, None]  # the lemma's scaling
    F = np.einsum("ihd,hd,hc->ic", X[:, heads.groups], w2, w3)
    loss, norm = 0.5 * np.sum((F - Y) ** 2), np.abs(w3).sum()
    assert loss + beta * norm == pytest.approx(trained, rel=1e-6)
    assert loss + 0.5 * beta * norm == pytest.approx(6.6526, abs=1e-4)
    # Minimised, the printed form is the program of half the beta: far below any network.
    printed = solve(problem, 0.5 * beta, tol=1e-10).certificate.primal
    assert printed == pytest.approx(6.2019, abs=1e-4)
    assert printed / trained == pytest.approx(0.614, abs=1e-3)
