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
    for job in maps.jobs_of(settings):
        names = [name for name, owner in maps.MAPS.items() if owner == job.student]
        alike = {tokens: {m: [0.25, 0.75] for m in MEASURES} for tokens in ("all", "words")}
        shown = {name: uniform for name in (*names, "teacher")}
        record = {
            "settings": {k: v for k, v in asdict(settings).items() if k != "seeds"},
            "text": "prose",
            "n_texts": [6, 2, 2],
            "shares": [0.4, 0.6 + 0.06 * job.training],
            "relative_gap": 1e-8,
            "heads": [1, 0],
            "likeness": {name: alike for name in (*names, "uniform")},
            "example": {"tokens": ["[CLS]", "tree", "[SEP]"], "maps": shown},
        }
        (tmp_path / f"{job}.json").write_text(json.dumps(record))
    return tmp_path


def test_finished_jobs_are_told_and_drawn(run, run_json, finished):
    told = run_json("reproduce", "maps", "--out", finished)
    rows = {row["map"]: row for row in told["rows"]}
    assert set(rows) == {*maps.MAPS, "uniform"}
    assert rows["simplex"]["share"] == pytest.approx(0.53)
    assert rows["simplex"]["words_cosine"] == 0.5 and rows["simplex"]["trainings"] == 3
    assert rows["simplex"]["errors"]["share"] == pytest.approx(0.03 / 3**0.5)
    assert (finished / "maps.png").stat().st_size > 5000
    results = json.loads((finished / "results.json").read_text())
    assert [example["head"] for example in results["examples"]] == [1, 0]
    shown = run("reproduce", "maps", "--out", finished).stdout
    words = " ".join(shown.split())
    assert "softmax, undertrained" in words and "at most 1.0e-08" in words
    assert "2 heads and 3 seeds of trained students (standard errors at most 0.017)" in words
    one = run("reproduce", "maps", "--seeds", "1", "--out", finished).stdout
    assert "Means over 2 heads. Convex" in " ".join(one.split())


def test_a_missing_package_is_one_line(run, finished, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    told = run("reproduce", "maps", "--out", finished, code=2).stderr
    assert 'pip install "convexformer[bert]"' in told
