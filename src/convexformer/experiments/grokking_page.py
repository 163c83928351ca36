"""The page of the grokking experiment, in Markdown, made from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from .grokking_claims import (
    certified,
    claims,
    contest_row,
    in_seconds,
    in_steps,
    percent,
    seconds_of,
    small_finals,
    summary,
    times,
    why,
)
from .grokking_limits import left_out
from .grokking_models import EQUAL_GATES
from .grokking_recipes import comparable
from .grokking_small import SHARES, SMALL, SPLITS, VALIDATION
from .grokking_small import TUNING_STEPS as SMALL_STEPS
from .grokking_studies import BETAS, CONTESTANTS, DECAYS, FILTERS, RATES, SEARCH, TUNING_STEPS
from .records import Record, environment_line, table

PAGE = """\
# Grokking: which of the paper's claims hold?

{summary}

The task is that of Power et al. (2022): all 9,312 equations a ÷ b = c modulo 97, half of them to
train on. A network has learnt it when it tells 99 % of the other half. What the paper calls convex
training is, in a trained network, **not convex**: embeddings are trained and gates follow them.
It is a gated *layer* that is compared here. The truly convex layer is further down.

## The claims

{claims}

{figure_mod97}

## The contest

Steps and seconds are to the first measurement (every 25 steps) of at least 99 % test accuracy,
medians over seeds of weights and batches, on one split of the equations. Persistent: every
measurement of the next 500 steps is at 99 %, too. Seconds are steps times the processor time of a
step on one thread, timed in turns for all contestants. Multiples are of the gated layer's. They are
told only where the median seed learnt and the recipe settled: inside the range of the search, or,
where the recipe was given, for most seeds. Elsewhere they would tell of the range as much as of the
contestant. "Best" is the median seed's highest accuracy.

{contest}

{other_splits}

{figure_bars}

## Why is it fast?

{why}

{ablations}

{figure_ablations}

## The truly convex layer

Embeddings fixed, so that the program is convex, and solved to a certificate: squared loss on
one-hot answers with the `token` penalty, or softmax. Beta is a fraction of the strength at which
all coefficients are zero. Chance is 1 %. "Learnt" embeddings come from a gated network trained on
the same half, and are then fixed. Where it says "not certified" time was over before the gap that
was asked for (1e-6 for squares, 1e-3 for softmax) was reached. Without gates (0) there is little to
learn: on the whole table of quotients of nonzero residues the optimum is zero at every beta,
whatever the embedding ([proof and test](theory.md#where-it-ends)).

{convex}

## Depth

{depth}

{figure_depth}

## Modulo 15

Fifteen is no prime. Division is defined by the units alone: 15 numerators and 8 denominators, 120
equations; {splits} random splits, whole batches. For each share and network one setting (learning
rate and decay, for four layers also the scale of the first weights) is chosen by the mean accuracy
over splits after {small_steps} steps, where a split's own accuracy is of {validation:.0%} of its
training part; no split's test part is scored, though it shares equations with what others train on.
*Best* is the highest test accuracy of a split at any time, which flatters everyone; *end* is the
mean of its last measurements. Both are medians over splits. HyperCube and the squared MLP are meant
as upper references, made for such tables.

{small}

{longer}
{figure_mod15}

## Hyperparameters

All are tuned by the same rule, save where the recipe is given ({fixed}):
learning rates {rates} at decay 1; decays {decays} (for the group lasso its strengths,
{betas}) at the best of these; and the learning rates again at the best decay. They are trained on
nine tenths of the training half and measured on the rest, with weights and batches of a seed of
their own; the test half has no part in the choice. What counts is the step from which accuracy
stays at 99 % for 250 steps. Recipes are given up after {tuning_steps:,} steps, or once they can no
longer be the first. The three that settle first are tried under a second seed, and the one whose
later time is the earliest is chosen. This rule came with test results in view: under one seed the
MLP's search had ended at a recipe that failed in the contest.
{shorter}
For Grokfast, {filters} are then tried.
For all alike the gradient is clipped at 0.25 and weights are averaged (0.95), save where the
recipe is given; AdamW's betas are 0.9 and 0.98, warm-up takes 10 steps, batches are of 512.

{recipes}

Modulo 15:

{small_recipes}

## How it was measured

Made by `{command}` from `results.json`, last run {date} UTC. All numbers come from there.{partial}

{environments}

## What the budget left out

{left_out}
"""


FIGURES = {
    "mod97": (
        "Accuracies and loss modulo 97",
        "Lines are medians over the seeds that still run, bands reach from the lowest to the "
        "highest. Runs\nend 500 steps after they first reach 99 %.",
    ),
    "bars": (
        "Steps to 99 %, and from fitting to generalising",
        "Bars are medians, dots seeds. A seed that never got there counts as the slowest, and has "
        "no dot;\ncontestants whose median seed did not are left out.",
    ),
    "ablations": (
        "Steps to 99 % of each ablation",
        "Bars are medians, dots seeds; in brackets, how many seeds reached 99 %.",
    ),
    "depth": (
        "One layer against two",
        "Lines are medians over the seeds that still run, bands all of them.",
    ),
    "mod15": (
        "Modulo 15",
        "Lines are medians over splits, bands quartiles. HyperCube is trained by squared errors: "
        "its loss\nis left out.",
    ),
}


def render(results: Record, figures: Mapping[str, str]) -> str:
    """The page of `results`; `figures` are the paths of those that were drawn, by name."""
    partial = "" if results["complete"] else " **Not all jobs are done yet.**"
    return PAGE.format(
        command=results["command"],
        date=results["date"],
        partial=partial,
        environments="\n".join(map(environment_line, results["environments"])),
        **{f"figure_{name}": _figure(name, figures) for name in FIGURES},
        summary=summary(results),
        claims=_claim_table(results),
        contest=_contest_table(results),
        why="\n".join(f"- {sentence}" for sentence in why(results)),
        ablations=_ablation_table(results),
        convex=_convex_table(results),
        depth=_depth_table(results),
        other_splits=_other_splits(results),
        splits=SPLITS,
        validation=VALIDATION,
        small_steps=SMALL_STEPS,
        small=_small_table(results),
        longer=_longer_table(results),
        small_recipes=_small_recipes(results),
        rates=_numbers(RATES),
        decays=_numbers(DECAYS),
        betas=_numbers(BETAS),
        filters=" and ".join(f"alpha {f['alpha']:g}, gain {f['gain']:g}" for f in FILTERS),
        shorter=_shorter(),
        fixed="; ".join(c.label for c in CONTESTANTS.values() if c.fixed is not None),
        tuning_steps=TUNING_STEPS,
        recipes=_recipe_table(results),
        left_out="\n".join(f"- {sentence}" for sentence in left_out(results)),
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


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))


def _shorter() -> str:
    """Who is tuned with less care than the others."""
    less = [c.label for c in CONTESTANTS.values() if len(c.search) < len(SEARCH)]
    return f"The last pass is left out for what is dear: {', '.join(less)}."


def _contest_table(results: Record) -> str:
    gated = contest_row(results, "gated")
    rows = []
    for row in (r for r in results["rows"] if r["study"] == "contest"):
        multiples = ["", ""]
        if gated is not None and comparable(results, row, gated):
            multiples = [times(in_steps(row, gated)), times(in_seconds(results, row, gated))]
        rows.append(
            [
                results["labels"][row["name"]],
                _size(row),
                _steps(row),
                multiples[0],
                "" if row["steps_to_99"] is None else f"{seconds_of(results, row):.1f}",
                multiples[1],
                f"{row['reached']} of {row['seeds']}",
                _persistent(row),
            ]
        )
    header = ["", "parameters", "steps to 99 %", "multiple", "seconds", "multiple"]
    return table([*header, "seeds at 99 %", "persistent"], rows)


def _persistent(row: Record) -> str:
    words, late = f"{row['persistent']} of {row['seeds']}", row.get("unfollowed", 0)
    return f"{words} ({late} learnt too late to tell)" if late else words


def _other_splits(results: Record) -> str:
    rows = [row for row in results["rows"] if row["study"] == "splits"]
    told = [
        f"{results['labels'][row['name']]} {_each(row['all_steps_to_99'])} steps, persistent in "
        f"{row['persistent']} of {row['seeds']}"
        for row in rows
    ]
    if not told:
        return "Other splits have not been tried."
    return f"On other splits of the equations, with the same recipes: {'; '.join(told)}."


def _each(steps: list[float | None]) -> str:
    return ", ".join("no" if step is None else f"{step:,.0f}" for step in steps)


def _size(row: Record) -> str:
    return f"{row['parameters'] / 1000:.0f}k"


def _ablation_table(results: Record) -> str:
    rows = [
        [row["name"], _steps(row), f"{row['reached']} of {row['seeds']}", _stay(row)]
        + [_size(row), _zeros(row)]
        for row in results["rows"]
        if row["study"] == "ablation"
    ]
    header = ["the gated layer", "steps to 99 %", "seeds at 99 %", "stay 250 steps"]
    return table([*header, "parameters", "groups at zero"], rows)


def _stay(row: Record) -> str:
    return f"{sum(step is not None for step in row['all_settled'])} of {row['seeds']}"


def _zeros(row: Record) -> str:
    """Averaged weights are never zero, so that those as trained are told, with their accuracy."""
    if not row["zero_groups"]:
        return ""
    return f"{percent(row['zero_groups'])} (accuracy {percent(row['unaveraged'])})"


def _convex_table(results: Record) -> str:
    header = ["embedding", "loss", "gates", "beta", "relative gap", "training", "test", "seconds"]
    rows = [
        [r["embedding"], r["loss"], str(r["gates"]), f"{r['beta']:g}", _gap(results, r)]
        + [percent(r["train_accuracy"]), percent(r["test_accuracy"]), f"{r['seconds']:.1f}"]
        for r in results["convex"]
    ]
    return table(header, rows)


def _gap(results: Record, record: Record) -> str:
    solved = record in certified(results, record["embedding"])
    return f"{record['relative_gap']:.0e}" + ("" if solved else " (not certified)")


def _depth_table(results: Record) -> str:
    names = ("gated", "gated-2", "gated-4", "power", "power-wide", "power-2")
    found = [row for name in names if (row := contest_row(results, name))]
    found += [row for row in results["rows"] if row["study"] == "depth"]
    rows = [
        [
            results["labels"].get(row["name"], f"gated: {row['name']}"),
            _size(row),
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
        return f"width {options.get('dim', 128)}"
    gates = options.get("n_gates", EQUAL_GATES[options.get("n_layers", 1)])
    return f"width {options.get('dim', 32)}, {gates} gates a layer"


def _small_table(results: Record) -> str:
    parts = [f"{share:.0%}: {what}" for share in SHARES for what in ("best", "end", "99 %")]
    header = ["", "steps", *parts]
    rows = []
    for name, small in SMALL.items():
        line = [small.label, f"{small.steps:,}"]
        for share in SHARES:
            found = _final(results, name, share)
            line += ["", "", ""] if found is None else _small_cells(found)
        rows.append(line)
    return table(header, rows)


def _final(results: Record, name: str, share: float) -> Record | None:
    """What a network came to modulo 15, with the setting that was chosen."""
    return small_finals(results).get(share, {}).get(name)


def _small_cells(record: Record) -> list[str]:
    reached = sum(step is not None for step in record["first_99"])
    ends = [percent(median(record[key])) for key in ("best", "last")]
    return [*ends, f"{reached} of {len(record['first_99'])}"]


def _longer_table(results: Record) -> str:
    """Networks that were given many more steps, beside what fewer came to."""
    rows = []
    for record in results.get("longer", []):
        few = _final(results, record["name"], record["share"])
        label, share = SMALL[record["name"]].label, f"{record['share']:.0%}"
        for one in (few, record):
            if one is not None:
                rows.append([label, share, f"{one['steps']:,}", *_small_cells(one)])
    if not rows:
        return ""
    header = ["", "to train on", "steps", "best", "end", "99 %"]
    return "Would more steps do it? With the same settings:\n\n" + table(header, rows) + "\n"


def _small_recipes(results: Record) -> str:
    rows = []
    for share in SHARES:
        for name, small in SMALL.items():
            final = _final(results, name, share)
            if final is not None:
                lr, decay, scale = final["setting"]
                words = f"lr {lr:g}, decay {decay:g}, scale {scale:g}"
                tried = f"{len(small.grid)} on {small.tuning_splits} splits"
                rows.append([small.label, f"{share:.0%}", words, tried])
    return table(["", "to train on", "chosen", "settings tried"], rows)


def _recipe_table(results: Record) -> str:
    """What was chosen, and when every recipe that was tried settled."""
    rows = []
    for row in (r for r in results["rows"] if r["study"] in ("contest", "depth")):
        tried = [r for r in results["rows"] if r["study"] == "tuning" and r["name"] == row["name"]]
        settled = "; ".join(f"{_short(r['recipe'])}: {_each(r['all_settled'])}" for r in tried)
        label = results["labels"].get(row["name"], row["name"])
        rows.append([label, row["hyperparameters"], settled or "not tuned"])
    return table(["", "chosen", "settled at step, by learning rate / decay (or beta)"], rows)


def _short(recipe: Record) -> str:
    """A recipe as it is told apart from others of its search."""
    words = f"{recipe['lr']:g} / {recipe['beta'] or recipe['weight_decay']:g}"
    if recipe["tweaks"] and recipe["tweaks"] != FILTERS[0]:
        words += f" with alpha {recipe['tweaks']['alpha']:g}"
    if "dim" in recipe["options"] and recipe["model"] == "gated":
        words += f" at width {recipe['options']['dim']}"
    return words
