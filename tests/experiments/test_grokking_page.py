"""The page and the figures of the grokking experiment: nothing but the results decides them."""

import copy
import json
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

from convexformer.experiments.grokking_claims import claims, seconds_of, why
from convexformer.experiments.grokking_figures import draw_all
from convexformer.experiments.grokking_page import FIGURES, render

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stored():
    return json.loads((ROOT / "benchmarks/grokking/results.json").read_text())


@pytest.fixture
def results(stored):
    return copy.deepcopy(stored)


def verdicts(results):
    return {claim.paper: claim.verdict for claim in claims(results)}


def test_page_and_figures_in_the_docs_are_made_from_the_stored_results(stored):
    matplotlib.use("Agg")
    figures = draw_all(stored)
    assert {"mod97", "bars", "ablations"} <= set(figures) <= set(FIGURES)
    assert min(len(ax.lines) for ax in figures["mod97"].axes) >= 3
    plt.close("all")
    links = {name: f"figures/grokking-{name}.png" for name in figures}
    assert (ROOT / "docs/grokking.md").read_text() == render(stored, links)
    for link in links.values():
        assert (ROOT / "docs" / link).stat().st_size > 1000


def row_of(results, name):
    return next(r for r in results["rows"] if r["study"] == "contest" and r["name"] == name)


def slower(results, **times):
    """The results with contestants that take so many times the gated layer's steps."""
    gated = row_of(results, "gated")
    others = [row for row in results["rows"] if row["name"] not in ("power", "power-slow", *times)]
    made = [
        gated | {"name": name, "steps_to_99": factor * gated["steps_to_99"]}
        for name, factor in times.items()
    ]
    return results | {"rows": others + made}


@pytest.mark.parametrize(
    ("default", "tuned", "verdict"),
    [(20, 12, "holds"), (20, 4, "half true"), (5, 4, "does not hold")],
)
def test_the_verdict_on_speed_turns_with_the_numbers(results, default, tuned, verdict):
    told = verdicts(slower(results, **{"power-default": default, "power": tuned}))
    assert told["Convex training generalises 10x faster."] == verdict


@pytest.mark.parametrize(
    ("best", "verdict"),
    [([0.5] * 3, "does not hold"), ([1, 0.9, 0.5], "holds in part"), ([1, 1, 0.5], "holds")],
)
def test_four_layers_hold_only_if_they_reach_the_level(results, best, verdict):
    one = {"setting": [0.01, 1.0], "share": 0.8}
    results["small"] = [
        one | {"name": "gated", "best": [0.3] * 20},
        one | {"name": "gated-4", "best": best},
    ]
    told = verdicts(results)
    assert told["Modulo 15 one layer fails, four reach 99 %, convex ones sooner."] == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "holds in part"), (3, "does not hold")])
def test_two_layers_hold_only_if_they_are_faster(results, factor, verdict):
    results["rows"] = [row for row in results["rows"] if row["study"] != "depth"]
    told = verdicts(slower(results, **{"gated-2": factor}))
    key = "A second layer makes the convex model much faster, the standard one not."
    assert told[key] == verdict


def test_seconds_are_steps_times_what_a_step_costs(results):
    row = row_of(results, "gated")
    results["milliseconds"] = {"gated": 20.0}
    assert seconds_of(results, row) == row["steps_to_99"] * 0.02
    assert seconds_of(results, row | {"steps_to_99": None}) is None


def test_a_page_of_nothing_says_so(results):
    for key in ("rows", "records", "convex", "small"):
        results[key] = []
    page = render(results | {"complete": False}, {})
    assert "Not all jobs are done yet" in page and "No figure" in page and "Not run: gated" in page
    assert claims(results) == [] and why(results) == ["The ablations have not been run."]
    assert draw_all(results) == {}
