"""The demo keeps its promises."""

import json
import os

import pytest

import convexformer.demo


@pytest.fixture(scope="module")
def demo(run, tmp_path_factory):
    """One run of the demo: its JSON, the folder of its figures, and what it found."""
    folder = tmp_path_factory.mktemp("demo") / "figures"
    found = []
    with pytest.MonkeyPatch.context() as patch:
        original = convexformer.demo.run_demo
        patch.setattr("convexformer.demo.run_demo", lambda r: found.append(original(r)) or found[0])
        out = run("demo", "--out", folder, "--json").stdout
    assert out.count("\n") == 1
    return json.loads(out), folder, found[0]


@pytest.fixture
def shown(demo):
    return demo[:2]


def test_the_optimum_is_certified(shown):
    result, _ = shown
    assert -1e-12 <= result["relative_gap"] <= 1e-6
    assert result["certificate"]["relative_gap"] == result["relative_gap"]


def test_the_anchors_come_first(shown):
    result, _ = shown
    assert result["top_tokens"][:2] == ["P2", "P9"]
    assert result["n_tokens_used"] == len(result["top_tokens"])


def test_it_ranks_as_well_as_logistic_regression(shown):
    result, _ = shown
    assert result["test_auc"] >= result["logistic_auc"] - 0.002
    assert result["logistic_auc"] > 0.93


def test_the_sparse_model_has_its_own_certificate(shown):
    result, _ = shown
    sparse = result["sparse"]
    assert 1 <= sparse["n_tokens_used"] == len(sparse["tokens"]) <= 5
    assert set(sparse["tokens"][:2]) == {"P2", "P9"}
    assert sparse["relative_gap"] <= 1e-6 and sparse["test_auc"] > 0.8
    assert sparse["beta"] > result["beta"]
    relaxed = result["relaxed"]
    assert set(relaxed["tokens"]) <= set(sparse["tokens"]) and relaxed["relative_gap"] <= 1e-6
    assert relaxed["test_auc"] > sparse["test_auc"]


def test_it_is_quick_and_writes_two_figures(shown):
    result, folder = shown
    assert result["seconds"] < 60
    assert result["figures"] == [str(folder / "tokens.png"), str(folder / "path.png")]
    for name in ("tokens.png", "path.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_story_in_its_own_folder(run, demo, tmp_path, monkeypatch):
    """In ./demo it replaces its own figures and leaves other files alone."""
    monkeypatch.setattr("convexformer.demo.run_demo", lambda report: demo[2])
    monkeypatch.chdir(tmp_path)
    os.mkdir("demo")
    for name in ("tokens.png", "notes.txt"):
        (tmp_path / "demo" / name).write_text("old")
    out = run("demo").stdout
    for words in ("HLA-A*02:01", "P2 and P9 decide most", "Certified optimum", "demo/tokens.png"):
        assert words in out
    assert (tmp_path / "demo" / "notes.txt").read_text() == "old"
    assert (tmp_path / "demo" / "tokens.png").read_bytes().startswith(b"\x89PNG")
