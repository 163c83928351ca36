"""Erratum 6: the matrix-target theorem lacks the condition that row sums be equal.

Eight samples of 3 x 2, one output: every position is to read the first channel of its right
neighbour, the first twice, the second once, the third not at all, at beta = 2.6797 (0.2 beta_max).

| program, or network | objective |
|---|---|
| as printed: no condition on row sums (substochastic attention) | 4.8169 |
| with equal row sums (stochastic attention) | 6.2495 |
| best of 200 trained networks, row-stochastic attention | 6.2495, the same to 1e-5 |
| best of 200 trained networks, row-substochastic attention | 4.8192, 5e-4 above its program |
| largest row norm without the condition, ``max_r ||Z[r, :]||_1`` | 4.7959 |

The printed value is 22.9 % below what any network of the theorem reaches; its solution has a head
whose attention rows sum to 1, 0.744 and 0.009.
"""

import cvxpy as cp
import numpy as np
import pytest
import torch
from tests.theorems.data import EXACT, lowest

from convexformer.nn import SequenceAttention, to_sequence_network
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers.matrix_targets import solve_sequence

HEADS = 4  # two per input channel suffice


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 3, 2))
    strength = np.array([2.0, 1.0, 0.0])[:, None]
    Y = strength * np.roll(X[:, :, :1], -1, axis=1) + 0.1 * rng.normal(size=(8, 3, 1))
    return X, Y, 0.2 * SequenceProblem(X, Y, intercept=False).beta_max


def optimum(data, attention):
    X, Y, beta = data
    return solve_sequence(SequenceProblem(X, Y, attention, intercept=False), beta, tol=1e-10)


def trained(data, attention):
    X, Y, beta = data

    def make():
        return SequenceAttention(3, 2, 1, HEADS, attention=attention, **EXACT)

    return lowest(make, X, Y, "squared", beta).min()


def test_erratum_6_row_sums_must_be_equal(data):
    """The printed program is far below every network; with equal row sums it is the optimum."""
    printed, exact = optimum(data, "substochastic"), optimum(data, "stochastic")
    assert data[2] == pytest.approx(2.6797, abs=1e-4)
    assert printed.certificate.primal == pytest.approx(4.8169, abs=1e-4)
    assert exact.certificate.primal == pytest.approx(6.2495, abs=1e-4)
    assert printed.certificate.primal / exact.certificate.primal == pytest.approx(0.771, abs=1e-3)
    network = trained(data, "stochastic")
    assert network >= exact.certificate.dual * (1 - 1e-12)
    assert network == pytest.approx(exact.certificate.primal, rel=1e-5)


def test_erratum_6_the_printed_program_is_exact_for_substochastic_attention(data):
    """Its solution is a network whose attention rows sum to less than one."""
    X, Y, beta = data
    problem = SequenceProblem(X, Y, "substochastic", intercept=False)
    solution = optimum(data, "substochastic")
    parts = problem.parts(solution.Z)
    network = to_sequence_network(parts.A, parts.B, attention="substochastic")
    objective = network.objective(torch.tensor(X), torch.tensor(Y), "squared", beta).item()
    assert objective == pytest.approx(solution.certificate.primal, rel=1e-10)
    rows = network.attention().sum(axis=2).detach().numpy()[0]
    np.testing.assert_allclose(rows, [1.0, 0.744, 0.009], atol=1e-3)
    with pytest.raises(ValueError, match="different sums"):
        to_sequence_network(parts.A, parts.B, attention="stochastic")
    best = trained(data, "substochastic")
    assert best >= solution.certificate.dual * (1 - 1e-12)
    assert best == pytest.approx(solution.certificate.primal, rel=1e-3)


def test_erratum_6_the_largest_row_norm_needs_the_condition_too(data):
    """Dropping it and taking ``max_r ||Z[r, :]||_1`` gives a still lower value."""
    X, Y, beta = data
    Z = [cp.Variable((3, 3)) for _ in range(2)]
    F = sum(X[:, :, j] @ Z[j].T for j in range(2))
    loss = cp.sum_squares(F - Y[:, :, 0]) / 2
    penalty = sum(cp.max(cp.sum(cp.abs(M), axis=1)) for M in Z)
    free = cp.Problem(cp.Minimize(loss + beta * penalty)).solve(solver=cp.CLARABEL)
    equal = [cp.sum(M, axis=1) == cp.sum(M[0]) for M in Z]
    bound = cp.Problem(cp.Minimize(loss + beta * penalty), equal).solve(solver=cp.CLARABEL)
    assert free == pytest.approx(4.7959, abs=1e-4)
    assert bound == pytest.approx(6.2495, abs=1e-4)
