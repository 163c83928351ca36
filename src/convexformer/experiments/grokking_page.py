"""The page of the grokking experiment, in Markdown, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from .grokking_claims import claims, contest_row, percent, seconds_of, why
from .grokking_small import SHARES, SMALL, SPLITS, STEPS, TUNING_SPLITS, VALIDATION
from .grokking_studies import CONTESTANTS, TUNING_SEED, TUNING_STEPS
from .records import Record, environment_line, table

PAGE = """\
# Grokking: which of the paper's claims hold?

Made by `{command}` from `results.json`, last run {date} UTC. All numbers come from there.{partial}

{environments}

The task is that of Power et al. (2022): all 9,312 equations a ÷ b = c modulo 97, half of them to
train on. A network has learnt it when it tells 99 % of the other half. What the paper calls convex
training is, in a trained network, **not convex**: embeddings are trained and gates follow them.
It is a gated *layer* that is compared here. The truly convex layer is further down.

## The claims

{claims}

{figure_mod97}

## The contest

Steps and seconds are to the first measurement (every 25 steps) of at least 99 % test accuracy,
medians over seeds. Persistent: every measurement of the next 500 steps is at 99 %, too. Seconds are
steps times the processor time of a step on one thread, timed in turns for all contestants.

{contest}

{figure_bars}

## Why is it fast?

{why}

{ablations}

{figure_ablations}

## The truly convex layer

Embeddings fixed, so that the program is convex, and solved to a certificate: squared loss on
one-hot answers with the `token` penalty, or softmax. Beta is a fraction of the strength at which
all coefficients are zero. Chance is 1 %. "Learnt" embeddings come from a gated network trained on
the same half, and are then fixed. Where the gap is above 1e-3 time was over before the optimum was
reached, and the numbers are not those of the optimum.

{convex}

## Depth

{depth}

{figure_depth}

## Modulo 15

Fifteen is no prime. Division is defined by the units alone: 15 numerators and 8 denominators, 120
equations. {splits} random splits each; settings chosen on {validation:.0%} of the training part of
{tuning_splits} splits, {steps:,} steps (four standard blocks: half of that), whole batches.
*Best* is the highest test accuracy of a split at any time, which flatters everyone; *end* is the
mean of its last measurements. Both are medians over splits. HyperCube and the squared MLP are upper
references, made for such tables.

{small}

{figure_mod15}

## Hyperparameters

Those who are tuned have the same grid ({grid} recipes: learning rates {rates}; weight decay
{decays}, or for the group lasso three strengths), the gradient clipped at 0.25 and weights averaged
(0.95) for all alike, AdamW's betas 0.9 and 0.98, 10 steps of warm-up, batches of 512. They are
chosen on a tenth of the training half of one further split (seed {seed}), not of the splits that
are reported: half of its equations are in the test half of each of those. What counts is the step
from which accuracy stays at 99 % for 250 steps. Recipes are given up after {tuning_steps:,} steps,
or when they can no longer be the first; the best lie at the edge of the grid. Groups at zero are
counted in the weights as trained, accuracies are of the averaged ones.

{recipes}

## What the budget left out

{left_out}
"""


FIGURES = {
    "mod97": (
        "Accuracies and loss modulo 97",
        "Lines are medians over seeds, bands reach from the lowest to the highest seed. Runs end "
        "500 steps\nafter they first reach 99 %.",
    ),
    "bars": (
        "Steps to 99 %, and from fitting to generalising",
        "Bars are medians, dots seeds; contestants of which no seed reached 99 % are left out.",
    ),
    "ablations": (
        "Steps to 99 % of each ablation",
        "Bars are medians, dots seeds; in brackets, how many seeds reached 99 %.",
    ),
    "depth": ("One layer against two", "Lines are medians over seeds, bands all seeds."),
    "mod15": ("Modulo 15", "Lines are medians over splits, bands quartiles."),
}


def render(results: Record, figures: Mapping[str, str]) -> str:
    """The page of `results`; `figures` are the paths of those that were drawn, by name."""
    rates = sorted({recipe.lr for recipe in CONTESTANTS["gated"].grid()})
    decays = sorted({recipe.weight_decay for recipe in CONTESTANTS["gated"].grid()})
    partial = "" if results["complete"] else " **Not all jobs are done yet.**"
    return PAGE.format(
        command=results["command"],
        date=results["date"],
        partial=partial,
        environments="\n".join(map(environment_line, results["environments"])),
        **{f"figure_{name}": _figure(name, figures) for name in FIGURES},
        claims=_claim_table(results),
        contest=_contest_table(results),
        why="\n".join(f"- {sentence}" for sentence in why(results)),
        ablations=_ablation_table(results),
        convex=_convex_table(results),
        depth=_depth_table(results),
        splits=SPLITS,
        tuning_splits=TUNING_SPLITS,
        validation=VALIDATION,
        steps=STEPS,
        small=_small_table(results),
        grid=len(CONTESTANTS["gated"].grid()),
        rates=", ".join(f"{rate:g}" for rate in rates),
        decays=", ".join(f"{decay:g}" for decay in decays),
        seed=TUNING_SEED,
        tuning_steps=TUNING_STEPS,
        recipes=_recipe_table(results),
        left_out="\n".join(f"- {sentence}" for sentence in _left_out(results)),
    )


def _figure(name: str, figures: Mapping[str, str]) -> str:
    if name not in figures:
        return "(No figure: the jobs it needs have not been run.)"
    title, words = FIGURES[name]
    return f"![{title}]({figures[name]})\n\n*{words}*"


def _claim_table(results: Record) -> str:
    rows = [[claim.paper, f"**{claim.verdict}**", claim.evidence] for claim in claims(results)]
    return table(["the paper says", "", "we see"], rows)


def _steps(row: Record) -> str:
    if row["steps_to_99"] is None:
        return f"not in {row['last_step']:,.0f} (best {percent(row['best'])})"
    return f"{row['steps_to_99']:,.0f}"


def _contest_table(results: Record) -> str:
    gated = contest_row(results, "gated")
    rows = []
    for row in (r for r in results["rows"] if r["study"] == "contest"):
        seconds = seconds_of(results, row)
        ratio = ""
        if gated is not None and gated["steps_to_99"] and row["steps_to_99"]:
            ratio = f"{row['steps_to_99'] / gated['steps_to_99']:.1f}x"
        rows.append(
            [
                results["labels"][row["name"]],
                f"{row['parameters'] / 1000:.0f}k",
                _steps(row),
                ratio,
                "" if seconds is None else f"{seconds:.1f}",
                f"{row['reached']} of {row['seeds']}",
                f"{row['persistent']} of {row['seeds']}",
            ]
        )
    header = ["", "parameters", "steps to 99 %", "of the gated layer's", "seconds"]
    return table([*header, "seeds at 99 %", "persistent"], rows)


def _ablation_table(results: Record) -> str:
    rows = [
        [row["name"], _steps(row), f"{row['reached']} of {row['seeds']}"]
        + [f"{row['parameters'] / 1000:.0f}k", percent(row["zero_groups"] or 0.0)]
        for row in results["rows"]
        if row["study"] == "ablation"
    ]
    header = ["the gated layer", "steps to 99 %", "seeds at 99 %", "parameters", "groups at zero"]
    return table(header, rows)


def _convex_table(results: Record) -> str:
    header = ["embedding", "loss", "gates", "beta", "relative gap", "training", "test", "seconds"]
    rows = [
        [r["embedding"], r["loss"], str(r["gates"]), f"{r['beta']:g}", f"{r['relative_gap']:.0e}"]
        + [percent(r["train_accuracy"]), percent(r["test_accuracy"]), f"{r['seconds']:.1f}"]
        for r in results["convex"]
    ]
    return table(header, rows)


def _depth_table(results: Record) -> str:
    names = ("gated", "gated-2", "gated-4", "power", "power-2")
    found = [row for name in names if (row := contest_row(results, name))]
    found += [row for row in results["rows"] if row["study"] == "depth"]
    rows = [
        [
            results["labels"].get(row["name"], f"gated: {row['name']}"),
            f"{row['parameters'] / 1000:.0f}k",
            _shape(row["recipe"]),
            _steps(row),
            f"{row['reached']} of {row['seeds']}",
        ]
        for row in found
    ]
    return table(["", "parameters", "shape", "steps to 99 %", "seeds at 99 %"], rows)


def _shape(recipe: Record) -> str:
    options = recipe["options"]
    if recipe["model"] != "gated":
        return "width 128"
    gates = options.get("n_gates", {1: 96, 2: 19, 4: 7}[options.get("n_layers", 1)])
    return f"width {options.get('dim', 32)}, {gates} gates a layer"


def _small_table(results: Record) -> str:
    header = ["", *(f"{share:.0%}: {what}" for share in SHARES for what in ("best", "end", "99 %"))]
    rows = []
    for name, small in SMALL.items():
        line = [small.label]
        for share in SHARES:
            found = [
                r
                for r in results["small"]
                if r["name"] == name and r["share"] == share and r["setting"]
            ]
            line += _small_cells(found[0]) if found else ["", "", ""]
        rows.append(line)
    return table(header, rows)


def _small_cells(record: Record) -> list[str]:
    reached = sum(step is not None for step in record["first_99"])
    ends = [percent(median(record[key])) for key in ("best", "last")]
    return [*ends, f"{reached} of {len(record['first_99'])}"]


def _recipe_table(results: Record) -> str:
    """What was chosen, and when every recipe of the grid settled."""
    rows = []
    for row in (r for r in results["rows"] if r["study"] in ("contest", "depth")):
        tried = [r for r in results["rows"] if r["study"] == "tuning" and r["name"] == row["name"]]
        settled = ", ".join(f"{_short(r['recipe'])}: {r['settled'] or 'no'}" for r in tried)
        label = results["labels"].get(row["name"], row["name"])
        rows.append([label, row["hyperparameters"], settled or "not tuned"])
    return table(["", "chosen", "settled at step, by learning rate / decay (or beta)"], rows)


def _short(recipe: Record) -> str:
    strength = recipe["beta"] or recipe["weight_decay"]
    return f"{recipe['lr']:g} / {strength:g}"


def _left_out(results: Record) -> list[str]:
    told = [
        "Grids are small and tried on one split; a wider one may favour anyone. Their range was "
        "set after trials with the gated layer, an MLP and a standard block, test halves in view.",
        "Contestants marked “not tuned” have Power et al.'s recipe, or that of the contestant they "
        "vary (Grokfast, OrthoGrad and two standard blocks: 0.003 and 1; four gated layers: two).",
        "Grokfast has the filter of its paper (0.98, 2), which was not tuned either.",
        "Modulo 97, four standard blocks; three and more seeds where the table says fewer than "
        "five; runs without decay beyond their steps.",
    ]
    missing = [c.label for name, c in CONTESTANTS.items() if contest_row(results, name) is None]
    if missing:
        told.append(f"Not run: {', '.join(missing)}.")
    unfinished = [
        f"{small.label} ({share:.0%})"
        for share in SHARES
        for name, small in SMALL.items()
        if not any(
            r["name"] == name and r["share"] == share and r["setting"] for r in results["small"]
        )
    ]
    if unfinished:
        told.append(f"Modulo 15, not run: {', '.join(unfinished)}.")
    return told
