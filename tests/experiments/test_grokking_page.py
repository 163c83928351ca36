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
from convexformer.experiments.grokking_studies import RATES

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


SETTLED = {"all_settled": [100, 100]}


def slower(results, reached=True, **times):
    """The results with contestants that take so many times the gated layer's steps, settled."""
    gated = row_of(results, "gated")
    others = [row for row in results["rows"] if row["name"] not in ("power", "power-wide", *times)]
    made = []
    for name, factor in times.items():
        steps = factor * gated["steps_to_99"]
        until = {"steps_to_99": steps if reached else None, "last_step": steps}
        made.append(gated | {"name": name} | until)
        made.append({"study": "tuning", "name": name, "recipe": gated["recipe"]} | SETTLED)
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


def evidence_of(results, paper):
    (claim,) = (claim for claim in claims(results) if claim.paper == paper)
    return claim.evidence


def test_multiples_are_told_of_settled_recipes_only(results):
    told = slower(results, **{"power-default": 20, "power": 4})
    assert "standard block 4.0x and" in evidence_of(told, SPEED)
    row = row_of(told, "power")
    for change in (
        {"steps_to_99": None, "best": 0.9},  # it did not learn
        {"recipe": row["recipe"] | {"lr": max(RATES)}},  # chosen at an edge
    ):
        rows = [row | change if one is row else one for one in told["rows"]]
        words = evidence_of(told | {"rows": rows}, SPEED)
        assert "4.0x" not in words and "without a multiple: standard block" in words
    unsettled = [one for one in told["rows"] if one["study"] != "tuning"]
    assert "4.0x" not in evidence_of(told | {"rows": unsettled}, SPEED)


def test_a_given_recipe_has_a_multiple_only_if_most_seeds_stay(results):
    told = slower(results, **{"power-default": 20, "power": 4})
    row_of(told, "power-default")["persistent"] = 0
    assert "20.0x" not in evidence_of(told, SPEED) and "20.0x" not in render(told, {})
    row_of(told, "power-default")["persistent"] = 5
    assert "20.0x" in evidence_of(told, SPEED) and "20.0x" in render(told, {})


def test_no_multiple_of_who_did_not_settle_is_on_the_stored_page(stored):
    page = (ROOT / "docs/grokking.md").read_text().split("## The contest")[1].split("## Why")[0]
    bare = {"standard block, Power et al.'s recipe", "standard block, OrthoGrad", "4 gated layers"}
    lines = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line[:2] == "| "}
    assert all("x |" not in lines[name] for name in bare) and "x |" in lines["standard block"]


def small(name, best, last, share=0.8, fitted=1.0):
    one = {"setting": [0.01, 1.0, 1.0], "share": share, "steps": 2000, "study": "small"}
    told = {"best": best, "last": last, "first_99": [None for _ in best]}
    return one | {"name": name, "curve": {"train": {"median": [0.2, fitted]}}} | told


@pytest.mark.parametrize(
    ("best", "last", "verdict"),
    [
        ([0.5] * 3, [0.5] * 3, "does not hold"),
        ([1, 0.9, 0.5], [1, 0.9, 0.5], "holds in part"),
        ([1, 1, 1], [1, 0.8, 0.8], "holds in part"),  # touched once, not kept
        ([1, 1, 0.5], [1, 1, 0.5], "holds"),
    ],
)
def test_four_layers_hold_only_if_they_end_at_the_level(results, best, last, verdict):
    results["small"] = [small("gated", [0.3] * 3, [0.2] * 3), small("gated-4", best, last)]
    told = verdicts(results)
    assert told["Modulo 15 one layer fails, and four reach 99 %."] == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([0.5, 0.5, 0.5, 0.2], "holds"),
        ([0.5, 0.5, 0.2, 0.2], "does not hold"),
        ([0.5, 0.2, 0.2, 0.2], "does not hold"),
    ],
)
def test_modulo_15_is_compared_split_by_split(results, ours, verdict):
    results["small"] = [small("gated", ours, ours), small("power", [0.9] * 4, [0.3] * 4)]
    assert verdicts(results)["Modulo 15 the convex model generalises better."] == verdict
    results["small"].append(small("power", [0.9] * 4, [0.6] * 4, share=0.5))
    results["small"].append(small("gated", ours, ours, share=0.5))
    told = verdicts(results)["Modulo 15 the convex model generalises better."]
    assert told == ("holds in part" if verdict == "holds" else verdict)


DEEPER = "A second layer makes the convex model much faster, the standard one not."


@pytest.mark.parametrize(
    ("factor", "standard", "verdict"),
    [
        (0.5, 5, "holds"),
        (0.5, 2, "holds in part"),  # the standard one, too
        (0.9, 5, "does not hold"),  # within the steps between two measurements
        (3, 5, "does not hold"),
    ],
)
def test_two_layers_hold_only_if_they_are_faster(results, factor, standard, verdict):
    results["rows"] = [row for row in results["rows"] if row["study"] != "depth"]
    told = slower(results, **{"gated-2": factor, "power": 4, "power-2": standard})
    assert verdicts(told)[DEEPER] == verdict


def test_a_gated_layer_that_does_not_learn_is_told_of(results):
    row_of(results, "gated").update(steps_to_99=None, last_step=3000)
    assert verdicts(results)[SPEED] == "does not hold"
    assert "The gated layer does not learn in 3,000 steps" in render(results, {})


@pytest.mark.parametrize(("gap", "verdict"), [(0, "holds"), (300, "half true")])
def test_grokking_is_mitigated_if_the_gap_is_shorter(results, gap, verdict):
    gaps = {"gated": gap, "power": 200, "power-default": 3000}
    some = {"study": "contest", "steps_to_fit": 100, "last_step": 100}
    made = [some | {"name": name, "steps_to_99": 100 + gap} for name, gap in gaps.items()]
    told = slower(results, power=4) | {"records": made}
    key = "It mitigates grokking: it generalises soon after it fits."
    assert verdicts(told)[key] == verdict


@pytest.mark.parametrize(
    ("learnt", "words"), [(1.0, "is the embedding"), (0.3, "a part"), (0.02, "embedding alone")]
)
def test_the_convex_layer_decides_what_the_embedding_is_worth(results, learnt, words):
    solved = {"rules": {"tolerance": 1e-6}, "relative_gap": 1e-7, "gates": 0}
    told = {"random": 0.01, "learnt": learnt}
    results["convex"] = [
        solved | {"embedding": one, "test_accuracy": height} for one, height in told.items()
    ]
    assert words in why(results)[-1]


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
        "Not learnt by the median seed in as many steps as were given: c (best 50 %).",
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


def test_what_was_hardly_chosen_is_told(results):
    tuning = row_of(results, "gated") | {"study": "tuning", "all_settled": [None]}
    grid = [{"lr": 0.02, "decay": 1.0, "scale": 1.0, "last": 0.1}]
    choice = small("gated", [], []) | {"setting": None, "grid": grid}
    results["small"] = [
        choice,
        small("gated", [0.5], [0.4]),
        small("power", [0.5], [0.4], fitted=0.7),
    ]
    page = render(results | {"rows": [row_of(results, "gated"), tuning]}, {})
    assert "no recipe of the search settled, so that" in page
    assert "and so hardly chosen: gated layer (80%)." in page
    assert "told at the end by: standard block (80%)." in page
    tuning["all_settled"], grid[0]["last"] = [None, 150], 0.3
    page = render(results | {"rows": [row_of(results, "gated"), tuning]}, {})
    assert "settled, so that" not in page and "hardly chosen" not in page


def test_the_readme_tells_the_stored_numbers(stored):
    words = "in {} steps, a standard block tuned alike in {}, a plain MLP in {} ("
    steps = [f"{row_of(stored, name)['steps_to_99']:,.0f}" for name in ("gated", "power", "mlp")]
    assert words.format(*steps) in (ROOT / "README.md").read_text()


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


def test_longer_runs_stand_beside_shorter_ones(results):
    assert "Would more steps do it?" not in render(results | {"longer": []}, {})
    results["small"] = [small("gated-4", [0.4] * 3, [0.3] * 3)]
    results["longer"] = [small("gated-4", [0.99] * 3, [0.8] * 3) | {"steps": 20_000}]
    page = render(results, {})
    assert "| 4 gated layers | 80% | 2,000 | 40 % | 30 % | 0 of 3 |" in page
    assert "| 4 gated layers | 80% | 20,000 | 99" in page


def test_a_page_of_nothing_says_so(results):
    for key in ("rows", "records", "convex", "small", "longer"):
        results[key] = []
    page = render(results | {"complete": False}, {})
    assert "Not all jobs are done yet" in page and "No figure" in page and "Not run: gated" in page
    assert claims(results) == [] and why(results) == ["The ablations have not been run."]
    assert draw_all(results) == {}
