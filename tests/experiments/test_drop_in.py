"""Models are of equal size and budget, jobs resume, and the page follows from the results."""

import json

import numpy as np
import pytest
import torch
from experiments.drop_in import experiment as drop_in
from experiments.drop_in.__main__ import EXPERIMENT
from experiments.drop_in.experiment import MODELS, count, limit, verdict
from experiments.lab import Ledger

from convexformer.datasets import TokenDataset
from convexformer.nn import ProximalAdam

SHAPES = {"hla": ((9, 20), 2), "splice": ((60, 4), 3), "motion": ((8, 6), 7)}


def toy() -> TokenDataset:
    """Two classes, told apart by the product of two tokens."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3, 2))
    return TokenDataset(
        name="toy",
        X=X,
        y=(X[:, 0, 0] * X[:, 2, 1] > 0).astype(int),
        target_names=("a", "b"),
        token_names=("first", "second", "third"),
        channel_names=("u", "v"),
        description="",
    )


@pytest.fixture
def small(monkeypatch):
    """Only the toy data, two configurations and two epochs."""
    quick = {}
    for name, model in MODELS.items():
        build = lambda config, seed, build=model.build: build(config | {"epochs": 2}, seed)
        quick[name] = type(model)(model.label, model.grid[2:4], build, watches=True)
    monkeypatch.setattr(drop_in, "DATASETS", {"toy": toy})
    monkeypatch.setattr(drop_in, "MODELS", quick)
    monkeypatch.setattr(drop_in, "NAMES", ("toy",))
    return quick


@pytest.mark.parametrize("dataset", SHAPES)
def test_models_are_of_equal_size(dataset):
    shape, n_classes = SHAPES[dataset]
    most = limit(shape, n_classes)
    for model in MODELS.values():
        network = model.build(model.grid[0], 0)._build(shape, n_classes)
        assert 0.95 * most <= count(network) <= most
        assert network(torch.zeros(5, *shape)).shape == (5, n_classes)


def test_models_have_equal_budgets():
    assert {len(model.grid) for model in MODELS.values()} == {6}
    rates = [sorted({config["learning_rate"] for config in m.grid}) for m in MODELS.values()]
    assert rates == [[0.001, 0.003, 0.01]] * len(MODELS)


def test_the_group_lasso_makes_groups_zero():
    data = toy()
    model = MODELS["sparse"].build({"learning_rate": 0.01, "beta": 0.05, "epochs": 8}, 0)
    model.fit(data.X[:150], data.y[:150], (data.X[150:], data.y[150:]))
    assert isinstance(model._optimiser(), ProximalAdam)
    assert 0 < model.zero_share_ < 1
    assert model.steps_ % 2 == 0 and 2 <= model.steps_ <= 16 and model.seconds_ > 0


def test_jobs_resume_and_results_follow_from_them(small, tmp_path):
    begun = []
    report = lambda done, what: begun.append(what)
    first = drop_in.run(Ledger(tmp_path, max_minutes=0, report=report))
    assert not first["complete"] and not begun and first["datasets"] == {}
    results = drop_in.run(Ledger(tmp_path, report=report))
    assert results["complete"] and len(begun) == len(drop_in.SEEDS) * len(small)
    lines = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert drop_in.run(Ledger(tmp_path, report=report)) == results
    assert len(begun) == len(lines)  # nothing was run again
    for name, cell in results["datasets"]["toy"].items():
        mine = [line for line in lines if line["model"] == name]
        assert cell["scores"] == [line["score"] for line in mine]
        assert cell["mean"] == pytest.approx(np.mean(cell["scores"]))
        for line in mine:
            chosen = int(np.argmax(line["validation_scores"]))
            assert line["config"] == small[name].grid[chosen]


def cell(scores, seconds, steps=10, zero=0.0):
    return {
        "metric": "accuracy",
        "parameters": 17000,
        "mean": float(np.mean(scores)),
        "standard_error": 0.01,
        "mean_accuracy": float(np.mean(scores)),
        "median_steps": steps,
        "median_seconds": seconds,
        "mean_zero_share": zero,
        "scores": scores,
        "seeds": list(range(len(scores))),
        "seconds_of_alls": [seconds] * len(scores),
    }


def made_up(**cells):
    header = {"date": "today", "environments": []}
    return EXPERIMENT.text(drop_in.summarise([]) | header | {"datasets": {"hla": cells}})


def test_the_page_says_who_is_ahead():
    rows = {
        "gated": cell([0.7, 0.8], 1.0),
        "sparse": cell([0.8, 0.9], 2.0, zero=0.25),
        "standard": cell([0.75, 0.85], 8.0, 40),
        "perceptron": cell([0.9, 0.8], 4.0, 20),
    }
    page = made_up(**rows)
    gated, sparse, control = (line for line in page.splitlines() if line.startswith("- hla: "))
    assert "gated layer 0.750 ± 0.010, transformer 0.800 ± 0.010 (accuracy)" in gated
    assert "behind on all 2 parts" in gated and "ahead on 1 of 2 parts" in control
    assert "ahead on all 2 parts, with 0.25 times its seconds and 0.25 times its steps" in sparse
    assert "25% of groups zero" in page
    # Parts are paired by what they are, not by their place.
    rows["gated"] |= {"seeds": [1, 2]}
    assert verdict(rows["gated"], rows["standard"]) == "behind on all 1 parts"
