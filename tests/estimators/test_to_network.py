"""`to_network`: the network an estimator stands for has its scores and its objective."""

import numpy as np
import pytest
import torch

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerRegressor,
)
from convexformer.nn import GatedFCN, SimplexAttention

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 5, 3))
SCORES = X[:, 1, :3] + 0.5 * rng.normal(size=(60, 3))
PENALTIES = ("token-output", "token", "nuclear")


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("gated", [False, True])
def test_squared_loss(penalty, gated):
    kind = ConvexTransformerRegressor if gated else ConvexAttentionRegressor
    options = {"n_gates": 4, "random_state": 0} if gated else {}
    weights = [1.0, 0.5, 2.0, 1.0, 1.0]
    model = kind(0.2, penalty=penalty, token_weights=weights, **options).fit(X, SCORES)
    network = model.to_network()
    assert isinstance(network, GatedFCN if gated else SimplexAttention)
    assert not network.is_convex
    tensor, target = torch.tensor(X), torch.tensor(SCORES)
    np.testing.assert_allclose(network(tensor).detach(), model.predict(X), atol=1e-8)
    objective = network.objective(tensor, target, "squared", model.beta_).item()
    assert objective == pytest.approx(model.certificate_.primal, rel=1e-10)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("gates", [{"gate_weight": 1.7}, {"open_gate": False}], ids=str)
def test_weight_decay_of_gated_heads(penalty, gates):
    weights = [1.0, 0.5, 2.0, 1.0, 1.0]
    model = ConvexTransformerRegressor(
        0.02, penalty=penalty, token_weights=weights, n_gates=4, random_state=0, **gates
    ).fit(X, SCORES)
    assert np.any(model.gate_norms_[1:])
    network = model.to_network()
    tensor, target = torch.tensor(X), torch.tensor(SCORES)
    np.testing.assert_allclose(network(tensor).detach(), model.predict(X), atol=1e-8)
    objective = network.objective(tensor, target, "squared", model.beta_).item()
    assert objective == pytest.approx(model.certificate_.primal, rel=1e-10)


@pytest.mark.parametrize("gated", [False, True])
def test_classes(gated):
    kind = ConvexTransformerClassifier if gated else ConvexAttentionClassifier
    options = {"n_gates": 4, "random_state": 0} if gated else {}
    for labels in (SCORES[:, 0] > 0, np.argmax(SCORES, axis=1)):
        model = kind(0.2, **options).fit(X, labels)
        scores = model.to_network()(torch.tensor(X)).detach().numpy()
        expected = model.decision_function(X)
        np.testing.assert_allclose(scores.reshape(expected.shape), expected, atol=1e-8)
