"""Batched runs are the runs one would make one by one."""

import pytest
import torch
from experiments.equivalence.experiment import train_starts

from convexformer.nn import GatedFCN, SimplexAttention

X = torch.randn(12, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X[:, 0, :1] - X[:, 2, 1:]


def make():
    return SimplexAttention(3, 2, 1, 2, intercept=True, dtype=torch.float64)


def alone(network, kind, steps, lr, **options):
    optimizer = kind(network.parameters(), lr=lr, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = network.objective(X, Y, beta=0.5)
        value.backward()
        values.append(value.item())
        optimizer.step()
        schedule.step()
    return [*values, network.objective(X, Y, beta=0.5).item()]


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [("adam", torch.optim.Adam, {}), ("sgd", torch.optim.SGD, {"momentum": 0.9})],
)
def test_runs_do_not_see_each_other(name, kind, options):
    torch.manual_seed(0)
    common = {"beta": 0.5, "steps": 20, "lr": 0.01, "every": 6}
    runs = train_starts(make, X, Y, n_starts=3, optimizer=name, **common, **options)
    torch.manual_seed(0)
    single = [alone(network, kind, 20, 0.01, **options) for network in [make() for _ in range(3)]]
    expected = torch.tensor(single, dtype=torch.float64).T  # (steps + 1, starts)
    assert runs.steps == [0, 6, 12, 18, 20]
    torch.testing.assert_close(runs.objectives, expected[runs.steps], rtol=1e-10, atol=0)
    torch.testing.assert_close(runs.lowest, expected.min(0).values, rtol=1e-10, atol=0)
    assert runs.seconds == sorted(runs.seconds) and len(runs.seconds) == 5


def test_gated_networks_run_too():
    U, t = torch.randn(2, 3, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    runs = train_starts(
        lambda: GatedFCN(U, t, 1, [0, 0, 1], penalty="token", dtype=torch.float64),
        X,
        Y,
        beta=0.1,
        n_starts=5,
        steps=50,
    )
    assert torch.all(runs.objectives[-1] < runs.objectives[0])
