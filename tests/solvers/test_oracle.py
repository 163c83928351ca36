"""Solutions against CVXPY + Clarabel, for every kind of problem."""

import numpy as np
import pytest
from tests.generated import FRACTIONS, small
from tests.oracle import oracle
from tests.problem.test_problem import IDS, SETTINGS

from convexformer.solvers import solve


def check(raw):
    """The solution has the oracle's objective, is certified, and says the truth about itself."""
    problem = raw.problem()
    for fraction in FRACTIONS:
        beta = fraction * problem.beta_max
        solution = solve(problem, beta, tol=1e-9)
        certificate = solution.certificate
        optimum, _, _ = oracle(raw, beta)
        assert solution.converged
        assert -1e-12 <= certificate.relative_gap <= 1e-9
        assert abs(certificate.primal - optimum) <= 1e-7 * optimum
        assert certificate.dual <= optimum * (1 + 1e-12)
        own = raw.objective(solution.Z, solution.intercept, beta)
        assert certificate.primal == pytest.approx(own, rel=1e-12)
        assert (certificate.beta, certificate.beta_max) == (beta, problem.beta_max)
        assert np.any(solution.Z)


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_objective_is_the_oracles(setting, c):
    check(small(*setting, c=c, seed=2))


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_objective_is_the_oracles_with_weights(setting):
    check(small(*setting, c=2, seed=3, weighted=True))


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_zero_exactly_from_beta_max_on(setting, c):
    problem = small(*setting, c=c, seed=4, weighted=True).problem()
    for factor in (1.0, 1.0001, 10.0):
        solution = solve(problem, factor * problem.beta_max)
        assert not np.any(solution.Z)
        assert solution.converged and abs(solution.certificate.relative_gap) <= 1e-12
    assert np.any(solve(problem, 0.999 * problem.beta_max, tol=1e-9).Z)
