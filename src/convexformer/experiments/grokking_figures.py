"""The figures of the grokking experiment, from its results; bands are over seeds or splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from ..plotting._style import FAINT, HUES, INK, MUTED, STYLE
from .grokking import middle
from .grokking_claims import grokking_gap, percent
from .grokking_small import SMALL
from .records import Record

Array = NDArray[np.float64]

COLORS = {
    "gated": HUES[0],
    "gated-2": HUES[6],
    "gated-4": HUES[6],
    "prox": HUES[5],
    "power": HUES[1],
    "power-wide": HUES[4],
    "power-default": HUES[3],
    "power-2": HUES[3],
    "power-4": HUES[3],
    "no-decay": HUES[7],
    "mlp": HUES[2],
    "square": HUES[7],
    "hypercube": HUES[8],
}
PANELS = {
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
}
FONT = STYLE | {"font.size": 9, "axes.titlesize": 10.5}


def draw_all(results: Record) -> dict[str, Figure]:
    """Every figure for which there are results, by name."""
    contest = [record for record in results["records"] if record["study"] == "contest"]
    names = {record["name"] for record in contest}
    figures: dict[str, Figure] = {}
    with rc_context(FONT):
        one = [n for n in ("gated", "mlp", "power", "power-default", "no-decay") if n in names]
        two = [n for n in ("gated", "gated-2", "power", "power-2") if n in names]
        if one:
            figures["mod97"] = draw_curves(contest, one, results["labels"])
            figures["bars"] = draw_bars(results)
        if {"gated-2", "power-2"} & names:
            figures["depth"] = draw_curves(contest, two, results["labels"])
        if any(record.get("setting") for record in results["small"]):
            figures["mod15"] = draw_small(results["small"])
        if any(row["study"] == "ablation" for row in results["rows"]):
            figures["ablations"] = draw_ablations(results)
    return figures


def panels(
    count: int, width: float = 3.1, height: float = 2.5, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Empty panels, in a row or in rows of so many, with room for a legend below."""
    from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

    across = count if columns is None else columns
    down = -(-count // across)
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(width * across, height * down + 0.8),
        squeeze=False,
        layout="constrained",
    )
    return figure, list(axes.flat)


# Curves over steps ------------------------------------------------------------------------------


def draw_curves(records: list[Record], names: list[str], labels: Mapping[str, str]) -> Figure:
    """Training accuracy, test accuracy and test loss; lines are medians, bands all seeds."""
    figure, axes = panels(3)
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for name in names:
            mine = [record["curve"] for record in records if record["name"] == name]
            steps, values = on_one_grid(mine, key)
            low, middle, high = np.nanquantile(values, [0, 0.5, 1], axis=0)
            band(ax, steps, (low, middle, high), COLORS[name], labels[name])
        dress(ax, title, "step")
    legend(figure, axes[0])
    return figure


def on_one_grid(curves: list[Record], key: str) -> tuple[Array, Array]:
    """Steps and values ``(seeds, steps)``, NaN after the end of a run."""
    steps = np.unique(np.concatenate([curve["step"] for curve in curves]))
    values = [np.interp(steps, curve["step"], curve[key], right=np.nan) for curve in curves]
    return steps, np.array(values)


def band(
    ax: Axes, steps: Array, heights: tuple[Array, Array, Array], color: str, label: str
) -> None:
    low, middle, high = heights
    shown = steps > 0  # the axis is logarithmic
    ax.fill_between(steps[shown], low[shown], high[shown], color=color, alpha=0.18, linewidth=0)
    ax.plot(steps[shown], middle[shown], color=color, linewidth=1.5, label=label)


def log_steps(axis: Axis) -> None:
    """Few round numbers, and no powers of ten to decipher."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_locator(NullLocator())


def dress(ax: Axes, title: str, below: str) -> None:
    ax.set_title(title)
    ax.set_xscale("log")
    log_steps(ax.xaxis)
    ax.set_xlabel(below)
    if "accuracy" in title:
        ax.axhline(0.99, color=FAINT, linewidth=0.9, zorder=0)
        ax.set_ylim(-0.02, 1.03)
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    else:
        ax.set_yscale("log")


def legend(figure: Figure, ax: Axes, columns: int = 3) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns, len(labels)),
        frameon=False,
        fontsize=8.5,
    )


# Modulo 15 --------------------------------------------------------------------------------------


def draw_small(records: list[Record]) -> Figure:
    """Both accuracies and the test loss at the larger share, and test accuracy at the other.

    Bands are quartiles of splits.
    """
    finals = [record for record in records if record["setting"]]
    first, *others = sorted({record["share"] for record in finals}, reverse=True)
    shown = [(first, "train", "training accuracy"), (first, "test", "test accuracy")]
    shown += [(first, "test_loss", "test loss")]
    shown += [(share, "test", "test accuracy") for share in others]
    figure, axes = panels(len(shown), columns=2)
    for ax, (share, key, title) in zip(axes, shown, strict=False):
        for record in (r for r in finals if r["share"] == share):
            small = SMALL[record["name"]]
            if small.squares and key == "test_loss":
                continue  # of another kind
            steps = np.array(record["curve"]["step"], dtype=np.float64)
            low, middle, high = (
                np.array(record["curve"][key][part]) for part in ("low", "median", "high")
            )
            band(ax, steps, (low, middle, high), COLORS[record["name"]], small.label)
        dress(ax, f"{title}, {share:.0%} to train on", "step")
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    legend(figure, axes[0], columns=4)
    return figure


# Bars -------------------------------------------------------------------------------------------


def draw_bars(results: Record) -> Figure:
    """Steps to 99 %, and from 99 % in training to 99 % in test: bars are medians, dots seeds."""
    rows = [row for row in results["rows"] if row["study"] == "contest" and row["steps_to_99"]]
    rows.sort(key=lambda row: row["steps_to_99"])
    contest = [record for record in results["records"] if record["study"] == "contest"]
    seeds = [[record for record in contest if record["name"] == row["name"]] for row in rows]
    labels = [results["labels"][row["name"]] for row in rows]
    colors = [COLORS.get(row["name"], MUTED) for row in rows]
    until = [[record["steps_to_99"] for record in mine] for mine in seeds]
    gaps = [[grokking_gap(record) for record in mine] for mine in seeds]
    figure, (left, right) = panels(2, width=4.6, height=0.24 * len(rows) + 0.4)
    horizontal(left, labels, until, colors, "steps to 99 % test accuracy")
    horizontal(right, [""] * len(rows), gaps, colors, "steps between 99 % in training and in test")
    return figure


def draw_ablations(results: Record) -> Figure:
    """Steps to 99 % of every change to the gated layer's recipe."""
    rows = [row for row in results["rows"] if row["study"] == "ablation"]
    steps = [row["all_steps_to_99"] for row in rows]
    labels = [f"{row['name']} ({row['reached']} of {row['seeds']})" for row in rows]
    colors = [HUES[0] if row["name"] == "as chosen" else MUTED for row in rows]
    figure, (ax,) = panels(1, width=6.4, height=0.24 * len(rows) + 0.2)
    horizontal(ax, labels, steps, colors, "steps to 99 % test accuracy")
    for place, row in enumerate(rows):
        if row["steps_to_99"] is None:
            words = f"not in {row['last_step']:.0f} steps"
            if row["reached"]:
                words = f"the others {words}"
            else:
                words += f"; best {percent(row['best'])}"
            start = max((step for step in row["all_steps_to_99"] if step), default=0)  # of dots
            note(ax, words, (start, place))
    return figure


def horizontal(
    ax: Axes,
    labels: list[str],
    values: Iterable[list[float | None]],
    colors: list[str],
    title: str,
) -> None:
    """Bars of medians from above to below, and their numbers; dots are seeds that have a value."""
    style: dict[str, Any] = {"color": INK, "s": 9, "zorder": 3, "linewidths": 0}
    lowest = 0.0
    for place, (mine, color) in enumerate(zip(values, colors, strict=True)):
        dots = sorted(value for value in mine if value is not None)
        lowest = min([lowest, *dots])
        if (median := middle(mine)) is not None:
            ax.barh(place, median, color=color, alpha=0.75, height=0.62)
            note(ax, f"{median:,.0f}", (max(median, dots[-1]), place))
        ax.scatter(dots, [place + aside for aside in apart(dots)], **style)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.12)  # for the numbers
    ax.set_xlim(left=lowest)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel(title)


def note(ax: Axes, words: str, place: tuple[float, float]) -> None:
    """Words to the right of a bar or a dot."""
    ax.annotate(
        words, place, (6, 0), textcoords="offset points", va="center", fontsize=8, color=INK
    )


def apart(dots: list[float]) -> list[float]:
    """How far to move dots, in order, from their row, so that equal ones do not hide each other.

    Examples
    --------
    >>> from convexformer.experiments.grokking_figures import apart
    >>> apart([150, 150, 175])
    [-0.07, 0.07, 0.0]
    """
    moved = []
    for place, dot in enumerate(dots):
        rank, count = place - dots.index(dot), dots.count(dot)
        moved.append(round(0.14 * (rank - (count - 1) / 2), 3))
    return moved
