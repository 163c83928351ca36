"""Modulo 15: replicas trained side by side are each what they would be alone."""

import json

import numpy as np
import pytest
import torch
from experiments.grokking import small as grokking_small
from experiments.grokking.models import HyperCube
from experiments.grokking.small import (
    SMALL,
    Curves,
    Replicas,
    SmallJob,
    choose_setting,
    cube_penalty,
    run_small,
    split_masks,
    tell_splits,
    tell_tuning,
    train_replicas,
)
from experiments.lab import Ledger


@pytest.mark.parametrize("name", SMALL)
def test_every_network_trains_and_is_told_in_plain_numbers(name, monkeypatch):
    monkeypatch.setattr(grokking_small, "EVERY", 2)
    record = SmallJob(name, 0.8, 4, 2, (0.01, 1.0, 1.0)).run()
    assert json.loads(json.dumps(record)) == record
    assert len(record["best"]) == 2 and record["curve"]["step"] == [2, 4]


def test_splits_and_settings_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setattr(grokking_small, "EVERY", 5)
    masks = np.array([split_masks(0.5, 0, False), split_masks(0.5, 1, False)])
    settings = np.array([[0.01, 1.0, 1.0], [0.003, 0.3, 2.0]])

    def train(rows):
        torch.manual_seed(0)
        return train_replicas(SMALL["mlp"], masks[rows], settings[rows], steps=10)

    both, alone = train([0, 1]), train([0])
    np.testing.assert_allclose(both.test_loss[:, 0], alone.test_loss[:, 0], rtol=1e-5)


def test_replicas_step_as_adamw_does():
    torch.manual_seed(0)
    stacked = torch.randn(2, 3)
    weights = [torch.nn.Parameter(row.clone()) for row in stacked]
    rates, decays = torch.tensor([0.1, 0.01]), torch.tensor([0.5, 2.0])
    ours = Replicas({"W": stacked}, rates, decays, penalised=False)
    theirs = [
        torch.optim.AdamW([W], lr=lr, weight_decay=decay, betas=(0.9, 0.98))
        for W, lr, decay in zip(weights, rates.tolist(), decays.tolist(), strict=True)
    ]
    for _ in range(3):
        gradient = 0.05 * torch.randn(2, 3)  # too short to be clipped
        ours.step((gradient,), 1.0)
        for W, g, optimizer in zip(weights, gradient, theirs, strict=True):
            W.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(stacked, torch.stack([W.detach() for W in weights]))


def test_the_cube_penalty_is_of_all_products():
    torch.manual_seed(0)
    A, B, C = torch.randn(3, 1, 4, 5, 5)
    pairs = [(A, B), (B, C), (C, A)]
    direct = sum((x @ y).square().sum() for u, v in pairs for x in u[0] for y in v[0])
    got = cube_penalty({"first": A, "second": B, "third": C})
    torch.testing.assert_close(got, (1e-3 * direct / 5 / 15)[None])


def test_hypercube_is_the_trace_of_three_matrices():
    torch.manual_seed(0)
    cube = HyperCube(9, 7, dim=4)
    tokens = torch.tensor([[1, 7, 2, 8]])
    traces = [torch.trace(cube.first[1] @ cube.second[2] @ C) / 4 for C in cube.third]
    torch.testing.assert_close(cube(tokens)[0], torch.stack(traces))


def test_tuning_sees_the_training_part_alone():
    inner, whole = split_masks(0.8, 3, True), split_masks(0.8, 3, False)
    assert whole.sum() == 120 and inner.sum() == 96
    assert not (inner.any(0) & whole[1]).any()


def test_a_setting_is_chosen_for_where_it_ends():
    steps = list(range(50, 550, 50))
    test = np.zeros((10, 4))
    test[2, :2], test[-5:, 2:] = 1.0, 0.6  # the first setting rises and falls, the second stays
    told = tell_tuning(Curves(steps, test, test, test), [(0.01, 1.0, 1.0), (0.003, 0.3, 2.0)])
    assert choose_setting(told | {"name": "mlp"}) == (0.003, 0.3, 2.0)
    assert told["grid"][0] == {"lr": 0.01, "decay": 1.0, "scale": 1.0, "last": 0.0, "best": 1.0}


def test_splits_tell_when_they_reached_the_level():
    test = np.array([[0.1, 0.2], [0.99, 0.3], [0.4, 0.4]])
    told = tell_splits(Curves([50, 100, 150], test, test, test))
    assert told["first_99"] == [100, None] and told["best"] == [0.99, 0.4]


@pytest.fixture
def asked(monkeypatch):
    """Jobs that were to be run, none of which is."""
    jobs = []

    def run(job):
        jobs.append(job)
        grid = [{"lr": job.share, "decay": 0.1, "scale": 2.0, "last": 1.0, "best": 1.0}]
        return job.key | {"grid": grid}

    monkeypatch.setattr(SmallJob, "run", run)
    return jobs


def test_every_share_has_a_choice_of_its_own_and_longer_runs_take_it(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(grokking_small, "SMALL", {"gated-4": SMALL["gated-4"]})
    run_small(Ledger(tmp_path))
    assert [(job.share, job.setting, job.steps) for job in asked] == [
        (0.8, None, 600),
        (0.8, (0.8, 0.1, 2.0), 5000),
        (0.5, None, 600),
        (0.5, (0.5, 0.1, 2.0), 5000),
        (0.5, (0.5, 0.1, 2.0), 20_000),  # its choice is known
    ]
    assert [job.splits for job in asked] == [4, 20, 4, 20, 20]
    assert [job.study for job in asked] == ["small"] * 4 + ["longer"]


def test_first_weights_are_scaled(monkeypatch):
    monkeypatch.setattr(grokking_small, "EVERY", 1)
    masks = np.array([split_masks(0.8, 0, False)] * 2)
    torch.manual_seed(0)
    settings = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])  # no steps; the second all zero
    curves = train_replicas(SMALL["mlp"], masks, settings, steps=1)
    assert curves.test_loss[0, 1] == pytest.approx(np.log(15)) != curves.test_loss[0, 0]
