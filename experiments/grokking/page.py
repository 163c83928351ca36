"""What the page says of the contest, its ablations and the claims of the paper, and figures."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from convexformer.plotting._style import FAINT, HUES, INK, MUTED

from ..figures import COLORS as ALL_COLORS
from ..figures import FONT, bars, few_numbers, legend, panels, plain_numbers
from ..lab import Record, grouped
from . import experiment, small
from .experiment import BETAS, CONTESTANTS, DECAYS, FILTERS, RATES, middle
from .jobs import AFTER, EVERY, LEVEL, Recipe
from .models import EQUAL_GATES
from .small import MODULUS, SMALL, SPLITS


def facts(results: Record) -> Record:
    """The names of the template; rows of the results have words beside their numbers."""
    rows = [_described(results, row) for row in results["rows"]]
    contest, depth, ablation = (
        {row["name"]: row for row in rows if row["study"] == study}
        for study in ("contest", "depth", "ablation")
    )
    as_chosen = steps_of(ablation["as chosen"])
    pairs = [("one layer, 140k", "two layers, 140k"), ("one layer, 60k", "two layers, 60k")]
    random, learnt = (
        [r for r in results["convex"] if r["embedding"] == name and certified(r)]
        for name in ("random", "learnt")
    )
    return {
        "times": times,
        "percent": percent,
        "each": _each,
        "certified": certified,
        "wins": _wins,
        "rows": rows,
        "contest": contest,
        "depth": depth,
        "ablations": [row | {"late": steps_of(row) - as_chosen} for row in ablation.values()],
        "gaps": _medians(results, grokking_gap),
        "losses": _medians(results, later_loss),
        "gated_pairs": [(contest["gated"], contest["gated-2"])]
        + [(depth[one], depth[two]) for one, two in pairs],
        "random_best": max(r["test_accuracy"] for r in random),
        "random_gates": max(r["gates"] for r in random),
        "learnt_best": max(r["test_accuracy"] for r in learnt),
        "core_hours": _core_hours(results),
        **_modulo_15(results),
        "studies": experiment,
        "splits": SPLITS,
        "every": EVERY,
    }


def _described(results: Record, row: Record) -> Record:
    """A row with its label, its times as multiples of the gated layer's, and words for them."""
    base = next(r for r in results["rows"] if (r["study"], r["name"]) == ("contest", "gated"))
    label, missed = results["labels"].get(row["name"]), row["steps_to_99"] is None
    best, last = percent(row["best"]), f"{row['last_step']:,.0f}"
    steps = f"not in {last} (best {best})" if missed else f"{row['steps_to_99']:,.0f}"
    when = f"not in {last} steps (best {best})" if missed else f"in {steps} steps"
    tried = [r for r in results["rows"] if (r["study"], r["name"]) == ("tuning", row["name"])]
    return row | {
        "label": label or f"gated: {row['name']}",
        "name_shown": label or row["name"],
        "size": f"{row['parameters'] / 1000:.0f}k",
        "shape": _shape(row["recipe"]),
        "steps": steps,
        "when": when,
        "learns": f"does not learn{when.removeprefix('not')}" if missed else f"learns {when}",
        "short": f"best {best}" if missed else steps,
        "seconds": seconds_of(results, row),
        "in_steps": steps_of(row) / steps_of(base),
        "in_seconds": seconds_of(results, row) / seconds_of(results, base),
        "comparable": comparable(results, row),
        "edge": at_edge(row),
        "unsettled": searched(row) and row["name"] in unsettled(results),
        "stay": sum(step is not None for step in row["all_settled"]),
        "settled": "; ".join(f"{_short(r['recipe'])}: {_each(r['all_settled'])}" for r in tried),
    }


def _shape(recipe: Record) -> str:
    options = recipe["options"]
    if recipe["model"] != "gated":
        return f"width {options.get('dim', 128)}"
    gates = options.get("n_gates", EQUAL_GATES[options.get("n_layers", 1)])
    return f"width {options.get('dim', 32)}, {gates} gates a layer"


def _short(recipe: Record) -> str:
    """A recipe as it is told apart from others of its search."""
    words = f"{recipe['lr']:g} / {recipe['beta'] or recipe['weight_decay']:g}"
    if recipe["tweaks"] and recipe["tweaks"] != FILTERS[0]:
        words += f" with alpha {recipe['tweaks']['alpha']:g}"
    if "dim" in recipe["options"] and recipe["model"] == "gated":
        words += f" at width {recipe['options']['dim']}"
    return words


# Words for numbers ------------------------------------------------------------------------------


def times(value: float) -> str:
    """A multiple in a digit after the point, or more where it is small.

    Examples
    --------
    >>> from experiments.grokking.page import times
    >>> times(6.51), times(0.0432)
    ('6.5x', '0.043x')
    """
    return f"{value:.1f}x" if value >= 0.1 else f"{value:.2g}x"


def percent(value: float) -> str:
    """Whole percents, and one decimal where that would hide something.

    Examples
    --------
    >>> from experiments.grokking.page import percent
    >>> percent(0.5), percent(0.985), percent(0.012)
    ('50 %', '98.5 %', '1.2 %')
    """
    digits = 1 if value > 0.95 or value < 0.05 else 0
    return f"{100 * value:.{digits}f} %".replace("100.0", "100")


def _each(steps: list[float | None]) -> str:
    return ", ".join("no" if step is None else f"{step:,.0f}" for step in steps)


# Times, and whose can be compared ---------------------------------------------------------------


def steps_of(row: Record) -> float:
    """Steps to 99 % of the median seed; all that it was given if it never got there."""
    return float(row["steps_to_99"] or row["last_step"])


def seconds_of(results: Record, row: Record) -> float:
    """The same steps times what a step costs when all contestants are timed in turns."""
    milliseconds = results["milliseconds"].get(row["name"], row["ms_per_step"])
    return float(steps_of(row) * milliseconds / 1000)


def comparable(results: Record, row: Record) -> bool:
    """Whether the times of a contestant can be put as multiples of another's.

    Its median seed learnt, and its recipe settled: inside the range of the search; or, where the
    recipe was given, most seeds stay at 99 %. Otherwise a multiple would tell of the range, or of
    the recipe, as much as of the contestant.
    """
    if row["steps_to_99"] is None:
        return False
    if searched(row):
        return row["name"] not in unsettled(results) and not at_edge(row)
    return bool(2 * row["persistent"] > row["seeds"])


def searched(row: Record) -> bool:
    """Whether the recipe of a row was searched, not given."""
    if row["study"] == "depth":
        return True
    return row["study"] == "contest" and CONTESTANTS[row["name"]].fixed is None


def at_edge(row: Record) -> bool:
    """Whether a recipe that was searched is the first or last of a line."""
    recipe = Recipe(**row["recipe"])
    strengths = BETAS if recipe.beta else DECAYS
    ends = {min(RATES), max(RATES)}, {min(strengths), max(strengths)}
    return searched(row) and (recipe.lr in ends[0] or recipe.strength in ends[1])


def unsettled(results: Record) -> set[str]:
    """Names of those of whom no recipe of the search settled at 99 %."""
    settled = {
        row["name"]
        for row in results["rows"]
        if row["study"] == "tuning" and any(step is not None for step in row["all_settled"])
    }
    return {row["name"] for row in results["rows"] if searched(row)} - settled


# What claims rest on ----------------------------------------------------------------------------


def grokking_gap(record: Record) -> float | None:
    """Steps from fitting the training half to telling the other."""
    if record["steps_to_99"] is None or record["steps_to_fit"] is None:
        return None
    return float(record["steps_to_99"] - record["steps_to_fit"])


def later_loss(record: Record) -> float | None:
    """Test loss `AFTER` steps after 99 % was reached."""
    since = record["steps_to_99"]
    if since is None or record["last_step"] < since + AFTER:
        return None
    return float(record["curve"]["test_loss"][-1])


def _medians(results: Record, of: Callable[[Record], float | None]) -> dict[str, float]:
    """Of the seeds that have such a value, by contestant."""
    contest = [record for record in results["records"] if record["study"] == "contest"]
    found = {
        name: [value for record in own if (value := of(record)) is not None]
        for (name,), own in grouped(contest, "name").items()
    }
    return {name: median(values) for name, values in found.items() if values}


def certified(record: Record) -> bool:
    """Whether a convex program was solved to the gap that was asked for."""
    return bool(record["relative_gap"] <= record["rules"]["tolerance"])


def _wins(ours: Record, theirs: Record) -> int:
    """Splits on which one network ends higher than another."""
    return sum(a > b for a, b in zip(ours["last"], theirs["last"], strict=True))


def _core_hours(results: Record) -> float:
    """Processor time of what recorded it."""
    jobs = [*results["records"], *results["convex"], *results["small"], *results["longer"]]
    return sum(job.get("seconds", 0.0) for job in jobs) / 3600


def small_finals(results: Record) -> dict[float, dict[str, Record]]:
    """What networks came to modulo 15 with the settings that were chosen, by share and name."""
    return {
        share: {record["name"]: _told(record) for record in own if record["setting"]}
        for (share,), own in grouped(results["small"], "share").items()
    }


def _told(record: Record) -> Record:
    """A record of modulo 15 with words for the heights of its splits."""
    small, n = SMALL[record["name"]], len(record["best"])
    best, end = (percent(median(record[key])) for key in ("best", "last"))
    reached = sum(best >= LEVEL for best in record["best"])
    return record | {
        "heights": f"{best} and {end} ({reached} of {n}, {record['steps']:,})",
        "cells": f"{best} | {end} | {sum(s is not None for s in record['first_99'])} of {n}",
        "tried": f"{len(small.grid)} on {small.tuning_splits} splits",
    }


def _modulo_15(results: Record) -> Record:
    finals = small_finals(results)
    tuned = {(r["share"], r["name"]): r for r in results["small"] if not r["setting"]}
    each = [(share, name) for share in finals for name in finals[share]]

    def labels(cases: Iterable[tuple[float, str]]) -> str:
        return "; ".join(f"{SMALL[name].label} ({share:.0%})" for share, name in cases)

    return {
        "small": finals,
        "modulo_15": small,
        "longer": [
            record
            for one in results["longer"]
            for record in (finals[one["share"]][one["name"]], _told(one))
        ],
        # The best setting told less than twice as much as chance when it was chosen.
        "hardly_chosen": labels(
            case for case in tuned if max(s["last"] for s in tuned[case]["grid"]) < 2 / MODULUS
        ),
        # The median split is below 99 % of its training part at the last measurement.
        "unfit": labels(
            (share, name)
            for share, name in each
            if finals[share][name]["curve"]["train"]["median"][-1] < LEVEL
        ),
    }


# Figures; bands are over seeds or splits ----------------------------------------------------------

COLORS = ALL_COLORS["grokking"]
PANELS = {
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
}
GROKKING = ("gated", "mlp", "power", "power-default", "no-decay")
DEPTH = ("gated", "gated-2", "power", "power-2")
ROW = 0.24  # inches of a bar


def draw_all(results: Record) -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    contest = [record for record in results["records"] if record["study"] == "contest"]
    labels = results["labels"]
    with rc_context(FONT):
        return {
            "grokking-mod97.png": draw_curves(contest, GROKKING, labels),
            "grokking-bars.png": draw_bars(results, contest),
            "grokking-depth.png": draw_curves(contest, DEPTH, labels),
            "grokking-mod15.png": draw_small(results["small"]),
            "grokking-ablations.png": draw_ablations(results),
        }


# Curves over steps ------------------------------------------------------------------------------


def draw_curves(records: list[Record], names: tuple[str, ...], labels: dict[str, str]) -> Figure:
    """Training accuracy, test accuracy and test loss; lines are medians, bands all seeds."""
    figure, axes = panels(3, (9.3, 3.3))
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for name in names:
            curves = [record["curve"] for record in records if record["name"] == name]
            steps = np.unique(np.concatenate([curve["step"] for curve in curves]))
            # NaN after the end of a run
            values = [np.interp(steps, one["step"], one[key], right=np.nan) for one in curves]
            heights = np.nanquantile(values, [0, 0.5, 1], axis=0)
            band(ax, steps, heights, COLORS[name], labels[name])
        dress(ax, title)
    legend(figure, axes[0])
    return figure


def draw_small(records: list[Record]) -> Figure:
    """Modulo 15: all at the larger share, and test accuracy at the other; bands are quartiles."""
    finals = [record for record in records if record["setting"]]
    finals.sort(key=lambda record: list(COLORS).index(record["name"]))
    larger, smaller = sorted({record["share"] for record in finals}, reverse=True)
    shown = [
        (larger, "train", "training accuracy"),
        (larger, "test", "test accuracy"),
        (larger, "test_loss", "test loss"),
        (smaller, "test", "test accuracy"),
    ]
    figure, axes = panels(len(shown), (6.2, 5.8), columns=2)
    for ax, (share, key, title) in zip(axes, shown, strict=True):
        for record in (r for r in finals if r["share"] == share):
            name, curve = record["name"], record["curve"]
            if key == "test_loss" and SMALL[name].squares:
                continue  # of another kind
            heights = [curve[key][part] for part in ("low", "median", "high")]
            band(ax, curve["step"], heights, COLORS[name], SMALL[name].label)
        dress(ax, f"{title}, {share:.0%} to train on")
    legend(figure, axes[0], columns=4)
    return figure


def band(ax: Axes, steps: Any, heights: Any, color: str, label: str) -> None:
    """A line between two others; step 0 has no place on a logarithmic axis."""
    steps = np.asarray(steps)
    low, middle, high = np.asarray(heights)[:, steps > 0]
    steps = steps[steps > 0]
    ax.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    ax.plot(steps, middle, color=color, linewidth=1.5, label=label)


def dress(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_xscale("log")
    few_numbers(ax.xaxis, (1, 3), ",.0f")
    ax.set_xlabel("step")
    if "accuracy" in title:
        ax.axhline(0.99, color=FAINT, linewidth=0.9, zorder=0)
        ax.set_ylim(-0.02, 1.03)
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    else:
        ax.set_yscale("log")


# Bars -------------------------------------------------------------------------------------------


def draw_bars(results: Record, contest: list[Record]) -> Figure:
    """Steps to 99 %, and from 99 % in training to 99 % in test: bars are medians, dots seeds."""
    rows = [row for row in results["rows"] if row["study"] == "contest" and row["steps_to_99"]]
    rows.sort(key=lambda row: row["steps_to_99"])
    labels = [results["labels"][row["name"]] for row in rows]
    colors = [COLORS.get(row["name"], MUTED) for row in rows]
    seeds = [[record for record in contest if record["name"] == row["name"]] for row in rows]
    until = [[record["steps_to_99"] for record in mine] for mine in seeds]
    gaps = [[grokking_gap(record) for record in mine] for mine in seeds]
    figure, (left, right) = panels(2, (9.2, ROW * len(rows) + 1.2))
    medians(left, labels, colors, until, "steps to 99 % test accuracy")
    medians(right, [""] * len(rows), colors, gaps, "steps between 99 % in training and in test")
    return figure


def draw_ablations(results: Record) -> Figure:
    """Steps to 99 % of every change to the gated layer's recipe."""
    rows = [row for row in results["rows"] if row["study"] == "ablation"]
    steps = [row["all_steps_to_99"] for row in rows]
    labels = [f"{row['name']} ({row['reached']} of {row['seeds']})" for row in rows]
    colors = [HUES[0] if row["name"] == "as chosen" else MUTED for row in rows]
    figure, (ax,) = panels(1, (6.4, ROW * len(rows) + 1.0))
    medians(ax, labels, colors, steps, "steps to 99 % test accuracy")
    for place, row in enumerate(rows):
        if row["steps_to_99"] is None:
            words = f"not in {row['last_step']:.0f} steps"
            best = f"{words}; best {percent(row['best'])}"
            start = max((step for step in row["all_steps_to_99"] if step), default=0)  # of dots
            note(ax, f"the others {words}" if row["reached"] else best, (start, place))
    return figure


def medians(
    ax: Axes, labels: list[str], colors: list[str], values: list[list[float | None]], title: str
) -> None:
    """Bars of medians and their numbers; dots are seeds that have a value."""
    dots = [sorted(value for value in mine if value is not None) for mine in values]
    lengths = [middle(mine) for mine in values]
    bars(ax, labels, colors, lengths, dots, size=9)
    for place, (length, mine) in enumerate(zip(lengths, dots, strict=True)):
        if length is not None:
            note(ax, f"{length:,.0f}", (max(length, *mine), place))
    ax.margins(x=0.12)  # for the numbers
    ax.set_xlim(left=min(0.0, *(dot for mine in dots for dot in mine)))
    plain_numbers(ax.xaxis, ",.0f")
    ax.set_xlabel(title)


def note(ax: Axes, words: str, place: tuple[float, float]) -> None:
    """Words to the right of a bar or a dot."""
    look: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": INK}
    ax.annotate(words, place, (6, 0), **look)
