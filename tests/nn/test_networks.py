"""Every network against its formula written in NumPy."""

import numpy as np
import pytest
import torch
from experiments.layers import ConvexLayer
from scipy.special import softmax
from tests.raw import LOSSES, Raw

from convexformer.nn import (
    GatedFCN,
    SequenceAttention,
    SimplexAttention,
    SoftmaxAttention,
    load_network,
    project_simplex,
    total_loss,
)
from convexformer.problem import Huber, Loss

N, n, d, c, h = 7, 5, 3, 2, 4
PENALTIES = ("token-output", "token", "nuclear")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(N, n, d))


@pytest.fixture
def mask():
    mask = np.random.default_rng(1).random((N, n)) < 0.6
    mask[0] = False  # a sample that is all padding
    return mask


def gates(g=3):
    thresholds = torch.tensor([-torch.inf, 0.0, 0.5], dtype=torch.float64)[:g]
    return torch.randn(g, n, d, dtype=torch.float64), thresholds


def networks():
    """One of each, in float64, with random weights everywhere."""
    U, t = gates()
    double = {"dtype": torch.float64}
    every = [
        SoftmaxAttention(d, c, h, **double),
        SoftmaxAttention(d, c, h, head_dim=2, scaled=True, readout="first", **double),
        SequenceAttention(n, d, c, h, intercept=True, **double),
        SequenceAttention(n, d, c, h, attention="substochastic", **double),
        ConvexLayer(n, d, c, penalty="nuclear", **double),
        ConvexLayer(n, d, c, intercept=True, **double),
    ]
    for penalty in PENALTIES:
        weights = torch.linspace(0.5, 2.0, 3 * n, dtype=torch.float64)
        options = {"penalty": penalty, "intercept": True, "parametrization": "projection"}
        every.append(SimplexAttention(n, d, c, h, token_weights=weights[:n], **options, **double))
        options |= {"token_weights": weights.reshape(3, n)}
        every.append(GatedFCN(U, t, c, [0, 1, 1, 2], **options, **double))
    for network in every:
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter)
    return every


def numbers(tensor):
    return tensor.detach().numpy()


# Attention ------------------------------------------------------------------------------------


def literal_softmax(network, X, scaled=False):
    Wq, Wk, Wv, Wo = (
        numbers(W) for W in (network.query, network.key, network.value, network.output)
    )
    Y = np.zeros((len(X), n, Wo.shape[2]))
    for i, Xi in enumerate(X):
        for j in range(len(Wq)):
            scores = Xi @ Wq[j] @ Wk[j].T @ Xi.T
            scores /= np.sqrt(Wq.shape[2]) if scaled else 1.0
            Y[i] += softmax(scores, axis=1) @ Xi @ Wv[j] @ Wo[j]
    return Y


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("head_dim", [None, 2])
def test_softmax_attention_is_the_papers_equation(X, scaled, head_dim):
    network = SoftmaxAttention(d, c, h, head_dim=head_dim, scaled=scaled, dtype=torch.float64)
    expected = literal_softmax(network, X, scaled)
    np.testing.assert_allclose(numbers(network(torch.tensor(X))), expected, rtol=1e-12)
    network.config["readout"] = "first"
    np.testing.assert_allclose(numbers(network(torch.tensor(X))), expected[:, 0], rtol=1e-12)


def test_attention_maps_leave_padding_out(X, mask):
    network = SoftmaxAttention(d, c, h, dtype=torch.float64)
    maps = numbers(network.attention(torch.tensor(X), torch.tensor(mask)))
    np.testing.assert_allclose(maps.sum(axis=3), 1.0)
    assert np.all(maps[1:].swapaxes(1, 3)[~mask[1:]] == 0)


# Simplex --------------------------------------------------------------------------------------


def test_projection_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(0)
    theta = torch.tensor(3 * rng.normal(size=(200, n)))
    w = project_simplex(theta)
    np.testing.assert_allclose(w.sum(1), 1.0, rtol=1e-14)
    assert torch.all(w >= 0) and torch.any(w == 0)
    # nearest: <theta - w, v - w> <= 0 for every vertex v
    inner = ((theta - w)[:, None] * (torch.eye(n, dtype=torch.float64) - w[:, None])).sum(2)
    assert inner.max() <= 1e-14


def test_projection_keeps_what_is_on_the_simplex():
    inside = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    np.testing.assert_array_equal(project_simplex(inside)[0], inside[0])
    np.testing.assert_allclose(project_simplex(inside), inside, rtol=1e-15)


def test_projection_differentiates():
    theta = torch.randn(4, n, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(project_simplex, theta)


@pytest.mark.parametrize("parametrization", ["softmax", "projection"])
def test_attention_rows_are_on_the_simplex(parametrization):
    options = {"parametrization": parametrization, "dtype": torch.float64}
    w1 = SimplexAttention(n, d, c, h, **options).attention()
    W1 = SequenceAttention(n, d, c, h, **options).attention()
    sub = SequenceAttention(n, d, c, h, attention="substochastic", **options).attention()
    assert w1.shape == (h, n) and W1.shape == sub.shape == (h, n, n)
    for rows in (w1, W1):
        np.testing.assert_allclose(numbers(rows.sum(-1)), 1.0, rtol=1e-14)
    assert min(rows.min() for rows in (w1, W1, sub)) >= 0
    assert sub.sum(-1).max() <= 1 and sub.sum(-1).min() < 0.99


def literal_simplex(network, X, weights, gate):
    """Heads one by one; `weights` and `gate` hold a row per head."""
    w1, w2, w3 = (numbers(w) for w in (network.attention(), network.values, network.outputs))
    F = np.zeros((len(X), c)) + numbers(network.intercept)
    for i, Xi in enumerate(X):
        for j in range(len(w1)):
            read = (w1[j] / weights[j]) @ Xi @ w2[j]  # a number, or (c,) with a full value matrix
            F[i] += gate[i, j] * read * w3[j]
    return F


@pytest.mark.parametrize("penalty", PENALTIES)
def test_simplex_attention_and_gated_fcn_are_their_formulas(X, penalty):
    for network in networks():
        if not isinstance(network, SimplexAttention) or network.penalty != penalty:
            continue
        weights, gate = np.tile(numbers(network.token_weights), (h, 1)), np.ones((N, h))
        if isinstance(network, GatedFCN):
            of_head = numbers(network.gate_of_head)
            weights = numbers(network.token_weights)[of_head]
            score = np.einsum("ikd,gkd->ig", X, numbers(network.directions))
            gate = (score >= numbers(network.thresholds))[:, of_head]
            assert 0 < gate[:, 1:].mean() < 1 and np.all(gate[:, 0])
        expected = literal_simplex(network, X, weights, gate)
        np.testing.assert_allclose(numbers(network(torch.tensor(X))), expected, rtol=1e-11)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_decay_is_the_theorems(penalty):
    network = SimplexAttention(n, d, c, h, penalty=penalty, dtype=torch.float64)
    w2, w3 = numbers(network.values), numbers(network.outputs)
    outputs = {
        "token-output": np.sum(np.abs(w3).sum(axis=-1) ** 2),
        "token": np.sum(w3**2),
        "nuclear": np.sum(w3**2),
    }
    assert w2.shape == ((h, d, c) if penalty == "token" else (h, d))
    assert float(network.decay().detach()) == pytest.approx(np.sum(w2**2) + outputs[penalty])


def test_sequence_attention_is_its_formula(X):
    network = SequenceAttention(n, d, c, h, dtype=torch.float64)
    W1, W2, w3 = (numbers(w) for w in (network.attention(), network.values, network.outputs))
    expected = sum(W1[j] @ X @ W2[j] * w3[j] for j in range(h))
    np.testing.assert_allclose(numbers(network(torch.tensor(X))), expected, rtol=1e-12)
    decay = np.sum(np.abs(W2).sum(axis=(1, 2)) ** 2 + w3**2)
    assert float(network.decay().detach()) == pytest.approx(decay)


def test_standard_decay_is_plain():
    network = SoftmaxAttention(d, c, h, dtype=torch.float64)
    expected = sum(np.sum(numbers(W) ** 2) for W in network.parameters())
    assert float(network.decay().detach()) == pytest.approx(expected)


# What all share -------------------------------------------------------------------------------


def test_only_the_convex_layer_is_convex():
    assert {type(network) for network in networks() if network.is_convex} == {ConvexLayer}


@pytest.mark.parametrize("index", range(12))
def test_padding_is_never_read(X, mask, index):
    network = networks()[index]
    padded = np.where(mask[:, :, None], X, np.nan)
    scores = network(torch.tensor(padded), torch.tensor(mask))
    assert torch.all(torch.isfinite(scores))
    padded = np.where(mask[:, :, None], X, 1e6)
    torch.testing.assert_close(network(torch.tensor(padded), torch.tensor(mask)), scores)


@pytest.mark.parametrize("index", range(12))
def test_files_give_the_same_network(X, index, tmp_path):
    network = networks()[index]
    network.save(tmp_path / "network.safetensors")
    state = torch.get_rng_state()
    again = load_network(tmp_path / "network.safetensors")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(again) is type(network) and again.config == network.config
    assert torch.equal(again(torch.tensor(X)), network(torch.tensor(X)))
    assert all(parameter.requires_grad for parameter in again.parameters())
    with pytest.raises(FileExistsError, match="overwrite=True"):
        network.save(tmp_path / "network.safetensors")
    network.save(tmp_path / "network.safetensors", overwrite=True)


def test_damaged_files_are_refused_in_words(tmp_path):
    path = tmp_path / "network.safetensors"
    networks()[0].save(path)
    whole = path.read_bytes()
    for damaged in (
        whole[:-1],
        whole.replace(b'\\"class\\"', b'\\"clams\\"'),
        whole.replace(b'\\"config\\": {', b'\\"config\\": ['),
        whole.replace(b'"network":', b'"netwalk":'),
        b"",
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"network.safetensors holds no network .*or is damaged"
        ):
            load_network(path)


def test_other_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="holds no network"):
        load_network(tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_the_problems(name):
    rng = np.random.default_rng(0)
    F, weight = 3 * rng.normal(size=(20, 3)), rng.random(20)
    Y = {
        "squared": rng.normal(size=(20, 3)),
        "huber": rng.normal(size=(20, 3)),
        "logistic": rng.choice([-1.0, 1.0], size=(20, 3)),
        "softmax": np.eye(3)[rng.integers(3, size=20)],
        "poisson": rng.poisson(1.0, size=(20, 3)).astype(float),
    }[name]
    raw = Raw(np.zeros((20, 1, 1)), Y, name, sample_weight=weight)
    tensors = (torch.tensor(F), torch.tensor(Y))
    expected = LOSSES[name].value(F, Y)
    assert float(total_loss(*tensors, name)) == pytest.approx(np.sum(expected), rel=1e-13)
    weighted = total_loss(*tensors, LOSSES[name], torch.tensor(weight))
    assert float(weighted) == pytest.approx(weight @ expected.sum(axis=1), rel=1e-13)
    assert float(weighted) == pytest.approx(np.sum(raw.weight[:, None] * raw._loss(F)), rel=1e-12)


def test_losses_take_parameters_and_sequences():
    F, Y = torch.tensor([[[3.0]], [[0.1]]]), torch.zeros(2, 1, 1)
    assert float(total_loss(F, Y, Huber(0.5))) == pytest.approx(0.5 * (3 - 0.25) + 0.005)
    assert float(total_loss(F, Y, "squared", torch.tensor([0.0, 2.0]))) == pytest.approx(0.01)


def test_targets_of_padding_do_not_count(X, mask):
    network = SequenceAttention(n, d, c, h, dtype=torch.float64)
    Y = np.where(mask[:, :, None], np.ones((N, n, c)), np.nan)
    F = numbers(network(torch.tensor(X), torch.tensor(mask)))
    for loss in ("squared", "logistic"):
        value = network.objective(torch.tensor(X), torch.tensor(Y), loss, mask=torch.tensor(mask))
        expected = LOSSES[loss].value(F[mask], np.ones((mask.sum(), c))).sum()
        assert value.item() == pytest.approx(expected, rel=1e-12)
        value.backward()
        assert torch.all(torch.isfinite(network.values.grad))


def test_convex_layer_has_the_objective_of_the_problem(X):
    rng = np.random.default_rng(0)
    Z, Y, beta = rng.normal(size=(n, d, c)), rng.normal(size=(N, c)), 0.7
    for penalty in PENALTIES[:2]:
        layer = ConvexLayer(n, d, c, penalty=penalty, dtype=torch.float64)
        layer.Z.data = torch.tensor(Z)
        raw = Raw(X, Y, "squared", penalty, intercept=False)
        value = layer.objective(torch.tensor(X), torch.tensor(Y), beta=beta)
        assert value.item() == pytest.approx(raw.objective(Z, np.zeros(c), beta), rel=1e-13)
    layer = ConvexLayer(n, d, c, penalty="nuclear", dtype=torch.float64)
    layer.Z.data = torch.tensor(Z)
    nuclear = np.linalg.norm(Z, ord="nuc", axis=(1, 2)).sum()
    assert layer.decay().item() == pytest.approx(2 * nuclear, rel=1e-13)


def test_mistakes_are_told():
    class Unknown(Loss):
        expansion = dual_value = None

    zeros = torch.zeros(2, 1)
    for call, message in (
        (lambda: SimplexAttention(2, 2, 1, 1, penalty="l2"), "penalty must be one of"),
        (lambda: SimplexAttention(2, 2, 1, 1, parametrization="x"), "parametrization must be"),
        (lambda: SequenceAttention(2, 2, 1, 1, attention="x"), "attention must be one of"),
        (lambda: SoftmaxAttention(2, 1, readout="last"), "readout must be one of"),
        (lambda: GatedFCN(zeros, zeros[0], 1, [0]), r"directions \(g, n, d\)"),
        (lambda: total_loss(zeros, zeros[:1]), r"shape \(2, 1\) and targets \(1, 1\)"),
        (lambda: total_loss(zeros, zeros, "hinge"), "loss must be one of squared"),
        (lambda: total_loss(zeros, zeros, Unknown()), "Unknown has no version for tensors"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_labels_of_another_kind_are_refused(loss):
    network = SimplexAttention(3, 2, 2, n_heads=1)
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="Targets must be"):
        network.objective(torch.randn(2, 3, 2), labels, loss, 0.1)
