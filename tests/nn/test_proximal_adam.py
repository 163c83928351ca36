"""The proximal step against other ways to find it, and the optimiser against the convex solver."""

import copy

import cvxpy as cp
import numpy as np
import pytest
import torch

from convexformer.nn import (
    GatedLayer,
    GatedTransformer,
    GatedTransformerConfig,
    ProximalAdam,
    prox_group_norm,
    proximal_adam,
)
from convexformer.problem import GatedDesign, Problem, Squared, Token, TokenDesign, TokenOutput
from convexformer.solvers import solve

F64 = torch.float64


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def spread(shape, low, high):
    """Numbers of all sizes between 10^low and 10^high."""
    return 10 ** (low + (high - low) * torch.rand(shape, dtype=F64))


# The proximal operator --------------------------------------------------------------------------


def test_equal_metric_gives_block_soft_thresholding():
    V = torch.randn(50, 4, 3, dtype=F64)
    Z = prox_group_norm(V, torch.full_like(V, 2.5), 8.0, axes=(1, 2))
    norm = torch.linalg.vector_norm(V, dim=(1, 2), keepdim=True)
    expected = V * (1 - 8.0 / (2.5 * norm)).clamp(min=0)
    torch.testing.assert_close(Z, expected, rtol=1e-13, atol=1e-15)
    zero = (Z == 0).all((1, 2))
    assert 0 < zero.sum() < 50 and torch.equal(zero, (norm <= 3.2).flatten())


def test_it_is_the_minimiser_that_cvxpy_finds():
    V, D, strength = torch.randn(6, 5, dtype=F64), spread((6, 5), -1, 1), 8.0
    Z = prox_group_norm(V, D, strength, axes=(1,))
    x = cp.Variable((6, 5))
    near = 0.5 * cp.sum(cp.multiply(D.numpy(), cp.square(x - V.numpy())))
    cp.Problem(cp.Minimize(near + strength * cp.sum(cp.norm(x, 2, axis=1)))).solve(
        solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11
    )
    assert 0 < (Z == 0).all(1).sum() < 6
    np.testing.assert_allclose(Z.numpy(), x.value, atol=1e-5)


def test_optimality_in_metrics_of_any_shape(monkeypatch):
    monkeypatch.setattr(proximal_adam, "MAX_NEWTON", 30)  # and in few iterations
    V, D = spread((500, 8), -6, 3) * torch.randn(500, 8, dtype=F64).sign(), spread((500, 8), -8, 4)
    Z = prox_group_norm(V, D, 1.0, (1,))
    size = torch.linalg.vector_norm(D * V, dim=1)
    zero = (Z == 0).all(1)
    assert torch.equal(zero, size <= 1.0) and 0 < zero.sum() < 500
    Z, V, D, size = Z[~zero], V[~zero], D[~zero], size[~zero]
    residual = D * (Z - V) + Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    assert (torch.linalg.vector_norm(residual, dim=1) <= 1e-11 * size).all()


def test_groups_may_lie_on_any_axes():
    V, D = torch.randn(3, 4, 5, 2, dtype=F64), spread((3, 4, 5, 2), -1, 1)
    Z = prox_group_norm(V, D, 2.0, axes=(0, 2))
    for j in range(4):
        for k in range(2):
            alone = prox_group_norm(V[None, :, j, :, k], D[None, :, j, :, k], 2.0, axes=(1, 2))
            torch.testing.assert_close(Z[:, j, :, k], alone[0], rtol=1e-12, atol=1e-14)


# The optimiser ----------------------------------------------------------------------------------


@pytest.mark.parametrize("amsgrad", [False, True])
def test_without_penalty_it_is_adamw(amsgrad):
    options = {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.3, "amsgrad": amsgrad}
    ours = [torch.nn.Parameter(torch.randn(4, 3, dtype=F64)) for _ in range(2)]
    theirs = copy.deepcopy(ours)
    optimisers = ProximalAdam(ours, **options), torch.optim.AdamW(theirs, **options)
    for step in range(30):
        for parameters, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            loss = sum((p - step % 7).pow(4).sum() for p in parameters[: 1 + step % 2])
            loss.backward()
            optimiser.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def convex_layer(penalty, fraction):
    """A layer, its data, and the certified optimum ``(h, n, d, 1, c)`` of its training."""
    N, n, d, c, h = 150, 6, 4, 2, 8
    X = torch.randn(N, n, d, dtype=F64)
    Y = X[:, 1, :c] * (X[:, 2, :1] > 0) + X[:, 4, :c] + 0.3 * torch.randn(N, c, dtype=F64)
    layer = GatedLayer(n, d, c, h, outputs="vector", penalty=penalty, dtype=F64)
    design = GatedDesign(TokenDesign(X.numpy()), layer.gates(X)[:, :, 0].numpy())
    kind = Token() if penalty == "token" else TokenOutput()
    problem = Problem(design, Squared(), kind, Y.numpy(), intercept=False)
    beta = fraction * problem.beta_max
    return layer, X, Y, beta, solve(problem, beta, tol=1e-10)


def train(layer, X, Y, optimiser, steps):
    for _ in range(steps):
        optimiser.zero_grad()
        layer.objective(X, Y).backward()  # the loss without its penalty
        optimiser.step()


@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize("fraction", [0.3, 0.05])
def test_it_reaches_the_certified_optimum_and_its_zeros(penalty, fraction):
    layer, X, Y, beta, solution = convex_layer(penalty, fraction)
    options = {"lr": 0.05, "amsgrad": True, "beta": beta, "group_axes": layer.group_axes}
    train(layer, X, Y, ProximalAdam([layer.Z], **options), steps=400)
    reached = layer.objective(X, Y, beta=beta).item()
    assert solution.certificate.relative_gap <= 1e-10
    assert reached == pytest.approx(solution.certificate.primal, rel=1e-6)
    Z = torch.tensor(solution.Z).reshape(layer.Z.shape)
    zero = torch.linalg.vector_norm(Z, dim=layer.group_axes) == 0
    assert torch.equal(layer.group_norms() == 0, zero)
    assert 0.1 < zero.double().mean() < 0.95


def test_weak_penalties_need_amsgrad():
    """Gradients nearly vanish at the optimum; a metric that forgets then makes long steps."""
    layer, X, Y, beta, solution = convex_layer("token", 0.001)
    start, worst = layer.Z.detach().clone(), {}
    for amsgrad in (False, True):
        with torch.no_grad():
            layer.Z.copy_(start)
        options = {"lr": 0.3, "betas": (0.9, 0.9), "amsgrad": amsgrad, "beta": beta}
        optimiser = ProximalAdam([layer.Z], group_axes=layer.group_axes, **options)
        train(layer, X, Y, optimiser, steps=400)
        heights = []
        for _ in range(100):
            train(layer, X, Y, optimiser, steps=1)
            heights.append(layer.objective(X, Y, beta=beta).item())
        worst[amsgrad] = max(heights) / solution.certificate.primal - 1
    assert worst[True] < 0.1 and worst[False] > 1.0


def test_the_optimum_does_not_move():
    layer, X, Y, beta, solution = convex_layer("token", 0.1)
    Z = torch.tensor(solution.Z).reshape(layer.Z.shape)
    with torch.no_grad():
        layer.Z.copy_(Z)
    options = {"lr": 0.05, "beta": beta, "group_axes": layer.group_axes}
    train(layer, X, Y, ProximalAdam([layer.Z], **options), steps=5)
    torch.testing.assert_close(layer.Z.detach(), Z, rtol=1e-4, atol=1e-6)


def test_its_state_goes_on_where_it_was():
    layer, X, Y, beta, _ = convex_layer("token", 0.1)
    options = {"lr": 0.05, "amsgrad": True, "beta": beta, "group_axes": layer.group_axes}
    optimiser = ProximalAdam([layer.Z], **options)
    train(layer, X, Y, optimiser, steps=10)
    other = copy.deepcopy(layer)
    resumed = ProximalAdam([other.Z], lr=9.0)  # its options come with the state
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    train(layer, X, Y, optimiser, steps=10)
    train(other, X, Y, resumed, steps=10)
    assert torch.equal(layer.Z, other.Z) and (layer.group_norms() == 0).any()


def test_groups_of_a_network():
    network = GatedTransformer(
        GatedTransformerConfig(n_tokens=4, n_outputs=3, vocabulary=7, dim=5, n_gates=6, n_layers=2)
    )
    optimiser = ProximalAdam(network.parameter_groups(beta=100.0), lr=0.1, weight_decay=1.0)
    penalised, others = optimiser.param_groups
    assert penalised["beta"] == 100.0 and others["beta"] == 0.0
    assert len(penalised["params"]) == 2 and len(others["params"]) == 3
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(
            network(torch.randint(7, (16, 4))), torch.randint(3, (16,))
        ).backward()
        optimiser.step()
    assert all((layer.Z == 0).all() for layer in network.gated_layers)
    assert (network.embedding.weight != 0).all()


def test_a_closure_is_evaluated():
    Z = torch.nn.Parameter(torch.ones(3, 2))
    optimiser = ProximalAdam([Z], beta=0.1, group_axes=(1,))

    def closure():
        optimiser.zero_grad()
        loss = Z.square().sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 6.0 and (Z < 1).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0.1}, "group_axes"),
        ({"beta": -0.1}, "beta must not be negative"),
        ({"lr": -1.0}, "lr must not be negative"),
        ({"betas": (0.9, 1.0)}, "betas must lie in"),
        ({"eps": 0.0}, "eps must be positive"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        ProximalAdam([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_what_is_not_a_number_is_not_hidden_as_a_zero():
    Z = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = ProximalAdam([Z], lr=0.1, beta=0.1, group_axes=(1,))
    Z.grad = torch.tensor([[0.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0]])
    optimizer.step()
    assert Z.isfinite().all(1).tolist() == [True, False, False]


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    optimiser = ProximalAdam(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="dense gradients"):
        optimiser.step()


@pytest.mark.parametrize("beta", [0.1, 1e25])
@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_groups_stay_numbers_without_a_step_and_vanish_under_a_huge_penalty(lr, beta):
    Z = torch.nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    optimizer = ProximalAdam([Z], lr=lr, beta=beta, group_axes=(1,))
    Z.grad = torch.zeros_like(Z)
    optimizer.step()
    assert torch.isfinite(Z).all() and torch.equal(Z[0], torch.zeros(2))
    if lr == 0.0:
        assert torch.equal(Z, torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    elif beta > 1:
        assert torch.equal(Z, torch.zeros(2, 2))
