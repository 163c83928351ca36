"""The figures of the student-teacher experiment, from its results."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..plotting._style import FAINT, HUES, INK, MUTED, STYLE
from .records import Record
from .teacher_jobs import known_floor

FONT = STYLE | {"font.size": 9, "axes.titlesize": 10.5}
COLORS = {
    "softmax-1": HUES[1],
    "softmax-2": HUES[4],
    "softmax-4": HUES[7],
    "softmax-12": HUES[3],
    "softmax-1-literal": HUES[4],
    "undertrained": HUES[3],
    "simplex": HUES[2],
    "adam": HUES[5],
    "perceptron": MUTED,
    "linear": MUTED,
    "positions": HUES[8],
    "offsets": HUES[0],
    "gated-8": HUES[6],
}
PAPER = ("undertrained", "simplex", "adam", "positions")
HONEST = ("softmax-1", "softmax-4", "softmax-12", "simplex", "positions", "offsets", "gated-8")
HONEST_VECTOR = ("softmax-1", "softmax-12", "simplex", "adam", "positions")


def draw_all(results: Record) -> dict[str, Figure]:
    """Every figure for which there are results, by name."""
    figures: dict[str, Figure] = {}
    with rc_context(FONT):
        first = rows_of(results, "first", 64)
        whole = rows_of(results, "attention", 64)
        if {"undertrained", "positions"} <= first.keys():
            figures["paper"] = draw_curves(results, first, PAPER)
        if {"softmax-1", "positions"} <= first.keys():
            figures["first"] = draw_curves(results, first, HONEST_VECTOR)
        if {"softmax-1", "offsets"} <= whole.keys():
            figures["whole"] = draw_curves(results, whole, HONEST)
            figures["bars"] = draw_bars(results, whole)
    return figures


def rows_of(results: Record, target: str, dim: int | None) -> dict[str, Record]:
    """The summaries of one task, by student."""
    return {
        row["student"]: row
        for row in results["rows"]
        if (row["task"]["target"], row["task"]["dim"]) == (target, dim)
    }


# Objective and losses over seconds --------------------------------------------------------------


def draw_curves(results: Record, rows: dict[str, Record], names: tuple[str, ...]) -> Figure:
    """Objective, training loss and test loss against seconds; convex students are points."""
    from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.5), layout="constrained")
    shown = [name for name in names if name in rows]
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for name in shown:
            _line(ax, rows[name], key, COLORS[name], results["labels"][name])
        _dress(ax, title)
    _floors(axes[0], rows, shown)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    return figure


PANELS = {"objective": "objective", "train": "training loss", "test": "test loss"}


def _line(ax: Axes, row: Record, key: str, color: str, label: str) -> None:
    if not row["convex"]:
        curve = row["curve"]
        ax.plot(curve["seconds"][1:], curve[key][1:], color=color, linewidth=1.5, label=label)
        return
    reached = row["objective"] if key == "objective" else row[f"{key}_loss"]
    mark: dict[str, Any] = {"marker": "D", "markersize": 6, "linestyle": "none", "zorder": 4}
    ax.plot(row["seconds"], reached, color=color, label=label, **mark)


def _floors(ax: Axes, rows: dict[str, Record], shown: list[str]) -> None:
    """Certified bounds of the classes of students that have one."""
    for name in shown:
        floor = known_floor(rows[name])
        if floor is not None:
            ax.axhline(floor, color=COLORS[name], linewidth=0.9, dashes=(1, 2), zorder=0)


def _dress(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("seconds of processor time")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 4.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


# Who wins ---------------------------------------------------------------------------------------


def draw_bars(results: Record, rows: dict[str, Record]) -> Figure:
    """Test losses, lowest first, and seconds with and without tuning."""
    from matplotlib import pyplot as plt

    ordered = sorted(rows.values(), key=lambda row: row["test_loss"])
    height = 0.25 * len(ordered) + 0.9
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.6, height), sharey=True, layout="constrained"
    )
    for place, row in enumerate(ordered):
        color = HUES[0] if row["convex"] else HUES[1]
        left.barh(place, row["test_loss"], color=color, alpha=0.75, height=0.62)
        dots = row["test_losses"]
        left.scatter(dots, [place] * len(dots), color=INK, s=8, zorder=3, linewidths=0)
        right.plot(
            [row["seconds_to_converge"], row["seconds_of_all"]],
            [place] * 2,
            color=color,
            linewidth=3,
            alpha=0.6,
            solid_capstyle="butt",
        )
        right.plot(row["seconds_to_converge"], place, "o", color=color, markersize=5)
    names = [results["labels"][row["student"]] for row in ordered]
    names = [name.replace("...", "softmax, 1 head,") for name in names]
    left.set_yticks(range(len(ordered)), names)
    left.set_ylim(len(ordered) - 0.4, -0.6)
    left.tick_params(axis="y", length=0)
    left.set_xlabel("test loss; dots are seeds")
    right.tick_params(axis="y", length=0)
    right.set_xscale("log")
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.grid(axis="x", color=FAINT, linewidth=0.6)
    right.set_xlabel("seconds to converge (dot), and with tuning")
    return figure
