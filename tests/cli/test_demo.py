"""The demo keeps its promises."""

import json
import os

import pytest


@pytest.fixture(scope="module")
def demo(run, tmp_path_factory):
    """One run of the demo: its JSON and the folder of its figures."""
    folder = tmp_path_factory.mktemp("demo") / "figures"
    out = run("demo", "--out", folder, "--json").stdout
    assert out.count("\n") == 1
    return json.loads(out), folder


def test_the_optimum_is_certified(demo):
    result, _ = demo
    assert -1e-12 <= result["relative_gap"] <= 1e-6
    assert result["certificate"]["relative_gap"] == result["relative_gap"]


def test_the_anchors_come_first(demo):
    result, _ = demo
    assert result["entry_order"][:2] == ["P2", "P9"]
    assert set(result["tokens"][:2]) == {"P2", "P9"}
    assert result["n_tokens_used"] == len(result["tokens"])
    reads = {token: {term["channel"] for term in result["reads"][token]} for token in ("P2", "P9")}
    assert {"L", "M"} <= reads["P2"] and {"L", "V"} <= reads["P9"]  # as biologists know them


def test_it_ranks_as_well_as_logistic_regression(demo):
    result, _ = demo
    assert result["test_auc"] >= result["logistic_auc"] - 0.002
    assert result["logistic_auc"] > 0.93


def test_it_is_quick_and_writes_two_figures(demo):
    result, folder = demo
    assert result["seconds"] < 60
    assert result["figures"] == [str(folder / "tokens.png"), str(folder / "path.png")]
    for name in ("tokens.png", "path.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_story_in_its_own_folder(run, tmp_path, monkeypatch):
    """In ./demo it replaces its own figures and leaves other files alone."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("demo")
    for name in ("tokens.png", "notes.txt"):
        (tmp_path / "demo" / name).write_text("old")
    out = run("demo").stdout
    for words in ("HLA-A*02:01", "P2 and P9 decide most", "Certified optimum", "demo/tokens.png"):
        assert words in out
    assert (tmp_path / "demo" / "notes.txt").read_text() == "old"
    assert (tmp_path / "demo" / "tokens.png").read_bytes().startswith(b"\x89PNG")
