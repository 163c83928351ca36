"""Height above the certified floor against time: one column per problem, one row per optimiser."""

import textwrap
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from convexformer.plotting._style import FAINT, INK, MUTED, STYLE

from ..lab import Record, grouped
from .experiment import NAMES

ENOUGH, TWICE = "#0072b2", "#007a5a"
LOW = 1e-8  # what is nearer to the floor is drawn on it
PANEL = (1.75, 1.95)  # inches
SPACE = 9.0  # points between two numbers at the ends of lines
SMALL = {"font.size": 8, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5}
BOLD: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 5, "color": INK}
DASHED: dict[str, Any] = {"linewidth": 0.8, "dashes": (3, 1.5)}


def draw(results: Record) -> Figure:
    """The figure of a run, from its results alone."""
    problems, optimizers = results["problems"], list(results["optimizers"])
    by_heads = sorted(results["records"], key=lambda record: record["heads"])
    runs = grouped(by_heads, "problem", "optimizer")
    with rc_context(STYLE | SMALL):
        figure, axes = _page(len(optimizers), len(problems), results["settings"]["starts"])
        _common_axes(axes[0, 0], results)
        for column, (name, problem) in enumerate(problems.items()):
            for ax, optimizer in zip(axes[:, column], optimizers, strict=True):
                _panel(ax, runs[name, optimizer], problem)
            axes[0, column].set_title(problem["label"].replace(", ", ",\n"), fontsize=9, pad=6)
        for ax, optimizer in zip(axes[:, 0], optimizers, strict=True):
            ax.set_ylabel("height above the floor", fontsize=8.5)
            place = {"xy": (0, 0.5), "xycoords": "axes fraction", "xytext": (-58, 0)}
            ax.annotate(NAMES[optimizer], **place, rotation=90, ha="center", fontsize=10, **BOLD)
    return figure


def _page(rows: int, columns: int, starts: int) -> tuple[Figure, Any]:
    """Empty panels of one size, with the words and the legend below them."""
    from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

    in_legend = 6 if columns > 3 else min(columns, 2)  # entries side by side
    head, foot = 0.5, 0.7 + 1.2 / in_legend  # inches
    width, height = PANEL[0] * columns + 1.3, PANEL[1] * rows + foot + head
    shared: Any = {"sharex": True, "sharey": True, "squeeze": False}
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), **shared)
    across = {"left": 0.95 / width, "right": 1 - 0.35 / width, "wspace": 0.24}
    down = {"bottom": foot / height, "top": 1 - head / height, "hspace": 0.16}
    figure.subplots_adjust(**across, **down)
    seconds = f"seconds of processor time, all {starts} starts side by side"
    words = textwrap.fill(seconds, width=int(11 * width))
    figure.text(0.5, (foot - 0.28) / height, words, ha="center", va="top", fontsize=8.5)
    below: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.0), "frameon": False}
    figure.legend(handles=_keys(), ncols=in_legend, fontsize=8, columnspacing=1.8, **below)
    return figure, axes


def _keys() -> list[Line2D]:
    """What the legend explains."""
    brown = to_hex(colormaps["YlOrBr"](0.65))
    return [
        Line2D([], [], color=brown, label="too few heads"),
        Line2D([], [], color=ENOUGH, label="enough heads"),
        Line2D([], [], color=TWICE, label="twice as many"),
        Line2D([], [], color=MUTED, linewidth=1.6, label="best start"),
        Line2D([], [], color=MUTED, label="median start", **DASHED),
        Line2D([], [], linewidth=2.2, label="certified optimum and floor", **DIAMOND),
    ]


def _common_axes(ax: Axes, results: Record) -> None:
    """Limits that suit all panels; heights are logarithms, so that labels are placed in points."""
    records, floors = results["records"], [p["floor"] for p in results["problems"].values()]
    first = min(floor["solver_seconds"] for floor in floors)
    last = max(record["recorded_seconds"][-1] for record in records)
    top = max(record["heights"]["median"][0] for record in records)
    ax.set_xscale("log")
    ax.set_xlim(first / 2, last * 1.5)
    decades = np.arange(np.ceil(np.log10(first / 2)), np.log10(last * 1.5))
    ax.set_xticks(10**decades, [f"{10**t:g}" for t in decades])
    ax.minorticks_off()
    ax.set_ylim(np.log10(LOW) - 0.35, np.log10(top) + 0.3)
    ticks = np.arange(np.log10(LOW), np.log10(top) + 0.1, 2)
    ax.set_yticks(ticks, ["≤ " + _power(ticks[0]), *map(_power, ticks[1:])])


def _power(exponent: float) -> str:
    return "1" if exponent == 0 else f"$10^{{{exponent:.0f}}}$"


def _panel(ax: Axes, curves: list[Record], problem: Record) -> None:
    floor = problem["floor"]
    ax.axhline(_log(0.0), color=INK, linewidth=2.2, zorder=1)
    ax.axhline(-4, color=FAINT, linewidth=0.8, zorder=0)
    gap = _log(floor["gap"] / floor["dual"])
    ax.plot(floor["solver_seconds"], gap, linestyle="none", zorder=4, clip_on=False, **DIAMOND)
    labels = []
    for curve, color in zip(curves, _colors(curves, problem["enough"]), strict=True):
        seconds, heights = curve["recorded_seconds"], curve["heights"]
        # The lowest so far: a start may go up again for a few steps.
        best = np.minimum.accumulate(_log(heights["min"]))
        ax.plot(seconds, best, color=color, linewidth=1.6, zorder=3)
        ax.plot(seconds, _log(heights["median"]), color=color, zorder=2, **DASHED)
        labels.append((str(curve["heads"]), float(best[-1]), color))
    _label_ends(ax, labels)


def _log(heights: Any) -> Any:
    return np.log10(np.maximum(heights, LOW))


def _colors(curves: list[Record], enough: int) -> list[str]:
    """Warm and darker the more heads while they are too few, then blue, then green."""
    few = [curve["heads"] for curve in curves if curve["heads"] < enough]
    shades = colormaps["YlOrBr"](np.linspace(0.42, 0.8, max(1, len(few))))
    warm = {heads: to_hex(shade) for heads, shade in zip(few, shades, strict=False)}
    return [
        warm.get(curve["heads"], ENOUGH if curve["heads"] == enough else TWICE) for curve in curves
    ]


def _label_ends(ax: Axes, labels: list[tuple[str, float, str]]) -> None:
    """Numbers of heads right of the lines, moved apart where they crowd."""
    low, high = ax.get_ylim()
    per_point = (high - low) / (72 * PANEL[1])
    places = _spread([end for _, end, _ in labels], SPACE * per_point, low, high)
    for (text, _, color), place in zip(labels, places, strict=True):
        where: Any = {"xy": (1, place), "xycoords": ("axes fraction", "data"), "xytext": (3, 0)}
        ax.annotate(text, **where, fontsize=8, color=color, annotation_clip=False, **BOLD)


def _spread(positions: ArrayLike, space: float, low: float, high: float) -> NDArray[np.float64]:
    """Move `positions` apart until neighbours are `space` away, staying near where they were.

    The least-squares solution of ``min sum (q_i - p_i)^2`` subject to ``q_{i+1} - q_i >= space``
    (isotonic regression of ``p_i - i * space``), then shifted into ``[low, high]`` where it fits.
    """
    positions = np.asarray(positions, dtype=np.float64)
    order = np.argsort(positions, kind="stable")
    steps = space * np.arange(len(order))
    base = isotonic_regression(positions[order] - steps)
    placed = np.empty(len(order))
    placed[order] = steps + np.clip(base, low, max(low, high - steps[-1]))
    return placed
