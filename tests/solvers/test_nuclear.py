"""The nuclear penalty (plain weight decay) against CVXPY, by proximal steps."""

import numpy as np
import pytest
from tests.generated import small
from tests.oracle import oracle

from convexformer.problem import Nuclear, TokenOutput
from convexformer.solvers import solve

LOSSES = ("squared", "huber", "logistic", "softmax", "poisson")


@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_objective_is_the_oracles(loss, intercept):
    raw = small(loss, "nuclear", intercept, c=3, seed=5)
    problem = raw.problem()
    for fraction in (0.5, 0.1):
        beta = fraction * problem.beta_max
        solution = solve(problem, beta, tol=1e-6)
        optimum, _, _ = oracle(raw, beta)
        assert solution.converged
        assert -1e-12 <= solution.certificate.relative_gap <= 1e-6
        assert abs(solution.certificate.primal - optimum) <= 1e-6 * optimum
        assert solution.certificate.dual <= optimum * (1 + 1e-12)


def test_zero_exactly_from_beta_max_on():
    problem = small("squared", "nuclear", c=3, seed=6).problem()
    assert not np.any(solve(problem, problem.beta_max).Z)
    assert np.any(solve(problem, 0.99 * problem.beta_max).Z)


def test_one_output_is_the_group_lasso_and_solved_as_such():
    problem = small("squared", "nuclear", c=1, seed=7).problem()
    assert isinstance(problem.penalty, TokenOutput)
    assert solve(problem, 0.1 * problem.beta_max, strategy="newton").converged


def test_it_is_the_cheaper_network_of_low_rank():
    """Between the Frobenius norm and the sum over outputs of column norms."""
    Z = np.random.default_rng(0).normal(size=(4, 3, 5))
    assert Nuclear().value(Z) <= TokenOutput().value(Z)
    rank_one = Z[:, :, :1] * Z[:, :1, :]
    norms = np.sqrt(np.sum(rank_one**2, axis=(1, 2)))
    assert Nuclear().value(rank_one) == pytest.approx(norms.sum())
