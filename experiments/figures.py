"""What figures of experiments share: colours, panels with a legend, logarithmic axes, bars."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from convexformer.plotting._style import HUES, INK, STYLE

from .lab import read_config

FONT = STYLE | {"font.size": 9, "axes.titlesize": 10.5}
COLORS = {
    experiment: {name: HUES[hue] for name, hue in hues.items()}
    for experiment, hues in read_config(__file__, "figures.toml").items()
}


def panels(
    count: int, size: tuple[float, float], columns: int | None = None, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Empty panels on a page of this size in inches, in a row or in rows of so many."""
    from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

    across = count if columns is None else columns
    options |= {"figsize": size, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(-(-count // across), across, **options)
    return figure, list(axes.flat)


def legend(figure: Figure, ax: Axes, columns: int = 3) -> None:
    """The lines of one panel, below all."""
    handles, labels = ax.get_legend_handles_labels()
    look: Any = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5}
    figure.legend(handles, labels, ncols=min(columns, len(labels)), **look)


def plain_numbers(axis: Axis, spec: str) -> None:
    """No powers of ten to decipher."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{spec}}"))


def few_numbers(axis: Axis, multiples: tuple[float, ...], spec: str) -> None:
    """On a logarithmic axis: these multiples of powers of ten."""
    axis.set_major_locator(LogLocator(subs=multiples))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axis, spec)


def bars(
    ax: Axes,
    labels: Sequence[str],
    colors: Sequence[str],
    lengths: Sequence[float | None],
    dots: Sequence[Sequence[float]],
    size: float,
) -> None:
    """Bars from above to below, one None where there is none, and dots in their rows."""
    for place, (color, length, mine) in enumerate(zip(colors, lengths, dots, strict=True)):
        if length is not None:
            ax.barh(place, length, color=color, alpha=0.75, height=0.62)
        rows = [place + aside for aside in apart(mine)]
        ax.scatter(mine, rows, color=INK, s=size, zorder=3, linewidths=0)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)


def apart(dots: Sequence[float]) -> list[float]:
    """How far to move dots from their row, so that equal ones do not hide each other.

    Examples
    --------
    >>> from experiments.figures import apart
    >>> apart([150, 150, 175])
    [-0.07, 0.07, 0.0]
    """
    moved = []
    for place, dot in enumerate(dots):
        rank, count = list(dots[:place]).count(dot), list(dots).count(dot)
        moved.append(round(0.14 * (rank - (count - 1) / 2), 3))
    return moved
