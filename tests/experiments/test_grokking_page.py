"""The page and the figures of the grokking experiment: nothing but the results decides them."""

import copy
import json
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

from convexformer.experiments.grokking_claims import certified, claims, seconds_of, why
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


def slower(results, reached=True, **times):
    """The results with contestants that take so many times the gated layer's steps."""
    gated = row_of(results, "gated")
    others = [row for row in results["rows"] if row["name"] not in ("power", "power-wide", *times)]
    made = []
    for name, factor in times.items():
        steps = factor * gated["steps_to_99"]
        until = {"steps_to_99": steps if reached else None, "last_step": steps}
        made.append(gated | {"name": name} | until)
    return results | {"rows": others + made}


SPEED = "Convex training generalises 10x faster."


@pytest.mark.parametrize(
    ("default", "tuned", "verdict"),
    [(20, 12, "holds"), (20, 4, "half true"), (5, 4, "does not hold")],
)
def test_the_verdict_on_speed_turns_with_the_numbers(results, default, tuned, verdict):
    told = verdicts(slower(results, **{"power-default": default, "power": tuned}))
    assert told[SPEED] == verdict


@pytest.mark.parametrize(("default", "verdict"), [(20, "holds"), (5, "open")])
def test_who_never_gets_there_counts_with_the_steps_it_had(results, default, verdict):
    told = slower(results, reached=False, **{"power-default": default, "power": 12})
    assert verdicts(told)[SPEED] == verdict
    (claim,) = (claim for claim in claims(told) if claim.paper == SPEED)
    assert f"> {default}.0x" in claim.evidence and "> 12.0x" in claim.evidence
    assert f"> {default}.0x" in render(told, {})


@pytest.mark.parametrize(
    ("best", "verdict"),
    [([0.5] * 3, "does not hold"), ([1, 0.9, 0.5], "holds in part"), ([1, 1, 0.5], "holds")],
)
def test_four_layers_hold_only_if_they_reach_the_level(results, best, verdict):
    one = {"setting": [0.01, 1.0, 1.0], "share": 0.8}
    results["small"] = [
        one | {"name": "gated", "best": [0.3] * 20},
        one | {"name": "gated-4", "best": best},
    ]
    told = verdicts(results)
    assert told["Modulo 15 one layer fails, and four reach 99 %."] == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "holds"), (3, "does not hold")])
def test_two_layers_hold_only_if_they_are_faster(results, factor, verdict):
    results["rows"] = [row for row in results["rows"] if row["study"] != "depth"]
    told = verdicts(slower(results, **{"gated-2": factor}))
    key = "A second layer makes the convex model much faster, the standard one not."
    assert told[key] == verdict


def test_seconds_are_steps_times_what_a_step_costs(results):
    row = row_of(results, "gated")
    results["milliseconds"] = {"gated": 20.0}
    assert seconds_of(results, row) == row["steps_to_99"] * 0.02
    unfinished = row | {"steps_to_99": None, "last_step": 1000}
    assert seconds_of(results, unfinished) == 20.0


def test_ablations_are_told_by_where_they_stand(results):
    base = row_of(results, "gated") | {"study": "ablation", "best": 0.5, "last_step": 700}
    steps = {"as chosen": 150, "a": 125, "b": 400, "c": None, "d": 75}
    others = [row for row in results["rows"] if row["study"] != "ablation"]
    made = [base | {"name": name, "steps_to_99": n} for name, n in steps.items()]
    sentences = why(results | {"rows": others + made})
    assert sentences[:5] == [
        "As chosen, the gated layer learns in 150 steps.",
        "Not learnt in as many steps as were given: c (best 50 %).",
        "Slower: b (400).",
        "As fast, within the 25 steps between two measurements: a (125).",
        "Faster: d (75).",
    ]


@pytest.mark.parametrize(("factor", "words"), [(1.2, "not the gated layer's own"), (3, "a share")])
def test_the_control_decides_what_the_layer_has_to_do_with_it(results, factor, words):
    base = row_of(results, "gated") | {"study": "ablation", "name": "as chosen"}
    told = slower(results, mlp=factor)
    sentences = why(told | {"rows": [*told["rows"], base]})
    assert any(words in sentence for sentence in sentences)


def test_choices_at_an_edge_of_the_range_are_told(results):
    gated = row_of(results, "gated")
    for lr, told in ((0.01, False), (0.08, True)):
        gated["recipe"] |= {"lr": lr, "weight_decay": 1.0}
        left_out = render(results | {"rows": [gated]}, {}).split("## What the budget left out")[1]
        assert ("more may lie beyond: gated layer." in left_out) == told


def test_other_splits_are_told_in_a_line(results):
    one = row_of(results, "gated") | {"study": "splits", "seeds": 2, "persistent": 1}
    told = render(results | {"rows": [one | {"all_steps_to_99": [125, None]}]}, {})
    words = "with the same recipes: gated layer 125, no steps, persistent in 1 of 2."
    assert words in told


def test_only_what_is_solved_is_called_certified(results):
    rules = {"tolerance": 1e-3}
    one = {"embedding": "random", "loss": "softmax", "gates": 16, "beta": 0.5, "rules": rules}
    one |= {"train_accuracy": 0.5, "test_accuracy": 0.01, "seconds": 1.0}
    results["convex"] = [one | {"relative_gap": 0.2}]
    assert certified(results, "random") == [] and "2e-01 (not certified)" in render(results, {})
    assert "Grokking is due to nonconvexity." not in verdicts(results)
    results["convex"] = [one | {"relative_gap": 1e-4}]
    assert "(not certified)" not in render(results, {})
    assert verdicts(results)["Grokking is due to nonconvexity."] == "not supported"


def test_a_page_of_nothing_says_so(results):
    for key in ("rows", "records", "convex", "small"):
        results[key] = []
    page = render(results | {"complete": False}, {})
    assert "Not all jobs are done yet" in page and "No figure" in page and "Not run: gated" in page
    assert claims(results) == [] and why(results) == ["The ablations have not been run."]
    assert draw_all(results) == {}
