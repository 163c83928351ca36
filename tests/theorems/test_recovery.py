"""Recovery: the network of a convex solution has its objective and its predictions."""

import numpy as np
import pytest
import torch
from tests.generated import small
from tests.raw import LOSSES

from convexformer.nn import GatedFCN, SimplexAttention, to_network, to_sequence_network
from convexformer.problem import PENALTIES, GatedDesign, Gates, Problem, TokenDesign
from convexformer.problem.heads import decay, head_count, recover_heads
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers import solve
from convexformer.solvers.matrix_targets import solve_sequence

NAMES = tuple(PENALTIES)


def draw_gates(raw, n_gates=3, seed=0):
    """An always-open gate and rank-one Gaussian ones, as in the paper."""
    rng = np.random.default_rng(seed)
    _, n, d = raw.X.shape
    U = rng.normal(size=(n_gates, n, 1)) * rng.normal(size=(n_gates, 1, d))
    return Gates(U, np.where(np.arange(n_gates) == 0, -np.inf, 0.0))


def problem_of(raw, gates=None):
    design = TokenDesign(raw.X, raw.mask)
    weights = raw.penalty_weights
    if gates is not None:
        design = GatedDesign(design, gates.open(design))
        weights = None if weights is None else np.tile(weights, len(gates))
    penalty = PENALTIES[raw.penalty](weights)
    return Problem(design, LOSSES[raw.loss], penalty, raw.Y, raw.sample_weight, raw.intercept)


def check(raw, gates=None, fraction=0.1):
    """The network of a solution agrees with it in objective, scores and number of heads."""
    problem = problem_of(raw, gates)
    beta = fraction * problem.beta_max
    tol = 1e-6 if raw.penalty == "nuclear" else 1e-9  # nuclear: by first-order steps only
    solution = solve(problem, beta, tol=tol)
    assert solution.certificate.relative_gap <= tol
    Z, b = solution.Z, solution.intercept
    network = to_network(Z, b, raw.penalty, gates, problem.penalty.weights)
    assert isinstance(network, GatedFCN if gates is not None else SimplexAttention)

    X, Y = torch.tensor(raw.X), torch.tensor(raw.Y)
    mask = None if raw.mask is None else torch.tensor(raw.mask)
    weight = None if raw.sample_weight is None else torch.tensor(raw.sample_weight)
    P = network.objective(X, Y, raw.loss, beta, mask=mask, sample_weight=weight).item()
    assert pytest.approx(solution.certificate.primal, rel=1e-10) == P
    F = network(X, mask).detach().numpy()
    np.testing.assert_allclose(F, problem.predict(Z, b), rtol=0, atol=1e-8)

    heads = recover_heads(Z, raw.penalty, problem.penalty.weights)
    assert len(network.theta) == len(heads) == head_count(Z, raw.penalty)
    assert decay(heads) / 2 == pytest.approx(problem.penalty.value(Z), rel=1e-12)
    assert network.decay().item() == pytest.approx(decay(heads), rel=1e-14)
    return Z, network


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", NAMES)
def test_attention(penalty, loss, intercept):
    Z, network = check(small(loss, penalty, intercept, c=3))
    at = network.attention().argmax(1).numpy()
    np.testing.assert_array_equal(np.unique(at), np.flatnonzero(np.any(Z, axis=(1, 2))))
    assert torch.all(network.attention().amax(1) == 1)  # every head sits at a vertex


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", NAMES)
def test_attention_with_padding_and_weights(penalty, loss):
    check(small(loss, penalty, masked=True, weighted=True, c=3))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", NAMES)
def test_gated(penalty, loss):
    raw = small(loss, penalty, c=2)
    _, network = check(raw, draw_gates(raw), fraction=0.2)
    shared = np.bincount(network.gate_of_head.numpy())
    assert shared.max() > 1  # several heads share a gate


def test_gated_with_padding_and_weights():
    raw = small("squared", masked=True, weighted=True, c=2)
    check(raw, draw_gates(raw), fraction=0.2)


def test_heads_never_exceed_the_bounds_of_the_theorems():
    for penalty in NAMES:
        _, network = check(small("squared", penalty, c=3), fraction=0.01)
        assert len(network.theta) <= (5 if penalty == "token" else 5 * 3)


@pytest.mark.parametrize("penalty", NAMES)
def test_the_model_without_tokens_is_a_network_without_heads(penalty):
    Z, network = check(small("squared", penalty, c=2), fraction=1.01)
    assert not np.any(Z) and len(network.theta) == 0


# Matrix targets -------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("attention", ["stochastic", "substochastic"])
def test_matrix_targets(attention, intercept):
    rng = np.random.default_rng(0)
    X, mask, weight = rng.normal(size=(12, 4, 2)), rng.random((12, 4)) < 0.8, rng.random(12)
    W = rng.dirichlet(np.ones(4), size=4)
    Y = W @ X @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(12, 4, 3)) + 1.0
    X[~mask], Y[~mask] = np.nan, np.nan
    problem = SequenceProblem(X, Y, attention, weight, mask, intercept)
    beta = 0.1 * problem.beta_max
    solution = solve_sequence(problem, beta, tol=1e-9)
    assert solution.certificate.relative_gap <= 1e-9
    Z, b = solution.Z, solution.intercept
    parts = problem.parts(Z)

    network = to_sequence_network(parts.A, parts.B, b if intercept else None, attention)
    tensors = [torch.tensor(array) for array in (X, Y, mask, weight)]
    P = network.objective(
        *tensors[:2], "squared", beta, mask=tensors[2], sample_weight=tensors[3]
    ).item()
    assert pytest.approx(solution.certificate.primal, rel=1e-10) == P
    F = network(tensors[0], tensors[2]).detach().numpy()
    np.testing.assert_allclose(F, problem.predict(Z, b), rtol=0, atol=1e-8)
    assert len(network.theta) <= 2 * 2 * 3  # two heads per channel and output
    sums = network.attention().sum(2)
    assert torch.all(sums <= 1 + 1e-12) and torch.all(network.attention() >= 0)
    assert (attention == "stochastic") == bool(torch.all(sums >= 1 - 1e-12))
