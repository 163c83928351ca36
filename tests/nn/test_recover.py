"""Networks of fitted estimators, and what can go wrong in asking for one."""

import numpy as np
import pytest
import torch

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexTransformerClassifier,
)
from convexformer.nn import (
    GatedFCN,
    load_network,
    network_of,
    to_network,
    to_sequence_network,
)
from convexformer.problem import Gates


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4, 3))
    y = 2 * X[:, 1, 0] - X[:, 2, 1] + 0.1 * rng.normal(size=60)
    return X, y


def test_regressor(data):
    X, y = data
    model = ConvexAttentionRegressor(token_weights=[1, 2, 1, 0.5], tol=1e-9).fit(X, y)
    network = network_of(model)
    F = network(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(F[:, 0], model.predict(X), rtol=0, atol=1e-8)
    P = network.objective(torch.tensor(X), torch.tensor(y[:, None]), "squared", model.beta_)
    assert P.item() == pytest.approx(model.certificate_.primal, rel=1e-10)
    assert not network.is_convex


@pytest.mark.parametrize("penalty", ["token-output", "token"])
def test_classifier(data, penalty):
    X, y = data
    kinds = np.digitize(y, [-1.0, 1.0])
    model = ConvexAttentionClassifier(penalty=penalty, tol=1e-9).fit(X, kinds)
    network = network_of(model)
    F = network(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(F, model.decision_function(X), rtol=0, atol=1e-8)
    Y = torch.tensor(np.eye(3)[kinds])
    P = network.objective(torch.tensor(X), Y, "softmax", model.beta_)
    assert P.item() == pytest.approx(model.certificate_.primal, rel=1e-10)


def test_gated_classifier(data, tmp_path):
    X, y = data
    model = ConvexTransformerClassifier(
        n_gates=6, token_weights=[1, 2, 1, 0.5], random_state=0, tol=1e-9
    ).fit(X, y > 0)
    network = network_of(model)
    assert isinstance(network, GatedFCN)
    network.save(tmp_path / "network.safetensors")
    for either in (network, load_network(tmp_path / "network.safetensors")):
        F = either(torch.tensor(X)).detach().numpy()
        np.testing.assert_allclose(F[:, 0], model.decision_function(X), rtol=0, atol=1e-8)
    Y = torch.tensor(np.where(y > 0, 1.0, -1.0)[:, None])
    P = network.objective(torch.tensor(X), Y, "logistic", model.beta_)
    assert P.item() == pytest.approx(model.certificate_.primal, rel=1e-10)


def test_a_recovered_network_can_be_trained_on(data):
    """From too strong a penalty, a few steps lower the objective of a weaker one."""
    X, y = (torch.tensor(array) for array in data)
    network = network_of(ConvexAttentionRegressor(beta=0.5).fit(*data))
    before = network.objective(X, y[:, None], "squared", 0.1)
    before.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 1e-4 * parameter.grad
    assert network.objective(X, y[:, None], "squared", 0.1) < before


def test_without_intercept():
    network = to_network(np.ones((2, 3, 1)))
    assert network.intercept is None
    assert to_sequence_network(*np.ones((2, 1, 1, 3, 3))).intercept is None


def test_sequence_intercept_is_added():
    network = to_sequence_network(*np.ones((2, 1, 2, 3, 3)), intercept=[1.0, 2.0])
    F = network(torch.zeros(4, 3, 1, dtype=torch.float64))
    assert torch.equal(F, torch.tensor([1.0, 2.0], dtype=torch.float64).expand(4, 3, 2))


def test_mistakes_are_told():
    gates = Gates(np.zeros((2, 3, 4)), np.zeros(2))
    with pytest.raises(ValueError, match="6 groups of 5 channels, but 2 gates over 3 tokens of 4"):
        to_network(np.zeros((6, 5, 1)), gates=gates)
    with pytest.raises(RuntimeError, match=r"mismatch for intercept.*\[2\].*\[1\]"):
        to_network(np.zeros((6, 5, 1)), intercept=[1.0, 2.0])
