"""One restrained look for every figure, applied inside a context and never globally."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

P = ParamSpec("P")
R = TypeVar("R")
Array = NDArray[np.float64]
Place = tuple[float, float]

INK = "#262a33"
MUTED = "#6b7280"
FAINT = "#d5d9e0"
ACCENT = "#0b5fa5"

# Okabe and Ito's colour-blind-safe hues; yellow left out (too light for lines), darkened a little
# so that labels in the same colour stay readable on white.
HUES = (
    "#0072b2",
    "#d55e00",
    "#007a5a",
    "#b5518f",
    "#8a6d00",
    "#3f9bd1",
    "#5b4b9a",
    "#7a4a21",
    "#4d4d4d",
)

LABEL_SPACE = 11.5  # points between two names at the ends of lines

STYLE: Any = {  # Any: the stubs type every key
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
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
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing method under :data:`STYLE`, leaving the user's settings alone."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with settings(STYLE):
            return draw(*args, **kwargs)

    return wrapper


@contextmanager
def settings(values: dict[str, Any]) -> Iterator[None]:
    """Matplotlib settings for the body, which afterwards are what they were; no other is touched.

    Not :func:`matplotlib.rc_context`, which puts every setting back: the first figure of a notebook
    activates the inline backend, which switches interactive mode on, and with that undone no later
    figure is shown. For the same reason a setting that the body changed again keeps its value.
    """
    current: Any = rcParams  # Any: the stubs type every key
    before = {name: current[name] for name in values}
    current.update(values)
    try:
        yield
    finally:
        current.update({k: v for k, v in before.items() if current[k] == values[k]})


def new_axes(width: float, height: float) -> Axes:
    """Axes of exactly this size in inches on a new page; :func:`fit_page` adds the margins."""
    from matplotlib import pyplot as plt  # pyplot chooses a backend: only when a figure is wanted

    return plt.figure(figsize=(width, height)).add_axes((0.0, 0.0, 1.0, 1.0))


def fit_page(ax: Axes, margin: float = 0.12) -> None:
    """Grow the page of an `ax` from :func:`new_axes` until everything drawn is on it.

    The axes keep their size in inches, so that cells and panels look alike in every figure,
    however long the names around them are.
    """
    figure = root(ax)
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()  # inches
    left, bottom = margin - min(box.x0, 0.0), margin - min(box.y0, 0.0)
    page_width = left + max(box.x1, width) + margin
    page_height = bottom + max(box.y1, height) + margin
    figure.set_size_inches(page_width, page_height)
    ax.set_position(
        (left / page_width, bottom / page_height, width / page_width, height / page_height)
    )


def root(ax: Axes) -> Figure:
    """The figure that `ax` is in, also where it is in a subfigure."""
    figure = ax.get_figure()
    assert figure is not None
    return figure.canvas.figure


def axes_for(ax: Axes | None, width: float, height: float) -> tuple[Axes, Figure]:
    """The `ax` given, or a new one of this size in inches; and its figure."""
    ax = new_axes(width, height) if ax is None else ax
    return ax, root(ax)


def lined(ax: Axes) -> None:
    """Faint horizontal lines to read values by, and no frame on top and right."""
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def bare(ax: Axes) -> None:
    """Take away frame and tick marks: what is drawn is the frame."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def note(
    ax: Axes, text: str, at: Place, shift: Place = (0, 0), *, within: Any = "data", **look: Any
) -> None:
    """Write `text` small, `shift` points away from the place `at`, in coordinates `within`."""
    look = {"fontsize": 8, "color": MUTED, "annotation_clip": False, **look}
    ax.annotate(text, at, shift, xycoords=within, textcoords="offset points", **look)


def footnote(ax: Axes, text: str, drop: float) -> None:
    """Write `text` small under `ax`, `drop` points below it, in lines about as wide as `ax`."""
    inches = ax.get_position(original=True).width * root(ax).get_figwidth()
    lines = textwrap.fill(text, width=max(40, int(19 * inches)))
    look: dict[str, Any] = {"va": "top", "fontsize": 7.5, "linespacing": 1.4}
    note(ax, lines, (0, 0), (0, -drop), within="axes fraction", **look)


def certificate_line(certificate: Any, refitted: bool = False) -> str:
    """One line that says what was proved, and of what."""
    share = certificate.beta / certificate.beta_max if certificate.beta_max > 0 else 1.0
    gap = (
        f"relative duality gap {certificate.relative_gap:.1e} at {share:.3g} "
        r"β$_{\max}$"
    )
    if refitted:
        return (
            f"Refitted: tokens were selected by a certified fit ({gap}), then their coefficients "
            "were fitted with a small ridge. These are not the certified optimum."
        )
    return (
        f"Certificate: {gap}. "
        "No model of this class can lower the objective by more than that fraction."
    )


def names_for(given: Sequence[Any] | None, count: int, prefix: str, what: str) -> list[str]:
    """Names for `count` things: the given ones, checked, or `prefix` and a number from 0."""
    if given is None:
        return [f"{prefix}{k}" for k in range(count)]
    names = [str(name) for name in given]
    if len(names) != count:
        raise ValueError(
            f"{what} has {len(names)} names, the model has {count} {what}; give one name for each."
        )
    return names


def listing(names: Sequence[str], most: int = 5) -> str:
    """``"A"``, ``"A and B"``, ``"A, B and C"``; beyond `most`, the rest is counted."""
    if len(names) > most:
        return ", ".join(names[:most]) + f" and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def short(value: float) -> str:
    """Two significant digits, and no more zeros than it takes."""
    return f"{value:#.2g}".rstrip(".") if value < 99.5 else f"{value:.0f}"


def wrapped(text: str, rows: int) -> str:
    """`text` in lines that are not much longer than `rows` rows of a heat map are high."""
    return textwrap.fill(text, width=max(20, int(3.6 * rows)))


@dataclass(frozen=True)
class NamesBelow:
    """How names stand under cells of a map."""

    step: int  # every how many of them are shown
    turned: bool
    size: float  # of the font, points
    depth: float  # points that they reach down

    @classmethod
    def of(cls, names: Sequence[str], room: float) -> NamesBelow:
        """Beside each other where cells of `room` inches allow; else turned, and at worst thinned.

        Widths are estimates: a character is about 0.62 times as wide as its font is high.
        """
        longest, size = max(map(len, names)), 9.5
        beside = max((len(a) + len(b) for a, b in pairwise(names)), default=0) / 2
        if 0.62 * size * (beside + 1) <= 72 * room:  # one character apart
            return cls(1, False, size, 1.2 * size)
        size = 9.0 if 72 * room >= 12 else 7.5
        step = math.ceil(1.2 * size / (72 * room))
        return cls(step, True, size, 0.62 * size * longest)


def spread(positions: ArrayLike, space: float, low: float, high: float) -> Array:
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


def end_labels(ax: Axes, x: float, labels: Sequence[tuple[str, float, str]], height: float) -> None:
    """Write (name, y, colour) right of where lines end at ``(x, y)``, moved apart where they crowd.

    `height` is that of `ax` in inches; a name that had to move far is tied to its line.
    """
    if not labels:
        return
    low, high = ax.get_ylim()
    per_point = (high - low) / (72 * height)
    places = spread([end for _, end, _ in labels], LABEL_SPACE * per_point, low, high)
    for (name, end, color), place in zip(labels, places, strict=True):
        shift = (place - end) / per_point
        look: dict[str, Any] = {"color": color, "va": "center"}
        if color != MUTED:
            look |= {"fontsize": 9.5, "fontweight": "bold"}
        if abs(shift) > LABEL_SPACE:
            line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 1}
            look["arrowprops"] = line
        note(ax, name, (x, end), (14, shift), **look)
