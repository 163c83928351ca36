"""The bench command: a table for people, and one JSON object."""

import pytest

from convexformer import bench, solvers


@pytest.fixture(autouse=True)
def small(monkeypatch):
    cells = (bench.Cell("isotropic", 60, 5, 3), bench.Cell("scalar", 60, 8, 1, correlated=True))
    monkeypatch.setattr(bench, "CELLS", cells)


def test_json_holds_certified_times(run_json):
    result = run_json("bench")
    assert (result["gap"], result["threads"]) == (1e-6, 1)
    assert result["compiled"] is solvers.COMPILED
    timings = result["timings"]
    assert [t["solver"] for t in timings if t["cell"] == "isotropic"] == ["convexformer"] * 3
    assert "scikit-learn" in [t["solver"] for t in timings if t["cell"] == "scalar"]
    assert [t["fraction"] for t in timings[:3]] == [0.5, 0.1, 0.02]
    for timing in timings:
        assert timing["relative_gap"] <= 1e-6 and timing["seconds"] > 0 and timing["tokens"] > 0


def test_the_table_fits_a_terminal(run):
    shown = run("bench", "--cell", "scalar").stdout
    assert "60 x 8 x 1" in shown and "scikit-learn" in shown and "isotropic" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_unknown_cell_is_named(run):
    assert "choose from isotropic, scalar" in run("bench", "--cell", "wide", code=2).stderr


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_not_compiled_is_told(run, monkeypatch, compiled):
    monkeypatch.setattr(solvers, "COMPILED", compiled)
    assert ("not compiled" in run("bench", "--cell", "scalar").stdout) is not compiled
