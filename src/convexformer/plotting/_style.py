"""One restrained look for every figure, applied inside a context and never globally."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]
Place = tuple[float, float]

INK = "#262a33"
MUTED = "#6b7280"
FAINT = "#d5d9e0"
ACCENT = "#0b5fa5"

# Okabe and Ito's colour-blind-safe hues; yellow left out (too light for lines), darkened a little
# so that labels in the same colour stay readable on white.
HUES = (
    *("#0072b2", "#d55e00", "#007a5a", "#b5518f", "#8a6d00"),
    *("#3f9bd1", "#5b4b9a", "#7a4a21", "#4d4d4d"),
)

STYLE: Any = {  # Any: the stubs type every key
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@contextmanager
def styled() -> Iterator[None]:
    """Run a drawing method under :data:`STYLE`; afterwards settings are what they were.

    Not :func:`matplotlib.rc_context`, which puts every setting back: the first figure of a notebook
    activates the inline backend, which switches interactive mode on, and with that undone no later
    figure is shown. For the same reason a setting that the body changed again keeps its value.
    """
    current: Any = rcParams  # Any: the stubs type every key
    before = {name: current[name] for name in STYLE}
    current.update(STYLE)
    try:
        yield
    finally:
        current.update({k: v for k, v in before.items() if current[k] == STYLE[k]})


def axes_for(ax: Axes | None, width: float, height: float) -> tuple[Axes, Figure]:
    """The `ax` given, or a new one of this size in inches; and its figure.

    A new one fills its page: :func:`fit_page` adds the margins.
    """
    if ax is None:
        from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

        ax = plt.figure(figsize=(width, height)).add_axes((0.0, 0.0, 1.0, 1.0))
    return ax, root(ax)


def fit_page(ax: Axes, margin: float = 0.12) -> None:
    """Grow the page of a new `ax` of :func:`axes_for` until everything drawn is on it.

    The axes keep their size in inches, so that cells and panels look alike in every figure,
    however long the names around them are.
    """
    figure = root(ax)
    size, box = figure.get_size_inches(), figure.get_tightbbox()  # inches
    before = margin - np.minimum(box.min, 0.0)
    page = before + np.maximum(box.max, size) + margin
    figure.set_size_inches(page)
    ax.set_position((*(before / page), *(size / page)))


def root(ax: Axes) -> Figure:
    """The figure that `ax` is in, also where it is in a subfigure."""
    figure: Any = ax.get_figure()
    return figure.canvas.figure


def lined(ax: Axes, axis: Any = "y") -> None:
    """Faint lines to read values by, and no frame on top and right."""
    ax.grid(axis=axis, color=FAINT, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def bare(ax: Any) -> None:
    """Take away frame and tick marks: what is drawn is the frame."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def note(
    ax: Axes, text: str, at: Place, shift: Place = (0, 0), *, within: Any = "data", **look: Any
) -> None:
    """Write `text` small, `shift` points away from the place `at`, in coordinates `within`."""
    look = {"fontsize": 8, "color": MUTED, "annotation_clip": False, **look}
    ax.annotate(text, at, shift, xycoords=within, textcoords="offset points", **look)


def finish(own_page: bool, ax: Axes, text: str, below: Axes | None = None) -> None:
    """Write `text` small under the label of an axes, and make room for everything on an own page.

    Lines are as wide as `ax` with its bars; the label is that of `ax`, or of the axes `below`.
    """
    inches = ax.get_position(original=True).width * root(ax).get_figwidth()
    lines = textwrap.fill(text, width=max(40, int(19 * inches)))
    below = below or ax
    within = (ax.transAxes, below.xaxis.label)
    note(below, lines, (0, 0), (0, -12), within=within, va="top", fontsize=7.5, linespacing=1.4)
    if own_page:
        fit_page(ax)


def heat_map(ax: Axes, values: Array, rows: Sequence[str], **look: Any) -> QuadMesh:
    """A cell for every value, the first row on top."""
    m, n = values.shape
    edges = np.arange(n + 1) - 0.5, np.arange(m + 1) - 0.5
    look |= {"edgecolor": "white", "linewidth": min(0.6, 24 / n)}  # thin between many columns
    image = ax.pcolormesh(*edges, values, **look)
    ax.set_ylim(m - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), rows)
    bare(ax)
    return image


def colour_bar(image: QuadMesh, cax: Axes, label: str = "") -> None:
    """The colours of `image` in `cax`, and what they mean."""
    bar = root(cax).colorbar(image, cax=cax)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    bar.ax.locator_params(nbins=5)
    bar.set_label(label, fontsize=9)


def certificate_line(certificate: Any, refitted: bool = False) -> str:
    """What was proved, and of what; nothing if there is no certificate."""
    if certificate is None:
        return ""
    share = certificate.beta / certificate.beta_max if certificate.beta_max > 0 else 1.0
    gap = f"relative duality gap {certificate.relative_gap:.1e} at {share:.3g} β$_{{\\max}}$"
    if refitted:
        return (
            f"Refitted: tokens were selected by a certified fit ({gap}), then their coefficients "
            "were fitted with a small ridge. These are not the certified optimum."
        )
    claim = "No model of this class can lower the objective by more than that fraction."
    return f"Certificate: {gap}. {claim}"


def names_for(given: Sequence[Any] | None, count: int, what: str) -> list[str]:
    """Names for `count` things: the given ones, checked, or numbers from 0."""
    names = [str(name) for name in (range(count) if given is None else given)]
    if len(names) != count:
        raise ValueError(f"{what} has {len(names)} names, the model has {count} {what}.")
    return names


def listing(names: Sequence[str]) -> str:
    """``"A"``, ``"A and B"``, ``"A, B and C"``."""
    return " and ".join([", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names)
