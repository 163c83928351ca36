"""The figures of the benchmark page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from convexformer.plotting._style import ACCENT, FAINT, HUES, MUTED, STYLE

from .contestants import NAMES, OURS
from .summary import CellSummary

COLOURS = dict(zip(NAMES, (ACCENT, *HUES[1:]), strict=False))
SAVING: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}, "bbox_inches": "tight"}


def draw_race(cells: Sequence[CellSummary], file: Path) -> None:
    """A line per cell: a dot where a contestant met the gap, a faint triangle where it stopped."""
    with rc_context({**STYLE, "svg.hashsalt": "convexformer"}):
        figure = Figure(figsize=(8.0, 0.24 * len(cells) + 1.2))
        axes = figure.subplots()
        for row, cell in enumerate(cells):
            axes.axhline(row, color=FAINT, linewidth=0.6, zorder=0)
            for one in [*cell.peers, cell.ours]:
                look: dict[str, Any] = {"color": COLOURS[one.name], "linestyle": "none"}
                if one.seconds is None:
                    look |= {"marker": ">", "markersize": 4, "alpha": 0.35}
                    axes.plot([max(one.stopped, 1e-4)], [row], **look)
                else:
                    look |= {"marker": "o", "markersize": 7 if one.name == OURS else 5}
                    axes.plot([one.seconds], [row], **look)
        for name in [
            n for n in NAMES if any(s.name == n for c in cells for s in [c.ours, *c.peers])
        ]:
            axes.plot([], [], "o", color=COLOURS[name], label=name)
        words = "seconds to the gap (triangle: stopped before)"
        if any(cell.waits for cell in cells):
            words += "; †: with the peers' former settings, waits for a rerun"
        axes.set(xscale="log", xlabel=words)
        axes.set_yticks(range(len(cells)), [cell.title for cell in cells])
        axes.invert_yaxis()
        axes.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, fontsize=8)
        figure.savefig(file, **SAVING)


def draw_scaling(results: dict[str, Any], file: Path) -> None:
    """Time and memory against size, one line per axis; guides of slope 1 and 2."""
    with rc_context({**STYLE, "svg.hashsalt": "convexformer"}):
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        panels = figure.subplots(1, 2)
        for panel, key, label in zip(
            panels, ("cpu", "memory"), ("seconds", "memory, MB"), strict=True
        ):
            for colour, (name, axis) in zip(HUES, results["axes"].items(), strict=False):
                times = [2**k for k in range(len(axis["points"]))]
                panel.plot(times, [p[key] for p in axis["points"]], "o-", color=colour, label=name)
            start = min(axis["points"][0][key] for axis in results["axes"].values())
            for slope in (1, 2):
                panel.plot(
                    [1, 16], [start, start * 16**slope], color=MUTED, linestyle=":", linewidth=0.8
                )
            panel.set(xscale="log", yscale="log", xlabel="times the base size", ylabel=label)
            panel.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            panel.minorticks_off()
        panels[0].legend(frameon=False, fontsize=8)
        figure.savefig(file, **SAVING)
