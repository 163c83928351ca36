"""The gated layer against its formula and the convex design; stacks of it in PyTorch's world."""

import numpy as np
import pytest
import torch
from experiments.layers import ConvexLayer
from torch.utils.data import DataLoader, TensorDataset

from convexformer.nn import (
    GatedLayer,
    GatedTransformer,
    GatedTransformerConfig,
    ProximalAdam,
    load_network,
)
from convexformer.problem import GatedDesign, Problem, Softmax, Token, TokenDesign
from convexformer.solvers import solve

B, n, d, c, h, V = 30, 5, 3, 2, 7, 6
F64 = torch.float64
KINDS = [{"outputs": "vector"}, {"outputs": "sequence"}, {"causal": True}]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def X():
    return torch.randn(B, n, d, dtype=F64)


@pytest.fixture
def mask():
    mask = torch.rand(B, n) < 0.6
    mask[0] = False  # a sample that is all padding
    return mask


def a_layer(**options):
    """With an intercept and a gate that is always open, in float64."""
    thresholds = torch.zeros(h, dtype=F64)
    thresholds[0] = -torch.inf
    directions = torch.randn(h, n, d, dtype=F64)
    layer = GatedLayer(
        n, d, c, intercept=True, directions=directions, thresholds=thresholds, dtype=F64, **options
    )
    torch.nn.init.normal_(layer.Z)
    torch.nn.init.normal_(layer.intercept)
    return layer


def a_network(**options):
    settings = {"n_tokens": n, "n_outputs": c, "dim": d, "n_gates": h, "n_layers": 2} | options
    return GatedTransformer(GatedTransformerConfig(**settings), dtype=F64)


def inputs_of(network):
    """The same inputs of the right kind and shape whenever it is asked."""
    draw = torch.Generator().manual_seed(1)
    settings = network.config.get("settings", {})
    if settings.get("vocabulary"):
        return torch.randint(V, (B, n), generator=draw)
    return torch.randn(B, n, settings.get("n_features") or d, dtype=F64, generator=draw)


# The formula ------------------------------------------------------------------------------------


def literal(layer, X):
    """Loops over samples, gates, tokens and positions."""
    Z, U, t, b = (
        tensor.detach().numpy()
        for tensor in (layer.Z, layer.directions, layer.thresholds, layer.intercept)
    )
    causal, P = layer.config["causal"], Z.shape[3]
    Y = np.zeros((len(X), P, c))
    for i, Xi in enumerate(X.numpy()):
        for p in range(P):
            seen = range(p + 1) if causal else range(n)
            for j in range(len(U)):
                if sum(U[j, k] @ Xi[k] for k in seen) >= t[j]:
                    Y[i, p] += sum(Xi[k] @ Z[j, k, :, p] for k in seen)
    return Y + b if P > 1 else (Y + b)[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_layer_is_its_formula(X, kind):
    layer = a_layer(**kind)
    np.testing.assert_allclose(layer(X).detach().numpy(), literal(layer, X), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_read_as_zeros(X, mask, kind):
    layer = a_layer(**kind)
    expected = literal(layer, torch.where(mask[..., None], X, 0.0))
    X[~mask] = torch.nan
    np.testing.assert_allclose(layer(X, mask).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("often", [1, 40])
def test_tables_give_the_same(kind, masked, often):
    """Tokens that repeat are multiplied together; where few do, each sample for itself."""
    layer, table = a_layer(**kind), torch.randn(20, d, dtype=F64, requires_grad=True)
    tokens = torch.randint(20 if often == 1 else 2, (15 * often, n))
    tokens[:, 2] = 7  # a token that all samples have
    mask = torch.rand(tokens.shape) < 0.6 if masked else None
    weights = torch.randn_like(layer(table[tokens]).detach())
    found = []
    for Y in (layer(table[tokens], mask), layer.from_table(tokens, table, mask)):
        gradients = torch.autograd.grad((Y * weights).sum(), [table, *layer.parameters()])
        found.append([Y, *gradients])
    for plain, by_table in zip(*found, strict=True):
        torch.testing.assert_close(by_table, plain, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"frozen_gates": True}, {"tables": False}])
def test_tokens_that_are_not_in_the_vocabulary_are_refused(options):
    """Not counted from the end, as an index would."""
    network = a_network(vocabulary=V, **options)
    for token in (-1, V):
        with pytest.raises(IndexError, match="out of range"):
            network(torch.full((10 * V, n), token))


@pytest.mark.parametrize("kind", KINDS)
def test_no_samples_give_no_outputs(kind):
    layer, table = a_layer(**kind), torch.randn(V, d, dtype=F64)
    none = torch.zeros(0, n, dtype=torch.long)
    assert layer.from_table(none, table).shape == layer(table[none]).shape
    assert len(layer(table[none])) == 0


def test_given_gates_are_used(X):
    layer = a_layer(outputs="vector")
    gates = layer.gates(X)
    assert torch.equal(layer(X, gates=gates), layer(X))
    doubled = layer(2 * X, gates=~gates) - layer.intercept  # linear once gates are fixed
    torch.testing.assert_close(doubled, 2 * (layer(X, gates=~gates) - layer.intercept))
    assert not torch.allclose(layer(X, gates=~gates), layer(X))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(X, kind):
    layer = a_layer(**kind)
    gates = layer.gates(X[:3])  # jumps have no gradient: hold them

    def outputs(X, Z):
        return torch.func.functional_call(layer, {"Z": Z}, (X, None, gates))

    assert torch.autograd.gradcheck(outputs, (X[:3].requires_grad_(), layer.Z))


def test_outputs_are_as_large_as_inputs():
    X = torch.randn(2000, 12, 8)
    for kind in KINDS:
        Y = GatedLayer(12, 8, n_gates=400, **kind)(X).detach()
        assert Y.std() == pytest.approx(1.0, abs=0.1)
        if kind.get("causal"):
            assert Y[:, 0].std() == pytest.approx(1.0, abs=0.25)


# Convexity --------------------------------------------------------------------------------------


def test_it_predicts_what_the_certified_solution_does(X):
    Y = np.eye(3)[np.arange(B) % 3]
    layer = GatedLayer(n, d, 3, h, outputs="vector", intercept=True, dtype=F64)
    design = GatedDesign(TokenDesign(X.numpy()), layer.gates(X)[:, :, 0].numpy())
    problem = Problem(design, Softmax(), Token(), Y)
    beta = 0.2 * problem.beta_max
    solution = solve(problem, beta, tol=1e-8)
    with torch.no_grad():
        layer.Z.copy_(torch.tensor(solution.Z).reshape(layer.Z.shape))
        layer.intercept.copy_(torch.tensor(solution.intercept))
    expected = design.predict(solution.Z) + solution.intercept
    np.testing.assert_allclose(layer(X).detach().numpy(), expected, atol=1e-12)
    objective = layer.objective(X, torch.tensor(Y), "softmax", beta).item()
    assert objective == pytest.approx(solution.certificate.primal, rel=1e-12)
    assert layer.is_convex and solution.certificate.relative_gap <= 1e-8


@pytest.mark.parametrize("penalty", ["token", "token-output"])
def test_a_vector_layer_with_one_open_gate_is_the_convex_layer(X, penalty):
    gates = {"directions": torch.zeros(1, n, d, dtype=F64), "thresholds": torch.zeros(1, dtype=F64)}
    options = {"penalty": penalty, "intercept": True, "dtype": F64}
    layer = GatedLayer(n, d, c, outputs="vector", **gates, **options)
    convex = ConvexLayer(n, d, c, **options)
    with torch.no_grad():
        convex.Z.copy_(layer.Z.reshape(convex.Z.shape))
        convex.intercept.copy_(layer.intercept[0])
    torch.testing.assert_close(layer(X), convex(X))
    torch.testing.assert_close(layer.decay(), convex.decay())


def trained(network, *stages):
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(name.startswith(stage) for stage in stages))
    return network


def test_is_convex_tells_the_truth():
    assert not a_network(vocabulary=V).is_convex
    assert not a_network().is_convex  # two layers
    assert not a_network(n_layers=1).is_convex  # a layer and a readout multiply
    assert a_network(n_layers=1, readout=False).is_convex
    assert not a_network(n_layers=1, readout=False, vocabulary=V).is_convex
    fixed = a_network(n_layers=1, readout=False, vocabulary=V)
    assert trained(fixed, "layers").is_convex
    assert not trained(fixed, "embedding").is_convex  # its gates move
    frozen = a_network(n_layers=1, readout=False, vocabulary=V, frozen_gates=True)
    assert trained(frozen, "embedding").is_convex
    assert not trained(frozen, "embedding", "layers").is_convex
    stack = a_network()
    assert trained(stack, "layers.1").is_convex
    assert not trained(stack, "layers.0").is_convex
    assert trained(stack, "readout").is_convex


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({"readout": False}, "layers.1"),
        ({"readout": False, "frozen_gates": True, "vocabulary": V}, "embedding"),
        ({"frozen_gates": True}, "layers.0"),
        ({}, "readout"),
    ],
)
def test_scores_are_linear_in_the_only_part_trained(options, stage):
    """Which is what makes a convex loss convex in it."""
    network = trained(a_network(**options), stage)
    inputs = inputs_of(network)
    names = [name for name, p in network.named_parameters() if p.requires_grad]

    def scores(values):
        return torch.func.functional_call(network, values, (inputs,))

    one, two = ({q: torch.randn_like(network.get_parameter(q)) for q in names} for _ in range(2))
    middle = {q: 0.5 * (one[q] + two[q]) for q in names}
    assert network.is_convex
    torch.testing.assert_close(scores(middle), 0.5 * (scores(one) + scores(two)))


# What a causal network may see ------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("network", ["layer", "features", "tokens"])
def test_the_future_does_not_leak(network, frozen):
    options = {"causal": True, "outputs": "sequence", "frozen_gates": frozen}
    made = {
        "layer": lambda: a_layer(causal=True),
        "features": lambda: a_network(n_features=d, **options),
        "tokens": lambda: a_network(vocabulary=V, **options),
    }[network]()
    if network == "tokens":
        one, two = torch.randint(V, (200, n)), torch.randint(V, (200, n))
    else:
        one, two = torch.randn(200, n, d, dtype=F64), 10 * torch.randn(200, n, d, dtype=F64)
    for p in range(n - 1):
        two[:, : p + 1] = one[:, : p + 1]
        a, b = made(one), made(two)
        assert torch.equal(a[:, : p + 1], b[:, : p + 1])
        assert (a[:, p + 1] != b[:, p + 1]).any()


def test_weights_of_the_future_are_zero_and_stay_zero():
    layer = a_layer(causal=True)
    layer.reset_parameters()
    optimiser = ProximalAdam([layer.Z], lr=0.1, beta=0.01, group_axes=layer.group_axes)
    future = torch.ones(n, n).tril(-1).bool()  # (token, position)
    for _ in range(3):
        assert (layer.group_norms()[:, future] == 0).all()
        assert (layer.group_norms()[:, ~future] > 0).any()
        layer(torch.randn(B, n, d, dtype=F64)).square().sum().backward()
        optimiser.step()


# In PyTorch's world -----------------------------------------------------------------------------


def test_frozen_gates_read_the_first_embedding():
    network = a_network(vocabulary=V, n_layers=1, frozen_gates=True)
    moving = a_network(vocabulary=V, n_layers=1)
    moving.load_state_dict(network.state_dict(), strict=False)
    tokens = torch.randint(V, (B, n))
    torch.testing.assert_close(network(tokens), moving(tokens))
    with torch.no_grad():
        for one in (network, moving):
            one.embedding.weight.neg_()
            one.readout.bias.zero_()
    before = network.first_embedding.neg()
    assert torch.equal(before, network.embedding.weight)
    assert not torch.allclose(network(tokens), moving(tokens))


@pytest.mark.parametrize(
    "network",
    [
        lambda: a_layer(causal=True),
        lambda: a_layer(outputs="vector", penalty="token-output"),
        lambda: a_network(vocabulary=V, frozen_gates=True),
        lambda: a_network(n_features=4, always_open=True, readout=False),
        lambda: a_network(causal=True, outputs="sequence"),
    ],
)
def test_files(network, tmp_path):
    network = network()
    network.save(tmp_path / "network.safetensors")
    loaded = load_network(tmp_path / "network.safetensors")
    assert type(loaded) is type(network) and loaded.config == network.config
    assert torch.equal(loaded(inputs_of(network)), network(inputs_of(network)))
    assert loaded.state_dict().keys() == network.state_dict().keys()


def test_always_open_gates():
    network = a_network(always_open=True)
    for layer in network.gated_layers:
        gates = layer.gates(torch.randn(200, n, d, dtype=F64))
        assert gates[:, 0].all() and not gates[:, 1:].all()


@pytest.mark.parametrize("options", [{"vocabulary": V}, {"causal": True, "outputs": "sequence"}])
def test_compiled_networks_give_the_same(options):
    network = a_network(**options)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    scores = compiled(inputs_of(network))
    torch.testing.assert_close(scores, network(inputs_of(network)))
    scores.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_autocast_rounds_products_but_not_gates():
    network = a_network(vocabulary=V, n_layers=1).float()
    tokens, layer = inputs_of(network), network.gated_layers[0]
    exact, gates = network(tokens), layer.gates(network.embedding(tokens))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = network(tokens)
        assert torch.equal(layer.gates(network.embedding(tokens)), gates)
        rounded.float().square().sum().backward()
    assert rounded.dtype == torch.bfloat16 and not torch.equal(rounded.float(), exact)
    torch.testing.assert_close(rounded.float(), exact, rtol=0.02, atol=0.02)
    assert all(p.grad.abs().sum() > 0 for p in network.parameters())


def test_a_sequential_network_learns_from_a_data_loader():
    X = torch.randn(512, n, d)
    y = (X[:, 1, 0] * X[:, 3, 2] > 0).long()  # needs gates: no linear model can
    network = torch.nn.Sequential(
        GatedLayer(n, d, 16, 64, outputs="vector"), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)
    )
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(15):
        for inputs, labels in DataLoader(TensorDataset(X, y), batch_size=64, shuffle=True):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            optimiser.step()
    assert (network(X).argmax(1) == y).double().mean() > 0.95


def test_networks_stack_under_vmap():
    networks = [a_network(vocabulary=V, tables=False) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(networks)
    tokens = torch.randint(V, (B, n))

    def scores(parameters, buffers):
        return torch.func.functional_call(networks[0], (parameters, buffers), (tokens,))

    together = torch.func.vmap(scores)(parameters, buffers)
    for one, network in zip(together, networks, strict=True):
        torch.testing.assert_close(one, network(tokens))


def test_decay_of_a_network():
    network = a_network(vocabulary=V)
    expected = sum(2 * layer.group_norms().sum() for layer in network.gated_layers)
    expected = expected + network.embedding.weight.square().sum()
    expected = expected + network.readout.weight.square().sum()
    torch.testing.assert_close(network.decay(), expected)


def test_parameter_groups_hold_every_parameter_once():
    network = a_network(vocabulary=V, readout=False)
    penalised, others = network.parameter_groups(beta=0.1)
    every = [id(p) for group in (penalised, others) for p in group["params"]]
    assert sorted(every) == sorted(id(p) for p in network.parameters())
    assert [id(p) for p in penalised["params"]] == [id(layer.Z) for layer in network.gated_layers]
    assert penalised["beta"] == 0.1 and "beta" not in others


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GatedLayer(n, d, outputs="vector", causal=True), "reads all tokens"),
        (lambda: GatedLayer(n, d, outputs="scalar"), "outputs must be one of"),
        (lambda: GatedLayer(n, d, penalty="nuclear"), "penalty must be one of"),
        (lambda: GatedLayer(n, d, directions=torch.ones(h, d, n)), r"\(g, 5, 3\)"),
        (lambda: GatedLayer(n, d)(torch.ones(B, n + 1, d)), "Pad sequences"),
        (lambda: GatedLayer(n, d, n_gates=0), "at least 1"),
        (lambda: a_layer()(torch.ones(B, n, d).double(), torch.ones(B, 1)), r"mask .* \(30, 5\)"),
        (
            lambda: a_layer(causal=True)(torch.ones(B, n, d).double(), gates=torch.ones(B, h, 1)),
            r"gates .* \(30, 7, 5\), got \(30, 7, 1\)",
        ),
        (lambda: a_network(vocabulary=V, n_features=2), "either tokens or features"),
        (lambda: a_network(causal=True), "reads all tokens"),
        (lambda: a_network(n_layers=0), "n_layers must be at least 1"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_intercepts_are_not_decayed_without_a_readout_either():
    settings = GatedTransformerConfig(5, 3, dim=4, n_gates=2, readout=False)
    network = GatedTransformer(settings)
    with torch.no_grad():
        network.layers[0].Z.zero_()
        network.layers[0].intercept.fill_(10.0)
    assert network.decay().item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_causal_layer_of_any_precision_survives_saving(tmp_path, dtype):
    layer = GatedLayer(5, 3, n_gates=4, causal=True).to(dtype)
    layer.save(tmp_path / "layer.safetensors")
    X = torch.randn(6, 5, 3, dtype=dtype)
    assert torch.equal(load_network(tmp_path / "layer.safetensors")(X), layer(X))
