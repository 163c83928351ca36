"""The page of the grokking experiment: what its sentences say is what the results say."""

import copy
import json
import math
import re
from pathlib import Path
from statistics import median

import matplotlib
import pytest
from experiments.grokking.__main__ import EXPERIMENT
from experiments.grokking.experiment import RATES
from experiments.grokking.jobs import LEVEL
from experiments.grokking.page import certified, comparable, draw_all, facts, seconds_of, steps_of
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stored():
    return json.loads((ROOT / "experiments/grokking/results.json").read_text())


@pytest.fixture(scope="module")
def known(stored):
    return facts(stored)


@pytest.fixture
def results(stored):
    return copy.deepcopy(stored)


def row_of(results, name, study="contest"):
    return next(r for r in results["rows"] if r["study"] == study and r["name"] == name)


def section(page, title):
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_figures_show_the_stored_results(stored):
    matplotlib.use("Agg")
    figures = draw_all(stored)
    assert set(figures) == {
        f"grokking-{part}.png" for part in ("mod97", "bars", "depth", "mod15", "ablations")
    }
    assert min(len(ax.lines) for ax in figures["grokking-mod97.png"].axes) >= 3
    plt.close("all")


# The claims: the template has the words, the results must bear them out -------------------------


def verdicts():
    """Of the template, in its order."""
    claims = section((EXPERIMENT.home / "page.md").read_text(), "The claims")
    return re.findall(r"^\|.*?\| \*\*(.*?)\*\* \|", claims, flags=re.MULTILINE)


def test_the_first_sentence_counts_the_verdicts(stored):
    found = verdicts()
    counts = ", ".join(f'"{v}" {found.count(v)}' for v in dict.fromkeys(found))
    first = EXPERIMENT.text(stored).splitlines()[2]
    assert first.startswith(f"**The {len(found)} claims of the paper that were tested: {counts}.**")


def judged(known):
    """What the results say of the paper's claims, in the order of the page."""
    contest, gaps, losses, small = (known[k] for k in ("contest", "gaps", "losses", "small"))
    gated, power, default = (contest[name] for name in ("gated", "power", "power-default"))
    assert power["steps_to_99"] <= contest["power-wide"]["steps_to_99"]  # the best standard one
    late = any(
        steps_of(contest[n]) > 2 * contest[n]["steps_to_fit"] for n in ("power-default", "no-decay")
    )
    yield "holds in kind" if late else "does not hold"

    ten = [steps_of(row) >= 10 * steps_of(gated) for row in (default, power)]
    yield "holds" if all(ten) else "half true" if ten[0] else "does not hold"

    shorter = [gaps["gated"] < gaps[name] - 25 for name in ("power-default", "power")]
    yield "holds" if all(shorter) else "half true" if any(shorter) else "does not hold"

    yield "holds" if losses["gated"] < losses["power"] else "does not hold"

    sooner = [
        bool(two["steps_to_99"]) and steps_of(two) < steps_of(one) - 25
        for one, two in known["gated_pairs"]
    ]
    one, two = contest["power-wide"], contest["power-2"]
    standard = steps_of(two) < steps_of(one) - 25
    whole = all(sooner) and not standard
    yield "holds" if whole else "holds in part" if any(sooner) else "does not hold"

    held = [
        median(found["gated"]["best"]) < LEVEL <= median(found["gated-4"]["last"])
        for found in small.values()
    ]
    touched = any(max(found["gated-4"]["best"]) >= LEVEL for found in small.values())
    yield "holds" if all(held) else "holds in part" if touched else "does not hold"

    shares = [
        known["wins"](found[ours], found[theirs]) / known["splits"]
        for found in small.values()
        for ours, theirs in (("gated", "power"), ("gated-4", "power-4"))
    ]
    part = "holds in part" if max(shares) > 0.5 else "does not hold"
    yield "holds" if min(shares) >= 0.75 else part

    yield "not supported" if known["random_best"] < LEVEL else "open"


def test_every_verdict_is_what_the_results_say(known):
    assert list(judged(known)) == verdicts()


def test_sentences_that_conclude_are_right(known):
    """What follows a colon in the template, where it has no number to be filled in."""
    assert known["contest"]["mlp"]["comparable"] and known["contest"]["mlp"]["in_steps"] < 2
    assert 2 * known["random_best"] < known["learnt_best"] < LEVEL  # a part is the embedding
    assert steps_of(known["contest"]["power"]) < 10 * steps_of(known["contest"]["gated"])
    assert known["contest"]["power-default"]["in_steps"] >= 10


# Multiples --------------------------------------------------------------------------------------


def test_multiples_are_told_of_settled_recipes_only(results):
    assert comparable(results, row_of(results, "power"))
    row = row_of(results, "power")
    assert not comparable(results, row | {"steps_to_99": None})
    assert not comparable(results, row | {"recipe": row["recipe"] | {"lr": max(RATES)}})
    results["rows"] = [r for r in results["rows"] if r["study"] != "tuning"]
    assert not comparable(results, row)


def test_a_given_recipe_has_a_multiple_only_if_most_seeds_stay(results):
    row = row_of(results, "power-default")
    words = f"Power et al.'s recipe {facts(results)['contest']['power-default']['in_steps']:.1f}x"
    assert not comparable(results, row) and words not in EXPERIMENT.text(results)
    row["persistent"] = 5
    assert comparable(results, row) and words in EXPERIMENT.text(results)


def test_no_multiple_of_who_did_not_settle_is_on_the_page(stored):
    page = section(EXPERIMENT.text(stored), "The contest")
    bare = {"standard block, Power et al.'s recipe", "standard block, OrthoGrad", "4 gated layers"}
    lines = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line[:2] == "| "}
    assert all("x |" not in lines[name] for name in bare) and "x |" in lines["standard block"]


def test_seconds_are_steps_times_what_a_step_costs(results):
    row = row_of(results, "gated")
    results["milliseconds"] = {"gated": 20.0}
    assert seconds_of(results, row) == row["steps_to_99"] * 0.02
    unfinished = row | {"steps_to_99": None, "last_step": 1000}
    assert seconds_of(results, unfinished) == 20.0


# Other sentences --------------------------------------------------------------------------------


def test_a_gated_layer_that_does_not_learn_is_told_of(results):
    row_of(results, "gated").update(steps_to_99=None, last_step=3000)
    assert "The gated layer does not learn in 3,000 steps" in EXPERIMENT.text(results)


def test_ablations_are_told_by_where_they_stand(results):
    base = row_of(results, "as chosen", "ablation") | {"best": 0.5, "last_step": 700}
    steps = {"as chosen": 150, "a": 125, "b": 400, "c": None, "d": 75}
    others = [row for row in results["rows"] if row["study"] != "ablation"]
    made = [base | {"name": name, "steps_to_99": n} for name, n in steps.items()]
    page = section(EXPERIMENT.text(results | {"rows": others + made}), "Why is it fast?")
    assert page.strip().splitlines()[:5] == [
        "- As chosen, the gated layer learns in 150 steps.",
        "- Not learnt by the median seed in as many steps as were given: c (best 50 %).",
        "- Slower: b (400).",
        "- As fast, within the 25 steps between two measurements: a (125).",
        "- Faster: d (75).",
    ]


def test_choices_at_an_edge_of_the_range_are_told(results):
    gated = row_of(results, "gated")
    for lr, told in ((0.01, False), (0.08, True)):
        gated["recipe"] |= {"lr": lr, "weight_decay": 1.0}
        assert row_of(facts(results), "gated")["edge"] == told
        (line,) = (x for x in EXPERIMENT.text(results).splitlines() if "- Chosen at an edge" in x)
        assert (" gated layer;" in line) == told


def test_what_was_hardly_chosen_is_told(results):
    known = facts(results)
    assert "gated layer (80%)" in known["hardly_chosen"] and "HyperCube" not in known["unfit"]
    for record in results["small"]:
        if record["name"] == "gated" and not record["setting"]:
            record["grid"][0]["last"] = 0.3
        if record["name"] == "hypercube" and record["setting"]:
            record["curve"]["train"]["median"][-1] = 0.7
    known = facts(results)
    assert "gated layer" not in known["hardly_chosen"]
    assert "HyperCube (80%)" in known["unfit"] and "HyperCube (50%)" in known["unfit"]


def test_the_readme_tells_the_stored_numbers(stored):
    words = "in {} steps, a standard block tuned alike in {}, a plain MLP in {} ("
    steps = [f"{row_of(stored, name)['steps_to_99']:,.0f}" for name in ("gated", "power", "mlp")]
    assert words.format(*steps) in (ROOT / "README.md").read_text()


def test_other_splits_are_told_in_a_line(results):
    one = row_of(results, "gated", "splits") | {"seeds": 2, "persistent": 1}
    others = [row for row in results["rows"] if row["study"] != "splits"]
    told = EXPERIMENT.text(results | {"rows": [*others, one | {"all_steps_to_99": [125, None]}]})
    assert "with the same recipes: gated layer 125, no steps, persistent in 1 of 2." in told


def test_only_what_is_solved_is_called_certified(results):
    rules = {"tolerance": 1e-3}
    assert not certified({"relative_gap": 0.2, "rules": rules})
    assert certified({"relative_gap": 1e-4, "rules": rules})
    assert EXPERIMENT.text(results).count("(not certified)") == 1
    for record in results["convex"]:
        record["relative_gap"] = min(record["relative_gap"], record["rules"]["tolerance"])
    assert "(not certified)" not in EXPERIMENT.text(results)


def test_longer_runs_stand_beside_shorter_ones(stored):
    (one,) = stored["longer"]
    page = section(EXPERIMENT.text(stored), "Modulo 15")
    for steps in ("5,000", f"{one['steps']:,}"):
        assert f"| 4 gated layers | 50% | {steps} | " in page
    assert math.isclose(facts(stored)["longer"][1]["share"], one["share"])
