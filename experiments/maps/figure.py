"""The figure of attention maps: a sentence in the eyes of a head and of its students."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from convexformer.plotting._style import MUTED, bare, styled

from ..lab import Record
from .experiment import MAPS

CELL = 0.155  # inches
COLUMNS = 4
LEFT, TOP, BOTTOM, GAP, TITLE, LABELS = 1.35, 0.65, 0.45, 0.2, 0.42, 0.75
NAMES = ("teacher", *MAPS)


@styled
def draw(results: Record) -> Figure:
    """A block per head, the most and the least static; in it the teacher and its students."""
    from matplotlib import pyplot as plt

    examples = results["examples"]
    side = CELL * len(examples[0]["tokens"])
    row = TITLE + side
    block = -(-len(NAMES) // COLUMNS) * row + LABELS  # inches
    width = LEFT + COLUMNS * (side + GAP)
    height = TOP + len(examples) * block + BOTTOM
    figure = plt.figure(figsize=(width, height))
    for number, example in enumerate(examples):
        for place, name in enumerate(NAMES):
            down, across = divmod(place, COLUMNS)
            x = LEFT + across * (side + GAP)
            y = height - TOP - number * block - (down + 1) * row
            ax = figure.add_axes((x / width, y / height, side / width, side / height))
            _map(ax, np.array(example["maps"][name]))
            ax.set_title(name, fontsize=10, fontweight="normal", pad=5)
            lowest = place + COLUMNS >= len(NAMES)
            _label(ax, example["tokens"], rows=across == 0, columns=lowest)
            if place == 0:
                share = results["shares"]["convex"][0][example["head"]]
                words = f"head {example['head']}: static share {share:.2f}"
                ax.set_ylabel(words, fontsize=10, fontweight="bold")
    title = f"What students of a head look at ({results['settings']['model']}, layer "
    title += f"{results['settings']['layer']})"
    figure.text(0.12 / width, 1 - 0.32 / height, title, fontsize=13, fontweight="bold")
    note = (
        "Rows are targets, columns tokens; every row sums to one, colours go with the root. The "
        "most and the least static head; a sentence that no student has seen."
    )
    figure.text(0.12 / width, 0.15 / height, note, fontsize=8.5, color=MUTED)
    return figure


def _label(ax: Axes, tokens: list[str], *, rows: bool, columns: bool) -> None:
    """Name the targets, the tokens, or both."""
    middles = np.arange(len(tokens)) + 0.5
    if rows:
        ax.set_yticks(middles, tokens, fontsize=8)
    if columns:
        ax.set_xticks(middles, tokens, fontsize=8, rotation=90)


def _map(ax: Axes, A: Any) -> None:
    A = np.maximum(A, 0.0)
    total = A.sum(axis=1, keepdims=True)
    A = A / np.where(total > 0, total, 1.0)
    ax.pcolormesh(A, cmap="Blues", norm=PowerNorm(0.5, 0.0, 1.0))
    ax.set_xlim(0, A.shape[1])
    ax.set_ylim(A.shape[0], 0)
    ax.set_xticks([])
    ax.set_yticks([])
    bare(ax)
    for spine in ax.spines.values():
        spine.set(visible=True, color="#d5d9e0", linewidth=0.6)
