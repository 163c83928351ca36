"""The table of `docs/refit.md`: figures are those of the models, and the page follows from them."""

import json
from pathlib import Path

import numpy as np
import pytest
from experiments.lab import Ledger
from experiments.predictive.experiment import split
from experiments.refit import experiment as refit_table
from experiments.refit.__main__ import EXPERIMENT

from convexformer import ConvexAttentionClassifier
from convexformer.datasets import TokenDataset

ROOT = Path(__file__).parents[2]


def toy():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 4, 2))
    return TokenDataset(
        name="toy",
        X=X,
        y=(X[:, 1, 0] - X[:, 2, 1] + random.normal(size=200) > 0).astype(np.int64),
        target_names=("no", "yes"),
        token_names=("a", "b", "c", "d"),
        channel_names=("u", "v"),
        description="",
    )


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(refit_table, "DATASETS", {"toy": toy})
    monkeypatch.setattr(refit_table, "BETAS", {"toy": (0.3,)})


def test_the_committed_results_are_of_every_cell():
    results = json.loads((ROOT / "experiments/refit/results.json").read_text())
    assert [(cell["dataset"], cell["beta"]) for cell in results["cells"]] == [
        (name, beta) for name, betas in refit_table.BETAS.items() for beta in betas
    ]
    assert all(cell["seeds"] == list(refit_table.SEEDS) for cell in results["cells"])


def test_the_figures_are_those_of_the_models(small):
    job = refit_table.Job("toy", 0.3, seeds=(1, 2))
    cell = job.key | job.run()
    data, test = toy(), split(toy(), 2).test
    train = np.setdiff1d(np.arange(200), test)
    scaled = (data.X - data.X[train].mean(axis=0)) / data.X[train].std(axis=0)
    model = ConvexAttentionClassifier(0.3, penalty="token", refit=True)
    model.fit(scaled[train], data.y[train])
    assert cell["scores"]["chosen"][1] == pytest.approx(model.score(scaled[test], data.y[test]))
    assert cell["tokens"][1] == len(model.tokens_) and cell["ridges"][1] == model.ridge_[0]
    assert cell["seeds"] == (1, 2) and {*map(len, cell["scores"].values())} == {2}


def test_a_run_makes_results_and_a_page(small, tmp_path):
    results = refit_table.run(Ledger(tmp_path))
    assert results["date"] and results["environments"][0]["versions"]["convexformer"]
    assert "\nrefit-table: " in (ROOT / "Makefile").read_text()
    assert "| toy, accuracy | 0.3 |" in EXPERIMENT.text(results)


def cell_of(certified, chosen, least):
    return {
        "dataset": "made up",
        "metric": "accuracy",
        "beta": 0.1,
        "seeds": [0, 1],
        "tokens": [2, 3],
        "ridges": [0.1, 0.3],
        "scores": {"certified": certified, "chosen": chosen, "least": least},
        "seconds": {"certified": [1.0, 2.0], "chosen": [4.0, 8.0], "least": [2.0, 4.0]},
    }


ENVIRONMENT = {"cpu": "c", "cores": 1, "threads": 1, "versions": {}}


def test_gains_and_losses_are_counted_by_paired_differences():
    cells = [
        cell_of([0.5, 0.9], [0.6, 1.0], [0.4, 0.8]),  # better by 0.1 on both
        cell_of([0.5, 0.9], [0.7, 0.8], [0.5, 0.9]),  # within a standard error
    ]
    text = EXPERIMENT.text({"date": "d", "environments": [ENVIRONMENT], "cells": cells})
    assert "In 1 of the 2 rows" in text and "in 0 it predicts worse" in text
    assert "- made up at beta 0.1, 2–3 tokens: accuracy 0.700 → 0.800" in text
    assert "adds 3.0 to 3.0 times" in text
    assert "0.700 ± 0.200 | **0.800 ± 0.200** | 0.1, 0.3 | 0.600 ± 0.200 | 1.50 | 3.0 | 1.0" in text
