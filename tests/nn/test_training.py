"""The training loop: what a step does, what is measured, and when it ends."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from convexformer.nn import Plan, Trainer


def make(steps=30, **changes):
    torch.manual_seed(0)
    X = torch.randn(64, 3)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 16, "measure_every": 10} | changes

    def loss(model, x):
        return (model(x) - x[:, :1]).square().mean()

    return Trainer(model, optimizer, loss, [X], Plan(steps=steps, **options))


def test_a_longer_plan_goes_on_where_the_last_one_ended():
    once, twice = make(steps=50, average=0.9), make(steps=20, average=0.9)
    twice.run()
    twice.plan = replace(twice.plan, steps=50)
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


def test_measuring_leaves_the_mode_of_every_part():
    trainer = make()
    trainer.measure = lambda model: {"training": float(model.training)}
    trainer.model.eval()
    assert {p["training"] for p in trainer.run()} == {0.0}
    assert not trainer.model.training


def test_warmup_clipping_and_averaging_are_what_they_say():
    trainer = make(steps=3, warmup=4, clip=0.05, average=0.5, batch_size=None, measure_every=1)
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
    trainer = make(steps=2000, measure_every=1000)
    trainer.rates = [100.0]
    with pytest.raises(FloatingPointError, match="training diverged"):
        trainer.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"steps": 5, "batch_size": -1}, "batch_size must be positive"),
        ({"steps": 5, "average": 1.0}, r"average must be in \[0, 1\), got 1.0"),
    ],
)
def test_plans_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**options)


def test_data_must_agree():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    uneven = [torch.zeros(3, 1), torch.zeros(4, 1)]
    with pytest.raises(ValueError, match=r"as many samples each, got \[3, 4\]"):
        Trainer(model, optimizer, print, uneven, Plan(1))
