"""The table of `docs/refit.md`: figures are those of the models, and the page follows from them."""

import json
from pathlib import Path

import numpy as np
import pytest

from convexformer import ConvexAttentionClassifier
from convexformer.datasets import TokenDataset
from convexformer.experiments import refit_table
from convexformer.experiments.predictive import split
from convexformer.experiments.refit_table import END, START, render, update

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


def test_the_published_page_agrees_with_the_committed_results():
    results = json.loads((ROOT / "benchmarks/refit/results.json").read_text())
    assert [(cell["dataset"], cell["beta"]) for cell in results["cells"]] == [
        (name, beta) for name, betas in refit_table.BETAS.items() for beta in betas
    ]
    assert all(cell["seeds"] == list(refit_table.SEEDS) for cell in results["cells"])
    page = (ROOT / "docs/refit.md").read_text()
    assert update(page, results) == page
    results["cells"][0]["scores"]["chosen"][0] += 0.1
    assert update(page, results) != page


def test_the_figures_are_those_of_the_models(small):
    cell = refit_table.run_cell("toy", 0.3, seeds=(1, 2))
    data, test = toy(), split(toy(), 2).test
    train = np.setdiff1d(np.arange(200), test)
    scaled = (data.X - data.X[train].mean(axis=0)) / data.X[train].std(axis=0)
    model = ConvexAttentionClassifier(0.3, penalty="token", refit=True)
    model.fit(scaled[train], data.y[train])
    assert cell["scores"]["chosen"][1] == pytest.approx(model.score(scaled[test], data.y[test]))
    assert cell["tokens"][1] == len(model.tokens_) and cell["ridges"][1] == model.ridge_[0]
    assert cell["seeds"] == [1, 2] and {*map(len, cell["scores"].values())} == {2}


def test_a_run_writes_its_results_and_its_part_of_the_page(small, tmp_path, capsys):
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text(f"# Before\n{START}old\n{END}after\n")
    assert refit_table.main(["--out", str(out), "--page", str(page)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["date"] and results["environment"]["versions"]["convexformer"]
    assert results["command"] == "make refit-table"
    assert "\nrefit-table: " in (ROOT / "Makefile").read_text()
    assert page.read_text() == f"# Before\n{START}{render(results)}{END}after\n"
    assert "| toy, accuracy | 0.3 |" in page.read_text()
    assert capsys.readouterr().out.startswith("toy, accuracy | 0.3")


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


def test_gains_and_losses_are_counted_by_paired_differences():
    cells = [
        cell_of([0.5, 0.9], [0.6, 1.0], [0.4, 0.8]),  # better by 0.1 on both
        cell_of([0.5, 0.9], [0.7, 0.8], [0.5, 0.9]),  # within a standard error
    ]
    environment = {"cpu": "c", "cores": 1, "threads": 1, "versions": {}}
    text = render({"command": "c", "date": "d", "environment": environment, "cells": cells})
    assert "In 1 of the 2 rows" in text and "in 0 it predicts worse" in text
    assert "- made up at beta 0.1, 2–3 tokens: accuracy 0.700 → 0.800" in text
    assert "adds 3.0 to 3.0 times" in text
    assert "0.700 ± 0.200 | **0.800 ± 0.200** | 0.1, 0.3 | 0.600 ± 0.200 | 1.50 | 3.0 | 1.0" in text
