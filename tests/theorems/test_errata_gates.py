"""Erratum 5: the FCN equation sums heads inside the activation; and one head per gate is few."""

import numpy as np
import pytest
import torch
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import GatedFCN
from convexformer.problem import GatedDesign, Gates, Problem, Squared, TokenDesign, TokenOutput
from convexformer.problem.heads import recover_heads
from convexformer.solvers import solve


def test_erratum_5_one_head_per_gate_is_not_enough():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(24, 3, 2))
    gates = Gates(rng.normal(size=(2, 3, 1)) * rng.normal(size=(2, 1, 2)), np.zeros(2))
    design = GatedDesign(TokenDesign(X), gates.open(TokenDesign(X)))
    Y = design.predict(rng.normal(size=(6, 2, 1))) + 0.2 * rng.normal(size=(24, 1))
    problem = Problem(design, Squared(), TokenOutput(), Y, intercept=False)
    beta = 0.1 * problem.beta_max
    solution = solve(problem, beta, tol=1e-10)
    gate_of_head = recover_heads(solution.Z, "token-output").groups // 3
    np.testing.assert_array_equal(np.bincount(gate_of_head), [3, 3])

    def runs(gate_of_head):
        U, t = torch.tensor(gates.directions), torch.tensor(gates.thresholds)
        return lowest(lambda: GatedFCN(U, t, 1, gate_of_head, **EXACT), X, Y, "squared", beta).min()

    one, enough = runs([0, 1]), runs(gate_of_head.tolist())
    assert enough == pytest.approx(solution.certificate.primal, rel=1e-6)
    assert solution.certificate.primal == pytest.approx(8.6531, abs=1e-4)
    assert one == pytest.approx(10.773, abs=1e-2)
    assert one / solution.certificate.primal - 1 == pytest.approx(0.245, abs=2e-3)


def test_erratum_5_a_sum_inside_the_activation_is_another_problem():
    """Printed: ``act(sum_j w1j' X w2j) w3``. Heads can then split, and their decay vanishes."""
    X, Y = generic("squared", 1)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y, intercept=False)
    beta = 0.2 * problem.beta_max
    solution = solve(problem, beta, tol=1e-10)
    Z = solution.Z[:, :, 0]

    def printed(copies):
        """Every token's row in so many equal heads; the gate is open for all samples."""
        scale = copies**0.25 / np.sqrt(np.linalg.norm(Z))
        w1 = np.repeat(np.eye(4), copies, axis=0)
        w2 = np.repeat(scale * Z / copies, copies, axis=0)
        w3 = 1 / scale
        F = np.einsum("hk,ikd,hd->i", w1, X, w2)[:, None] * w3  # all heads, then the activation
        return 0.5 * np.sum((F - Y) ** 2) + 0.5 * beta * (np.sum(w2**2) + w3**2)

    assert solution.certificate.dual == pytest.approx(10.1020, abs=1e-4)
    # Below the bound of every network whose heads have activations of their own.
    assert printed(1) == pytest.approx(8.1444, abs=1e-4)
    assert printed(100) == pytest.approx(3.6974, abs=1e-4)
