"""What attention that is the same for all samples cannot learn (docs/theory.md)."""

import numpy as np
import pytest

from convexformer.problem import Problem, Softmax, TokenDesign, TokenOutput
from convexformer.solvers import solve


@pytest.mark.parametrize("p", [5, 7, 11])
def test_attention_alone_learns_nothing_of_modular_division(p):
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
