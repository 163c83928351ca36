"""The choice of `gate_weight`: fair splits, resumable, and a page that follows from the jobs."""

import json
from pathlib import Path

import numpy as np
import pytest
from experiments.gate_weight import experiment as gate_weight
from experiments.gate_weight.__main__ import EXPERIMENT
from experiments.gate_weight.experiment import below, preferred
from experiments.lab import Ledger
from experiments.predictive.experiment import split

from convexformer import ConvexTransformerClassifier
from convexformer.datasets import TokenDataset, motion


def toy():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 3, 2))
    y = (X[:, 0, 0] * X[:, 1, 1] + 0.3 * random.normal(size=200) > 0).astype(np.int64)
    return TokenDataset(
        name="toy",
        X=X,
        y=y,
        target_names=("no", "yes"),
        token_names=("a", "b", "c"),
        channel_names=("u", "v"),
        description="",
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(gate_weight, "DATASETS", {"toy": toy})
    monkeypatch.setattr(gate_weight, "SETTINGS", ((80, None), (80, 0.1)))
    monkeypatch.setattr(gate_weight, "WEIGHTS", (1.0, 2.0))
    monkeypatch.setattr(gate_weight, "BETAS", (0.3, 0.1))
    monkeypatch.setattr(gate_weight, "SEEDS", (0,))
    monkeypatch.delenv(gate_weight.VARIABLE, raising=False)


def test_a_run_is_resumed_and_makes_its_page(small, tmp_path, monkeypatch, capsys):
    first = gate_weight.run(Ledger(tmp_path))
    assert not first["complete"]  # alleles are not there
    monkeypatch.setattr(gate_weight, "SEEDS", (0, 1))
    words = ["--out", str(tmp_path)]
    assert EXPERIMENT.main(gate_weight.run, EXPERIMENT.parser().parse_args(words)) == 1
    assert (tmp_path / "jobs.jsonl").read_text().count("\n") == 4
    shown = capsys.readouterr()
    assert shown.err.count("jobs done; Job(dataset='toy'") == 2  # the second seed alone
    assert "CONVEXFORMER_ALLELES is not set" in shown.out
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(cell["beta"], cell["seeds"]) for cell in results["cells"]] == [
        (None, [0, 1]),
        (0.1, [0, 1]),
    ]
    page = (tmp_path / "gate-weight.md").read_text()
    assert page == EXPERIMENT.text(results)
    assert "| toy | 80 | chosen | 2 |" in page and "| toy | 80 | 0.1 | 2 |" in page
    assert "Alleles" not in page


def test_the_figures_are_those_of_the_models(small):
    job = gate_weight.compare(toy(), 80, 0.1, seed=1)
    rows, test = gate_weight.training_rows(toy(), 80, 1), split(toy(), 1).test
    X = gate_weight.tokens_for(toy(), gate_weight.CONTESTANTS["attention"], rows)
    model = ConvexTransformerClassifier(0.1, gate_weight=2.0, random_state=1, tol=1e-4)
    model.fit(X[rows], toy().y[rows])
    assert job["models"]["2"]["test"] == pytest.approx(model.score(X[test], toy().y[test]))
    assert job["models"]["plain"]["test"] < job["models"]["1"]["test"]
    cell = gate_weight.summarise([gate_weight.Job("toy", 80, 0.1, 1).key | job])["cells"][0]
    expected = job["models"]["2"]["test"] - job["models"]["plain"]["test"]
    assert cell["test"]["2"] == {"mean": pytest.approx(expected), "standard_error": None}


def test_no_row_is_trained_and_tested_on():
    data = motion()
    rows = gate_weight.training_rows(data, 300, seed=2)
    test = split(data, 2).test
    assert len(rows) == 300 and not set(rows) & set(test)
    assert not set(data.groups[rows]) & set(data.groups[test])
    for train, validation in gate_weight._folds(data, rows):
        persons = data.groups[rows]
        assert not set(persons[train]) & set(persons[validation])
    everything = gate_weight.training_rows(data, 10**6, seed=2)
    assert len(everything) + len(test) == len(data.y)


def test_alleles_are_read_as_those_of_the_package(tmp_path):
    lines = ["mhc,peptide,IC50(nM),measurement_type"]
    for allele in gate_weight.HELD_OUT:
        lines += [
            f"{allele},AAAAAAAAA,100.0,quantitative",
            f"{allele},AAAAAAAAA,900.0,quantitative",
        ]
        lines += [f"{allele},CCCCCCCCC,501.0,quantitative", f"{allele},DDDDDDDDD,1.0,qualitative"]
        lines += [f"{allele},EEEEEEEE,1.0,quantitative"]
    (tmp_path / "alleles.csv").write_text("\n".join(lines) + "\n")
    alleles = gate_weight.read_alleles(tmp_path / "alleles.csv")
    assert list(alleles) == list(gate_weight.HELD_OUT)
    one = alleles["HLA-B*44:03"]
    assert one.sequences == ("AAAAAAAAA", "CCCCCCCCC")
    assert one.target_values == pytest.approx([300.0, 501.0])
    assert one.y.tolist() == [1, 0]


def test_the_page_marks_what_is_below():
    assert below({"mean": -0.02, "standard_error": 0.01})
    assert not below({"mean": -0.02, "standard_error": 0.03})
    assert not below({"mean": 0.0, "standard_error": None})


def test_the_default_is_what_the_published_figures_say():
    published = Path(__file__).parents[2] / "experiments/gate_weight/results.json"
    results = json.loads(published.read_text())
    default = f"{ConvexTransformerClassifier().gate_weight:g}"
    assert preferred(results) == default
    package = [cell for cell in results["cells"] if ":" not in cell["dataset"]]
    assert {cell["dataset"] for cell in package} == {*gate_weight.DATASETS}
    assert not any(below(cell["test"][default]) for cell in package)
