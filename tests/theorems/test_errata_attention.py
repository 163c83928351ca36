"""Erratum 7: what simplex attention relaxes, and what it cannot do."""

import numpy as np
import pytest
import torch

from convexformer.nn import SoftmaxAttention
from convexformer.problem import Problem, Softmax, TokenDesign, TokenOutput
from convexformer.solvers import solve


def test_erratum_7_one_matrix_is_not_the_attention_of_many_samples():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(20, 4, 3)))
    network = SoftmaxAttention(3, 3, dtype=torch.float64)
    network.query.data, network.key.data = torch.tensor(rng.normal(size=(2, 1, 3, 3)))
    A = network.attention(X)[:, 0].detach()  # (N, n, n)
    target = A @ X
    # Each sample has its W on the simplex: its own attention.
    assert torch.all(A >= 0) and torch.allclose(A.sum(2), torch.ones(20, 4, dtype=torch.float64))
    # All samples together have none: not even a W without constraints, fitted by least squares.
    rows = X.transpose(1, 2).reshape(-1, 4).numpy()  # (N d, n)
    wanted = target.transpose(1, 2).reshape(-1, 4).numpy()
    W = np.linalg.lstsq(rows, wanted, rcond=None)[0].T
    missed = np.sum((rows @ W.T - wanted) ** 2) / np.sum(wanted**2)
    assert missed == pytest.approx(0.493, abs=1e-3)
    # And no softmax is a vertex, where the optimum of the simplex model is.
    assert torch.all(A > 0)


@pytest.mark.parametrize("p", [5, 7, 11])
def test_erratum_7_attention_alone_learns_nothing_of_modular_division(p):
    """On the table of a / b over the nonzero residues, ``Z = 0`` is optimal for every beta > 0."""
    c, b = np.meshgrid(np.arange(1, p), np.arange(1, p), indexing="ij")
    a = (b * c) % p
    E = np.random.default_rng(0).normal(size=(p, 8))  # any fixed embedding
    X = np.stack([E[a.ravel()], E[b.ravel()]], axis=1)  # (N, 2, 8)
    Y = np.eye(p - 1)[c.ravel() - 1]
    problem = Problem(TokenDesign(X), Softmax(), TokenOutput(), Y)
    scale = np.abs(X).sum()
    assert problem.beta_max <= 1e-15 * scale  # zero, but for rounding
    solution = solve(problem, 1e-6 * scale)
    F = problem.predict(solution.Z, solution.intercept)
    assert not np.any(solution.Z) and np.ptp(F) <= 1e-12  # chance: 1 / (p - 1)
