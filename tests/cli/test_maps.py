"""``convexformer reproduce maps``: a table, JSON and a figure, from finished jobs."""

import json
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("transformers")

from convexformer.experiments import maps

MEASURES = ("cosine", "correlation", "jensen_shannon")


@pytest.fixture
def finished(tmp_path):
    """Jobs that are done: nothing is left to extract or to train."""
    settings = maps.Settings()
    uniform = np.full((2, 3, 3), 1 / 3).tolist()
    for job in ("softmax", "undertrained", "simplex", "convex"):
        names = [name for name, owner in maps.MAPS.items() if owner == job]
        alike = {tokens: {m: [0.25, 0.75] for m in MEASURES} for tokens in ("all", "words")}
        example = {"tokens": ["[CLS]", "tree", "[SEP]"], "teacher": uniform}
        record = {
            "settings": asdict(settings),
            "text": "prose",
            "n_texts": [6, 2, 2],
            "shares": [0.4, 0.6],
            "relative_gap": 1e-8,
            "likeness": {name: alike for name in (*names, "uniform")},
            "example": example | {"maps": {name: uniform for name in names}},
        }
        (tmp_path / f"{job}.json").write_text(json.dumps(record))
    return tmp_path


def test_finished_jobs_are_told_and_drawn(run, run_json, finished):
    told = run_json("reproduce", "maps", "--out", finished)
    rows = {row["map"]: row for row in told["rows"]}
    assert set(rows) == {*maps.MAPS, "uniform"}
    assert rows["simplex"]["share"] == 0.5 and rows["simplex"]["words_cosine"] == 0.5
    assert (finished / "maps.png").stat().st_size > 5000
    results = json.loads((finished / "results.json").read_text())
    assert [example["head"] for example in results["examples"]] == [1, 0]
    shown = run("reproduce", "maps", "--out", finished).stdout
    assert "softmax, undertrained" in shown and "at most 1.0e-08" in " ".join(shown.split())


def test_a_missing_package_is_one_line(run, finished, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    told = run("reproduce", "maps", "--out", finished, code=2).stderr
    assert 'pip install "convexformer[bert]"' in told
