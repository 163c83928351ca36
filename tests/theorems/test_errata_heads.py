"""Erratum 3: the equivalences need a head for every nonzero block, and only for those."""

import numpy as np
import pytest
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import SimplexAttention
from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.problem.heads import head_count, recover_heads
from convexformer.solvers import solve


def optimum(X, Y, beta):
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y, intercept=False)
    return solve(problem, beta, tol=1e-10)


def test_erratum_3_one_head_is_not_enough():
    X, Y = generic("squared", 1, shape=(16, 2, 2))
    beta = 2.0
    convex = optimum(X, Y, beta)
    assert head_count(convex.Z, "token-output") == 2
    # With one head and two tokens, attention is one number t: scan it, the rest is convex.
    mixes = [t * X[:, :1] + (1 - t) * X[:, 1:] for t in np.linspace(0, 1, 401)]
    single = min(optimum(mix, Y, beta).certificate.primal for mix in mixes)
    runs = {
        h: lowest(lambda h=h: SimplexAttention(2, 2, 1, h, **EXACT), X, Y, "squared", beta).min()
        for h in (1, 2)
    }
    assert runs[1] == pytest.approx(single, rel=1e-4)
    assert runs[2] == pytest.approx(convex.certificate.primal, rel=1e-6)
    assert convex.certificate.primal == pytest.approx(5.7162, abs=1e-4)
    assert single == pytest.approx(6.1358, abs=1e-4)
    assert single / convex.certificate.primal - 1 == pytest.approx(0.073, abs=1e-3)


def test_erratum_3_zero_rows_have_no_head():
    """Proposition 1 maps row j to head j for j up to h, as if the nonzero rows came first."""
    Z = np.zeros((4, 2, 1))
    Z[1, :, 0], Z[3, :, 0] = [3.0, 4.0], [0.0, 1.0]
    h = head_count(Z, "token-output")
    assert h == 2
    with np.errstate(invalid="ignore"):
        norms = np.linalg.norm(Z[:h, :, 0], axis=1)
        printed = Z[:h, :, 0] / np.sqrt(norms)[:, None]
    assert np.all(np.isnan(printed[0]))  # 0 / 0, and row 3 has no head at all
    heads = recover_heads(Z, "token-output")
    np.testing.assert_array_equal(heads.groups, [1, 3])
    np.testing.assert_allclose(heads.coefficients(), Z, rtol=1e-15)
