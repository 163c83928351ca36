"""The figure of attention maps: a sentence in the eyes of a head and of its students."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from ..plotting._style import MUTED, bare, styled
from .records import Record

CELL = 0.115  # inches
TITLES = {
    "teacher": "teacher",
    "softmax": "softmax",
    "softmax, undertrained": "softmax,\nundertrained",
    "simplex": "simplex",
    "convex, static attention": "convex,\nstatic attention",
    "convex, norms": "convex,\nnorms",
    "convex, contributions": "convex,\ncontributions",
}


@styled
def draw(results: Record) -> Figure:
    """Rows are heads, the most and the least static; columns the teacher and its students."""
    from matplotlib import pyplot as plt

    examples = results["examples"]
    tokens = examples[0]["tokens"]
    middles = np.arange(len(tokens)) + 0.5
    side = CELL * len(tokens)
    left, top, bottom, gap = 1.35, 0.95, 0.9, 0.22
    width = left + len(TITLES) * (side + gap)
    height = top + len(examples) * (side + gap) + bottom
    figure = plt.figure(figsize=(width, height))
    for row, example in enumerate(examples):
        for column, name in enumerate(TITLES):
            x = left + column * (side + gap)
            y = height - top - (row + 1) * side - row * gap
            ax = figure.add_axes((x / width, y / height, side / width, side / height))
            _map(ax, np.array(example["maps"][name]))
            if row == 0:
                ax.set_title(TITLES[name], fontsize=8.5, fontweight="normal", pad=5)
            if column == 0:
                ax.set_yticks(middles, tokens, fontsize=5.5)
                share = results["shares"]["convex"][example["head"]]
                ax.set_ylabel(f"head {example['head']}\nstatic share {share:.2f}", fontsize=8.5)
            if row == len(examples) - 1:
                ax.set_xticks(middles, tokens, fontsize=5.5, rotation=90)
    title = f"What students of a head look at ({results['settings']['model']}, layer "
    title += f"{results['settings']['layer']})"
    figure.text(0.12 / width, 1 - 0.3 / height, title, fontsize=12, fontweight="bold")
    note = (
        "Rows are targets, columns tokens; every row sums to one, colours go with the root. The "
        "most and the least static head; a sentence that no student has seen."
    )
    figure.text(0.12 / width, 0.12 / height, note, fontsize=7.5, color=MUTED)
    return figure


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
