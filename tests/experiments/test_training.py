"""The training loop: what a step does, what is measured, and when it ends."""

import numpy as np
import pytest
import torch
from experiments.training import Trainer
from torch import nn


def make(steps=30, **changes):
    torch.manual_seed(0)
    X = torch.randn(64, 3)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 16, "every": 10} | changes

    def loss(model, x):
        return (model(x) - x[:, :1]).square().mean()

    return Trainer(model, optimizer, loss, [X], steps, **options)


def test_a_longer_plan_goes_on_where_the_last_one_ended():
    once, twice = make(steps=50, average=0.9), make(steps=20, average=0.9)
    twice.run()
    twice.steps = 50
    curves = [
        [{k: v for k, v in point.items() if k != "seconds"} for point in trainer.run()]
        for trainer in (once, twice)
    ]
    assert curves[0] == curves[1] and [p["step"] for p in curves[0]] == [0, 10, 20, 30, 40, 50]
    assert torch.equal(once.averaged.weight, twice.averaged.weight)


def test_measurements_are_plain_numbers():
    trainer = make()
    trainer.measure = lambda model: {"one": np.float32(1), "two": torch.tensor(2.0)}
    last = trainer.run()[-1]
    assert (last["one"], last["two"]) == (1.0, 2.0)
    assert {type(value) for value in last.values()} <= {int, float}


def test_warmup_clipping_and_averaging_are_what_they_say():
    trainer = make(steps=3, warmup=4, clip=0.05, average=0.5, batch_size=None, every=1)
    w = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    mean, X = w.clone(), trainer.data[0]
    trainer.run()
    A = torch.cat([X, torch.ones(64, 1)], 1)
    for t in range(3):
        g = 2 * A.T @ (A @ w - X[:, 0]) / 64
        assert g.norm() > 0.05
        w = w - 0.1 * (t + 1) / 4 * g * (0.05 / (g.norm() + 1e-6))
        mean = 0.5 * mean + 0.5 * w
    reached = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    averaged = torch.cat([p.detach().flatten() for p in trainer.averaged.parameters()])
    torch.testing.assert_close(reached, w)
    torch.testing.assert_close(averaged, mean)


def test_every_epoch_shows_every_sample_once_in_another_order():
    trainer = make(batch_size=16)
    trainer.data = (torch.arange(64),)
    epochs = []
    for epoch in range(2):
        rows = []
        for place in range(4):
            trainer.step = 4 * epoch + place
            rows += trainer._batch()[0].tolist()
        epochs.append(rows)
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(64)) and epochs[0] != epochs[1]


def test_stop_ends_early_and_stays_ended():
    def reached(points):
        return points[-1]["step"] >= 20

    trainer = make()
    assert trainer.run(stop=reached)[-1]["step"] == 20
    assert trainer.run(stop=reached)[-1]["step"] == 20


def test_divergence_is_told():
    trainer = make(steps=2000, every=1000)
    trainer.rates = [100.0]
    with pytest.raises(FloatingPointError, match="training diverged"):
        trainer.run()
