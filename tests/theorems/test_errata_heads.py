"""Erratum 3: how many heads the equivalences need, and which rows have one."""

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group
from tests.theorems.data import EXACT, fewer_heads, generic, lowest

from convexformer.nn import SimplexAttention, to_network
from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.problem.heads import Heads, decay, head_count, recover_heads
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
    """Read to the letter, Proposition 1 maps row j to head j; it is the j-th nonzero row."""
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


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize(("N", "n"), [(4, 9), (9, 4), (6, 6)])
def test_erratum_3_at_most_min_n_N_heads_per_output(N, n, c):
    """Whatever the coefficients: the same scores take no more heads than that, nor more penalty."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(N, n, 3)), rng.normal(size=(n, 3, c))
    few, penalty = fewer_heads(X, Z), TokenOutput()
    np.testing.assert_allclose(np.tensordot(X, few, axes=2), np.tensordot(X, Z, axes=2), atol=1e-12)
    assert head_count(Z, "token-output") == n * c
    assert head_count(few, "token-output") <= min(n, N) * c
    assert penalty.value(few) <= penalty.value(Z) * (1 + 1e-12)
    if n > N:
        assert penalty.value(few) < penalty.value(Z)


def test_erratum_3_head_count_is_not_necessary():
    """Eight rotated copies of one token: an optimum uses them all, and one head reaches it."""
    x, Y = generic("squared", 1, shape=(16, 1, 3))
    beta = 2.0
    z = optimum(x, Y, beta).Z[0]  # (d, 1)
    turns = ortho_group.rvs(3, size=8, random_state=0)
    X = np.einsum("id,kde->ike", x[:, 0], turns)  # token k is the token turned
    Z = np.einsum("kde,dc->kec", turns, z) / 8
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y, intercept=False)
    certificate = problem.certificate(Z, np.zeros(1), beta)
    assert certificate.relative_gap <= 1e-9  # an optimum of the convex program
    assert head_count(Z, "token-output") == 8
    few = fewer_heads(X, Z)
    network = to_network(few, None, "token-output")
    assert len(network.theta) == 1
    objective = network.objective(torch.tensor(X), torch.tensor(Y), "squared", beta).item()
    assert objective == pytest.approx(certificate.primal, rel=1e-9)


def test_erratum_3_the_bound_of_one_output_does_not_serve_several():
    """Two samples, one token, four outputs: N + 1 = 3 heads are too few, min(n, N) c = 4 enough."""
    X = np.eye(2)[:, None]  # (N, n, d) = (2, 1, 2): scores are Z itself
    angles = np.pi * np.arange(4) / 4
    Y = np.stack([2 * np.cos(angles), 2 * np.sin(angles)])  # four directions
    beta = 1.0
    convex = optimum(X, Y, beta)
    assert convex.certificate.primal == pytest.approx(6.0)  # columns shrink from 2 to 1
    assert head_count(fewer_heads(X, convex.Z), "token-output") == 4
    three, four = (
        lowest(lambda h=h: SimplexAttention(1, 2, 4, h, **EXACT), X, Y, "squared", beta).min()
        for h in (3, 4)
    )
    assert four == pytest.approx(6.0, rel=1e-4)
    assert three == pytest.approx(6.2563, abs=1e-3)  # 4.3 % above


def test_erratum_3_the_mapping_is_not_one_to_one():
    """A head split into two of its direction: other weights, the same scores and decay."""
    one = recover_heads(np.ones((1, 2, 1)), "token-output")
    share = np.sqrt([0.3, 0.7])[:, None]
    two = Heads("token-output", 1, np.array([0, 0]), share * one.values, share * one.outputs)
    np.testing.assert_allclose(two.coefficients(), one.coefficients(), rtol=1e-15)
    assert decay(two) == pytest.approx(decay(one), rel=1e-15)
