"""The remark after the paper's matrix theorem: heads ``W1 X w2 w3'`` have the same program.

Their decay is ``||w2||_1^2 + ||w3||_1^2``. The entries of ``w2 w3'`` have the 1-norm
``||w2||_1 ||w3||_1``, so that the unit ball is spanned by the same ``+-e_j e_l'`` as that of full
matrices W2: the remark holds, with the condition on row sums of erratum 6.
"""

import numpy as np
import pytest
import torch
from tests.theorems.data import EXACT, lowest
from torch import nn

from convexformer.nn import SequenceAttention
from convexformer.problem.heads import recover_sequence_heads
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers.matrix_targets import solve_sequence


class VectorHeads(SequenceAttention):
    """``sum_j W1j X w2j w3j'`` with vectors w2 (d,) and w3 (c,)."""

    def __init__(self, n, d, c, heads):
        super().__init__(n, d, c, heads, **EXACT)
        self.values = nn.Parameter(torch.randn(heads, d, dtype=torch.float64) / d**0.5)
        self.outputs = nn.Parameter(torch.randn(heads, c, dtype=torch.float64) / heads**0.5)

    def forward(self, X, mask=None):
        read = torch.einsum("hrk,ikd,hd->irh", self.attention(), X, self.values)
        return read @ self.outputs

    def decay(self):
        return sum(W.abs().sum(1).square().sum() for W in (self.values, self.outputs))


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    X, beta = rng.normal(size=(6, 3, 2)), 1.0
    W = rng.dirichlet(np.ones(3), size=3)
    Y = W @ X @ rng.normal(size=(2, 2)) + 0.1 * rng.normal(size=(6, 3, 2))
    problem = SequenceProblem(X, Y, "stochastic", intercept=False)
    return X, Y, beta, problem, solve_sequence(problem, beta, tol=1e-10)


def test_heads_of_the_convex_solution_have_its_objective(case):
    X, Y, beta, problem, solution = case
    parts = problem.parts(solution.Z)
    heads = recover_sequence_heads(parts.A, parts.B)
    network = VectorHeads(3, 2, 2, len(heads))
    channel, target = np.eye(2)[heads.channels], np.eye(2)[heads.targets]
    with torch.no_grad():
        network.theta.copy_(torch.tensor(heads.attention))
        network.values.copy_(torch.tensor(np.abs(heads.outputs)[:, None] * channel))
        network.outputs.copy_(torch.tensor(heads.outputs[:, None] * target))
    objective = network.objective(torch.tensor(X), torch.tensor(Y), "squared", beta).item()
    assert objective == pytest.approx(solution.certificate.primal, rel=1e-10)


def test_no_training_run_gets_below(case):
    X, Y, beta, _, solution = case
    runs = lowest(lambda: VectorHeads(3, 2, 2, 8), X, Y, "squared", beta)
    assert runs.min() >= solution.certificate.dual * (1 - 1e-12)
    assert runs.min() <= solution.certificate.primal * (1 + 1e-3)
